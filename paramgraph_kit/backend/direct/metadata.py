"""What AOTAutograd's wrappers would do at a call beyond handing tensors on; where there is anything, they stay.

Read from the metadata that AOTAutograd keeps of each graph (``ViewAndMutationMeta``, seen in torch 2.11 and 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Each must be empty, zero, None or False, else the wrappers have work of their own.
NOTHING_ELSE = {
    "num_mutated_inp_runtime_indices": "inputs are written after the graph has run",
    "num_intermediate_bases": "outputs share memory with values inside",
    "num_outputs_aliased": "outputs share memory with inputs or with one another",
    "dynamic_outputs": "sizes of outputs may change",
    "tokens": "effects are ordered by tokens",
    "num_backward_tokens": "effects are ordered by tokens",
    "is_rng_op_functionalized": "random numbers are handed in from outside",
    "num_graphsafe_rng_states": "states of generators are handed in from outside",
    "grad_enabled_mutation": "the function switches gradients on or off",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw": "the backward writes into inputs",
    "mutated_inp_stream_indices": "inputs are written on streams of the user's",
    "num_symints_saved_for_bw": "numbers are saved for the backward",
    "num_opaque_objects_saved_for_bw": "objects that are no tensors are saved for the backward",
    "dynamic_saved_tensors_idxs": "sizes of saved tensors may change",
}
# Names that came after torch 2.11: where they are missing, so is what they describe.
NEWER = frozenset({"num_opaque_objects_saved_for_bw", "dynamic_saved_tensors_idxs", "mutated_inp_stream_indices"})
PLAIN = ("subclass_inp_meta", "subclass_fw_graph_out_meta", "subclass_tangent_meta")


@dataclass(frozen=True, slots=True)
class Wrapping:
    """What a direct call has to do in the wrappers' place."""

    outputs: int  # how many results are the caller's
    differentiable: tuple[bool, ...]  # of each, whether it takes part in the backward
    written: tuple[int, ...]  # inputs whose version counter moves at each call
    unchecked: int  # how many of the saved tensors, the last ones, may be written before the backward
    donates: bool  # whether the backward writes into what the forward has saved


def obstacle(metadata: Any) -> str | None:
    """Why the wrappers must stay, None where they only hand tensors on.

    Raises:
        AttributeError: this torch's metadata lacks a name; ``Wrapping`` cannot be told.
    """
    for name, why in NOTHING_ELSE.items():
        value = getattr(metadata, name, None) if name in NEWER else getattr(metadata, name)
        if name == "grad_enabled_mutation":  # False is what it is switched to
            value = value is not None
        if any(x is not None for x in value) if name == "mutated_inp_stream_indices" and value else value:
            return why
    if any(info.mutates_metadata or info.mutates_storage_metadata for info in metadata.input_info):
        return "inputs change their shape"
    # Of a tensor there is a plain record of its layout, of a subclass one that lists its parts.
    if any(hasattr(meta, "attrs") for name in PLAIN for meta in getattr(metadata, name) or ()):
        return "inputs or outputs are subclasses of a tensor"
    return None


def wrapping(metadata: Any) -> Wrapping:
    """What is left to do where there is no ``obstacle``."""
    donated: Sequence[int] | None = metadata.bw_donated_idxs
    return Wrapping(
        outputs=metadata.num_outputs,
        differentiable=tuple(bool(info.requires_grad) for info in metadata.output_info),
        written=tuple(metadata.mutated_graph_handled_indices_seen_by_autograd),
        unchecked=int(getattr(metadata, "num_tensors_saved_with_no_vc_check", None) or 0),
        donates=bool(donated),
    )
