"""What an agent says its host is doing: the latest counts, and it is not stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpusonde.common.v1 import gpu_pb2


@dataclass(frozen=True)
class KnownLoad:
    """What an agent said.

    Attributes:
        load: What it said.
        unix_s: When that came.
    """

    load: gpu_pb2.HostLoad
    unix_s: float


def take_load(message: gpu_pb2.HostLoad, unix_s: float) -> KnownLoad:
    """Keep what can be of a message: finite figures of at least 0, and nothing that we do not know."""
    load = gpu_pb2.HostLoad()
    for field, value in message.ListFields():
        if math.isfinite(value) and value >= 0:
            setattr(load, field.name, value)
    return KnownLoad(load, unix_s)
