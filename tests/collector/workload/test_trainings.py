"""Trainings that the collector starts itself: one at a time, for what there are data of, in a process that can end."""

import asyncio
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from dataclasses import replace

import pytest
from support.layered_graphs import graph_json
from support.running_collector import ThreadCollector
from support.wire_agent import wait_until

from gpusonde.collector.client import WorkloadClient
from gpusonde.collector.workload.training import TrainingCounters, Trainings, has_torch, trainer_command
from gpusonde.collector.workload.training_queue import TrainingQueue

_TRAINER = textwrap.dedent(
    """
    import signal, sys, time
    from pathlib import Path
    from gpusonde.collector.workload.training import drain
    from gpusonde.collector.workload.training_queue import TrainingQueue

    folder, name = Path(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as trainer_command's does

    def train(dataset_type, progress):
        with (folder / "begun").open("a") as file:
            file.write(dataset_type + "\\n")
        progress(1, 2)
        if dataset_type == "endless":
            time.sleep(600)
        if dataset_type == "bad":
            raise ValueError("no images")
        return "ab" * 32

    print(f"I train {name}", file=sys.stderr)
    if name == "unbegun":
        print("no room\\x1b for it\\n", file=sys.stderr)
        sys.exit(3)
    if name == "stopped":
        sys.exit(130)
    if name == "idle":
        sys.exit(0)
    try:
        drain(TrainingQueue(folder), train, dataset_types=[name])
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(name == "crash")
    """
)


class Rig:
    def __init__(self, folder):
        self.folder = folder
        self.queue = TrainingQueue(folder)
        self.counters = TrainingCounters()
        self.trainings = Trainings(self.queue, self.command, self.counters, interval_s=0.2)

    def command(self, dataset_type):
        return None if dataset_type == "unknown" else (sys.executable, "-c", _TRAINER, str(self.folder), dataset_type)

    def begun(self):
        file = self.folder / "begun"
        return file.read_text().split() if file.exists() else []

    def run_until(self, condition):
        async def main():
            running = asyncio.ensure_future(self.trainings.run())
            until = time.monotonic() + 200
            while not condition():
                assert time.monotonic() < until
                assert not running.done(), running.exception()
                await asyncio.sleep(0.02)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        asyncio.run(main())

    def states(self):
        return {training.dataset_type: training.state for training in self.queue.trainings()}


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def test_what_waits_is_trained_oldest_first_and_what_there_are_no_data_of_goes_on_waiting(rig):
    for name in ("unknown", "second", "bad", "third"):
        rig.queue.enqueue(name)
    wanted = {"unknown": "queued", "second": "done", "bad": "failed", "third": "done"}
    rig.run_until(lambda: rig.states() == wanted and rig.counters.states.get("done") == 2)
    assert rig.begun() == ["second", "bad", "third"]
    assert rig.counters.states == {"queued": 1, "running": 0, "done": 2, "failed": 1}
    assert rig.queue.get("bad").reason == "ValueError: no images"


def test_a_training_that_another_process_works_on_is_left_to_it(rig):
    rig.queue.enqueue("mine")
    with rig.queue.claim():
        rig.queue.enqueue("next")
        rig.run_until(lambda: rig.counters.states.get("running") == 1)
        assert rig.begun() == []
    rig.run_until(lambda: rig.states() == {"mine": "done", "next": "done"})


def test_a_collector_that_ends_has_its_training_wait_again_without_a_lost_attempt(rig):
    rig.queue.enqueue("endless")
    rig.run_until(lambda: rig.states() == {"endless": "running"} and rig.begun())
    training = rig.queue.get("endless")
    assert (training.state, training.attempts) == ("queued", 0)


def test_trainings_are_counted_while_one_runs(rig):
    rig.queue.enqueue("endless")
    rig.run_until(rig.begun)
    rig.queue.enqueue("voices")
    rig.run_until(lambda: rig.counters.states == {"queued": 1, "running": 1, "done": 0, "failed": 0})


def test_a_trainer_that_ends_with_an_error_is_counted_and_what_it_said_is_kept(rig, caplog):
    rig.queue.enqueue("crash")
    rig.run_until(lambda: rig.counters.failures == 1)
    assert rig.states() == {"crash": "done"}
    assert "trainer.log" in caplog.text
    assert (rig.folder / "trainer.log").read_text() == "I train crash\n"


def test_a_queue_that_cannot_be_used_does_not_end_the_collector(rig, caplog):
    rig.queue.enqueue("good")
    database = rig.folder / "queue.sqlite"
    kept = database.read_bytes()
    database.write_bytes(b"no database" * 1000)
    rig.run_until(lambda: "queue.sqlite" in caplog.text)
    database.write_bytes(kept)
    rig.run_until(lambda: rig.states() == {"good": "done"})


@pytest.mark.parametrize(("name", "status"), [("unbegun", 3), ("idle", 0)])
def test_a_trainer_that_ends_before_it_begins_is_given_up_after_three_starts_and_the_reason_told(
    rig, caplog, name, status
):
    rig.queue.enqueue(name)
    rig.queue.enqueue("next")
    rig.run_until(lambda: rig.states() == {name: "failed", "next": "done"})
    assert rig.counters.failed_starts == 3
    assert rig.counters.failures == (3 if status else 0)
    training = rig.queue.get(name)
    assert training.attempts == 3
    assert (
        f"could not be begun in 3 attempts; the last one: the process that trains has ended with status {status}"
        in (training.reason)
    )
    assert ("no room\\x1b for it" if status else f"I train {name}") in training.reason
    assert str(rig.folder / "trainer.log") in training.reason
    assert training.reason in caplog.text
    again = rig.queue.enqueue(name, again=True)
    assert (again.state, again.attempts, again.reason) == ("queued", 0, "")


def test_starts_that_fail_count_together_with_trainers_that_died_at_work(rig):
    rig.queue.enqueue("unbegun")
    rig.queue.update(replace(rig.queue.get("unbegun"), state="running", started_s=1.0, attempts=2))
    rig.run_until(lambda: rig.counters.failed_starts)
    training = rig.queue.get("unbegun")
    assert (rig.counters.failed_starts, training.attempts, training.state) == (1, 3, "failed")


def test_a_trainer_that_was_told_to_stop_may_come_again(rig):
    rig.queue.enqueue("stopped")
    rig.run_until(lambda: rig.counters.failures >= 4)
    assert rig.counters.failed_starts == 0
    training = rig.queue.get("stopped")
    assert (training.state, training.attempts) == ("queued", 0)


def test_a_program_that_is_not_there_is_given_up_and_does_not_end_the_collector(tmp_path, caplog):
    rig = Rig(tmp_path)
    rig.command = lambda _: ("/nowhere/at/all",)
    rig.trainings = Trainings(rig.queue, rig.command, rig.counters, interval_s=0.05)
    rig.queue.enqueue("good")
    rig.run_until(lambda: rig.counters.failed_starts == 3)
    assert rig.states() == {"good": "failed"}
    assert "cannot be started" in caplog.text
    assert "/nowhere/at/all" in rig.queue.get("good").reason
    assert rig.counters.failed_starts == 3


def test_data_are_a_folder_of_the_dataset_type_s_name_and_digits_are_bundled(tmp_path):
    queue, out, datasets = tmp_path / "queue", tmp_path / "out", tmp_path / "data"
    for name in ("landscapes", "cifar10"):
        (datasets / name).mkdir(parents=True)

    def given(dataset_type, folder=datasets):
        command = trainer_command(dataset_type, queue, out, folder)
        return command and command[command.index("--dataset") + 1 :]

    assert given("digits") == given("digits", None) == ("digits",)
    assert given("landscapes") == (f"landscapes={datasets / 'landscapes'}",)
    assert given("cifar10") == (f"cifar10={datasets / 'cifar10'}",)
    assert given("voices") is None
    assert given("landscapes", None) is None
    command = trainer_command("digits", queue, out, None)
    assert command[3:9] == ("workload", "train", "--queue", str(queue), "--out", str(out))


def test_the_command_line_is_one_that_the_program_takes(tmp_path):
    (tmp_path / "queue").mkdir()
    done = subprocess.run(
        trainer_command("digits", tmp_path / "queue", tmp_path / "out", None),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "usage" not in done.stderr
    if has_torch():  # nothing waits, so that nothing is to be done
        assert done.returncode == 0, done.stderr
    else:
        assert "'gpusonde workload train' needs torch" in done.stderr


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_trainer_can_be_stopped_where_the_collector_is_a_background_job_that_ignores_sigint(tmp_path, sent):
    program = trainer_command("digits", tmp_path, tmp_path, None)[2]
    trains = program.replace("from gpusonde.cli.main import main", "import time\nmain = lambda: time.sleep(600)")
    assert trains != program
    trains = trains.replace("sys.exit(main())", "print('begun', flush=True)\nsys.exit(main())")
    as_a_script_does = ("sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", trains)
    with subprocess.Popen(as_a_script_does, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout.readline() == "begun\n"
        trainer.send_signal(sent)
        _, complaint = trainer.communicate(timeout=200)
    assert complaint.endswith("KeyboardInterrupt\n")


@pytest.mark.skipif(has_torch(), reason="torch is installed")
def test_without_torch_the_collector_only_queues(tmp_path, model_file):
    with (
        ThreadCollector(tmp_path / "data", workload__train="true", workload__model=model_file) as running,
        WorkloadClient(running.target) as client,
    ):
        graph = {"content": graph_json()}
        (answer,) = client.predict(
            [{"graph": graph, "batch_size": 1, "cluster": {"device": "T4"}, "dataset_type": "voices"}]
        )
        assert "gpusonde workload train --queue" in answer["prediction"]["embedding"]["note"]


def test_the_collector_never_imports_torch():
    code = (
        "import sys, gpusonde.collector.daemon\n"
        "import gpusonde.collector.workload.answering\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_states_are_seen_in_the_metrics(tmp_path, model_file):
    with ThreadCollector(tmp_path / "data", metrics__listen="127.0.0.1:0", workload__model=model_file) as running:
        queue = TrainingQueue(tmp_path / "data" / "trainings")
        queue.enqueue("voices")
        with WorkloadClient(running.target) as client:
            graph = {"content": graph_json()}
            client.predict([{"graph": graph, "batch_size": 1, "cluster": {"device": "T4"}, "dataset_type": "sounds"}])

        address = (tmp_path / "data" / "metrics_address").read_text().strip()

        def read():
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=200) as answer:
                return answer.read().decode()

        wait_until(lambda: 'workload_trainings{state="queued"} 2.0' in read())
        text = read()
        assert any(f'workload_answers_total{{status="{each}"}} 1.0' in text for each in ("ok", "out_of_distribution"))
