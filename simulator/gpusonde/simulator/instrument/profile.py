"""``profile``: compute curve and gradient trace of a training job, measured on the device where its model lies.

It runs the user's own model in the user's own process, some seconds per batch size. The result is a ``JobProfile``.
``Stopwatch`` takes time on the device that computes: CUDA runs behind the host, so that the host's clock says little
about it. ``GradientRecorder`` notes when each gradient of a backward pass is ready, by hooks that torch calls once it
has accumulated one.
"""

from __future__ import annotations

import gc
import itertools
import logging
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import torch

from gpusonde.errors import MeasurementError, ProblemError
from gpusonde.simulator.compute import ComputeProbe, search
from gpusonde.simulator.gradients import DEFAULT_BUCKET_BYTES, DEFAULT_FIRST_BUCKET_BYTES, FloatArray, GradientTrace
from gpusonde.simulator.job_profile import JobProfile


class Stopwatch:
    """Marks instants in the order of the device's work; what lies between two is asked for after ``wait``.

    On CUDA a mark is an event in the stream: the host runs ahead as in a real training loop, and neither its own pauses
    nor a synchronisation per step count. On a CPU it is the monotonic clock.

    Args:
        device: Where the model computes.

    Raises:
        ValueError: A device of which we cannot tell the time.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type not in {"cuda", "cpu"}:
            raise ValueError(f"profiles are measured on cuda or cpu, not on {device.type}")
        self._device = device

    def mark(self) -> Any:
        """Mark this instant of the device's work."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def wait(self) -> None:
        """Wait until the device has passed all marks."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    @staticmethod
    def seconds_between(earlier: Any, later: Any) -> float:
        """Return the seconds between two marks, after ``wait``."""
        if isinstance(earlier, float):
            return float(later - earlier)
        return float(earlier.elapsed_time(later)) / 1000.0


class GradientRecorder:
    """Records backward passes while it is entered, and leaves no hook behind.

    DistributedDataParallel learns at the same instant that it may send a gradient (hook on its accumulator).

    Args:
        model: Of which all parameters with gradients are watched.
        stopwatch: Of the device that it computes on.
    """

    def __init__(self, model: torch.nn.Module, stopwatch: Stopwatch) -> None:
        self._parameters = [each for each in model.parameters() if each.requires_grad and each.numel()]
        self._stopwatch = stopwatch
        self._handles: list[Any] = []
        self._marks: list[dict[int, Any]] = []
        self._passes: list[tuple[Any, Any]] = []
        self._sparse = False

    def __enter__(self) -> GradientRecorder:
        for place, parameter in enumerate(self._parameters):
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(place)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def record(self, backward: Callable[[], None]) -> None:
        """Run a backward pass and record it."""
        self._marks.append({})
        start = self._stopwatch.mark()
        backward()
        self._passes.append((start, self._stopwatch.mark()))

    def trace(self, bucket_bytes: int, first_bucket_bytes: int) -> GradientTrace:
        """Return the buckets of the recorded passes: the median of their shares, in the order of that.

        Args:
            bucket_bytes: Size at which a bucket is closed.
            first_bucket_bytes: That of the first one.

        Raises:
            ValueError: No gradient came, another set of them in another pass, or sparse ones.
        """
        self._stopwatch.wait()
        places = sorted(self._marks[0]) if self._marks else []
        if not places:
            raise ValueError("no parameter got a gradient: the loss does not depend on the model")
        if any(sorted(marks) != places for marks in self._marks):
            raise ValueError("not the same parameters got gradients in every step; such a job has no one trace")
        if self._sparse:
            raise ValueError("the model has sparse gradients, which are not exchanged by an allreduce of buckets")
        seconds = self._stopwatch.seconds_between
        shares = [
            [seconds(start, marks[place]) / seconds(start, end) for place in places]
            for marks, (start, end) in zip(self._marks, self._passes, strict=True)
        ]
        ready = np.clip(np.median(shares, axis=0), 0.0, 1.0)
        order = np.argsort(ready, kind="stable")
        parameters = [self._parameters[places[each]] for each in order]
        return _buckets(ready[order], parameters, bucket_bytes, first_bucket_bytes)

    def _hook(self, place: int) -> Callable[[torch.Tensor], None]:
        def note(parameter: torch.Tensor) -> None:
            if self._marks:
                self._marks[-1][place] = self._stopwatch.mark()
                self._sparse = self._sparse or (parameter.grad is not None and parameter.grad.is_sparse)

        return note


def _buckets(
    ready: Any, parameters: Sequence[torch.nn.Parameter], bucket_bytes: int, first_bucket_bytes: int
) -> GradientTrace:
    """Gather gradients as torch's reducer does once it has seen their order: each data type in buckets of its own."""
    fractions, sizes = [], []
    for kind in dict.fromkeys(each.dtype for each in parameters):
        chosen = [place for place, each in enumerate(parameters) if each.dtype == kind]
        lengths = np.array([float(parameters[place].numel() * parameters[place].element_size()) for place in chosen])
        gathered = GradientTrace(ready[chosen], lengths).bucketed(bucket_bytes, first_bucket_bytes)
        fractions.append(gathered.ready_fractions)
        sizes.append(gathered.bucket_bytes)
    all_fractions, all_sizes = np.concatenate(fractions), np.concatenate(sizes)
    order = np.argsort(all_fractions, kind="stable")
    return GradientTrace(all_fractions[order], all_sizes[order])


_Result = TypeVar("_Result")

_LOG = logging.getLogger(__name__)
_LEAST_STEPS = 3
# Networks that normalise over a batch refuse to train on one sample.
_SMALLEST_BATCH = 2
_PROBED_RANGE = 64  # largest over smallest batch size
_SEARCH_TOLERANCE = 0.03
# Of a normal distribution: standard deviation over median absolute deviation.
_MAD_TO_DEVIATION = 1.4826
# Srifty, section 2.2: computation varies by a factor of 1.1 in all.
_USUAL_SPREAD = 0.1


@dataclass(frozen=True)
class TrainingJob:
    """What ``profile`` needs of a training job; a user's entry point returns one.

    Attributes:
        model: The bare module (not wrapped for several devices), on its device, in training mode.
        make_batch: Returns a batch of the given number of samples, on the same device, as the job's loader would.
        loss: Runs the forward pass, ``loss(model, batch)``, and returns a single number to go backward from.
        optimizer: The job's optimizer; None stands for plain SGD, which is faster than most.
    """

    model: torch.nn.Module
    make_batch: Callable[[int], Any]
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]
    optimizer: torch.optim.Optimizer | None = None


def profile(
    model: torch.nn.Module,
    make_batch: Callable[[int], Any],
    loss: Callable[[torch.nn.Module, Any], torch.Tensor],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    batch_sizes: Sequence[int] | None = None,
    largest_batch: int | None = None,
    find_largest: bool | None = None,
    steps: int = 20,
    warm_up: int = 3,
    seconds_per_batch: float = 30.0,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    first_bucket_bytes: int = DEFAULT_FIRST_BUCKET_BYTES,
) -> JobProfile:
    """Measure a training job. The model is trained on for some steps: hand over one that is not needed afterwards.

    Args:
        model: See ``TrainingJob``, like the next three.
        make_batch: See there.
        loss: See there.
        optimizer: See there.
        batch_sizes: Samples per step to time, two different ones or more; None takes four, each a quarter of the next,
            up to the largest batch.
        largest_batch: Largest batch size that fits into the device's memory, where it is known.
        find_largest: Whether to find it by trying, to about 3 %, with room for the buckets that
            DistributedDataParallel needs beside the gradients. None: on a GPU, where neither of the two above is given.
            Not on a CPU unless told to: there too large a batch ends the process.
        steps: Timed steps per batch size, 3 or more; fewer, but 3, where they take longer than ``seconds_per_batch``.
        warm_up: Steps before those, 1 or more, per batch size.
        seconds_per_batch: See ``steps``.
        bucket_bytes: ``bucket_cap_mb`` of DistributedDataParallel. Where the job sets it, both limits have its value.
        first_bucket_bytes: Size at which torch closes the first bucket when ``bucket_cap_mb`` is left to it.

    Raises:
        MeasurementError: A job that cannot be profiled, or a batch that does not fit.
    """
    if steps < _LEAST_STEPS or warm_up < 1:
        raise MeasurementError(f"steps must be {_LEAST_STEPS} or more and warm_up 1 or more")
    session = _Session(TrainingJob(model, make_batch, loss, optimizer), warm_up)
    if find_largest or (find_largest is None and session.is_gpu and batch_sizes is None and largest_batch is None):
        largest_batch = session.largest_batch()
        _LOG.info("largest batch that fits: %d", largest_batch)
    chosen = _batch_sizes(batch_sizes, largest_batch)
    probes = []
    for batch_size in chosen:
        timed = session.time_steps(batch_size, steps, seconds_per_batch)
        probes.append(timed.probe(batch_size))
        _LOG.info("batch size %d: %.6f s a step, %d steps", batch_size, probes[-1].total_s, timed.forward_s.size)
    scattering = [probe.batch_size for probe in probes if probe.spread is not None and probe.spread > _USUAL_SPREAD]
    if scattering:
        _LOG.warning(
            "steps of batch size %s scatter by more than %d %%: is the device busy with something else?",
            ", ".join(f"{each:g}" for each in scattering),
            100 * _USUAL_SPREAD,
        )
    gradients = session.gradients(chosen[-1], timed.forward_s.size, bucket_bytes, first_bucket_bytes)
    return JobProfile(
        device=session.device_name,
        probes=tuple(probes),
        gradients=gradients,
        # Its work depends on the parameters alone; the last batch size has warmed it up best.
        optimizer_s=float(np.median(timed.optimizer_s)),
        largest_batch=largest_batch,
    )


def _batch_sizes(batch_sizes: Sequence[int] | None, largest_batch: int | None) -> list[int]:
    if batch_sizes is None:
        if largest_batch is None:
            raise MeasurementError(
                "say which batch sizes to time (--batch-sizes), or the largest batch that fits (--largest-batch)"
            )
        if largest_batch <= _SMALLEST_BATCH:
            raise MeasurementError(f"a curve needs two batch sizes, and no more than {largest_batch} samples fit")
        batch_sizes = search.batches_to_probe(largest_batch, max(_SMALLEST_BATCH, largest_batch // _PROBED_RANGE))
    chosen = sorted(set(batch_sizes))
    if len(chosen) < 2 or chosen[0] < 1:
        raise MeasurementError(f"a curve needs two batch sizes or more, 1 or larger, not {chosen}")
    if largest_batch is not None and chosen[-1] > largest_batch:
        raise MeasurementError(f"batch size {chosen[-1]} is larger than the largest that fits, {largest_batch}")
    return chosen


@dataclass(frozen=True)
class _TimedSteps:
    """Seconds of the parts of some steps, each of shape (n,)."""

    forward_s: FloatArray
    backward_s: FloatArray
    optimizer_s: FloatArray

    def probe(self, batch_size: int) -> ComputeProbe:
        """Medians, and a spread that single interrupted steps do not move."""
        total = self.forward_s + self.backward_s
        median = float(np.median(total))
        spread = _MAD_TO_DEVIATION * float(np.median(np.abs(total - median))) / median
        forward_s = median * float(np.median(self.forward_s / total))
        return ComputeProbe(batch_size, median, forward_s, spread)


class _Session:
    """Runs steps of one job.

    Raises:
        MeasurementError: A model without trainable parameters, spread over devices, or on a device that we cannot time.
    """

    def __init__(self, job: TrainingJob, warm_up: int) -> None:
        parameters = [each for each in job.model.parameters() if each.requires_grad]
        devices = {each.device for each in parameters}
        if len(devices) != 1:
            raise MeasurementError(
                f"the model's trainable parameters lie on {len(devices)} devices, but a profile is of one: data "
                "parallelism puts a whole model on each"
            )
        self._job = job
        self._warm_up = warm_up
        self._parameters = parameters
        self._optimizer = job.optimizer or torch.optim.SGD(parameters, lr=0.0)
        self._device = devices.pop()
        try:
            self._stopwatch = Stopwatch(self._device)
        except ValueError as error:
            raise MeasurementError(str(error)) from error

    @property
    def device_name(self) -> str:
        """Model of the device."""
        if self.is_gpu:
            return str(torch.cuda.get_device_name(self._device))
        return f"CPU {platform.machine()}"

    @property
    def is_gpu(self) -> bool:
        """Whether the model lies on a GPU."""
        return bool(self._device.type == "cuda")

    def largest_batch(self) -> int:
        """Find the largest batch by running steps.

        Raises:
            MeasurementError: Nothing fits.
        """
        # The buckets that gradients are exchanged in; the job has them when it trains on several devices.
        reserved = [torch.empty_like(each) for each in self._parameters]
        found = search.largest_batch(
            self._try, at_least=_SMALLEST_BATCH, tolerance=_SEARCH_TOLERANCE, release=self._forget
        )
        del reserved
        self._forget()
        return found.batch_size

    def time_steps(self, batch_size: int, steps: int, seconds: float) -> _TimedSteps:
        """Time steps at one batch size.

        Raises:
            MeasurementError: The batch does not fit.
        """
        return self._within_memory(batch_size, lambda: self._time_steps(batch_size, steps, seconds))

    def gradients(self, batch_size: int, steps: int, bucket_bytes: int, first_bucket_bytes: int) -> GradientTrace:
        """Record when gradients are ready, in steps of their own: the hooks take time in every one.

        Raises:
            MeasurementError: A job whose gradients have no one trace.
        """
        recorder = GradientRecorder(self._job.model, self._stopwatch)

        def record() -> None:
            with recorder:
                for _ in range(steps):
                    loss = self._loss(self._job.make_batch(batch_size))
                    recorder.record(loss.backward)
                    self._finish_step()

        self._within_memory(batch_size, record)
        try:
            return recorder.trace(bucket_bytes, first_bucket_bytes)
        except (ValueError, ProblemError) as error:
            raise MeasurementError(str(error)) from error

    def _time_steps(self, batch_size: int, steps: int, seconds: float) -> _TimedSteps:
        for _ in range(self._warm_up):
            self._stopwatch.wait()
            begin = time.monotonic()
            self._step(batch_size)
            self._stopwatch.wait()
            last_s = time.monotonic() - begin
        affordable = math.ceil(seconds / last_s)
        marks = [self._step(batch_size) for _ in range(min(steps, max(_LEAST_STEPS, affordable)))]
        self._stopwatch.wait()
        between = self._stopwatch.seconds_between
        parts = np.array([[between(*pair) for pair in itertools.pairwise(step)] for step in marks])
        return _TimedSteps(*parts.T)

    def _try(self, batch_size: int) -> None:
        self._step(batch_size)
        self._stopwatch.wait()

    def _step(self, batch_size: int) -> tuple[Any, Any, Any, Any]:
        """Run one step and return the marks at its start and behind each of its parts."""
        batch = self._job.make_batch(batch_size)
        start = self._stopwatch.mark()
        loss = self._loss(batch)
        forward = self._stopwatch.mark()
        loss.backward()
        backward = self._stopwatch.mark()
        self._finish_step()
        return start, forward, backward, self._stopwatch.mark()

    def _loss(self, batch: Any) -> torch.Tensor:
        loss = self._job.loss(self._job.model, batch)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise MeasurementError("loss(model, batch) must return a tensor of one number that depends on the model")
        return loss

    def _finish_step(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _within_memory(self, batch_size: int, run: Callable[[], _Result]) -> _Result:
        try:
            return run()
        except Exception as error:
            if not search.looks_out_of_memory(error):
                raise
        # Behind the error: its traceback held the step's tensors.
        self._forget()
        raise MeasurementError(f"batch size {batch_size} does not fit into the memory of {self.device_name}")

    def _forget(self) -> None:
        """Free what a step left behind that ran out of memory."""
        self._optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()
