"""From who holds the GPUs now to bindings with a beginning and an end, over restarts."""

from gpusonde.agent.jobs.ownership import Owner, OwnershipFile, OwnershipHistory, Scheduler
from gpusonde.service.durable_files import OsFiles

T = 1_700_000_000_000_000_000


def owner(job, since=0, seen=0, scheduler=Scheduler.SLURM, **labels):
    return Owner(scheduler, job, since and T + since, seen and T + seen, labels)


def seen(history, at, **owners):
    """What the history says at a time, as (gpu, job, start, end, shared)."""
    changed = history.observe(T + at, owners)
    return [
        (b.gpu, b.job_id, b.start_unix_nano - T, b.end_unix_nano and b.end_unix_nano - T, "shared" in b.labels)
        for b in changed
    ]


def test_a_binding_begins_when_the_source_says_and_ends_when_it_was_last_seen():
    history = OwnershipHistory()
    assert seen(history, 100, a=(owner("1", since=40),)) == [("a", "1", 40, 0, False)]
    assert seen(history, 200, a=(owner("1", since=40),)) == []
    assert seen(history, 300) == [("a", "1", 40, 200, False)]
    assert history.open == ()


def test_without_a_beginning_or_with_one_in_the_future_it_begins_now():
    history = OwnershipHistory()
    assert seen(history, 100, a=(owner("1"),), b=(owner("2", since=500),)) == [
        ("a", "1", 100, 0, False),
        ("b", "2", 100, 0, False),
    ]


def test_the_end_of_one_job_comes_before_the_beginning_of_the_next():
    history = OwnershipHistory()
    seen(history, 100, a=(owner("1"),))
    assert seen(history, 200, a=(owner("2", since=150),)) == [("a", "1", 100, 101, False), ("a", "2", 150, 0, False)]


def test_a_job_that_comes_back_is_a_new_binding_even_if_its_source_tells_the_old_beginning():
    history = OwnershipHistory()
    seen(history, 100, a=(owner("1", since=50),))
    seen(history, 150, a=(owner("1", since=50),))
    seen(history, 200)
    assert seen(history, 300, a=(owner("1", since=50),)) == [("a", "1", 150, 0, False)]


def test_who_comes_second_shares_and_moves_up_when_the_first_leaves():
    history = OwnershipHistory()
    seen(history, 100, a=(owner("1", since=90),))
    # The newcomer claims to have been there before: it was not seen, so the run stays the first one's.
    assert seen(history, 200, a=(owner("1"), owner("2", since=50))) == [("a", "2", 50, 0, True)]
    assert seen(history, 300, a=(owner("2", since=50),)) == [("a", "1", 90, 200, False), ("a", "2", 50, 0, False)]


def test_of_two_that_come_together_the_elder_is_first():
    history = OwnershipHistory()
    assert seen(history, 100, a=(owner("8", since=30), owner("9", since=20))) == [
        ("a", "9", 20, 0, False),
        ("a", "8", 30, 0, True),
    ]
    assert seen(history, 200, a=(owner("8"), owner("9"))) == []


def test_changed_labels_are_told_with_the_same_beginning():
    history = OwnershipHistory()
    seen(history, 100, a=(owner("1", container="x"),))
    (binding,) = history.observe(T + 200, {"a": (owner("1", container="y"),)})
    assert (binding.start_unix_nano, binding.labels) == (T + 100, {"container": "y"})


def test_what_a_former_process_left_open_goes_on_or_ends_now(tmp_path):
    file = OwnershipFile(tmp_path / "state.json", OsFiles())
    first = OwnershipHistory()
    first.observe(T + 100, {"a": (owner("1", since=50),), "b": (owner("2", container="c"),)})
    file.save(first.open)
    second = OwnershipHistory(file.load())
    assert seen(second, 900, a=(owner("1"),)) == [("b", "2", 100, 900, False)]
    assert [b.start_unix_nano for b in second.open] == [T + 50]
    assert dict(second.ended[0].labels) == {"container": "c"}


def test_a_state_that_cannot_be_read_is_nothing_and_said(tmp_path, caplog):
    path = tmp_path / "state.json"
    for content in (
        b"",
        b"{",
        b"[1]",
        b'[{"gpu": "a"}]',
        b"null",
        bytes(range(156, 256)),
        b'[{"gpu":"a","scheduler":"x"}]',
    ):
        path.write_bytes(content)
        caplog.clear()
        assert OwnershipFile(path, OsFiles()).load() == ()
        assert "cannot be read" in caplog.text
    path.unlink()
    caplog.clear()
    assert OwnershipFile(path, OsFiles()).load() == ()
    assert not caplog.text


def test_a_disk_that_refuses_costs_the_state_only(tmp_path, caplog):
    class FullDisk(OsFiles):
        def create(self, path, mode=0o640):
            raise OSError(28, "No space left on device")

    OwnershipFile(tmp_path / "state.json", FullDisk()).save([])
    assert "No space left" in caplog.text
