"""The real uplink against a real collector: throttled by rate and by a slow disk, and plain float32 where wanted."""

import pytest
from support.running_collector import ProcessCollector
from support.uplink_rig import SteadyRig, assert_every_record_once


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
