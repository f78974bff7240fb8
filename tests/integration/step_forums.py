"""Steps for ``test_step_sim_forums``: models and habits, and the table of all."""

# People write steps without types.
# mypy: ignore-errors
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.integration import step_objectives, step_optimizers
from tests.integration.step_parts import Data, Program, basic, batch, device, mlp
from tests.integration.step_recipes import adamw


def sgd(parameters: Any, **how: Any) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.05, **how)


def sequence(kind: Callable[..., nn.Module], dropout: float = 0.0) -> Program:
    torch.manual_seed(0)

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.rnn, self.out = (
                nn.Embedding(11, 8),
                kind(8, 6, 2, batch_first=True, dropout=dropout),
                nn.Linear(6, 11),
            )

        def forward(self, x):
            return self.out(self.rnn(self.words(x))[0])

    model = Tagger().to(device())
    optimizer = adamw(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).transpose(1, 2), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, words)


def words(number: int) -> Data:
    generator = torch.Generator().manual_seed(number)
    x = torch.randint(11, (3, 6), generator=generator).to(device())
    return x, x.roll(-1, 1)


def truncated() -> Program:
    """Hidden state carried from batch to batch, handed in and out."""
    torch.manual_seed(0)
    rnn, out = nn.LSTM(8, 6, batch_first=True).to(device()), nn.Linear(6, 4).to(device())
    model = nn.ModuleList([rnn, out])
    optimizer = sgd(model.parameters())
    hidden = [torch.zeros(1, 5, 6, device=device()), torch.zeros(1, 5, 6, device=device())]

    def inner(x, y, hidden):
        optimizer.zero_grad()
        state = tuple(h.detach() for h in hidden)
        seen, state = rnn(x.unsqueeze(1), state)
        loss = F.mse_loss(out(seen[:, -1]), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), [h.detach() for h in state]

    def batches(number: int) -> Data:
        return (*batch(number), [h + 0.1 * number for h in hidden])

    return Program(inner, (model, optimizer), model, batches)


def stochastic_depth() -> Program:
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            for layer in self.layers:
                y = layer(x).relu()
                if self.training:
                    keep = torch.empty(x.shape[0], 1, device=x.device).bernoulli_(0.8)
                    y = y * keep / 0.8
                x = x + y
            return self.head(x)

    model = Residual().to(device())
    optimizer = adamw(model.parameters())
    return Program(basic(model, optimizer), (model, optimizer), model, batch)


def layer_drop() -> Program:
    program = stochastic_depth()
    layers, optimizer = program.model.layers, program.state[1]
    head = program.model.head

    def run(x):
        for layer in layers:
            if torch.rand(1).item() > 0.2:
                x = x + layer(x)
        return head(x)

    return Program(basic(run, optimizer), program.state, program.model, batch)


def norms(kind: str) -> Program:
    torch.manual_seed(0)
    how = nn.utils.parametrizations
    wrap = {"weight": how.weight_norm, "spectral": how.spectral_norm, "old weight": nn.utils.weight_norm,
            "old spectral": nn.utils.spectral_norm, "orthogonal": how.orthogonal}[kind]  # fmt: skip
    model = nn.Sequential(wrap(nn.Linear(8, 8)), nn.ReLU(), wrap(nn.Linear(8, 4))).to(device())
    optimizer = adamw(model.parameters())
    return Program(basic(model, optimizer), (model, optimizer), model, batch)


def lora() -> Program:
    torch.manual_seed(0)

    class LoRA(nn.Module):
        def __init__(self, inner: nn.Linear) -> None:
            super().__init__()
            self.inner = inner.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(2, inner.in_features) * 0.1)
            self.b = nn.Parameter(torch.zeros(inner.out_features, 2))
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            return self.inner(x) + self.drop(x) @ self.a.T @ self.b.T * 2

    model = nn.Sequential(LoRA(nn.Linear(8, 16)), nn.GELU(), LoRA(nn.Linear(16, 4))).to(device())
    optimizer = adamw([p for p in model.parameters() if p.requires_grad])
    return Program(basic(model, optimizer), (model, optimizer), model, batch)


def embedding_bag() -> Program:
    torch.manual_seed(0)
    model = nn.EmbeddingBag(11, 4, mode="mean").to(device())
    optimizer = adamw(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (model, optimizer), model, words)


def attention() -> Program:
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True, norm_first=True), 2,
                                  enable_nested_tensor=False).to(device())  # fmt: skip
    head = nn.Linear(8, 4).to(device())
    both = nn.ModuleList([model, head])
    optimizer = adamw(both.parameters(), fused=True)

    def step(x, y):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0], device=x.device)
        optimizer.zero_grad()
        loss = F.mse_loss(head(model(x.unsqueeze(0), mask=mask, is_causal=True)[0]), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Program(step, (both, optimizer), both, batch)


def images() -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
                          nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(64, 4)).to(device())  # fmt: skip
    optimizer = sgd(model.parameters(), momentum=0.9, weight_decay=5e-4)

    def step(x, y):
        if x.shape[0]:
            x = x.to(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batches(number: int) -> Data:
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(4, 3, 8, 8, generator=generator).to(device())
        return x, torch.randint(4, (4,), generator=generator).to(device())

    return Program(step, (model, optimizer), model, batches)


def in_a_class() -> Program:
    class Learner:
        def __init__(self) -> None:
            self.net = mlp(0.1)
            self.opt = adamw(self.net.parameters())
            self.metrics = {"loss": torch.zeros((), device=device()), "n": torch.zeros((), device=device())}

        def training_step(self, batch):
            x, y = batch["x"], batch["y"]
            loss = F.mse_loss(self.net(x), y)
            self.metrics["loss"] += loss.detach()
            self.metrics["n"] += 1
            return loss

        def __call__(self, batch):
            self.opt.zero_grad()
            loss = self.training_step(batch)
            loss.backward()
            self.opt.step()
            return {"loss": loss.detach(), "mean": self.metrics["loss"] / self.metrics["n"]}

    made = Learner()
    return Program(made, (made,), made.net, lambda n: (dict(zip("xy", batch(n), strict=True)),), extra=[made.metrics])


def log_of_losses() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())
    losses: list[float] = []

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss.detach()

    return Program(step, (model, optimizer), model, batch)


def recent_losses() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())
    recent: deque[torch.Tensor] = deque([torch.zeros((), device=device()) for _ in range(4)], maxlen=4)
    inner = basic(model, optimizer)

    def step(x, y):
        loss = inner(x, y)
        recent.append(loss)
        return torch.stack(list(recent)).mean()

    return Program(step, (model, optimizer, recent), model, batch, extra=[])


def counting() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())
    inner = basic(model, optimizer)

    class Trainer:
        steps = 0

    def step(x, y):
        Trainer.steps += 1
        return inner(x, y)

    return Program(step, (model, optimizer), model, batch)


def flags_of_anomaly() -> Program:
    model = mlp()
    optimizer = sgd(model.parameters())
    inner = basic(model, optimizer)

    def step(x, y):
        with torch.autograd.set_detect_anomaly(True):
            return inner(x, y)

    return Program(step, (model, optimizer), model, batch)


def attached() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Program(step, (model, optimizer), model, batch)


def attached_parts() -> Program:
    model = mlp()
    optimizer = adamw(model.parameters())

    class Module:
        last = None

    holder = Module()
    holder.last = torch.zeros((), device=device())

    def step(x, y):
        out = model(x)
        parts = {"mse": F.mse_loss(out, y), "l1": F.l1_loss(out, y)}
        loss = sum(parts.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        holder.last = loss
        return {"loss": loss, **parts, "out": out}

    return Program(step, (model, optimizer, holder), model, batch)


GRAPHED: dict[str, Callable[[], Program]] = {
    "lion class": step_optimizers.lion_class,
    "adafactor by hand": step_optimizers.adafactor,
    "muon": step_optimizers.muon,
    "gradient penalty": step_objectives.gradient_penalty,
    "gan with labels": step_objectives.gan_with_labels,
    "ppo": step_objectives.ppo,
    "dqn": step_objectives.dqn,
    "dqn by state dicts": step_objectives.dqn_state_dicts,
    "diffusion": step_objectives.diffusion,
    "vae": step_objectives.vae,
    "vae of distributions": step_objectives.vae_distributions,
    "lstm": lambda: sequence(nn.LSTM),
    "gru with dropout": lambda: sequence(nn.GRU, 0.2),
    "truncated backpropagation": truncated,
    "accumulation by a flag": step_optimizers.no_sync,
    "scaler and sgd": step_optimizers.scaler_sgd,
    "mixup": step_objectives.mixed_uniform,
    "stochastic depth": stochastic_depth,
    **{f"{kind} norm": (lambda kind=kind: norms(kind)) for kind in ("weight", "spectral")},  # type: ignore[misc]
    "old weight norm": lambda: norms("old weight"),
    "old spectral norm": lambda: norms("old spectral"),
    "lora": lora,
    "distilled": step_objectives.distilled,
    "uncertainty weights": step_objectives.uncertain,
    "embedding bag": embedding_bag,
    "functional gradients": step_objectives.functional_gradients,
    "per sample": step_objectives.per_sample,
    "meta learning": step_objectives.meta,
    **{f"{n} outside": (lambda n=n: step_optimizers.scheduled(n, False)) for n in step_optimizers.SCHEDULERS},  # type: ignore[misc]
    **{f"{n} inside": (lambda n=n: step_optimizers.scheduled(n, True)) for n in step_optimizers.SCHEDULERS},  # type: ignore[misc]
    "plateau": step_optimizers.plateau,
    "clipped by hand": step_optimizers.clipped_by_hand,
    "skipping": step_optimizers.skipping,
    "byol": step_objectives.byol,
    "attention": attention,
    "images": images,
    "lookahead": step_optimizers.lookahead,
    "two rates": step_optimizers.two_rates,
    "rate on the device": step_optimizers.rate_schedule_on_the_device,
    "in a class": in_a_class,
    "recent losses": recent_losses,
    "attached": attached,
    "sam class": step_optimizers.sam_class,
    "moco": step_objectives.moco,
    "decay by data": step_optimizers.decayed_by_data,
    "attached parts": attached_parts,
}


# With what the refusal has to say.
REFUSED: dict[str, tuple[Callable[[], Program], str, str]] = {
    "averaged model": (step_optimizers.swa, "host-counter", "average.n_averaged is on the CPU"),
    "adafactor of torch": (step_optimizers.adafactor_of_torch, "host-counter", "keep it on the device"),
    "byol that goes back through its average": (
        partial(step_objectives.byol, differentiable=True),
        "legacy-stream",
        "that was computed with gradients is still held",
    ),
    "anomaly": (flags_of_anomaly, "anomaly-check", "looked for NaN on the CPU"),
    "orthogonal": (lambda: norms("orthogonal"), "linalg-host", ""),
    "shrinking": (step_optimizers.shrinking, "side-effect", "write into it in place"),
    "mixup of distributions": (step_objectives.smoothed_and_mixed, "tensor-literal", "made from Python numbers"),
    "mixup of numpy": (step_objectives.mixup_of_numpy, "host-random", "draw on the device"),
    "layer drop": (layer_drop, "host-random", "draw on the device"),
    "skipping on the host": (step_optimizers.skipping_on_the_host, "data-dependent-branch", ""),
    "rate by hand": (step_optimizers.rate_by_hand, "changing-scalar", "keep it in a tensor on the device"),
    "log of losses": (log_of_losses, "side-effect", "losses is longer"),
    "counting": (counting, "side-effect", "Trainer.steps was"),
    "lbfgs": (step_optimizers.lbfgs, "side-effect", "func_evals"),
}
