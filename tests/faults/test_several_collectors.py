"""Three collector processes on one ClickHouse schema, and agents that spread over them: one may die at any moment."""

import uuid
from pathlib import Path

import pytest
from support.agent_fleet import AgentFleet, FleetAgent
from support.clickhouse_http import ClickHouseHttp
from support.running_collector import ProcessCollector
from support.trace_records import trace_records
from support.wire_agent import START_NS, wait_until

from gpusonde.collector.client import Client
from gpusonde.collector.config import ClickHouseConfig
from gpusonde.collector.storage.clickhouse.facts import ClickHouseFacts
from gpusonde.collector.storage.clickhouse.sql import ClickHouseSql
from gpusonde.epoch_detect import detect
from gpusonde.telemetry import read_trace

DEMO_TRACE = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
AGENTS = 5  # wherever they go, a collector has two


@pytest.fixture
def collectors(tmp_path, chdb_directory):
    """Three on one database, and what it knows."""
    password = tmp_path / "password"
    password.write_text("s3cret")
    database = f"gpusonde_test_{uuid.uuid4().hex}"
    with ClickHouseHttp(chdb_directory) as server:
        running = []
        try:
            for number in range(3):
                one = ProcessCollector(
                    tmp_path / f"collector-{number}",
                    store__engine="clickhouse",
                    store__lossless="true",
                    server__id=f"collector-{number}",
                    clickhouse__url=server.url,
                    clickhouse__database=database,
                    clickhouse__user="gpusonde",
                    clickhouse__password_file=str(password),
                    clickhouse__insert_interval="100ms",
                )
                running.append(one)
                one.start()
            sql = ClickHouseSql(ClickHouseConfig(server.url, database, "gpusonde", str(password)))
            yield running, ClickHouseFacts(sql)
            sql.close()
        finally:
            for one in running:
                one.__exit__()


def sorted_runs(client):
    return sorted(client.list_runs(), key=lambda run: run.gpu_uuid)


def settled_runs(client, expected):
    """Return the runs of all GPUs once they are over and have their final epochs."""
    runs = sorted_runs(client)
    if len(runs) != AGENTS or any(run.active for run in runs):
        return None
    found = [client.list_epochs(run.run_id).epochs for run in runs]
    final = all([(epoch.start_unix_nano - START_NS) / 1e9 for epoch in epochs] == expected for epochs in found)
    return runs if final else None


def whole_from(collectors, expected):
    """Return the runs, of which every collector says that they are over and have their final epochs."""
    seen = []
    for one in collectors:
        with Client(one.target) as client:
            seen.append(wait_until(lambda: settled_runs(client, expected), 90, "final epochs of all runs"))
    assert all(runs == seen[0] for runs in seen)
    return seen[0]


@pytest.mark.parametrize("home", ["after the others have found all", "with all still to be found"])
def test_agents_of_a_collector_that_dies_go_on_at_the_others_and_every_one_knows_all_runs(tmp_path, collectors, home):
    running, facts = collectors
    trace = read_trace(DEMO_TRACE)
    expected = pytest.approx(detect(trace).epoch_starts_s.tolist(), abs=1e-6)
    targets = [one.target for one in running]
    agents = []
    for number in range(AGENTS):
        records = trace_records(trace, START_NS, ticks_per_record=30, gpu_uuid=f"GPU-{number}")
        agents.append(FleetAgent(tmp_path, f"host-{number}", targets, records, return_check_s=0.3))
    half, last = len(records) // 2, len(records)
    with AgentFleet(agents) as fleet:
        fleet.feed(half)
        fleet.wait_acked(half)
        names = {one.target: one.directory.name for one in running}
        owners = {agent.name: names[agent.home] for agent in agents}
        wait_until(
            lambda: {agent: owner.collector for agent, owner in facts.owners().items()} == owners, 60, "agents at home"
        )
        victim = max(running, key=lambda one: list(owners.values()).count(one.directory.name))
        orphans = {agent for agent, owner in owners.items() if owner == victim.directory.name}
        assert len(orphans) >= 2
        victim.kill()
        fleet.feed(half + 1)
        took = fleet.wait_acked(half + 1)
        # What a busy machine does to everybody is seen by those who have lost nothing.
        others_s = max((took[agent] for agent in took if agent not in orphans), default=0.0)
        assert all(took[agent] < 10.0 * max(1.0, others_s) for agent in orphans), took
        now = {agent: owner.collector for agent, owner in facts.owners().items()}
        assert victim.directory.name not in now.values()
        # Nobody else has moved.
        assert {agent: owner for agent, owner in now.items() if agent not in orphans} == {
            agent: owner for agent, owner in owners.items() if agent not in orphans
        }
        fleet.feed(last)
        fleet.wait_acked(last)
        living = [one for one in running if one is not victim]
        seen = whole_from(living, expected) if home.startswith("after") else None
        victim.start()
        wait_until(
            lambda: {agent: owner.collector for agent, owner in facts.owners().items()} == owners, 60, "agents at home"
        )
        # Nothing more comes: who has the agents now looks at what the others have left.
        runs = whole_from(running, expected)
        assert seen in (None, runs)
    with Client(victim.target) as client:
        for run in runs:
            stored = client.read_samples(run.gpu_uuid)
            assert stored.time_s == pytest.approx(trace.time_s - trace.time_s[0], abs=1e-6)
    assert facts.losses() == facts.rejections() == []
