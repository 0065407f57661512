"""``store backup``: what was acknowledged when it began is in it, whatever the collector does meanwhile."""

import random
import shutil
import sqlite3
import threading

import pytest
from support.faulty_files import FaultyFiles, PowerLost, flip_byte
from support.store_records import EVER, Feed, durable_after
from support.wire_agent import START_NS, TICK_NS

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local import backup_store, check_store, rebuild_catalog
from gpusonde.collector.storage.model import AgentRow, Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.errors import DirectoryLockedError, StoreCorruptError, StoreError, StoreFullError

CONFIG = StoreConfig(reserve_bytes=0, raw_retention_s=0.0, second_retention_s=0.0)


@pytest.fixture(params=["linked", "copied"], autouse=True)
def file_system(request, monkeypatch):
    """On the same file system as the store, and on another."""
    if request.param == "copied":

        def refuse(source, target, **more):
            open(source).close()
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr("os.link", refuse)


@pytest.fixture
def live(tmp_path):
    """A store in use with an hour file, a segment, and a log; records 1 to 40."""
    store = LocalStore(tmp_path / "data", CONFIG)
    store.open()
    for first in (1, 11, 21, 31):
        store.samples.append(Feed().batches(first, first + 9))
        if first < 31:
            store.flush()
        if first == 11:
            store.maintenance.compact_all()
    yield store
    store.close()


def restored(backup, directory):
    """A collector's store on a copy of a backup; checks that it is whole. Returns the last sequence."""
    shutil.copytree(backup, directory)
    assert check_store(directory).findings == []
    store = LocalStore(directory, CONFIG)
    store.open()
    samples = store.samples.read("GPU-a", *EVER)
    ticks = ((samples.time_unix_nano - START_NS) // TICK_NS).tolist()
    arrived = [
        a.samples for a in store.samples.read_feed("agent-1", "GPU-a", Position(0, 0)) if isinstance(a, TicksEntry)
    ]
    (durable,) = durable_after(store, [AgentRow("agent-1", "spool-1", "instance", 1, "host", "1", b"")])
    assert ticks == list(range(10 * (durable - 1)))
    assert [s for piece in arrived for s in piece.sequence.tolist()] == [tick // 10 + 2 for tick in ticks]
    assert store.facts.losses() == []
    store.samples.append(Feed().batches(durable + 1, durable + 3))  # agents go on where it ends
    store.close()
    assert not (directory / "backup.json").exists()
    return durable


def test_a_backup_beside_a_collector_holds_all_of_it_and_is_brought_up_to_date(live, tmp_path):
    data, backup = tmp_path / "data", tmp_path / "backup"
    report = backup_store(data, backup)
    assert (report.segments, report.missing) == (3, [])
    assert restored(backup, tmp_path / "first") == 40
    before = {path.name: path.stat().st_mtime_ns for path in backup.glob("*/*.parquet")}
    live.samples.append(Feed().batches(41, 50))
    live.flush()
    live.samples.append(Feed().batches(51, 55))
    again = backup_store(data, backup)
    assert again.files_copied == 2  # a segment and a part of the log
    after = {path.name: path.stat().st_mtime_ns for path in backup.glob("*/*.parquet")}
    assert before.items() <= after.items()
    assert restored(backup, tmp_path / "second") == 55
    # What compaction has replaced goes.
    live.maintenance.compact_all()
    backup_store(data, backup)
    assert list((backup / "segments").iterdir()) == []
    assert restored(backup, tmp_path / "third") == 55
    assert not (backup / "lost+found").exists()


@pytest.mark.parametrize("seed", range(3))
def test_a_backup_while_the_store_appends_flushes_and_compacts_is_always_whole(live, tmp_path, seed):
    chance = random.Random(seed)
    acknowledged, ended = [40], threading.Event()

    def work():
        while not ended.is_set():
            last = acknowledged[-1] + chance.randint(1, 5)
            live.samples.append(Feed().batches(acknowledged[-1] + 1, last))
            acknowledged.append(last)
            if chance.random() < 0.3:
                live.flush()
            if chance.random() < 0.1:
                live.maintenance.compact_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(3):
            begun = acknowledged[-1]
            backup_store(tmp_path / "data", tmp_path / "backup")
            assert restored(tmp_path / "backup", tmp_path / f"restored-{number}") >= begun
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("seed", range(6))
def test_an_interrupted_backup_goes_on_and_the_one_before_stays_usable(live, tmp_path, seed):
    data, backup = tmp_path / "data", tmp_path / "backup"
    chance = random.Random(seed)
    backup_store(data, backup)
    live.samples.append(Feed().batches(41, 50))
    live.flush()
    live.maintenance.compact_all()
    live.samples.append(Feed().batches(51, 55))
    files = FaultyFiles(seed)
    files.power_lost_in = chance.randint(0, 30)
    try:
        backup_store(data, backup, files=files)
    except PowerLost:
        files.lose_power()
        left = tmp_path / "left"
        shutil.copytree(backup, left)
        store = LocalStore(left, CONFIG)
        store.open()
        held = len(store.samples.read("GPU-a", *EVER)) // 10 + 1
        told = {n for x in store.facts.losses() for n in range(x.first_sequence, x.last_sequence + 1)}
        assert held + len(told) >= 40
        store.close()
    backup_store(data, backup)
    assert restored(backup, tmp_path / "restored") == 55
    assert sorted(path.name for path in backup.iterdir() if "new" in path.name) == []


def test_a_full_disk_is_said_and_the_backup_goes_on_with_room(live, tmp_path):
    files = FaultyFiles()
    files.room = 100
    with pytest.raises(StoreFullError, match="no space left"):
        backup_store(tmp_path / "data", tmp_path / "backup", files=files)
    files.room = None
    backup_store(tmp_path / "data", tmp_path / "backup", files=files)
    assert restored(tmp_path / "backup", tmp_path / "restored") == 40


def test_what_could_be_mistaken_is_refused(live, tmp_path):
    data, other = tmp_path / "data", tmp_path / "other"
    for target in (data, data / "backup", tmp_path):
        with pytest.raises(StoreError, match="lie in one another"):
            backup_store(data, target)
    store = LocalStore(other, CONFIG)
    store.open()
    store.close()
    with pytest.raises(StoreError, match="no backup of"):
        backup_store(data, other)
    backup_store(data, tmp_path / "backup")
    with pytest.raises(StoreError, match="no backup of"):
        backup_store(other, tmp_path / "backup")
    store = LocalStore(tmp_path / "backup", CONFIG)
    store.open()
    with pytest.raises((StoreError, DirectoryLockedError)):
        backup_store(data, tmp_path / "backup")
    store.close()
    with pytest.raises(StoreError, match="no backup of"):  # a collector has used it: it is a store now
        backup_store(data, tmp_path / "backup")


def test_a_damaged_store_is_said_and_costs_the_backup_nothing(live, tmp_path):
    data, backup = tmp_path / "data", tmp_path / "backup"
    backup_store(data, backup)
    segment = next((data / "segments").iterdir())
    segment.unlink()
    assert backup_store(data, backup).missing == []  # the backup has it
    shutil.rmtree(backup)
    assert backup_store(data, backup).missing == [f"segments/{segment.name}"]
    live.close()
    with sqlite3.connect(data / "catalog.sqlite") as catalog:
        catalog.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    catalog.close()
    before = (backup / "catalog.sqlite").read_bytes()
    for offset in random.Random(3).sample(range(4096, (data / "catalog.sqlite").stat().st_size), 300):
        flip_byte(data / "catalog.sqlite", offset)
    with pytest.raises(StoreCorruptError, match="--rebuild"):
        backup_store(data, backup)
    assert (backup / "catalog.sqlite").read_bytes() == before


@pytest.mark.parametrize("lost", ["catalogue", "catalogue older", "a segment", "log"])
def test_a_part_of_a_backup_is_a_store_and_what_is_missing_is_asked_for_or_on_record(live, tmp_path, lost):
    data, backup = tmp_path / "data", tmp_path / "backup"
    backup_store(data, backup)
    older = (backup / "catalog.sqlite").read_bytes()
    live.samples.append(Feed().batches(41, 50))
    live.flush()
    live.samples.append(Feed().batches(51, 55))
    backup_store(data, backup)
    if lost == "catalogue":
        (backup / "catalog.sqlite").unlink()
        rebuild_catalog(backup)
    elif lost == "catalogue older":
        (backup / "catalog.sqlite").write_bytes(older)
    elif lost == "a segment":
        min((backup / "segments").iterdir()).unlink()
    else:
        shutil.rmtree(backup / "log")
    store = LocalStore(backup, CONFIG)
    store.open()
    (durable,) = durable_after(store, [AgentRow("agent-1", "spool-1", "instance", 1, "host", "1", b"")])
    store.samples.append(Feed().batches(max(durable + 1, 49), 60))  # the agent has let go of 1 to 48
    store.close()
    if lost in ("catalogue older", "a segment"):
        rebuild_catalog(backup)
    store = LocalStore(backup, CONFIG)
    store.open()
    samples = store.samples.read("GPU-a", *EVER)
    held = set(samples.sequence.tolist()) | {1}
    told = {n for x in store.facts.losses() for n in range(x.first_sequence, x.last_sequence + 1)}
    assert held | told == set(range(1, 61))
    assert not held & told
    assert told == (set(range(21, 31)) if lost == "a segment" else set())
    store.close()
    assert check_store(backup).findings == []
