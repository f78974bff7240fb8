"""Batches with dictionaries, tuples or lists inside: how they are put together, and where each tensor is.

Of ``Batch(x, {"mask": m})`` the text is ``Batch({}, {"mask": {}})``, and its tensors are at ``batch[0]`` and
``batch[1]["mask"]``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

KIND = "nested"
_CLASS = re.compile(r"<([\w.]+)>")


def parts(value: Any) -> tuple[str, tuple[str, ...], list[Any]]:
    """What a batch's text is, where its tensors are, and these; what is not known is among them as it is."""
    leaves = list(_leaves(value, ""))
    return KIND, (_template(value), *(path for path, _ in leaves)), [leaf for _, leaf in leaves]


def text(template: str, name_of: Callable[[str], str]) -> str:
    """The text with the names of its classes; "" where one has none."""
    names = {kind: name_of(kind) for kind in _CLASS.findall(template)}
    return _CLASS.sub(lambda found: names[found[1]], template) if all(names.values()) else ""


def places(built: Collection[tuple[str, tuple[str, ...]]], names: Sequence[str]) -> list[str]:
    """Where the tensors of a batch are that was given to a name, or taken apart into several; [] of a plain one."""
    (kind, keys), *_ = built
    if kind != KIND:
        return []
    if len(names) == 1:
        return [f"{names[0]}{path}" for path in keys[1:]]
    split = (re.match(r"\[(\d+)\]", path) for path in keys[1:])
    return [f"{names[int(at[1])]}{path[at.end() :]}" for path, at in zip(keys[1:], split, strict=True) if at]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if type(value) is dict and all(type(key) in (str, int) for key in value):
        for key, each in value.items():
            yield from _leaves(each, f"{path}[{_key(key)}]")
    elif type(value) in (tuple, list) or hasattr(value, "_fields"):
        for n, each in enumerate(value):
            yield from _leaves(each, f"{path}[{n}]")
    else:
        yield path, value


def _template(value: Any) -> str:
    if type(value) is dict:
        return "{{" + ", ".join(f"{_key(key)}: {_template(each)}" for key, each in value.items()) + "}}"
    if isinstance(value, torch.Tensor) or not isinstance(value, (tuple, list)):
        return "{}"
    inside = ", ".join(map(_template, value))
    if hasattr(value, "_fields"):
        return f"<{type(value).__module__}.{type(value).__qualname__}>({inside})"
    return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"


def _key(key: str | int) -> str:
    return repr(key) if isinstance(key, int) else '"' + repr(key)[1:-1] + '"'
