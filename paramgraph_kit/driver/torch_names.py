"""Every private name of torch that this package relies on, with the versions it was seen in.

One place to look when a new torch moves something; a test resolves every entry.
"""

from __future__ import annotations

import ctypes
import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
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


@dataclass(frozen=True, slots=True)
class NativeName:
    """A function of torch's C++: its library and symbol, the only versions it is called in, and what for."""

    library: str
    symbol: str
    seen: tuple[str, ...]
    why: str


BOTH = ("2.11", "2.13")

NATIVE = {  # pinned memory from factories on the simulated device
    "cpu_allocator": NativeName("c10", "_ZN3c1015GetCPUAllocatorEv", ("2.13",), "an allocator's class without a state"),
    "device_hooks": NativeName(
        "torch_cpu", "_ZN2at6detail19getPrivateUse1HooksEv", ("2.13",), "the object that is asked for an allocator"
    ),
}
# Of getPinnedMemoryAllocator among the virtual functions of those hooks: no symbol tells it, so that each version of
# torch has to be looked at (ATen/detail/PrivateUse1HooksInterface.h) before it is named here.
PINNED_ALLOCATOR_SLOT = {"2.13": 12}

SIMULATOR = tuple(  # what driver/sim is built on; checked together before the device is registered
    TorchName(path, BOTH, why)
    for path, why in (
        ("torch._C:_acc.create_empty_tensor", "device tensors without a C++ backend"),
        ("torch._C:_construct_storage_from_data_pointer", "storages at addresses of our own"),
        ("torch.utils.backend_registration:_setup_privateuseone_for_python_backend", "a device in Python"),
        ("torch._C:_acc.DeviceGuard", "a guard that lets exceptions through"),
        (
            "torch._C:_ensureCUDADeviceGuardSet",
            "what stands in for CUDA while somebody traces",
        ),
        ("torch._C:_autograd.DeviceType", "naming the device slot"),
        ("torch.autograd.graph:_engine_run_backward", "raising what the guard has taken aside"),
        ("torch._C:_get_privateuse1_backend_name", "whether the device slot is free"),
        ("torch.cuda:_lazy_seed_tracker", "whether torch.manual_seed was called before the device's first use"),
        ("torch._C:DispatchKeySet", "calling a CPU kernel that touches metadata only"),
        ("torch._C:DispatchKey", "naming the CPU's kernels"),
        ("torch._C:_ExcludeDispatchKeyGuard", "running an operation below autocast"),
        ("torch.amp.autocast_mode:_cast", "what custom_fwd casts, for the device"),
        ("torch._C:_SetExcludeDispatchKeyGuard", "asking autograd for a node from inside a kernel"),
        ("torch._C:_dispatch_get_all_op_names", "which operations there are"),
        ("torch._C:_dispatch_has_kernel_for_dispatch_key", "which of them have a CPU kernel"),
        ("torch._C:_dispatch_has_computed_kernel_for_dispatch_key", "which kernel a custom operation has"),
        ("torch._C:_conv_determine_backend_memory_format", "how a convolution's result lies, for who traces it"),
        ("torch._C:_current_graph_task_id", "whether a kernel runs in a backward"),
        ("torch._C:_current_autograd_node", "which backward node runs a kernel"),
        ("torch._C:_autograd._get_sequence_nr", "which stream a backward node was made on"),
        ("torch._C:_has_storage", "gradients that come batched, which lie nowhere"),
        ("torch._C:_functorch.is_functorch_wrapped_tensor", "leaves that a transform of torch.func has made"),
        ("torch._C:_DisableTorchDispatch", "replaying nodes unseen by the user's modes"),
        ("torch._C:DisableTorchFunction", "replaying nodes on no device that the user has made the default"),
        ("torch._C:_AutoDispatchBelowAutograd", "replaying nodes unseen by autograd"),
        ("torch._C:_dynamo.guards._reinterpret_tensor", "a view with an offset, as Inductor makes it"),
        ("torch._C:_swap_tensor_impl", "data that moves between host and device under a tensor"),
        ("torch._C:_autograd._unsafe_set_version_counter", "a tensor's version, which its data has no part in"),
        ("torch._higher_order_ops.out_dtype:is_int_mm", "products of integers, which CUDA has in one kernel"),
    )
)

CUDA = tuple(  # what driver/cuda is built on; a build of torch without CUDA has none of them
    TorchName(path, BOTH, why)
    for path, why in (
        ("torch._C:_cuda_getCurrentRawStream", "the current stream without an object for it"),
        ("torch._C._dynamo.guards:_empty_strided_cuda", "an empty tensor in 1.1 us instead of 2.3"),
        ("torch._C:_cuda_cudaCachingAllocator_raw_alloc", "a workspace without a tensor"),
        ("torch._C:_cuda_cudaCachingAllocator_raw_delete", "giving it back"),
        ("torch._C:_cuda_isCurrentStreamCapturing", "whether a call is part of somebody else's capture"),
        ("torch._C:_get_cudnn_enabled", "switches that libraries choose kernels by, and Dynamo does not guard"),
        ("torch._C:_get_cudnn_benchmark", "the same"),
        ("torch._C:_get_cudnn_deterministic", "the same"),
        ("torch._C:_get_fp32_precision_getter", "the same, for convolutions; the older getter may raise"),
        ("torch._C:_get_cublas_allow_fp16_accumulation", "the same"),
        ("torch._C:_get_blas_preferred_backend", "the same"),
        ("torch._C:_cuda_customAllocator", "serving allocations from phantom memory"),
        ("torch._C:_cuda_clearCublasWorkspaces", "workspaces are cached across captures"),
        ("torch._C:_cuda_endAllocateToPool", "taking a pool off a failed capture"),
        ("torch._C:_cuda_releasePool", "giving back the pool of a failed capture"),
        ("torch._C:_cuda_isHistoryEnabled", "whether the user records memory history"),
        ("torch._C:_cuda_getMemoryMetadata", "the user's own label on allocations"),
        ("torch._C:_cuda_setMemoryMetadata", "labelling allocations with the capture's position"),
        ("torch._C:_cuda_memorySnapshot", "reading the labels back"),
        ("torch.cuda.memory:_record_memory_history", "switching the allocator's history on and off"),
        ("torch.cuda:_sleep", "a kernel that does nothing"),
    )
)

NAMES: dict[str, TorchName] = {
    name.key: name
    for name in (
        *SIMULATOR,
        TorchName(
            "torch._inductor.utils:is_cudagraph_unsafe_fx_node",
            ("2.11", "2.13"),
            "Inductor's own verdict on an operation inside a CUDA graph",
        ),
        TorchName(
            "torch._inductor.cudagraph_utils:cudagraphs_log",
            ("2.11", "2.13"),
            "where Inductor says why it skips graphs",
        ),
        TorchName("torch:UntypedStorage._new_with_weak_ptr", ("2.11", "2.13"), "memory that a weak reference knows"),
        TorchName("torch._inductor.compile_fx:compile_fx", ("2.11", "2.13"), "Inductor, entered with our hook"),
        TorchName("torch._inductor.compile_fx:compile_fx_inner", ("2.11", "2.13"), "compiles one FX graph"),
        TorchName("torch._inductor.compile_fx:cudagraphify", ("2.11", "2.13"), "called once for each partition"),
        TorchName(
            "torch._inductor.output_code:maybe_handle_backward_generation",
            ("2.11", "2.13"),
            "looks for the tree manager when a backward is not graphed",
        ),
        TorchName("torch._inductor.compile_fx:get_input_idxs_to_check", ("2.11", "2.13"), "inputs assumed aligned"),
        TorchName(
            "torch._inductor.utils:align_inputs_from_check_idxs", ("2.11", "2.13"), "Inductor's alignment copies"
        ),
        TorchName("torch._inductor.fx_passes.post_grad:ConstructorMoverPass", BOTH, "it moves results to the device"),
        TorchName("torch._inductor.exc:InductorError", ("2.11", "2.13"), "what our errors are wrapped in"),
        TorchName("torch._inductor.scheduler:Scheduler", BOTH, "where Inductor cuts a graph"),
        TorchName("torch.utils._ordered_set:OrderedSet", ("2.11", "2.13"), "the type that Inductor's helper wants"),
        TorchName(
            "torch._functorch.config:",
            ("2.11", "2.13"),
            "AOTAutograd's cache would bypass our hook",
            "functorch_config",
        ),
        TorchName(
            "torch._inductor.compile_fx:", ("2.11", "2.13"), "where cudagraphify is looked up", "compile_fx_module"
        ),
        TorchName(
            "torch._inductor.output_code:",
            ("2.11", "2.13"),
            "where the generation hook is looked up",
            "output_code_module",
        ),
        TorchName(
            "torch._inductor.async_compile:shutdown_compile_workers", ("2.11", "2.13"), "they hold CUDA contexts"
        ),
        TorchName(
            "torch._inductor.runtime.triton_heuristics:CachingAutotuner",
            ("2.11", "2.13"),
            "what a kernel was tuned to, in ``launchers``",
        ),
        TorchName("torch._inductor.cudagraph_trees:CUDAGraphNode", ("2.11", "2.13"), "to record what graph trees do"),
        TorchName("torch._C:_storage_Use_Count", ("2.11", "2.13"), "whether anybody else holds an input's memory"),
        TorchName("torch._C:_len_torch_dispatch_stack", ("2.11", "2.13"), "whether modes watch every operation"),
        TorchName(
            "torch.utils._python_dispatch:_get_current_dispatch_mode_stack", BOTH, "whose they are", "dispatch_modes"
        ),
        TorchName("torch._C:_increment_version", ("2.11", "2.13"), "what a launch has written, for autograd"),
        TorchName("torch._C:_dynamo.guards.RootGuardManager", ("2.11", "2.13"), "asking about many dicts at once"),
        TorchName("torch._C:_dynamo.guards.dict_version", ("2.11", "2.13"), "which dict was written"),
        TorchName("torch._C:_dynamo.guards.TensorGuards", ("2.11", "2.13"), "asking how many tensors look at once"),
        TorchName("torch._dynamo.guards:GuardManagerType", ("2.11", "2.13"), "an argument of a guard"),
        TorchName("torch._inductor.runtime.runtime_utils:cache_dir", ("2.11", "2.13"), "where generated code lies"),
        TorchName("torch._inductor:config", ("2.11", "2.13"), "the user's settings for partitions"),
        TorchName("torch._library.custom_ops:OPDEFS", ("2.11", "2.13"), "the Python of custom operations"),
        TorchName("torch._C:_dispatch_keys", ("2.11", "2.13"), "what a tensor is beyond its memory"),
        TorchName("torch._C:_dynamo.guards.GlobalStateGuard", ("2.11", "2.13"), "torch's switches in one call"),
        TorchName("torch._C:_len_torch_function_stack", ("2.11", "2.13"), "whether a default device is active"),
        TorchName(
            "torch.overrides:_get_current_function_mode_stack", BOTH, "which modes hear a traced call", "function_modes"
        ),
        TorchName("torch:_nested_tensor_from_mask_left_aligned", BOTH, "what an encoder asks of its padding mask"),
        TorchName("torch.nn.modules.activation:_is_make_fx_tracing", BOTH, "attention asks whether it is traced"),
        TorchName("torch.fx._symbolic_trace:is_fx_symbolic_tracing", BOTH, "compiled functions ask whether they are"),
        TorchName("torch._subclasses.fake_tensor:unset_fake_temporarily", ("2.11", "2.13"), "real work while tracing"),
        TorchName("torch._subclasses.functional_tensor:FunctionalTensorMode", BOTH, "which outputs a call is given"),
        TorchName("torch.fx.experimental.proxy_tensor:TorchFunctionMetadataMode", BOTH, "it hears a trace"),
        TorchName("torch:_functionalize_has_data_mutation", BOTH, "whether a trace has left an input's storage"),
        TorchName("torch._inductor.compile_fx:fake_tensor_prop", BOTH, "how Inductor traces: a test asks it"),
        TorchName("torch._guards:detect_fake_mode", BOTH, "tracing a graph with constants of ours"),
        TorchName("torch._guards:TracingContext", ("2.11", "2.13"), "which inputs of a compiled graph are parameters"),
        TorchName(
            "torch._dynamo.trace_rules:add", ("2.11", "2.13"), "files that Dynamo never compiles", "keep_dynamo_out"
        ),
        *(
            TorchName(path, BOTH, why)
            for path, why in (
                ("torch._C:_autograd._get_current_graph_task_keep_graph", "whether a backward will run again"),
                ("torch._C:_autograd._top_saved_tensors_default_hooks", "whether saved tensors are somebody's"),
                ("torch._C:_is_any_autocast_enabled", "whether casts would be made twice"),
                ("torch._C:_DisableAutocast", "what AOTAutograd calls its graphs in"),
                ("torch._C:_are_functorch_transforms_active", "whether a gradient or a map is taken of a call"),
                # Used as any public name is; here to be missed in one place.
                (
                    "torch.autograd.forward_ad:_current_level",
                    "whether tangents are taken of a call; it changes",
                ),
                ("torch.nn.utils.parametrize:_cache_enabled", "whether weights are kept from call to call"),
                ("torch._C:_get_sdp_priority_order", "which attention comes first"),
                ("torch.utils._device:DeviceContext", "the one mode that hears no operation"),
                ("torch.utils._python_dispatch:_disable_current_modes", "to look without being heard"),
                ("torch.nn:Module._apply", "a move to the simulated device keeps parameters"),
                ("torch:_VF", "recurrent layers on the simulated device"),
                ("torch.nn.modules.batchnorm:_NormBase", "modules that change what they hold"),
                ("torch.nn.modules.dropout:_DropoutNd", "modules that draw"),
                ("torch._ops:OpOverload", "operations of a graph"),
                ("torch._ops:OpOverloadPacket", "operations as users name them"),
                ("torch._ops:OperatorBase", "whatever is an operation"),
                ("torch._ops:HigherOrderOperator", "operations that take graphs"),
                ("torch._dynamo:OptimizedModule", "what torch.compile makes of a module"),
                ("torch._subclasses.fake_tensor:FakeTensor", "tensors without memory, in traced graphs"),
            )
        ),
        TorchName(
            "torch._dynamo.variables.torch:TorchInGraphFunctionVariable._get_handlers",
            BOTH,
            "what Dynamo does with torch.cuda.stream, for the simulated device's",
        ),
        TorchName(
            "torch._dynamo.variables.user_defined:UserDefinedClassVariable._in_graph_classes",
            BOTH,
            "the classes of streams and events that Dynamo traces",
        ),
        TorchName(
            "torch._dynamo.graph_bytecode_inputs:get_external_object_by_index", BOTH, "the streams of a compiled graph"
        ),
        TorchName(
            "torch._functorch._aot_autograd.graph_capture:",
            BOTH,
            "what is added to a backward for streams",
            "graph_capture_module",
        ),
        TorchName("torch.utils._pytree:", BOTH, "what is in lists, tuples and dicts", "pytree_module"),
        TorchName("torch._dynamo.output_graph:OutputGraph", BOTH, "streams of the simulated device in compiled code"),
        TorchName("torch._dynamo.eval_frame:innermost_fn", BOTH, "the function that Dynamo evaluates"),
        TorchName("torch._dynamo.eval_frame:_debug_get_cache_entry_list", BOTH, "the guards of a compiled function"),
        TorchName("torch._dynamo.eval_frame:reset_code", BOTH, "forgetting what a trial has compiled"),
        TorchName(
            "torch._dynamo.compiled_autograd:", BOTH, "whether backwards are being compiled", "compiled_autograd_module"
        ),
        TorchName("torch._C:_nn", ("2.11", "2.13"), "a loss that goes another way where a mode sees its operations"),
        TorchName("torch:_tensor_str", ("2.11", "2.13"), "to see that a tensor is printed"),
        TorchName("torch.utils._python_dispatch:TorchDispatchMode", ("2.11", "2.13"), "every operation as it runs"),
        TorchName("torch._dynamo.utils:graph_break_reasons", ("2.11", "2.13"), "why a function became several graphs"),
        TorchName("torch._dynamo.utils:guard_failures", BOTH, "why a function was compiled again"),
        TorchName("torch._guards:CompileContext", BOTH, "which compilation a graph is of"),
        TorchName("torch._dynamo:config", BOTH, "how often Dynamo compiles a function", "dynamo_config"),
        TorchName("torch._dynamo:orig_code_map", ("2.11", "2.13"), "whose code Dynamo rewrote"),
        TorchName("torch._dynamo.resume_execution:ContinueExecutionCache", ("2.11", "2.13"), "whose code resumes"),
        TorchName("torch._dynamo.backends.common:aot_autograd", ("2.11", "2.13"), "forward and backward FX graphs"),
        TorchName("torch._decomp:decompositions", BOTH, "how recurrent layers are traced: without their dropout"),
        TorchName("torch.utils.checkpoint:_checkpoint_without_reentrant_generator", BOTH, "who draws again"),
        TorchName("torch._functorch.partitioners:default_partition", ("2.11", "2.13"), "save what eager saves"),
        TorchName("torch._subclasses.functional_tensor:FunctionalTensor", BOTH, "what stands for a tensor in a trace"),
        TorchName(
            "torch._subclasses.fake_tensor:FakeTensorMode", ("2.11", "2.13"), "tracing a function without running it"
        ),
        TorchName("torch._guards:tracing", ("2.11", "2.13"), "to ask which results of a forward are the caller's"),
        TorchName(
            "torch._functorch.partitioners:min_cut_rematerialization_partition",
            ("2.11", "2.13"),
            "what the forward saves for the backward, chosen as Inductor chooses",
        ),
    )
}


_CUDA_NAMES = {name.key: name for name in CUDA}


@cache
def torch_name(key: str) -> Any:
    """The object behind ``NAMES[key]`` or, in a build with CUDA, behind the name of ``CUDA`` with that key.

    Raises:
        UnsupportedError: this torch does not have it (any more).
    """
    entry = NAMES[key] if key in NAMES else _CUDA_NAMES[key]
    module, _, attributes = entry.path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for attribute in filter(None, attributes.split(".")):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        import torch

        raise UnsupportedError(
            f"torch {torch.__version__} has no {entry.path} ({entry.why}); "
            f"seen in torch {', '.join(entry.seen)}: install one of these"
        ) from error
    return found


def version() -> str:
    """This torch's, as ``seen`` has it: major and minor."""
    import torch

    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def native_name(key: str) -> Any:
    """The function of torch's C++ behind ``NATIVE[key]``, for ``ctypes``.

    Raises:
        UnsupportedError: this torch is not one of those that it was seen in, or does not have it.
    """
    import torch

    entry = NATIVE[key]
    found = None
    if version() in entry.seen:
        for file in (Path(torch.__file__).parent / "lib").glob(f"lib{entry.library}.*"):
            try:
                found = ctypes.CDLL(str(file))[entry.symbol]
            except (OSError, AttributeError):  # another system's, or gone
                continue
    if found is None:
        raise UnsupportedError(
            f"torch {torch.__version__} is not known to have {entry.symbol} ({entry.why}); "
            f"seen in torch {', '.join(entry.seen)} on Linux"
        )
    return found


@cache
def carries_streams() -> bool:
    """Whether a graph of this torch says which operation is on which stream: 2.11 traces streams and drops them."""
    return tuple(int(part) for part in version().split(".")) >= (2, 12)


def missing() -> list[str]:
    """The paths of all names that this torch does not have; those of ``CUDA`` count where torch is built with it."""
    import torch

    gone = []
    for key, entry in (NAMES | (_CUDA_NAMES if torch.version.cuda else {})).items():
        try:
            torch_name(key)
        except UnsupportedError:
            gone.append(entry.path)
    return gone
