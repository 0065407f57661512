"""Says what can be sampled on this host, what cannot, and what to do about it."""

from gpusonde.agent.doctor.examine import JobSourceFinding, examine, examine_jobs
from gpusonde.agent.doctor.findings import (
    Diagnosis,
    GpuFinding,
    MetricFinding,
    SamplingCost,
    SourceFinding,
    SystemFacts,
    read_system,
)

__all__ = [
    "Diagnosis",
    "GpuFinding",
    "JobSourceFinding",
    "MetricFinding",
    "SamplingCost",
    "SourceFinding",
    "SystemFacts",
    "examine",
    "examine_jobs",
    "read_system",
]
