"""What a step fetches of the host's, by itself or in functions that it calls, is fetched before the launch."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from paramgraph_kit.doctor.explain.syntax import nodes_of
from paramgraph_kit.doctor.observe.fetched_anew import FETCHED
from paramgraph_kit.driver.select import device
from paramgraph_kit.rewrite.around import feeding, later
from paramgraph_kit.rewrite.foreseen import Foreseeing
from paramgraph_kit.rewrite.helping import call_of
from paramgraph_kit.rewrite.lending import Plan
from paramgraph_kit.rewrite.loops.fetched import CODES, Batch, Fetch, bring, fetches_of
from paramgraph_kit.rewrite.source import moving
from paramgraph_kit.rewrite.source.edits import Function, Source, path_of, within
from paramgraph_kit.rewrite.source.hosts import METADATA
from paramgraph_kit.rewrite.source.place import Form, called
from paramgraph_kit.rewrite.source.reach import attributes_of
from paramgraph_kit.trace.model import Failure

_OF_DEVICE = (torch.nn.Module, torch.optim.Optimizer)


class Fetching(Foreseeing):
    """One function that may fetch batches of the host's."""

    def plans(self, failures: Sequence[Failure]) -> list[Plan]:
        """How each failure is rewritten, where it can be."""
        known = [f for f in failures if id(f) not in self.unsafe]
        handled = self._fetch(known) if self.fetches and self.moves and self.feeds else []
        left = [f for f in failures if not any(f is each for each in handled)]
        found = super().plans(left)
        for plan in found if self.fed is not None else ():
            plan.failures.extend(handled if plan.edits is self.fed.edits else [])  # type: ignore[union-attr]
        return found

    def fetched_in(self, failures: Sequence[Failure]) -> dict[ast.stmt, list[Failure]]:
        """The statements of the function in which the host brings something to the device, with what was found there.

        Those that call a function where it does, too, if nothing that this runs belongs to a model or an optimizer.
        """
        at = self._definition()
        found: dict[ast.stmt, list[Failure]] = {}
        for failure in failures if at is not None else ():
            place = self.place(failure) if failure.code in CODES or FETCHED in failure.message else None
            if at is None or place is None or failure.frame is None:
                continue
            source, function = at
            own = place[0] is source and source.function_of(place[1]) is function
            computes = own and failure.code == "cpu-index" and self._computes(place[1])
            every = [] if computes else [place[1]] if own else self._calling(function, failure)
            for node in every:
                found.setdefault(node, []).append(failure)
        return found

    def _calling(self, function: Function, failure: Failure) -> list[ast.stmt]:
        """The statements of a function that come to another one of the user's, where something was found."""
        found = list[ast.stmt]()
        for node in (n for part in function.body for n in within(part) if isinstance(n, ast.Assign)):
            names = {called(n) for n in ast.walk(node.value) if isinstance(n, ast.Call)}
            if self.comes_to(node, failure) and not self._is_of_device(later.reached(self.sources.values(), names)):
                found.append(node)
        return found

    def _computes(self, node: ast.stmt) -> bool:
        """Whether a statement calls a model, or what calls one: its index comes from the host, and nothing else."""
        names = {called(n) for n in ast.walk(node) if isinstance(n, ast.Call)}
        held = attributes_of(self.prover.state)
        direct = any(isinstance(held.get(n, self.space.get(n)), _OF_DEVICE) for n in names)
        return direct or self._is_of_device(later.reached(self.sources.values(), names))

    def _is_device_work(self, node: ast.stmt) -> bool:
        """Whether the device computes in a statement with what an object holds there: that is for a launch to do.

        ``self.data[rows]`` only picks, and ``torch.full_like(a, random.random())`` gets its number alone.
        """
        for each in within(node):
            if isinstance(each, ast.Call) and isinstance(self._value(path_of(each.func)), torch.nn.Module):
                return True
            if not isinstance(each, (ast.Name, ast.Attribute)) or not isinstance(each.ctx, ast.Load):
                continue  # ``x = self.buffer.sample()`` gives the device's ``x`` another value
            if not self._only_asks(each, node):
                value = self._value(path_of(each))
                if isinstance(value, torch.Tensor) and value.device.type == device().type:
                    return True
        return False

    @staticmethod
    def _only_asks(node: ast.expr, below: ast.stmt) -> bool:
        """Whether rows of a tensor are picked, or its size, type or device is asked for."""
        for above in within(below):
            if isinstance(above, ast.Subscript) and above.value is node:
                return True
            if isinstance(above, ast.Attribute) and above.value is node and above.attr in METADATA:
                return True
        return False

    def _is_of_device(self, names: set[str]) -> bool:
        """Whether functions with these names have models or optimizers in their lines."""
        held = attributes_of(self.prover.state)
        for function in (f for f in self.functions if f.__code__.co_name in names):
            nodes = [n for n in nodes_of(function.__code__) if isinstance(n, (ast.Name, ast.Attribute))]
            asked = [n.value for n in nodes if isinstance(n, ast.Attribute) and n.attr in METADATA]
            names_in_it = {n.attr if isinstance(n, ast.Attribute) else n.id for n in nodes if n not in asked}
            values = (function.__globals__.get(n, held.get(n)) for n in names_in_it or function.__code__.co_names)
            if any(isinstance(value, _OF_DEVICE) for value in values):
                return True
        return False

    def _fetch(self, failures: Sequence[Failure]) -> list[Failure]:
        """Find what is fetched; returns what was found there."""
        self.fetched = None
        self.fetched_by = {}
        at, wanted = self._definition(), self.fetched_in(failures)
        if at is None:
            return []
        if not wanted:
            return self._fetch_in_methods(*at, failures)
        source, function = at
        found = fetches_of(source, function, wanted, self._host_test(function))
        moved = (each for one in found for each in one.moved)
        if not found or self._is_read_elsewhere(function, found) or any(map(self._is_device_work, moved)):
            return []
        order: list[tuple[Any, Form | None]] = []
        seen = self._watched_values(source, [one.at.value for one in found], lambda: Batch(order=order))
        batches = [values for values in seen if isinstance(values, Batch)]
        if len(batches) != len(found):
            return []
        self.fetched = bring(source, function, found, batches, order, self.device, self.space, ())
        if self.fetched is None:
            return []
        # A batch of the step before was another tensor in each: if something else was, that is found again.
        others = [f for f in failures if f.code == "stale-input" and self.fetched.writes]
        return [*(f for each in wanted.values() for f in each), *others]

    def fetches_in_methods(self, failures: Sequence[Failure]) -> bool:
        """Whether helpers or methods of the file's fetch something for it."""
        at = self._definition()
        return at is not None and bool(self._fetch_in_methods(*at, failures))

    def _fetch_in_methods(self, source: Source, function: Function, failures: Sequence[Failure]) -> list[Failure]:
        """The same where helpers or methods of the file's fetch that this calls once; returns what was found there."""
        handled, found, taken = list[Failure](), dict[Function, feeding.Fetched](), list[str]()
        for helper in (n for n in ast.walk(source.tree) if isinstance(n, Function) and n is not function):
            call = call_of(source, function, self._value, helper)
            every = [n for part in helper.body for n in within(part) if isinstance(n, ast.Assign)] if call else []
            wanted: dict[ast.stmt, list[Failure]] = {}
            for node, failure in ((n, f) for f in failures if f.code in CODES for n in every):
                if self._is_fetched_by(source, node, failure):
                    wanted.setdefault(node, []).append(failure)
            if call is None or not wanted:
                continue
            fetches = fetches_of(source, helper, wanted, self.host_test_of(source, helper, call))
            order: list[tuple[Any, Form | None]] = []
            nodes = [one.at.value for one in fetches]
            seen = self._watched_values(source, nodes, partial(Batch, order=order)) if fetches else []
            batches = [values for values in seen if isinstance(values, Batch)]
            if not fetches or len(batches) != len(fetches) or self._is_read_elsewhere(helper, fetches):
                continue
            made = bring(source, helper, fetches, batches, order, self.device, self.space, taken)
            if made is not None:
                found[helper] = made
                taken += made.hoisted
                handled += [f for each in wanted.values() for f in each]
        self.fetched_by = found
        return handled

    def _is_fetched_by(self, source: Source, node: ast.Assign, failure: Failure) -> bool:
        """Whether a statement of a helper is, or calls, what brings something of the host's to the device."""
        place = self.place(failure)
        if place is None or place[1] is node:
            return place is not None
        brings = place[0].function_of(place[1])
        names = later.reached(
            self.sources.values(), {called(n) for n in ast.walk(node.value) if isinstance(n, ast.Call)}
        )
        return getattr(brings, "name", "") in names and not self._is_of_device(names)

    def _is_read_elsewhere(self, function: Function, found: Sequence[Fetch]) -> bool:
        """Whether another function that a step runs reads a batch as a variable around it."""
        outer = {n for node in ast.walk(function) if isinstance(node, moving.NAMED) for n in node.names}
        names = outer & {name for one in found for name in one.names}
        others = (code for code in self.ran if code.co_name != function.name)
        return any(names & {*code.co_names, *code.co_freevars} for code in others)
