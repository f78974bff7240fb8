"""Every private name of torch that this package relies on, with the versions it was seen in.

One place to look when a new torch moves something; a test resolves every entry.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from paramgraph_kit.trace.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class TorchName:
    """A private name: ``module:attribute.attribute``, where it was seen, and what for."""

    path: str
    seen: tuple[str, ...]
    why: str
    alias: str = ""  # its key, where the last part of the path is taken

    @property
    def key(self) -> str:
        """What ``torch_name`` is called with."""
        return self.alias or self.path.replace(":", ".").rpartition(".")[2]


NAMES: dict[str, TorchName] = {
    name.key: name
    for name in (
        TorchName(
            "torch._inductor.utils:is_cudagraph_unsafe_fx_node",
            ("2.11", "2.13"),
            "Inductor's own verdict on an operation inside a CUDA graph",
        ),
        TorchName("torch._inductor.compile_fx:compile_fx", ("2.11", "2.13"), "Inductor, entered with our hook"),
        TorchName("torch._inductor.compile_fx:compile_fx_inner", ("2.11", "2.13"), "compiles one FX graph"),
        TorchName("torch._inductor.compile_fx:cudagraphify", ("2.11", "2.13"), "called once for each partition"),
        TorchName(
            "torch._inductor.output_code:maybe_handle_backward_generation",
            ("2.11", "2.13"),
            "looks for the tree manager when a backward is not graphed",
        ),
        TorchName("torch._inductor.compile_fx:get_input_idxs_to_check", ("2.11", "2.13"), "inputs assumed aligned"),
        TorchName("torch._inductor.utils:align_inputs_from_check_idxs", ("2.11", "2.13"), "Inductor's alignment copies"),
        TorchName("torch.utils._ordered_set:OrderedSet", ("2.11", "2.13"), "the type that Inductor's helper wants"),
        TorchName("torch._functorch:config", ("2.11", "2.13"), "AOTAutograd's cache would bypass our hook", "functorch_config"),
        TorchName("torch._inductor:compile_fx", ("2.11", "2.13"), "where cudagraphify is looked up", "compile_fx_module"),
        TorchName("torch._inductor:output_code", ("2.11", "2.13"), "where the generation hook is looked up", "output_code_module"),
        TorchName("torch._inductor:config", ("2.11", "2.13"), "the user's settings for partitions"),
        TorchName("torch._subclasses.fake_tensor:unset_fake_temporarily", ("2.11", "2.13"), "real work while tracing"),
        TorchName("torch._guards:TracingContext", ("2.11", "2.13"), "which inputs of a compiled graph are parameters"),
        TorchName("torch._dynamo.backends.common:aot_autograd", ("2.11", "2.13"), "forward and backward FX graphs"),
        TorchName(
            "torch._functorch.partitioners:min_cut_rematerialization_partition",
            ("2.11", "2.13"),
            "what the forward saves for the backward, chosen as Inductor chooses",
        ),
    )
}


@cache
def torch_name(key: str) -> Any:
    """The object behind ``NAMES[key]``.

    Raises:
        UnsupportedError: this torch does not have it (any more).
    """
    entry = NAMES[key]
    module, _, attributes = entry.path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        import torch

        raise UnsupportedError(
            f"torch {torch.__version__} has no {entry.path} ({entry.why}); "
            f"seen in torch {', '.join(entry.seen)}: install one of these"
        ) from error
    return found
