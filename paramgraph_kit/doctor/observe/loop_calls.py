"""What calls and assignments around a step set, and the functions that they run."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from paramgraph_kit.doctor.explain.syntax import first_line, last_name, writes_in_place
from paramgraph_kit.doctor.observe.captured_entries import CHANGES, MERGES, TAKES
from paramgraph_kit.doctor.observe.captured_values import NOTHING
from paramgraph_kit.doctor.observe.gradients import nulls
from paramgraph_kit.doctor.observe.held import is_a
from paramgraph_kit.doctor.observe.loop_forms import Forms
from paramgraph_kit.doctor.observe.loop_names import (
    calls_in,
    classes_in,
    is_call_of,
    is_inner,
    is_named_alone,
    is_same,
    is_used_alike,
    outer_in,
    space_of,
)
from paramgraph_kit.doctor.observe.loop_state import (
    DEEP,
    ENTRIES,
    GRADIENT,
    GROUPS,
    GROWS,
    HOOKED,
    HOOKS,
    LEARNS,
    MEMORY,
    MODE,
    PARTS,
    STATE,
    Called,
    Given,
    NotFollowed,
    Run,
)
from paramgraph_kit.doctor.observe.loop_values import (
    PLAIN,
    Held,
    Names,
    Scheduled,
    Some,
    Thing,
    all_of,
    attribute,
    elements,
    has_state,
    in_kinds,
    is_exchange,
    is_table,
    is_torchs,
    name_as_there,
    names_given,
    remakes,
)
from paramgraph_kit.doctor.observe.makers import kept_by, makes_once
from paramgraph_kit.doctor.observe.other_entries import ARRAYS, has_entries
from paramgraph_kit.doctor.observe.set_between import CAPTURES
from paramgraph_kit.doctor.observe.torch_settings import EVERYWHERE, GRADIENTS, set_by

_CHANGED_BY = frozenset((*CHANGES, *MERGES, *ARRAYS))  # methods of lists, dictionaries, sets and arrays
ROWS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
_EACH = "<each>"  # the name of what a function is run with


class Calls(Forms):
    """Follows calls into the functions of the user's, and keeps what is set."""

    def _block(self, body: list[ast.stmt], run: Run) -> bool:
        raise NotImplementedError

    # What is set

    def _assign(self, target: ast.expr, value: Any, node: ast.AST, run: Run) -> None:
        text = ast.unparse(target)
        if isinstance(target, ast.Starred):
            target = target.value
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._assign(each, NOTHING, node, run)
        elif isinstance(target, ast.Name):
            self._name(target.id, value, node, run)
        elif isinstance(target, ast.Attribute):
            for owner in all_of(self._value(target.value, run)):
                if target.attr != MEMORY or not self._is_put_back(owner, node, run):
                    self._attribute(owner, target.attr, value, text, node, run)
        elif isinstance(target, ast.Subscript):
            key = self._value(target.slice, run)
            self._keep(target.value, node, run)
            for owner in all_of(self._value(target.value, run)):
                self._entry(owner, key, value, text, node, run)

    def _name(self, name: str, value: Any, node: ast.AST, run: Run) -> None:
        if name in run.names.cells:
            self._set(run.names.cells[name], "", value, name, node, run)
        elif name in run.names.outer or run.name == "<module>":
            self._set(run.names.space, f"[{name!r}]", value, name, node, run)
            if run.name == "<module>" and type(value) not in PLAIN and value is not NOTHING:
                run.names.own[name] = value
        else:
            run.names.own[name] = run.bound.get(name, value)

    def _attribute(self, owner: Any, name: str, value: Any, text: str, node: ast.AST, run: Run) -> None:
        if isinstance(owner, Thing):
            if not (value is NOTHING and name in owner.has):
                owner.has[name] = value
        elif is_a(owner, torch.Tensor) and name not in (MEMORY, LEARNS) and (name, value) != (GRADIENT, None):
            return
        else:
            self._set(owner, name, value, text, node, run)

    def _entry(self, owner: Any, key: Any, value: Any, text: str, node: ast.AST, run: Run) -> None:
        if isinstance(owner, Held):
            if isinstance(key, str):
                self._attribute(owner.of, key, value, text, node, run)
            else:
                self._sets_any(owner, node, run)
        elif not is_a(owner, torch.Tensor):
            if type(key) in PLAIN:
                self._set(owner, f"[{key!r}]", value, text, node, run)
            if has_entries(owner) or is_a(owner, ROWS):
                self._set(owner, PARTS if is_a(owner, ROWS) else ENTRIES, value, text, node, run)

    def _set(self, owner: Any, name: str, value: Any, text: str, node: ast.AST, run: Run) -> None:
        if is_exchange(node) and self._exchanged_back(owner, name, node, run):
            return
        way = repr(value) if type(value) in PLAIN else ""  # one line of a helper sets what each call of it is given
        at = (id(node), id(owner), name, self.state.has_stepped, way)
        number = self.numbers.setdefault(at, len(self.numbers) + 1)
        self.found.owners[id(owner)] = owner
        self.found.given[number] = Given(run.file, run.name, node, text, owner, name, self.state.has_stepped)
        self.found.values.setdefault(number, []).append(value)
        then = self.state.last.get((id(owner), name), frozenset()) if name == ENTRIES else frozenset()
        self.before.setdefault(number, self.state.last.get((id(owner), name)))
        self.state.last[id(owner), name] = then | {number}  # each entry may be another line's

    def _exchanged_back(self, owner: Any, name: str, node: ast.AST, run: Run) -> bool:
        """Whether another run of the function did ``a, b = b, a`` last: they are as they were."""
        at = (id(node), id(owner), name)
        if self.exchanged.get(at) is run:  # the same round of a loop, which is followed twice
            return True
        self.exchanged[at] = run
        last = self.state.last.get((id(owner), name), frozenset())
        number = next(iter(last)) if len(last) == 1 else 0
        if not number or self.found.given[number].node is not node:
            return False
        then = self.before[number]
        del self.state.last[id(owner), name]
        self.state.last |= {(id(owner), name): then} if then is not None else {}
        return True

    def _is_in_place(self, node: ast.AugAssign, run: Run) -> bool:
        """Whether ``+=`` leaves the same object, a tensor or a list."""
        held = all_of(self._value(node.target, run))
        for each in (each for each in held if has_entries(each)):
            self._set(each, ENTRIES, self._value(node.value, run), ast.unparse(node.target), node, run)
            if is_table(each):
                self._enter_all(each, node.value, ast.unparse(node.target), node, run)
        return any((is_a(each, torch.Tensor) and writes_in_place(node)) or has_entries(each) for each in held)

    def _delete(self, node: ast.Delete, run: Run) -> None:
        for target in (each for each in node.targets if isinstance(each, ast.Subscript)):
            for owner in all_of(self._value(target.value, run)):
                if has_entries(owner) or is_a(owner, ROWS):
                    name = PARTS if is_a(owner, ROWS) else ENTRIES
                    self._set(owner, name, NOTHING, ast.unparse(target.value), node, run)

    # Calls

    def _calls(self, node: ast.expr, run: Run, but: ast.AST | None = None) -> None:
        """The calls in an expression, those inside first."""
        if isinstance(node, (ast.Lambda, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)):
            if not isinstance(node, ast.Lambda):
                self._comprehension(node, run)
            return
        if isinstance(node, (ast.IfExp, ast.BoolOp)):
            self._branches_within(node, run)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._calls(child, run)
            elif isinstance(child, ast.keyword):
                self._calls(child.value, run)
        if isinstance(node, ast.Call) and node is not but:
            self._call(node, run)
        elif isinstance(node, (ast.Yield, ast.YieldFrom)) and run.gives is not None:
            gives, value = run.gives, self._value(node.value, run) if node.value is not None else NOTHING
            gives(value)
        elif isinstance(node, ast.NamedExpr):
            run.names.own[node.target.id] = self._value(node.value, run)

    def _comprehension(self, node: Any, run: Run) -> None:
        names = dict(run.names.own)
        for part in node.generators:
            self._calls(part.iter, run)
            given = self._value(part.iter, run)
            each = elements(given)
            for target, value in names_given(part.target, Some(each) if each is not None else given):
                if isinstance(target, ast.Name):
                    run.names.own[target.id] = value
        for made in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._calls(made, run)
        run.names.own = names

    def _call(self, call: ast.Call, run: Run) -> None:
        if self._is_step(call, run):
            self._stepped(call)
            return
        if (ways := self._ways(call, run)) is not None:
            self._one_of(partial(self._call, each, run) for each in ways)
            return
        name = last_name(call.func)
        if name in CAPTURES:
            self._captured()
            return
        if said := set_by(self._value(call.func, run)):
            self._set(EVERYWHERE, said, self._given_setting(call, run), ast.unparse(call.func), call, run)
            return
        if is_call_of(call, "map") and len(call.args) == 2:
            for each in in_kinds(self._value(call.args[1], run)):
                self._runs_with(call.args[0], each, run)
            return
        if isinstance(call.func, ast.Attribute):
            base = self._value(call.func.value, run)
            if self._sets_by_call(call, name, base, run):
                return
        if ast.unparse(call.func) in ("setattr", "object.__setattr__") and len(call.args) == 3:
            key = self._value(call.args[1], run)
            if not isinstance(key, str):
                self._sets_any(self._value(call.args[0], run), call, run)
                return
            for owner in all_of(self._value(call.args[0], run)):
                text = f"{ast.unparse(call.args[0])}.{key}"
                self._attribute(owner, key, self._value(call.args[2], run), text, call, run)
            return
        if name == "vector_to_parameters" and len(call.args) == 2:
            for owner in all_of(self._value(call.args[1], run)):
                self._set(owner, MEMORY, NOTHING, "p.data", call, run)
            return
        if call.args and remakes(self._value(call.func, run)):
            for owner in all_of(self._value(call.args[0], run)):
                if is_a(owner, torch.nn.Module):
                    self._set(owner, PARTS, NOTHING, ast.unparse(call.args[0]), call, run)
            return
        self._changes_given(call, run)
        self._name_as_kept(call, run)
        called = [*self._called(call, run)]
        meant, self.meant = self.meant, None if call is self.meant else self.meant  # what it makes is meant
        given = [self._follow(each, run) for each in called]
        self.meant = meant
        many = (each for each in given if type(each) is tuple and self.owner is not None)
        is_own = any(part is self.owner for each in many for part in each)
        if len(called) == 1 and makes_once(call, called[0].node, run.file, is_own):
            self.results[id(call)] = given[0]

    def _runs_with(self, function: ast.expr, value: Any, run: Run) -> None:
        """Another function runs a function with something: ``net.apply(freeze)``, ``map(lambda m: m.eval(), nets)``."""
        if isinstance(function, ast.Lambda):
            names = [a.arg for a in function.args.args][:1]
            then = dict(run.names.own)
            run.names.own |= dict.fromkeys(names, value)
            self._calls(function.body, run)
            run.names.own = then
            return
        run.names.own[_EACH] = value
        call = ast.Call(function, [ast.Name(_EACH, ast.Load())], [])
        if not self._is_step(call, run):
            for called in self._called(call, run):
                self._follow(called, run)
        else:
            self._stepped(call)
        del run.names.own[_EACH]

    def _within(self, kept: Any, node: ast.AST, run: Run, body: Callable[[], bool]) -> bool:
        """A body in which gradients are kept, or not: however it ends, that is as before behind it."""
        key = (id(EVERYWHERE), GRADIENTS)
        then = self.state.last.get(key)
        counts = [len(each) for each in (run.returned, run.broken, run.continued)]
        self._set(EVERYWHERE, GRADIENTS, kept, ast.unparse(node), node, run)
        alive = body()
        lists = (run.returned, run.broken, run.continued)
        left = [s for states, count in zip(lists, counts, strict=True) for s in states[count:]]
        for state in (self.state, *left):
            state.last.pop(key, None)
            state.last |= {key: then} if then is not None else {}
        return alive

    def _captured(self) -> None:
        """A line captures: what its graph keeps is told elsewhere."""
        raise NotFollowed

    def _sets_by_call(self, call: ast.Call, name: str, base: Any, run: Run) -> bool:
        """What methods of torch's and of dictionaries set."""
        done = False
        each: Any
        is_super = isinstance(call.func, ast.Attribute) and is_call_of(call.func.value, "super")
        for owner in all_of(base):
            first = self._value(call.args[0], run) if call.args else NOTHING
            text = ast.unparse(call.func)
            if is_a(owner, torch.nn.Module) and name in ("eval", "train") and (is_super or is_torchs(owner, name)):
                first = next((self._value(k.value, run) for k in call.keywords if k.arg == "mode"), first)
                mode: Any = False if name == "eval" else True if not (call.args or call.keywords) else first
                for each in owner.modules():
                    self._set(each, MODE, mode, text, call, run)
                done = True
            elif is_a(owner, torch.nn.Module) and name == "apply" and is_torchs(owner, name) and len(call.args) == 1:
                for each in in_kinds(Some(tuple(owner.modules()))):
                    self._runs_with(call.args[0], each, run)
                done = True
            elif is_a(owner, (torch.nn.Module, torch.Tensor)) and name == "requires_grad_":
                learns: Any = first if call.args else True
                for each in owner.parameters() if is_a(owner, torch.nn.Module) else (owner,):
                    self._set(each, LEARNS, learns, text, call, run)
                done = True
            elif is_a(owner, torch.nn.Module) and (name in GROWS or (is_a(owner, ROWS) and name in CHANGES)):
                if is_a(owner, ROWS) or is_torchs(owner, name):
                    self._set(owner, PARTS, NOTHING, text, call, run)
                    done = True
            elif (name in HOOKED and is_a(owner, (torch.nn.Module, torch.Tensor))) or (
                name == "remove" and is_a(owner, RemovableHandle)
            ):
                self._set(owner, HOOKS, NOTHING, text, call, run)
                done = True
            elif is_a(owner, torch.nn.Module) and (moved := self._gives_memory(call, name, owner, run)):
                for each in moved:
                    self._set(each, MEMORY, NOTHING, text, call, run)
                done = True
            elif is_a(owner, torch.optim.Optimizer) and (
                name == "__init__" or (name == "load_state_dict" and has_state(owner))
            ):
                self._set(owner, STATE, NOTHING, text, call, run)
                done = True
            elif is_a(owner, torch.optim.Optimizer) and name == "add_param_group":
                self._set(owner, GROUPS, NOTHING, text, call, run)
                done = True
            elif name == "step" and (isinstance(owner, Scheduled) or is_a(owner, torch.optim.lr_scheduler.LRScheduler)):
                for group in owner.optimizer.param_groups:
                    if is_a(group.get("lr"), torch.Tensor):  # which it fills
                        continue
                    self._set(group, "['lr']", NOTHING, text, call, run)
                done = True
            elif name == "zero_grad" and is_a(owner, (torch.nn.Module, torch.optim.Optimizer)) and nulls(call):
                self._set(owner, GRADIENT, NOTHING, text, call, run)
                done = True
            elif name in ("update", "setdefault", "__setitem__") and is_table(owner):
                self._update(call, name, owner, run)
                done = True
            elif has_entries(owner) and name in _CHANGED_BY:
                given = self._value(call.args[-1], run) if call.args else NOTHING
                self._set(owner, ENTRIES, given, ast.unparse(call.func.value), call, run)  # type: ignore[attr-defined]
                if last_name(call.func.value) == GROUPS:  # type: ignore[attr-defined]
                    self._set(owner, GROUPS, NOTHING, text, call, run)
                if type(owner) is defaultdict and name in TAKES:
                    self._set(owner, STATE, NOTHING, text, call, run)  # of an optimizer, perhaps
                done = True
        return done

    def _update(self, call: ast.Call, name: str, owner: Any, run: Run) -> None:
        pairs: list[tuple[Any, ast.expr]] = [(k.arg, k.value) for k in call.keywords if k.arg]
        base = ast.unparse(call.func.value)  # type: ignore[attr-defined]
        if name != "update":
            pairs += [(self._value(call.args[0], run), call.args[1])] if len(call.args) == 2 else []
        elif call.args:
            self._enter_all(owner, call.args[0], base, call, run)
        for key, value in pairs:
            self._entry(owner, key, self._value(value, run), f"{base}[{key!r}]", call, run)

    def _enter_all(self, owner: Any, given: ast.expr, base: str, node: ast.AST, run: Run) -> None:
        """A dictionary gets the entries of one that is written there."""
        if not isinstance(given, ast.Dict):
            self._merges_any(owner, base, node, run)
            return
        for key, value in zip(given.keys, given.values, strict=True):
            if key is not None:
                known = self._value(key, run)
                self._entry(owner, known, self._value(value, run), f"{base}[{known!r}]", node, run)

    def _is_step(self, call: ast.Call, run: Run) -> bool:
        func = call.func
        if self.owner is None:
            value = self._value(func, run)
            named = (
                value is NOTHING
                and isinstance(func, ast.Name)
                and func.id == self.name
                and func.id not in run.names.own
            )
            if value is not self.step and not named:
                return False
            for each, given in self._given_to(call):
                self._bind(each, given, run)
            return True
        if not isinstance(func, ast.Attribute) or func.attr != self.name:
            value = self._value(func, run)
            known = value is not NOTHING and not isinstance(value, (Some, Thing, Held))
            return known and (value is self.asked or is_same(value, self.step))
        value = self._value(func.value, run)
        alone = value is NOTHING and is_named_alone(call, len(self.given))
        if alone or (value is NOTHING and is_used_alike(call, run.file, self.owner)):
            self._bind(func.value, self.owner, run)
            return True
        return any(each is self.owner for each in all_of(value))

    def _made_by(self, node: ast.expr, run: Run) -> Any:
        """An object of a class of the user's that a line makes, or copies."""
        if isinstance(node, ast.Call) and last_name(node.func) in ("copy", "deepcopy") and node.args:
            name = type(self._value(node.args[0], run)).__name__
            return next((Thing(k, f) for f in self.spaces for k in classes_in(f) if k.name == name), NOTHING)
        if (own := self._own_made_by(node, run)) is not NOTHING:
            return own
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            return NOTHING
        found = self._kind_made_by(node.func, run)
        if found is None:
            return NOTHING
        thing = Thing(*found)
        self._made(thing, node, run)
        return thing

    def _name_as_kept(self, call: ast.Call, run: Run) -> None:
        """What variables mean that the step's own object is made with, and keeps."""
        found = self._kind_made_by(call.func, run) if isinstance(call.func, ast.Name) else None
        if found is None or not self._is_own(*found) or self._own_made_by(call, run) is NOTHING:
            return
        init = self._method(self.owner, "__init__")  # of its own, or of a class that it is made of
        for node, name in kept_by(init.node if init is not None else found[0], call):
            value = attribute(self.owner, name)
            name_as_there(run.names, self._value(node, run), value)  # which a line ahead of it has made
            self._bind(node, value, run)

    def _stepped(self, call: ast.Call) -> None:
        """The step is called: what each thing was set by last is what it finds."""
        self.found.steps.append(call)
        if self.state.has_stepped:
            for key, numbers in self.state.last.items():
                self.found.at_step.setdefault(key, set()).update(numbers)
        else:
            for key, numbers in self.state.last.items():
                self.found.at_step.setdefault(key, set()).update(-n for n in numbers)
        self.state.has_stepped = True

    def _made(self, thing: Thing, call: ast.Call, run: Run) -> None:
        """What a class's ``__init__`` gives a new object."""
        init = next((m for m, kind, _ in self.methods if kind is thing.kind and m.name == "__init__"), None)
        if init is not None:
            keywords = {k.arg: k.value for k in call.keywords if k.arg}
            self._follow(Called(init, thing, thing.file, call.args, keywords), run)

    def _follow(self, called: Called, run: Run, gives: Callable[[Any], None] | None = None) -> Any:
        """Follow the lines of a function that is called; returns what it returns, as far as its lines tell."""
        node, owner, file, args, keywords = called.node, called.owner, called.file, called.args, called.keywords
        at = (file, first_line(node))
        if at in self.own and not calls_in(node).isdisjoint(CAPTURES):
            self._captured()
        if at in self.own or at in self.stack or len(self.stack) >= DEEP:
            return NOTHING
        names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        own: dict[str, Any] = dict.fromkeys([*names, *(a.arg for a in node.args.kwonlyargs)], NOTHING)
        static = any(last_name(d) == "staticmethod" for d in node.decorator_list)
        if owner is not NOTHING and names and not static:
            own[names.pop(0)] = owner
        own |= {name: self._value(each, run) for name, each in zip(names, args, strict=False)}
        own |= {name: self._value(each, run) for name, each in keywords.items() if name in own}
        defaults = node.args.defaults
        for arg, default in zip(reversed(names), reversed(defaults), strict=False):
            if names.index(arg) >= len(args) and arg not in keywords and isinstance(default, ast.Constant):
                own[arg] = default.value
        space = self.spaces.get(file) or space_of(file)
        stands_there = file == run.file and is_inner(node, file)
        cells = run.names.cells if stands_there else {}
        if stands_there:
            own = {**run.names.own, **own}
        new = Run(Names(own, space, cells, outer_in(node)), file, node.name, owner, gives)
        self.stack.append(at)
        begun = self.state.copy()
        kept = (self._gradients_within(d, run) for d in node.decorator_list if isinstance(d, ast.Call))
        if (is_kept := next((each for each in kept if each is not None), None)) is not None:
            alive = self._within(is_kept, node.decorator_list[0], new, lambda: self._block(node.body, new))
        else:
            alive = self._block(node.body, new)
        self.stack.pop()
        if not alive:
            states = new.returned or [begun]
            self.state = states[0]
            new.returned = states[1:]
        for state in new.returned:
            self.state.join(state)
        return new.result
