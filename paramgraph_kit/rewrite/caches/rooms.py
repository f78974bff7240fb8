"""Attention over a whole buffer, with a mask of what is written: ``cache[:, : pos + 1]`` as all of ``cache``.

``there = torch.arange(cache.shape[1], device=cache.device) < pos + 1`` is made where the part was taken, and goes to
where something goes along its places: a softmax, a sum, an attention. On the way it is returned beside the buffer, or
given beside it to a function.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from paramgraph_kit.rewrite.caches.growths import ATTENDS, MODULE, Key, Need, Part
from paramgraph_kit.rewrite.caches.places import CannotError, Texts
from paramgraph_kit.rewrite.caches.tracked import Apart, Tracking
from paramgraph_kit.rewrite.source.edits import COMPOUND, SIMPLE, Edit, Function, assigned, path_of, within
from paramgraph_kit.rewrite.source.place import binds_tighter, called, fresh, target_of
from paramgraph_kit.rewrite.source.widths import parts_of
from paramgraph_kit.rewrite.source.written_after import written_after

_EMPTY = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}
_TORCHS = ("torch", "F", "nn.functional", "torch.nn.functional", "functional")


@dataclass(slots=True)
class Masks:
    """The masks of a file's parts, and how each comes to where it is needed."""

    texts: Texts
    tracking: Tracking
    left: frozenset[Key] = frozenset()  # parts that stay as they are
    edits: list[Edit] = field(default_factory=list)  # lines that are new
    _names: dict[tuple[object, ...], str] = field(default_factory=dict)
    _made: set[tuple[int, str]] = field(default_factory=set)  # blocks in which a mask is there
    _optional: dict[Function, bool] = field(default_factory=dict)  # functions that are given one, or none
    _bound: list[tuple[str, ast.stmt]] = field(default_factory=list)  # where a name is given one
    _returning: set[Function] = field(default_factory=set)
    _known: dict[Function, set[str]] = field(default_factory=dict)  # those that are read there
    _given: list[tuple[Function, str]] = field(default_factory=list)  # those that it is given

    def make(self) -> None:
        """Leave out what lies behind the end wherever that matters.

        Raises:
            CannotError: somewhere that cannot be written.
        """
        growths = self.tracking.growths
        for key, part in growths.parts.items():
            if key in self.left:
                continue
            with _of_parts({key}):
                if part.counts:
                    self._count_all(key, part)
                    continue
                if part.joined:
                    self._join(key)
                    continue
                if part.repeats:
                    wrap = _repeated(self._mask(key), part)
                    self.texts.around.setdefault(self._node(key), []).append(wrap)
            self._begin_with_zeros(key)
        for need in growths.needs.values():
            if need.parts & self.left:
                continue
            with _of_parts(need.parts):
                if not need.kind:
                    raise CannotError(f"line {need.chain[0].line} is done with parts of several kinds")
                self._leave_out(need)
        for first, apart in self.tracking.apart.items():
            if not apart.parts & self.left:
                with _of_parts(apart.parts):
                    self._cut_there(first, apart)

    def _cut_there(self, first: ast.stmt, apart: Apart) -> None:
        """A branch that no step has run reads what is written, and nothing of what lies behind it."""
        source, function = self.texts.source, self.texts.source.function_of(first)
        names = self._known.get(function, set()) if function is not None else set()
        bound = {name for name, at in self._bound if source.function_of(at) is function and at.lineno < first.lineno}
        given = {name for each, name in self._given if each is function}
        parts = [self._part(key) for key in sorted(apart.parts)]
        begins = all(end.lower is None or getattr(end.lower, "value", None) == 0 for _, _, end in parts)
        if len(names) != 1 or not names <= bound | given or not begins or self._optional.get(function):  # type: ignore[arg-type]
            raise CannotError(f"line {first.lineno} reads it, and was not tried")
        if any(part.joined or part.repeats for part, _, _ in parts):
            raise CannotError(f"line {first.lineno} reads it, and was not tried")
        (name,) = names
        n = fresh("n", {each.id for each in ast.walk(source.tree) if isinstance(each, ast.Name)})
        cuts = [(each, f"{each}[..., :{n}{', :' * (-1 - dim)}]") for each, dim in apart.dims.items()]
        cuts.append((name, f"{name}[:{n}]"))
        lines = [f"{n} = int({name}.sum())", " = ".join(", ".join(each) for each in zip(*cuts, strict=True))]
        self.edits.append(source.before(first, lines))

    def _node(self, key: Key) -> ast.expr:
        node = self.tracking.node(key)
        if node is None:
            raise CannotError(f"line {key.line} has no text")
        return node

    def _part(self, key: Key) -> tuple[Part, ast.Subscript, ast.Slice]:
        part, node = self.tracking.growths.parts[key], self._node(key)
        if part.joined:
            node = self._joined_of(key)[0]
        if not isinstance(node, ast.Subscript):
            raise CannotError(f"line {key.line} has another text")
        end = parts_of(node)[part.number]
        if not isinstance(end, ast.Slice):
            raise CannotError(f"line {key.line} has another text")
        return part, node, end

    def _count_all(self, key: Key, part: Part) -> None:
        """``torch.arange(n)`` of as many as the buffer has."""
        node, source = self._node(key), self.texts.source
        met = self._node(part.met) if part.met is not None and part.met not in self.left else None
        if not isinstance(node, ast.Call) or not isinstance(met, ast.Subscript) or part.met is None:
            raise CannotError(f"line {key.line} counts what no buffer has")
        if part.named:
            name, dim = min(part.named)
            long = f"{name}.shape[{dim}]"
        elif source.function_of(node) is source.function_of(met):
            long = f"{source.bracketed(met.value)}.shape[{self.tracking.growths.parts[part.met].dim}]"
        else:
            raise CannotError(f"line {key.line} counts where nobody knows the buffer")
        more = "".join(f", {source.text(each)}" for each in node.keywords)
        self.texts.new[node] = lambda: f"{source.text(node.func)}({long}{more})"

    def _join(self, key: Key) -> None:
        """``torch.cat([cache[:, :n], k], 1)``: all of the buffer, with what is new where the part ends."""
        part, node, end = self._part(key)
        new, high, text = self._joined_of(key)[1], end.upper, self.texts
        if high is None:
            raise CannotError(f"line {key.line} has another text", {key})

        def joined() -> str:
            x = text.text(node)
            places = f"{text.text(high)} + torch.arange({text.source.bracketed(new)}.shape[{part.joined}]"
            return f"{x}.index_copy({part.joined}, {places}, device={x}.device), {text.text(new)})"

        text.new[self._node(key)] = joined

    def _joined_of(self, key: Key) -> list[ast.expr]:
        """A part, and what is joined to it."""
        node = self._node(key)
        both = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if not isinstance(both, (ast.List, ast.Tuple)) or len(both.elts) != 2:
            raise CannotError(f"line {key.line} has another text", {key})
        return both.elts

    def _mask(self, key: Key) -> str:
        """The name of a part's mask, which is made before the statement in which the part is taken."""
        part, node, end = self._part(key)
        source = self.texts.source
        x = source.bracketed(node.value)
        low, high = (self.texts.text(each) if each is not None else "" for each in (end.lower, end.upper))
        if part.joined:
            high += f" + {source.bracketed(self._joined_of(key)[1])}.shape[{part.joined}]"
        return self._made_before(self._node(key), x, part, low, high)

    def _made_before(self, node: ast.expr, x: str, part: Part, low: str, high: str) -> str:
        """The name of a mask, which is made before the statement of an expression."""
        source, function = self.texts.source, self.texts.source.function_of(node)
        kind = function, low, high, part.size
        if kind not in self._names:
            taken = {n.id for n in ast.walk(source.tree) if isinstance(n, ast.Name)} | set(self._names.values())
            self._names[kind] = fresh("there", taken)
        name = self._names[kind]
        statement = self._statement(node)
        block = self._block(statement)
        if (id(block), name) in self._made:
            return name
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(statement)):
            raise CannotError(f"line {node.lineno} gives a name a value within an expression")
        self._made.add((id(block), name))
        self._bound.append((name, statement))
        at = f"torch.arange({x}.shape[{part.dim}], device={x}.device)"
        tests = [f"{at} {sign} {text}" for sign, text in ((">=", low), ("<", high)) if text and text != "0"]
        line = f"{name} = " + (" & ".join(f"({each})" for each in tests) if len(tests) > 1 else tests[0])
        self.edits.append(source.before(statement, [line]))
        return name

    def _begin_with_zeros(self, key: Key) -> None:
        """A buffer that is made of whatever its memory holds is made of zeros: a weight of 0 leaves no NaN out."""
        _, node, _ = self._part(key)
        name = path_of(node.value).rpartition(".")[2]
        for made in ast.walk(self.texts.source.tree):
            given: list[ast.expr] = []
            if isinstance(made, ast.Assign):
                given = [value for target, value in assigned(made) if path_of(target).rpartition(".")[2] == name]
            elif isinstance(made, ast.Dict):
                pairs = zip(made.keys, made.values, strict=True)
                given = [v for k, v in pairs if isinstance(k, ast.Constant) and k.value in (name, _last_key(node))]
            elif isinstance(made, ast.Call) and called(made) == "register_buffer" and len(made.args) > 1:
                first = made.args[0]
                given = [made.args[1]] if isinstance(first, ast.Constant) and first.value == name else []
            for call in (n for value in given for n in ast.walk(value) if isinstance(n, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr in _EMPTY:
                    self._made_of_zeros(call.func)

    def _made_of_zeros(self, func: ast.Attribute) -> None:
        whole = self.texts.source.text(func).removesuffix(func.attr)
        self.texts.new[func] = lambda: whole + _EMPTY[func.attr]

    def _statement(self, node: ast.AST) -> ast.stmt:
        """The statement around an expression, before which a line can be put that reads the same names."""
        above: ast.AST | None = node
        while above is not None and not isinstance(above, ast.stmt):
            above = self.texts.source.parents.get(above)
            if isinstance(above, (ast.comprehension, ast.Lambda, ast.ListComp, ast.GeneratorExp, ast.IfExp)):
                raise CannotError("a part is taken within a comprehension")
        if above is None or isinstance(above, COMPOUND):
            raise CannotError("a part is taken where something is asked")
        return above

    def _block(self, statement: ast.stmt) -> list[ast.stmt]:
        parent = self.texts.source.parents[statement]
        rows = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
        return next(row for row in rows if isinstance(row, list) and statement in row)

    def _leave_out(self, need: Need) -> None:
        node = self._node(need.chain[0])
        parts = [key for key in sorted(need.parts) if not self.tracking.growths.parts[key].counts]
        names = {self._brought(key, need) for key in parts}
        if len(names) != 1:
            raise CannotError(f"line {need.chain[0].line} reads parts with several ends")
        name = names.pop()
        self._also_without(node, name)
        function = self.texts.source.function_of(node)
        if function is not None:
            self._known.setdefault(function, set()).add(name)
        optional = function is not None and self._optional.get(function, False)
        if need.chain[0] in self.tracking.growths.plain and not optional:
            raise CannotError(f"line {need.chain[0].line} also reads what does not grow")
        if need.kind == ATTENDS:
            self._attend(node, need, name, optional)
            return
        if need.kind == MODULE:
            self._attend_by_module(node, need, name, optional)
            return
        argument = self._argument(node, need)
        there = name if need.dim == -1 else f"{name}[:, {', '.join(['None'] * (-1 - need.dim))}]"
        fill = {"inf": "torch.inf", "-inf": "-torch.inf"}.get(str(need.fill), repr(need.fill))

        def filled(text: str) -> str:
            whole = text if isinstance(argument, SIMPLE) else f"({text})"
            new = f"{whole}.masked_fill(~{there}, {fill})"
            return f"({text} if {name} is None else {new})" if optional else new

        self.texts.around.setdefault(argument, []).append(filled)
        if need.kind == "mean":
            self._divide(node, name, optional)

    def _also_without(self, node: ast.AST, name: str) -> None:
        """Where a branch makes a mask that is read behind it, there is none without the branch."""
        source, function = self.texts.source, self.texts.source.function_of(node)
        inside = set(source.above(node)) | {self._statement(node)}
        for made in (each for known, each in self._bound if known == name):
            tests = [above for above in source.above(made) if isinstance(above, (ast.If, ast.For, ast.While))]
            if function is None or source.function_of(made) is not function or not tests or tests[-1] in inside:
                continue
            self._optional[function] = True
            edit = source.before(tests[-1], [f"{name} = None"])
            self.edits += [] if edit in self.edits else [edit]

    def _divide(self, node: ast.expr, name: str, optional: bool) -> None:
        own = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if not own or optional or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            raise CannotError("a mean is not written as a method")
        func, source = node.func, self.texts.source

        def divided() -> str:
            given = ", ".join(map(source.text, [*node.args, *node.keywords]))
            text = f"{self.texts.bracketed(func.value)}.sum({given}) / {name}.sum()"
            return f"({text})" if binds_tighter(source, node) else text

        self.texts.new[node] = divided

    def _argument(self, node: ast.expr, need: Need) -> ast.expr:
        """The expression of the tensor that has places to leave out."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return node.right if need.argument else node.left
        if not isinstance(node, ast.Call):
            raise CannotError(f"line {need.chain[0].line} has another text")
        if called(node) != need.kind:  # of a module
            if "softmax" in need.kind and len(node.args) == 1 and not node.keywords:
                return node.args[0]
            raise CannotError(f"line {need.chain[0].line}: `{called(node)}` goes along it")
        own = isinstance(node.func, ast.Attribute) and path_of(node.func.value) not in _TORCHS
        given = [node.func.value, *node.args] if own and isinstance(node.func, ast.Attribute) else node.args
        if need.argument >= len(given):
            raise CannotError(f"line {need.chain[0].line} has another text")
        return given[need.argument]

    def _attend(self, node: ast.expr, need: Need, name: str, optional: bool) -> None:
        if not isinstance(node, ast.Call) or called(node) != ATTENDS:
            raise CannotError(f"line {need.chain[0].line} attends within a package")
        causal = next((option.value for option in node.keywords if option.arg == "is_causal"), None)
        if len(node.args) > 5 or (causal is not None and getattr(causal, "value", True) is not False):
            raise CannotError("attention is causal with other arguments, and takes no mask then")
        mask = node.args[3] if len(node.args) > 3 else None
        mask = next((option.value for option in node.keywords if option.arg == "attn_mask"), mask)
        new = f"None if {name} is None else {name}[None]" if optional else f"{name}[None]"
        if isinstance(mask, ast.Constant):
            self.texts.new[mask] = lambda: new
        elif mask is not None:
            if optional or not need.masked:
                raise CannotError("a mask of attention is not always there")
            simple = isinstance(mask, SIMPLE)

            def both(text: str) -> str:
                whole = text if simple else f"({text})"
                return f"{whole} & {name}" if need.masked == "bool" else f"{whole}.masked_fill(~{name}, -torch.inf)"

            self.texts.around.setdefault(mask, []).append(both)
        else:
            self.texts.around.setdefault(node, []).append(
                lambda text: f"{text[: text.rindex(')')].rstrip().rstrip(',')}, attn_mask={new})"
            )

    def _attend_by_module(self, node: ast.expr, need: Need, name: str, optional: bool) -> None:
        if not isinstance(node, ast.Call) or len(node.args) < 3:
            raise CannotError(f"line {need.chain[0].line} attends within a package")
        new = f"(~{name}).expand({need.masked}, -1)" if need.masked else f"~{name}"
        new = f"None if {name} is None else {new}" if optional else new
        self.texts.around.setdefault(node, []).append(
            lambda text: f"{text[: text.rindex(')')].rstrip().rstrip(',')}, key_padding_mask={new})"
        )

    # a mask's way from where it is made to where it is needed

    def _brought(self, key: Key, need: Need) -> str:
        """The name of a part's mask, which is known where it is needed."""
        part = self.tracking.growths.parts[key]
        outer, inner = part.chain[::-1], need.chain[::-1]
        same = 0
        while same < min(len(outer), len(inner)) - 1 and outer[same] == inner[same]:
            same += 1
        hops = range(len(outer) - 1, same, -1)
        name = "" if len(hops) == 1 and self._returns_alone(outer[same]) else self._mask(key)
        if not name:
            name = self._mask_of_an_object(key, self._node(outer[same]))
        else:
            for level in hops:
                self._return(self._node(outer[level - 1]), self._node(outer[level]), name)
        for level in range(same, len(inner) - 1):
            self._give(self._node(inner[level]), self._node(inner[level + 1]), name, need)
        return name

    def _returns_alone(self, key: Key) -> bool:
        """Whether a part is what a property is, or what a method returns to within an expression."""
        node = self._node(key)
        return isinstance(node, ast.Attribute) or not isinstance(self.texts.source.parents.get(node), ast.Assign)

    def _mask_of_an_object(self, key: Key, taken: ast.expr) -> str:
        """The name of a mask that is made of an object's own numbers, where one of its parts is taken of it."""
        part, node, end = self._part(key)
        source = self.texts.source
        owner = taken.func if isinstance(taken, ast.Call) else taken
        own = source.function_of(node)
        if not isinstance(owner, ast.Attribute) or not path_of(owner.value) or own is None or part.joined:
            raise CannotError(f"line {key.line} goes to where no name takes it")
        ends = [each for each in (end.lower, end.upper) if each is not None]
        names = {n.id for each in (*ends, node.value) for n in ast.walk(each) if isinstance(n, ast.Name)}
        me = own.args.args[0].arg if own.args.args else ""
        if names - {me, "min", "max"}:
            raise CannotError(f"line {key.line} ends where only `{own.name}` knows")

        def of_it(text: str) -> str:
            return re.sub(rf"\b{me}\b", source.text(owner.value), text)

        return self._made_before(
            taken,
            of_it(source.bracketed(node.value)),
            part,
            *(of_it(self.texts.text(each)) if each is not None else "" for each in (end.lower, end.upper)),
        )

    def _return(self, call: ast.expr, inside: ast.expr, name: str) -> None:
        """A function returns the mask, too, and its call takes it."""
        source = self.texts.source
        function = source.function_of(inside)
        if function is None or not isinstance(call, ast.Call):
            raise CannotError("a part comes from where no function is called")
        if function in self._returning:
            return
        self._returning.add(function)
        back = [n for part in function.body for n in within(part) if isinstance(n, ast.Return)]
        if len(back) != 1 or back[0].value is None or back[0] not in function.body:
            raise CannotError(f"`{function.name}` returns in several places")
        value = back[0].value
        several = isinstance(value, ast.Tuple)
        others = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
        for each in {call, *(others if function.name not in ("forward", "__call__") else [])}:
            taking = source.parents.get(each)
            target = target_of(taking)
            if several and isinstance(value, ast.Tuple):
                known = isinstance(target, ast.Tuple) and len(target.elts) == len(value.elts)
            else:
                known = isinstance(target, (ast.Name, ast.Attribute))
            if not known or target is None:
                raise CannotError(f"`{function.name}` returns a part to where no name takes it")
            self.texts.around.setdefault(target, []).append(_joined(name))
            assert isinstance(taking, ast.Assign)
            self._bound.append((name, taking))
        self.texts.around.setdefault(value, []).append(_joined(name))

    def _give(self, call: ast.expr, inside: ast.expr, name: str, need: Need) -> None:
        """A function is given the mask, too."""
        source = self.texts.source
        function = source.function_of(inside)
        if function is None or not isinstance(call, ast.Call) or function.args.kwarg or function.args.vararg:
            raise CannotError("a part goes to where no function is called")
        parameters = function.args
        others = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) == function.name]
        mixed = need.chain[0] in self.tracking.growths.plain or any(n is not call for n in others)
        named = [a.arg for a in (*parameters.args, *parameters.kwonlyargs)]
        if name in named:
            return
        optional = mixed or bool(parameters.defaults) or bool(parameters.kwonlyargs)
        self._optional[function] = self._optional.get(function, False) or optional
        every: list[ast.expr | ast.arg] = [*parameters.args, *parameters.defaults, *parameters.kwonlyargs]
        every += [each for each in parameters.kw_defaults if each is not None]
        annotated = [
            each.annotation for each in (*parameters.args, *parameters.kwonlyargs) if each.annotation is not None
        ]
        if not every:
            raise CannotError(f"`{function.name}` is given nothing")
        end = max([*every, *annotated], key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0))
        self._after(end, f", {name}=None" if optional else f", {name}")
        self._given.append((function, name))
        self._also_without(call, name)
        if (id(call), name) not in self._made:
            self._made.add((id(call), name))
            keyword = bool(call.keywords) or optional
            text = f", {name}={name})" if keyword else f", {name})"
            self.texts.around.setdefault(call, []).append(
                lambda old: f"{old[: old.rindex(')')].rstrip().rstrip(',')}{text}"
            )

    def _after(self, node: ast.expr | ast.arg, text: str) -> None:
        edit = written_after(self.texts.source, node, text)  # type: ignore[arg-type]
        if edit not in self.edits:
            self.edits.append(edit)


@contextmanager
def _of_parts(parts: Collection[Key]) -> Iterator[None]:
    """What cannot be written is for these parts."""
    try:
        yield
    except CannotError as error:
        raise CannotError(str(error), parts) from error


def without(tracking: Tracking, refused: Collection[Key]) -> frozenset[Key]:
    """All parts that stay as they are where these do: those that are read together."""
    growths, found = tracking.growths, set(refused)
    found |= {key for key, part in growths.parts.items() if part.refused}
    while True:
        more = {key for need in growths.needs.values() if need.parts & found for key in sorted(need.parts)} - found
        if not more:
            return frozenset(found)
        found |= more


def _last_key(node: ast.Subscript) -> object:
    """``"k"`` of ``cache["k"][:, :n]``."""
    inner = node.value
    key = inner.slice if isinstance(inner, ast.Subscript) else None
    return key.value if isinstance(key, ast.Constant) else None


def _repeated(name: str, part: Part) -> Callable[[str], str]:
    """A whole that has its first place again where a part is not."""
    behind = -1 - part.at
    there = name if not behind else f"{name}[:, {', '.join(['None'] * behind)}]"
    first = f"[..., :1{', :' * behind}]"
    return lambda text: f"torch.where({there}, {text}, {text}{first})"


def _joined(name: str) -> Callable[[str], str]:
    """``k, v`` with one more; brackets stay around it."""

    def joined(text: str) -> str:
        if text.startswith("(") and text.endswith(")") and ast.unparse(ast.parse(text)).startswith("("):
            return f"{text[:-1].rstrip().rstrip(',')}, {name})"
        return f"{text.rstrip().rstrip(',')}, {name}"

    return joined
