"""The page on planning shows code for torch that runs as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.torch_ranks import run_ranks

torch = pytest.importorskip("torch", reason="needs torch (extra torch)")

PAGE = Path(__file__).parents[3] / "docs" / "planning.md"
BLOCK = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def block(word):
    """The one block with this word."""
    (found,) = (text for text in BLOCK.findall(PAGE.read_text("utf-8")) if word in text)
    return found


def test_a_job_is_profiled(tmp_path):
    (tmp_path / "train.py").write_text(block("def job()"), encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", block("load_job")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\[0\.\d+\] \[.*\]\n", done.stdout)


def train_as_shown(rank, code):
    """Final weights."""
    torch.manual_seed(1)
    network = torch.nn.Linear(2, 1).double()
    names = {}
    exec(code, names)
    generator = torch.Generator().manual_seed(2)
    batches = [torch.rand(5, 3, generator=generator, dtype=torch.float64) for _ in range(4)]
    mine = [each[:4] if rank == 0 else each[4:] for each in batches]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    names["train"](network, [(each[:, :2], each[:, 2:]) for each in mine], optimizer, torch.nn.functional.mse_loss)
    return network.weight.detach()


def test_uneven_batches_are_trained(tmp_path):
    one, other = run_ranks(2, train_as_shown, block("GradientReweighting"))
    assert torch.equal(one, other)
    assert torch.isfinite(one).all()
