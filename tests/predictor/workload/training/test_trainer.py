"""Training of a hypernetwork, in miniature: resumable to the same result, saved when stopped, honest about failures."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="needs torch (extra training)")

from gpusonde.errors import DirectoryLockedError, EncoderError  # noqa: E402
from gpusonde.predictor.workload.embedding import Encoder, EncoderWeights  # noqa: E402
from gpusonde.predictor.workload.embedding.registry import Registry  # noqa: E402
from gpusonde.predictor.workload.training import trainer  # noqa: E402
from gpusonde.predictor.workload.training.datasets import digits  # noqa: E402
from gpusonde.predictor.workload.training.options import TrainingOptions  # noqa: E402
from gpusonde.predictor.workload.training.pool import Pool, digest_content  # noqa: E402
from gpusonde.predictor.workload.training.progress import Phase  # noqa: E402
from gpusonde.predictor.workload.training.result import TrainingStoppedError  # noqa: E402
from gpusonde.predictor.workload.training.trainer import CHECKPOINT, ENCODER, RESULT, train  # noqa: E402

OPTIONS = TrainingOptions(
    steps=6,
    seed=3,
    architectures=5,
    held_out_architectures=2,
    architectures_per_step=2,
    images_per_step=16,
    checkpoint_steps=4,
    test_images=50,
    hidden_size=8,
)


@pytest.fixture(scope="module")
def dataset():
    return digits()


@pytest.fixture(scope="module")
def uninterrupted(dataset, tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    return train(dataset, OPTIONS, directory), directory


def same(one, other):
    assert one.losses == other.losses
    assert one.encoder.sha256 == other.encoder.sha256
    assert one.accuracy == other.accuracy
    assert one.untrained_accuracy == other.untrained_accuracy


def test_the_result_and_its_files_tell_what_was_trained(uninterrupted, dataset, tmp_path):
    result, directory = uninterrupted
    assert len(result.losses) == 6
    assert all(map(math.isfinite, result.losses))
    assert result.seconds_per_step > 0
    assert len(result.accuracy.shares) == len(result.untrained_accuracy.shares) == 2
    assert result.chance == pytest.approx(max((dataset.test_labels == label).mean() for label in range(10)))
    description = result.encoder.description
    assert (description.dataset_type, description.training_steps, description.seed) == ("digits", 6, 3)
    assert EncoderWeights.load(directory / ENCODER).sha256 == result.encoder.sha256
    assert result.encoder.sha256 != EncoderWeights.random(3, description).sha256
    document = json.loads((directory / RESULT).read_text())
    assert tuple(document["losses"]) == result.losses
    assert document["accuracy_of_unseen_architectures"]["architectures"] == 2
    assert document["options"] == OPTIONS.as_document()
    found = Registry(tmp_path).add(result.encoder, figures=result.figures())
    assert found.figures["skipped_networks"] == 0
    assert Encoder(found.weights).size == 8


def test_a_training_that_was_stopped_goes_on_to_the_same_result(uninterrupted, dataset, tmp_path):
    steps = []

    def progress(report):
        if report.phase is Phase.TRAINING:
            steps.append(report.done)

    with pytest.raises(TrainingStoppedError, match="after 3 of 6 steps and saved") as caught:
        train(dataset, OPTIONS, tmp_path, progress, should_stop=lambda: steps[-1:] == [3])
    assert (caught.value.step, caught.value.steps) == (3, 6)
    steps.clear()
    same(train(dataset, OPTIONS, tmp_path, progress), uninterrupted[0])
    assert steps == [3, 4, 5, 6]
    # Done: nothing is trained again.
    steps.clear()
    same(train(dataset, OPTIONS, tmp_path, progress), uninterrupted[0])
    assert steps == [6]


@pytest.fixture
def foreground():
    """SIGINT as in a terminal, wherever the tests run."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("foreground")
def test_ctrl_c_finishes_the_step_and_saves(uninterrupted, dataset, tmp_path):
    def interrupt(report):
        if report.phase is Phase.TRAINING and report.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingStoppedError, match="after 2 of 6 steps"):
        train(dataset, OPTIONS, tmp_path, interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    same(train(dataset, OPTIONS, tmp_path), uninterrupted[0])


class Killed(BaseException):
    """The process ends without a chance to save."""


def test_a_training_that_was_killed_goes_on_from_its_last_checkpoint(uninterrupted, dataset, tmp_path):
    def kill(report):
        if report.phase is Phase.TRAINING and report.done == 5:
            raise Killed

    with pytest.raises(Killed):
        train(dataset, OPTIONS, tmp_path, kill)
    steps = []
    same(train(dataset, OPTIONS, tmp_path, lambda report: steps.append((report.phase, report.done))), uninterrupted[0])
    assert next(done for phase, done in steps if phase is Phase.TRAINING) == 4


def test_another_training_is_not_gone_on_with(uninterrupted, dataset):
    _, directory = uninterrupted
    with pytest.raises(EncoderError, match=r"seed \(3 there, 4 here\)"):
        train(dataset, dataclasses.replace(OPTIONS, seed=4), directory)
    other = dataclasses.replace(dataset, test_images=dataset.test_images[::-1])
    with pytest.raises(EncoderError, match="the images"):
        train(other, OPTIONS, directory)


def test_a_damaged_checkpoint_is_told(uninterrupted, dataset, tmp_path):
    sound = (uninterrupted[1] / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(sound[: len(sound) // 2])
    with pytest.raises(EncoderError, match=CHECKPOINT):
        train(dataset, OPTIONS, tmp_path)


def test_two_trainings_do_not_share_a_directory(dataset, tmp_path):
    def begin_another(report):
        with pytest.raises(DirectoryLockedError, match="another training"):
            train(dataset, OPTIONS, tmp_path)
        raise Killed

    with pytest.raises(Killed):
        train(dataset, OPTIONS, tmp_path, begin_another)


def test_networks_whose_loss_is_not_finite_are_counted_and_nothing_is_learnt_from_them(dataset, tmp_path, monkeypatch):
    real, calls = trainer.functional.cross_entropy, []

    def sometimes_infinite(scores, labels):
        calls.append(1)
        # Two networks per step: the first one of the second step, and both of the third.
        return real(scores, labels) * (math.inf if len(calls) in {3, 5, 6} else 1)

    options = dataclasses.replace(OPTIONS, steps=4)
    monkeypatch.setattr(trainer.functional, "cross_entropy", sometimes_infinite)
    result = train(dataset, options, tmp_path)
    assert [math.isnan(loss) for loss in result.losses] == [False, False, True, False]
    assert result.skipped_networks == result.figures()["skipped_networks"] == 3
    assert result.skipped_steps == 1
    assert math.isfinite(result.last_loss)
    assert json.loads((tmp_path / RESULT).read_text())["losses"][2] is None


def test_one_network_that_explodes_does_not_hide_the_others(dataset, tmp_path, monkeypatch):
    real, calls = trainer.functional.cross_entropy, []

    def sometimes_huge(scores, labels):
        calls.append(1)
        return real(scores, labels) * (1e6 if len(calls) == 1 else 1)

    monkeypatch.setattr(trainer.functional, "cross_entropy", sometimes_huge)
    result = train(dataset, dataclasses.replace(OPTIONS, steps=1), tmp_path)
    # It counts twice what guessing costs, the other one as it is.
    assert math.log(10) < result.losses[0] < 2 * math.log(10)


def test_a_training_that_only_diverges_ends(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "_MOST_SKIPPED_IN_A_ROW", 3)
    monkeypatch.setattr(trainer.functional, "cross_entropy", lambda scores, labels: scores.sum() * math.nan)
    with pytest.raises(EncoderError, match="3 steps in a row"):
        train(dataset, OPTIONS, tmp_path)


def test_no_architecture_is_tested_with_that_was_trained_on(dataset):
    options = dataclasses.replace(OPTIONS, architectures=12, held_out_architectures=12)
    network = trainer.make_hypernetwork(dataset, options)
    pool = Pool.of(dataset, options, network, None, lambda done, total: None)
    specs = {each.spec.to_json() for each in pool.trained + pool.held_out}
    graphs = {digest_content(each.graph) for each in pool.trained + pool.held_out}
    assert len(specs) == len(graphs) == 24
    # Held-out architectures do not depend on how many are trained on.
    fewer = dataclasses.replace(options, architectures=6)
    again = Pool.of(dataset, fewer, network, None, lambda done, total: None)
    assert [each.spec for each in again.held_out] == [each.spec for each in pool.held_out]
    assert [each.spec for each in again.trained] == [each.spec for each in pool.trained[:6]]


def test_gradients_reach_the_encoder_and_it_learns(dataset, tmp_path):
    # One architecture and one batch of images, again and again: what cannot be learnt here can be learnt nowhere.
    few = dataclasses.replace(dataset, train_images=dataset.train_images[:16], train_labels=dataset.train_labels[:16])
    options = dataclasses.replace(OPTIONS, steps=25, architectures=1, architectures_per_step=1, learning_rate=0.005)
    result = train(few, options, tmp_path)
    assert result.losses[-1] < 0.7 * result.losses[0]
    assert result.last_loss <= max(result.losses)
