"""The garbage collector while the doctor tries: it leaves alone what was there, and puts that back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from paramgraph_kit.driver import collection
from paramgraph_kit.driver.collection import OF_PYTHON_S, everything, only_new


class Kept:
    pass


@pytest.fixture(autouse=True)
def _nothing_set_aside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(collection, "_others", False)
    gc.unfreeze()
    yield
    gc.unfreeze()


def circle() -> weakref.ref[Kept]:
    one = Kept()
    one.itself = one  # type: ignore[attr-defined]
    return weakref.ref(one)


def test_what_was_there_is_set_aside_and_put_back() -> None:
    # GIVEN an object, and one that only a circle holds
    kept, gone = Kept(), circle()
    with only_new():
        # WHEN only what is new is collected THEN the circle is gone, and the object is none that is looked at
        assert gone() is None
        assert gc.get_freeze_count() > OF_PYTHON_S
        assert not any(each is kept for each in gc.get_objects())
        # AND a circle that is made meanwhile goes as ever
        made = circle()
        gc.collect()
        assert made() is None
        # AND who needs all objects has them, once said
        everything()
        assert any(each is kept for each in gc.get_objects())
    assert gc.get_freeze_count() < OF_PYTHON_S


def test_what_the_block_has_left_in_circles_is_gone_after_it() -> None:
    # GIVEN a circle that is made in the block WHEN that ends THEN it is gone, for what was there is not looked at
    with only_new():
        made = circle()
    assert made() is None


def test_what_somebody_has_set_aside_stays_so() -> None:
    # GIVEN a service that has set aside what it holds WHEN only what is new is collected THEN that stays set aside
    gc.freeze()
    with only_new():
        everything()
        assert gc.get_freeze_count() > OF_PYTHON_S
    assert gc.get_freeze_count() > OF_PYTHON_S


def test_it_is_put_back_after_an_error() -> None:
    # GIVEN a trial that raises WHEN it ends THEN nothing is set aside
    with pytest.raises(ValueError, match="so"), only_new():
        raise ValueError("so")
    assert gc.get_freeze_count() < OF_PYTHON_S


def test_what_is_set_aside_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a service that has set aside what it holds, which takes time to count
    counted: list[int] = []

    def count() -> int:
        counted.append(1)
        return OF_PYTHON_S + 1

    monkeypatch.setattr(gc, "get_freeze_count", count)
    for _ in range(3):
        # WHEN several things are tried THEN only the first asks
        with only_new():
            pass
    assert len(counted) == 1
