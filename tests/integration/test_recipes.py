"""Each recipe of docs/recipes.md, run with the real library: its last line is the same with and without the backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
RECIPES = dict(re.findall(r"^## ([^\n]+)\n.*?```python\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
NEEDS = {
    "transformers": ("transformers", "accelerate"),
    "accelerate": ("accelerate",),
    "Lightning": ("pytorch_lightning",),
}

# On a machine without a GPU: where each library believes the device to be.
DEVICE = "import paramgraph_kit\ndevice_ = paramgraph_kit.device()\n"
PLACED = {
    "accelerate": "from accelerate import PartialState\nPartialState.default_device = property(lambda _: device_)\n",
    "Lightning": """
from pytorch_lightning.accelerators import CPUAccelerator
from pytorch_lightning.strategies import SingleDeviceStrategy
make = SingleDeviceStrategy.__init__
SingleDeviceStrategy.__init__ = lambda self, device="cpu", *args, **how: make(self, device_, *args, **how)
CPUAccelerator.setup_device = lambda self, device: None
""",
}
PLACED["transformers: Trainer"] = (
    PLACED["accelerate"]
    + """
from transformers import TrainingArguments
TrainingArguments.device = property(lambda self: (self._setup_devices, device_)[1])
"""
)
LAUNCHED = """
import paramgraph_kit
rows = paramgraph_kit.report().rows
assert sum(row.launches for row in rows) > 0, str(paramgraph_kit.report())
"""


def last_line(program: str, folder: Path) -> str:
    file = folder / "recipe.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 6
    assert set(PLACED) <= set(RECIPES)


@pytest.mark.parametrize("title", [title for title in RECIPES if title != "FSDP2"])
def test_a_recipe_runs_and_gives_the_same_as_without_the_backend(title: str, tmp_path: Path) -> None:
    # GIVEN a recipe whose library is here
    for library in next((libraries for name, libraries in NEEDS.items() if title.startswith(name)), ()):
        if find_spec(library) is None:
            pytest.skip(f"needs {library}, which is not installed")
    recipe = RECIPES[title]
    assert 'backend="paramgraph"' in recipe
    prelude = "" if torch.cuda.is_available() else DEVICE + PLACED.get(title, "")
    # WHEN run as it stands, and without graphs THEN the last lines are the same, and graphs were launched
    plain = last_line(prelude + recipe.replace('backend="paramgraph"', 'backend="eager"'), tmp_path)
    got = last_line(prelude + recipe + LAUNCHED, tmp_path)
    if torch.cuda.is_available():  # Inductor's kernels are not eager's: nearly the same
        numbers = [[float(n) for n in re.findall(r"[-\d.e]+", line)] for line in (got, plain)]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-2)
    else:
        assert got == plain
    assert len(re.findall(r"\d+", plain)) >= 3


@pytest.mark.skipif(torch.cuda.is_available() or not torch.distributed.is_available(), reason="runs it on the CPU")
def test_the_recipe_of_fsdp2_runs_on_the_cpu(tmp_path: Path) -> None:
    # GIVEN the recipe for several GPUs WHEN one process runs it on the CPU, uncompiled THEN its loss is finite
    recipe = RECIPES["FSDP2"].replace('"nccl"', f'"gloo", init_method="file://{tmp_path}/meet", rank=0, world_size=1')
    recipe = recipe.replace('torch.device("cuda", dist.get_rank())', 'torch.device("cpu")')
    losses = last_line(recipe.replace('backend="paramgraph"', 'backend="eager"'), tmp_path)
    assert len(re.findall(r"\d\.\d+", losses)) == 3
    assert "nan" not in losses


def test_the_name_that_trainer_refuses_is_refused_as_the_page_says() -> None:
    # GIVEN accelerate, where it is here WHEN given the backend's name THEN it says what the page says
    accelerate = pytest.importorskip("accelerate")
    with pytest.raises(ValueError, match="'PARAMGRAPH' is not a valid DynamoBackend"):
        accelerate.Accelerator(dynamo_backend="paramgraph")
    assert "'PARAMGRAPH' is not a valid DynamoBackend" in PAGE.read_text()
