"""A new configuration at SIGHUP: what is taken, what waits for a restart, and that a bad one changes nothing."""

import asyncio
import os
import signal

from gpusonde.agent import AgentConfig
from gpusonde.service.process import ignore_hangups, sighup_handler
from gpusonde.service.reload import ReloadCounters, Reloader

LIVE = {"log.level", "uplink.collector", "spool.max_bytes"}


class Rig:
    """A reloader whose file is a list of overrides."""

    def __init__(self):
        self.wanted = {}
        self.fault = None
        self.applied, self.said = [], []
        self.counters = ReloadCounters()
        self.reloader = Reloader(
            AgentConfig(),
            lambda: AgentConfig.load(overrides=self.wanted),
            LIVE,
            self._apply,
            self.counters,
            tell=lambda *states: self.said.append(states),
            clock_ns=lambda: 5_000_999,
        )

    async def _apply(self, config, changed):
        if self.fault:
            raise self.fault
        self.applied.append((config, changed))

    def reload(self, requests=1):
        async def once():
            task = asyncio.ensure_future(self.reloader.run())
            for _ in range(requests):
                self.reloader.request()
            while len(self.said) % 2 or not self.said:
                await asyncio.sleep(0.001)
            task.cancel()

        self.said.clear()
        asyncio.run(asyncio.wait_for(once(), 60))


def test_what_can_change_is_taken_and_the_rest_is_named(caplog):
    caplog.set_level("INFO")
    rig = Rig()
    rig.wanted = {"log.level": "debug", "uplink.collector": "other:1", "spool.directory": "/elsewhere", "agent.id": "b"}
    rig.reload()
    config, changed = rig.applied[0]
    assert changed == {"log.level", "uplink.collector"}
    assert (config.log.level, config.uplink.collector, config.spool.directory) == ("debug", "other:1", "")
    assert rig.reloader.config is config
    assert "changed: log.level, uplink.collector" in caplog.text
    assert "a restart is needed for: agent.id, spool.directory" in caplog.text
    assert (rig.counters.succeeded, rig.counters.failed, rig.counters.last_successful) == (1, 0, True)


def test_systemd_is_told_of_the_beginning_and_the_end():
    rig = Rig()
    rig.reload()
    assert rig.said == [("RELOADING=1", "MONOTONIC_USEC=5000"), ("READY=1",)]


def test_a_bad_file_leaves_everything_as_it_was(caplog):
    rig = Rig()
    rig.wanted = {"log.level": "debug", "uplink.batch_interval": "99h"}
    rig.reload()
    assert rig.applied == []
    assert rig.reloader.config == AgentConfig()
    assert "the configuration stays as it was" in caplog.text
    assert "uplink.batch_interval" in caplog.text
    assert (rig.counters.succeeded, rig.counters.failed, rig.counters.last_successful) == (0, 1, False)
    assert rig.said[-1][0] == "READY=1"
    rig.wanted = {}
    rig.reload()
    assert rig.counters.last_successful


def test_what_cannot_be_applied_counts_as_a_failure():
    rig = Rig()
    rig.fault = OSError("no such certificate")
    rig.wanted = {"log.level": "debug"}
    rig.reload()
    assert rig.reloader.config == AgentConfig()
    assert rig.counters.failed == 1


def test_many_signals_at_once_are_one_reload():
    rig = Rig()
    rig.reload(requests=100)
    assert rig.counters.succeeded == 1


def test_a_hangup_is_a_wish_and_afterwards_what_it_was():
    before = signal.getsignal(signal.SIGHUP)
    wishes = []
    try:
        ignore_hangups()
        os.kill(os.getpid(), signal.SIGHUP)
        with sighup_handler(lambda: wishes.append(1)):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert 1 <= len(wishes) <= 2
