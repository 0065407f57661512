"""Several collectors on one ClickHouse database: samples are there once, and the last greeting decides who tracks."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.job_records import PERIOD_S, gpu_traces, idle_outside, records_of, shifted
from support.store_records import EVER, Feed, durable_after
from support.trace_records import incoming, trace_records
from support.tracked_store import TrackedStore
from support.wire_agent import START_NS, TICK_NS

from gpusonde.collector.query.runs import list_epochs
from gpusonde.collector.storage.clickhouse.facts import KnownAgents
from gpusonde.collector.storage.model import AgentRow, EpochRow, Position, RunRow, RunUpdate
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.errors import StoreError
from gpusonde.query.v1 import query_pb2
from gpusonde.telemetry import read_trace

BEGINNING = Position(0, 0)
HOUR_NS = 3600 * 1_000_000_000
DEMO_TRACE = Path(__file__).parents[2] / "data" / "demo_trace.parquet"


@pytest.fixture
def pair(clickhouse):
    """Two collectors; the clock of the second one is an hour slow."""
    second = clickhouse.beside("collector-2", lambda: time.time_ns() - HOUR_NS)
    clickhouse.open()
    second.open()
    yield clickhouse, second
    second.close()


def agent(agent_id="agent-1", spool_id="spool-1"):
    return AgentRow(agent_id, spool_id, "instance-1", 1_700_000_000_000_000_000, "host-1", "1.0", b"")


def ticks_of(store, gpu_uuid="GPU-a", agent_id="agent-1"):
    store.check_owners()  # as every collector does every few seconds
    samples = store.samples.read(gpu_uuid, *EVER)
    ticks = ((samples.time_unix_nano - START_NS) // TICK_NS).tolist()
    arrived = [a.samples for a in store.samples.read_feed(agent_id, gpu_uuid, BEGINNING) if isinstance(a, TicksEntry)]
    assert sum(map(len, arrived)) == len(ticks)
    return ticks


def test_an_agent_that_moves_goes_on_where_the_other_collector_stood(pair):
    one, two = pair
    assert durable_after(one.store, [agent()]) == [0]
    one.store.samples.append(Feed().batches(1, 6))
    assert durable_after(two.store, [agent()]) == [6]
    two.store.samples.append(Feed().batches(7, 9))
    assert durable_after(one.store, [agent()]) == [9]
    one.store.samples.append(Feed().batches(8, 12))
    for engine in pair:
        assert ticks_of(engine.store) == list(range(110))
        assert engine.store.facts.losses() == []


def test_what_the_first_collector_still_writes_after_the_move_is_there_once(pair):
    one, two = pair
    one.store.samples.register_agents([agent()])
    one.store.samples.append(Feed().batches(1, 4))
    two.store.samples.register_agents([agent()])
    two.store.samples.append(Feed().batches(5, 7))
    # Handed over before the agent moved, inserted after it has sent the same to the other one.
    one.store.samples.append(Feed().batches(5, 9))
    two.store.samples.append(Feed().batches(8, 8))
    for engine in pair:
        assert len(engine.store.samples.read("GPU-a", *EVER)) == 80
    # The owner tracks what it was sent; record 9 comes to it too.
    assert two.store.samples.append(Feed().batches(9, 9)) == 0
    for settled in (False, True):
        for engine in pair:
            assert ticks_of(engine.store) == list(range(80))
            if settled:
                engine.settle()
    assert durable_after(two.store, [agent()]) == [9]


def test_both_collectors_at_once_write_the_same_records_and_each_is_there_once(pair):
    engines = pair
    for engine in engines:
        engine.store.samples.register_agents([agent()])
    together = threading.Barrier(2)

    def write(store):
        together.wait()
        for first in range(1, 40, 3):
            store.samples.append(Feed().batches(first, first + 2))

    writers = [threading.Thread(target=write, args=(engine.store,)) for engine in engines]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    for engine in engines:
        assert ticks_of(engine.store) == list(range(380))
        assert engine.store.facts.losses() == []


def test_a_spool_that_two_collectors_see_first_at_once_gets_one_number(pair):
    one, two = pair
    known = {}
    for engine in (one, two):
        # Neither has seen that the other one numbered it.
        engine.store.facts.known_agents = lambda _, numbers: KnownAgents({}, {}, {}, dict.fromkeys(numbers, ""), {})
        engine.store.samples.register_agents([agent()])
        engine.store.samples.append(Feed().batches(1, 3))
        del engine.store.facts.known_agents
        known[engine.collector] = engine.store.samples._spools["agent-1", "spool-1"]
    assert known["collector-1"] == known["collector-2"]
    assert ticks_of(one.store) == list(range(20))


def test_the_last_greeting_decides_whose_agent_it_is(pair):
    one, two = pair
    told = {1: [], 2: []}
    one.ownership.subscribe(lambda agents, came: told[1].append((sorted(agents), came)))
    two.ownership.subscribe(lambda agents, came: told[2].append((sorted(agents), came)))
    for name in ("agent-1", "agent-2"):
        one.store.samples.register_agents([agent(name)])
        feed = Feed(name, gpus=(f"GPU of {name}",))
        one.store.samples.append([feed.incoming(feed.first)])
    assert sorted(one.store.followed()) == [("agent-1", "GPU of agent-1"), ("agent-2", "GPU of agent-2")]
    assert two.store.followed() == []
    two.store.samples.register_agents([agent()])
    assert one.store.check_owners() == {"agent-1"}
    assert one.store.check_owners() == two.store.check_owners() == frozenset()
    assert one.store.followed() == [("agent-2", "GPU of agent-2")]
    assert two.store.followed() == [("agent-1", "GPU of agent-1")]
    assert told == {1: [(["agent-1"], True), (["agent-2"], True), (["agent-1"], False)], 2: [(["agent-1"], True)]}
    # It is still so for the collectors' next processes; a greeting that changes nothing tells nobody.
    two.open()
    two.ownership.subscribe(lambda agents, came: told[2].append((sorted(agents), came)))
    assert two.store.followed() == [("agent-1", "GPU of agent-1")]
    two.store.samples.register_agents([agent()])
    assert len(told[2]) == 1


def test_what_the_first_collector_says_of_a_run_after_the_move_does_not_count(pair):
    one, two = pair
    one.store.samples.register_agents([agent()])
    run = RunRow("run-1", "agent-1", "GPU-a", "", 0, False, "", 5, 9, 1, 1, 1, 1, 10, 0)
    epochs = [EpochRow(i, 10 * i, 10 * i + 9, 0.5, "provisional", 1) for i in range(3)]
    position = {("agent-1", "GPU-a"): (Position(1, 5), 0)}
    one.results.save([RunUpdate(run, epochs)], position)
    one.states.write(("agent-1", "GPU-a"), 1, b"first")
    two.store.samples.register_agents([agent()])
    later = [EpochRow(i, 10 * i, 10 * i + 9, 0.75, "confirmed", 2) for i in range(2)]
    ended = RunRow("run-1", "agent-1", "GPU-a", "", 0, True, "over", 5, 90, 1, 1, 1, 9, 100, 0)
    two.results.save([RunUpdate(ended, later)], {("agent-1", "GPU-a"): (Position(1, 9), 7)})
    two.states.write(("agent-1", "GPU-a"), 1, b"second")
    # The second one's clock is an hour slow: it is the greeting that counts, not the time.
    one.results.save([RunUpdate(run, [*epochs, EpochRow(3, 30, 39, 0.5, "provisional", 1)])], position)
    one.states.write(("agent-1", "GPU-a"), 1, b"late")
    one.states.remove(("agent-1", "GPU-a"))
    for engine in pair:
        assert engine.results.run("run-1").end_reason == "over"
        assert engine.results.epochs("run-1") == later
        assert engine.results.resumes() == {("agent-1", "GPU-a"): (Position(1, 9), 7)}
        assert engine.states.read(("agent-1", "GPU-a"), 1) == b"second"


def test_a_run_that_moves_between_collectors_ends_with_the_same_epochs(pair, tmp_path):
    trace = read_trace(DEMO_TRACE).window(0, 110)
    records = incoming(trace_records(trace))
    one, two = pair
    for engine in pair:
        engine.close()
    first = TrackedStore(engine=one, state_interval_s=1.0)
    second = TrackedStore(engine=two, state_interval_s=1.0)
    cut = len(records) // 5
    for i, tracked in enumerate([first, second, first, second, first]):
        tracked.store.samples.register_agents([agent()])
        tracked.feed(records[i * cut : (i + 1) * cut if i < 4 else None], 25)
        for other in (first, second):
            # What each does on its own every few seconds.
            other.store.check_owners()
            other.now += 10.0
            other.pipeline.round()
    second.pipeline.finish()
    first.pipeline.finish()
    alone = TrackedStore(tmp_path / "alone")
    alone.feed(records, 25)
    (run,), (expected,) = second.runs(), alone.runs()
    assert run == first.runs()[0]
    assert run.ended
    # The name of a run has the number of its spool in it, which is the database's own.
    assert replace(run, run_id=expected.run_id, first_spool=1, last_spool=1) == expected
    same = [(e.start_unix_nano, e.end_unix_nano, e.status) for e in alone.results.epochs(expected.run_id)]
    assert [(e.start_unix_nano, e.end_unix_nano, e.status) for e in first.results.epochs(run.run_id)] == same
    alone.store.close()
    samples = second.store.samples.read(run.gpu_uuid, *EVER)
    assert len(np.unique(samples.time_unix_nano)) == len(samples) == len(trace)


def test_a_job_that_moves_between_collectors_ends_with_the_same_epochs_on_all_its_gpus(pair, tmp_path):
    traces = gpu_traces(3)
    traces["GPU-0"] = idle_outside(traces["GPU-0"], 30.0, 1e9)
    records = records_of(traces)
    for engine in pair:
        engine.close()
    first, second = (TrackedStore(engine=engine, state_interval_s=1.0) for engine in pair)
    cut = len(records) // 5
    for i, tracked in enumerate([first, second, first, second, first]):
        tracked.store.samples.register_agents([agent()])
        tracked.feed(records[i * cut : (i + 1) * cut if i < 4 else None], 25)
        for other in (first, second):
            other.store.check_owners()
            other.now += 10.0
            other.pipeline.round()
    alone = TrackedStore(tmp_path / "alone")
    alone.feed(records, 25)

    def found(tracked):
        return {
            run.gpu_uuid: (run.ended, run.epoch_count, [e.status for e in tracked.results.epochs(run.run_id)])
            for run in tracked.runs()
        }

    assert found(first) == found(second) == found(alone)
    assert {ended for ended, _, _ in found(alone).values()} == {True}
    alone.store.close()


def test_a_job_whose_hosts_stream_to_two_collectors_has_one_tree_that_both_tell(pair):
    for engine in pair:
        engine.close()
    first, second = (TrackedStore(engine=engine) for engine in pair)
    early = {f"GPU-a{i}": trace for i, trace in enumerate(gpu_traces(2).values())}
    late = {f"GPU-b{i}": shifted(trace, 4.0) for i, trace in enumerate(gpu_traces(2).values())}
    for tracked, name, traces in ((first, "agent-2", early), (second, "agent-1", late)):
        tracked.store.samples.register_agents([agent(name, f"spool of {name}")])
        tracked.feed(records_of(traces, agent_id=name, spool_id=f"spool of {name}"), 50)
        tracked.pipeline.finish()
    runs = first.runs()
    assert runs == second.runs()
    assert {run.agent_id for run in runs} == {"agent-1", "agent-2"}
    answers = [
        list_epochs(tracked.results, query_pb2.ListEpochsRequest(run_id=run.run_id, page_size=1))
        for tracked in (first, second)
        for run in runs
    ]
    for answer in answers:
        # Whose runs began first, not whose name is first.
        assert answer.tree_agent_id == "agent-2"
        assert list(answer.cycles) == list(answers[0].cycles)
        assert answer.cycles[answer.level].period.ToNanoseconds() / 1e9 == pytest.approx(PERIOD_S, rel=0.01)
        (deviation,) = answer.host_deviations
        assert (deviation.agent_id, deviation.kind) == ("agent-1", "lag")
        assert deviation.amount == pytest.approx(4.0, abs=0.5)
    parts = {run.agent_id: first.results.tree(run.run_id) for run in runs}
    told = answers[0].cycles[answers[0].level]
    assert told.count == max(parts[name].cycles[parts[name].level].count for name in parts)


def epochs_of(tracked):
    """Bounds and states of the epochs of the only run, to a thousandth of a tick: the engines round values."""
    (run,) = tracked.runs()
    epochs = tracked.results.epochs(run.run_id)
    bounds = [time for epoch in epochs for time in (epoch.start_unix_nano, epoch.end_unix_nano)]
    return bounds, [epoch.status for epoch in epochs]


@pytest.fixture
def tracked_pair(pair):
    """Two collectors that follow what is theirs, driven by hand, and the records of a run of 110 s with its end."""
    for engine in pair:
        engine.close()
    records = incoming(trace_records(read_trace(DEMO_TRACE).window(0, 110)))
    return *(TrackedStore(engine=engine) for engine in pair), records


@pytest.mark.parametrize("followed", ["saved", "saved late", "not"])
def test_an_agent_that_comes_home_after_its_last_record_has_its_run_whole(tracked_pair, tmp_path, followed):
    home, other, records = tracked_pair
    half = len(records) // 2
    if followed != "not":
        home.store.samples.register_agents([agent()])
        home.feed(records[:half], 25)
    other.store.samples.register_agents([agent()])
    save = other.results.save
    late = []
    if followed == "saved late":
        # The agent goes home while the other collector is about to store what it found.
        other.results.save = lambda *words: late.append(words)
    if followed != "not":
        other.feed(records[: half + half // 2], 25)
    other.results.save = save
    other.store.samples.append(records)
    assert durable_after(home.store, [agent()]) == [len(records)]
    for _ in range(2):
        home.now += 10.0
        home.pipeline.round()
        for words in late:
            save(*words)
    other.store.check_owners()
    other.pipeline.round()
    alone = TrackedStore(tmp_path / "alone")
    alone.feed(records, 25)
    bounds, expected = epochs_of(alone)
    for tracked in (home, other):
        assert [run.end_reason for run in tracked.runs()] == ["the source has ended"]
        found, states = epochs_of(tracked)
        assert found == pytest.approx(bounds, rel=0, abs=TICK_NS // 1000)
        assert states == expected
    alone.store.close()


def test_mean_metrics_that_a_collector_left_undone_at_its_death_come_from_the_agents_next_one(tracked_pair):
    home, other, records = tracked_pair
    home.store.samples.register_agents([agent()])
    home.summaries.work = lambda _: None
    home.feed(records, 25)
    (run,) = home.runs()
    assert run.ended
    assert other.results.count_to_summarise(run.run_id) > 1
    # The run is over, and its agent has nothing more to say of it.
    other.store.samples.register_agents([agent()])
    for _ in range(2):
        other.now += 10.0
        other.pipeline.round()
    assert other.results.count_to_summarise(run.run_id) == 0
    epochs = other.results.epochs(run.run_id)
    assert all("sm_active" in summary.means for summary in other.results.summaries(run.run_id, epochs).values())


def test_what_was_worked_out_before_an_agent_was_away_does_not_count_once_it_is_back(tracked_pair):
    home, other, records = tracked_pair
    half = len(records) // 2
    home.store.samples.register_agents([agent()])
    save = home.results.save

    def save_late(*words):
        home.results.save = save
        other.store.samples.register_agents([agent()])
        other.store.samples.append(records)
        other.pipeline.round()
        other.pipeline.finish()
        home.store.samples.register_agents([agent()])
        save(*words)

    home.results.save = save_late
    home.feed(records[:half], half)
    assert home.results.save == save
    whole = other.runs()
    assert [run.ended for run in whole] == [True]
    home.now += 10.0
    home.pipeline.round()
    assert other.runs() == whole


def test_a_run_in_which_there_are_no_epochs_after_all_has_none(pair):
    one, two = pair
    one.store.samples.register_agents([agent()])
    run = RunRow("run-1", "agent-1", "GPU-a", "", 0, False, "", 5, 9, 1, 1, 1, 1, 10, 0)
    two.store.samples.register_agents([agent()])
    two.results.save([RunUpdate(run, [])], {})
    late = [EpochRow(i, 10 * i, 10 * i + 9, 0.5, "confirmed", 1) for i in range(3)]
    one.results.save([RunUpdate(run, late)], {})
    for engine in pair:
        assert engine.results.epochs("run-1") == []
        assert engine.results.to_summarise("run-1", -1, 10) == engine.results.runs_to_summarise() == []
    # Another process of the same collector goes on there.
    two.open()
    two.results.save([RunUpdate(run, late[:1])], {})
    two.results.save([RunUpdate(run, [])], {})
    assert two.results.epochs("run-1") == []


def test_an_agent_whose_greeting_could_not_be_stored_stays_where_it_was(pair):
    one, two = pair
    one.store.samples.register_agents([agent()])
    told = []
    two.ownership.subscribe(lambda agents, came: told.append((sorted(agents), came)))
    two.sql.breaks_at = "agents"
    with pytest.raises(StoreError):
        two.store.samples.register_agents([agent()])
    assert told == []
    assert not two.ownership.owns("agent-1")
    two.sql.breaks_at = ""
    two.store.samples.register_agents([agent()])
    assert told == [(["agent-1"], True)]


def test_who_hears_that_an_agent_came_home_can_read_all_that_another_collector_has_taken(pair):
    one, two = pair
    one.store.samples.register_agents([agent()])
    one.store.samples.append(Feed().batches(1, 4))
    two.store.samples.register_agents([agent()])
    two.store.samples.append(Feed().batches(5, 7))
    two.store.samples.register_agents([agent(spool_id="spool-2")])
    two.store.samples.append(Feed(spool_id="spool-2").batches(1, 1))
    found = []
    one.ownership.subscribe(lambda *_: found.append(list(one.store.samples.read_feed("agent-1", "GPU-a", BEGINNING))))
    one.store.samples.register_agents([agent(spool_id="spool-2")])
    assert [sum(len(entry.samples) for entry in entries) for entries in found] == [60]
    assert ticks_of(one.store) == list(range(60))


def test_a_former_owner_does_not_follow_what_still_comes_in(tracked_pair):
    home, other, records = tracked_pair
    home.store.samples.register_agents([agent()])
    other.store.samples.register_agents([agent()])
    home.store.check_owners()
    home.feed(records, len(records))
    assert home.runs() == []
    home.store.samples.register_agents([agent()])
    for _ in range(2):
        home.now += 10.0
        home.pipeline.round()
    assert [run.ended for run in home.runs()] == [True]


@pytest.mark.parametrize("first", [1, 2])
def test_of_two_collectors_that_are_greeted_at_once_one_has_the_last_word(pair, first):
    one, two = pair
    insert = one.sql.insert

    def greet_the_other(table, rows):
        one.sql.insert = insert
        if first == 1:
            insert(table, rows)
        two.store.samples.register_agents([agent()])
        if first == 2:
            insert(table, rows)

    # Neither has seen that the agent has greeted the other one.
    for engine in pair:
        engine.store.facts.known_agents = lambda _, numbers: KnownAgents({}, {}, {}, dict.fromkeys(numbers, ""), {})
    one.sql.insert = greet_the_other
    one.store.samples.register_agents([agent()])
    winner, loser = (two, one) if first == 1 else (one, two)
    assert winner.ownership.term("agent-1") > loser.ownership.term("agent-1")
    run = RunRow("run-1", "agent-1", "GPU-a", "", 0, False, "", 5, 9, 1, 1, 1, 1, 10, 0)
    for engine in (winner, loser):
        engine.results.save([RunUpdate(replace(run, end_reason=engine.collector), [])], {})
    assert loser.store.check_owners() == {"agent-1"}
    assert winner.store.check_owners() == frozenset()
    for engine in pair:
        assert engine.results.run("run-1").end_reason == winner.collector


def test_a_claim_that_nothing_followed_on_is_outbid(pair):
    one, two = pair
    one.store.samples.register_agents([agent()])
    two.sql.breaks_at = "agents"
    with pytest.raises(StoreError):
        two.store.samples.register_agents([agent()])
    assert one.store.check_owners() == {"agent-1"}
    # It is still at the first one, and nobody takes it from there again.
    one.store.samples.register_agents([agent()])
    assert one.store.check_owners() == frozenset()
    two.sql.breaks_at = ""
    two.store.samples.register_agents([agent()])
    assert one.store.check_owners() == {"agent-1"}


def test_that_an_agent_went_is_told_before_that_it_is_back(pair):
    one, _ = pair
    one.store.samples.register_agents([agent()])
    told = []
    back = threading.Thread(target=one.store.samples.register_agents, args=[[agent()]])

    def listen(_, came):
        if not came:
            # It greets again meanwhile.
            back.start()
            back.join(1.0)
        told.append(came)

    one.ownership.subscribe(listen)
    pair[1].store.samples.register_agents([agent()])
    assert one.store.check_owners() == {"agent-1"}
    back.join()
    assert told == [False, True]


def test_two_agents_with_one_id_at_two_collectors_keep_their_samples_apart(pair):
    one, two = pair
    one.store.samples.register_agents([agent()])
    two.store.samples.register_agents([agent(spool_id="spool-2")])
    one.store.samples.append(Feed(gpus=("GPU-a",)).batches(1, 4))
    two.store.samples.append(Feed(spool_id="spool-2", gpus=("GPU-b",)).batches(1, 6))
    for engine in pair:
        assert len(engine.store.samples.read("GPU-a", *EVER)) == 30
        assert len(engine.store.samples.read("GPU-b", *EVER)) == 50
    assert one.store.check_owners() == {"agent-1"}
    assert two.store.check_owners() == frozenset()


@pytest.fixture
def asked(pair):
    """The first word that each statement of two collectors was asked with, an insert's table."""
    words = []
    for engine in pair:
        for name in ("table", "few_rows", "insert"):
            original = getattr(engine.sql, name)
            note = lambda *given, original=original: words.append(given[0].split()[0]) or original(*given)  # noqa: E731
            setattr(engine.sql, name, note)
    return words


def test_a_greeting_asks_once_and_inserts_what_is_new(pair, asked):
    one, two = pair
    later = replace(agent(spool_id="spool-2"), start_unix_nano=agent().start_unix_nano + HOUR_NS)
    for engine, row, inserts in (
        (one, agent(), ["agent_moves", "SELECT", "agents", "spools"]),
        (one, agent(), []),
        (one, replace(agent(), agent_version="1.1"), ["agents"]),
        (one, later, ["agents", "spools"]),
        (two, later, ["agent_moves", "SELECT", "agents"]),
        (one, later, ["agent_moves", "SELECT", "agents"]),
        (one, replace(later, first_sequence=7), []),
    ):
        asked.clear()
        engine.store.samples.register_agents([row])
        assert asked == ["SELECT", *inserts]
        assert engine.store.facts.agents() == [replace(row, first_sequence=1)]


def test_a_crowd_of_greetings_costs_the_statements_of_one(pair, asked):
    one, two = pair
    assert durable_after(one.store, [agent("alone")]) == [0]
    alone = len(asked)
    crowd = [agent(f"agent-{i}", spool_id=f"spool-{i % 7}") for i in range(300)]
    asked.clear()
    assert durable_after(one.store, crowd) == [0] * 300
    assert len(asked) == alone
    one.store.samples.append(Feed("agent-5").batches(1, 6))
    assert durable_after(two.store, crowd)[5:7] == [0, 0]
    assert len(set(one.store.facts.spool_progress([row.agent_id for row in crowd]).values())) > 299
    assert one.store.check_owners() == {row.agent_id for row in crowd}
    assert two.store.check_owners() == frozenset()


def test_learning_who_has_gone_reads_what_has_changed_and_not_the_fleet(pair):
    one, two = pair
    one.store.samples.register_agents([agent("mine")])
    two.store.samples.register_agents([agent(f"agent-{i}") for i in range(200)])
    # All of the past.
    one.sql.run("ALTER TABLE agent_moves DELETE WHERE 1 SETTINGS mutations_sync = 1")
    two.store.samples.register_agents([agent("mine")])
    read = []
    original = one.sql.table
    one.sql.table = lambda *words: read.append(original(*words)) or read[-1]
    assert one.store.check_owners() == {"mine"}
    assert sum(table.num_rows for table in read) == 1
