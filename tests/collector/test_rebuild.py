"""``store fsck --rebuild``: what segments hold is in the store again, once, and what is missing is on record."""

import random
import shutil

import pytest
from support.faulty_files import FaultyFiles, PowerLost, flip_byte
from support.store_records import EVER, Feed, durable_after, inventory_of
from support.wire_agent import START_NS, TICK_NS

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local import check_store, rebuild_catalog
from gpusonde.collector.storage.model import AgentRow, Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.errors import DirectoryLockedError, StoreError

CONFIG = StoreConfig(reserve_bytes=0, raw_retention_s=0.0, second_retention_s=0.0)
AGENTS = {"agent-1": "spool-1", "agent-2": "spool-2"}


@pytest.fixture
def data(tmp_path):
    """The directory of a stopped store: a compacted hour, small segments, and a log; agent-1 has sent 36 records."""
    directory = tmp_path / "data"
    store = open_store(directory)
    for agent, spool in AGENTS.items():
        store.samples.register_agents([AgentRow(agent, spool, "instance", 1, "host", "1", b"")])
    for first in (1, 11, 21, 31):
        store.samples.append(Feed().batches(first, first + 5))
        store.samples.append(Feed("agent-2", "spool-2", gpus=("GPU-b",)).batches(first, first + 2))
        store.samples.append(Feed().batches(first + 6, first + 9) if first < 31 else [])
        store.samples.append(Feed("agent-2", "spool-2", gpus=("GPU-b",)).batches(first + 3, first + 9))
        if first < 31:
            store.flush()
        if first == 11:
            store.maintenance.compact_all()
    store.close()
    return directory


def open_store(directory, **more):
    store = LocalStore(directory, CONFIG, **more)
    store.open()
    return store


def content(directory):
    """Sequences of all ticks by GPU, in order of arrival; each has its own value and time."""
    store = open_store(directory)
    found = {}
    for agent, gpu in (("agent-1", "GPU-a"), ("agent-2", "GPU-b")):
        samples = store.samples.read(gpu, *EVER)
        ticks = (samples.time_unix_nano - START_NS) // TICK_NS
        assert (samples.sequence == ticks // 10 + 2).all()
        arrivals = store.samples.read_feed(agent, gpu, Position(0, 0))
        assert sum(len(a.samples) for a in arrivals if isinstance(a, TicksEntry)) == len(ticks)
        found[gpu] = sorted(set(samples.sequence.tolist()))
        assert len(ticks) == 10 * len(found[gpu])
    store.close()
    return found


def losses(directory):
    store = open_store(directory)
    found = [(x.agent_id, x.first_sequence, x.last_sequence) for x in store.facts.losses()]
    store.close()
    return found


EVERYTHING = {"GPU-a": list(range(2, 37)), "GPU-b": list(range(2, 41))}


def test_a_whole_store_is_the_same_afterwards(data):
    before = content(data)
    assert before == EVERYTHING
    assert {finding.kind.value for finding in rebuild_catalog(data)} == {"catalog"}
    assert check_store(data).findings == []
    assert content(data) == before
    assert losses(data) == []


@pytest.mark.parametrize("damage", ["gone", "empty", "no database", "flipped bytes", "first half"])
def test_without_its_catalogue_a_store_keeps_every_sample(data, damage):
    catalog = data / "catalog.sqlite"
    if damage == "gone":
        catalog.unlink()
    elif damage == "empty":
        catalog.write_bytes(b"")
    elif damage == "no database":
        catalog.write_bytes(b"no database" * 1000)
    elif damage == "flipped bytes":
        for offset in random.Random(3).sample(range(4096, catalog.stat().st_size), 200):
            flip_byte(catalog, offset)
    else:
        catalog.write_bytes(catalog.read_bytes()[: catalog.stat().st_size // 2])
    report = rebuild_catalog(data)
    if damage in ("gone", "empty", "no database"):
        assert "what only it knew is gone" in " ".join(finding.problem for finding in report)
    assert content(data) == EVERYTHING
    # Agents go on where they were: their inventories are known, so that what they send next can be read.
    store = open_store(data)
    assert inventory_of(store, "agent-1", "spool-1") == Feed().inventory
    assert durable_after(store, [AgentRow("agent-1", "spool-1", "instance", 1, "host", "1", b"")]) == [36]
    assert sorted(store.followed()) == [("agent-1", "GPU-a"), ("agent-2", "GPU-b")]
    store.samples.append(Feed().batches(37, 40))
    store.flush()
    store.close()
    assert content(data)["GPU-a"] == list(range(2, 41))
    assert check_store(data).findings == []


def test_segments_that_were_set_aside_come_back_once_although_agents_have_sent_again(data):
    older = data.parent / "older"
    shutil.copytree(data, older)
    store = open_store(data)
    store.samples.append(Feed().batches(37, 60))
    store.samples.append(Feed("agent-3", "spool-3", gpus=("GPU-c",)).batches(1, 20))
    store.flush()
    store.close()
    shutil.copy(older / "catalog.sqlite", data / "catalog.sqlite")
    store = open_store(data)
    assert list((data / "lost+found" / "segments").iterdir())
    # A new agent, then agent-1 with what it still has, cut otherwise than before.
    store.samples.append(Feed("agent-4", "spool-4", gpus=("GPU-d",)).batches(1, 20))
    store.samples.append(Feed().batches(45, 50))
    store.flush()
    store.samples.append(Feed().batches(51, 65))
    store.close()
    assert losses(data) == [("agent-1", 31, 44)]
    report = rebuild_catalog(data)
    assert "lost+found" in report[0].problem
    assert content(data)["GPU-a"] == list(range(2, 66))
    store = open_store(data)
    for gpu in ("GPU-c", "GPU-d"):
        assert len(store.samples.read(gpu, *EVER)) == 190
    assert store.facts.losses() == []
    assert [gpu.agent_id for gpu in store.facts.gpus() if gpu.gpu_uuid == "GPU-c"] == ["agent-3"]
    store.close()
    assert check_store(data).findings == []
    assert not list((data / "lost+found").glob("*/*"))


def test_what_is_missing_is_on_record_and_what_is_damaged_is_set_aside(data):
    (data / "catalog.sqlite").unlink()
    shutil.rmtree(data / "log")
    (damaged,) = (data / "hours").iterdir()
    flip_byte(damaged, damaged.stat().st_size // 3)
    report = rebuild_catalog(data)
    assert {finding.kind.value for finding in report} == {"catalog", "damaged", "hole"}
    # The inventories, record 1 of each, are known from the footers.
    assert losses(data) == [("agent-1", 2, 20), ("agent-2", 2, 20)]
    assert (data / "lost+found" / "hours" / damaged.name).exists()
    assert {finding.kind.value for finding in check_store(data).findings} == {"orphan"}


def test_averages_whose_ticks_are_gone_are_kept_and_others_belong_to_theirs(data):
    hour = next((data / "hours").iterdir())
    shutil.copy(data / "catalog.sqlite", data / "before")
    (data / "catalog.sqlite").unlink()
    rebuild_catalog(data)
    assert content(data) == EVERYTHING
    (data / "catalog.sqlite").unlink()
    hour.unlink()
    rebuild_catalog(data)
    store = open_store(data)
    samples = store.samples.read("GPU-a", *EVER)
    store.close()
    assert samples.resolution_s == 1.0
    assert len(samples) == 160 + 19  # ticks of the other segments, and the averages of 19 s


def test_segments_of_another_store_get_numbers_of_their_own(data, tmp_path):
    other = tmp_path / "other"
    store = open_store(other)
    store.samples.append(Feed("agent-9", "spool-9", gpus=("GPU-z",)).batches(1, 20))
    store.flush()
    store.close()
    (foreign,) = (other / "segments").iterdir()
    foreign.rename(data / "segments" / foreign.name)
    rebuild_catalog(data)
    assert content(data) == EVERYTHING
    store = open_store(data)
    samples = store.samples.read("GPU-z", *EVER)
    assert len(samples) == 190
    assert store.facts.spools()["agent-9", "spool-9"].spool == samples.spool[0]
    store.close()
    assert check_store(data).findings == []


@pytest.mark.parametrize("seed", range(6))
def test_power_loss_during_a_rebuild_costs_nothing(data, seed):
    chance = random.Random(seed)
    if seed % 2:
        (data / "catalog.sqlite").unlink()
    for _ in range(8):
        files = FaultyFiles(chance.randrange(1 << 30))
        files.power_lost_in = chance.randint(0, 6)
        try:
            rebuild_catalog(data, files=files)
        except PowerLost:
            files.lose_power()
    rebuild_catalog(data)
    assert content(data) == EVERYTHING
    assert check_store(data).findings == []


def test_a_store_in_use_and_what_is_none_are_refused(data, tmp_path):
    store = open_store(data)
    with pytest.raises(DirectoryLockedError):
        rebuild_catalog(data)
    store.close()
    with pytest.raises(StoreError, match="no data directory"):
        rebuild_catalog(tmp_path)


def test_a_segment_that_is_not_restored_is_a_gap_after_the_rebuild(data):
    (segment,) = (data / "segments").iterdir()
    segment.unlink()
    store = open_store(data)  # starts, reads the rest, and takes what comes
    assert len(store.samples.read("GPU-a", START_NS + 290 * TICK_NS, EVER[1])) == 60
    store.samples.append(Feed().batches(37, 40))
    store.close()
    assert {finding.kind.value for finding in check_store(data).findings} == {"missing"}
    rebuild_catalog(data)
    assert losses(data) == [("agent-1", 21, 30), ("agent-2", 21, 30)]
    assert content(data)["GPU-a"] == [*range(2, 21), *range(31, 41)]
    assert check_store(data).findings == []
