"""``JobProfile``: what was measured of one training job on one device, as a file that anybody may read.

It holds times and sizes; no weights, no code and nothing of the data. Writing one needs torch
(``gpusonde.simulator.instrument.profile``), reading one does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpusonde.simulator.compute import ComputeCurve, ComputeProbe, CurveKind, fit_compute_curve
from gpusonde.simulator.gradients import GradientTrace, GradientTraceError

PROFILE_FORMAT = "gpusonde.profile/1"
# A trace of the most buckets that one may have takes about 4 MB.
LARGEST_PROFILE_BYTES = 8 * 1024 * 1024
_MOST_PROBES = 1000
_LONGEST_NAME = 200
# Beyond these a figure is a mistake in its unit, or meant to break somebody's arithmetic.
_LARGEST_BATCH = 1 << 24
_LONGEST_S = 366 * 86_400.0
_SHORTEST_S = 1e-9
_LARGEST_SPREAD = 10.0


class JobProfileError(ValueError):
    """A file or an object that is no profile; the message says what is wrong."""


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
        JobProfileError: Figures that no job can have.
    """

    device: str
    probes: tuple[ComputeProbe, ...]
    gradients: GradientTrace
    optimizer_s: float
    largest_batch: int | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.device) <= _LONGEST_NAME:
            raise JobProfileError(f"device needs a name of 1 to {_LONGEST_NAME} characters")
        if not (math.isfinite(self.optimizer_s) and self.optimizer_s >= 0):
            raise JobProfileError(f"optimizer_s {self.optimizer_s} must be finite and not negative")
        if self.largest_batch is not None and self.largest_batch < 1:
            raise JobProfileError(f"largest_batch {self.largest_batch} must be 1 or more")
        if len(self.probes) > _MOST_PROBES:
            raise JobProfileError(f"{len(self.probes)} probes are too many; {_MOST_PROBES} is the limit")
        try:
            self.curve()
        except ValueError as error:
            raise JobProfileError(str(error)) from error

    def curve(self, kind: CurveKind = "default") -> ComputeCurve:
        """Return the compute curve of the probes."""
        return fit_compute_curve(self.probes, kind, largest_batch=self.largest_batch)

    def as_json(self) -> dict[str, Any]:
        """Return the profile as plain values, for ``from_json``."""
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

    @classmethod
    def from_json(cls, values: Any) -> JobProfile:
        """Return the profile of ``as_json``.

        Raises:
            JobProfileError: Something is missing or of another kind, or a later version wrote it.
        """
        values = _mapping(values, "a profile")
        if values.get("format") != PROFILE_FORMAT:
            raise JobProfileError(f"format is {values.get('format')!r}; this version reads {PROFILE_FORMAT!r}")
        device = values.get("device")
        if not isinstance(device, str):
            raise JobProfileError("device must be a text")
        probes = values.get("probes")
        if not isinstance(probes, list) or len(probes) > _MOST_PROBES:
            raise JobProfileError(f"probes must be a list of at most {_MOST_PROBES}")
        largest = _optional_number(values, "largest_batch", 1, _LARGEST_BATCH)
        try:
            gradients = GradientTrace.from_json(_mapping(values.get("gradients"), "gradients"))
        except GradientTraceError as error:
            raise JobProfileError(f"gradients: {error}") from error
        return cls(
            device=device,
            probes=tuple(_probe(_mapping(each, "a probe")) for each in probes),
            gradients=gradients,
            optimizer_s=_number(values, "optimizer_s", 0.0, _LONGEST_S),
            largest_batch=None if largest is None else int(largest),
        )

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
            JobProfileError: The file is larger than a profile can be, no JSON, or no profile.
            OSError: It cannot be read.
        """
        with path.open("rb") as file:
            data = file.read(LARGEST_PROFILE_BYTES + 1)
        if len(data) > LARGEST_PROFILE_BYTES:
            raise JobProfileError(f"{path} is larger than {LARGEST_PROFILE_BYTES} bytes, which no profile is")
        try:
            values = json.loads(data)
        # Nesting deeper than the parser's stack is a RecursionError; other encodings than UTF are no JSON.
        except (ValueError, RecursionError) as error:
            raise JobProfileError(f"{path} is no JSON: {error}") from error
        try:
            return cls.from_json(values)
        except JobProfileError as error:
            raise JobProfileError(f"{path}: {error}") from error


def _probe(values: Mapping[str, Any]) -> ComputeProbe:
    return ComputeProbe(
        batch_size=_number(values, "batch_size", 1, _LARGEST_BATCH),
        total_s=_number(values, "total_s", _SHORTEST_S, _LONGEST_S),
        forward_s=_optional_number(values, "forward_s", _SHORTEST_S, _LONGEST_S),
        spread=_optional_number(values, "spread", 0.0, _LARGEST_SPREAD),
    )


def _mapping(values: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise JobProfileError(f"{what} must be an object with names and values")
    return values


def _number(values: Mapping[str, Any], name: str, least: float, most: float) -> float:
    value = values.get(name)
    # A bool is an int in Python; a comparison with NaN is false.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise JobProfileError(f"{name} must be a number from {least:g} to {most:g}, not {str(value)[:40]!r}")
    return float(value)


def _optional_number(values: Mapping[str, Any], name: str, least: float, most: float) -> float | None:
    return None if values.get(name) is None else _number(values, name, least, most)
