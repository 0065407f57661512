"""Intervals: quantiles of the errors made on what was left out, for each way in which a request can be new.

Conformal: of errors on groups left out, the quantile that covers the wanted share of them (``crossgpu.intervals``).
What comes in few kinds, places and devices, is given the quantile of the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.crossgpu.intervals.conformal import Calibration, LeftOut, calibrate, calibrate_worst
from gpusonde.predictor.workload.engine.trust.familiarity import Assessment

FloatArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Groups = npt.NDArray[np.str_]

_FEWEST_GROUPS = {"FAMILY": 3, "PLACE": 2, "DEVICE": 2}
_FEWEST_ERRORS = 10
_FEWEST_OF_A_PLACE = 30
# Where nothing could be left out to learn it from: a factor of 2 for a new kind of network, place or device.
_UNKNOWN = math.log(2.0)


class Newness(Enum):
    """What can be new in a request beside its architecture; each has errors of its own."""

    FAMILY = "a network of another kind"
    PLACE = "an unknown place"
    DEVICE = "an unknown device"


@dataclass(frozen=True)
class Intervals:
    """Half widths of intervals, natural logarithms.

    Attributes:
        coverage: Share of intervals that should hold the truth.
        quantiles: Of the errors that come with each newness; one that no measurement showed is missing.
    """

    coverage: float
    quantiles: Mapping[Newness, Calibration]

    def half_width(self, assessment: Assessment, architecture: Calibration) -> float:
        """Half width of a request's interval.

        Args:
            assessment: Of the request.
            architecture: Of the regressor that answers, where nothing but the architecture is new.
        """
        widths = []
        if assessment.unlike_network or assessment.unlike_cluster:
            widths.append(self._quantile(Newness.FAMILY))
        if assessment.unlike_cluster:
            # What no measurement tells of is as uncertain as the most uncertain of what they do.
            widths.append(max(self._quantile(each) for each in (Newness.PLACE, Newness.DEVICE)))
        # A device that is left out takes its place with it: its errors hold those of a new place.
        if assessment.unknown_device:
            widths.append(assessment.device_widening * self._quantile(Newness.DEVICE))
        elif assessment.unknown_place:
            widths.append(self._quantile(Newness.PLACE))
        return max(architecture.quantile, math.hypot(*widths))

    def _quantile(self, newness: Newness) -> float:
        found = self.quantiles.get(newness)
        return _UNKNOWN if found is None else found.quantile


def quantile_of(errors: FloatArray, coverage: float) -> Calibration:
    """Of errors of the logarithm on architectures that were left out, shape (n,)."""
    return calibrate(LeftOut(errors, np.ones(len(errors))), coverage)


def place_quantiles(errors: FloatArray, places: Groups, coverage: float) -> Mapping[str, Calibration]:
    """The same for every known place with enough errors: some are measured with more noise, or need more extrapolation.

    Args:
        errors: As above.
        places: Of each; "" is none that is known.
        coverage: Share of intervals that should hold the truth.
    """
    return {
        place: quantile_of(errors[places == place], coverage)
        for place in np.unique(places).tolist()
        if place and (places == place).sum() >= _FEWEST_OF_A_PLACE
    }


def left_out_quantiles(
    errors_without: Callable[[Mask], FloatArray],
    groups: Mapping[Newness, Groups],
    coverage: float,
    device_widening: Callable[[str], float],
) -> Mapping[Newness, Calibration]:
    """Leave out every family, place and device in turn.

    Args:
        errors_without: Errors of the logarithm, on the rows of a mask, of a model fitted to all others.
        groups: Of each newness, which group each row belongs to; "" if to none.
        coverage: Share of intervals that should hold the truth.
        device_widening: How much further than usual a device lies from all others; its errors count as so much less.
    """
    found = {}
    for newness, labels in groups.items():
        parts = [
            LeftOut(errors, np.full(len(errors), device_widening(name) if newness is Newness.DEVICE else 1.0))
            for name, errors in _left_out(errors_without, labels)
        ]
        if len(parts) >= _FEWEST_GROUPS[newness.name]:
            whole = newness is Newness.FAMILY
            found[newness] = calibrate(LeftOut.join(parts), coverage) if whole else calibrate_worst(parts, coverage)
    return found


def _left_out(errors_without: Callable[[Mask], FloatArray], groups: Groups) -> Sequence[tuple[str, FloatArray]]:
    found = []
    for group in np.unique(groups).tolist():
        mask = groups == group
        if group and mask.sum() >= _FEWEST_ERRORS and (~mask).sum() >= _FEWEST_ERRORS:
            found.append((group, errors_without(mask)))
    return found
