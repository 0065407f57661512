"""What every engine of the store promises of all that is no sample: agents, order of arrival, facts, hostile names."""

import pytest
from support.store_records import EVER, Feed, durable_after, inventory_of
from support.wire_agent import START_NS, TICK_NS, batch, block, inventory, source_ended

from gpusonde.collector.storage.local.log import rejection_payload
from gpusonde.collector.storage.model import AgentRow, EntryKind, LogEntry, PendingRecord, Position, RejectedRecord
from gpusonde.collector.storage.samples import ActivityEntry, BindingEntry, SourceEndEntry, TicksEntry
from gpusonde.common.v1 import gpu_pb2, job_pb2
from gpusonde.ingest.v1 import ingest_pb2

BEGINNING = Position(0, 0)
# What breaks statements that are put together of text, and what breaks the escaping of bound values.
HOSTILE = [
    "'; DROP TABLE samples; --",
    "\\",
    "\\'",
    "\\N",
    "it's",
    "{gpu:String}",
    "%s %(x)s %",
    '"`$x$',
    "a/*b*/--c",
    "ümläut 😀",
    "NULL",
    "../../etc/passwd",
]


def binding(sequence, job="job-1", start=START_NS, end=0, gpu="GPU-a", labels=None):
    wire = job_pb2.JobBinding(
        gpu_uuid=gpu,
        job_id=job,
        scheduler=1,
        start_time_unix_nano=start,
        end_time_unix_nano=end,
        labels=labels or {"u": "x"},
    )
    return ingest_pb2.Record(sequence=sequence, job_bindings=ingest_pb2.JobBindings(bindings=[wire]))


def activity(sequence, begin=START_NS, gpus=("GPU-a", "GPU-b"), looks=30):
    group = ingest_pb2.ProcessGroupActivity(gpu_uuids=gpus, forks=[sequence] * looks)
    other = ingest_pb2.ProcessGroupActivity(gpu_uuids=["GPU-c"], forks=[0] * looks)
    offsets = [1000 * i for i in range(looks)]
    message = ingest_pb2.JobActivity(start_time_unix_nano=begin, offsets_ms=offsets, groups=[group, other])
    return ingest_pb2.Record(sequence=sequence, job_activity=message)


def agent_row(agent_id="agent-1", spool_id="spool-1", started=1_000_000, **more):
    fields = {"instance_id": "instance-1", "host_name": "host-1", "agent_version": "1.0", "host": b"\x00\xff\n'\\"}
    return AgentRow(agent_id, spool_id, start_unix_nano=started, **(fields | more))


def sequences(arrivals):
    found = []
    for arrival in arrivals:
        if isinstance(arrival, TicksEntry):
            found += sorted(set(arrival.samples.sequence.tolist()))
        elif isinstance(arrival, BindingEntry):
            found.append(("bound", arrival.position.sequence, arrival.binding.job_id))
        elif isinstance(arrival, SourceEndEntry):
            found.append(("ended", arrival.position.sequence))
    return found


def spool_of(store, agent_id="agent-1", gpu_uuid="GPU-a"):
    (first, *_) = (a for a in store.samples.read_feed(agent_id, gpu_uuid, BEGINNING) if isinstance(a, TicksEntry))
    return int(first.samples.spool[0])


def bindings_through(store, last):
    return [binding for position, binding in store.facts.bindings("agent-1", "GPU-a") if position <= last]


def test_an_introduction_tells_how_far_a_spool_is_durable(engine):
    store = engine.open()
    assert durable_after(store, [agent_row()]) == [0]
    store.samples.append(Feed().batches(1, 5))
    assert durable_after(store, [agent_row()]) == [5]
    assert durable_after(store, [agent_row(spool_id="spool-2")]) == [0]
    store = engine.open()
    assert durable_after(store, [agent_row()]) == [5]
    assert durable_after(store, [agent_row("agent-2")]) == [0]


def test_a_spool_that_goes_on_from_another_has_no_gap_before_its_first_sequence(engine):
    store = engine.open()
    assert durable_after(store, [agent_row(first_sequence=38)]) == [37]
    store = engine.open()
    assert durable_after(store, [agent_row(first_sequence=38)]) == [37]
    feed = Feed()
    store.samples.append(feed.batches(38, 40))
    store.samples.append(feed.batches(43, 44))
    assert durable_after(store, [agent_row(first_sequence=38)]) == [44]
    assert [(loss.first_sequence, loss.last_sequence) for loss in store.facts.losses()] == [(41, 42)]


def test_an_agent_is_kept_as_it_introduced_itself_last(engine):
    store = engine.open()
    store.samples.register_agents([agent_row()])
    latest = agent_row(spool_id="spool-2", instance_id="instance-2", started=2_000_000)
    store.samples.register_agents([latest])
    other = agent_row("agent-2")
    store.samples.register_agents([other])
    for _ in range(2):
        assert sorted(store.facts.agents(), key=lambda agent: agent.agent_id) == [latest, other]
        store = engine.open()


def test_spools_of_an_agent_follow_each_other_even_when_its_clock_does_not(engine):
    store = engine.open()
    for i, started in enumerate((5_000_000_000, 1_000, 7_000_000_000)):
        spool_id = f"spool-{i}"
        store.samples.register_agents([agent_row(spool_id=spool_id, started=started)])
        feed = Feed(spool_id=spool_id)
        store.samples.append([feed.incoming(feed.first), feed.incoming(batch(2, block(first_tick=10 * i)))])
        engine.settle()
    for _ in range(2):
        pieces = [a.samples for a in store.samples.read_feed("agent-1", "GPU-a", BEGINNING)]
        ticks = [t for piece in pieces for t in ((piece.time_unix_nano - START_NS) // TICK_NS).tolist()]
        assert ticks == list(range(30))
        second = int(pieces[0].spool[0])
        rest = [a.samples for a in store.samples.read_feed("agent-1", "GPU-a", Position(second, 2))]
        assert sum(map(len, rest)) == 20
        store = engine.open()


@pytest.mark.parametrize("settles", [(), (2,), (3,), (4,), (6,), (3, 5)])
def test_arrivals_come_in_the_order_in_which_they_were_said(engine, settles):
    store = engine.open()
    feed = Feed()
    for record in [feed.first, batch(2), binding(3), batch(4), batch(5), source_ended(6)]:
        store.samples.append([feed.incoming(record)])
        if record.sequence in settles:
            engine.settle()
    said = [2, ("bound", 3, "job-1"), 4, 5, ("ended", 6)]
    for _ in range(2):
        assert sequences(store.samples.read_feed("agent-1", "GPU-a", BEGINNING)) == said
        spool = spool_of(store)
        for reached in range(7):
            rest = sequences(store.samples.read_feed("agent-1", "GPU-a", Position(spool, reached)))
            assert rest == [one for one in said if (one if isinstance(one, int) else one[1]) > reached]
        assert sequences(store.samples.read_feed("agent-2", "GPU-a", BEGINNING)) == []
        assert sequences(store.samples.read_feed("agent-1", "GPU-b", BEGINNING)) == []
        store = engine.open()


def test_what_processes_did_is_read_by_gpu_in_order_of_arrival(engine):
    store = engine.open()
    feed = Feed()
    second = 10**9
    store.samples.append(
        [
            feed.incoming(feed.first),
            feed.incoming(activity(2)),
            feed.incoming(activity(3, START_NS + 30 * second)),
            feed.incoming(activity(4, START_NS + 60 * second, gpus=("GPU-a",))),
            feed.incoming(activity(5, looks=0)),
            feed.incoming(batch(6)),
        ]
    )
    for _ in range(2):
        told = {
            gpu: [(at.sequence, job.values[0, 0]) for at, job in store.facts.activity("agent-1", gpu, BEGINNING)]
            for gpu in ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
        }
        assert told == {
            "GPU-a": [(2, 2), (3, 3), (4, 4)],
            "GPU-b": [(2, 2), (3, 3)],
            "GPU-c": [(2, 0), (3, 0), (4, 0)],
            "GPU-d": [],
        }
        (first, _), *_ = store.facts.activity("agent-1", "GPU-a", BEGINNING)
        later = list(store.facts.activity("agent-1", "GPU-a", Position(first.spool, 3)))
        assert later[0][1].time_unix_nano.tolist() == [START_NS + (60 + i) * second for i in range(30)]
        assert list(store.facts.activity("agent-2", "GPU-a", BEGINNING)) == []
        recent = store.facts.recent_activity("agent-1", ["GPU-a", "GPU-x"], START_NS + 35 * second)
        assert [job.values[0, 0] for job in recent] == [3, 4]
        assert store.facts.recent_activity("agent-2", ["GPU-a"], START_NS) == []
        assert store.facts.losses() == []
        store = engine.open()


def test_what_processes_did_stands_in_the_feed_where_it_was_said(engine):
    store = engine.open()
    feed = Feed()
    count = 400  # more than is read at once
    records = [feed.first]
    for sequence in range(2, count + 2):
        records.append(activity(sequence, START_NS + 30 * sequence * 10**9) if sequence % 2 else batch(sequence))
    store.samples.append([feed.incoming(record) for record in records])

    def said(after):
        found = []
        for entry in store.samples.read_feed("agent-1", "GPU-a", after):
            if isinstance(entry, ActivityEntry):
                found.append((entry.position.sequence, int(entry.activity.values[0, 0])))
            else:
                found += [(int(sequence), -1) for sequence in dict.fromkeys(entry.samples.sequence.tolist())]
        return found

    whole = [(sequence, sequence if sequence % 2 else -1) for sequence in range(2, count + 2)]
    for settled in (False, True):
        assert said(BEGINNING) == whole
        entries = store.samples.read_feed("agent-1", "GPU-a", BEGINNING)
        (spool,) = {entry.position.spool for entry in entries if isinstance(entry, ActivityEntry)}
        assert said(Position(spool, 250)) == whole[249:]
        assert said(Position(spool, 251)) == whole[250:]
        if not settled:
            engine.settle()
            store = engine.open()


def test_bindings_are_known_up_to_a_record(engine):
    store = engine.open()
    feed = Feed()
    labels = {"it's": 'a "label"\\', "user": "ü"}
    store.samples.append(
        [feed.incoming(feed.first), feed.incoming(batch(2)), feed.incoming(binding(3, labels=labels, end=START_NS + 5))]
    )
    store.samples.append([feed.incoming(binding(4, job="job-2", start=START_NS + 5))])
    spool = spool_of(store)
    for _ in range(2):
        assert bindings_through(store, Position(spool, 2)) == []
        (one,) = bindings_through(store, Position(spool, 3))
        assert (one.job_id, one.scheduler, one.start_unix_nano, one.end_unix_nano, dict(one.labels)) == (
            "job-1", 1, START_NS, START_NS + 5, labels,
        )  # fmt: skip
        assert [b.job_id for b in bindings_through(store, Position(spool, 9))] == ["job-1", "job-2"]
        assert store.facts.bindings("agent-2", "GPU-a") == []
        assert store.facts.job_bindings("agent-1", "job-1") == [("GPU-a", Position(spool, 3), one)]
        assert store.facts.job_bindings("agent-1", labels["it's"]) == store.facts.job_bindings("agent-2", "job-1") == []
        assert [(agent, b.job_id, b.gpu_uuid) for agent, b in store.facts.open_bindings()] == [
            ("agent-1", "job-2", "GPU-a")
        ]
        store = engine.open()
    store.samples.append([feed.incoming(binding(5, job="job-2", start=START_NS + 5, end=START_NS + 9))])
    assert store.facts.open_bindings() == []


def test_facts_beside_samples_are_kept_and_counted_once(engine):
    store = engine.open()
    feed = Feed()
    report = ingest_pb2.LossReport(
        first_lost_sequence=3, last_lost_sequence=9, reason=ingest_pb2.LOSS_REASON_SPOOL_FULL, lost_ticks=70
    )
    event = ingest_pb2.GpuEvent(gpu=0, time_unix_nano=START_NS, kind=ingest_pb2.GPU_EVENT_KIND_XID, value=79)
    earlier = ingest_pb2.GpuEvent(gpu=0, time_unix_nano=START_NS - 1, kind=ingest_pb2.GPU_EVENT_KIND_LOST, value=0)
    blank = batch(12, block(100), block(110))
    for wire in blank.batch.blocks:
        wire.blank_counts.add(metric=1, reason=gpu_pb2.BLANK_REASON_NO_DATA, count=4)
    records = [
        feed.first,
        batch(2),
        ingest_pb2.Record(sequence=10, loss_report=report),
        ingest_pb2.Record(sequence=11, gpu_events=ingest_pb2.GpuEvents(events=[event, earlier])),
        blank,
    ]
    store.samples.append([feed.incoming(record) for record in records])
    engine.break_before_acknowledging()
    with pytest.raises(Exception, match=r".+"):
        store.samples.append([feed.incoming(batch(13))])
    engine.repair()
    store.samples.append([feed.incoming(batch(13))])
    store = engine.open()
    losses = [(x.first_sequence, x.last_sequence, x.reason, x.lost_ticks, x.reported) for x in store.facts.losses()]
    assert sorted(losses) == [(3, 9, 0, 0, False), (3, 9, ingest_pb2.LOSS_REASON_SPOOL_FULL, 70, True)]
    assert {(x.agent_id, x.spool_id) for x in store.facts.losses()} == {("agent-1", "spool-1")}
    found = [(e.gpu_uuid, e.kind, e.value) for e in store.facts.events("GPU-a")]
    assert found == [("GPU-a", ingest_pb2.GPU_EVENT_KIND_LOST, 0), ("GPU-a", ingest_pb2.GPU_EVENT_KIND_XID, 79)]
    engine.settle()
    assert store.facts.blank_counts("GPU-a") == {("power_watts", gpu_pb2.BLANK_REASON_NO_DATA): 8}
    assert store.facts.blank_counts("GPU-nobody") == {}


def test_gpus_are_described_as_their_agents_did_last(engine):
    store = engine.open()
    store.samples.register_agents([agent_row(host_name="host-7")])
    feed = Feed(gpus=("GPU-a", "GPU-b"))
    second = inventory(2, metrics=("dram_active",), gpus=("GPU-a",), model="NVIDIA H100")
    store.samples.append([feed.incoming(feed.first), feed.incoming(second)])
    store.samples.append([Feed("agent-2", gpus=("GPU-b",)).incoming(inventory(1, gpus=("GPU-b",)))])
    for _ in range(2):
        found = [(g.gpu_uuid, g.agent_id, g.host_name) for g in store.facts.gpus()]
        assert found == [("GPU-a", "agent-1", "host-7"), ("GPU-b", "agent-1", "host-7"), ("GPU-b", "agent-2", "")]
        assert [g.gpu_uuid for g in store.facts.gpus({found[0][0], "GPU-unknown"})] == [found[0][0]]
        assert store.facts.gpus(()) == []
        assert gpu_pb2.Gpu.FromString(store.facts.gpus()[0].message).product_name == "NVIDIA H100"
        # A metric that is gone from the inventory still has its past.
        metrics = ["dram_active", "sm_active", "power_watts", "framebuffer_used_bytes"]
        assert store.facts.metrics("GPU-a")[0] == store.facts.gpus()[0].metrics[0] == "dram_active"
        assert sorted(store.facts.metrics("GPU-a")) == sorted(store.facts.gpus()[0].metrics) == sorted(metrics)
        store = engine.open()


def test_a_rejected_record_is_passed_over_and_on_record(engine):
    store = engine.open()
    feed = Feed()
    store.samples.append([feed.incoming(feed.first)])
    store.samples.quarantine("name.bin", b"\x00\xff")
    rejected = RejectedRecord("batch.blocks[0]", "it's \\ wrong", 2, "name.bin")
    entry = LogEntry("agent-1", "spool-1", 2, START_NS, EntryKind.REJECTION, rejection_payload(rejected))
    store.samples.append([PendingRecord(entry, rejected), feed.incoming(batch(3))])
    for _ in range(2):
        (row,) = store.facts.rejections()
        assert (row.agent_id, row.spool_id, row.sequence, row.problem) == ("agent-1", "spool-1", 2, "it's \\ wrong")
        assert store.facts.losses() == []
        assert len(store.samples.read("GPU-a", *EVER)) == 10
        store = engine.open()


def test_whoever_subscribes_hears_what_is_durable(engine):
    store = engine.open()
    heard = []
    store.samples.subscribe(lambda keys: heard.append((keys, len(store.samples.read("GPU-a", *EVER)))))
    store.samples.append(Feed().batches(1, 3))
    assert heard == [(frozenset([("agent-1", "GPU-a")]), 20)]
    store.samples.append(Feed().batches(1, 3))
    engine.break_before_acknowledging()
    with pytest.raises(Exception, match=r".+"):
        store.samples.append(Feed().batches(4, 4))
    assert len(heard) == 1


def test_a_store_that_works_says_so(engine):
    engine.open().samples.check_writable()


@pytest.mark.parametrize("settled", [False, True], ids=["fresh", "settled"])
def test_the_store_knows_which_records_of_an_agent_are_durable(engine, settled):
    store = engine.open()
    store.samples.append(Feed().batches(1, 5))
    store.samples.append(Feed("agent-2", "other").batches(1, 3))
    one, two = spool_of(store), spool_of(store, "agent-2")
    if settled:
        engine.settle()
    store = engine.open()
    assert [store.samples.contains("agent-1", Position(one, sequence)) for sequence in (0, 1, 5, 6)] == [
        False,
        True,
        True,
        False,
    ]
    assert store.samples.contains("agent-2", Position(two, 3))
    assert not store.samples.contains("agent-2", Position(one, 3))
    assert not store.samples.contains("nobody", Position(one, 3))
    assert not store.samples.contains("nobody", Position(one, 3))


def test_names_are_data_whatever_is_in_them(engine):
    store = engine.open()
    store.samples.append(Feed().batches(1, 2))
    for name in HOSTILE:
        feed = Feed(name, "spool-1", gpus=(name,))
        store.samples.register_agents([agent_row(name, host_name=name, agent_version=name)])
        store.samples.append(
            [feed.incoming(feed.first), feed.incoming(batch(2)), feed.incoming(binding(3, name, gpu=name))]
        )
    engine.settle()
    for _ in range(2):
        gpus, agents = store.facts.gpus(), store.facts.agents()
        assert len(store.samples.read("GPU-a", *EVER)) == 10
        assert {agent.agent_id: agent.agent_version for agent in agents} == {name: name for name in HOSTILE}
        for name in HOSTILE:
            assert len(store.samples.read(name, *EVER)) == 10
            assert store.samples.next_tick(name, 0) == START_NS
            assert sequences(store.samples.read_feed(name, name, BEGINNING)) == [2, ("bound", 3, name)]
            assert [(g.gpu_uuid, g.host_name) for g in gpus if g.agent_id == name] == [(name, name)]
            assert store.facts.blank_counts(name) == {}
            assert store.facts.events(name) == []
        store = engine.open()
    for name in HOSTILE:
        assert inventory_of(store, name, "spool-1").gpus[0].gpu_uuid == name
