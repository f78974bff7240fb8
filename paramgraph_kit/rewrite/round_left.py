"""A round of a loop that is a function, and no graph yet: its lines, and what is left to do in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from paramgraph_kit.driver.files import REWRITTEN
from paramgraph_kit.rewrite.memory_owners import MEMORY, OTHER_MEMORY
from paramgraph_kit.rewrite.proving.proof import STEPS
from paramgraph_kit.rewrite.result import Rewriting
from paramgraph_kit.rewrite.source import modes
from paramgraph_kit.rewrite.source.edits import Source

MOVED = (
    "`{name}` gets another value around the round, and its graph would keep the one that it has read: give it to the "
    "round, as a tensor that is filled before each launch (`{name}_in.fill_({name})`) where it is a number"
)
OTHERS = "the loop gives other numbers with it launched ({wrong}): look for what it keeps from round to round"
NUMBER = (
    "torch takes `{option}=` as a number of the host's only, and `{name}` is another one in each round: write the "
    "formula out with it as a tensor; or give the round the number itself and, where there are few, capture a graph "
    "for each"
)
_GIVEN = re.compile(r"\b(\w+)=[^=,]*?\b(\w+_in)\b")
_AT = re.compile(rf"\S*{re.escape(REWRITTEN)}:\d+ ")


def moved_text(name: str) -> str:
    """What is said of something that is given another value around a round that reads it."""
    if name == MEMORY:
        return f"{OTHER_MEMORY.replace('behind the launch', 'around the round')}: write it in place, `p.copy_(...)`"
    told = modes.AROUND if name in modes.NAMES else MOVED
    return told.format(name=f"self{name}" if name.startswith(".") else name)


def left_of(
    function: str, name: str, texts: dict[str, list[str]], line: int, fix: Rewriting | None, why: str
) -> Rewriting:
    """What is shown of it.

    Args:
        function: that whose loop it is of, which gives with the lines ``texts`` what it gave.
        name: what the round is called.
        fix: what was rewritten of the round, and what is left.
        why: what else is against a graph.
    """
    once = "this is what can be captured, once what stands below is done in it"
    told = [
        f"one round of the loop of line {line} is `{name}` here: {once}",
        f"`{function}`, which calls it, gives the original's results and state in {STEPS} steps: not from graphs yet",
    ]
    of_it = list(fix.left) if fix is not None else []
    given = [pair for each in of_it if each.frame for pair in _GIVEN.findall(each.frame.text)]
    instead = [f"in `{name}`: {NUMBER.format(option=option, name=number)}" for option, number in given]
    if fix is not None and (not given or len(of_it) != len(given)):  # else that is all there is to say
        instead += [f"in `{name}`: {_AT.sub('', text)}" for text in fix.instead]
    instead += [f"in `{name}`: {why}"] if why else []
    instead.append(f"then `pgk.diagnose({name}, ..., fix=True)` with what the loop gives it")
    return Rewriting(function, diff=diff_of(texts), verified=told, instead=instead, left=of_it, texts=texts)


def diff_of(texts: Mapping[str, list[str]]) -> str:
    """What lines of files differ in from those that are there."""
    sources = ((Source.of(file), lines) for file, lines in texts.items())
    diffs = (source.diff_to(lines) for source, lines in sources if source is not None)
    return "\n".join(each for each in diffs if each)
