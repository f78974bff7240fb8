"""Models that others have changed, while they are called: traced, exported, hooked, adapted, cast; equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import paramgraph_kit as pgk

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so nothing is simulated")

WIDTH = 16
Change = Callable[[Any, int], Any]
View = Callable[[Tensor], Tensor]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, WIDTH)).to(pgk.device())


def data(seed: int) -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed)).to(pgk.device())


def hooked() -> nn.Module:
    model = mlp()
    model[0].register_forward_hook(lambda module, given, made: made * 2)
    model[3].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    first: Any = model[0]
    first.weight.register_hook(lambda gradient: gradient * 3)
    return model


def exported() -> nn.Module:
    program: Any = torch.export.export(mlp(), (data(0),))
    module: nn.Module = program.module()
    return module


class Quantized(nn.Module):
    """Trained as if it were quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """``x``: (rows, 16)."""
        return torch.fake_quantize_per_tensor_affine(self.layer(x), 0.1, 3, 0, 255)


def normed() -> nn.Module:
    model = mlp()
    parametrizations.weight_norm(model[0])
    return model


def replaced(model: Any, call: int) -> None:
    if call == 2:
        torch.manual_seed(5)
        model[3] = nn.Linear(32, WIDTH).to(pgk.device())
    if call == 4:
        model[1] = nn.ReLU()


def loaded(model: Any, call: int) -> None:
    if call == 3:
        torch.manual_seed(9)
        new = {
            name: torch.randn(value.shape, device="cpu").to(value.device) for name, value in model.state_dict().items()
        }
        model.load_state_dict(new, assign=True)


def pruned(model: Any, call: int) -> None:
    torch.manual_seed(1)
    if call == 2:
        prune.random_unstructured(model[0], "weight", 0.2)  # type: ignore[no-untyped-call]
    if call == 4:
        prune.remove(model[0], "weight")  # type: ignore[no-untyped-call]


def frozen(model: Any, call: int) -> None:
    model[0].requires_grad_(call < 2 or call > 3)


def nothing(model: Any, call: int) -> None:
    pass


@pytest.mark.parametrize("way", ["compile", "parameterize"])
@pytest.mark.parametrize(
    ("make", "change"),
    [
        pytest.param(lambda: torch.fx.symbolic_trace(mlp()), nothing, id="torch.fx"),
        pytest.param(exported, nothing, id="torch.export"),
        pytest.param(hooked, nothing, id="hooks"),
        pytest.param(lambda: Quantized().to(pgk.device()), nothing, id="fake quantize"),
        pytest.param(normed, nothing, id="weight norm"),
        pytest.param(mlp, replaced, id="layers replaced"),
        pytest.param(mlp, loaded, id="loaded by assignment"),
        pytest.param(mlp, pruned, id="pruned and made permanent"),
        pytest.param(mlp, frozen, id="frozen in turn"),
    ],
)
def test_each_call_trains_as_eager_does(make: Callable[[], nn.Module], change: Change, way: str) -> None:
    # GIVEN a model twice, one of them launched
    torch._dynamo.reset()
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make())
    eager, model = models
    run: Any = torch.compile(model, backend="paramgraph") if way == "compile" else pgk.parameterize(model)
    # WHEN called and changed in turn
    for call in range(6):
        for each in models:
            change(each, call)
        found = []
        for function, each in ((eager, eager), (run, model)):
            each.zero_grad()
            y = function(data(call))
            y.square().mean().backward()
            found.append([y.detach(), *(p.grad for p in each.parameters() if p.grad is not None)])
        # THEN no bit differs
        assert len(found[0]) == len(found[1]) > 1
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    # AND it was launched
    assert sum(row.launches for row in pgk.report(run).rows) >= 2


class Attending(nn.Module):
    """Attention of torch's, which has fused kernels of its own for inference."""

    def __init__(self, encoder: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, batch_first=True)
        self.inner = nn.TransformerEncoder(layer, 2) if encoder else nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """``x``: (2, 5, 16)."""
        if isinstance(self.inner, nn.MultiheadAttention):
            attended: Tensor = self.inner(x, x, x, key_padding_mask=padding, need_weights=False)[0]
            return attended
        encoded: Tensor = self.inner(x, src_key_padding_mask=padding)
        return encoded


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("encoder", [False, True])
def test_attention_takes_the_fused_kernels_that_it_takes_in_eager(encoder: bool, padded: bool) -> None:
    # GIVEN attention or an encoder in inference, for which torch asks whether anybody hears or traces the call
    torch.manual_seed(0)
    model = Attending(encoder).to(pgk.device()).eval()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(pgk.device()) if padded else None
    run = pgk.parameterize(model)
    # WHEN called THEN the bits are eager's
    with torch.no_grad():
        for seed in range(4):
            x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(seed)).to(pgk.device())
            assert torch.equal(run(x, padding), model(x, padding))
    # AND it is launched, but where the values of a mask decide which kernels run
    report = pgk.report(run)
    codes = {reason.code for reason in report.reasons}
    assert codes == ({"data-dependent"} if encoder and padded else set())
    assert sum(row.launches for row in report.rows) == (0 if codes else 3)


def test_a_mode_of_the_user_s_keeps_its_word_in_attention() -> None:
    # GIVEN attention under a mode that hears all calls, so that eager takes no fused kernel
    class Hearing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    torch.manual_seed(0)
    model = Attending(False).to(pgk.device()).eval()

    def heard(x: Tensor) -> Any:
        with Hearing():
            return model(x, None)

    run = pgk.parameterize(heard)
    with torch.no_grad():
        for seed in range(3):
            x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(seed)).to(pgk.device())
            # WHEN called THEN the bits are those of eager under the mode
            assert torch.equal(run(x), heard(x))


@torch.library.custom_op("pgk_changed::put", mutates_args={"cache"})
def put(cache: Tensor, x: Tensor) -> None:
    """Write the first rows of a cache."""
    cache[: len(x)] = x


@put.register_fake
def _put(cache: Tensor, x: Tensor) -> None:
    return None


@pytest.mark.parametrize("way", ["compile", "parameterize", "step"])
@pytest.mark.parametrize(
    ("given", "part"),
    [
        pytest.param(lambda c: c, lambda c: c, id="all"),
        pytest.param(lambda c: c, lambda c: c[1::2, ::2], id="strided"),
        pytest.param(lambda c: c[1:6, 3:19], lambda c: c[1:3], id="rows of columns"),
    ],
)
def test_an_operation_writes_a_part_of_what_is_a_part(given: View, part: View, way: str) -> None:
    # GIVEN a custom operation that writes a view of an argument, which lies somewhere in its own storage
    torch._dynamo.reset()

    @torch.no_grad()
    def step(x: Tensor, cache: Tensor) -> Tensor:
        torch.ops.pgk_changed.put(part(cache), x[:, : part(cache).shape[1]])
        return cache * 2

    ways: dict[str, Callable[[], Any]] = {
        "compile": lambda: torch.compile(step, backend="paramgraph"),
        "parameterize": lambda: pgk.parameterize(step),
        "step": lambda: pgk.parameterize(step, state=[]),
    }
    run = ways[way]()
    # WHEN called THEN results, and all of the storage, are what eager makes of them
    for seed in range(5):
        x = torch.randn(2, 32, generator=torch.Generator().manual_seed(seed)).to(pgk.device())
        mine, theirs = (torch.ones(8, 32).to(pgk.device()) for _ in range(2))
        assert torch.equal(run(x, given(mine)), step(x, given(theirs))), seed
        assert torch.equal(mine, theirs), seed
