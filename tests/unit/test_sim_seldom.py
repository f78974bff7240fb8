"""Seldom ways of calling what is common, each as an H200 took it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paramgraph_kit.driver.select import device, twin
from paramgraph_kit.driver.sim.libraries import forget

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the simulator exists only without a GPU")

Tensor = torch.Tensor


@pytest.fixture
def sim() -> torch.device:
    """The simulated device."""
    return device()


@pytest.fixture
def cuda() -> Any:
    """What stands for torch.cuda."""
    return twin()


def _captured(cuda: Any, call: Any) -> Any:
    graph = cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty graph
        with cuda.graph(graph):
            found = call()
    graph.replay()
    return found


@pytest.mark.parametrize("captured", [False, True])
def test_a_tensor_that_is_twice_in_a_list_is_moved_once(sim: torch.device, cuda: Any, captured: bool) -> None:
    # GIVEN a list with one tensor twice WHEN all are added to at once THEN each is read before any is written
    x, y = torch.ones(2, device=sim), torch.ones(2, device=sim)

    def step() -> None:
        torch._foreach_add_([x, y, x], 1)

    _captured(cuda, step) if captured else step()
    assert x.tolist() == y.tolist() == [2.0, 2.0]


def test_bags_begin_at_the_first_row(sim: torch.device) -> None:
    # GIVEN offsets of which the first is not 0 WHEN bags are summed THEN the first begins at the first row all the same
    weight, rows = torch.arange(8.0, device=sim).view(4, 2), torch.tensor([0, 3, 3], device=sim)
    found = F.embedding_bag(rows, weight, torch.tensor([1, 2], device=sim))
    assert found.tolist() == [[3.0, 4.0], [6.0, 7.0]]


def test_a_jagged_result_has_as_many_rows_as_are_told(sim: torch.device, cuda: Any) -> None:
    # GIVEN offsets on the device WHEN padded rows are packed in a capture THEN nobody looks at offsets
    dense, offsets = torch.arange(12.0, device=sim).view(2, 3, 2), torch.tensor([0, 2, 5], device=sim)
    pack: Any = torch.ops.aten._padded_dense_to_jagged_forward
    assert _captured(cuda, lambda: pack(dense, [offsets], 5)).tolist() == pack(dense, [offsets], 5).tolist()


def test_squares_of_a_sparse_tensor_have_its_places(sim: torch.device, cuda: Any) -> None:
    # GIVEN a sparse tensor in order WHEN it is multiplied with itself in a capture THEN its places are known
    c = torch.tensor([[0.0, 3.0], [4.0, 0.0]]).to_sparse().to(sim).coalesce()
    assert _captured(cuda, lambda: c * c).to_dense().tolist() == [[0.0, 9.0], [16.0, 0.0]]


def test_whole_numbers_stay_below_what_halves_hold(sim: torch.device) -> None:
    # GIVEN a bound that halves round up WHEN whole numbers are drawn THEN they are of the next lower bound that is held
    torch.manual_seed(0)
    wide = torch.randint(0, 4996, (64,), device=sim)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what halves hold
        found = torch.randint(0, 5000, (64,), device=sim, dtype=torch.half)
    assert torch.equal(found, wide.half())


def test_a_generator_tells_the_device_it_was_given(sim: torch.device) -> None:
    # GIVEN a generator that is made with and without a number of its device WHEN it is asked THEN it tells that
    assert torch.Generator(device="sim").device.index is None
    assert torch.Generator(device="sim:0").device.index == 0
    assert torch.Generator(device=None).device.type == torch.Generator().device.type == "cpu"
    with pytest.raises(TypeError, match=r"'device' must be torch.device, not float"):
        torch.Generator(device=0.0)  # type: ignore[arg-type]


def test_a_layer_that_is_made_in_a_capture_asks_for_cudnn(sim: torch.device, cuda: Any) -> None:
    # GIVEN a thread without cuDNN's handle WHEN a recurrent layer is made there in a capture THEN that is spoiled
    forget()
    with pytest.raises(torch.AcceleratorError, match="previous error during capture"):
        _captured(cuda, lambda: nn.GRU(2, 2, device=sim))
    cuda.recover()
    # and with a handle it is not
    nn.GRU(2, 2, device=sim)
    assert _captured(cuda, lambda: nn.GRU(2, 2, device=sim)).weight_hh_l0.shape == (6, 2)


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_states_of_another_type_are_refused(sim: torch.device, layer: Any) -> None:
    # GIVEN a recurrent layer in double WHEN it is given a state in float THEN cuDNN refuses it by both types
    made, state = layer(2, 2).to(sim).double(), torch.zeros(1, 2, 2, device=sim)
    given = (state, state) if layer is nn.LSTM else state
    with pytest.raises(RuntimeError, match="not the same dtype, found input tensor with Double and hidden tensor with"):
        made(torch.ones(3, 2, 2, device=sim).double(), given)


@pytest.mark.parametrize("layer", [nn.GRU, nn.LSTM, nn.RNN])
def test_going_backward_through_a_layer_in_evaluation_is_refused_as_by_cudnn(sim: torch.device, layer: Any) -> None:
    # GIVEN a recurrent layer in evaluation, whose input is to have a gradient WHEN it goes backward THEN cuDNN refuses
    module, x = layer(2, 2).to(sim).eval(), torch.ones(3, 1, 2, device=sim, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3]))
    for result in (module(x)[0], module(packed)[0].data):
        with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
            result.sum().backward()
    # WHEN it trains, or cuDNN is off THEN it does not
    with torch.backends.cudnn.flags(enabled=False):
        module(x)[0].sum().backward()
    module.train()(packed)[0].data.sum().backward()
    assert x.grad is not None


def test_logits_of_halves_are_clamped_in_float32(sim: torch.device) -> None:
    # GIVEN halves beyond 1 WHEN their logits are taken with a small distance THEN that is not rounded away
    found = torch.logit(torch.tensor([2.0, 0.5], device=sim).bfloat16(), 1e-3).tolist()
    assert found == [6.90625, 0.0]


def test_registering_no_generator_is_refused_as_by_pybind(cuda: Any) -> None:
    # GIVEN a graph WHEN a generator is registered that is not given THEN pybind's words say so
    with pytest.raises(TypeError, match=r"register_generator_state\(\): incompatible function arguments"):
        cuda.CUDAGraph().register_generator_state()


def test_the_lazy_initialisation_has_its_name(cuda: Any) -> None:
    # GIVEN a library that initialises the device by a private name WHEN it does so THEN there is such a one
    assert cuda._lazy_init() is None


class TestIndices:
    """``x[index] = value``, in which order things are looked at."""

    @pytest.fixture
    def x(self, sim: torch.device) -> Tensor:
        """Three rows."""
        return torch.zeros(3, 3, device=sim)

    def test_a_mask_of_the_host_is_found_while_capturing(self, x: Tensor, cuda: Any) -> None:
        # GIVEN a mask of the host WHEN that is set to what lies on the device, in a capture THEN that is captured
        mask, value = torch.tensor([True, False, True]), torch.tensor(4.0, device=x.device)

        def put(value: Any) -> Tensor:
            x[mask] = value
            return x

        assert _captured(cuda, lambda: put(value)).sum().item() == 24.0
        # and a number of the host is copied, which no capture can
        with pytest.raises(RuntimeError, match="Cannot copy between CPU and CUDA tensors"):
            _captured(cuda, lambda: put(5.0))

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
    def test_a_number_of_the_device_is_put_by_a_mask(self, x: Tensor, dtype: torch.dtype) -> None:
        # GIVEN a mask on the device WHEN it sets a number of there THEN that is put, and of one type
        mask = torch.tensor([1, 0, 1], device=x.device).to(dtype)
        x[mask] = torch.tensor(4.0, device=x.device)
        assert x.sum().item() == 24.0
        with pytest.raises(RuntimeError, match="Index put requires the source and destination dtypes match"):
            x[mask] = torch.tensor(4, device=x.device)
        # but a number of the host is filled in, for which bytes are no mask
        if dtype is torch.uint8:
            with pytest.raises(RuntimeError, match="masked_fill only supports boolean masks, but got dtype Byte"):
                x[mask] = 5.0
        else:
            x[mask] = 5.0
            assert x.sum().item() == 30.0

    def test_values_that_do_not_fit_are_told_before_devices(self, x: Tensor, cuda: Any) -> None:
        # GIVEN values of the host that do not fit WHEN they are put THEN their shape is what is told
        places = torch.tensor([0, 2], device=x.device)

        def put() -> None:
            x[places, places] = torch.ones(3)

        with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
            put()
        with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
            _captured(cuda, put)

    def test_a_number_is_copied_before_places_are_looked_at(self, x: Tensor, cuda: Any) -> None:
        # GIVEN places that are none WHEN a number is put there THEN that is told, in a capture its copy
        wrong = torch.tensor([0.0], device=x.device)

        def put() -> None:
            x[wrong] = 4.0

        with pytest.raises(IndexError, match="tensors used as indices must be long"):
            put()
        with pytest.raises(RuntimeError, match="Cannot copy between CPU and CUDA tensors"):
            _captured(cuda, put)
