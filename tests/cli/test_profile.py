"""``gpusonde profile`` on a job of the user's own, and a plan made with what it wrote."""

from __future__ import annotations

import json
import sys

import pytest

from gpusonde.cli.main import main

torch = pytest.importorskip("torch", reason="needs torch (extra torch)")

TRAIN = """
import torch
from gpusonde.simulator.instrument.profile import TrainingJob

def job():
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    return TrainingJob(model, lambda size: torch.ones(size, 64), lambda model, batch: model(batch).square().mean())
"""
PROBLEM = """
format = "gpusonde.problem/1"
global_batch = 512
iterations = 10000

[[job.profiles]]
file = "profile.json"
device = "T4"

[[offers]]
name = "g4dn.xlarge"
device = "T4"
devices = 1
quota = 8
usd_per_hour = 0.526
network_bytes_per_second = 6.25e8
largest_batch = 256
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "my_job_to_profile.py").write_text(TRAIN)
    (tmp_path / "problem.toml").write_text(PROBLEM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_job_to_profile", None)


def test_a_profiled_job_is_planned(folder, capsys):
    command = ["profile", "my_job_to_profile.py:job", "--out", "profile.json", "--batch-sizes", "32,64,256", "--json"]
    assert main([*command, "--steps", "3", "--bucket-mib", "0.02"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [probe["batch_size"] for probe in printed["probes"]] == [32, 64, 256]
    # The second layer's 4,128 bytes stay below the limit of 20,971; the first one's close the bucket.
    assert printed["gradient_bytes"] == 4 * (64 * 128 + 128 + 128 * 8 + 8)
    assert printed["gradient_buckets"] == 1
    assert "weight" not in (folder / "profile.json").read_text()
    assert main(["plan", "solve", "problem.toml", "--json"]) == 0
    solution = json.loads(capsys.readouterr().out)
    assert solution["status"] in {"optimal", "feasible"}


def test_a_place_that_cannot_be_written_is_refused_before_the_job_runs(folder, capsys):
    assert main(["profile", "absent.py:job", "--out", "absent/profile.json"]) == 1
    assert "absent/profile.json: there is no folder absent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.py:job", "--batch-sizes", "2,4"], "no file absent.py"),
        (["my_job_to_profile.py:absent", "--batch-sizes", "2,4"], "no function absent"),
        (["my_job_to_profile.py:job"], "say which batch sizes"),
        (["my_job_to_profile.py:job", "--batch-sizes", "4"], "two batch sizes"),
    ],
)
def test_what_cannot_be_profiled_is_said_in_a_line(arguments, words, folder, capsys):
    assert main(["profile", *arguments, "--out", "profile.json"]) == 1
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said
    assert not (folder / "profile.json").exists()
