"""Queued trainings: once per dataset type, bounded, and there again whatever died."""

import contextlib
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from support.spawned_work import train_all

from gpusonde.collector.workload.training import drain
from gpusonde.collector.workload.training_queue import TrainingQueue
from gpusonde.errors import EncoderError, RequestError


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
    first = queue.enqueue_if_absent("landscapes")
    assert (first.state, first.attempts) == ("queued", 0)
    assert (
        queue.enqueue_if_absent("landscapes")
        == queue.enqueue("landscapes")
        == queue.enqueue("landscapes", again=True)
        == first
    )
    assert queue.trainings() == [first]
    assert queue.get("portraits") is None


def test_trainings_are_begun_in_the_order_in_which_they_were_asked_for(queue):
    for name in ("c", "a", "b"):
        queue.enqueue(name)
    begun = []
    assert drain(queue, lambda name, _: begun.append(name) or "00") == 3
    assert begun == ["c", "a", "b"]
    assert [training.dataset_type for training in queue.trainings()] == ["b", "a", "c"]


def test_who_has_data_of_one_type_leaves_the_others_waiting(queue):
    for name in ("c", "a", "b"):
        queue.enqueue(name)
    assert queue.claim(["digits"]) is None
    with queue.claim(["b", "digits"]) as lease:
        lease.done("00")
    assert states(queue) == {"a": "queued", "b": "done", "c": "queued"}


def test_progress_and_the_end_are_seen_by_others(queue, tmp_path):
    other = TrainingQueue(tmp_path / "queue")
    queue.enqueue("digits")
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
        queue.enqueue(name)

    def train(name, _):
        if name == "lost":
            raise EncoderError("no folder of images is called 'lost'")
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
    assert queue.enqueue_if_absent("lost").state == "failed"
    assert queue.enqueue("lost").state == "failed"
    assert queue.enqueue("lost", again=True).state == "queued"


def test_an_interrupted_training_waits_again_without_a_failed_attempt(queue):
    queue.enqueue("digits")

    def interrupted(name, progress):
        progress(5, 10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drain(queue, interrupted)
    training = queue.get("digits")
    assert (training.state, training.attempts, training.started_s) == ("queued", 0, None)


def test_a_start_is_not_counted_where_the_training_was_begun_asked_for_anew_or_removed_meanwhile(queue, tmp_path):
    seen = queue.enqueue("digits")
    with queue.claim() as lease:
        assert queue.record_failed_start(seen, "no room") is None
        lease.failed("no images")
    assert queue.record_failed_start(seen, "no room") is None
    queue.enqueue("digits", again=True)
    assert queue.record_failed_start(seen, "no room") is None
    assert queue.get("digits").attempts == 0
    (tmp_path / "queue" / "queue.sqlite").unlink()
    assert queue.record_failed_start(seen, "no room") is None


def test_the_reason_of_starts_that_failed_is_as_long_as_any(queue):
    training = queue.enqueue("digits")
    for _ in range(3):
        training = queue.record_failed_start(training, "x" * 10_000)
    assert (training.state, len(training.reason)) == ("failed", 500)
    assert queue.get("digits") == training
    assert queue.claim() is None


def test_questions_fill_one_half_and_an_admin_the_rest(queue):
    assert queue.enqueue_if_absent("a")
    assert queue.enqueue_if_absent("b")
    assert queue.enqueue_if_absent("c") is None
    assert queue.enqueue_if_absent("a").state == "queued"
    assert queue.enqueue("c")
    assert queue.enqueue("d")
    with pytest.raises(RequestError, match="4 trainings wait or run"):
        queue.enqueue("e")


def test_ended_trainings_make_room_for_new_ones_oldest_first(queue):
    for name in ("a", "b", "c", "d"):
        queue.enqueue(name)
        drain(queue, lambda *_: "00")
    queue.enqueue("e")
    assert states(queue) == {"b": "done", "c": "done", "d": "done", "e": "queued"}


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "-a", "a" * 65, "a\0", "../../etc/passwd"])
def test_names_that_lead_elsewhere_are_none(queue, name, tmp_path):
    for ask in (queue.get, queue.enqueue_if_absent, queue.enqueue):
        with pytest.raises(EncoderError):
            ask(name)
    assert not list(tmp_path.glob("**/*.lock"))


def old_file(name, **changes):
    """What the version before SQLite wrote."""
    row = {
        "format": "gpusonde.training/1", "dataset_type": name, "state": "queued", "queued_s": 900.0, "started_s": None,
        "ended_s": None, "reason": "", "completed_steps": 0, "total_steps": 0, "attempts": 0, "encoder_sha256": "",
    }  # fmt: skip
    return json.dumps({**row, **changes}).encode()


def test_trainings_that_an_earlier_version_queued_as_files_are_taken_over_once(queue):
    queue.directory.mkdir()
    (queue.directory / "notes.txt").write_text("mine")
    (queue.directory / "Not A Name.json").write_text("{}")
    for name, changes in {
        "a": {},
        "b": {"state": "done", "started_s": 901, "ended_s": 902.5, "encoder_sha256": "ab" * 32, "attempts": 1},
        "c": {"state": "failed", "reason": "no images", "ended_s": 903.0},
        "d": {"state": "running", "started_s": 904.0, "attempts": 2, "completed_steps": 7, "total_steps": 9},
    }.items():
        (queue.directory / f"{name}.json").write_bytes(old_file(name, **changes))
        (queue.directory / f"{name}.lock").touch()
    # Nobody holds the lock of the one that ran.
    assert states(queue) == {"a": "queued", "b": "done", "c": "failed", "d": "queued"}
    assert (queue.get("b").encoder_sha256, queue.get("b").ended_s, queue.get("d").attempts) == ("ab" * 32, 902.5, 2)
    assert queue.get("c").reason == "no images"
    assert [path.name for path in queue.directory.glob("*.json")] == ["Not A Name.json"]
    (queue.directory / "e.json").write_bytes(old_file("e"))
    assert queue.get("e") is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b'{"format": "gpusonde.training/1"}', b"\xff", b'{"format": "other/1"}', b"[" * 60_000]
    + [old_file("other"), old_file("digits", state="lost")]
    + [
        old_file("digits", **{key: value})
        for key, value in [
            ("queued_s", "x"), ("queued_s", True), ("queued_s", float("nan")), ("started_s", []), ("ended_s", -1.0),
            ("attempts", "3"), ("completed_steps", -1), ("total_steps", 1 << 64), ("reason", None),
            ("encoder_sha256", 5),
        ]
    ],
)  # fmt: skip
def test_a_file_of_an_earlier_version_that_is_damaged_is_refused_by_its_name_and_nothing_is_lost(queue, content):
    queue.directory.mkdir()
    (queue.directory / "good.json").write_bytes(old_file("good"))
    (queue.directory / "digits.json").write_bytes(content)
    for ask in (queue.trainings, lambda: queue.get("digits"), queue.claim):
        with pytest.raises(EncoderError, match=r"digits\.json.*remove it"):
            ask()
    (queue.directory / "digits.json").unlink()
    assert states(queue) == {"good": "queued"}


def test_a_database_that_is_damaged_or_of_a_later_version_is_refused_by_its_name(queue):
    queue.enqueue("digits")
    path = queue.directory / "queue.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 2")
    with pytest.raises(EncoderError, match=r"queue\.sqlite is of version 2"):
        queue.trainings()
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(EncoderError, match=r"queue\.sqlite"):
        queue.trainings()


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EncoderError, match="file"):
        TrainingQueue(tmp_path / "file").enqueue("a")
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
    queue.enqueue("digits")
    for attempt in (1, 2):
        assert killed_trainer(tmp_path).attempts == attempt
        waiting = TrainingQueue(tmp_path).get("digits")
        assert (waiting.state, waiting.attempts) == ("queued", attempt)
    assert killed_trainer(tmp_path).state == "running"
    given_up = queue.get("digits")
    assert given_up.state == "failed"
    assert "died 3 times" in given_up.reason
    assert queue.claim() is None
    assert queue.enqueue("digits", again=True).state == "queued"
    assert drain(queue, lambda *_: "00") == 1


def test_processes_share_a_queue_and_none_trains_what_another_does(tmp_path):
    names = [f"type-{i}" for i in range(12)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        begun = pool.starmap(train_all, [(tmp_path, names)] * 3)
    assert sorted(name for some in begun for name in some) == sorted(names)
    assert {training.state for training in TrainingQueue(tmp_path).trainings()} == {"done"}
