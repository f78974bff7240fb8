"""Tests that fail captures on purpose: on a GPU not in the process of other tests."""

from __future__ import annotations

import os

import pytest
import torch

APART = pytest.mark.skipif(
    torch.cuda.is_available() and "DOCTOR_ON_GPU" not in os.environ,
    reason="on a GPU in a process of its own, as tests/gpu runs most of these files",
)
