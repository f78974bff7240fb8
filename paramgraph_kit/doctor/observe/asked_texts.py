"""What is asked of the text of a number that is given: ``str(step).endswith("3")``, ``rates[f"stage{step // 20}"]``.

A text that is asked by itself notes that. One that goes into a longer text, or into another one's search, is gone:
then it counts which texts its line can name that have it within them, or are within it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType, FunctionType
from typing import Any, TypeVar

from paramgraph_kit.doctor.observe.asks import Argument, Ask, Number
from paramgraph_kit.driver.files import is_library

_GIVE_TEXT = """__getitem__ __add__ __mul__ capitalize casefold center expandtabs join ljust lower lstrip removeprefix
    removesuffix replace rjust rstrip strip swapcase title translate upper zfill""".split()  # noqa: SIM905 - shorter so
_ANSWER = """__contains__ __eq__ __ge__ __gt__ __le__ __lt__ __ne__ count endswith find index isalnum isalpha isdecimal
    isdigit isnumeric rfind rindex startswith""".split()  # noqa: SIM905 - shorter so
_GIVE_SEVERAL = ("partition", "rpartition", "split", "rsplit")
_NUMBER = re.compile(r"\d+")
_MOST_TEXTS, _LONGEST = 8, 64  # that a line may mean
_FRAMES = 3
Answer = TypeVar("Answer")


class AskedText(str):
    """A text that notes what is asked of it, and of what is made of it."""

    argument: Argument
    of: Callable[[Number], Any]
    asks: list[Ask]

    def __hash__(self) -> int:
        _note_tables(self)
        return str.__hash__(self)

    def __len__(self) -> int:
        return _answered(self, str.__len__)

    def __int__(self) -> int:
        return _answered(self, int)

    def __float__(self) -> float:
        return _answered(self, float)

    def __iter__(self) -> Iterator[str]:
        return iter([self[n] for n in range(str.__len__(self))])

    def __radd__(self, other: str) -> str:
        return _made(self, lambda text: other + text)


def asked_text(text: str, number: Number, argument: Argument, asks: list[Ask], of: Callable[[Number], str]) -> str:
    """The text of a number, which notes what is asked of it; plain where a package asks for it."""
    frame = sys._getframe(2)
    if is_library(frame.f_code.co_filename):
        return text
    _note_named(frame, text, number, argument, asks, of)
    return _noting(text, argument, asks, of)


def _noting(text: str, argument: Argument, asks: list[Ask], of: Callable[[Number], str]) -> str:
    found = AskedText(text)
    found.argument, found.asks, found.of = argument, asks, of
    return found


def _plain(text: Any) -> Any:
    return str.__str__(text) if type(text) is AskedText else text


def _made(asked: AskedText, how: Callable[[str], str]) -> str:
    of = asked.of
    return _noting(how(_plain(asked)), asked.argument, asked.asks, lambda value: how(of(value)))


def _answered(asked: AskedText, how: Callable[[str], Answer]) -> Answer:
    """What a text answers, with a note of where it would answer otherwise."""
    of, was, frame = asked.of, how(_plain(asked)), sys._getframe(2)
    if not is_library(frame.f_code.co_filename):
        _note(asked, frame, lambda value: how(of(value)) != was)
    return was


def _note(asked: AskedText, frame: FrameType, decides: Callable[[Number], bool]) -> None:
    asked.asks.append(Ask(asked.argument, (frame.f_code, frame.f_lineno), decides, was=False))


def _asking(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def asked(self: AskedText, *more: Any, **named: Any) -> Any:
        return _answered(self, lambda text: plain(text, *map(_plain, more), **named))

    return asked


def _making(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def made(self: AskedText, *more: Any, **named: Any) -> Any:
        return _made(self, lambda text: plain(text, *map(_plain, more), **named))

    return made


def _parting(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def parted(self: AskedText, *more: Any, **named: Any) -> Any:
        parts = plain(_plain(self), *more, **named)
        made = [_made(self, lambda text, n=n: plain(text, *more, **named)[n]) for n in range(len(parts))]  # type: ignore[misc]
        return type(parts)(made)

    return parted


for _names, _how in ((_ANSWER, _asking), (_GIVE_TEXT, _making), (_GIVE_SEVERAL, _parting)):
    for _name in _names:
        setattr(AskedText, _name, _how(_name))


def _note_tables(asked: AskedText) -> None:
    """Note what is found of it in the tables that a line may look it up in."""
    frame, of, own = sys._getframe(2), asked.of, _plain(asked)
    if is_library(frame.f_code.co_filename):
        return
    tables = [each for each in _held(frame) if type(each) in (dict, set, frozenset)]
    found = [each if type(each) is dict else dict.fromkeys(each, True) for each in tables]
    _note(asked, frame, lambda value: any(t.get(of(value)) is not t.get(own) for t in found))


def _note_named(
    frame: FrameType, own: str, number: Number, argument: Argument, asks: list[Ask], of: Callable[[Number], str]
) -> None:
    """Note where other texts that the line may mean have it within them, or are within it."""
    texts = dict.fromkeys(t for each in _frames(frame) for t in _texts(_held(each)) if _NUMBER.search(t))
    for text in [*texts][:_MOST_TEXTS]:

        def decides(value: Number, text: str = text) -> bool:
            new = of(value)
            return (new in text, text in new) != (own in text, text in own)

        beyond = int(_NUMBER.findall(text)[0]) - number
        asks.append(Ask(argument, (frame.f_code, frame.f_lineno), decides, was=False, beyond=beyond, of_text=True))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """A function that runs, and those of the user's that have called it."""
    for _ in range(_FRAMES):
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _held(frame: FrameType) -> Iterator[Any]:
    """What a line may mean: what is written out there, and in functions that it names, and what its names have."""
    code, names = frame.f_code, {**frame.f_globals, **frame.f_locals}
    read = (*code.co_names, *code.co_varnames, *code.co_freevars)
    values = [names[n] for n in read if n in names]
    yield from code.co_consts
    yield from values
    for each in values:
        if isinstance(each, FunctionType):
            yield from each.__code__.co_consts
            yield from (each.__globals__.get(n) for n in each.__code__.co_names)
        elif hasattr(each, "__dict__") and not isinstance(each, type):
            own = vars(each)
            yield from (own[n] for n in read if n in own)
            yield dict.fromkeys([*own, *own.get("_modules", ()), *own.get("_parameters", ())])


def _texts(held: Iterator[Any]) -> Iterator[str]:
    for each in held:
        if type(each) is str:
            yield each
        elif type(each) in (dict, set, frozenset, tuple, list) and len(each) <= _LONGEST:
            yield from (part for part in each if type(part) is str and len(part) <= _LONGEST)
