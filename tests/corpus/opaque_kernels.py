"""Triton kernels that read through addresses which are not among their pointer parameters; needs Triton."""

# Triton reads these functions instead of running them: their parameters have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def doubled_through_table(table, out, count, key, BLOCK: tl.constexpr):  # noqa: N803
    source = (tl.load(table) ^ key).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at, mask=at < count) * 2, mask=at < count)


@triton.jit
def doubled_by_key(hidden, out, count, key, BLOCK: tl.constexpr):  # noqa: N803
    source = (hidden ^ key).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(source + at, mask=at < count) * 2, mask=at < count)


@triton.jit
def doubled_plus_word(x, word, out, count, BLOCK: tl.constexpr):  # noqa: N803
    added = tl.load(word.to(tl.pointer_type(tl.int32))).to(tl.float32)
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < count) * 2 + added, mask=at < count)
