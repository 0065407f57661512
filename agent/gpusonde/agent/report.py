"""``AgentReport``: how an agent ended."""

from __future__ import annotations

from dataclasses import dataclass

from gpusonde.agent.counters import SelfCounters


@dataclass(frozen=True)
class AgentReport:
    """How an agent ended.

    Attributes:
        agent_id: Its name at the collector.
        spool_id: The last run of sequence numbers.
        source: Name of the source.
        gpu_uuids: The sampled GPUs.
        counters: Everything counted.
        source_ended: A finite source was played to its end.
        drained: The collector acknowledged every record on disk.
    """

    agent_id: str
    spool_id: str
    source: str
    gpu_uuids: tuple[str, ...]
    counters: SelfCounters
    source_ended: bool
    drained: bool

    def as_json(self) -> dict[str, object]:
        """Return the report ready for ``json.dumps``."""
        return {
            "agent_id": self.agent_id,
            "spool_id": self.spool_id,
            "source": self.source,
            "gpu_uuids": list(self.gpu_uuids),
            "source_ended": self.source_ended,
            "drained": self.drained,
            **self.counters.as_json(),
        }
