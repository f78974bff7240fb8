"""Which programs of many steps the simulator is not held to, and why."""

from __future__ import annotations

_TORCH = "torch 2.13 does it in another way than the 2.11 of the recording"
_DENSE = "the simulated device has dense tensors only"
_RARE = "the simulated device has the commoner operations of sparse tensors only"
_OTHERS = "no other library finds a GPU's memory here"
_LATER = "a GPU tells of it at the next wait, and is of no use from then on"
_NAMES = "torch tells the names of devices, among which there is another one here"
_ITS_OWN = "the simulated device tells of its memory in words of its own"

# What the simulator says that it does not know.
UNKNOWN = {
    "q.dl.cai_wrapped_back": _OTHERS,
    "q.ff.plan_cache_size": "torch keeps plans of Fourier transforms for CUDA alone",
    "q.la.backend_prefer_magma_cusolver": "torch was not compiled with cuSOLVER here",
    "q.ma.device_limits_queries": "the simulated device counts no pinned memory",
    "q.qy.each_global": "the simulated device has no compiled kernels, clocks or processes",
    "q.sp.nested_strided_to_padded_in": _DENSE,
    "q.sp.quantize_dynamic_q": "the simulated device has no quantized tensors",
    "q.sp.semi_structured": "torch knows the devices of sparse halves by name",
    "c.me.allocator_settings_and_raw": "the simulated device's allocator is its own",
    "c.m2.snapshot_and_pools": "the simulated device's allocator is its own",
    "c.mi.comm_and_replicate": "there is no NCCL here",
    "c.mi.device_facts": "the simulated device has no compiled kernels, and no NCCL",
    "c.n2.distributed_less": "there is nothing to scatter a batch with here",
    "c.q2.old_names_and_aliases": "the old names of types, as torch.cuda.FloatTensor, are not simulated",
    "c.s2.csr_in_capture": _RARE,
    "c.s2.layout_errors": _RARE,
    "c.s2.what_counts_in_capture": _RARE,
    "u.co.debug_mode_dump": "there is no graph of CUDA's behind a simulated one",
    "u.sp.nested_strided": _DENSE,
    "x.adagrad_fused_on_device": _TORCH,
    "x.rn_init_functions_in_capture": _TORCH,
}
# Another torch, another device's name or memory, or what docs/simulator.md says of the simulator.
OTHERWISE = {
    "c.ag.grad_none_and_materialized": _TORCH,
    "c.ag.version_errors": _TORCH,
    "c.ex.warnings_as_errors": "an error made of a warning says where in torch's source that is",
    "c.m2.streams_equal_and_hash": "a GPU's current stream is another object each time",
    "c.mi.dlpack_and_interfaces": "another NumPy raises another error",
    "c.o2.complex_more": "which kernel refuses complex numbers is told by another name",
    "c.o2.wrong_calls_eager": _TORCH,
    "c.s2.sparse_optimizers": _NAMES,
    "c.th.two_graphs_two_threads_relaxed": "whether one thread waits while another captures is a matter of time",
    "q.ag.inplace_version_error_in": _TORCH,
    "q.at.causal_and_mask_both": "a probability above 1, which a GPU's attention takes, is refused here",
    "q.at.mask_forms": "the text is cut behind the device's name, which is shorter here",
    "q.dl.dlpack_default_in_unsynced": "another NumPy raises another error",
    "q.dt.fp8_round": _TORCH,
    "q.dt.refused_elementwise": _LATER,
    "q.ix.oob_gather_in_replay": _LATER,
    "q.ma.oom_caught_in": _ITS_OWN,
    "q.ma.oom_in": _ITS_OWN,
    "q.ma.summary_and_nested": _ITS_OWN,
    "q.mg.unused_error": _TORCH,
    "q.qy.tensor_attrs": _NAMES,
    "q.rf.input_freed_emptied": _LATER,
    "q.sf.optimizer_state_after_failure": _NAMES,
    "q.vw.chunk_split_inplace_grad_error": _TORCH,
    "u.pl.oom_in_capture": _ITS_OWN,
    "u.st.priority_and_external": "an external stream of a GPU equals none of torch.cuda's, although it is the same",
    "u.tr.adamw_groups_capturable": "its gradients are what is left of sums that are zero, and Adam divides by those",
    "x.adam_capturable_cpu_param": _NAMES,
    "x.detach_then_mul_saved_changed": _TORCH,
    "x.hv_assert_close_in_capture": _TORCH,
    "x.hv_numpy_functions_of_device": _TORCH,
    "x.ix_numpy_integer": _NAMES,
    "x.unbind_view_inplace": _TORCH,
    "x.vmap_if_on_value": _TORCH,
    "v.embedding_out_of_bounds_replay": _LATER,
    "v.scatter_out_of_bounds_eager": _LATER,
    "v.user_spectral_norm_train": "what an iteration still moves behind its last digit",
}
NOT_COMPARED = UNKNOWN | OTHERWISE
