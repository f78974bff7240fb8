"""How things are called and grouped wherever they are shown: byte sizes, kernel families, repeated runs."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from paramgraph_kit.trace.model import Allocation, Capture, Node, NodeKind, Partition, Trace
from paramgraph_kit.trace.wording import bytes_text as bytes_text
from paramgraph_kit.trace.wording import one_line


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of work, told apart by word and shape and only then by colour."""

    key: str
    word: str
    shape: str  # a graphviz shape
    fill: str
    line: str
    names: str = ""  # a pattern for kernel names


_ATEN = r"(\.\w+)?$"  # what a simulated kernel is called: an operation, with its overload
_MATMUL = rf"nvjet|gemm|cutlass|cublas|splitk|matmul|triton_tem|^(add|b|badd)?b?m[mv]{_ATEN}"
_REDUCE = rf"^triton_|reduce|softmax|norm|sum|mean|^(a?max|a?min|any|all|var|prod|argmax|argmin){_ATEN}"
_UNARY = (
    "a?(sin|cos|tan)h?|abs|ceil|erf\\w*|floor|is(nan|inf|finite)|log\\d*p?|neg|reciprocal|round|r?sqrt|sgn|sign|trunc"
)
_BINARY = "[gln][te]|eq|(max|min)imum|(bitwise|logical)_\\w+|clamp(_m..)?|fmod|lerp|pow|remainder|where"
_OF_LAYERS = "(sigmoid|silu|tanh|threshold|hardswish)(_backward)?"
_POINTWISE = rf"elementwise|^_(foreach|fused)_|add|mul|sub|div|elu|exp|^({_UNARY}|{_BINARY}|{_OF_LAYERS}){_ATEN}"
FAMILIES = (  # the first pattern that matches wins: Inductor's names list many operations of one kernel
    Family("fused", "fused", "component", "#fde5d7", "#b4511a", r"^triton_(?!red|per|tem)"),
    Family("attention", "attention", "octagon", "#f3e3ff", "#7e3fb8", r"flash|fmha|attention|sdpa|dot_do_o|convert_dq"),
    Family("matmul", "matmul", "box", "#dcebff", "#2563b8", _MATMUL),
    Family("conv", "convolution", "box3d", "#d8f3f0", "#0f766e", r"conv|cudnn|fprop|dgrad|wgrad"),
    Family("random", "random", "diamond", "#ffe4ee", "#b83268", r"philox|distribution|dropout|rand(?!tensor)"),
    Family("reduce", "reduction", "hexagon", "#fdf0cf", "#94660b", _REDUCE),
    Family("copy", "copy", "cds", "#e6ebe4", "#4d6645", r"memcpy|copy|cat_|transpose"),
    Family("fill", "fill", "note", "#eeeeee", "#595959", r"memset|fill|zero"),
    Family("pointwise", "pointwise", "ellipse", "#e0f2d8", "#3d7a21", _POINTWISE),
)
KERNEL = Family("kernel", "kernel", "ellipse", "#f2f2f2", "#555555")
OTHER = Family("other", "no kernel", "plaintext", "#ffffff", "#777777")
ALL_FAMILIES = (*FAMILIES, KERNEL, OTHER)
_PATTERNS = tuple((family, re.compile(family.names, re.IGNORECASE)) for family in FAMILIES)
LONGEST_LAYER = 512  # nodes of one repeated pattern
_MOST_PERIODS = 32  # that are tried at one position, shortest first
_BY_KEY = {family.key: family for family in ALL_FAMILIES}


def family_of(node: Node) -> Family:
    """The family of a node, from its kind and its kernel's name.

    >>> family_of(Node(0, NodeKind.KERNEL, "nvjet_tst_128x8")).word
    'matmul'
    >>> family_of(Node(0, NodeKind.KERNEL, "_foreach_pow.ScalarAndTensor")).word
    'pointwise'
    >>> {family_of(Node(0, NodeKind.KERNEL, name)).word for name in ("sin", "log.out", "logical_and", "floor")}
    {'pointwise'}
    >>> family_of(Node(0, NodeKind.HOST, "print")).word
    'no kernel'
    """
    kind = node.lowered_from or node.kind
    if kind is NodeKind.MEMCPY:
        return _BY_KEY["copy"]
    if kind is NodeKind.MEMSET:
        return _BY_KEY["fill"]
    if kind is not NodeKind.KERNEL:
        return OTHER
    return next((family for family, pattern in _PATTERNS if pattern.search(node.name)), KERNEL)


def plural(count: int, noun: str) -> str:
    """``1 node``, ``2 nodes``.

    >>> plural(1, "node"), plural(0, "copy")
    ('1 node', '0 copies')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}es" if noun.endswith("ch") else f"{count:,} {noun}s"


def content(trace: Trace) -> str:
    """What a trace holds, counted.

    >>> from paramgraph_kit.recordings import recorded
    >>> content(recorded["gpt2"])
    '114 nodes, 4 launches, 179 pool events'
    """
    counts = {
        "node": sum(len(capture.nodes) for capture in trace.captures),
        "launch": len(trace.launches),
        "failure": len(trace.failures),
        "pool event": len(trace.pool_events),
    }
    return ", ".join(plural(count, noun) for noun, count in counts.items() if count)


_LITERALS = re.compile(r"L[a-z]n?\d+E")  # template arguments that are numbers
_TELLING = re.compile(r"functor|kernel|scalar|cutlass|gemm|reduce", re.IGNORECASE)


@lru_cache(maxsize=4096)
def readable(name: str) -> str:
    """A kernel's name as C++ has it, without parameters, and with the template arguments that tell what it does.

    >>> readable("_ZN7cutlass7Kernel2I41cutlass_80_simt_sgemm_64x64_8x5_tn_align1EEvNT_6ParamsE")
    'cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_tn_align1>'
    >>> readable("_ZN2at6native18elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_10MulFunctorIfEEEEviT0_T1_")
    'at::native::elementwise_kernel<AUnaryFunctor, MulFunctor>'
    >>> readable("nvjet_tst_128x8")
    'nvjet_tst_128x8'
    """
    if not name.startswith("_Z"):
        return name
    rest = name[3 if name.startswith("_ZN") else 2 :]
    own: list[str] = []
    while identifier := _identifier(rest):
        own.append(identifier)
        rest = rest[len(f"{len(identifier)}{identifier}") :]
    if not own:
        return name
    inner: list[str] = []
    rest = _LITERALS.sub("_", rest) if rest.startswith("I") else ""
    while rest and len(inner) < 2:
        identifier = _identifier(rest)
        if identifier and _TELLING.search(identifier) and not identifier.startswith("_GLOBAL__"):
            inner.append(identifier)
        rest = rest[len(f"{len(identifier)}{identifier}") if identifier else 1 :]
    says = "::".join("(anonymous namespace)" if part.startswith("_GLOBAL__") else part for part in own)
    return f"{says}<{', '.join(inner)}>" if inner else says


def _identifier(text: str) -> str:
    """The identifier that a mangled text begins with, after its length; "" if it begins with something else."""
    digits = re.match(r"\d+", text)
    if digits is None:
        return ""
    found = text[digits.end() : digits.end() + int(digits[0])]
    return found if len(found) == int(digits[0]) and found.isidentifier() else ""


def short(name: str, width: int = 32) -> str:
    """A name that fits, with its two ends kept: kernels differ at both.

    >>> short("triton_poi_fused_add_mul_silu_17", 20)
    'triton_poi…l_silu_17'
    """
    name = one_line(readable(name))
    bare = re.sub(r"^void |\bat::native::|\(anonymous namespace\)::|unrolled_|vectorized_", "", name)
    if len(bare) <= width:
        return bare
    head = width // 2
    return bare[:head] + "…" + bare[-(width - head - 1) :]


def in_order(partitions: Iterable[Partition]) -> list[Partition]:
    """Partitions graph by graph, those of one graph in the order in which a call runs them, as far as that is known."""
    every = list(partitions)
    graphs = {name: n for n, name in enumerate(dict.fromkeys(part.graph for part in every))}
    return sorted(every, key=lambda part: (graphs[part.graph], part.position < 0, part.position))


def tensor_text(memory: Allocation, width: int = 40) -> str:
    """A tensor as its user knows it.

    >>> from paramgraph_kit.trace.model import Role
    >>> tensor_text(Allocation(0, Role.INPUT, 65536, name="blocks.3.up.weight", shape=(256, 64), dtype="f32"))
    'blocks.3.up.weight [256x64] f32'
    >>> tensor_text(Allocation(7, Role.WORKSPACE, 512))
    'workspace 7'
    """
    name = short(memory.name, width) or f"{memory.role} {memory.index}"
    return name if memory.shape is None else f"{name} [{'x'.join(map(str, memory.shape))}] {memory.dtype}"


@dataclass(frozen=True, slots=True)
class Run:
    """``repeats`` times the same ``period`` nodes, from position ``start``."""

    start: int
    period: int
    repeats: int

    @property
    def length(self) -> int:
        """How many nodes the run covers."""
        return self.period * self.repeats


def runs_of(keys: Sequence[Hashable], longest: int = LONGEST_LAYER) -> list[Run]:
    """Split a sequence into runs of repeated patterns, greedily, each covering as much as it can.

    >>> [(run.start, run.period, run.repeats) for run in runs_of("xababaaab")]
    [(0, 1, 1), (1, 2, 2), (5, 1, 3), (8, 1, 1)]
    """
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    ids = [numbers[key] for key in keys]
    places: list[list[int]] = [[] for _ in numbers]
    rank = []  # of each position among the places of its key
    for at, key in enumerate(ids):
        rank.append(len(places[key]))
        places[key].append(at)
    runs, at, end = [], 0, len(ids)
    while at < end:
        best = Run(at, 1, 1)
        limit = min(longest, (end - at) // 2)
        for other in islice(places[ids[at]], rank[at] + 1, rank[at] + 1 + _MOST_PERIODS):
            period = other - at
            if period > limit:
                break
            if ids[other - 1] != ids[other + period - 1] or ids[at : at + period] != ids[other : other + period]:
                continue
            pattern, stop = ids[at : at + period], other + period
            while ids[stop : stop + period] == pattern:
                stop += period
            repeats = (stop - at) // period
            if period * repeats > best.length:
                best = Run(at, period, repeats)
        runs.append(best)
        at += best.length
    return runs


def runs_of_nodes(capture: Capture) -> list[Run]:
    """Runs of nodes with the same name and launch shape on the same lane."""
    return runs_of([(node.kind, node.name, node.grid, node.block, node.lane) for node in capture.nodes])
