"""The backend on a GPU: Inductor compiles and partitions, and hands each partition to a Launcher.

Inductor calls ``compile_fx.cudagraphify`` once for each partition, looked up at call time. While one of our
compilations is under way that name leads here, otherwise to torch's own function.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
import torch.fx

from paramgraph_kit.backend.fx import returned_to_the_caller
from paramgraph_kit.backend.kernel_lines import Lines, frames_by_name, kernel_lines
from paramgraph_kit.backend.registry import CompiledGraph
from paramgraph_kit.driver.api import Driver
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.launch.launcher import Launcher, Options
from paramgraph_kit.partition.rules import reasons_for
from paramgraph_kit.trace.model import Reason

CONFIG = {"triton.cudagraphs": True, "graph_partition": True}

_active: ContextVar[_Compilation | None] = ContextVar("paramgraph_compilation", default=None)


class _Compilation:
    """One FX graph on its way through Inductor."""

    def __init__(self, graph: CompiledGraph, driver: Driver, options: Options, seeds: frozenset[str]) -> None:
        self.graph, self.driver, self.options, self.seeds = graph, driver, options, seeds

    def cudagraphify(
        self, model: Callable[[list[Any]], Any], static_input_idxs: Sequence[int], **meta: Any
    ) -> Launcher:
        """What stands in for Inductor's function of this name."""
        number = len(self.graph.launchers)
        launcher = Launcher(
            self.driver,
            _Aligned(model, tuple(static_input_idxs), tuple(meta["mutated_input_idxs"])),
            f"{self.graph.name} partition {number}",
            tuple(meta["constants"]),
            self.options,
            host_seeds=[k for k, p in enumerate(meta["placeholders"]) if p.name in self.seeds],
        )
        self.graph.launchers.append(launcher)
        return launcher


class _Aligned:
    """A partition with Inductor's own care for inputs that are less aligned than its kernels assume.

    Inductor leaves that to whoever takes over cudagraphify. Which inputs to watch shows at the first call.

    Inductor also tunes a kernel again once another graph that has the same kernel is compiled, perhaps to other bits:
    here each call uses what the first, which the capture follows, was tuned to.
    """

    def __init__(self, model: Callable[[list[Any]], Any], static: tuple[int, ...], mutated: tuple[int, ...]) -> None:
        self._model, self._static, self._mutated = model, static, mutated
        self._run: Callable[[list[Any]], Any] | None = None
        self._tuned: list[tuple[Any, list[Any]]] = []  # kernels, and what each was tuned to
        self.checked: Sequence[int] = ()  # positions of inputs that are copied where they are not aligned
        self.lines: Lines = {}  # the user's lines behind its kernels

    def __call__(self, inputs: list[Any]) -> Any:
        if self._run is not None:
            for kernel, launchers in self._tuned:
                kernel.launchers = launchers
            return self._run(inputs)
        self.checked = check = torch_name("get_input_idxs_to_check")(inputs, self._static)
        ordered = torch_name("OrderedSet")(self._mutated)
        self._run = torch_name("align_inputs_from_check_idxs")(self._model, check, ordered)
        outputs = self._run(inputs)
        self._tuned = tuned_kernels(self._model)
        return outputs


def tuned_kernels(partition: Any) -> list[tuple[Any, list[Any]]]:
    """The Triton kernels that a partition's generated code launches and that have been tuned, with their launchers."""
    code, names = getattr(partition, "__code__", None), getattr(partition, "__globals__", {})
    found = [names.get(name) for name in code.co_names] if code else []
    kind = torch_name("CachingAutotuner")
    return [(each, each.launchers) for each in found if isinstance(each, kind) and len(each.launchers) == 1]


def compile_with_inductor(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    new_graph: Callable[[str], CompiledGraph],
    driver: Driver,
    options: Options,
) -> Callable[..., Any]:
    """Compile a Dynamo graph with Inductor, its partitions launched by us; ``new_graph(phase)`` registers each."""
    _install()
    compile_inner = torch_name("compile_fx_inner")

    def inner(graph_module: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        phase = "backward" if kwargs.get("is_backward") else "inference" if kwargs.get("is_inference") else "forward"
        graph = new_graph(phase)
        for reason in reasons_for(graph_module, driver.device.type):
            graph.refuse(reason)
        seeds, frames = host_seeds(graph_module), frames_by_name(graph_module)
        token = _active.set(_Compilation(graph, driver, options, seeds))
        try:
            output = compile_inner(graph_module, inputs, **kwargs)
        finally:
            _active.reset(token)
        _note_skips(graph, output)
        lines = kernel_lines(getattr(output, "source_code", "") or "", frames)
        for number, launcher in enumerate(graph.launchers):
            launcher.run.lines = lines.get(number, {})  # type: ignore[attr-defined]  # an _Aligned
        # With tensors on one storage, this attention's backward takes another way where it is not captured.
        if phase == "forward" and not shares_storage(graph_module):
            saved = saved_by_partition(getattr(output, "source_code", "") or "", returned_to_the_caller())
            for number, launcher in enumerate(graph.launchers):
                launcher.together = saved.get(number, frozenset())
        if seeds and (graph.outside or not graph.launchers):
            _give_seeds_on_the_host(output, [n.name for n in graph_module.graph.find_nodes(op="placeholder")], seeds)
        output._paramgraph = graph  # the registry holds it weakly: it lives as long as the compiled code
        return output

    # AOTAutograd's own cache would return finished callables without passing here; the FX cache stays on.
    with torch_name("functorch_config").patch(enable_autograd_cache=False):
        compiled: Callable[..., Any] = torch_name("compile_fx")(
            gm, list(example_inputs), inner_compile=inner, config_patches=dict(CONFIG)
        )
    return compiled


_READS_SEEDS = ("_scaled_dot_product_efficient_attention_backward", "_efficient_attention_backward")


def host_seeds(graph_module: torch.fx.GraphModule) -> frozenset[str]:
    """Names of the placeholders that memory-efficient attention's backward takes for its random numbers.

    Its forward returns them on the host, but on the device under capture, and where its backward is not captured it
    reads them on the host: given one on the device it ends the process (torch 2.11).
    """
    nodes = [n for n in graph_module.graph.nodes if _name_of(n).startswith(_READS_SEEDS)]
    return frozenset(
        each.name
        for node in nodes
        for argument, each in zip(node.target._schema.arguments, node.args, strict=False)
        if argument.name in ("philox_seed", "philox_offset") and each.op == "placeholder"
    )


_SHARES_STORAGE = ("_scaled_dot_product_efficient_attention", "_efficient_attention_forward")


def shares_storage(graph_module: torch.fx.GraphModule) -> bool:
    """Whether there is an attention in it whose backward looks at which tensors share a storage."""
    return any(_name_of(n).startswith(_SHARES_STORAGE) for n in graph_module.graph.nodes)


def _name_of(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", ""))


def _give_seeds_on_the_host(output: Any, names: list[str], seeds: frozenset[str]) -> None:
    """Let the compiled code itself, where it has launches outside of graphs, see what it sees without graphs."""
    code, positions = output.current_callable, [k for k, name in enumerate(names) if name in seeds]

    def call(inputs: list[Any]) -> Any:
        for k in positions:
            inputs[k] = inputs[k].cpu()
        return code(inputs)

    output.current_callable = call


def _note_skips(graph: CompiledGraph, output: Any) -> None:
    reasons = [getattr(output, "disabled_cudagraphs_reason", None)]
    reasons += getattr(getattr(output, "cudagraph_info", None), "cudagraph_fail_reasons", None) or []
    for text in filter(None, reasons):
        graph.refuse(Reason("inductor-skip", f"Inductor gave up graphs for all of {graph.name}: {text}"))
    graph.outside = launches_outside(getattr(output, "source_code", "") or "", len(graph.launchers))


def saved_by_partition(source: str, returned: int) -> dict[int, frozenset[int]]:
    r"""Which outputs of each partition Inductor's generated ``call`` gives to nobody but the backward.

    ``call`` returns ``returned`` values for its caller and then what is saved. A name that is used in any other way
    is left out.

    >>> code = "def call(args):\n  (a, b, c) = self.partitions[0](args)\n  return (view(a), b, a, c, c, )"
    >>> {k: sorted(v) for k, v in saved_by_partition(code, 2).items()}
    {0: [2]}
    """
    try:
        functions = [f for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef) and f.name == "call"]
    except SyntaxError:
        return {}
    made: dict[int, list[str]] = {}
    saved: set[str] = set()
    others: set[str] = set()
    for statement in (line for function in functions for line in ast.walk(function) if isinstance(line, ast.stmt)):
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value).startswith("self.partitions["):
            made[int(ast.unparse(statement.value).split("[")[1].split("]")[0])] = _names(statement.targets[0])
        elif isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            for k, value in enumerate(statement.value.elts):
                (saved if k >= returned else others).update(_names(value))
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
            others.add(statement.value.id)
    return {
        number: frozenset(k for k, name in enumerate(names) if name in saved - others) for number, names in made.items()
    }


def _names(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]


def launches_outside(source: str, partitions: int) -> int:
    """How many launches Inductor's generated ``call`` makes itself, outside its partition functions.

    >>> launches_outside("def partition_0(args):\\n  k.run(x)\\ndef call(args):\\n  extern_kernels.mm(a, b)\\n", 1)
    1
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return 0
    count = 0
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        inside = partitions > 0 and function.name.startswith("partition_")
        if function.name == "call" and not inside:
            count += sum(_is_launch(node) for node in ast.walk(function))
    return count


def _is_launch(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name.endswith(".run") or name.startswith(("extern_kernels.", "torch.ops.", "aten.", "cpp_fused"))


@cache
def _install() -> None:
    """Make the two names that Inductor looks up at call time lead here while a compilation of ours is under way."""
    compile_fx, output_code = torch_name("compile_fx_module"), torch_name("output_code_module")
    theirs, their_generation = compile_fx.cudagraphify, output_code.maybe_handle_backward_generation

    def cudagraphify(model: Any, static_input_idxs: Sequence[int] = (), **meta: Any) -> Any:
        ours = _active.get()
        return (
            theirs(model, static_input_idxs, **meta)
            if ours is None
            else ours.cudagraphify(model, static_input_idxs, **meta)
        )

    def maybe_handle_backward_generation(*args: Any) -> None:
        if _active.get() is None:  # it looks for the tree manager, which only torch's own cudagraphify makes
            their_generation(*args)

    compile_fx.cudagraphify = cudagraphify
    output_code.maybe_handle_backward_generation = maybe_handle_backward_generation
