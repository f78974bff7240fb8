"""Reads what is known of failures: the TOML files beside this one, each of them tables of classes by their ids."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paramgraph_kit.doctor.known.failure_class import CATEGORIES, SOURCES, FailureClass, Rewrite, Sign, fix
from paramgraph_kit.doctor.known.program import Program, graph
from paramgraph_kit.trace import ParamgraphError

FILES = (
    "waits",
    "copies",
    "shapes",
    "misuse",
    "streams",
    "libraries",
    "optimizers",
    "frozen",
    "trees",
    "partitions",
)
REWRITES: dict[str, Rewrite] = {}  # by id: what mends a statement of the user's without asking


def _tuples(table: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


def _programs(table: dict[str, Any]) -> Iterator[Program]:
    for variant in table.pop("variants", [""]):
        each: dict[str, Any] = {
            key: v.replace("VARIANT", variant) if isinstance(v, str) else v for key, v in table.items()
        }
        if "body" in each:  # of which only what is captured fails
            each["eager"] = each.pop("body")
            each |= {"before": graph(each["eager"]), "after": graph(each.pop("fixed"))}
        if variant:
            each.setdefault("name", variant.partition("(")[0])
        yield Program(**each)


def _read(id: str, table: dict[str, Any]) -> FailureClass:  # noqa: A002 - the field's name
    made: dict[str, Callable[[Any], Any]] = {
        "fix": lambda value: fix(*value),
        "fixes": lambda value: {name: fix(*one) for name, one in value.items()},
        "signs": lambda value: tuple(Sign(**_tuples(one)) for one in value),
        "vague": lambda value: tuple(Sign(**_tuples(one)) for one in value),
        "programs": lambda value: tuple(program for one in value for program in _programs(one)),
        "source": SOURCES.__getitem__,
        "reasons": tuple,
    }
    fields = {name: made[name](value) if name in made else value for name, value in table.items()}
    return FailureClass(id, rewrite=REWRITES.get(id), **fields)


def _read_all() -> Iterator[FailureClass]:
    for name in FILES:
        text = (Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8")
        for id_, table in tomllib.loads(text).items():
            yield _read(id_, table)


CLASSES = tuple(_read_all())
BY_ID: dict[str, FailureClass] = {each.id: each for each in CLASSES}
BY_REASON: dict[str, FailureClass] = {reason: each for each in CLASSES for reason in each.reasons}


def catalogue() -> tuple[FailureClass, ...]:
    """Every known class of failure, by category.

    Examples:
        >>> catalogue()[0]
        FailureClass(counter-read: BatchNorm without momentum read its counter)
    """
    return tuple(sorted(CLASSES, key=lambda each: CATEGORIES.index(each.category)))


def failure_class(id: str) -> FailureClass:  # noqa: A002 - the field's name
    """The class with this id.

    Raises:
        ParamgraphError: there is none.

    Examples:
        >>> failure_class("stale-input").silent
        True
    """
    if id not in BY_ID:
        raise ParamgraphError(f"no class of failure has the id {id!r}; 'diagnose --list' names all {len(BY_ID)}")
    return BY_ID[id]
