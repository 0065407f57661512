"""``gpusonde workload train``: a training that was killed goes on, a collector's queue is worked off."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest

from gpusonde.cli.main import main
from gpusonde.collector.workload.training_queue import TrainingQueue
from gpusonde.predictor.workload.embedding.registry import Registry

pytest.importorskip("torch", reason="needs torch (extra torch)")

SMALL = ("--architectures", "6")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(capsys, *arguments, exit_code=0):
    assert main(["workload", "train", "--dataset", "digits", "--out", "registry", *arguments, "--json"]) == exit_code
    return json.loads(capsys.readouterr().out)


def start(*arguments):
    command = [sys.executable, "-m", "gpusonde.cli", "workload", "train", "--dataset", "digits", "--out", "registry"]
    return subprocess.Popen([*command, *SMALL, *arguments], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def wait_for(path, process):
    deadline = time.monotonic() + 200
    while not path.exists():
        assert process.poll() is None, "it ended before there was a checkpoint"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_training_that_was_killed_goes_on_with_the_same_command(folder, capsys):
    steps = ("--steps", "60")
    process = start(*steps)
    wait_for(folder / "registry" / "trainings" / "digits" / "checkpoint.safetensors", process)
    process.kill()
    process.wait()
    assert not (folder / "registry" / "digits.json").exists()
    (found,) = train(capsys, *SMALL, *steps)["trainings"]
    assert (found["state"], found["trained_steps"]) == ("done", 60)
    registered = Registry(folder / "registry").get("digits")
    assert registered.sha256 == found["encoder_sha256"]
    assert not registered.is_shipped


def test_a_trained_encoder_embeds_and_other_options_need_a_new_training(folder, capsys):
    (found,) = train(capsys, *SMALL, "--steps", "2")["trainings"]
    assert main(["workload", "embed", "zoo:resnet18", "--encoder", "registry/digits", "--nearest", "2", "--json"]) == 0
    embedded = json.loads(capsys.readouterr().out)
    assert embedded["encoder_sha256"] == found["encoder_sha256"]
    assert embedded["graphs"][0]["nearest"][0]["architecture"] == "resnet18"
    begun = folder / "registry" / "trainings" / "digits"
    refused = train(capsys, *SMALL, "--steps", "3", exit_code=1)["error"]["message"]
    assert "registry/trainings/digits holds a training that differs in steps" in refused
    shutil.rmtree(begun)
    (again,) = train(capsys, *SMALL, "--steps", "3")["trainings"]
    assert again["trained_steps"] == 3


def test_what_a_collector_has_queued_is_trained_and_it_is_told(folder, capsys):
    queue = TrainingQueue(folder / "queue")
    queue.enqueue("digits")
    queue.enqueue("landscapes")
    (found,) = train(capsys, *SMALL, "--steps", "2", "--queue", "queue")["trainings"]
    told = queue.get("digits")
    assert (told.state, told.encoder_sha256, told.completed_steps) == ("done", found["encoder_sha256"], 2)
    # There are no data of this type here: somebody else has some.
    assert queue.get("landscapes").state == "queued"
    assert train(capsys, *SMALL, "--queue", "queue")["trainings"] == []


def test_a_queued_training_that_cannot_be_says_why(folder, capsys):
    queue = TrainingQueue(folder / "queue")
    queue.enqueue("cifar10")
    command = ["workload", "train", "--dataset", "cifar10=absent", "--out", "registry", "--queue", "queue", "--json"]
    assert main(command) == 1
    (found,) = json.loads(capsys.readouterr().out)["trainings"]
    assert (found["state"], found["encoder_sha256"]) == ("failed", None)
    assert "no CIFAR-10" in found["reason"]
    assert queue.get("cifar10").reason == found["reason"]


def test_ctrl_c_saves_the_training_and_queues_it_again(folder):
    queue = TrainingQueue(folder / "queue")
    queue.enqueue("digits")
    process = start("--steps", "100000", "--queue", "queue")
    deadline = time.monotonic() + 200
    while not (queue.get("digits") and queue.get("digits").completed_steps):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(200) == 130
    assert (queue.get("digits").state, queue.get("digits").attempts) == ("queued", 0)
    assert (folder / "registry" / "trainings" / "digits" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "words"),
    [
        (["--dataset", "digits", "--dataset", "digits"], 2, "twice"),
        (["--dataset", "digits", "--dataset", "cifar10=x"], 2, "--queue"),
        (["--dataset", "words"], 2, "neither digits nor NAME=PATH"),
        (["--dataset", "../x=x"], 1, "names no dataset type"),
        (["--dataset", "x=absent"], 1, "absent is no folder"),
        (["--dataset", "cifar10=absent"], 1, "no CIFAR-10"),
        (["--dataset", "digits", "--queue", "absent"], 1, "no folder"),
        (["--dataset", "digits", "--steps", "99999999"], 1, "steps"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_line(arguments, exit_code, words, folder, capsys):
    assert main(["workload", "train", *arguments, "--out", "registry"]) == exit_code
    said = capsys.readouterr().err
    assert words in said
    assert "fault in gpusonde" not in said
