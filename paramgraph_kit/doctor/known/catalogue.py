"""The catalogue of capture failures: every class that has a program which fails so, and one which does not."""

from __future__ import annotations

from paramgraph_kit.doctor.known import (
    catalogue_compile,
    catalogue_gradients,
    catalogue_misuse,
    catalogue_silent,
    catalogue_streams,
    catalogue_sync,
    catalogue_torch,
)
from paramgraph_kit.doctor.known.failure_class import CATEGORIES, FailureClass
from paramgraph_kit.trace import ParamgraphError


def catalogue() -> tuple[FailureClass, ...]:
    """Every known class of failure, by category.

    Examples:
        >>> catalogue()[0]
        FailureClass(sync-item: A value is read back to the CPU)
    """
    parts = (
        catalogue_sync,
        catalogue_streams,
        catalogue_torch,
        catalogue_misuse,
        catalogue_silent,
        catalogue_gradients,
        catalogue_compile,
    )
    classes = (each for part in parts for each in part.CLASSES)
    return tuple(sorted(classes, key=lambda each: CATEGORIES.index(each.category)))


def failure_class(id: str) -> FailureClass:  # noqa: A002 - the field's name
    """The class with this id.

    Raises:
        ParamgraphError: there is none.

    Examples:
        >>> failure_class("stale-input").silent
        True
    """
    for each in catalogue():
        if each.id == id:
            return each
    raise ParamgraphError(f"no class of failure has the id {id!r}; 'diagnose --list' names all {len(catalogue())}")
