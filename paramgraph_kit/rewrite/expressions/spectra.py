"""``torch.istft`` asks on the host whether its windows cover all of the signal: the same sums without the question."""

from __future__ import annotations

import ast

from paramgraph_kit.rewrite.source.edits import Edit, locals_of, names_in, path_of
from paramgraph_kit.rewrite.source.place import Place, fresh

_GIVEN = "n_fft hop_length win_length window center normalized onesided length return_complex".split()  # noqa: SIM905


def add_the_frames(place: Place) -> list[Edit]:
    """``torch.istft(s, n, hop, window=w, length=m)`` becomes windowed frames that ``fold`` adds up."""
    calls = list(place.calls("istft"))
    call = calls[0] if len(calls) == 1 else None
    if call is None or not isinstance(call.func, ast.Attribute) or isinstance(place.statement, ast.While):
        return []
    of_torch = path_of(call.func) == "torch.istft"
    positional = call.args if of_torch else [call.func.value, *call.args]
    if not positional or any(isinstance(each, ast.Starred) for each in positional):
        return []
    spectrum = positional[0]
    given = dict(zip(_GIVEN, positional[1:], strict=False)) | {each.arg: each.value for each in call.keywords}
    if not {"n_fft", "window"} <= given.keys() or not given.keys() <= {"n_fft", "hop_length", "window", "length"}:
        return []  # a window of another length, one side only, or nothing cut off at the ends
    n, window = place.source.bracketed(given["n_fft"]), place.source.bracketed(given["window"])
    hop = place.text(given["hop_length"]) if "hop_length" in given else f"{n} // 4"
    function = place.source.function_of(place.statement)
    taken = names_in(place.source.tree) | (locals_of(function) if function is not None else set())
    frames, added, kept, windows = (fresh(name, taken) for name in ("frames", "added", "kept", "windows"))
    length = place.source.bracketed(given["length"]) if "length" in given else ""
    end = f"{n} // 2 + {length}" if length else f"-({n} // 2)"
    fold = "torch.nn.functional.fold"
    size = f"(1, {n} + ({hop}) * ({frames}.shape[-1] - 1))"
    lines = [
        f"{frames} = torch.fft.irfft({place.text(spectrum)}, n={n}, dim=-2) * {window}[:, None]",
        f'{added} = {{"output_size": {size}, "kernel_size": (1, {n}), "stride": (1, {hop})}}',
        f"{kept} = (..., 0, 0, slice({n} // 2, {end}))",
        f"{windows} = {fold}({window}.square()[:, None].expand(-1, {frames}.shape[-1]), **{added})[{kept}]",
    ]
    text = f"({fold}({frames}, **{added})[{kept}] / {windows})"
    outermost = place.source.parents.get(call) is place.statement
    return [
        place.source.before(place.statement, lines),
        place.source.replace(call, text[1:-1] if outermost else text),
    ]
