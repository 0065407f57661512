"""``HostRange``: what the hosts of measurements had free, against what those of a question have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.workload.engine.features.columns import CLUSTER_COLUMNS, HOST_COLUMNS

FloatArray = npt.NDArray[np.float64]

# A host may have twice as much free as any that was measured, or half.
_BEYOND = 2.0
_WORDS = {"cores": "cores", "memory_bytes": "memory", "disk_bytes_per_second": "disk throughput", "flops": "FLOPS"}
_PLACES = {name: CLUSTER_COLUMNS.index(name) for name in HOST_COLUMNS}


@dataclass(frozen=True)
class HostRange:
    """What one column of hosts held in the measurements that told of it.

    Attributes:
        low: The least; as the column has it, log(1 + amount).
        high: The most.
        always: Whether every measurement told.
    """

    low: float
    high: float
    always: bool

    def unlike(self, name: str, value: float) -> str:
        """Why a question's value is beyond the measured ones; empty where it is not.

        A column of 0 is unknown. Where it was the same in all measurements it counts for nothing, and may be left out.
        """
        what = _WORDS[name.removeprefix("log_host_")]
        if value <= 0.0:
            counts = self.always and self.high > self.low
            return f"nobody knows what the hosts have free of {what}; of all measurements it is known" if counts else ""
        amount, least, most = map(math.expm1, (value, self.low, self.high))
        if least / _BEYOND <= amount <= most * _BEYOND:
            return ""
        edge, whose = (most, "most") if amount > most else (least, "least")
        times = float(f"{amount / edge:.2g}")
        return f"the hosts have {times:g} times the {whose} {what} that any measured one had free"


def measured_hosts(cluster: FloatArray) -> dict[str, HostRange]:
    """Ranges of the columns that measurements told of.

    Args:
        cluster: ``FeatureTable.cluster``, shape (n, columns).
    """
    found = {}
    for name, place in _PLACES.items():
        values = cluster[:, place]
        known = values[values > 0.0]
        if known.size:
            found[name] = HostRange(float(known.min()), float(known.max()), known.size == values.size)
    return found


def unlike_hosts(ranges: Mapping[str, HostRange], row: FloatArray) -> list[str]:
    """Why what hosts have free is beyond what was measured.

    Args:
        ranges: By column.
        row: Of ``FeatureTable.cluster``.
    """
    reasons = (known.unlike(name, float(row[_PLACES[name]])) for name, known in ranges.items())
    return [reason for reason in reasons if reason]
