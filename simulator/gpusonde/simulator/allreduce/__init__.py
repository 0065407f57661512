"""Allreduce: measurements, and what they say about any size, world and number of concurrent transfers."""

from gpusonde.simulator.allreduce.documents import (
    measurements_from_json,
    measurements_to_json,
    model_from_json,
    model_to_json,
)
from gpusonde.simulator.allreduce.measurements import (
    HYBRID_CUBE_MESH,
    KNOWN_TOPOLOGIES,
    AllreduceMeasurement,
    Link,
    LinkTopology,
)
from gpusonde.simulator.allreduce.model import AllreduceModel, FabricNetwork, ModelKind, ResidualUse

__all__ = [
    "HYBRID_CUBE_MESH",
    "KNOWN_TOPOLOGIES",
    "AllreduceMeasurement",
    "AllreduceModel",
    "FabricNetwork",
    "Link",
    "LinkTopology",
    "ModelKind",
    "ResidualUse",
    "measurements_from_json",
    "measurements_to_json",
    "model_from_json",
    "model_to_json",
]
