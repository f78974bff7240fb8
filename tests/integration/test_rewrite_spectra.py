"""An inverse short-time Fourier transform is added up of its frames where its check of the window would wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.rewritten import lines_of, rewritten

CALLS = {
    "a length": "torch.istft(spec * gain, 16, 4, window=window, length=x.shape[-1])",
    "no length, and a method": "(spec * gain).istft(n, window=window).abs()",
    "a window's length of its own": "torch.istft(spec * gain, n, n // 4, window.numel(), window)",
}
PROGRAM = """
n, window = 16, torch.hann_window(16, device=device)
gain = torch.randn(9, 1, device=device, requires_grad=True)
optimizer = torch.optim.SGD([gain], lr=0.1)
args = (torch.randn({batch}70, device=device),)
def f(x):
    spec = torch.stft(x, 16, 4, window=window, return_complex=True)
    y = {call}
    loss = (y - x[..., : y.shape[-1]]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss
"""


@pytest.mark.parametrize("batch", ["", "3, "], ids=["one signal", "a batch"])
@pytest.mark.parametrize("call", list(CALLS.values())[:2], ids=list(CALLS)[:2])
def test_an_inverse_transform_is_added_up_of_its_frames(call: str, batch: str, tmp_path: Path) -> None:
    # GIVEN a step that goes back from a spectrum to a signal, and on to a loss WHEN its fix is asked for
    fix = rewritten(PROGRAM.format(call=call, batch=batch), tmp_path)
    # THEN it is whole, gradients included, which ten other steps of its capture have shown
    assert fix.complete, fix
    assert any("torch.fft.irfft(spec * gain, n=" in line for line in lines_of(fix)), fix


def test_a_transform_with_other_options_is_left(tmp_path: Path) -> None:
    # GIVEN a window's length of its own WHEN its fix is asked for THEN it stays what it is, wherever it is done
    fix = rewritten(PROGRAM.format(call=CALLS["a window's length of its own"], batch=""), tmp_path)
    assert not any("irfft" in line for line in lines_of(fix)), fix
