"""The agent's spool with a fault at every file operation of a life: disk full, failing syncs, SIGKILL, power loss."""

from __future__ import annotations

import itertools

import pytest
from support.faulty_files import FaultyFiles, PowerLost
from support.spools import START_NS, batch

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.errors import SpoolError
from gpusonde.ingest.v1 import ingest_pb2

BATCHES = 25
TICKS = 10


class Life:
    """Appends batches 0, 1, 2 ..., commits every third, acknowledges some; remembers what it was promised."""

    def __init__(self, directory, files, *, acknowledges):
        self.directory, self.files, self.acknowledges = directory, files, acknowledges
        self.counters = SelfCounters()
        self.spool = Spool(directory, max_bytes=1 << 20, segment_bytes=500, files=files, counters=self.counters)
        self.appended = {}  # sequence -> number of the batch
        self.committed = 0
        self.acked = 0
        self.number = 0

    def run(self, batches=BATCHES):
        self.spool.open()
        for _ in range(batches):
            self.append()
            if self.number % 3 == 0:
                self.spool.commit()
                self.committed = self.spool.committed_sequence
            if self.acknowledges and self.number % 5 == 0:
                self.acked = max(self.acked, self.committed - 2)
                self.spool.acknowledge(self.acked)
        return self

    def run_to_the_end(self):
        self.run()
        self.spool.close()

    def append(self):
        number, self.number = self.number, self.number + 1
        sequence = self.spool.append(batch(number))
        if sequence is not None:
            self.appended[sequence] = number

    def abandon(self):
        """The process is gone: the kernel closes its files."""
        self.spool._file_lock.release()
        self.spool._appender.close()
        self.spool._reader.close()
        self.spool._ledger.close()
        self.spool._journal.close()


def operations(directory, *, acknowledges):
    """How many operations a life without faults takes."""
    files = FaultyFiles()
    life = Life(directory, files, acknowledges=acknowledges).run()
    life.spool.close()
    return files.operations


def records_of(directory):
    spool = Spool(directory, max_bytes=1 << 20, segment_bytes=500)
    spool.open()
    spool.commit()  # with what the last life could not tell
    found = [spool.read(s) for s in range(spool.first_available_sequence, spool.last_sequence + 1)]
    following = spool.append(batch(0))
    spool.close()
    assert [r.sequence for r in found] == list(range(following - len(found), following))
    return found


def number_of(record):
    return (record.batch.blocks[0].start_time_unix_nano - START_NS) // 10**9


@pytest.mark.parametrize("lasting", [1, 7])
@pytest.mark.parametrize("fault", ["full", "sync_fails", "both"])
def test_a_disk_that_refuses_any_operation_costs_only_ticks_that_are_reported_exactly(tmp_path, fault, lasting):
    count = operations(tmp_path / "whole", acknowledges=False)
    lost = 0
    for at in range(count):
        files = FaultyFiles(seed=at)

        def refuse(number, at=at, files=files):
            during = at <= number < at + lasting
            files.full = during and fault != "sync_fails"
            files.sync_fails = during and fault != "full"

        files.before = refuse
        life = Life(tmp_path / f"at{at}", files, acknowledges=False)
        try:
            life.run()
        except SpoolError:
            # Refused before anything was sampled: the next start finds a disk that works.
            files.before = lambda number: None
            files.full = files.sync_fails = False
            life = Life(tmp_path / f"at{at}", files, acknowledges=False).run()
        for _ in range(10):  # the fault may still be going on
            life.append()
            life.spool.commit()
        life.spool.close()
        found = records_of(tmp_path / f"at{at}")
        numbers = [number_of(r) for r in found if r.HasField("batch")]
        reported = sum(r.loss_report.lost_ticks for r in found if r.HasField("loss_report"))
        assert numbers == sorted(set(numbers)), at
        assert TICKS * len(numbers) + reported == TICKS * life.number, at
        assert reported == life.counters.lost_ticks, at
        assert {r.loss_report.reason for r in found if r.HasField("loss_report")} <= {ingest_pb2.LOSS_REASON_DISK_FULL}
        lost += reported
    print(f"{fault} for {lasting} of {count} operations, at each of them: {lost} ticks lost, {lost} reported")


def test_sigkill_in_any_operation_takes_nothing_that_was_appended(tmp_path):
    count = operations(tmp_path / "whole", acknowledges=True)
    for at in range(count):
        life = interrupted(tmp_path / f"at{at}", FaultyFiles(seed=at), at)
        life.abandon()
        found = {r.sequence: r for r in records_of(tmp_path / f"at{at}")}
        for sequence, number in life.appended.items():
            if sequence > life.acked:
                assert number_of(found[sequence]) == number, at
        assert not any(r.HasField("loss_report") for r in found.values())
    print(f"SIGKILL in each of {count} operations: every appended record is there")


@pytest.mark.parametrize("seed", range(3))
def test_power_loss_in_any_operation_takes_nothing_that_was_committed(tmp_path, seed):
    count = operations(tmp_path / "whole", acknowledges=True)
    for at in range(count):
        files = FaultyFiles(seed=1000 * seed + at)
        life = interrupted(tmp_path / f"at{at}", files, at)
        life.abandon()
        files.lose_power()
        found = {r.sequence: r for r in records_of(tmp_path / f"at{at}")}
        for sequence, number in life.appended.items():
            if life.acked < sequence <= life.committed:
                assert number_of(found[sequence]) == number, at
        assert max(found, default=life.committed) >= life.committed
    print(f"power loss in each of {count} operations: every committed record is there")


@pytest.mark.parametrize("seed", range(3))
def test_sigkill_in_any_operation_while_the_disk_refuses_costs_only_ticks_that_the_next_life_reports(tmp_path, seed):
    files, lost = FaultyFiles(), 0
    Spool(tmp_path / "spool", max_bytes=1 << 20, segment_bytes=500, files=files).open()
    opened = files.operations
    for at in range(opened + 1, opened + 60):
        files = FaultyFiles(seed=1000 * seed + at)

        def stop(number, at=at, files=files):
            files.full = number >= max(opened, at - 3 * (1 + at % 9))
            if number == at:
                raise PowerLost

        files.before = stop
        life = Life(tmp_path / f"at{at}", files, acknowledges=False)
        with pytest.raises(PowerLost):
            life.run(1000)
        life.abandon()
        found = records_of(tmp_path / f"at{at}")
        stored = {number_of(r) for r in found if r.HasField("batch")}
        reported = sum(r.loss_report.lost_ticks for r in found if r.HasField("loss_report"))
        assert TICKS * len(set(range(life.number)) - stored) - reported in (0, TICKS), at
        lost += reported
    assert lost
    print(f"SIGKILL at 59 operations of a life on a full disk: {lost} ticks reported, at most a batch each unreported")


STEPS = 3


def filled_in_steps(directory, files):
    """Append batches that are kept in steps before; returns a life that can be abandoned."""
    life = Life(directory, files, acknowledges=False)
    steps = itertools.count()
    life.kept = 0
    try:
        life.spool.open()
        for _ in range(12):
            begun = life.kept
            for _ in range(STEPS):
                life.spool.keep(batch(next(steps)))
                life.kept += 1
            life.spool.commit()
            life.spool.append(batch(begun, ticks=STEPS * TICKS))
    except PowerLost:
        pass
    return life


def test_sigkill_in_any_operation_takes_no_step_of_a_batch_and_repeats_none(tmp_path):
    files = FaultyFiles()
    filled_in_steps(tmp_path / "whole", files).abandon()
    count, lost = files.operations, 0
    for at in range(count):
        files = FaultyFiles(seed=at)

        def stop(number, at=at):
            if number == at:
                raise PowerLost

        files.before = stop
        life = filled_in_steps(tmp_path / f"at{at}", files)
        life.abandon()
        for start in range(2):
            ticks = [
                number
                for r in records_of(tmp_path / f"at{at}")[: -start or None]
                for number in range(number_of(r), number_of(r) + r.batch.blocks[0].tick_count // TICKS)
            ]
            # The step whose own write was interrupted may be there or not.
            assert ticks in (list(range(life.kept)), list(range(life.kept + 1))), at
        lost += life.kept + 1 - len(ticks)
    print(f"SIGKILL in each of {count} operations: {lost} steps that were being written are gone, no other")


def interrupted(directory, files, at):
    def stop(number):
        if number == at:
            raise PowerLost

    files.before = stop
    life = Life(directory, files, acknowledges=True)
    with pytest.raises(PowerLost):
        life.run_to_the_end()
    return life


def test_a_disk_that_is_full_from_the_start_is_said_and_left_as_it_is(tmp_path):
    files = FaultyFiles()
    files.full = True
    with pytest.raises(SpoolError, match="No space left"):
        Spool(tmp_path / "spool", max_bytes=1 << 20, files=files).open()
    files.full = False
    life = Life(tmp_path / "spool", files, acknowledges=False).run()
    life.spool.close()
    assert len(records_of(tmp_path / "spool")) == BATCHES
