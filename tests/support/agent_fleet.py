"""Agents without samplers, with the product's spools and uplinks, that spread over several collectors."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

from gpusonde.agent.config import UplinkConfig
from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.agent.uplink import AgentFacts, StreamLimits, Uplink
from gpusonde.agent.uplink.addresses import Addresses
from gpusonde.common.v1 import gpu_pb2


class FleetAgent:
    """One agent, and the records that it is going to have.

    Attributes:
        home: The collector that it wants most.
    """

    def __init__(self, directory: Path, name: str, targets: list[str], records: list, return_check_s: float) -> None:
        self.name = name
        self.counters = SelfCounters()
        self.spool = Spool(directory / name, max_bytes=1 << 24, agent_id=name, counters=self.counters)
        self.spool.open()
        self.uplink = Uplink(
            self.spool,
            UplinkConfig(collector=", ".join(targets)),
            AgentFacts(gpu_pb2.Host(host_name=name), "test", time.time_ns(), f"instance-{name}"),
            self.counters,
            limits=StreamLimits(return_check_s=return_check_s),
        )
        self._records = records
        addresses = Addresses(name, targets)
        asyncio.run(addresses.refresh())
        self.home = addresses.home.target

    @property
    def acked(self) -> int:
        return self.counters.acked_sequence

    def feed(self, upto: int) -> None:
        for record in self._records[self.spool.last_sequence : upto]:
            record.sequence = 0
            self.spool.append(record)
        self.spool.commit()
        self.uplink.notify()


class AgentFleet:
    """Runs agents on an event loop of its own; use it as a context manager."""

    def __init__(self, agents: list[FleetAgent]) -> None:
        self.agents = agents
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._running: list[asyncio.Future] = []

    def __enter__(self) -> AgentFleet:
        self._thread.start()
        self._running = [asyncio.run_coroutine_threadsafe(agent.uplink.run(), self._loop) for agent in self.agents]
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running:
            running.cancel()
        asyncio.run_coroutine_threadsafe(self._settle(), self._loop).result(200)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(240)
        self._loop.close()
        for agent in self.agents:
            agent.spool.close()

    async def _settle(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*others, return_exceptions=True)

    def feed(self, upto: int) -> None:
        """Give every agent its records up to a number."""

        async def work() -> None:
            for agent in self.agents:
                agent.feed(upto)

        asyncio.run_coroutine_threadsafe(work(), self._loop).result(200)

    def wait_acked(self, upto: int, timeout_s: float = 120.0) -> dict[str, float]:
        """Wait until every agent has records up to a number acknowledged; return the seconds that each one took."""
        began_s, took = time.monotonic(), {}
        while len(took) < len(self.agents):
            for agent in self.agents:
                if agent.acked >= upto and agent.name not in took:
                    took[agent.name] = time.monotonic() - began_s
            assert time.monotonic() - began_s < timeout_s, {agent.name: agent.acked for agent in self.agents}
            time.sleep(0.01)
        return took
