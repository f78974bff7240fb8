"""Operations that compute each element by itself, by their names as functions and methods of torch's."""

from __future__ import annotations

ELEMENTWISE = frozenset(
    """abs add bool clamp clone contiguous cos detach div double eq erf exp float floor ge gelu gt half int isfinite
    isnan le leaky_relu log log1p logical_and logical_not logical_or long lt masked_fill maximum minimum mul nan_to_num
    ne neg pow relu round rsqrt sigmoid sign silu sin softplus sqrt square sub tan tanh to type_as where""".split()  # noqa: SIM905
)
