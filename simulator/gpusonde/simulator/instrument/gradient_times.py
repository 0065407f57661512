"""When each gradient of a backward pass is ready, by hooks that torch calls once it has accumulated one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch

from gpusonde.simulator.gradients import GradientTrace
from gpusonde.simulator.instrument.stopwatch import Stopwatch


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
