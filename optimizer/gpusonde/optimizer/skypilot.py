"""A time estimator for SkyPilot tasks, which otherwise all take one hour.

SkyPilot compares machines by price times duration, and asks ``Task.set_time_estimator``'s function for the duration;
without one every task takes an hour on every GPU, so that the cheapest hour always wins. ``set_time_estimator`` answers
from a ``Problem`` and its ``StepTimes``. Nothing of SkyPilot is imported here: it is the caller who has it, and the
function is in every release from 0.1.1 to 0.14.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from gpusonde.catalog import GpuCatalog, UnknownGpuError, load_gpus
from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import Billing, Group, MachineOffer, Plan, Problem
from gpusonde.optimizer.step_times import StepTimes


class SkyResources(Protocol):
    """What is read of a ``sky.Resources``, complete or not."""

    @property
    def accelerators(self) -> Mapping[str, float] | None:
        """Name of the accelerator -> how many per machine; None without one."""
        ...

    @property
    def instance_type(self) -> str | None:
        """The provider's name of the machine; None while open."""
        ...

    @property
    def region(self) -> str | None:
        """Region; None while open."""
        ...

    @property
    def zone(self) -> str | None:
        """Zone; None while open."""
        ...

    @property
    def use_spot(self) -> bool:
        """Whether the machine may be taken away."""
        ...


class SkyTask(Protocol):
    """What is used of a ``sky.Task``."""

    @property
    def num_nodes(self) -> int:
        """Machines of the task."""
        ...

    @property
    def resources(self) -> Iterable[SkyResources]:
        """Resources that the task can run on."""
        ...

    def set_time_estimator(self, func: Any) -> Any:
        """Take the function from resources to seconds."""
        ...


class SkyTimeEstimator:
    """Seconds that a job takes on SkyPilot resources, for ``sky.Task.set_time_estimator``.

    Every machine of the task is of one kind and every GPU gets the same share of the global batch. Of several offers
    that fit incomplete resources the slowest counts. The estimate is the mean, with the problem's overhead and without
    preemptions.

    Args:
        problem: Global batch, iterations and offers; its limits are not looked at, SkyPilot has none.
        steps: How long an iteration takes.
        machines: ``num_nodes`` of the task.
        devices: SkyPilot's name of an accelerator -> ``MachineOffer.device``, where the catalogue does not
            match the two.
        gpus: Knows other spellings of GPUs; the shipped catalogue by default.

    Raises:
        ValueError: Fewer than one machine.
    """

    def __init__(
        self,
        problem: Problem,
        steps: StepTimes,
        machines: int = 1,
        *,
        devices: Mapping[str, str] | None = None,
        gpus: GpuCatalog | None = None,
    ) -> None:
        if machines < 1:
            raise ValueError(f"a task runs on one machine or more, not {machines}")
        self._problem = problem
        self._steps = steps
        self._machines = machines
        self._devices = dict(devices or {})
        self._gpus = gpus if gpus is not None else load_gpus()

    def __call__(self, resources: SkyResources) -> float:
        """Return whole seconds, infinite when the job does not run there: too little memory, an uneven split.

        Raises:
            ProblemError: No offer describes the resources.
        """
        seconds = max(self._seconds(offer) for offer in self._offers(resources))
        return seconds if math.isinf(seconds) else math.ceil(seconds)

    def _seconds(self, offer: MachineOffer) -> float:
        devices = self._machines * offer.devices
        batch_size, rest = divmod(self._problem.global_batch, devices)
        too_large = offer.largest_batch is not None and batch_size > offer.largest_batch
        if rest or batch_size < offer.smallest_batch or too_large:
            return math.inf
        step = self._steps.estimate(Plan((Group(offer.name, self._machines, batch_size),)))
        return self._problem.overhead_s + self._problem.iterations * step.mean_s

    def _offers(self, resources: SkyResources) -> list[MachineOffer]:
        accelerators = dict(resources.accelerators or {})
        if len(accelerators) != 1:
            raise ProblemError(f"resources {resources} name no GPU: give the task's resources accelerators")
        ((name, count),) = accelerators.items()
        billing = Billing.SPOT if resources.use_spot else Billing.ON_DEMAND
        found = [
            offer
            for offer in self._problem.offers
            if offer.devices == count and offer.device in self._names(name, self._problem.offers)
        ]
        if not found:
            known = ", ".join(sorted({f"{offer.device}:{offer.devices}" for offer in self._problem.offers}))
            raise ProblemError(
                f"no offer has {count:g} {name} per machine; there are {known}. Add an offer, or name "
                f"with devices the GPU that {name} is"
            )
        # The rest only narrows the choice: how long an iteration takes does not depend on how it is paid for.
        for fits in (
            lambda offer: offer.billing is billing,
            lambda offer: resources.instance_type in offer.name.split("/"),
            lambda offer: resources.region is not None and resources.region in offer.region.split("/"),
            lambda offer: resources.zone is not None and offer.zone == resources.zone,
        ):
            found = [offer for offer in found if fits(offer)] or found
        return found

    def _names(self, accelerator: str, offers: Iterable[MachineOffer]) -> set[str]:
        """Devices of offers that an accelerator's name means: exactly, else every variant of it."""
        devices = {offer.device for offer in offers}
        meant = self._devices.get(accelerator, accelerator)
        if meant in devices:
            return {meant}
        try:
            resolution = self._gpus.resolve(meant)
        except UnknownGpuError:
            return set()
        return {resolution.spec.name} & devices or set(resolution.candidates) & devices


def set_time_estimator(
    task: SkyTask,
    problem: Problem,
    steps: StepTimes,
    *,
    devices: Mapping[str, str] | None = None,
    gpus: GpuCatalog | None = None,
) -> SkyTimeEstimator:
    """Give a SkyPilot task its durations; call it again after a change of ``num_nodes``.

    Args:
        task: A ``sky.Task`` whose resources are set.
        problem: As for ``SkyTimeEstimator``.
        steps: Likewise.
        devices: Likewise.
        gpus: Likewise.

    Raises:
        ProblemError: Resources of the task that no offer describes, or none on which the job runs.
    """
    estimator = SkyTimeEstimator(problem, steps, task.num_nodes, devices=devices, gpus=gpus)
    # Now, and not in the middle of SkyPilot's optimizer.
    seconds = [estimator(resources) for resources in task.resources]
    if all(map(math.isinf, seconds)):
        raise ProblemError(
            f"the global batch of {problem.global_batch} runs on none of the task's resources with num_nodes "
            f"{task.num_nodes}: it does not split evenly, or not into batches within the offers' limits"
        )
    task.set_time_estimator(estimator)
    return estimator
