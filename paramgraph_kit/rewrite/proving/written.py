"""Copies what runs of a function write before they do, counts their operations, and ends what has no end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paramgraph_kit.doctor.observe.as_ever import AsEver
from paramgraph_kit.doctor.observe.refusals import operation
from paramgraph_kit.doctor.restore.keeper import Keeper, storage_key
from paramgraph_kit.driver.generators import generator_of
from paramgraph_kit.driver.profiling import unseen
from paramgraph_kit.driver.select import driver
from paramgraph_kit.driver.tensors import has_memory_alone
from paramgraph_kit.rewrite.proving.deadline import Deadline
from paramgraph_kit.rewrite.proving.looked_up import LookedUp
from paramgraph_kit.rewrite.proving.printed import Printed
from paramgraph_kit.rewrite.proving.rounded_first import ROUNDED, is_rounded_first

# What computes nothing: other shapes of the same memory, and copies of it; some are seen in inference mode alone.
FREE = frozenset(
    """detach alias view _to_copy clone copy_ select slice unbind t transpose expand permute unsqueeze squeeze reshape
    _unsafe_view _local_scalar_dense split chunk empty empty_like lift_fresh to flatten item numpy_T contiguous
    view_as expand_as reshape_as movedim""".split()  # noqa: SIM905
)
PRODUCTS = frozenset(
    """mm addmm bmm baddbmm convolution linear _cudnn_rnn _thnn_fused_gru_cell _thnn_fused_lstm_cell
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention mv""".split()  # noqa: SIM905
)
_MOST_COPIED = 2**28  # bytes
MOST = 2**16  # elements of a tensor that is compared also where nothing has written it


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be looked at after each run, whether it was written or not."""
    return tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested and tensor.numel() <= MOST


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Has memory from outside copied before it is first written."""

    def __init__(self, leaves: list[torch.Tensor], count: list[int], deadline: Deadline) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keeper, self.said, self._looked_up = Keeper(), Printed(), LookedUp()
        self._as_ever = AsEver()
        self.read: set[int] = set()  # the memory that operations are given, where that is asked for
        self._reads = False
        self._rounded = 0
        self._operations, self._deadline = count, deadline
        self._is_capturing = driver().is_capturing  # whoever captures in a call: a copy would be part of the graph
        for tensor in leaves:
            if tensor.is_leaf and tensor.requires_grad:
                self.keeper.note_leaf(tensor)

    def __enter__(self) -> Any:
        self._looked_up.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self._looked_up.__exit__(*error)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def seen(self) -> dict[str, list[Any]]:
        """What it prints, what it looks up, and what it rounds first."""
        looked = self._looked_up.seen()
        return {**self.said.seen(), **looked, **({ROUNDED: [self._rounded]} if looked else {})}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not look for a while, nor be there: some backwards wait for the device only where no mode is on."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    @contextmanager
    def captured(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        """Do not look at a capture; what it writes of these is copied behind it, as its replays write it unseen."""
        before = [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]
        with self.paused():
            yield
        for tensor, version in before:
            if tensor._version != version:
                self.keeper.keep(tensor)

    def reading(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, of which is noted what memory it reads, and not of what comes around it."""

        def noted(*args: Any, **kwargs: Any) -> Any:
            self._reads = True
            try:
                return function(*args, **kwargs)
            finally:
                self._reads = False

        return noted

    @unseen
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._deadline.check()
        kwargs = kwargs or {}
        if self._reads:
            self.read.update(storage_key(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor))
        op = operation(func)
        self._operations[0] += op.name not in FREE
        self._operations[1] += op.name in PRODUCTS
        self._rounded += is_rounded_first(args)
        if (generator := kwargs.get("generator")) is not None and not self._is_capturing():
            self.keeper.note_generator(generator_of(generator))
        if not self._is_capturing():
            for number, name in zip(op.written, op.written_names, strict=True):
                value = args[number] if number < len(args) else kwargs.get(name)
                for tensor in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(tensor, torch.Tensor):
                        self.keeper.before_write(tensor)
        return self._as_ever(op.name, func, args, kwargs)


def may_be_written(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that a later call may write unseen, as an average in each hundredth; without a large model's weights."""
    kept, found = {storage_key(t): t for t in tensors}, list[torch.Tensor]()
    left = _MOST_COPIED
    for tensor in sorted((t for key, t in kept.items() if key), key=lambda t: t.untyped_storage().nbytes()):
        left -= tensor.untyped_storage().nbytes()
        found += [tensor] if left >= 0 else []
    return found


def let_go_of_gone(written: dict[int, torch.Tensor]) -> None:
    """Forget memory that nobody else has by now: what a run makes and writes is gone with it, and no other meets it."""
    for key in [key for key, tensor in written.items() if has_memory_alone(tensor)]:
        del written[key]
