"""The types of numbers that a graph keeps as they are at its capture: Python's, and NumPy's scalars."""

from __future__ import annotations

import numpy as np

OF_NUMPY: tuple[type, ...] = (np.bool_, *(np.dtype(code).type for code in "bhilqBHILQefd"))
NUMBERS: tuple[type, ...] = (bool, int, float, *OF_NUMPY)
AMOUNTS: tuple[type, ...] = tuple(kind for kind in NUMBERS if kind not in (bool, np.bool_))
