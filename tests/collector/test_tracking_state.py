"""Tracking survives restarts: it goes on where it stood, and what is stored of it can never lead it astray."""

import dataclasses
import functools
import io
import json
import logging
import math
import random
import shutil
import struct
import zipfile
import zlib

import numpy as np
import pytest
from support.epoch_traces import training_trace
from support.trace_records import incoming, trace_records
from support.tracked_store import TrackedStore

from gpusonde.collector.storage.model import Position
from gpusonde.collector.storage.samples import TicksEntry
from gpusonde.collector.tracking.run_state import FollowerState
from gpusonde.epoch_detect import EpochTracker, detect
from gpusonde.epoch_detect.progress import StateWatch

GPU = "GPU-a"
KEY = ("agent-1", GPU)


def make_records(trace, **more):
    return incoming(trace_records(dataclasses.replace(trace, gpu_uuid=GPU), **more))


@pytest.fixture(scope="module")
def trace():
    return training_trace(20.0, 9)[0]  # 200 s, on which the tracker changes its mind a few times


@pytest.fixture(scope="module")
def records(trace):
    return make_records(trace)


@pytest.fixture(scope="module")
def uninterrupted(records, tmp_path_factory):
    """The run and all its epochs as tracking without a restart finds them."""
    subject = TrackedStore(tmp_path_factory.mktemp("uninterrupted") / "data")
    subject.feed(records, 5)
    found = outcome(subject)
    subject.store.close()
    return found


@pytest.fixture
def setup(setup):
    return functools.partial(setup, state_interval_s=10.0)


def outcome(subject):
    """Everything stored about the only run, as tuples: a NaN does not equal itself in a dataclass."""
    (run,) = subject.runs()
    return repr(run), subject.results.epochs(run.run_id)


def state_files(subject):
    return sorted((subject.store.layout.directory / "tracking").glob("*"))


def ticks_read(subject, monkeypatch):
    """Count the ticks that tracking reads from now on."""
    counted = []
    arrivals = subject.store.samples.read_feed

    def counting(*arguments):
        for arrival in arrivals(*arguments):
            if isinstance(arrival, TicksEntry):
                counted.append(len(arrival.samples))
            yield arrival

    monkeypatch.setattr(subject.store.samples, "read_feed", counting)
    return counted


def test_the_uninterrupted_run_is_worth_comparing_with(uninterrupted, trace):
    _, epochs = uninterrupted
    kept = [epoch for epoch in epochs if epoch.status == "confirmed"]
    assert len(kept) == len(detect(trace).epoch_starts_s)


@pytest.mark.parametrize("seed", range(4))
def test_restarts_at_any_moment_leave_no_trace_in_run_epochs_and_revisions(setup, records, uninterrupted, seed):
    chance = random.Random(seed)
    subject = setup(state_interval_s=chance.choice([1.0, 7.0, 30.0]))
    first, restarts = 0, 0
    while first < len(records):
        count = chance.randint(1, 60)
        subject.feed(records[first : first + count], chance.randint(1, 12))
        first += count
        if chance.random() < 0.3:
            subject.store.flush()
        if chance.random() < 0.6:
            subject.pipeline.finish()
        subject.restart()  # without finish: as after SIGKILL, an older state and a newer catalogue
        restarts += 1
    subject.pipeline.round()
    assert restarts > 3
    assert outcome(subject) == uninterrupted


def test_after_a_graceful_restart_nothing_is_read_again(setup, records, monkeypatch, caplog):
    subject = setup()
    subject.feed(records[:100], 10)
    subject.pipeline.finish()
    subject.restart()
    counted = ticks_read(subject, monkeypatch)
    with caplog.at_level(logging.INFO, logger="gpusonde"):
        subject.pipeline.round()
        assert counted == []
        subject.feed(records[100:110], 10)
    assert sum(counted) == 100
    assert "again" not in caplog.text


def test_after_a_kill_only_what_came_since_the_last_state_is_read_again(setup, records, monkeypatch):
    subject = setup(state_interval_s=10.0)
    subject.feed(records[:150], 5)  # a second each on the clock of the test: 30 s
    (file,) = state_files(subject)
    state = FollowerState.decode(subject.store.states.read(KEY, 1))
    assert state.reached > Position(1, 60)
    subject.restart()
    counted = ticks_read(subject, monkeypatch)
    subject.pipeline.round()
    assert sum(counted) == 10 * (150 - state.reached.sequence)
    assert file.exists()


def test_without_a_state_the_run_is_read_again_from_its_start(setup, records, uninterrupted, monkeypatch, caplog):
    subject = setup()
    subject.feed(records[:100], 10)
    subject.pipeline.finish()
    (file,) = state_files(subject)
    file.unlink()
    subject.restart()
    counted = ticks_read(subject, monkeypatch)
    with caplog.at_level(logging.INFO, logger="gpusonde"):
        subject.pipeline.round()
    assert sum(counted) > 850
    assert caplog.text.count("has no stored state and is read again from its start") == 1
    subject.feed(records[100:], 10)
    assert outcome(subject) == uninterrupted


def test_the_state_of_a_run_that_ended_is_removed_and_so_are_those_of_strangers(setup, records):
    subject = setup()
    subject.feed(records[:150], 10)
    assert len(state_files(subject)) == 1
    directory = subject.store.layout.directory / "tracking"
    (directory / f"{0x123:032x}.state").write_bytes(b"of a GPU that is not in the store")
    (directory / f"{0x456:032x}.tmp").write_bytes(b"half writ")
    notes = directory / "notes.tmp"
    notes.write_bytes(b"not a name that the collector gives")
    subject.restart()
    assert len(state_files(subject)) == 2
    subject.feed(records[150:], 10)
    subject.pipeline.finish()
    assert state_files(subject) == [notes]


@pytest.fixture(scope="module")
def midway(records, tmp_path_factory):
    """The data directory of a store whose tracking stopped in the middle of the run, and what is found soon after."""
    directory = tmp_path_factory.mktemp("midway") / "data"
    subject = TrackedStore(directory, state_interval_s=10.0)
    subject.feed(records[:120], 10)
    subject.pipeline.finish()
    subject.store.close()
    further = TrackedStore(shutil.copytree(directory, directory.with_name("further")))
    further.feed(records[120:140], 10)
    found = outcome(further)
    further.store.close()
    return directory, found


@pytest.fixture
def stored_midway(setup, midway, tmp_path):
    """Such a store, and the content of its state."""
    shutil.copytree(midway[0], tmp_path / "data")
    subject = setup()
    return subject, subject.store.states.read(KEY, 1)


def assert_refused(subject, records, midway, caplog, why=""):
    """Restart, and see that the run is read again from its start and comes out right."""
    subject.restart()
    subject.pipeline.round()
    subject.feed(records[120:140], 10)
    assert caplog.text.count("is left out, an open run is read again from its start") == 1
    assert subject.counters.states_refused == 1
    assert why in caplog.text
    assert outcome(subject) == midway[1]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda data: b"", "no state file"),
        (lambda data: data[:15], "no state file"),
        (lambda data: data[:-1], "is damaged"),
        (lambda data: data + b"x", "is damaged"),
        (lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:], "is damaged"),
        (lambda data: b"GSSTATE2" + data[8:], "no state file"),
        (lambda data: data[:8] + struct.pack("<I", 7) + data[12:], "is of version 7, this collector reads 1"),
    ],
)
def test_a_damaged_file_is_named_once_and_the_run_read_again(stored_midway, records, midway, caplog, damage, why):
    subject, _ = stored_midway
    (file,) = state_files(subject)
    file.write_bytes(damage(file.read_bytes()))
    assert_refused(subject, records, midway, caplog, why)


def rewritten(content, change):
    """The content with its JSON changed."""
    (length,) = struct.unpack_from("<I", content)
    fields = json.loads(content[4 : 4 + length])
    change(fields)
    head = json.dumps(fields).encode()
    return struct.pack("<I", len(head)) + head + content[4 + length :]


def put(place, value):
    def change(fields):
        *path, last = place
        for key in path:
            fields = fields[key]
        fields[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (put(["gpu_uuid"], "GPU-b"), "that of another GPU"),
        (put(["runs", "run", "run_id"], "20200101T000000-00000000"), "20200101T000000-00000000, which is not open"),
        (put(["runs", "run", "resume"], [[1, 3], 0]), "elsewhere than the catalogue says"),
        (put(["reached"], [1, 5000]), "ahead of the samples"),
        (put(["reached"], [2, 5]), "ahead of the samples"),
        (put(["policy", "idle_end_s"], 120.0), "options that say when runs begin and end have changed"),
        (put(["runs", "last_time"], "soon"), "no whole number"),
        (put(["runs", "memory"], 10**400), "does not fit"),
        (put(["metrics"], 7), "does not fit"),
        (put(["metrics"], ["dram_active"]), "shape"),
    ],
)
def test_a_state_that_contradicts_the_store_is_left_out(stored_midway, records, midway, caplog, change, why):
    subject, content = stored_midway
    subject.store.states.write(KEY, 1, rewritten(content, change))
    assert_refused(subject, records, midway, caplog, why)


def within(name, *damage):
    """One value of a state within the state changed; what a job does has two times before it."""

    def change(fields):
        begin = fields[name].index("{")
        told = json.loads(fields[name][begin:])
        put(*damage)(told)
        fields[name] = fields[name][:begin] + json.dumps(told)

    return change


@pytest.mark.parametrize(
    "change",
    [
        within("job_state", ["gpus"], math.inf),
        within("job_state", ["pauses", 0], math.inf),
        within("job_state", ["scalars", "_idle_watts"], "x"),
        within("job_state", ["scalars", "_by_power"], [7]),
        within("job_state", ["level", "_logs"], [1.0]),
        put(["job_state"], "1 2"),
        put(["job_state"], "x y {}"),
        put(["job_state"], "0 -5 " + "[" * 100_000),
        put(["job_state"], 7),
        within("pace", ["tick_s"], "x"),
        within("pace", ["last"], [1.0]),
        put(["pace"], "[" * 100_000),
    ],
)
def test_what_is_damaged_within_a_state_is_left_out_and_counted(stored_midway, records, midway, caplog, change):
    subject, content = stored_midway
    subject.store.states.write(KEY, 1, rewritten(content, change))
    assert_refused(subject, records, midway, caplog)
    assert "is not tracked until the next start" not in caplog.text


def test_a_rebuilt_watch_of_a_job_that_fails_gives_way_to_one_that_has_seen_all(
    stored_midway, records, uninterrupted, caplog, monkeypatch
):
    subject, _ = stored_midway
    restored = StateWatch.from_state

    def failing(data):
        watch = restored(data)
        watch.update = None
        return watch

    monkeypatch.setattr(StateWatch, "from_state", failing)
    subject.restart()
    subject.feed(records[120:], 20)
    subject.pipeline.round()
    assert "is not tracked until the next start" not in caplog.text
    assert subject.counters.states_refused == 1
    assert outcome(subject) == uninterrupted


def test_the_state_of_a_run_that_the_catalogue_calls_over_is_left_out(stored_midway, records, caplog):
    subject, _ = stored_midway
    (run,) = subject.runs()
    with subject.store.database.transaction() as connection:
        connection.execute("UPDATE runs SET ended = 1")
    subject.restart()
    subject.pipeline.round()
    assert f"it is that of run {run.run_id}, which is not open" in caplog.text


def bomb():
    """A small archive that unpacks to 128 MiB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("meta.npy", "w") as member:
        for _ in range(16):
            member.write(bytes(1 << 23))
    return buffer.getvalue()


def claims_to_be_huge():
    """An array whose head promises a tebibyte."""
    buffer = io.BytesIO()
    head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (137438953472,), }"
    head += b" " * (118 - len(head) - 1) + b"\n"
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("meta.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head)
    return buffer.getvalue()


def with_meta(change):
    """A real tracker's state with its own JSON changed."""
    from gpusonde.epoch_detect.history import pack, unpack

    def tracker_of(data):
        arrays = unpack(data)
        fields = json.loads(arrays["meta"].tobytes())
        change(fields, arrays)
        arrays["meta"] = np.frombuffer(json.dumps(fields).encode(), dtype=np.uint8)
        return pack(arrays)

    return tracker_of


@pytest.mark.parametrize(
    "tracker_of",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: bomb(),
        lambda data: claims_to_be_huge(),
        with_meta(lambda fields, arrays: fields.update(version=99)),
        with_meta(lambda fields, arrays: fields.update(metrics=["no such metric"])),
        with_meta(lambda fields, arrays: fields.update(entries=[["x"]])),
        with_meta(lambda fields, arrays: arrays.update(history_sizes=np.array([10**12, 1]))),
        with_meta(lambda fields, arrays: arrays.update(history_sizes=np.array([24_576, 10**12]))),
        with_meta(lambda fields, arrays: arrays.update(history_time=arrays["history_time"][::-1])),
        with_meta(lambda fields, arrays: arrays.update(history_values=arrays["history_values"][:, :5])),
        # Rebuilt without complaint, and fails at the next analysis.
        with_meta(
            lambda fields, arrays: fields.update(next_us=0, follow_us=None, entries=[[0, "a", "b", 1, 2, 3, 4, 5]])
        ),
    ],
)
def test_a_hostile_tracker_state_is_left_out(stored_midway, records, midway, caplog, tracker_of):
    subject, content = stored_midway
    (length,) = struct.unpack_from("<I", content)
    hostile = content[: 4 + length] + tracker_of(content[4 + length :])
    subject.store.states.write(KEY, 1, hostile)
    assert_refused(subject, records, midway, caplog)


def test_random_damage_behind_a_valid_checksum_never_stops_tracking(setup, records, caplog):
    # Whatever is not taken is read again, 25 times: one epoch and a half.
    subject = setup()
    subject.feed(records[:30], 10)
    subject.pipeline.finish()
    content = subject.store.states.read(KEY, 1)
    (file,) = state_files(subject)
    chance = random.Random(3)
    for _ in range(25):
        data = bytearray(content)
        reach = min(len(data), chance.choice([200, 3000, len(data)]))
        for _ in range(chance.randint(1, 20)):
            data[chance.randrange(reach)] = chance.randrange(256)
        damaged = bytes(data)
        head = struct.pack("<III", 1, len(damaged), zlib.crc32(damaged))
        file.write_bytes(b"GSSTATE1" + head + damaged)
        subject.restart()
        subject.pipeline.round()
        assert "is not tracked until the next start" not in caplog.text


class FailsLater(EpochTracker):
    """A tracker that fails once it was rebuilt."""

    def update(self, time_s, values, *, exhaustive=True):
        raise FloatingPointError("rebuilt wrongly")


def test_a_rebuilt_tracker_that_fails_gives_way_to_one_that_has_seen_all(stored_midway, records, uninterrupted, caplog):
    subject, _ = stored_midway
    subject.restore_tracker = FailsLater.restore
    subject.restart()
    subject.feed(records[120:], 20)
    subject.pipeline.round()
    assert caplog.text.count("the tracker made of it fails: FloatingPointError('rebuilt wrongly')") == 1
    assert outcome(subject) == uninterrupted


class FailsAtTheEnd(EpochTracker):
    """A tracker that fails once it was rebuilt, when its run is over."""

    def finish(self):
        raise FloatingPointError("rebuilt wrongly")


def test_a_rebuilt_tracker_that_fails_when_a_silent_run_is_ended_gives_way_too(stored_midway, records, caplog):
    subject, _ = stored_midway
    subject.restore_tracker = FailsAtTheEnd.restore
    subject.restart()
    subject.pipeline.round()
    subject.now += 90_000
    subject.pipeline.round()
    assert "the tracker made of it fails" in caplog.text
    subject.pipeline.round()
    assert not subject.runs()[0].ended
    subject.now += 90_000
    subject.pipeline.round()
    (run,) = subject.runs()
    assert (run.ended, run.verdict) == (True, "epochs")


def test_a_run_that_goes_on_in_another_spool_goes_on_after_a_restart(setup, trace, uninterrupted):
    first = trace_records(dataclasses.replace(trace, gpu_uuid=GPU))
    cut = 80
    renumbered = []
    for sequence, record in enumerate([first[0], *first[cut:]], 1):
        copy = type(record).FromString(record.SerializeToString())
        copy.sequence = sequence
        renumbered.append(copy)
    subject = setup()
    subject.feed(incoming(first[:cut]), 10)
    subject.pipeline.finish()
    subject.restart()
    later = incoming(renumbered, spool_id="spool-2")
    subject.feed(later[:40], 10)
    subject.pipeline.finish()
    subject.restart()
    subject.feed(later[40:], 10)
    assert outcome(subject)[1] == uninterrupted[1]
