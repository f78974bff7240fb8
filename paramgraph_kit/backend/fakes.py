"""The tensors that stand in for real ones while a function is traced: what only they cannot do is noted.

A function may catch what it does not expect, ``.item()`` of a stand-in included, and go on as eager never would.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from paramgraph_kit.driver.torch_names import torch_name

HIDDEN = "Please convert all Tensors to FakeTensors first"  # torch's own words, where it notices
_ONLY_FAKE = (
    *("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedFakeTensorException"),
    *("UnsupportedOperatorException", "UnsupportedMutationAliasingException", "GuardOnDataDependentSymNode"),
)


def is_only_fake(error: BaseException) -> bool:
    """Whether an error tells of stand-ins: with real tensors there is none."""
    return type(error).__name__ in _ONLY_FAKE or "FakeTensor" in str(error)


def fake_mode() -> Any:
    """A mode of stand-ins that notes in ``failed`` the first thing that only they cannot do."""
    return _kind()()


@cache
def _kind() -> Any:
    plain = torch_name("FakeTensorMode")

    class NotingMode(plain):  # type: ignore[misc,valid-type]  # made by torch
        """Notes why tracing cannot go on, even where the traced code does."""

        def __init__(self) -> None:
            super().__init__()
            self.failed: BaseException | None = None

        def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            """What torch calls for each operation."""
            try:
                if func._schema.is_mutable and _all_real(args, kwargs):
                    # torch would do it, now, to a tensor that is no input: numbers may stand for its others.
                    raise AssertionError(f"{HIDDEN}: {func} writes to a tensor that is no input")
                return super().dispatch(func, types, args, kwargs)
            except Exception as error:
                if self.failed is None and is_only_fake(error):
                    self.failed = error
                raise

    return NotingMode


def _all_real(args: Any, kwargs: Any) -> bool:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    return bool(tensors) and all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors)
