"""Queued trainings: once per dataset type, bounded, and there again whatever died."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from gpusonde.collector.workload.training import CannotTrainError, drain
from gpusonde.collector.workload.training_queue import QueueFullError, TrainingQueue, TrainingQueueError
from gpusonde.predictor.workload.embedding.weights import DatasetTypeNameError


class Clock:
    def __init__(self):
        self.now_s = 1_000.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


@pytest.fixture
def queue(tmp_path):
    return TrainingQueue(tmp_path / "queue", largest=4, clock=Clock())


def states(queue):
    return {training.dataset_type: training.state for training in queue.trainings()}


def test_what_is_asked_for_again_is_the_same_training(queue):
    first = queue.want("landscapes")
    assert (first.state, first.attempts) == ("queued", 0)
    assert queue.want("landscapes") == queue.add("landscapes") == queue.add("landscapes", again=True) == first
    assert queue.trainings() == [first]
    assert queue.get("portraits") is None


def test_trainings_are_begun_in_the_order_in_which_they_were_asked_for(queue):
    for name in ("c", "a", "b"):
        queue.add(name)
    begun = []
    assert drain(queue, lambda name, _: begun.append(name) or "00") == 3
    assert begun == ["c", "a", "b"]
    assert [training.dataset_type for training in queue.trainings()] == ["b", "a", "c"]


def test_who_has_data_of_one_type_leaves_the_others_waiting(queue):
    for name in ("c", "a", "b"):
        queue.add(name)
    assert queue.claim(["digits"]) is None
    with queue.claim(["b", "digits"]) as claim:
        claim.done("00")
    assert states(queue) == {"a": "queued", "b": "done", "c": "queued"}


def test_progress_and_the_end_are_seen_by_others(queue, tmp_path):
    other = TrainingQueue(tmp_path / "queue")
    queue.add("digits")
    seen = []

    def train(name, progress):
        progress(3, 10)
        seen.append(other.get(name))
        return "ab" * 32

    drain(queue, train)
    (running,) = seen
    assert (running.state, running.completed_steps, running.total_steps, running.attempts) == ("running", 3, 10, 1)
    done = other.get("digits")
    assert (done.state, done.encoder_sha256, done.reason) == ("done", "ab" * 32, "")
    assert done.queued_s < done.started_s < done.ended_s


def test_a_training_that_fails_says_why_and_the_next_one_follows(queue):
    for name in ("lost", "broken", "good"):
        queue.add(name)

    def train(name, _):
        if name == "lost":
            raise CannotTrainError("no folder of images is called 'lost'")
        if name == "broken":
            raise ZeroDivisionError("by nothing")
        return "00"

    ended = []
    assert drain(queue, train, lambda training: ended.append((training.dataset_type, training.reason))) == 1
    assert states(queue) == {"lost": "failed", "broken": "failed", "good": "done"}
    assert ended == [
        ("lost", "no folder of images is called 'lost'"),
        ("broken", "ZeroDivisionError: by nothing"),
        ("good", ""),
    ]
    assert queue.want("lost").state == "failed"
    assert queue.add("lost").state == "failed"
    assert queue.add("lost", again=True).state == "queued"


def test_an_interrupted_training_waits_again_without_a_failed_attempt(queue):
    queue.add("digits")

    def interrupted(name, progress):
        progress(5, 10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain(queue, interrupted)
    training = queue.get("digits")
    assert (training.state, training.attempts, training.started_s) == ("queued", 0, None)


def test_a_start_is_not_counted_where_the_training_was_begun_asked_for_anew_or_removed_meanwhile(queue, tmp_path):
    seen = queue.add("digits")
    with queue.claim() as claim:
        assert queue.not_begun(seen, "no room") is None
        claim.failed("no images")
    assert queue.not_begun(seen, "no room") is None
    queue.add("digits", again=True)
    assert queue.not_begun(seen, "no room") is None
    assert queue.get("digits").attempts == 0
    (tmp_path / "queue" / "digits.json").unlink()
    assert queue.not_begun(seen, "no room") is None


def test_the_reason_of_starts_that_failed_is_as_long_as_any(queue):
    training = queue.add("digits")
    for _ in range(3):
        training = queue.not_begun(training, "x" * 10_000)
    assert (training.state, len(training.reason)) == ("failed", 500)
    assert queue.get("digits") == training
    assert queue.claim() is None


def test_questions_fill_one_half_and_an_admin_the_rest(queue):
    assert queue.want("a")
    assert queue.want("b")
    assert queue.want("c") is None
    assert queue.want("a").state == "queued"
    assert queue.add("c")
    assert queue.add("d")
    with pytest.raises(QueueFullError, match=r"workload\.max_trainings"):
        queue.add("e")


def test_ended_trainings_make_room_for_new_ones_oldest_first(queue):
    for name in ("a", "b", "c", "d"):
        queue.add(name)
        drain(queue, lambda *_: "00")
    queue.add("e")
    assert states(queue) == {"b": "done", "c": "done", "d": "done", "e": "queued"}


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "a" * 65, "a\0", "../../etc/passwd"])
def test_names_that_lead_elsewhere_are_none(queue, name, tmp_path):
    for ask in (queue.get, queue.want, queue.add):
        with pytest.raises(DatasetTypeNameError):
            ask(name)
    assert not list(tmp_path.glob("**/*.json"))


def test_foreign_and_damaged_files_are_named(queue, tmp_path):
    queue.add("good")
    folder = tmp_path / "queue"
    (folder / "notes.txt").write_text("mine")
    (folder / "Not A Name.json").write_text("{}")
    assert states(queue) == {"good": "queued"}
    for content in (b"", b"{}", b"[]", b'{"format": "gpusonde.training/1"}', b"\xff", b'{"format": "other/1"}'):
        (folder / "bad.json").write_bytes(content)
        with pytest.raises(TrainingQueueError, match=r"bad\.json is no training"):
            queue.trainings()
    good = json.loads((folder / "good.json").read_text())
    (folder / "bad.json").write_text(json.dumps(good))
    with pytest.raises(TrainingQueueError, match="bad"):
        queue.get("bad")


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingQueueError, match="file"):
        TrainingQueue(tmp_path / "file").add("a")
    assert TrainingQueue(tmp_path / "never").trainings() == []


_TRAINER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from gpusonde.collector.workload.training import drain
    from gpusonde.collector.workload.training_queue import TrainingQueue

    def train(name, progress):
        progress(1, 100)
        print("begun", flush=True)
        time.sleep(600)

    drain(TrainingQueue(Path(sys.argv[1])), train)
    """
)


def killed_trainer(directory):
    trainer = subprocess.Popen(
        [sys.executable, "-c", _TRAINER, str(directory)], stdout=subprocess.PIPE, env=os.environ, text=True
    )
    assert trainer.stdout.readline() == "begun\n"
    running = TrainingQueue(directory).get("digits")
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    return running


def test_what_a_killed_process_trained_is_queued_again_and_given_up_after_three_deaths(tmp_path):
    queue = TrainingQueue(tmp_path)
    queue.add("digits")
    for attempt in (1, 2):
        assert killed_trainer(tmp_path).attempts == attempt
        waiting = TrainingQueue(tmp_path).get("digits")
        assert (waiting.state, waiting.attempts) == ("queued", attempt)
    assert killed_trainer(tmp_path).state == "running"
    given_up = queue.get("digits")
    assert given_up.state == "failed"
    assert "died 3 times" in given_up.reason
    assert queue.claim() is None
    assert queue.add("digits", again=True).state == "queued"
    assert drain(queue, lambda *_: "00") == 1


def _work(directory, names):
    queue = TrainingQueue(directory, largest=100)
    for name in names:
        queue.want(name)
    begun = []
    drain(queue, lambda name, _: begun.append(name) or "00")
    return begun


def test_processes_share_a_queue_and_none_trains_what_another_does(tmp_path):
    names = [f"type-{i}" for i in range(12)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        begun = pool.starmap(_work, [(tmp_path, names)] * 3)
    assert sorted(name for some in begun for name in some) == sorted(names)
    assert {training.state for training in TrainingQueue(tmp_path).trainings()} == {"done"}


@pytest.mark.parametrize(
    "changes",
    [
        {"queued_s": "x"},
        {"queued_s": True},
        {"queued_s": float("nan")},
        {"started_s": []},
        {"ended_s": -1.0},
        {"attempts": "3"},
        {"completed_steps": -1},
        {"total_steps": 1 << 64},
        {"reason": None},
        {"encoder_sha256": 5},
    ],
)
def test_a_file_whose_figures_are_none_is_refused_by_its_name(queue, changes):
    queue.add("digits")
    path = queue.directory / "digits.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    for ask in (queue.trainings, lambda: queue.get("digits"), queue.claim):
        with pytest.raises(TrainingQueueError, match=r"digits\.json"):
            ask()


def test_a_file_that_is_nested_without_end_is_refused_by_its_name(queue):
    queue.add("digits")
    (queue.directory / "digits.json").write_text("[" * 60_000)
    with pytest.raises(TrainingQueueError, match=r"digits\.json"):
        queue.trainings()
