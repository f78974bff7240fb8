"""torch's own state, modules and tensors."""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from tests.integration.changes.base import DEVICE, drop, linear, ones, toggle
from tests.integration.state_places import Place, entry, setting


def of_number_of_threads() -> Place:
    counts = toggle(torch.get_num_threads(), 1, 2)
    return lambda: float(torch.get_num_threads()), lambda value: torch.set_num_threads(counts())


def of_default_dtype() -> Place:
    kinds = toggle(torch.float32, torch.float64)
    return lambda: float(torch.tensor(1.5).dtype.itemsize), lambda value: torch.set_default_dtype(kinds())


def of_precision_of_products() -> Place:
    kinds = toggle(torch.get_float32_matmul_precision(), "high", "highest")
    return lambda: float(len(torch.get_float32_matmul_precision())), lambda v: torch.set_float32_matmul_precision(
        kinds()
    )


def of_deterministic() -> Place:
    on = toggle(False, True)
    return lambda: 2.0 if torch.are_deterministic_algorithms_enabled() else 1.0, (
        lambda value: torch.use_deterministic_algorithms(on())
    )


def of_cudnn_setting() -> Place:
    on = toggle(torch.backends.cudnn.benchmark, not torch.backends.cudnn.benchmark)
    return lambda: 2.0 if torch.backends.cudnn.benchmark else 1.0, lambda value: setattr(
        torch.backends.cudnn, "benchmark", on()
    )


def of_anomaly_mode() -> Place:
    on = toggle(False, True)
    return lambda: 2.0 if torch.is_anomaly_enabled() else 1.0, lambda value: drop(
        torch.autograd.set_detect_anomaly(on())
    )


def of_seed() -> Place:
    return lambda: float(torch.initial_seed() % 5), lambda value: drop(torch.manual_seed(int(value)))


def of_training() -> Place:
    module = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)).to(DEVICE)
    return lambda: 2.0 if module[1].training else 1.0, lambda value: drop(module.train(not module.training))


def of_training_of_a_child() -> Place:
    module = nn.Sequential(linear(), nn.BatchNorm1d(1).to(DEVICE).requires_grad_(False))
    with torch.no_grad():
        module[1].running_mean.fill_(3.0)

    def read() -> Any:
        return module[1].eval()(module[0](ones(2, 1))) if not module[1].training else 2.0

    module[1].eval()
    return read, lambda value: drop(module[1].train(not module[1].training))


def of_forward_hook() -> Place:
    module = linear()
    handles: list[Any] = []

    def change(value: float) -> None:
        if handles:
            handles.pop().remove()
        else:
            handles.append(module.register_forward_hook(lambda m, a, y: y * value))

    return lambda: module(ones(1, 1)), change


def of_pre_hook_of_a_child() -> Place:
    module = nn.Sequential(linear())
    return lambda: module(ones(1, 1)), lambda value: drop(
        module[0].register_forward_pre_hook(lambda m, a: (a[0] * value,))
    )


def of_global_hook() -> Place:
    module = linear()
    handles: list[Any] = []

    def change(value: float) -> None:
        if handles:
            handles.pop().remove()
        else:
            handles.append(nn.modules.module.register_module_forward_hook(lambda m, a, y: y * value))

    return lambda: module(ones(1, 1)), change


def of_replaced_parameter() -> Place:
    module = linear()
    return lambda: module(ones(1, 1)), lambda value: setattr(
        module, "weight", nn.Parameter(torch.full((1, 1), value).to(DEVICE), requires_grad=False)
    )


def of_data_of_a_parameter() -> Place:
    module = linear()
    return lambda: module(ones(1, 1)), lambda value: setattr(
        module.weight, "data", torch.full((1, 1), value).to(DEVICE)
    )


def of_filled_parameter() -> Place:
    module = linear()
    return lambda: module(ones(1, 1)), lambda value: drop(module.weight.fill_(value))


def of_replaced_buffer() -> Place:
    module = linear()
    module.register_buffer("scale", ones())
    return lambda: module.scale * 2, lambda value: setattr(module, "scale", torch.full((1,), value).to(DEVICE))


def of_buffer_that_comes() -> Place:
    module = linear()
    module.register_buffer("scale", None)
    return lambda: module.scale if module.scale is not None else 1.0, lambda value: setattr(
        module, "scale", torch.full((1,), value).to(DEVICE)
    )


def of_replaced_child() -> Place:
    module = nn.Sequential(linear())
    return lambda: module(-ones(1, 1)), lambda value: module.__setitem__(0, nn.LeakyReLU(value))


def of_order_of_children() -> Place:
    module = nn.ModuleList([nn.Hardtanh(0, 0.5), nn.LeakyReLU(4.0)])

    def read() -> Any:
        x = -ones()
        for child in module:
            x = child(x) + 0.25
        return x

    def change(value: float) -> None:
        first, second = module[0], module[1]
        module[0], module[1] = second, first

    return read, change


def of_parametrization() -> Place:
    module = linear()

    class Double(nn.Module):
        def forward(self, x):
            return x * 2

    def change(value: float) -> None:
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
        else:
            parametrize.register_parametrization(module, "weight", Double())

    return lambda: module(ones(1, 1)), change


def of_forward_of_an_instance() -> Place:
    module = linear()
    return lambda: module(ones(1, 1)), lambda value: setattr(module, "forward", lambda x: x * value)


def of_forward_of_a_class() -> Place:
    class Scale(nn.Module):
        def forward(self, x):
            return x * 1.0

    module = Scale()
    return lambda: module(ones()), lambda value: setattr(Scale, "forward", lambda self, x: x * value)


def of_class_of_a_module() -> Place:
    class Scale(nn.Module):
        def forward(self, x):
            return x * 1.0

    class Twice(Scale):
        def forward(self, x):
            return x * 2.0

    module, kinds = Scale(), toggle(Scale, Twice)
    return lambda: module(ones()), lambda value: setattr(module, "__class__", kinds())


def of_setting_of_a_module() -> Place:
    module = nn.LeakyReLU(1.0)
    return lambda: module(-ones()), setting(module, "negative_slope")


def of_functional_call() -> Place:
    module, box = linear(), [torch.ones(1, 1, device=DEVICE)]
    return lambda: torch.func.functional_call(module, {"weight": box[0]}, (ones(1, 1),)), lambda value: entry(box, 0)(
        torch.full((1, 1), value).to(DEVICE)
    )


def of_attribute_of_a_parameter() -> Place:
    module = linear()
    module.weight.scale = 1.0
    return lambda: module.weight.scale, setting(module.weight, "scale")


def of_late_attribute_of_a_parameter() -> Place:
    module = linear()
    return lambda: getattr(module.weight, "late", 1.0), setting(module.weight, "late")


def of_attribute_of_a_tensor() -> Place:
    kept = [ones()]
    kept[0].scale = 1.0
    return lambda: kept[0].scale, setting(kept[0], "scale")


def of_frozen_parameter() -> Place:
    module = linear()
    return lambda: 2.0 if module.weight.requires_grad else 1.0, lambda value: drop(
        module.weight.requires_grad_(not module.weight.requires_grad)
    )


def of_gradient_that_is_there() -> Place:
    module = linear()

    def change(value: float) -> None:
        module.weight.grad = None if module.weight.grad is not None else torch.ones(1, 1, device=DEVICE)

    return lambda: 1.0 if module.weight.grad is None else 2.0, change


def of_version() -> Place:
    kept = [ones()]
    return lambda: float(kept[0]._version), lambda value: drop(kept[0].fill_(value))


def of_tensor_on_the_host() -> Place:
    kept = [torch.ones(1)]
    return lambda: kept[0].item(), lambda value: drop(kept[0].fill_(value))


def of_large_tensor_on_the_host() -> Place:
    kept = [torch.ones(3000)]
    return lambda: kept[0][2999].item(), lambda value: drop(kept[0].fill_(value))


def of_array_behind_a_tensor() -> Place:
    array = np.ones(2, dtype=np.float32)
    kept = [torch.from_numpy(array)]
    return lambda: kept[0][1].item(), lambda value: array.fill(value)


def of_optimizer_setting() -> Place:
    optimizer = torch.optim.SGD([torch.zeros(1, device=DEVICE)], lr=1.0)
    return lambda: optimizer.param_groups[0]["lr"], entry(optimizer.param_groups[0], "lr")


def of_distribution() -> Place:
    kept = [torch.distributions.Normal(torch.zeros(1, device=DEVICE), ones())]
    return lambda: kept[0].scale * 1.0, lambda value: entry(kept, 0)(
        torch.distributions.Normal(torch.zeros(1, device=DEVICE), torch.full((1,), value).to(DEVICE))
    )
