"""Branches of a captured graph as lanes: what a picture draws side by side."""

from __future__ import annotations

from collections.abc import Sequence


def lanes_of(deps: Sequence[Sequence[int]], kernels: Sequence[bool] = ()) -> list[int]:
    """A lane for each node of a graph whose nodes stand in a topological order.

    A node goes on with the longest way through the graph; what leaves it is a lane of its own until it is joined, and
    lanes that have been joined are used again. Of two ways that are equally long, the one with more ``kernels`` is
    the longer. Streams are not in a graph, but usual forks come out as they were.

    >>> lanes_of([(), (0,), (0,), (2,), (1, 3)])  # a short branch, 1, beside a longer one
    [0, 1, 0, 0, 0]
    """
    after: list[list[int]] = [[] for _ in deps]
    for node, before in enumerate(deps):
        for each in before:
            after[each].append(node)
    # A kernel counts a little more, so little that a way of n nodes stays longer than any of n - 1.
    size = [len(deps) + 1 + int(kernel) for kernel in kernels or [False] * len(deps)]
    down, up = [0] * len(deps), [0] * len(deps)  # nodes on the longest way to the node, and on from it
    for node, before in enumerate(deps):
        down[node] = size[node] + max((down[each] for each in before), default=0)
    for node in reversed(range(len(deps))):
        up[node] = size[node] + max((up[each] for each in after[node]), default=0)
    heirs = [max(following, key=lambda n: (up[n], -n), default=None) for following in after]
    parents = [
        max((each for each in before if heirs[each] == node), key=lambda n: (down[n], -n), default=None)
        for node, before in enumerate(deps)
    ]
    goes_on = {parent for parent in parents if parent is not None}
    ancestors: list[int] = []  # of each node, as the bits of one integer
    last: list[int] = []  # the newest node of each lane
    lanes: list[int] = []
    for node, before in enumerate(deps):
        mine = 0
        for each in before:
            mine |= ancestors[each] | 1 << each
        ancestors.append(mine)
        parent = parents[node]
        if parent is not None:
            lane = lanes[parent]
        else:
            ended = (n for n, end in enumerate(last) if end not in goes_on and mine >> end & 1)
            lane = next(ended, len(last))
        if lane == len(last):
            last.append(node)
        last[lane] = node
        lanes.append(lane)
    # The longest way is lane 0, also where something short was recorded before it.
    main = lanes[max(range(len(deps)), key=lambda n: (down[n] + up[n], up[n]))] if deps else 0
    return [{0: main, main: 0}.get(lane, lane) for lane in lanes]
