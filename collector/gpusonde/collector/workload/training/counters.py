"""``TrainingCounters``: what trainings came to."""

from __future__ import annotations

from dataclasses import dataclass, field


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
