"""What a function that captures in each of its calls has put into its captures, as functions of their own."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import CodeType, FrameType, MethodType, ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from paramgraph_kit.doctor.cell import call_in, wrapped
from paramgraph_kit.doctor.explain.syntax import FUNCTIONS, last_line, last_name, tree_of
from paramgraph_kit.doctor.number_kinds import AMOUNTS, NUMBERS
from paramgraph_kit.doctor.observe.captured_entries import value_at
from paramgraph_kit.doctor.observe.captured_for import Caller, callers_of
from paramgraph_kit.doctor.observe.captured_values import (
    CapturedValues,
    Names,
    Use,
    uses_in,
    uses_of,
)
from paramgraph_kit.doctor.observe.filled_inside import made_for_it
from paramgraph_kit.doctor.observe.graphed_by_torch import graphed_modules, original_of
from paramgraph_kit.doctor.observe.held import addresses_of, attributes_of, code_of, is_a, parameters_at, tensors_in
from paramgraph_kit.doctor.observe.names_read import stored_in
from paramgraph_kit.doctor.observe.own_managers import until_end
from paramgraph_kit.doctor.restore.keeper import storage_key
from paramgraph_kit.driver.files import is_library

GRAPHED = "make_graphed_callables"
NAME = "captured"
_BLOCKS = ("body", "orelse", "finalbody")
_NUMBERS = (*NUMBERS, str)  # a word is one, where it decides
_MOST_PARTS, _MOST_NUMBERS = 100, 1 << 26  # of what is made again when it is gone


@dataclass(frozen=True, slots=True)
class _Like:
    """How a tensor lay."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    learns: bool

    def made(self) -> torch.Tensor:
        """One that lies so, with numbers that are not all the same."""
        numbers = torch.linspace(0.1, 1.0, self.shape.numel()).reshape(self.shape)
        return numbers.to(self.device, self.dtype).requires_grad_(self.learns)


def _described(value: Any, deep: int = 3) -> Any:
    """The same with how its tensors lie in their place.

    Raises:
        ValueError: there is more than tensors and plain values, or much of it; it may lead back to itself.
    """
    kind = type(value)
    if is_a(value, torch.Tensor) and value.layout is torch.strided and value.numel() <= _MOST_NUMBERS:
        return _Like(value.shape, value.dtype, value.device, value.requires_grad)
    if kind in _NUMBERS or value is None:
        return value
    if not deep or kind not in (list, tuple, dict) or len(value) > _MOST_PARTS:
        raise ValueError
    if kind is dict:
        return {key: _described(part, deep - 1) for key, part in value.items()}
    return kind(_described(part, deep - 1) for part in value)


@dataclass(slots=True)
class Region:
    """One capture: where it began, what its names meant then, and how torch was set."""

    code: CodeType
    line: int
    names: dict[str, Any]
    graph: object
    settings: tuple[Any, ...] = ()
    memory: dict[int, list[int]] = field(default_factory=dict)  # of each module's parameters, by its id
    gradients: frozenset[int] = frozenset()  # memory of those that parameters had when it began
    whole: bool = False  # its capture has ended well
    adds_on: bool = False  # to gradients that another graph makes anew
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    inline: bool = False  # its statements stand in the program itself, and are no function of the user's
    file: str = ""  # which has those as a function
    ahead: int = 0  # lines of the program's before them, without those that this begins with
    body: list[ast.stmt] = field(default_factory=list)
    own: frozenset[str] = frozenset()  # variables of the function that it stands in
    space: dict[str, Any] = field(default_factory=dict)  # the others, as they are now
    values: CapturedValues | None = None  # what its lines read of Python's
    cells: dict[str, Any] = field(default_factory=dict)  # its variables that other functions share
    known: dict[str, Any] = field(default_factory=dict)  # what variables of that function mean to these
    of_torch: tuple[object, ...] = ()  # graphs of a callable that torch has graphed before anybody looked
    ran: Collection[CodeType] = ()  # functions that have run behind captures, as far as anybody knows
    writes: frozenset[int] = frozenset()  # memory from outside that its lines write, if it was captured before
    filled: frozenset[int] = frozenset()  # of that, what they copy to
    gone: dict[str, Any] = field(default_factory=dict)  # how the tensors lay that it has let go
    numbers: frozenset[tuple[int, str]] | None = None  # by who has them, and their names, when it began, if it is known
    called: dict[int, str] = field(default_factory=dict)  # memory, and what variables of its function call that
    callers: tuple[Caller, ...] = ()  # functions that have called the one that it stands in

    def ended(self) -> None:
        """Its capture has ended well; what its lines read is noted as it is now."""
        self.whole = True
        tree = tree_of(self.code.co_filename)
        self.body = (_captured_at(tree, self) if tree is not None else None) or []

        self.known = dict(self.names)
        names = Names(self.space, self.cells, self.own | stored_in(self.body), self.known)
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            self.values = CapturedValues(uses_of(self.body, self.code, names)) if self.body else None

    def reads_of_given(self, uses: list[Use]) -> None:
        """Its functions read these, too, of objects that they were given."""
        if self.values is not None:
            known = {(use.code, use.text) for use in self.values.uses}
            self.values = CapturedValues([*self.values.uses, *(u for u in uses if (u.code, u.text) not in known)])

    def graphed(self, function: Callable[..., Any], args: tuple[Any, ...], graphs: tuple[object, ...]) -> None:
        """It is torch's: what was captured is this function, and not what its statement says."""
        self.function, self.args, self.of_torch = function, args, graphs
        with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
            self.values = CapturedValues(uses_in(function, {}))

    @contextmanager
    def as_now(self) -> Iterator[None]:
        """While this lasts numbers of the function that it stands in are those of its call that runs now, if one does.

        The names of what is no number are kept: a tensor may have another name only where it is captured.
        """
        held, frame = dict(self.known), _running(self.code)
        own = stored_in(self.body)  # these are given their values by each capture itself
        for name, value in frame.f_locals.items() if frame is not None else ():
            if type(value) in _NUMBERS and type(self.known.get(name)) in _NUMBERS and name not in own:
                self.known[name] = value
        try:
            yield
        finally:
            self.known.clear()
            self.known.update(held)

    def results(self) -> Iterator[Any]:
        """What its lines assign, as it is now."""
        names = Names(self.space, own=self.own | self.names.keys(), known=self.names)
        return (value_at(target, lambda each: Use(self.code, each, False, names).value()) for target in self.targets())

    def targets(self) -> Iterator[ast.expr]:
        """What its lines give a value to."""
        for node in (n for s in self.body for n in ast.walk(s) if isinstance(n, ast.Assign)):
            yield from (t for each in node.targets for t in getattr(each, "elts", [each]))

    def let_go(self) -> None:
        """Keep no tensor alive that the program lets go."""
        holds = (torch.Tensor, list, tuple, dict)
        held = {name: value for name, value in self.names.items() if is_a(value, holds)}
        self.names = {name: value for name, value in self.names.items() if name not in held}
        for name, value in ((n, v) for n, v in held.items() if n in self.own):
            with suppress(ValueError):
                self.gone[name] = _described(value)

    def stand_in_for_gone(self) -> None:
        """Tensors that lie as those did which it has let go have their names."""
        made = {name: tree_map_only(_Like, _Like.made, value) for name, value in self.gone.items()}
        self.names |= {name: value for name, value in made.items() if name in self.own and name not in self.names}
        there = {name: value for name, value in self.space.items() if name not in self.own}
        self.names = {**there, **self.names}  # what the file's names mean now

    def stand_in(self, known: MutableMapping[torch.Tensor, torch.Tensor]) -> None:
        """The same, but for what names it: a tensor without memory stands for each."""
        for name, value in self.names.items():
            if is_a(value, torch.Tensor):
                if value not in known:
                    with torch.inference_mode(False):
                        learns = value.requires_grad and value.is_floating_point()
                        known[value] = torch.empty(0, device="meta", requires_grad=learns)
                self.names[name] = known[value]
            elif is_a(value, (list, tuple, dict)):
                self.names[name] = None

    def forget(self) -> None:
        """What its names hold is the program's, which may end."""
        self.names.clear()
        self.known.clear()
        self.space, self.values, self.function, self.callers = {}, None, None, ()

    @contextmanager
    def as_it_was(self, *, cached: bool = True) -> Iterator[None]:
        """While this lasts torch is set as it was where the capture began; ``cached``: with autocast's cache, if so."""
        kind, casts, dtype, caches, gradients, inference = self.settings
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients and not inference))
            if casts:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=caches and cached))
            yield


def exchanged_in(regions: Collection[Region]) -> None:
    """Note what modules have in place of the parameters of captures, as the call has left it."""
    for region in regions:
        alike = [r for r in regions if (r.code, r.line) == (region.code, region.line)]
        if region.values is not None and len(alike) == 1:  # else each may have memory of its own
            with suppress(Exception):  # what objects of the user's are asked for, they answer as they like
                region.values.left()


def region_here(graph: object, kind: str) -> Region | None:
    """The capture that begins now; None where no line of the user's is running."""
    if (frame := _outside_of_managers(_users())) is None:
        return None
    names = {**frame.f_globals, **frame.f_locals}
    region = _region(frame.f_code, frame.f_lineno, names, graph, kind)
    region.own, region.space = frozenset(frame.f_locals), frame.f_globals
    region.callers = callers_of(frame)
    region.numbers = frozenset(_numbers_in(names, frame.f_globals))
    region.called = {storage_key(t): n for n, held in frame.f_locals.items() for t in tensors_in(held)}
    return region


def _numbers_in(names: dict[str, Any], space: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Numbers of the file's, and of the objects that are named: who has them, and what they are called."""
    own = [attributes_of(value) for value in names.values() if not is_a(value, (ModuleType, type, torch.Tensor))]
    own += [attributes_of(value) for value in attributes_of(names.get("self")).values()]
    for held in (space, *own):
        yield from ((id(held), name) for name, value in held.items() if type(value) in AMOUNTS)


def region_at(
    code: CodeType,
    line: int,
    names: dict[str, Any],
    graph: object,
    kind: str,
    space: dict[str, Any],
    cells: dict[str, Any] | None = None,
    unknown: frozenset[str] = frozenset(),
) -> Region:
    """A capture of before, which has ended well; ``names`` beside those of ``space`` are its own, ``cells`` shared.

    ``unknown``: variables that mean something else by now, as those of a loop in which there were more captures.
    """
    region = _region(code, line, names, graph, kind)
    own = {*code.co_varnames, *code.co_cellvars, *unknown}  # of those that are not known nobody is to take the file's
    region.own, region.space = frozenset(n for n in names if n not in space) | own, space
    region.cells = cells or {}
    region.ended()
    return region


def _region(code: CodeType, line: int, names: dict[str, Any], graph: object, kind: str) -> Region:
    casts = torch.is_autocast_enabled(kind)
    dtype, cached = torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()
    settings = (kind, casts, dtype, cached, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    modules = (value for value in names.values() if is_a(value, torch.nn.Module))
    memory = {id(m): addresses_of(m) for m in modules}
    region = Region(code, line, names, graph, settings, memory)
    region.gradients = frozenset(storage_key(p.grad) for p in parameters_of(names) if p.grad is not None)
    return region


def parameters_of(names: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The parameters of modules and optimizers that have a name, or are an attribute of what is called ``self``."""
    for value in (*names.values(), *attributes_of(names.get("self")).values()):
        yield from parameters_at(value)


def optimizer_in(region: Region) -> str:
    """The name, where a capture stands, of the optimizer whose step it has, or of another; "" where none is known."""
    held = {
        **region.names,
        **{f"self.{name}": value for name, value in attributes_of(region.names.get("self")).items()},
    }
    paths = [path for path, value in held.items() if is_a(value, torch.optim.Optimizer)]
    calls = (n.func for s in region.body for n in ast.walk(s) if isinstance(n, ast.Call))
    stepped = (ast.unparse(f.value) for f in calls if isinstance(f, ast.Attribute) and f.attr == "step")
    return next((path for path in stepped if path in paths), paths[0] if paths else "")


def by_torch() -> list[tuple[object, object]] | None:
    """Where torch captures for ``make_graphed_callables``, which keeps all that is read: its graphs, in pairs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        if frame.f_code.co_name == GRAPHED:
            known = frame.f_locals
            return [*zip(known.get("fwd_graphs", ()), known.get("bwd_graphs", ()), strict=False)]
        frame = frame.f_back
    return None


def begun_in() -> CodeType | None:
    """The function of the user's that runs now."""
    frame = _users()
    return frame.f_code if frame is not None else None


def _users() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _outside_of_managers(frame: FrameType | None) -> FrameType | None:
    """The function whose `with` has called: the capture may begin in a context manager of the user's own."""
    while frame is not None:
        code, above = frame.f_code, frame.f_back
        entered = code.co_name == "__enter__" or (
            code.co_flags & inspect.CO_GENERATOR and above is not None and "/contextlib.py" in above.f_code.co_filename
        )
        if not entered:
            return frame
        while above is not None and is_library(above.f_code.co_filename):
            above = above.f_back
        frame = above
    return None


def _running(code: CodeType) -> FrameType | None:
    """The innermost call of a function that runs now."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


def work_out(region: Region) -> bool:
    """Find what is captured, as a function; False where its lines do not tell."""
    if region.of_torch:
        return True
    tree = tree_of(region.code.co_filename)
    found = _captured_at(tree, region) if tree is not None else None
    if not found:
        return False
    region.body = found
    first = found[0].value if isinstance(found[0], ast.Expr) else None
    if isinstance(first, ast.Call) and last_name(first.func) == GRAPHED:
        _of_samples(region, first)
        return True
    text = ast.unparse(ast.Module(found, []))
    try:
        called = call_in(text, region.names)
    except Exception:  # a property of the user's may raise
        called = None
    if called is not None:
        region.function, region.args, region.kwargs = called
        return True
    region.function, region.inline = _inline(region), True
    return region.function is not None


def _captured_at(tree: ast.Module, region: Region) -> list[ast.stmt]:
    """The statements that a capture holds which begins at this line."""
    for block in all_blocks(tree):
        for at, node in enumerate(block):
            last = node.end_lineno or node.lineno
            if isinstance(node, (ast.With, ast.AsyncWith)):
                if node.lineno <= region.line < max(node.body[0].lineno, node.lineno + 1):
                    return node.body
                continue
            if not node.lineno <= region.line <= last or any(isinstance(getattr(node, b, None), list) for b in _BLOCKS):
                continue
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and last_name(call.func) == "capture_begin":
                    return until_end(block[at + 1 :])
                if isinstance(call, ast.Call) and last_name(call.func) == GRAPHED and call.args:
                    return [ast.copy_location(ast.Expr(call), node)]
    return []


def to_keep(region: Region, gone: Collection[str] = ()) -> str:
    """A capture, and the same with a line behind it that keeps what its function alone has of what it reads.

    ``gone``: which of it is gone, where that is known.
    """
    tree, code = tree_of(region.code.co_filename), region.code
    graphs = [*_graphs_at(region)]
    locals_ = {*code.co_varnames, *code.co_cellvars} - {"self"}
    read = list(_read_in(region.body))
    inner = [n for n in ast.walk(tree) if isinstance(n, FUNCTIONS[:2]) and n.name in read] if tree is not None else []
    inner = [n for n in inner if n.name not in code.co_varnames or code.co_firstlineno < n.lineno <= last_line(code)]
    read += _read_in([s for each in inner for s in each.body])
    there = {*region.cells, *stored_in(region.body), *(each.name for each in inner)}
    kept = [name for name in dict.fromkeys(read) if name in locals_ - there]
    kept = [name for name in kept if name in gone] or kept
    if not graphs or not kept:
        return ""
    line, graph = graphs[-1]
    names = f"({', '.join(kept)}{',' if len(kept) == 1 else ''})"
    return f"before  with {line}: ...\nafter   with {line}: ...; behind it: {graph}.reads = {names}"


def _graphs_at(region: Region) -> Iterator[tuple[str, str]]:
    """What begins a capture, and the graph that it names."""
    tree = tree_of(region.code.co_filename)
    for block in (n for n in ast.walk(tree) if isinstance(n, ast.With)) if tree is not None else ():
        for call in (item.context_expr for item in block.items if block.lineno == region.line):
            if isinstance(call, ast.Call) and call.args:
                yield ast.unparse(call), ast.unparse(call.args[0])


def graphs_at(region: Region) -> list[str]:
    """What a program calls the graph of a capture."""
    return [graph for _, graph in _graphs_at(region)]


def _read_in(body: list[ast.stmt]) -> Iterator[str]:
    names = (n for each in body for n in ast.walk(each) if isinstance(n, ast.Name))
    return (n.id for n in names if isinstance(n.ctx, ast.Load))


def _of_samples(region: Region, call: ast.Call) -> None:
    """A callable that is graphed, with its sample arguments, where they can be had again."""
    given = [*call.args, *(k.value for k in call.keywords if k.arg in ("callables", "sample_args"))]
    if len(given) < 2:
        return
    try:
        file = region.code.co_filename
        parts = [eval(compile(ast.Expression(each), file, "eval"), region.names) for each in given[:2]]
    except Exception:  # a mistake of the user's, which the call has told
        return
    function, args = original_of(parts[0]), parts[1]
    if is_a(parts[0], tuple):  # several modules, graphed in place by now
        own = next((each for each in graphed_modules(parts[0]) if each.graphs[0] is region.graph), None)
        function, args = (own.original, own.args) if own is not None else (None, None)
    if not callable(function) or not isinstance(args, tuple) or _is_of_libraries(function):
        return
    region.function, region.args, region.inline = function, args, isinstance(given[0], ast.Lambda)


def _is_of_libraries(function: Any) -> bool:
    """Whether a callable runs nothing of the user's: torch's containers may hold modules that are."""
    owner = function.__self__ if is_a(function, MethodType) else function  # its forward as it was
    if is_a(owner, torch.nn.Module):
        codes = [code_of(type(each).forward) for each in owner.modules()]
    else:
        codes = [getattr(function, "__code__", None)]
    return all(code is not None and is_library(code.co_filename) for code in codes)


def _inline(region: Region) -> Callable[..., Any] | None:
    """Statements as a function that returns what they assign, in a file of its own, which says where they stand."""
    file, first, last = region.code.co_filename, region.body[0].lineno, region.body[-1].end_lineno
    text = textwrap.dedent("".join(linecache.getlines(file)[first - 1 : last]))
    outer = wrapped(ast.Module(copy.deepcopy(region.body), [])).body[-1]
    head = [f"def {NAME}():"]
    if isinstance(outer, ast.FunctionDef) and isinstance(outer.body[0], ast.Global):  # they read it, too
        head.append(f"    global {', '.join(outer.body[0].names)}")
    head += [f"    {name} = {made}" for name, made in made_for_it(region.code, region.line, region.body)]
    if first == region.line:  # behind the colon of the `with`
        text = ast.unparse(ast.Module(region.body, []))
    made = assigned(region.body)
    lines = [*head, *textwrap.indent(text, "    ").splitlines(), *([f"    return {', '.join(made)}"] if made else [])]
    own, space = f"{file}, captured at line {first}", dict(region.names)
    whole = "".join(f"{line}\n" for line in lines)
    linecache.cache[own] = (len(whole), None, whole.splitlines(keepends=True), own)
    region.file, region.ahead = own, first - len(head) - 1
    try:
        exec(compile(whole, own, "exec", dont_inherit=True), space)
    except SyntaxError:  # as of a `return` among them, or a `yield`
        return None
    function: Callable[..., Any] = space[NAME]
    return function


def assigned(body: list[ast.stmt]) -> list[str]:
    """Names that statements assign, in their order."""
    stored: dict[str, None] = {}
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        stored |= {
            n.id: None for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
    return [*stored]


def all_blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements in a tree."""
    for each in ast.walk(node):
        for name in _BLOCKS:
            block = getattr(each, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block
