"""A spool that is a copy of an earlier one, or has lost its end: what is new is sent, whoever was away meanwhile."""

from __future__ import annotations

import itertools
import shutil

import grpc
import pytest
from support.faulty_files import FaultyFiles
from support.scripted_collector import Script, ScriptedCollector
from support.uplink_rig import Rig, batch, inventory, uplink_config

VALUES = itertools.count(1)


class Host(Rig):
    """A life of an agent; each begins with an inventory and writes ticks that no other one does."""

    def __init__(self, directory, **options):
        super().__init__(directory, agent_id="host", **options)
        self.values = []
        self.spool.append(inventory())

    def live(self, up_to):
        while self.spool.last_sequence < up_to:
            self.values.append(next(VALUES))
            self.spool.append(batch(self.values[-1]))
        self.spool.commit()
        if self.uplink is not None:
            self.uplink.notify()

    def kill(self):
        """SIGKILL: what is written stays, nothing is closed in good order."""
        self.spool._file_lock.release()
        self.spool._appender.close()
        self.spool._reader.close()
        self.spool._ledger.close()
        self.spool._journal.close()


def live(directory, up_to, collector=None, **options):
    host = Host(directory, **options)
    host.live(up_to)
    if collector is not None:
        host.run(collector.target)
    host.kill()
    return host.values


def set_back(directory, copy):
    shutil.rmtree(directory)
    shutil.copytree(copy, directory)


def deliver(collector, copy, scratch, up_to, after=0, spool_id=""):
    """Send what a spool holds up to a sequence, as its agent would that is killed then."""
    shutil.copytree(copy, scratch)
    host = Host(scratch)
    records = [host.spool.read(sequence) for sequence in range(after + 1, up_to + 1)]
    stored = collector.stored.setdefault(("host", spool_id or host.spool.spool_id), {})
    stored |= {r.sequence: r for r in records if r is not None}
    host.kill()


def stored_values(collector):
    return sorted(r.batch.blocks[0].start_time_unix_nano for r in collector.records() if r.HasField("batch"))


@pytest.mark.parametrize("starts", [1, 2, 4])
def test_what_is_written_over_several_starts_while_the_collector_is_away_is_sent(tmp_path, starts, caplog):
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        values = live(directory, 37, collector)
        shutil.copytree(directory, tmp_path / "copy")
        values += live(directory, 129, collector)
        set_back(directory, tmp_path / "copy")
        for start in range(1, starts):
            values += live(directory, 100 + 40 * start)
        values += live(directory, 300, collector)
        assert stored_values(collector) == sorted(values)
        assert collector.duplicates == 0
        assert collector.gaps == []
        assert [hello.first_sequence for hello in collector.hellos[-2:]] == [1, 37]
    assert "at most 37 are from here" in caplog.text
    assert "Records 38 to 300 go under a new spool id" in caplog.text
    assert "never reached" not in caplog.text


def test_a_copy_with_a_backlog_is_sent_once(tmp_path):
    """The copy holds records that the collector got from the original afterwards."""
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        host = Host(directory)
        host.live(20)
        host.run(collector.target)
        host.live(37)
        shutil.copytree(directory, tmp_path / "copy")
        host.live(129)
        host.run(collector.target)
        host.kill()
        set_back(directory, tmp_path / "copy")
        values = host.values + live(directory, 150) + live(directory, 170, collector)
        assert stored_values(collector) == sorted(values)
        assert collector.duplicates == 0


@pytest.mark.parametrize(("of_original", "starts"), [(129, 1), (129, 3), (33, 1)])
def test_a_copy_of_a_spool_that_no_collector_had_answered_is_sent_once(tmp_path, of_original, starts):
    """The collector tells which of its records are those of the copy: of which lives, and how much of the last one."""
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        values = live(directory, 20, collector) + live(directory, 30)
        host = Host(directory)
        host.live(37)
        values += host.values
        shutil.copytree(directory, tmp_path / "copy")
        host.kill()
        if of_original > 37:
            values += live(directory, of_original, collector)
        else:
            # The original got only as far as a part of its last life.
            deliver(collector, tmp_path / "copy", tmp_path / "part", of_original)
        set_back(directory, tmp_path / "copy")
        for start in range(starts):
            values += live(directory, 150 + 10 * start)
        values += live(directory, 190, collector)
        stored = stored_values(collector)
    assert stored == sorted(values)


@pytest.mark.parametrize("of_lost_life", [129, 45])
def test_an_image_of_a_spool_that_was_set_back_itself_is_sent_once(tmp_path, of_lost_life):
    """The image is older than the answer with which the one that it is of went on under another id."""
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        values = live(directory, 37, collector)
        shutil.copytree(directory, tmp_path / "first")
        values += live(directory, of_lost_life, collector)
        set_back(directory, tmp_path / "first")
        values += live(directory, 60) + live(directory, 80)
        shutil.copytree(directory, tmp_path / "second")
        values += live(directory, 100, collector)
        set_back(directory, tmp_path / "second")
        values += live(directory, 120) + live(directory, 140, collector)
        assert stored_values(collector) == sorted(values)
        assert collector.duplicates == 0
        assert len(collector.stored) == 3


@pytest.mark.parametrize("up_to", [37, 38, 39, 40, 59, 60, 61, 62, 63, 217, 349, 350, 351, 352, 353])
def test_an_image_whose_original_sent_a_part_of_it_under_its_next_id_and_vanished_sends_the_rest(tmp_path, up_to):
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        values = live(directory, 37, collector)
        shutil.copytree(directory, tmp_path / "first")
        values += live(directory, 50, collector)
        set_back(directory, tmp_path / "first")
        values += live(directory, 60) + live(directory, 350) + live(directory, 400)
        shutil.copytree(directory, tmp_path / "second")
        deliver(collector, tmp_path / "second", tmp_path / "part", up_to, after=37, spool_id="the next id")
        greeted = len(collector.hellos)
        values += live(directory, 420) + live(directory, 440, collector)
        assert stored_values(collector) == sorted(values)
        assert len(collector.hellos) - greeted <= 5


@pytest.mark.parametrize("spool_id", ["the next id", ""])
def test_what_one_collector_has_said_of_an_image_is_not_held_against_another_one(tmp_path, caplog, spool_id):
    directory = tmp_path / "spool"
    with ScriptedCollector() as first, ScriptedCollector() as second:
        live(directory, 37, first)
        live(directory, 60)
        live(directory, 350)
        live(directory, 400)
        shutil.copytree(directory, tmp_path / "copy")
        deliver(first, tmp_path / "copy", tmp_path / "part", 217, after=37, spool_id=spool_id)
        greeted = len(first.hellos)
        first.scripts = [Script()] * (greeted + 1) + [Script(refuse=grpc.StatusCode.UNAVAILABLE)] * 1000
        host = Host(directory)
        host.live(420)
        before = host.spool.spool_id

        def move():
            if len(first.hellos) > greeted + 1 and not second.hellos:
                host.uplink.configure(uplink_config(second.target))

        host.run(first.target, during=move)
        assert second.hellos[0].marks != first.hellos[greeted + 1].marks
        assert host.spool.spool_id == before
        assert sorted(second.stored["host", before])[-1] == host.spool.last_sequence
        host.kill()
    assert "new spool id" not in caplog.text


def test_a_collector_that_was_away_over_some_starts_is_greeted_once_when_nobody_was_set_back(tmp_path):
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        values = live(directory, 37, collector) + live(directory, 60) + live(directory, 80)
        values += live(directory, 100, collector)
        assert stored_values(collector) == sorted(values)
        assert len(collector.hellos) == 2


def test_a_collector_that_cannot_compare_records_gets_some_of_a_copy_twice_and_none_is_lost(tmp_path, caplog):
    """As older ones; the log says so."""
    directory = tmp_path / "spool"
    with ScriptedCollector(compares=False) as collector:
        values = live(directory, 20, collector) + live(directory, 37)
        shutil.copytree(directory, tmp_path / "copy")
        values += live(directory, 129, collector)
        set_back(directory, tmp_path / "copy")
        values += live(directory, 150) + live(directory, 170, collector)
        stored = stored_values(collector)
    assert sorted(set(stored)) == sorted(values)
    assert "at most 20 are from here" in caplog.text
    assert "may be there twice" in caplog.text
    assert len(stored) - len(values) == 37 - 20 - 1  # one of them is the inventory


def test_an_end_that_the_disk_lost_is_no_reason_to_take_new_records_for_old_ones_two_starts_later(tmp_path):
    directory = tmp_path / "spool"
    files = FaultyFiles()
    with ScriptedCollector() as collector:
        host = Host(directory, files=files)
        host.live(60)
        host.run(collector.target)
        host.kill()
        (segment,) = directory.glob("*.seg")
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size // 2)
        values = host.values + live(directory, 80) + live(directory, 90, collector)
        assert stored_values(collector) == sorted(values)
        assert collector.duplicates == 0


def test_two_hosts_from_one_image_lose_nothing_and_alarm_nobody(tmp_path, caplog):
    with ScriptedCollector() as collector:
        values = live(tmp_path / "a", 37, collector)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        values += live(tmp_path / "a", 60, collector)
        values += live(tmp_path / "b", 80, collector)
        values += live(tmp_path / "a", 100, collector)
        values += live(tmp_path / "b", 120) + live(tmp_path / "b", 130, collector)
        assert stored_values(collector) == sorted(values)
        assert len(collector.stored) == 2
        assert collector.duplicates == 0
        assert collector.gaps == []
    assert "never reached" not in caplog.text


def test_the_original_of_a_copy_that_went_on_under_its_name_notices(tmp_path):
    """The other host sent under the common name while this one ran on without a collector."""
    original = Host(tmp_path / "a")
    with ScriptedCollector() as collector:
        original.live(37)
        original.run(collector.target)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        original.live(70)
        values = live(tmp_path / "b", 50, collector)
        original.run(collector.target)
        assert stored_values(collector) == sorted(values + original.values)
        # It renewed in the middle of a life, behind the last record that it had sent.
        renewed = collector.stored["host", original.spool.spool_id]
        assert sorted(renewed) == list(range(37, 71))
        assert renewed[37].HasField("inventory")
    original.spool.close()


def test_a_ledger_whose_newest_half_is_torn_counts_as_the_one_before(tmp_path):
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        values = live(directory, 37, collector)
        shutil.copytree(directory, tmp_path / "copy")
        values += live(directory, 129, collector)
        set_back(directory, tmp_path / "copy")
        values += live(directory, 150)
        ledger = bytearray((directory / "ledger").read_bytes())
        before = max((0, 512), key=lambda at: int.from_bytes(ledger[at + 4 : at + 12], "little"))
        values += live(directory, 160)
        # The start above wrote nothing new: the same bound holds.
        assert (directory / "ledger").read_bytes() == ledger
        ledger[512 - before + 40] ^= 1
        (directory / "ledger").write_bytes(ledger)
        values += live(directory, 170, collector)
        assert stored_values(collector) == sorted(values)


def test_a_spool_without_a_ledger_goes_by_what_is_on_the_disk(tmp_path):
    """As after an update from an agent that had none."""
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        values = live(directory, 37, collector)
        shutil.copytree(directory, tmp_path / "copy")
        values += live(directory, 129, collector)
        set_back(directory, tmp_path / "copy")
        (directory / "ledger").unlink()
        values += live(directory, 150, collector)
        assert stored_values(collector) == sorted(values)
        assert collector.duplicates == 0


def test_steps_of_a_batch_that_both_the_copy_and_the_original_recover_are_there_once(tmp_path):
    directory = tmp_path / "spool"
    with ScriptedCollector() as collector:
        host = Host(directory)
        host.live(20)
        host.run(collector.target)
        for _ in range(3):
            host.values.append(next(VALUES))
            host.spool.keep(batch(host.values[-1]))
        host.kill()
        shutil.copytree(directory, tmp_path / "copy")
        values = host.values + live(directory, 60, collector)
        set_back(directory, tmp_path / "copy")
        values += live(directory, 70) + live(directory, 80, collector)
        assert stored_values(collector) == sorted(values)
        assert collector.duplicates == 0
