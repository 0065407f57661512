"""``JobProfile``: what was measured of one training job on one device, as a file that anybody may read.

It holds times and sizes; no weights, no code and nothing of the data. Writing one needs torch
(``gpusonde.simulator.instrument.profile``), reading one does not.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gpusonde.documents import ListOf, Number, Text, Whole, read_as
from gpusonde.errors import ProblemError
from gpusonde.simulator.compute import ComputeCurve, ComputeProbe, CurveKind, fit_compute_curve
from gpusonde.simulator.compute.fitting import LARGEST_BATCH, LONGEST_S
from gpusonde.simulator.gradients import GradientTrace

PROFILE_FORMAT = "gpusonde.profile/1"
_MOST_PROBES = 1000
_LONGEST_NAME = 200


@dataclass(frozen=True)
class JobProfile:
    """What was measured of a training job on one device.

    Attributes:
        device: Model of the device, as its driver names it.
        probes: Timed steps, at two batch sizes or more.
        gradients: When its buckets of gradients are ready, and how large they are.
        optimizer_s: Seconds of the optimizer step.
        largest_batch: Largest batch size that fits into the device's memory; None when nobody looked.

    Raises:
        ProblemError: Figures that no job can have.
    """

    device: Annotated[str, Text(longest=_LONGEST_NAME)]
    probes: Annotated[tuple[ComputeProbe, ...], ListOf(_MOST_PROBES)]
    gradients: GradientTrace
    optimizer_s: Annotated[float, Number(least=0.0, most=LONGEST_S)]
    largest_batch: Annotated[int, Whole(most=LARGEST_BATCH)] | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.device) <= _LONGEST_NAME:
            raise ProblemError(f"device needs a name of 1 to {_LONGEST_NAME} characters")
        if not (math.isfinite(self.optimizer_s) and self.optimizer_s >= 0):
            raise ProblemError(f"optimizer_s {self.optimizer_s} must be finite and not negative")
        if self.largest_batch is not None and self.largest_batch < 1:
            raise ProblemError(f"largest_batch {self.largest_batch} must be 1 or more")
        if len(self.probes) > _MOST_PROBES:
            raise ProblemError(f"{len(self.probes)} probes are too many; {_MOST_PROBES} is the limit")
        try:
            self.curve()
        except ValueError as error:
            raise ProblemError(str(error)) from error

    def curve(self, kind: CurveKind = "default") -> ComputeCurve:
        """Return the compute curve of the probes."""
        return fit_compute_curve(self.probes, kind, largest_batch=self.largest_batch)

    def as_json(self) -> dict[str, Any]:
        """Return the profile as plain values, as its file holds them."""
        return {
            "format": PROFILE_FORMAT,
            "device": self.device,
            "probes": [
                {
                    "batch_size": probe.batch_size,
                    "total_s": probe.total_s,
                    "forward_s": probe.forward_s,
                    "spread": probe.spread,
                }
                for probe in self.probes
            ],
            "gradients": self.gradients.as_json(),
            "optimizer_s": self.optimizer_s,
            "largest_batch": self.largest_batch,
        }

    def write(self, path: Path) -> None:
        """Write the profile as JSON.

        Raises:
            OSError: The file cannot be written.
        """
        path.write_text(json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> JobProfile:
        """Read a profile.

        Raises:
            DocumentError: The file is larger than a profile can be, no JSON, or no profile.
            OSError: It cannot be read.
        """
        return read_as(cls, path, "profile")
