"""What one writes for values of the host's that a capture reads: an index, a list of numbers, one of an object's."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from inspect import getattr_static, unwrap
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import elements_of, last_name, nodes_of, tree_of
from paramgraph_kit.doctor.known.catalogue import BY_ID
from paramgraph_kit.doctor.observe.captured_values import Use
from paramgraph_kit.doctor.observe.graphed_words import as_graphed
from paramgraph_kit.doctor.observe.handed_out import with_clones
from paramgraph_kit.doctor.observe.held import code_of, is_a
from paramgraph_kit.doctor.observe.host_parts import HostParts, is_hosts, is_plain
from paramgraph_kit.doctor.observe.host_tests import asked_in, of_the_host_alone, with_tests
from paramgraph_kit.doctor.observe.inputs_of_each import with_inputs
from paramgraph_kit.doctor.observe.launch_words import as_launched
from paramgraph_kit.doctor.observe.multiplied import Parents, multiplied
from paramgraph_kit.doctor.observe.none_first import once_it_is_there
from paramgraph_kit.doctor.observe.own_regions import Region, graphs_at
from paramgraph_kit.doctor.observe.own_tables import in_own_table
from paramgraph_kit.doctor.observe.tensors_for_numbers import HOSTS, with_tensor
from paramgraph_kit.trace.model import Failure

OF_LISTS = ("max", "min", "sum", "any", "all", "len", "math.prod")  # what they give is a number of the host's
OF_ALL = (  # what zeros among many change
    *("mean", "std", "var", "median", "max", "min", "amax", "amin", "argmax", "argmin", "prod", "logsumexp", "topk"),
    *("sort", "argsort", "cat", "concat", "stack", "mse_loss", "cross_entropy", "l1_loss", "nll_loss", "cumprod"),
)
MOST_READS = 3  # of one number that are told
_NONE = "a graph for each value is none"  # of a number that moves on
_SET = re.compile(
    r"(?P<path>(?:\w+\.)+\w+)"
    r"(?: is .+? at a replay, and the graph has the| has other [\w-]*? ?memory from here on)"
)
_REPLAY = re.compile(r"(?<![\w.\])])g\.replay\(\)")  # the placeholder, and no `self.g.replay()` of the user's own


def as_replayed(found: Sequence[Failure], files: Iterable[str]) -> list[Failure]:
    """The same, with the call that replays as the user's files have it, where they have one."""
    known = {*files}
    found = [*as_graphed(once_it_is_there(found, known), known)]
    found = [replace(f, fix=own) if (own := in_own_table(f.fix, known)) != f.fix else f for f in found]
    owners = {owner for file in known for owner in _replayed(file)}
    if len(owners) == 1:
        call = f"{owners.pop()}.replay()"
        # of those that are no example of the class
        spoken = {id(f) for f in found if _REPLAY.search(f.fix) and f.fix != BY_ID[f.code].fix}
        found = [replace(f, fix=_REPLAY.sub(lambda _: call, f.fix)) if id(f) in spoken else f for f in found]
    found = as_launched(found, known)
    found = [replace(f, fix=own) if (own := with_inputs(f.fix, known)) != f.fix else f for f in found]
    return with_clones(found)


def _replayed(file: str) -> set[str]:
    """What a file calls the graphs that it replays."""
    nodes = ast.walk(tree_of(file) or ast.Module([], []))
    calls = (n.func for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return {ast.unparse(each.value) for each in calls if each.attr == "replay"}


def at_its_replay(failure: Failure, region: Region) -> Failure:
    """The same with the replay of the graph that a capture is of, where the file replays several."""
    owners = _replayed(region.code.co_filename) if _REPLAY.search(failure.fix) else set[str]()
    names = [name for name in graphs_at(region) if name in owners]
    if len(owners) < 2 or not names or failure.fix == BY_ID[failure.code].fix:
        return failure
    return replace(failure, fix=_REPLAY.sub(lambda _: f"{names[-1]}.replay()", failure.fix))


def with_index(text: str, uses: Iterable[Use], held: str, kind: str) -> str:
    """What is captured where a number is an index, or ends a slice, and the tensor ``held`` has it; "" elsewhere."""
    found, masks, known, zeros = dict[str, str](), dict[str, None](), [*uses], dict[str, None]()
    plain = {each.text for each in known if not is_a(each.value(), torch.Tensor)}
    for use in (each for each in known if each.text == text):
        tree = tree_of(use.code.co_filename)
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)} if tree else {}
        pair = _indexed(use.node, held, parents, plain) or _cut(use.node, held, parents, plain, kind)
        if pair is None:
            return ""
        found[pair[0]] = pair[1]
        masks |= dict.fromkeys(pair[2:])
        zeros |= {_zeros(pair[1], pair[0], use): None} if pair[2:] else {}
    lines = ", ".join(f"`{new}` for `{old}`" for old, new in found.items())
    if not masks:
        return lines
    ahead = f"`.masked_fill(~valid, -torch.inf)` ahead of a softmax, elsewhere {', '.join(zeros)}"
    return f"{lines}; of what is whole then only the first entries count: `{'`, `'.join(masks)}`, and {ahead}"


def _zeros(whole: str, cut: str, use: Use) -> str:
    """What is whole with zeros behind what counts; which of its dimensions was cut is seen where it is a tensor."""
    node: Any = ast.parse(cut, mode="eval").body
    held = Use(use.code, node.value, False, use.names).value()
    picks = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    dim = next((i for i, each in enumerate(picks) if not _is_all(each) and use.text in ast.unparse(each)), 0)
    if not is_a(held, torch.Tensor):
        return "`torch.where(valid, ..., 0)` with `valid` along the dimension that was cut"
    behind = held.dim() - dim - 1
    valid = f"valid.view(-1{', 1' * behind})" if behind > 0 else "valid"
    return f"`torch.where({valid}, {whole}, 0)` for `{whole}`"


def _indexed(read: ast.expr, held: str, parents: Parents, plain: set[str]) -> tuple[str, ...] | None:
    above: Any = parents.get(read)
    picks, node = [read], above
    if isinstance(above, ast.Tuple):
        picks, node = above.elts, parents.get(above)
    if not isinstance(node, ast.Subscript) or node.value is read or _is_plain_list(node.value, plain):
        return None
    if any(each is not read and not isinstance(each, ast.Slice) for each in picks):
        return None
    dim = next(i for i, each in enumerate(picks) if each is read)
    owner = _with_all(node, picks, read)
    if isinstance(above := parents.get(node), ast.Subscript) and not isinstance(above.ctx, ast.Load):
        return None  # ``x[n][mask] = y`` would write to what is picked alone
    if isinstance(node.ctx, ast.Load):
        return _written_there(node, owner, dim, held, parents) or (
            ast.unparse(node),
            f"{owner}.index_select({dim}, {held}).squeeze({dim})",
        )
    statement = parents.get(node)
    if isinstance(statement, ast.AugAssign):
        old = f"{owner}.index_select({dim}, {held}).squeeze({dim})"
        new = ast.unparse(ast.BinOp(ast.Name("old"), statement.op, statement.value)).replace("old", old, 1)
        return ast.unparse(statement), f"{owner}.index_copy_({dim}, {held}, ({new}).unsqueeze({dim}))"
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    value = ast.unparse(statement.value)
    if isinstance(statement.value, ast.Constant):
        return ast.unparse(statement), f"{owner}.index_fill_({dim}, {held}, {value})"
    value = value if isinstance(statement.value, (ast.Name, ast.Attribute, ast.Call)) else f"({value})"
    return ast.unparse(statement), f"{owner}.index_copy_({dim}, {held}, {value}.unsqueeze({dim}))"


def _written_there(node: ast.expr, owner: str, dim: int, held: str, parents: Parents) -> tuple[str, ...] | None:
    """``x[n].copy_(y)``, which would write to what is picked by a tensor, and to nothing of ``x``."""
    method, call = parents.get(node), parents.get(parents.get(node, node))
    if not isinstance(method, ast.Attribute) or not method.attr.endswith("_") or not isinstance(call, ast.Call):
        return None
    given = ", ".join(map(ast.unparse, [*call.args, *call.keywords]))
    picked = f"{owner}.index_select({dim}, {held}).squeeze({dim}).{method.attr}({given}).unsqueeze({dim})"
    return ast.unparse(call), f"{owner}.index_copy_({dim}, {held}, {picked})"


def _cut(read: ast.expr, held: str, parents: Parents, plain: set[str], kind: str) -> tuple[str, ...] | None:
    """``x[:, : n + 1]``: all of it, and which of that counts."""
    end: Any = read
    if isinstance(above := parents.get(end), ast.BinOp) and isinstance(above.right, ast.Constant):
        end = above
    part: Any = parents.get(end)
    picks, node = [part], parents.get(part)
    if isinstance(node, ast.Tuple):
        picks, node = node.elts, parents.get(node)
    first = isinstance(part, ast.Slice) and part.upper is end and part.lower is part.step is None
    if not first or not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
        return None
    if any(not isinstance(each, ast.Slice) for each in picks) or _is_plain_list(node.value, plain):
        return None
    if _needs_the_size(node, parents):
        return None
    size = f"{ast.unparse(node.value)}.shape[{picks.index(part)}]"
    bound = f"{held}{ast.unparse(end)[len(ast.unparse(read)) :]}"
    return ast.unparse(node), _with_all(node, picks, part), f"valid = torch.arange({size}, device={kind!r}) < {bound}"


def _is_plain_list(node: ast.expr, plain: set[str]) -> bool:
    """Whether it is no tensor: ``self.layers``, ``list(self.layers)``."""
    is_made = isinstance(node, ast.Call) and last_name(node.func) in ("list", "tuple", "sorted", "reversed")
    return is_made or isinstance(node, (ast.List, ast.ListComp)) or ast.unparse(node) in plain


def _needs_the_size(cut: ast.expr, parents: Parents) -> bool:
    """Whether what is cut goes to what zeros in place of the rest would change: a mean, an order, a result."""
    above, reads = parents.get(cut), [cut]
    if isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name):
        name, line = above.targets[0].id, above.lineno
        reads = [n for n in parents if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
        reads = [n for n in reads if n.lineno > line]
    for read in reads:
        above = parents.get(read)
        call = parents.get(above) if isinstance(above, ast.Attribute) else above
        if isinstance(above, ast.Return) or (isinstance(call, ast.Call) and last_name(call.func) in OF_ALL):
            return True
    return False


def _with_all(node: ast.Subscript, picks: list[ast.expr], of: ast.AST) -> str:
    """The same without one of its picks: ``x[:b]`` for ``x[:b, i]``."""
    others = [ast.Slice() if each is of else each for each in picks]
    while others and _is_all(others[-1]):
        others.pop()
    owner = ast.unparse(node.value)
    return f"{owner}[{', '.join(map(ast.unparse, others))}]" if others else owner


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and node.lower is node.upper is node.step is None


def of_entries(path: str, kind: str) -> str:
    """A list, or an array, of numbers."""
    held = held_for(path)
    made = f"before the capture `{held} = torch.tensor({path}, device={kind!r})`"
    read = f"what is captured reads `{held}` for `{path}`, without float()"
    return f"{made}, {read}, and behind this line `{held}.copy_(torch.tensor({path}))`, ahead of g.replay()"


def of_the_host(use: Use) -> str:
    """What the host makes of the entries of a list, ``max(lens)``, or of each where it goes through them; or ""."""
    nodes = [*nodes_of(use.code)]
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    found, node = "", next((n for n in nodes if n is use.node), None)
    part = parents.get(node) if node is not None else None
    if isinstance(part, ast.Subscript) and part.value is node and isinstance(part.slice, ast.Slice):
        node = part  # some of its entries
    while node is not None and isinstance(
        above := parents.get(node), (ast.Call, ast.BinOp, ast.For, ast.comprehension)
    ):
        if isinstance(above, (ast.For, ast.comprehension)):
            held = use.value()
            in_lists = type(held) in (list, tuple) and any(type(each) is list for each in held)  # which are no keys
            return f"{'str' if in_lists else 'tuple'}({use.text})" if above.iter is node else found
        if isinstance(above, ast.Call) and ast.unparse(above.func) in OF_LISTS and len(above.args) == 1:
            found = ast.unparse(above)
        elif not found and not (isinstance(above, ast.Call) and last_name(above.func) in ("enumerate", "zip")):
            return ""
        node = above
    return found


def of_owner(path: str, kind: str, owner: str = "") -> str:
    """A number of an object that is exchanged; ``owner``: or one of a function's variables, whose object stays."""
    held = f"{owner}.{held_for(path)}" if owner else held_for(path)
    made = f"before the capture `{held} = torch.full((), float({path}), device={kind!r})`"
    return f"{made}, what is captured reads `{held}` for `{path}`, and ahead of g.replay() `{held}.fill_({path})`"


def moves_on(path: str, kind: str, then: float) -> str:
    """A number that each launch moves on, read where torch takes a number alone."""
    never = f"this line as it is; {_NONE}, as no value comes twice"
    if type(then) is int:
        held = held_for(path)
        made = f"before the capture `{held} = torch.full((), {path}, device={kind!r})`"
        lists = "of a list of numbers, which is made a tensor ahead of the capture, too"
        return (
            f"{never}; {made}, what is captured reads `{held}` for `{path}`: "
            f"`x.index_select(0, {held}).squeeze(0)` for `x[{path}]`, also {lists}, {_written_at(path, held)}, "
            "a mask for the end of a slice, and "
            "what takes only a number written out with a tensor: `torch.clamp(t, min=a)` for `max(a, t)`, "
            f"`x.add_(y * t)` for `x.add_(y, alpha=t)`; and ahead of g.replay() `{held}.fill_({path})`"
        )
    return (
        f"{never}; {of_owner(path, kind)}, where what takes only a number is written out with a tensor: "
        "`torch.sin(t)` for `math.sin(t)`, and its formula for a function that takes a rate"
    )


def once(found: list[Failure]) -> list[Failure]:
    """The lines that may have given a number its value: what is filled ahead of each replay has it of all of them."""
    filled = [f for f in found if _NONE in f.fix]
    return [f for f in found if any(f is each for each in filled) or "graph for each" not in f.fix] if filled else found


def unfilled(notes: list[str], found: Collection[Failure]) -> list[str]:
    """Notes without those that a number is frozen which is told to be filled, or told where a line sets it."""
    numbers = [f for f in found if f.code == "scalar-frozen" and ".replay()" in f.fix]
    moved = [f for f in found if f.frame is not None and " at a replay, " in f.message]
    lines = {(f.message.partition(" is ")[0], f"{f.frame.file}:{f.frame.line}") for f in moved if f.frame is not None}
    paths = {note: path for note in notes if (path := note.partition(" is frozen at ")[0]) != note}
    at = {note: note.partition(", and ")[2].partition(" sets it")[0] for note in paths}
    told = {note for note in paths if (paths[note], at[note]) in lines}
    return [n for n in notes if n not in told and not any(f".fill_({paths.get(n, ' ')})" in f.fix for f in numbers)]


def as_its_line_has_it(failure: Failure) -> Failure:
    """The same of what a line sets by the name that it has there: where it is read, ``self`` is another object.

    >>> from paramgraph_kit.trace.model import Frame
    >>> at = Frame("train.py", 9, "main", "model.scale = 1 / n")
    >>> as_its_line_has_it(Failure("scalar-frozen", "", "self.scale has other memory from here on", at)).message
    'model.scale has other memory from here on'
    """
    said, line = _SET.match(failure.message), failure.frame.text if failure.frame is not None else ""
    if said is None:
        return failure
    try:
        node = ast.parse(line).body[0]
    except (SyntaxError, IndexError):  # it goes over several lines, or is none
        return failure
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    written = [ast.unparse(part) for each in targets if each is not None for part in elements_of(each)]
    names = said["path"].split(".")
    for last in range(len(names), 1, -1):  # or of what has it: ``s.settings = ...``
        paths = [each for each in written if "." in each and each.rpartition(".")[2] == names[last - 1]]
        if len(paths) == 1:
            whole = ".".join([*paths, *names[last:]])
            return replace(failure, message=f"{whole}{failure.message[said.end('path') :]}")
    return failure


def _written_at(path: str, held: str) -> str:
    """The writes to such a place, which an index of the device would have the host wait for; also of another name."""
    wide = "y.expand_as(x.select(1, 0)).unsqueeze(1)"
    return (
        f"`x.index_copy_(1, {held}.reshape(1), {wide})` for a write `x[:, {path}] = y`, and "
        f"`x.index_fill_(1, {held}.reshape(1), 0)` for `x[:, {path}] = 0`, with 2 for 1 in `x[:, :, {path}]`, also "
        "where a function that is given it has another name for it"
    )


def of_none(path: str) -> str:
    """What is there only later."""
    ways = f"a graph for each way, one captured while {path} is None, and one while it is what comes here"
    return f"{ways}; a tensor stays the same then, written by {path}.copy_(...), and the one that fits is replayed"


def held_for(path: str) -> str:
    """``self.cfg_temp_in`` for ``self.cfg.temp``."""
    first, *rest = path.split(".")
    last = re.sub(r"\W+", "_", "_".join(rest)).strip("_")
    return f"{first}.{last}_in" if rest else f"{re.sub(r'[^0-9a-zA-Z_]+', '_', first).strip('_')}_in"


def through(use: Use, uses: Iterable[Use]) -> list[str] | None:
    """What else is written where a number that a function of the user's is given is a tensor; None where it cannot."""
    tree = tree_of(use.code.co_filename)
    call = next((n for n in ast.walk(tree) if isinstance(n, ast.Call) and _takes(n, use.node)), None) if tree else None
    called = next((each.value() for each in uses if call is not None and each.node is call.func), None)
    called_as: Any = type(called).forward if is_a(called, torch.nn.Module) else called
    code = code_of(unwrap(called_as))
    if call is None or code is None:
        return None
    first = code.co_argcount > 0 and not is_a(called, type(through)) and 1
    names = code.co_varnames[int(first) : code.co_argcount + code.co_kwonlyargcount]
    places = [i for i, each in enumerate(call.args) if each is use.node]
    given = [k.arg for k in call.keywords if k.value is use.node]
    name = names[places[0]] if places and places[0] < len(names) else given[0] if given else None
    owner = getattr(called, "__self__", called)  # a module is called itself
    own = {code.co_varnames[0]: owner} if first else {}
    placed = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords if k.arg in names)]
    tensors = [n for n, each in placed if n and is_a(Use(use.code, each, False, use.names).value(), torch.Tensor)]
    return with_tensor([*nodes_of(code)], name, own, tensors) if name in names else None


def clipped(use: Use, kind: str) -> str:
    """A limit of ``clip_grad_norm_``, which takes only a number: the same computed with a tensor; "" of others."""
    calls = [n for n in nodes_of(use.code) if isinstance(n, ast.Call) and last_name(n.func) == "clip_grad_norm_"]
    call = next((n for n in calls if _takes(n, use.node) and len(n.args) + len(n.keywords) == 2), None)
    given = call.args[0] if call is not None and call.args else None
    if call is None or given is None or given is use.node:
        return ""
    held, of = held_for(use.text), ast.unparse(given)
    made = f"before the capture `{held} = torch.full((), float({use.text}), device={kind!r})`"
    norm = f"norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in {of} if p.grad is not None]))"
    scaled = f"for p in {of}: p.grad.mul_(({held} / (norm + 1e-6)).clamp(max=1.0)) if p.grad is not None else None"
    filled = f"ahead of g.replay() `{held}.fill_({use.text})`"
    return f"{made}, captured is `{norm}` and `{scaled}` for `{ast.unparse(call)}`, and {filled}"


def tested(use: Use) -> str:
    """The test that a value decides, as its line has it: ``self.n % 10 == 0``; "" where it reads what is elsewhere."""
    tree = tree_of(use.code.co_filename)
    for node in ast.walk(tree) if tree is not None else ():
        test = node.test if isinstance(node, (ast.If, ast.IfExp)) else None
        if test is not None and any(n is use.node for n in ast.walk(test)):
            paths = [n for n in ast.walk(test) if isinstance(n, ast.Name)]
            calls = any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await)) for n in ast.walk(test))
            own = {use.text.partition(".")[0]}
            return ast.unparse(test) if not calls and {n.id for n in paths} <= own else ""
    return ""


def _takes(call: ast.Call, node: ast.expr) -> bool:
    return any(each is node for each in (*call.args, *(k.value for k in call.keywords)))


def counted(use: Use, uses: Iterable[Use], kind: str) -> str:
    """A number of which the host computes what tensors take: that goes into a tensor ahead of each replay."""
    known = [*uses]
    paths = {each.text for each in known if is_plain(each.value())}
    made, read, filled, more, tests = dict[str, str](), [], [], list[str](), dict[str, str]()
    by_host = False
    for each in (one for one in known if one.text == use.text):
        nodes = [*nodes_of(each.code)]
        parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        there = HostParts(nodes, parents, paths)
        whole = there.whole(each.node)
        named = there.named(whole)
        reads = there.reads(named)
        asked = {n: test for n in reads if (test := asked_in(n, parents, {*paths, named})) is not None}
        tests |= {of_the_host_alone(test, named, whole): f"line {n.lineno}" for n, test in asked.items()}
        if asked and len(asked) == len(reads):
            return ""
        if (parts := there.parts(each.node, asked)) is None:
            return ""
        for part in parts:
            above = there.with_torch(part.taken)
            said = multiplied(above[0], parents, each) if above is not None else None
            if above is None or said is None:
                return ""
            name = part.name or last_name(each.node) or "number"
            by_host = by_host or part.is_called
            held = f"self.{name}_in" if use.text.startswith("self.") else f"{name}_in"
            number = 2
            while by_host and made.get(held, part.value) != part.value:  # of one name, and two numbers
                held, number = f"{held.removesuffix(f'_{number - 1}')}_{number}", number + 1
            made.setdefault(held, part.value)
            read.append(f"`{held}` for `{part.text}`")
            filled.append(f"`{held}.fill_({part.value})`")
            more += filter(None, (*above[1], said))
    read, filled, more = ([*dict.fromkeys(part)] for part in (read, filled, more))
    made_there = [f"`{held} = torch.full((), float({text}), device={kind!r})`" for held, text in made.items()]
    if len({each.partition(".fill_(")[0] for each in filled}) < len(filled):  # of one name, and two numbers
        if by_host:
            return ""
        held = held_for(use.text)
        made_there = [f"`{held} = torch.full((), float({use.text}), device={kind!r})`"]
        read, filled = [f"`{held}` for `{use.text}`"], [f"`{held}.fill_({use.text})`"]
    if not 0 < len(read) <= MOST_READS or len(made_there) < len(read):
        return ""
    other = f"; there {', '.join(more)}" if more else ""
    told = f"before the capture {', '.join(made_there)}, what is captured reads {', '.join(read)}{other}"
    if tests:
        return with_tests(tests, told, filled)
    return f"this line as it is; {told}; and ahead of g.replay() {', '.join(filled)}"


def of_call(use: Use, uses: Iterable[Use], kind: str) -> str:
    """A number that a function of the user's computes with, all of the host's: what that gives goes into a tensor."""
    known, nodes = [*uses], [*nodes_of(use.code)]
    paths = {each.text for each in known if each.code is use.code and is_plain(each.value())}
    function = next((n for n in nodes if isinstance(n, ast.FunctionDef) and n.name == use.code.co_name), None)
    sites = [each for each in known if each.code is not use.code and code_of(unwrap(each.value())) is use.code]
    is_property = any(map(_is_property, sites))
    if function is None or {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)} - {"self"} or not sites:
        return ""
    own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    if not all(_is_of_numbers(each, paths | own) for each in function.body) or len({each.text for each in sites}) > 1:
        return ""
    more = dict[str, None]()
    for site in sites:
        there = [*nodes_of(site.code)]
        parents = {child: node for node in there for child in ast.iter_child_nodes(node)}
        call: Any = site.node if is_property else parents.get(site.node)
        above: Any = parents.get(call)
        named = isinstance(above, ast.Assign) and isinstance(above.targets[0], ast.Name) and above.targets[0].id
        reads = [n for n in there if isinstance(n, ast.Name) and n.id == named and isinstance(n.ctx, ast.Load)]
        said = [multiplied(n, parents, site) for n in (reads if named else [call])]
        plain = is_property or (isinstance(call, ast.Call) and not call.args and not call.keywords)
        if not plain or None in said or not said:
            return ""
        more |= {text: None for text in said if text}
    path = sites[0].text
    held, given = held_for(path), path if is_property else f"{path}()"
    made = f"before the capture `{held} = torch.full((), float({given}), device={kind!r})`"
    other = f"; there {', '.join(more)}" if more else ""
    reads_it = f"what is captured reads `{held}` for `{given}`{other}"
    return f"this line as it is; {made}, {reads_it}; and ahead of g.replay() `{held}.fill_({given})`"


def _is_property(site: Use) -> bool:
    """Whether an attribute is what a function of its class computes."""
    name = site.node.attr if isinstance(site.node, ast.Attribute) else ""
    return bool(name) and isinstance(getattr_static(type(site.owner()), name, None), property)


def _is_of_numbers(node: ast.AST, paths: set[str]) -> bool:
    """Whether a statement, or what it has, computes with numbers of the host's alone."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        owner = last_name(node.value) if isinstance(node, ast.Attribute) else ""
        return ast.unparse(node) in paths or owner in HOSTS
    if isinstance(node, ast.Call):
        return is_hosts(node.func) and not node.keywords and all(_is_of_numbers(each, paths) for each in node.args)
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Name) and _is_of_numbers(node.value, paths)
    if isinstance(node, ast.Constant):
        return True
    kinds = (ast.Return, ast.Expr, ast.If, ast.IfExp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp)
    inside = [n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.expr, ast.stmt))]
    return isinstance(node, kinds) and bool(inside) and all(_is_of_numbers(each, paths) for each in inside)


def by_setattr(node: ast.AST, code: str) -> str:
    """``setattr(x, "bias", new)`` written in place: ``x.bias.copy_(new)``; "" for any other statement."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "setattr" or len(node.args) != 3:
        return ""
    owner, name, tensor = map(ast.unparse, node.args)
    known = isinstance(node.args[1], ast.Constant) and str(node.args[1].value).isidentifier()
    path = f"{owner}.{ast.literal_eval(name)}" if known else f"getattr({owner}, {name})"
    if code == "parameter-rebound":
        return f"{path}.data.copy_({tensor})"
    return f"{path}.copy_({tensor}), ahead of g.replay()"
