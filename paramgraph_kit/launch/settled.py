"""Addresses that stay are written once: a second executable, in which only nodes whose words move are updated.

A node that the device may update costs the GPU 0.07 us more than an ordinary one, and the kernel that updates them 3 us
at each launch [H200]. In a loop most addresses are the same each time: weights, caches, what the allocator gives again
and again. Which ones is a guess from some launches, and nothing depends on it: the second executable is launched where
every address that is written in it is today's, and the first one, in which all can be rewritten, otherwise.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from paramgraph_kit.capture.pair import Captured
from paramgraph_kit.driver.api import Driver, Executable, Stays
from paramgraph_kit.launch.generate import State
from paramgraph_kit.launch.plan import Block, Plan, Stage

AFTER = 32  # launches that are watched before anything is taken to stay, and that may miss it before it is given up
LONGER = 8  # times as many before the next look, where there was nothing to win or what had stayed moved
LONGEST = 1 << 14  # no more than so many
LEAST = 16  # nodes that would be ordinary ones; fewer do not pay for another executable
SMALL = 1 << 20  # bytes of workspace that may have a place for good: what the allocator serves from its small pool


def made_executables(
    driver: Driver, captured: Captured, plan: Plan, state: State, patching: str
) -> tuple[Executable, ...]:
    """One for each stage of a plan; none is left where one cannot be made."""
    # Of a launch in several stages another thread's may come between two.
    room = Room(driver, plan, state.homes) if len(plan.stages) == 1 else None
    made: list[Executable] = []
    try:
        for stage in plan.stages:
            recording, slots = captured.recording, len(stage.slots)
            make = partial(driver.instantiate, recording, stage.nodes, stage.bindings, slots, patching=patching)
            made.append(Settling(make, stage, room))
    except BaseException:
        for executable in made:
            executable.destroy()
        raise
    return tuple(made)


class Room:
    """Places for good of small blocks of workspace: the allocator's small pool rarely gives the same one twice."""

    def __init__(self, driver: Driver, plan: Plan, homes: Sequence[dict[int, int]]) -> None:
        self._driver, self._blocks, self._homes = driver, plan.blocks, homes
        self._held: list[weakref.finalize[Any, Room]] = []

    def loose(self, stage: Stage, moved: frozenset[int], stream: int) -> dict[int, int]:
        """Which of the slots that moved could stay, and their blocks."""
        found = {slot: stage.slots[slot] for slot in moved}
        return {
            slot: block.number
            for slot, block in found.items()
            if isinstance(block, Block)
            and self._blocks[block.number].nbytes <= SMALL
            and stream not in self._homes[block.number]
        }

    def take(self, block: int, stream: int) -> None:
        """Give a block a place for launches on this stream, for as long as there are launches."""
        address = self._driver.allocate(self._blocks[block].nbytes, stream)
        self._held.append(weakref.finalize(self, self._driver.free, address))
        self._held[-1].atexit = False
        self._homes[block][stream] = address

    def give_back(self) -> None:
        """Free them all; nothing is launched any more."""
        for free in self._held:
            free()


class Settling:
    """The executables of one stage behind the interface of one; see driver.api.Executable."""

    def __init__(self, make: Callable[..., Executable], stage: Stage, room: Room | None) -> None:
        self._make, self._stage, self._room = make, stage, room
        self._whole = make()
        self._part: Executable | None = None
        self._there: Any = ()  # the addresses that are written in it,
        self._of: Callable[[Sequence[int]], Any] = tuple  # and what picks them from a table
        self._last: Sequence[int] = ()  # what the next launch reads
        self._after = self._left = AFTER
        self._seen, self._moved = False, frozenset[int]()

    def __repr__(self) -> str:
        return f"Settling({self._whole!r}, {self._part!r})"

    @property
    def patching(self) -> str:
        """Who rewrites words."""
        return self._whole.patching

    @property
    def device_bytes(self) -> int:
        """Of both."""
        return self._whole.device_bytes + (self._part.device_bytes if self._part is not None else 0)

    @property
    def settled(self) -> bool:
        """Whether there is an executable in which only some nodes are updated."""
        return self._part is not None

    def launch(self, stream: int) -> None:
        """Replay; where the second executable is chosen, its own function stands in this one's place."""
        self._whole.launch(stream)
        self._left -= 1
        if self._left == 0:
            if self._part is None:
                self._settle(stream)
            else:
                self._unsettle()

    def patch(self, addresses: Sequence[int]) -> None:
        """Write addresses where they are needed, and choose what is launched."""
        last, self._last = self._last, addresses
        if self._part is not None and self._of(addresses) == self._there:
            try:
                self._part.patch(addresses)
            except Exception:  # as if there had been none
                self._unsettle()
            else:
                self._choose_part(self._part)
                return
        vars(self).pop("launch", None)
        self._whole.patch(addresses)
        if self._part is None and self._left <= AFTER:
            if self._seen:
                pairs = enumerate(zip(last, addresses, strict=True))
                self._moved |= {slot for slot, (before, now) in pairs if before != now}
            self._seen = True

    def destroy(self) -> None:
        """Free all executables, and the workspace's own place."""
        vars(self).pop("launch", None)
        self._left = -1  # and never again
        self._whole.destroy()
        if self._part is not None:
            self._part.destroy()
            self._part = None
        if self._room is not None:
            self._room.give_back()

    def _choose_part(self, part: Executable) -> None:
        vars(self)["launch"] = part.launch  # one call less
        self._left = AFTER

    def _watch(self) -> None:
        self._left, self._seen, self._moved = self._after, False, frozenset[int]()

    def _watch_later(self) -> None:
        self._after = min(self._after * LONGER, LONGEST)
        self._watch()

    def _settle(self, stream: int) -> None:
        """Take what has not moved for what stays, if enough nodes read nothing else."""
        stage, moved = self._stage, self._moved
        loose = self._room.loose(stage, moved, stream) if self._room is not None else {}
        moving = {b.node for b in stage.bindings if b.slot in moved and b.slot not in loose}
        if not self._last or len({b.node for b in stage.bindings} - moving) < LEAST:
            self._watch_later()
            return
        try:
            if loose and self._room is not None:  # it has to be there before it can be seen to stay
                for block in loose.values():
                    self._room.take(block, stream)
                self._watch()
                return
            part = self._make(stays=Stays(self._last, moved))
            part.patch(self._last)
        except Exception:  # out of memory, or a driver that cannot: the first executable does it all
            self._left = -1
            return
        self._part = part
        self._of = itemgetter(*(slot for slot in range(len(stage.slots)) if slot not in moved))
        self._there = self._of(self._last)
        self._choose_part(part)

    def _unsettle(self) -> None:
        if self._part is not None:
            self._part.destroy()
        self._part = None
        self._watch_later()
