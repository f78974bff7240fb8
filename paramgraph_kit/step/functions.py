"""Functions of libraries that a step ran, torch's above all: whoever replaces one has another step from then on.

``torch.Tensor.backward``, ``torch.autograd.backward`` that it calls, what an optimizer calls of its own module: asked
by the versions of the dictionaries that they are in.
"""

from __future__ import annotations

from typing import Any

from paramgraph_kit.backend import functions
from paramgraph_kit.backend.functions import Row, Rows
from paramgraph_kit.driver.dict_versions import TOLD, Versions
from paramgraph_kit.driver.files import is_generated
from paramgraph_kit.driver.native.places import ABSENT, Place, Places
from paramgraph_kit.driver.torch_names import torch_name
from paramgraph_kit.step.names import Names


class Functions:
    """Those, as they were when this was made; it holds them.

    >>> import torch, torch.nn.functional as F
    >>> names = Names()
    >>> names.add(F.softmax.__code__, vars(F))
    >>> known = Functions(names)
    >>> known.same()
    True
    >>> torch.Tensor.softmax = lambda x, dim: x
    >>> known.same(), known.difference()
    (False, 'Tensor.softmax')
    >>> del torch.Tensor.softmax
    >>> known.same()
    True
    """

    def __init__(self, names: Names) -> None:
        ran = [(code, space) for code, space in names.ran if not is_generated(code.co_filename)]
        self._rows: dict[int, Row] = {id(row.holder): row for row in Rows(ran, names.known)}
        # Where versions of dictionaries are not told, each place is asked.
        self._asked: set[int] = set() if TOLD else set(self._rows)
        self._all = Places([place for row in self._rows.values() for place in _places(row)])
        self._arrange()

    def same(self) -> bool:
        """Whether nobody has replaced any."""
        if self._versions() and self._often.same():
            return True
        if not self._all.same():
            return False
        # Written, and not where it matters: who does so may do it at each call.
        self._asked |= {key for key, number in self._numbers.items() if self._number(key) != number}
        self._arrange()
        return True

    @property
    def checks(self) -> tuple[Any, Any]:
        """For ``unchanged`` of the module in C++: each None until that is built."""
        return self._versions.check, self._often.check

    def difference(self) -> str | None:
        """The first that is another one by now."""
        for row in self._rows.values():
            for name, value in row.found.items():
                if row.holder.get(name, functions.ABSENT) is not value:
                    return f"{row.name}.{name}"
        return None

    def _arrange(self) -> None:
        versioned = {key: row.holder for key, row in self._rows.items() if key not in self._asked}
        self._often = Places([place for key in self._asked for place in _places(self._rows[key])])
        self._numbers = {key: self._number(key) for key in versioned}
        self._versions = Versions(list(versioned.values()))

    def _number(self, key: int) -> int:
        number: int = torch_name("dict_version")(self._rows[key].holder)
        return number


def _places(row: Row) -> list[Place]:
    values = {name: ABSENT if value is functions.ABSENT else value for name, value in row.found.items()}
    return [Place("global", row.holder, (value,), name) for name, value in values.items()]
