"""The corpus: small workloads of every kind that torch.compile runs, each compared bit for bit with itself ungraphed.

No workload downloads anything: weights are random, and sizes are small, because what is in question is which
kernels, copies and addresses a program has, and not how large they are.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from tests.corpus.case import Case

FAMILIES = (
    *("huggingface", "vision", "generative", "training", "changed", "adapted"),
    *("dynamic", "state", "streams", "distributed", "refusal"),
)


def corpus(only: str = "") -> list[Case]:
    """Every case that one of ``only``'s comma-separated parts names: a family, or a part of a name; all if empty.

    >>> [case.name for case in corpus("dlrm")]
    ['dlrm inference', 'dlrm training']
    """
    found: list[Case] = []
    for family in FAMILIES:
        cases = import_module(f"{__name__}.{family}").cases()
        found += [replace(case, family=family) for case in cases]
    parts = [part.strip() for part in only.split(",")]
    return [
        case for case in found if any(part == case.family if part in FAMILIES else part in case.name for part in parts)
    ]


__all__ = ["FAMILIES", "Case", "corpus"]
