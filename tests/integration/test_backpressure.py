"""The real uplink against a real collector: throttled by its rate, and sent to another collector."""

import numpy as np
import pytest
from support.running_collector import ProcessCollector
from support.uplink_rig import SteadyRig, assert_every_record_once, stored_ticks

from gpusonde.collector.client import FleetClient
from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import token_entry
from gpusonde.service.tls import ClientSecurity


@pytest.fixture
def rig(tmp_path):
    rig = SteadyRig(tmp_path / "spool")
    yield rig
    rig.spool.close()


def test_a_backlog_beyond_the_rate_comes_throttled_and_without_a_failure(tmp_path, rig):
    for _ in range(260):
        rig.grow()
    throttled = []
    with ProcessCollector(tmp_path / "data", ingest__max_records_per_second="20") as collector:
        rig.run(
            collector.target,
            # Six seconds after the last record, its rate has recovered and the collector lifts the throttle.
            until=lambda: rig.counters.unacked_records == 0 and throttled and not rig.counters.throttled,
            during=lambda: throttled.append(True) if rig.counters.throttled else None,
        )
        assert collector.terminate() == 0
    assert rig.counters.connection_failures == {}
    assert rig.counters.sessions == 1
    # Batches of five seconds were asked for, then of the usual length again; then the session ended.
    assert rig.intervals == [5.0, None, None]
    assert_every_record_once(tmp_path / "data", 260)


def test_an_administrator_moves_an_agent_to_another_collector_and_nothing_is_lost(tmp_path, rig):
    token = tmp_path / "token"
    token.write_text("of-the-admin")
    (tmp_path / "tokens.toml").write_text(token_entry("of-the-admin", Role.ADMIN))
    settings = {"security__tokens_file": str(tmp_path / "tokens.toml")}
    with ProcessCollector(tmp_path / "a", **settings) as home, ProcessCollector(tmp_path / "b") as refuge:
        moved = []

        def drive():
            rig.grow_a_little()
            if not moved and rig.counters.acked_sequence >= 20:
                with FleetClient(home.target, security=ClientSecurity(token_file=str(token))) as client:
                    assert client.drain(None, refuge.target) == (["agent-1"], [])
                moved.append(rig.spool.last_sequence)

        rig.run(
            home.target, until=lambda: moved and rig.counters.acked_sequence > moved[0] + 20, during=drive,
            allowed_targets=refuge.target,
        )  # fmt: skip
        assert home.terminate() == 0
        assert refuge.terminate() == 0
    assert rig.counters.sessions == 2
    assert rig.counters.connection_failures == {}
    first, second = stored_ticks(tmp_path / "a"), stored_ticks(tmp_path / "b")
    # Each has no hole and nothing twice. The other one begins with what the spool still held, so they overlap.
    np.testing.assert_array_equal(first, np.arange(len(first)))
    np.testing.assert_array_equal(second, np.arange(second[0], second[-1] + 1))
    assert second[0] <= first[-1] + 1
    assert second[-1] >= 10 * moved[0]
