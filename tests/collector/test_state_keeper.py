"""States of tracking are stored now and then, spread over the GPUs, and never in the way of anything."""

import logging
import random

import pytest
from support.faulty_files import FaultyFiles, PowerLost

from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.states import StateFiles
from gpusonde.collector.storage.store import UnusableStateError
from gpusonde.collector.tracking.state_keeper import StateKeeper
from gpusonde.errors import StoreError, StoreFullError
from gpusonde.service.durable_files import OsFiles

KEY = ("agent-1", "GPU-a")


def have_room():
    """The disk is as large as one could wish."""


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "tracking"


def test_what_was_written_is_read_and_replaced(directory):
    files = StateFiles(directory, OsFiles(), have_room)
    assert files.read(KEY, 1) is None
    files.write(KEY, 1, b"one")
    files.write(("agent-1", "GPU-b"), 1, b"other")
    files.write(KEY, 1, b"two")
    assert (files.read(KEY, 1), files.read(("agent-1", "GPU-b"), 1)) == (b"two", b"other")
    files.remove(KEY)
    files.remove(KEY)
    assert files.read(KEY, 1) is None


def test_the_format_is_pinned(directory):
    files = StateFiles(directory, OsFiles(), have_room)
    files.write(KEY, 1, b"content")
    (path,) = directory.iterdir()
    assert path.name == "3fd3700f20a83da62638250f9d46ac90.state"
    assert path.read_bytes() == b"GSSTATE1" + bytes.fromhex("01000000 07000000 a930c5fe") + b"content"


def test_names_of_agents_and_gpus_cannot_leave_the_directory(directory):
    files = StateFiles(directory, OsFiles(), have_room)
    files.write(("../../etc", "/pass\nwd"), 1, b"x")
    assert [path.parent for path in directory.iterdir()] == [directory]


def test_a_state_that_would_not_be_read_again_is_not_written(directory):
    files = StateFiles(directory, OsFiles(), have_room)
    with pytest.raises(ValueError, match="larger than"):
        files.write(KEY, 1, bytes((1 << 26) + 1))
    assert not directory.exists()


def test_what_cannot_be_opened_is_said_so(directory):
    files = StateFiles(directory, OsFiles(), have_room)
    files.path(KEY).mkdir(parents=True)
    with pytest.raises(UnusableStateError, match="cannot be read"):
        files.read(KEY, 1)


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_loss_a_state_is_whole_or_refused(directory, seed):
    chance = random.Random(seed)
    faulty = FaultyFiles(seed)
    files = StateFiles(directory, faulty, have_room)
    contents = [bytes([i]) * chance.randint(1, 5000) for i in range(1, 6)]
    faulty.power_lost_in = chance.randint(1, 20)
    try:
        for content in contents:
            files.write(KEY, 1, content)
    except PowerLost:
        faulty.lose_power()
    files = StateFiles(directory, OsFiles(), have_room)
    files.keep_only([KEY])
    try:
        found = files.read(KEY, 1)
    except UnusableStateError:
        found = None
    assert found in (None, *contents)
    assert not directory.is_dir() or all(path.suffix == ".state" for path in directory.iterdir())


class FakeState:
    def __init__(self, size=1000):
        self.size = size

    def encode(self):
        return bytes(self.size)


class FakeFollower:
    has_run = True

    def __init__(self):
        self.asked = 0

    def state(self):
        self.asked += 1
        return FakeState()


class Clock:
    def __init__(self):
        self.now = 1000.0
        self.step = 0.0

    def __call__(self):
        self.now += self.step
        return self.now


@pytest.fixture
def store(tmp_path):
    store = LocalStore(tmp_path / "data", StoreConfig(reserve_bytes=0))
    store.open()
    yield store
    store.close()


@pytest.fixture
def clock():
    return Clock()


def keeper_of(store, clock, files=None, **options):
    store.states = StateFiles(store.layout.directory / "tracking", files or OsFiles(), store.samples.check_space)
    return StateKeeper(store, clock, **options)


def files_of(store):
    directory = store.layout.directory / "tracking"
    return sorted(directory.iterdir()) if directory.is_dir() else []


def test_a_thousand_gpus_are_spread_over_the_interval(store, clock):
    keeper = keeper_of(store, clock, interval_s=300.0)
    followers = {("agent", f"GPU-{i}"): FakeFollower() for i in range(1000)}
    written = []
    for _ in range(120):  # ten minutes of rounds every five seconds
        for key in followers:
            keeper.notify(key)
        before = sum(follower.asked for follower in followers.values())
        keeper.keep(followers)
        written.append(sum(follower.asked for follower in followers.values()) - before)
        clock.now += 5.0
    assert max(written) < 45  # about 17 on average
    assert {follower.asked for follower in followers.values()} <= {1, 2}
    assert len(files_of(store)) == 1000


def test_a_gpu_of_which_nothing_new_has_come_is_not_stored_again(store, clock):
    keeper = keeper_of(store, clock, interval_s=10.0)
    follower = FakeFollower()
    keeper.notify(KEY)
    for _ in range(10):
        clock.now += 10.0
        keeper.keep({KEY: follower})
    assert follower.asked == 1


def test_a_round_spends_no_more_than_its_time_on_states(store, clock):
    keeper = keeper_of(store, clock, interval_s=1.0, round_s=0.1)
    followers = {("agent", f"GPU-{i}"): FakeFollower() for i in range(50)}
    for key in followers:
        keeper.notify(key)
    keeper.keep(followers)
    clock.now += 5.0
    clock.step = 0.01  # a look at the clock takes ten milliseconds
    keeper.keep(followers)
    assert 1 <= sum(follower.asked for follower in followers.values()) <= 6
    for _ in range(50):
        keeper.keep(followers)
    assert {follower.asked for follower in followers.values()} == {1}


def test_a_shutdown_stores_all_that_changed_within_its_time(store, clock):
    keeper = keeper_of(store, clock, shutdown_s=0.5)
    followers = {("agent", f"GPU-{i}"): FakeFollower() for i in range(50)}
    for key in followers:
        keeper.notify(key)
    clock.step = 0.01
    keeper.keep_all(followers)
    stored = len(files_of(store))
    assert 10 <= stored <= 30
    clock.step = 0.0
    keeper.keep_all(followers)
    assert len(files_of(store)) == 50


def test_a_full_disk_is_said_once_a_minute_and_stops_nothing(store, clock, caplog):
    files = FaultyFiles()
    keeper = keeper_of(store, clock, files, interval_s=300.0)
    followers = {("agent", f"GPU-{i}"): FakeFollower() for i in range(20)}
    files.room = 500
    for _ in range(24):  # two minutes of rounds every five seconds, all of them due
        for key in followers:
            keeper.notify(key)
            keeper._due[key] = 0.0
        with caplog.at_level(logging.ERROR):
            keeper.keep(followers)
        clock.now += 5.0
    assert 2 <= caplog.text.count("states of tracking cannot be stored now") <= 3
    assert [path for path in files_of(store) if path.suffix == ".tmp"] == []
    files.room = None
    keeper.keep_all(followers)
    assert len(files_of(store)) == 20


def test_the_reserve_of_the_disk_is_not_for_states(directory):
    def full():
        raise StoreFullError("only the reserve is left")

    files = StateFiles(directory, OsFiles(), full)
    with pytest.raises(StoreError, match="reserve"):
        files.write(KEY, 1, b"x")
    assert not directory.exists()


class FaultyFollower(FakeFollower):
    def state(self):
        raise RuntimeError("a fault of ours")


def test_a_fault_in_one_state_leaves_the_others_alone(store, clock, caplog):
    keeper = keeper_of(store, clock)
    followers = {("agent", "GPU-1"): FaultyFollower(), ("agent", "GPU-2"): FakeFollower()}
    for key in followers:
        keeper.notify(key)
    keeper.keep_all(followers)
    assert "the state of GPU GPU-1 of agent agent cannot be stored" in caplog.text
    assert len(files_of(store)) == 1


def test_a_run_that_is_over_leaves_no_state(store, clock):
    keeper = keeper_of(store, clock)
    follower = FakeFollower()
    keeper.notify(KEY)
    keeper.keep_all({KEY: follower})
    assert len(files_of(store)) == 1
    follower.has_run = False
    keeper.keep({KEY: follower})
    assert files_of(store) == []
