"""Which bytes of ATen's elementwise kernels' parameters nobody reads: functions without members, and gaps.

(Layouts: torch 2.11 to 2.13, ATen/native/cuda: CUDALoops.cuh, Loops.cuh, MemoryAccess.cuh, BinaryInternal.h.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from paramgraph_kit.capture.calculators import SIZES, STRIDES, unused_of_calculator
from paramgraph_kit.capture.multi_tensor import KERNEL
from paramgraph_kit.driver.api import RawNode
from paramgraph_kit.driver.kernel_names import ATEN

_LOAD, _STORE = re.compile(r"LoadWithCastILi(\d)E"), re.compile(r"StoreWithCastILi(\d)E")
# A function of two, of which one is a number that is held: a product, a quotient, or one that is written on the spot
# (Z). Such functions have no members where nothing but them and the number, of at least four bytes, has room.
_HELD = re.compile(
    r"[AB]UnaryFunctorI(?:[fdil]|N3c104HalfE|N3c108BFloat16E|N3c107complexIfEE)(?:[a-z]|S\d*_|N3c10\w+?E)*"
    r"(?:NS0_15binary_internal10(?:Mul|Div)FunctorI|Z)"
)
_BARE = re.compile(
    r"gpu_kernel_impl(?:_nocast)?I(?:Z|NS0_13BinaryFunctorI(?:[a-z]|S\d*_|N3c10\w+?E)+(?:Z|NS0_15binary_))"
)
# Functions of two that hold one number of four bytes: the second one's factor, or which comparison it is.
_ONE_NUMBER = re.compile(
    r"gpu_kernel_impl(?:_nocast)?INS0_(?:15CUDAFunctor_addI(?:[fi]|N3c104HalfE|N3c108BFloat16E)EE|"
    r"13BinaryFunctorI(?:[a-z]|S\d*_|N3c10\w+?E)+NS0_[^Z]*?(?:14CompareFunctor|16CompareEqFunctor)I)"
)
# Functions that hold one number of four bytes, or three, for float and half types (ATen/native/cuda).
_NUMBERS = re.compile(
    r"(?:(addcmul_cuda_kernel|addcdiv_cuda_kernel|masked_fill_kernel|leaky_relu_kernel|softshrink_kernel|lerp_scalar_kernel|"
    r"hardshrink_kernel|shrink_backward_kernel|smooth_l1_kernel|huber_kernel|pow_tensor_scalar_kernel|masked_scale_kernel)|"
    r"elu_kernel|nan_to_num_kernel|launch_clamp_scalar).*EUl(?:f|N(?:3c10|S\w*_)(?:4Half|8BFloat16)E)"
)
_OF_THEIR_TYPE = re.compile(r"(?:smooth_l1|huber)_kernel.*EUlN")  # of these, numbers of half types have two bytes
_EIGHT_BYTES = re.compile(r"[AB]UnaryFunctorI(?:[dl]|N3c107complexIfEE)")
_NUMBER_LAST = re.compile(r"[AB]UnaryFunctor")  # a function, then the number that it is called with
_UPPER_HALVES = range(0x5500, 0x5700), range(0x7E00, 0x8000)  # of a process's heap; of its stacks and libraries
# A closure over a calculator of offsets, the tensors' addresses, and the function; types follow, if any, and an address
# of the host's. By its size, where the function and the types have eight bytes: the number of tensors.
_STRIDED = re.compile(r"native18elementwise_kernelI.*gpu_kernel_impl")
_BEHIND_TWO = SIZES + 2 * STRIDES + 2 * 8
_TENSORS = {-(-(SIZES + STRIDES * n) // 8) * 8 + 8 * n + 16: n for n in range(1, 6)}
_OF_TWO = 3  # tensors: what it gives, and two that it takes
_FUNCTION = 1  # its place among the parameters: (count, function, addresses, ...)


def unused_of_elementwise(node: RawNode) -> set[int]:
    """Offsets of the bytes of ``node.parameters``."""
    found: set[int] = set()
    layout = node.layout
    if "elementwise_kernel" in node.name:  # a closure that captures nothing: one that does ends with an address
        found.update(start for start, size in _places_of_closures(node) if size == 1)
    unrolled = "unrolled_elementwise_kernel" in node.name and len(layout) == 7
    if unrolled:
        # Calculators of offsets, then what loads and stores: of one byte where they hold nothing.
        found.update(start for start, size in layout[3:] if size == 1)
        for kind, (start, size) in ((_LOAD, layout[5]), (_STORE, layout[6])):
            if (tensors := kind.search(node.name)) is not None:
                found |= gap_of_types(int(tensors[1]), start, size)
    if (unrolled or "vectorized_elementwise_kernel" in node.name) and _HELD.search(node.name):
        start, size = layout[_FUNCTION]
        if size in (8, 16):  # one byte, aligned to the number behind it
            found.update(range(start, start + size // 2))
    if "elementwise_kernel" in node.name and (held := _NUMBERS.search(node.name)) is not None:
        # Numbers, a gap, and an address of the host's; a closure around them ends with another one.
        start, size = layout[_FUNCTION]
        numbers = 8 if held[1] else 16
        strided = _TENSORS.get(size - numbers) is not None and _STRIDED.search(node.name) is not None
        if strided or size == numbers + 8:
            end = start + size - (16 if strided else 8)
            found.update(range(end - (6 if _OF_THEIR_TYPE.search(node.name) else 4), end))
    if _STRIDED.search(node.name) and len(layout) == 2:
        found |= _unused_of_strided(node, *layout[_FUNCTION])
    return found


def _unused_of_strided(node: RawNode, start: int, size: int) -> set[int]:
    """What is behind the calculator's dimensions, and the gaps of the function, in a closure over strided tensors."""
    name = node.name
    if _HELD.search(name) is not None:
        at, gap = start + _BEHIND_TWO, 8 if _EIGHT_BYTES.search(name) else 4
        return set(range(at, at + gap)) if at + 2 * gap + 8 <= start + size else set()
    if (tensors := _TENSORS.get(size)) is None:
        return set()
    # A function without members has one byte: one with any would have an address of the host's behind them.
    at, types = start + size - 16, 0 if "_nocast" in name else tensors
    if _BARE.search(name) is not None:
        gaps = {at, *range(at + 1 + types, at + 8)}
    elif _ONE_NUMBER.search(name) is not None and tensors == _OF_TWO:
        gaps = set(range(at + 4 + types, at + 8))
    else:
        return set()
    return (unused_of_calculator(node.parameters, start, tensors) or set()) | gaps


def gap_of_types(tensors: int, start: int, size: int) -> set[int]:
    """What lies between types of one byte, one for each tensor, and the bytes of their elements, in ints."""
    if tensors == 0:  # room for one that is not there
        return set(range(start, start + size)) if size == 8 else set()
    ints = -(-tensors // 4) * 4
    return set(range(start + tensors, start + ints)) if size == ints + 4 * tensors else set()


def closes_closure(node: RawNode, offset: int) -> bool:
    """Whether a word is the last one of a closure: there nvcc keeps where the host has a copy of it, for host calls.

    ATen's closures are for host and device. What they capture, if anything, comes first, and a pointer makes them end
    with a whole word, which no number shares [H100: of clamp, dropout, GradScaler's kernels; pow's holds no other].
    """
    places = _places_of_closures(node)
    return any(not (start | size) & 7 and offset == start + size - 8 for start, size in places)


def _places_of_closures(node: RawNode) -> Sequence[tuple[int, int]]:
    if not node.name.startswith(ATEN) or "EUl" not in node.name or _NUMBER_LAST.search(node.name):
        return ()
    if KERNEL in node.name or "distribution" in node.name:
        return node.layout[2:]  # behind lists of tensors and a functor, or a count and the generator's state
    return node.layout[_FUNCTION : _FUNCTION + 1] if "elementwise_kernel" in node.name else ()


def differ_in_padding(node: RawNode, offset: int, first: int, second: int) -> bool:
    """Whether two words differ in a gap: behind a closure's last number of four bytes, before the host's address.

    It holds the upper half of some address of the host, of its heap's or its stack's: 4.6e-41 as a float. Anything else
    there may be a second number.
    """
    halves = first >> 32, second >> 32
    in_gap = first & 0xFFFFFFFF == second & 0xFFFFFFFF and closes_closure(node, offset + 8)
    return in_gap and all(map(is_host_half, halves))


def is_host_half(half: int) -> bool:
    """Whether this may be the upper half of an address of the host's heap, stacks or libraries."""
    return any(half in part for part in _UPPER_HALVES)
