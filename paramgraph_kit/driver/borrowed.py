"""Functions of torch's that capturing and comparing call themselves: where a user replaces one, ours would be another.

They are asked where a call is watched, captured or compared, and not where it is launched.
"""

from __future__ import annotations

import torch

from paramgraph_kit.trace.model import Reason

_METHODS = [
    "as_strided",
    "clone",
    "contiguous",
    "copy_",
    "cpu",
    "data_ptr",
    "detach",
    "element_size",
    "is_conj",
    "is_neg",
    "numel",
    "reshape",
    "resolve_conj",
    "resolve_neg",
    "set_",
    "storage_offset",
    "stride",
    "to",
    "to_dense",
    "untyped_storage",
    "view",
]
_FUNCTIONS = ("empty", "empty_like", "empty_strided", "equal", "zeros")
# As they were when this package was imported: who replaced one before has us use that.
_KNOWN = [
    (owner, owner.__name__, name, getattr(owner, name))
    for owner, names in ((torch.Tensor, _METHODS), (torch, _FUNCTIONS))
    for name in names
]


def replaced() -> Reason | None:
    """What is another function than it was, if any is.

    >>> replaced()
    >>> torch.Tensor.detach, real = lambda tensor: tensor * 2, torch.Tensor.detach
    >>> replaced().message
    "torch.Tensor.detach was replaced, and what captures and compares calls it too: put torch's own back"
    >>> torch.Tensor.detach = real
    """
    for owner, module, name, known in _KNOWN:
        if getattr(owner, name) is not known:
            where = f"{'torch.' * (module != 'torch')}{module}.{name}"
            text = f"{where} was replaced, and what captures and compares calls it too: put torch's own back"
            return Reason("unknown-state", text)
    return None
