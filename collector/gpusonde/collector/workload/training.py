"""Training of embeddings that answers had to do without: both ends of the queue.

In the collector, ``Trainings`` queues them, says how far they are, and runs the process that trains, where this
collector is to. In that process, which alone has torch, ``drain`` takes one after the other from the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpusonde.collector.workload.training_queue import (
    DONE,
    FAILED,
    QUEUED,
    RUNNING,
    Training,
    TrainingQueue,
)
from gpusonde.errors import EncoderError
from gpusonde.service.process import within


@dataclass
class TrainingCounters:
    """What the trainings of this collector came to.

    Attributes:
        states: Trainings by state, at the last look.
        failures: Processes that ended with an error.
        failed_starts: Processes that could not be started, or ended before they began a training.
    """

    states: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    failed_starts: int = 0


# Called with the steps done and all steps.
Progress = Callable[[int, int], None]
# A dataset type, where to report progress -> SHA-256 of the encoder that came of it.
Train = Callable[[str, Progress], str]


def drain(
    queue: TrainingQueue,
    train: Train,
    ended: Callable[[Training], None] = lambda _: None,
    dataset_types: Collection[str] | None = None,
) -> int:
    """Train until nothing waits any more.

    Whatever goes wrong with a training is its reason, and the next one follows. What ends the process (a signal) leaves
    the training queued.

    Args:
        queue: The queue.
        train: Trains one encoder and puts it where the collector finds it.
        ended: Called with each training that has ended.
        dataset_types: Those that there are data for; others go on waiting. None for any.

    Returns:
        How many came to a good end.

    Raises:
        EncoderError: The queue cannot be used.
    """
    count = 0
    while lease := queue.claim(dataset_types):
        with lease:
            try:
                lease.done(train(lease.training.dataset_type, lease.progress))
            except EncoderError as error:
                lease.failed(str(error))
            except Exception as error:  # its reason is for whoever asks; the others wait
                lease.failed(f"{type(error).__name__}: {error}")
        count += lease.training.state == DONE
        ended(lease.training)
    return count


_LOG = logging.getLogger(__name__)
# Others may write into the queue too, and what a process leaves behind when it dies waits again.
_LOOK_INTERVAL_S = 60.0
_END_GRACE_S = 10.0
_TRAINER_LOG = "trainer.log"
_LOG_END_BYTES = 4096
_LONGEST_QUOTE = 200
# What a process ends with that was told to stop: as a program that catches the signal, or by the signal itself.
_STOPPED = (128 + signal.SIGINT, -signal.SIGINT, -signal.SIGTERM)
_BUNDLED = "digits"
# The trainer needs torch, which the collector never imports. It is niced, since records of agents come first, and what
# stops a service (systemd ends the whole group) is a wish to stop, after which the training goes on another time. A
# collector that a script started in the background passes on an ignored SIGINT, by which it could not end its trainer.
_TRAINER = """
import os, signal, sys
os.nice(15)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
from gpusonde.cli.main import main
sys.exit(main())
"""


def trainer_command(dataset_type: str, queue: Path, embeddings: Path, datasets: Path | None) -> tuple[str, ...] | None:
    """Return the command line of a process that trains for one dataset type; None where there are no data of it.

    Args:
        dataset_type: Its name; "digits" is bundled.
        queue: The queue's folder.
        embeddings: The registry's folder.
        datasets: Folder with a folder of images for each dataset type, "cifar10" being its binary version.
    """
    folder = datasets / dataset_type if datasets else None
    if folder is not None and folder.is_dir():
        data = f"{dataset_type}={folder}"
    elif dataset_type == _BUNDLED:
        data = _BUNDLED
    else:
        return None
    begin = (sys.executable, "-c", _TRAINER, "workload", "train", "--queue", str(queue), "--out", str(embeddings))
    return (*begin, "--dataset", data)


def has_torch() -> bool:
    """Tell whether a process of this Python could import torch; looked up, not imported."""
    return importlib.util.find_spec("torch") is not None


class Trainings:
    """Knows the queue; trains where it is to.

    Args:
        queue: The queue.
        command: Dataset type -> command line of a process that trains for it; None where this collector cannot.
        counters: Where trainings are counted.
        interval_s: Time between two looks.
    """

    def __init__(
        self,
        queue: TrainingQueue,
        command: Callable[[str], tuple[str, ...] | None],
        counters: TrainingCounters,
        interval_s: float = _LOOK_INTERVAL_S,
    ) -> None:
        self.queue = queue
        self._command = command
        self._counters = counters
        self._interval_s = interval_s
        self._woken = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None

    def enqueue_if_absent(self, dataset_type: str) -> dict[str, Any]:
        """Queue what an answer had to do without; return what to say of it. Blocks.

        Raises:
            EncoderError: It is no name of a dataset type.
            EncoderError: The queue cannot be used.
        """
        training = self.queue.enqueue_if_absent(dataset_type)
        if training is None:
            return {"note": "too many trainings wait already, so that none was queued"}
        if training.state == QUEUED:
            how = "" if self._command(dataset_type) else ", for whoever runs 'gpusonde workload train --queue'"
            more = f"its training is queued{how}"
        elif training.state == RUNNING:
            of_all = f" of {training.total_steps}" if training.total_steps else ""
            more = f"it is being trained, {training.completed_steps}{of_all} steps are done"
        elif training.state == FAILED:
            more = f"its training has failed ({training.reason}); an admin can queue it again"
        else:
            more = "its training is done, but not where this collector looks (workload.embeddings)"
        return {"training": training_document(training), "note": more}

    def wake(self) -> None:
        """Have the queue looked at now."""
        self._woken.set()

    async def run(self) -> None:
        """Look after the queue until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._woken.clear()
                try:
                    found = await loop.run_in_executor(None, self._look)
                    if found is not None:
                        await self._train(*found)
                except EncoderError as error:
                    _LOG.error("the queue of trainings cannot be used: %s", error)
                await self._rest()
        finally:
            await self._end()

    async def _rest(self) -> None:
        """Wait for the next look."""
        with contextlib.suppress(asyncio.TimeoutError):
            await within(self._woken.wait(), self._interval_s)

    def _look(self) -> tuple[Training, tuple[str, ...]] | None:
        """Count the trainings, and return the next one with its command, if it can begin."""
        states = dict.fromkeys((QUEUED, RUNNING, DONE, FAILED), 0)
        trainings = self.queue.trainings()
        for training in trainings:
            states[training.state] += 1
        self._counters.states = states
        if states[RUNNING]:
            return None
        oldest_first = (training for training in reversed(trainings) if training.state == QUEUED)
        commands = ((training, self._command(training.dataset_type)) for training in oldest_first)
        return next(((training, command) for training, command in commands if command is not None), None)

    async def _train(self, training: Training, command: tuple[str, ...]) -> None:
        # Its progress is many lines, and they are not those of the collector's log.
        said = self.queue.directory / _TRAINER_LOG
        try:
            with said.open("wb") as file:
                self._process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, env=dict(os.environ)
                )
        except OSError as error:
            _LOG.error("the process that trains cannot be started: %s", error)
            await self._count_failed_start(training, f"the process that trains cannot be started: {error}")
            return
        _LOG.info("process %d trains the embedding for %s", self._process.pid, training.dataset_type)
        code = await self._ended(self._process)
        self._process = None
        if code:
            self._counters.failures += 1
            _LOG.error("the process that trains has ended with status %d; %s holds what it said", code, said)
        if code in _STOPPED:
            return
        last = await asyncio.get_running_loop().run_in_executor(None, _last_line, said)
        reason = f"the process that trains has ended with status {code}, saying {last!r} ({said})"
        if not await self._count_failed_start(training, reason) and not code:
            # There may be more by now.
            self._woken.set()

    async def _count_failed_start(self, training: Training, reason: str) -> bool:
        """Count a start that came to nothing; one that began the training is in the queue's own count already."""
        tried = await asyncio.get_running_loop().run_in_executor(None, self.queue.record_failed_start, training, reason)
        if tried is None:
            return False
        self._counters.failed_starts += 1
        if tried.state == FAILED:
            _LOG.error("the embedding for %s is not trained: %s", training.dataset_type, tried.reason)
        return True

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Wait for a process and return its status; trainings are counted meanwhile."""
        waiting = asyncio.ensure_future(process.wait())
        try:
            while not (await asyncio.wait({waiting}, timeout=self._interval_s))[0]:
                with contextlib.suppress(EncoderError):  # looking again when it has ended says so
                    await asyncio.get_running_loop().run_in_executor(None, self._look)
            return waiting.result()
        finally:
            waiting.cancel()

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            # As Ctrl-C: the training waits again, and goes on from its last checkpoint.
            process.send_signal(signal.SIGINT)
        try:
            await within(process.wait(), _END_GRACE_S)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _last_line(path: Path) -> str:
    """Return the last line of a file that is not empty, as far as it can be printed."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_END_BYTES))
            lines = [line.strip() for line in file.read(_LOG_END_BYTES).decode(errors="replace").splitlines()]
    except OSError as error:
        return f"({error.strerror})"
    return next((line[-_LONGEST_QUOTE:] for line in reversed(lines) if line), "")


def training_document(training: Training) -> dict[str, Any]:
    """Return a training as a ``Training`` message has it."""
    return {
        "dataset_type": training.dataset_type,
        "state": training.state,
        "reason": training.reason,
        "queued_time": training.queued_s,
        "started_time": training.started_s,
        "ended_time": training.ended_s,
        "completed_steps": training.completed_steps,
        "total_steps": training.total_steps,
        "attempts": training.attempts,
        "encoder_sha256": training.encoder_sha256,
    }
