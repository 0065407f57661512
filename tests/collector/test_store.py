"""The store: what is appended is there once, whatever happens to the process, the disk and the power."""

import contextlib
import os
import random
import sqlite3
import struct
import zlib

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.faulty_files import FaultyFiles, PowerLost, flip_byte
from support.store_records import EVER, Feed, inventory_of
from support.wire_agent import START_NS, TICK_NS, batch, block, inventory

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.fsck import check_store
from gpusonde.collector.storage.model import AlertRow, Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.errors import DirectoryLockedError, StoreCorruptError, StoreError, StoreFullError

SMALL = StoreConfig(reserve_bytes=0)


@pytest.fixture
def open_store(tmp_path):
    opened = []

    def open_one(**more):
        while opened:
            opened.pop().close()
        store = LocalStore(tmp_path / "data", **({"config": SMALL} | more))
        store.open()
        opened.append(store)
        return store

    yield open_one
    while opened:
        opened.pop().close()


def ticks_of(store, gpu_uuid="GPU-a"):
    """Numbers of the stored ticks, and a check that every value is the one of its tick."""
    samples = store.samples.read(gpu_uuid, *EVER)
    if not len(samples):
        return []
    ticks = (samples.time_unix_nano - START_NS) // TICK_NS
    expected = ((ticks % 100) / 100).astype(np.float32)
    assert (samples.columns["sm_active"] == expected).all()
    assert (samples.sequence == ticks // 10 + 2).all()
    # Reading in order of time shows one tick per instant; what is really there shows in order of arrival.
    arrivals = store.samples.read_feed("agent-1", gpu_uuid, Position(0, 0))
    assert sum(len(a.samples) for a in arrivals if isinstance(a, TicksEntry)) == len(ticks)
    return ticks.tolist()


def test_what_became_a_segment_last_is_read_without_the_disk(open_store, tmp_path):
    store = open_store()
    store.samples.append(Feed().batches(1, 4))
    store.flush()
    store.samples.append(Feed().batches(5, 6))
    store.flush()
    store.samples.append(Feed().batches(7, 8))
    for segment in (tmp_path / "data" / "segments").iterdir():
        segment.unlink()
    latest = store.samples.read("GPU-a", *EVER, first=Position(1, 5), last=Position(1, 8))
    assert (np.unique(latest.sequence) == [5, 6, 7, 8]).all()
    assert len(latest) == 40
    with pytest.raises(StoreCorruptError):
        store.samples.read("GPU-a", *EVER, first=Position(1, 4), last=Position(1, 8))


def test_an_entry_that_is_twice_in_the_log_counts_once_after_a_restart(open_store):
    files = FaultyFiles()
    store = open_store(files=files)
    store.samples.append(Feed().batches(1, 3))
    files.sync_fails = True
    with pytest.raises(StoreError):
        store.samples.append(Feed().batches(4, 5))
    files.sync_fails = False
    assert ticks_of(store) == list(range(20))
    store.samples.append(Feed().batches(4, 6))
    assert ticks_of(store) == list(range(50))
    assert ticks_of(open_store()) == list(range(50))


def test_sealing_removes_the_log_and_leaves_one_parquet_file(open_store, tmp_path):
    store = open_store()
    store.samples.append(Feed().batches(1, 6))
    assert len(list((tmp_path / "data" / "log").iterdir())) == 1
    store.flush()
    assert list((tmp_path / "data" / "log").iterdir()) == []
    (segment,) = (tmp_path / "data" / "segments").iterdir()
    file = pq.ParquetFile(segment)
    assert file.metadata.num_rows == 50
    assert file.schema_arrow.metadata[b"gpusonde.schema_version"] == b"1"
    assert file.schema_arrow.names[:5] == ["gpu_uuid", "time_unix_nano", "spool", "sequence", "missed_ticks"]


def test_columns_are_encoded_by_what_they_hold(open_store, tmp_path):
    store = open_store()
    noise = np.random.default_rng(0).random(600)
    values = np.stack([noise, np.full(600, 50.0), np.full(600, 1e9)])
    store.samples.append([Feed().incoming(Feed().first), Feed().incoming(batch(2, block(ticks=600, values=values)))])
    store.flush()
    (segment,) = (tmp_path / "data" / "segments").iterdir()
    group = pq.ParquetFile(segment).metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(group.num_columns)}
    assert "BYTE_STREAM_SPLIT" in encodings["sm_active"]
    assert "RLE_DICTIONARY" in encodings["power_watts"]
    assert "DELTA_BINARY_PACKED" in encodings["time_unix_nano"]


def test_a_seal_is_due_by_age_and_by_size(open_store):
    now = [0.0]
    config = StoreConfig(segment_interval_s=60.0, segment_bytes=5000, reserve_bytes=0)
    store = open_store(config=config, monotonic_clock=lambda: now[0])
    store.samples.append(Feed().batches(1, 3))
    assert not store.samples.flush_if_due()
    now[0] = 61.0
    assert store.samples.flush_if_due()
    store.samples.append(Feed().batches(4, 60))
    assert store.samples.flush_if_due()
    assert ticks_of(store) == list(range(590))


def test_a_reader_a_second_behind_a_seal_does_not_need_the_segment(open_store, tmp_path):
    store = open_store()
    for last in (5, 9):
        store.samples.append(Feed().batches(last - 4, last))
        store.flush()
    store.samples.append(Feed().batches(10, 11))
    for segment in (tmp_path / "data" / "segments").iterdir():
        segment.unlink()
    pieces = [arrival.samples for arrival in store.samples.read_feed("agent-1", "GPU-a", Position(1, 6))]
    assert [sequence for piece in pieces for sequence in sorted(set(piece.sequence.tolist()))] == [7, 8, 9, 10, 11]


def test_an_inventory_in_the_middle_of_a_log_holds_from_there_on(open_store):
    store = open_store()
    feed = Feed()
    second = inventory(3, metrics=("sm_active",))
    wider = Feed(metrics=("sm_active",))
    store.samples.append([feed.incoming(feed.first), feed.incoming(batch(2)), wider.incoming(second)])
    store.samples.append([wider.incoming(batch(4, block(first_tick=20, metrics=("sm_active",))))])
    store = open_store()
    assert inventory_of(store, "agent-1", "spool-1").layout.metrics == ("sm_active",)
    samples = store.samples.read("GPU-a", *EVER)
    assert len(samples) == 20
    assert np.isnan(samples.columns["power_watts"]).tolist() == [False] * 10 + [True] * 10


def test_a_store_is_not_for_other_users(tmp_path):
    before = os.umask(0o022)
    try:
        store = LocalStore(tmp_path / "a" / "data", SMALL)
        store.open()
        store.close()
        assert (tmp_path / "a" / "data").stat().st_mode & 0o777 == 0o700
        (tmp_path / "a" / "data").chmod(0o777)
        with pytest.raises(StoreError, match="chmod o-w"):
            store.open()
    finally:
        os.umask(before)


def test_one_directory_is_for_one_store(open_store, tmp_path):
    open_store()
    with pytest.raises(DirectoryLockedError, match="in use by another collector"):
        LocalStore(tmp_path / "data").open()


@pytest.mark.parametrize("cut", [1, 5, 11, 100, 250])
def test_a_torn_log_tail_is_cut_and_what_was_before_it_stays(open_store, tmp_path, cut):
    store = open_store()
    store.samples.append(Feed().batches(1, 4))
    store.close()
    (part,) = (tmp_path / "data" / "log").iterdir()
    part.write_bytes(part.read_bytes()[:-cut])
    store = open_store()
    held = ticks_of(store)
    assert held == list(range(20))[: len(held)]
    assert len(held) >= 10 * (2 - cut // 200)
    store.samples.append(Feed().batches(1, 6))
    assert ticks_of(store) == list(range(50))
    assert ticks_of(open_store()) == list(range(50))


def test_any_cut_of_a_log_leaves_a_prefix_of_its_records(open_store, tmp_path):
    store = open_store()
    store.samples.append(Feed().batches(1, 3))
    store.close()
    (part,) = (tmp_path / "data" / "log").iterdir()
    whole = part.read_bytes()
    chance = random.Random(1)
    for size in {0, 1, 7, 8, 9, 15, 16, 17, *(chance.randrange(len(whole)) for _ in range(20))}:
        log = tmp_path / str(size) / "log"
        log.mkdir(parents=True)
        (log / part.name).write_bytes(whole[:size])
        store = LocalStore(tmp_path / str(size), SMALL)
        store.open()
        held = ticks_of(store)
        assert held == list(range(len(held)))
        assert len(held) % 10 == 0
        store.close()


def test_a_flipped_byte_in_a_log_is_noticed_and_the_hole_is_on_record(open_store, tmp_path):
    store = open_store()
    store.samples.append(Feed().batches(1, 2))
    store.samples.append(Feed().batches(3, 3))
    store.close()
    (part,) = (tmp_path / "data" / "log").iterdir()
    flip_byte(part, -20)
    store = open_store()
    assert ticks_of(store) == list(range(10))
    store.samples.append(Feed().batches(4, 4))  # number 3 was acknowledged: the agent has let go of it
    assert [(loss.first_sequence, loss.last_sequence) for loss in store.facts.losses()] == [(3, 3)]


def two_agents_log(open_store, tmp_path, groups=8):
    """A log of two agents: group k holds records 2 k - 1 and 2 k of each. Returns the part and where groups end."""
    store = open_store()
    ends = []
    for group in range(groups):
        first = 2 * group + 1
        records = [Feed(*names).batches(first, first + 1) for names in (("agent-1", "spool-1"), ("agent-2", "spool-2"))]
        store.samples.append([*records[0], *records[1]])
        (part,) = (tmp_path / "data" / "log").iterdir()
        ends.append(part.stat().st_size)
    store.close()
    return part, ends


def sequences_by_agent(store):
    return {
        agent: sorted(
            {
                sequence
                for arrival in store.samples.read_feed(agent, "GPU-a", Position(0, 0))
                if isinstance(arrival, TicksEntry)
                for sequence in arrival.samples.sequence.tolist()
            }
        )
        for agent in ("agent-1", "agent-2")
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_byte_in_a_log_costs_the_record_that_holds_it(open_store, tmp_path, caplog, seed):
    part, ends = two_agents_log(open_store, tmp_path)
    flip_byte(part, random.Random(seed).randrange(24 if seed else 0, ends[-2]))
    assert [finding.kind.value for finding in check_store(tmp_path / "data").findings] == ["damaged"]
    store = open_store()
    missing = {
        (agent, sequence)
        for agent, found in sequences_by_agent(store).items()
        for sequence in set(range(2, 17)) - set(found)
    }
    assert len(missing) <= 1
    lost = {(x.agent_id, x.first_sequence, x.last_sequence) for x in store.facts.losses()}
    assert lost == {(agent, sequence, sequence) for agent, sequence in missing}
    assert "are damaged" in caplog.text
    assert all(f"records {s} to {s} of spool spool-{a[-1]} of agent {a}" in caplog.text for a, s in missing)
    # What follows is taken, and nothing is asked for twice.
    store.samples.append([*Feed().batches(17, 18), *Feed("agent-2", "spool-2").batches(17, 18)])
    assert {(x.agent_id, x.first_sequence, x.last_sequence) for x in store.facts.losses()} == lost


@pytest.mark.parametrize("seed", range(12))
def test_damage_in_the_last_group_of_a_log_leaves_what_may_not_be_acknowledged_to_the_agents(
    open_store, tmp_path, seed
):
    part, ends = two_agents_log(open_store, tmp_path)
    flip_byte(part, random.Random(seed).randrange(ends[-2], ends[-1]))
    store = open_store()
    assert store.facts.losses() == []
    found = sequences_by_agent(store)
    assert sorted(map(len, found.values()))[1] == 15  # the other agent's are there
    store.samples.append([*Feed().batches(15, 16), *Feed("agent-2", "spool-2").batches(15, 16)])
    assert all(sequences == list(range(2, 17)) for sequences in sequences_by_agent(store).values())
    assert store.facts.losses() == []


def test_any_damage_to_a_log_repeats_nothing_and_is_on_record_or_asked_for(open_store, tmp_path):
    part, _ = two_agents_log(open_store, tmp_path)
    whole = part.read_bytes()
    catalog = (tmp_path / "data" / "catalog.sqlite").read_bytes()
    chance = random.Random(5)
    for number in range(25):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            place, length = chance.randrange(len(data)), chance.choice([1, 8, 300, 5000])
            damage = chance.choice(
                [bytes(length), chance.randbytes(length), bytes(data[chance.randrange(len(data)) :])]
            )
            data[place : place + len(damage)] = damage
        directory = tmp_path / str(number)
        (directory / "log").mkdir(parents=True)
        (directory / "log" / part.name).write_bytes(data)
        (directory / "catalog.sqlite").write_bytes(catalog)
        store = LocalStore(directory, SMALL)
        store.open()
        told = {(x.agent_id, n) for x in store.facts.losses() for n in range(x.first_sequence, x.last_sequence + 1)}
        for agent, found in sequences_by_agent(store).items():
            assert {(agent, n) for n in range(2, max(found, default=1) + 1)} - {(agent, n) for n in found} <= told
            spool = f"spool-{agent[-1]}"
            store.samples.append(Feed(agent, spool).batches(max(found, default=0) + 1, 20))
            assert not {(agent, n) for n in sequences_by_agent(store)[agent]} & told
        store.close()


def test_a_log_of_the_first_format_is_read(open_store, tmp_path):
    store = open_store()
    store.samples.append(Feed().batches(1, 1))
    store.close()
    log = tmp_path / "data" / "log"
    for path in log.iterdir():
        path.unlink()
    body = b""
    for pending in Feed().batches(1, 4):
        entry = pending.entry
        names = entry.agent_id.encode() + entry.spool_id.encode()
        content = struct.pack("<BBBQq", 1, len(entry.agent_id), len(entry.spool_id), entry.sequence, 5) + names
        content += entry.payload
        body += struct.pack("<II", len(content), zlib.crc32(content)) + content
    (log / "00000007.log").write_bytes(b"GSLOG001" + body)
    assert ticks_of(open_store()) == list(range(30))
    (log / "00000008.log").write_bytes(b"GSLOG003" + body)
    with pytest.raises(StoreError, match="newer collector"):
        open_store()


@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "gone", "no parquet"])
def test_a_damaged_segment_is_named_and_the_others_are_read(open_store, tmp_path, damage):
    store = open_store()
    store.samples.append(Feed().batches(1, 30))
    store.flush()
    (segment,) = (tmp_path / "data" / "segments").iterdir()
    store.samples.append(Feed().batches(31, 32))
    store.flush()
    if damage == "flipped byte":
        flip_byte(segment, 200)
    elif damage == "truncated":
        segment.write_bytes(segment.read_bytes()[:-10])
    elif damage == "gone":
        segment.unlink()
    else:
        segment.write_bytes(b"x" * segment.stat().st_size)
    store = open_store()
    with pytest.raises(StoreCorruptError, match=segment.name) as caught:
        store.samples.read("GPU-a", *EVER, ["time_unix_nano", "sm_active", "power_watts"][1:])
    assert caught.value.path == segment
    assert "restore the file from a backup" in str(caught.value)
    assert len(store.samples.read("GPU-a", START_NS + 290 * TICK_NS, EVER[1])) == 20
    left = [a.samples for a in store.samples.read_feed("agent-1", "GPU-a", Position(0, 0)) if isinstance(a, TicksEntry)]
    assert sum(map(len, left)) == 20


def test_only_half_made_segments_of_a_crash_are_removed(open_store, tmp_path):
    store = open_store()
    store.samples.append(Feed().batches(1, 3))
    store.close()
    own = f"{1:020d}-{1:08d}.parquet"
    for name in ("00001.parquet", "00002.parquet.tmp", f".{own}.0123abcd.tmp"):
        (tmp_path / "data" / "segments" / name).write_bytes(b"half")
    store = open_store()
    assert list((tmp_path / "data" / "segments").iterdir()) == []
    assert set_aside(tmp_path / "data") == {"segments/00001.parquet", "segments/00002.parquet.tmp"}
    assert ticks_of(store) == list(range(20))


def set_aside(directory):
    """What is in ``lost+found``, by the folder in which it was."""
    aside = directory / "lost+found"
    return {str(path.relative_to(aside)) for path in aside.glob("*/*")}


@pytest.mark.parametrize("compacted", [False, True])
def test_an_older_catalogue_costs_no_segment(open_store, tmp_path, caplog, compacted):
    data = tmp_path / "data"
    store = open_store()
    store.samples.append(Feed().batches(1, 5))
    store.flush()
    store.close()
    older = (data / "catalog.sqlite").read_bytes()
    store = open_store()
    store.samples.append(Feed("agent-2", "spool-2").batches(1, 5))
    store.samples.append(Feed().batches(6, 9))
    store.flush()
    if compacted:
        store.maintenance.compact_all()
    store.close()
    segments = {str(path.relative_to(data)): path.read_bytes() for path in data.glob("*/*.parquet")}
    (data / "catalog.sqlite").write_bytes(older)
    store = open_store()
    unknown = {name for name in segments if (data / "lost+found" / name).exists()}
    assert unknown
    assert all((data / "lost+found" / name).read_bytes() == segments[name] for name in unknown)
    assert all((data / name).read_bytes() == segments[name] for name in set(segments) - unknown)
    assert store.usage().tier_bytes["lost_found"] == sum(len(segments[name]) for name in unknown)
    assert all(str(data / name) in caplog.text for name in unknown)
    assert "fsck --rebuild" in caplog.text
    # The agents send again what they have; what is set aside keeps the numbers of its spools.
    store.samples.append(Feed("agent-3", "spool-3").batches(1, 2))
    assert {spool: position.spool for (_, spool), position in store.facts.spools().items()} == {
        "spool-1": 1, "spool-2": 2, "spool-3": 3,
    }  # fmt: skip
    store.samples.append(Feed().batches(9, 10))  # the others it has let go of
    assert [(x.agent_id, x.first_sequence, x.last_sequence) for x in store.facts.losses()] == [("agent-1", 6, 8)]


def test_a_missing_catalogue_is_refused_while_there_are_segments(open_store, tmp_path):
    store = open_store()
    store.samples.append(Feed().batches(1, 5))
    store.flush()
    store.close()
    catalog = tmp_path / "data" / "catalog.sqlite"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")}
    for emptied in (False, True):
        catalog.unlink()
        if emptied:
            catalog.touch()
        with pytest.raises(StoreCorruptError, match="fsck --rebuild") as caught:
            LocalStore(tmp_path / "data", SMALL).open()
        assert caught.value.path == catalog
        assert {path: path.read_bytes() for path in tmp_path.rglob("*.parquet")} == before
        catalog.touch()


def test_a_segment_that_retention_has_deleted_goes_for_good(open_store, tmp_path):
    clock = [START_NS]
    config = StoreConfig(reserve_bytes=0, raw_retention_s=60.0)
    store = open_store(config=config, wall_clock_ns=lambda: clock[0])
    store.samples.append(Feed().batches(1, 5))
    store.flush()
    (segment,) = (tmp_path / "data" / "segments").iterdir()
    content = segment.read_bytes()
    clock[0] += 3600 * 10**9
    assert store.maintenance.delete_old() == 1
    segment.write_bytes(content)  # as if the process had ended before
    store = open_store(config=config)
    assert not segment.exists()
    assert set_aside(tmp_path / "data") == set()


def test_a_catalogue_that_is_no_database_is_refused_with_its_name(tmp_path):
    (tmp_path / "catalog.sqlite").write_bytes(b"not a database" * 100)
    store = LocalStore(tmp_path)
    with pytest.raises(StoreCorruptError, match=r"catalog\.sqlite"):
        store.open()


def test_a_full_disk_stores_nothing_of_the_group_and_takes_it_when_there_is_room(open_store):
    files = FaultyFiles()
    store = open_store(files=files)
    store.samples.append(Feed().batches(1, 3))
    files.room = 100
    with pytest.raises(StoreFullError, match="no space left"):
        store.samples.append(Feed().batches(4, 6))
    assert ticks_of(store) == list(range(20))
    with pytest.raises(StoreFullError):
        store.samples.check_writable()
    files.room = None
    store.samples.check_writable()
    store.samples.append(Feed().batches(4, 6))
    assert ticks_of(store) == list(range(50))
    assert ticks_of(open_store()) == list(range(50))


def test_a_full_disk_whose_log_cannot_even_be_cut_goes_on_in_a_new_part(open_store, tmp_path):
    files = FaultyFiles()
    store = open_store(files=files)
    store.samples.append(Feed().batches(1, 3))
    files.room, files.truncate_fails = 100, True
    with pytest.raises(StoreFullError):
        store.samples.append(Feed().batches(4, 6))
    files.room, files.truncate_fails = None, False
    store.samples.append(Feed().batches(4, 6))
    assert len(list((tmp_path / "data" / "log").iterdir())) == 2
    assert ticks_of(open_store()) == list(range(50))


def test_a_segment_that_does_not_fit_leaves_samples_in_log_and_memory(open_store, tmp_path):
    files = FaultyFiles()
    store = open_store(files=files)
    store.samples.append(Feed().batches(1, 6))
    files.room = 500
    with pytest.raises(StoreFullError):
        store.flush()
    assert list((tmp_path / "data" / "segments").iterdir()) == []
    files.room = None
    store.samples.append(Feed().batches(7, 8))
    assert ticks_of(store) == list(range(70))
    store.flush()
    assert len(list((tmp_path / "data" / "segments").iterdir())) == 2
    assert list((tmp_path / "data" / "log").iterdir()) == []
    assert ticks_of(open_store()) == list(range(70))


def test_the_reserve_is_left_free(open_store):
    files = FaultyFiles()
    store = open_store(files=files, config=StoreConfig(reserve_bytes=1 << 20))
    files.room = 1 << 19
    with pytest.raises(StoreFullError, match="are kept in reserve"):
        store.samples.append(Feed().batches(1, 2))


def test_memory_is_bounded_while_no_segment_can_be_written(open_store):
    store = open_store(config=StoreConfig(memory_bytes=2000, reserve_bytes=0))
    store.samples.append(Feed().batches(1, 20))
    with pytest.raises(StoreFullError, match="wait in memory"):
        store.samples.append(Feed().batches(21, 22))
    store.flush()
    store.samples.append(Feed().batches(21, 22))
    assert ticks_of(store) == list(range(210))


@pytest.mark.parametrize("seed", range(12))
def test_power_loss_at_any_moment_loses_nothing_acknowledged(tmp_path, seed):
    """Random appends and flushes over a disk that forgets what was not synced; the power goes every few operations."""
    chance = random.Random(seed)
    files = FaultyFiles(seed)
    acknowledged = sent = 0
    for _ in range(12):
        files.power_lost_in = chance.randint(3, 60)
        store = LocalStore(tmp_path / "data", SMALL, files=files)
        try:
            store.open()
            held = ticks_of(store)
            assert held == list(range(len(held)))
            assert len(held) >= 10 * max(acknowledged - 1, 0)
            sent = acknowledged = len(held) // 10 + 1 if held else acknowledged
            while True:
                sent += chance.randint(1, 4)
                store.samples.append(Feed().batches(max(1, acknowledged - 1), sent))
                acknowledged = sent
                if chance.random() < 0.3:
                    store.flush()
        except PowerLost:
            store.close()
            files.lose_power()
    store = LocalStore(tmp_path / "data", SMALL)
    store.open()
    # What was sent and not acknowledged may have survived or not; sent again, all of it is there once.
    assert len(ticks_of(store)) >= 10 * max(acknowledged - 1, 0)
    store.samples.append(Feed().batches(1, sent + 1))
    assert ticks_of(store) == list(range(10 * sent))
    assert store.facts.losses() == []
    assert set_aside(tmp_path / "data") == set()
    store.close()


def test_alerts_of_a_store_from_before_they_were_kept_for_a_webhook_stay(open_store, tmp_path):
    store = open_store()
    row = AlertRow(1, "17", "hung", START_NS, 0, "no cycle for 60 s", "agent")
    store.results.save_alerts([row])
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "catalog.sqlite")) as connection:
        connection.executescript("DROP INDEX job_alerts_untold; ALTER TABLE job_alerts DROP COLUMN untold;")
    assert open_store().results.alerts(limit=10) == [row]
