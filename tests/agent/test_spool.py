"""The spool: what is committed stays, what is lost is said, sequences are never used twice."""

import random
import subprocess
import sys

import pytest
from support.faulty_files import FaultyFiles, UnsyncedFiles, copy_directory

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.agent.spool.segment import HEADER, RECORD, encode_header, encode_record, scan
from gpusonde.agent.spool.segments import examine
from gpusonde.common.v1 import gpu_pb2
from gpusonde.errors import DirectoryLockedError, SpoolError
from gpusonde.ingest.v1 import ingest_pb2

LOSS = ingest_pb2.LossReason


def batch(value=0, ticks=10, size=100):
    block = ingest_pb2.GpuBlock(tick_count=ticks, start_time_unix_nano=value, values=b"\x05" * size)
    return ingest_pb2.Record(batch=ingest_pb2.SampleBatch(blocks=[block]))


def inventory(name="gpu"):
    return ingest_pb2.Record(inventory=ingest_pb2.Inventory(gpus=[gpu_pb2.Gpu(gpu_uuid=name)]))


def ended():
    return ingest_pb2.Record(source_ended=ingest_pb2.SourceEnded(gpus=[0]))


def value(record):
    return record.batch.blocks[0].start_time_unix_nano


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "spool"


def opened(directory, **options):
    spool = Spool(directory, **{"max_bytes": 1 << 20, "segment_bytes": 1024, **options})
    spool.open()
    return spool


def everything(spool):
    return [spool.read(s) for s in range(spool.first_available_sequence, spool.committed_sequence + 1)]


def test_records_are_numbered_from_one_and_survive_reopening(directory):
    spool = opened(directory)
    assert (spool.first_available_sequence, spool.last_sequence) == (1, 0)
    assert [spool.append(batch(i)) for i in range(1, 31)] == list(range(1, 31))
    spool.commit()
    spool.close()
    again = opened(directory)
    assert [value(r) for r in everything(again)] == list(range(1, 31))
    assert [r.sequence for r in everything(again)] == list(range(1, 31))
    assert again.append(batch()) == 31
    again.close()


def test_a_record_can_be_read_only_once_it_is_committed(directory):
    spool = opened(directory)
    spool.append(batch())
    assert spool.read(1) is None
    spool.commit()
    assert spool.read(1).sequence == 1
    assert spool.read(2) is None
    spool.close()


def test_acknowledged_segments_leave_the_disk_and_their_numbers_are_not_used_again(directory):
    spool = opened(directory)
    for i in range(50):
        spool.append(batch(i))
    spool.commit()
    spool.acknowledge(50)
    assert len(list(directory.glob("*.seg"))) == 1
    spool.close()
    again = opened(directory)
    assert again.append(batch()) == 51
    again.close()


def test_numbers_go_on_after_a_restart_with_nothing_left_to_send(directory):
    """Every round ends acknowledged; the next sequence is remembered although no record is."""
    expected = 0
    for _ in range(5):
        spool = opened(directory, segment_bytes=200)
        for _ in range(7):
            expected += 1
            assert spool.append(batch()) == expected
        spool.commit()
        spool.acknowledge(expected)
        spool.close()


def test_a_full_spool_drops_the_oldest_and_says_what_it_dropped(directory):
    counters = SelfCounters()
    spool = opened(directory, max_bytes=8192, segment_bytes=1024, counters=counters)
    for i in range(200):
        spool.append(batch(i))
        assert spool.size_bytes <= 8192
    spool.commit()
    records = everything(spool)
    reports = [r.loss_report for r in records if r.HasField("loss_report")]
    first_left = spool.first_available_sequence
    # All losses together, those told by reports that were themselves dropped included. The ranges may overlap (all
    # between two dropped segments is gone too), the ticks are told once.
    covered = {s for r in reports for s in range(r.first_lost_sequence, r.last_lost_sequence + 1)}
    assert covered == set(range(1, first_left))
    assert {r.reason for r in reports} == {LOSS.LOSS_REASON_SPOOL_FULL}
    kept_ticks = sum(10 for r in records if r.HasField("batch"))
    assert sum(r.lost_ticks for r in reports) == 2000 - kept_ticks
    assert counters.lost_ticks == 2000 - kept_ticks
    assert counters.dropped_records["spool_full"] == first_left - 1
    spool.close()


def test_what_the_collector_has_is_not_reported_as_lost(directory):
    counters = SelfCounters()
    spool = opened(directory, max_bytes=8192, segment_bytes=1024, counters=counters)
    for i in range(20):
        spool.append(batch(i))
    spool.commit()
    spool.acknowledge(3)  # inside the first segment, so its file is still there
    while not counters.dropped_records:
        spool.append(batch())
    spool.commit()
    report = next(r.loss_report for r in everything(spool) if r.HasField("loss_report"))
    assert report.first_lost_sequence == 4
    spool.close()


@pytest.mark.parametrize("how", ["dropped", "acknowledged"])
def test_the_inventory_outlives_the_segment_it_was_written_in(directory, how):
    spool = opened(directory, max_bytes=8192, segment_bytes=1024)
    spool.append(inventory("first"))
    spool.append(inventory("second"))
    for i in range(200 if how == "dropped" else 20):
        spool.append(batch(i))
    spool.commit()
    if how == "acknowledged":
        spool.acknowledge(15)
    for _ in range(2):
        first = spool.first_available_sequence
        assert first > 2
        stand_in = spool.read(first)
        assert stand_in.sequence == first
        assert stand_in.inventory.gpus[0].gpu_uuid == "second"
        assert spool.read(first + 1).HasField("batch")
        spool.close()
        spool = opened(directory, max_bytes=8192, segment_bytes=1024)
    spool.close()


QUICK = {"segment_bytes": 1 << 16, "files": UnsyncedFiles()}


def small_spool(directory):
    """One segment with an inventory and four batches; returns its path and the end offset of each record."""
    spool = opened(directory, **QUICK)
    spool.append(inventory())
    for i in range(4):
        spool.append(batch(i, size=20))
    spool.close()
    path = next(directory.glob("*.seg"))
    return path, [record.end for record in scan(path.read_bytes()).records]


def test_a_file_cut_at_any_byte_keeps_every_whole_record(tmp_path):
    path, ends = small_spool(tmp_path / "whole")
    for size in range(path.stat().st_size + 1):
        directory = copy_directory(tmp_path / "whole", tmp_path / f"cut{size}")
        with (directory / path.name).open("r+b") as file:
            file.truncate(size)
        whole = sum(end <= size for end in ends)
        spool = opened(directory, **QUICK)
        assert spool.last_sequence == whole
        assert spool.append(batch(99)) == whole + 1
        spool.commit()
        spool.close()
        again = opened(directory, **QUICK)
        assert [r.sequence for r in everything(again)] == list(range(1, whole + 2))
        assert not any(r.HasField("loss_report") for r in everything(again))
        assert value(again.read(whole + 1)) == 99
        again.close()


def test_a_flipped_bit_anywhere_loses_at_most_its_own_record_and_says_so(tmp_path):
    path, ends = small_spool(tmp_path / "whole")
    whole = path.read_bytes()
    before = {r.sequence: r.payload for r in scan(whole).records}
    for offset in range(len(whole)):
        directory = copy_directory(tmp_path / "whole", tmp_path / f"flip{offset}")
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << (offset % 8)
        (directory / path.name).write_bytes(damaged)
        counters = SelfCounters()
        spool = opened(directory, **QUICK, counters=counters)
        hit = 1 + sum(end <= offset for end in ends) if offset >= HEADER.size else None
        for record in everything(spool):
            if record.HasField("loss_report"):
                assert record.sequence == hit
                assert record.loss_report.first_lost_sequence == record.loss_report.last_lost_sequence == hit
                assert record.loss_report.reason == LOSS.LOSS_REASON_SPOOL_CORRUPT
            else:
                assert record.SerializeToString() == before[record.sequence]
        # The last record has nothing valid after it: where its own length or number is damaged, it looks like a torn
        # tail. The collector then tells that it has more (see test_uplink.py).
        as_torn = hit == 5 and offset - ends[3] < 16
        assert spool.last_sequence == (4 if as_torn else 5)
        assert counters.dropped_records.get("spool_corrupt", 0) == (0 if hit is None or as_torn else 1)
        spool.close()


def encoded(sequence, ticks=10):
    record = batch(100 * sequence + ticks, ticks)
    record.sequence = sequence
    return encode_record(sequence, ticks, record.SerializeToString())


@pytest.mark.parametrize(
    "sequences", [[1, 2, 3, 2, 4], [1, 1, 2], [2, 1, 2, 3], [3, 1, 2, 4], [1, 2, 3, 3], [1, 4, 2, 5]]
)
def test_repeated_sequences_of_joined_files_cost_no_record_behind_them(directory, sequences):
    directory.mkdir()
    (directory / f"{1:020d}.seg").write_bytes(encode_header(1, b"") + b"".join(encoded(s) for s in sequences))
    for _ in range(2):
        spool = opened(directory, **QUICK)
        records = everything(spool)
        assert [r.sequence for r in records] == list(range(1, max(sequences) + 1))
        held = [r.sequence for r in records if r.HasField("batch")]
        assert all(value(r) == 100 * r.sequence + 10 for r in records if r.HasField("batch"))
        # The first one of those that go on; what lies between is on record.
        assert held == [s for i, s in enumerate(sequences) if s > max(sequences[:i], default=0)]
        spool.close()
        assert examine(directory, QUICK["files"], in_use=False).findings == ()


def test_what_a_recovery_leaves_is_in_order_for_the_next_one(tmp_path):
    chance = random.Random(7)
    for case in range(300):
        directory = tmp_path / str(case)
        directory.mkdir()
        firsts = [1, chance.randint(1, 6)][: chance.randint(1, 2)]
        for first in dict.fromkeys(firsts):
            sequences = [
                max(1, first + i + chance.choice((0, 0, 0, 0, -1, -3, 2))) for i in range(chance.randint(0, 8))
            ]
            data = bytearray(encode_header(first, b"") + b"".join(encoded(s, chance.randint(1, 3)) for s in sequences))
            for _ in range(chance.randint(0, 2)):
                if chance.random() < 0.5:
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                else:
                    del data[chance.randrange(len(data)) :]
                    data += bytes(chance.randint(0, 1))
            (directory / f"{first:020d}.seg").write_bytes(data)
        spool = opened(directory, **QUICK)
        records = [r.SerializeToString() for r in everything(spool)]
        spool.close()
        assert examine(directory, QUICK["files"], in_use=False).findings == (), case
        again = opened(directory, **QUICK)
        assert [r.SerializeToString() for r in everything(again)] == records, case
        assert [r.sequence for r in everything(again)] == list(
            range(again.first_available_sequence, again.last_sequence + 1)
        )
        again.close()


def test_a_segment_that_is_gone_is_a_reported_loss(directory):
    spool = opened(directory, segment_bytes=400)
    for i in range(1, 31):
        spool.append(batch(i))
    spool.close()
    removed = sorted(directory.glob("*.seg"))[3]
    following = sorted(directory.glob("*.seg"))[4]
    removed.unlink()
    lost = set(range(int(removed.stem), int(following.stem)))
    again = opened(directory, segment_bytes=400)
    records = everything(again)
    assert [r.sequence for r in records] == list(range(1, 31))
    assert {r.sequence for r in records if r.HasField("loss_report")} == lost
    again.close()


def test_damage_that_appears_while_running_is_a_reported_loss(directory):
    counters = SelfCounters()
    spool = opened(directory, segment_bytes=1 << 16, counters=counters)
    for i in range(3):
        spool.append(batch(i))
    spool.commit()
    path = next(directory.glob("*.seg"))
    content = bytearray(path.read_bytes())
    content[scan(bytes(content)).records[1].offset + RECORD.size] ^= 1
    path.write_bytes(content)
    record = spool.read(2)
    assert record.sequence == 2
    assert (record.loss_report.first_lost_sequence, record.loss_report.lost_ticks) == (2, 10)
    assert value(spool.read(3)) == 2
    assert counters.lost_ticks == 10
    spool.close()


def test_files_of_another_kind_are_refused_with_what_to_do(directory):
    directory.mkdir()
    (directory / "notes.seg").write_text("mine")
    with pytest.raises(SpoolError, match="move the file away"):
        opened(directory)
    (directory / "notes.seg").unlink()
    (directory / "identity.json").write_text("{")
    with pytest.raises(SpoolError, match="remove the file"):
        opened(directory)
    (directory / "identity.json").unlink()
    (directory / "00000000000000000001.seg").write_bytes(encode_header(1, b""))
    (directory / "00000000000099999999.seg").write_bytes(encode_header(99999999, b""))
    with pytest.raises(SpoolError, match="move the spool directory away"):
        opened(directory)


def test_a_full_disk_costs_ticks_that_are_counted_and_reported_when_it_has_room_again(directory, caplog):
    files, counters = FaultyFiles(), SelfCounters()
    spool = opened(directory, files=files, counters=counters)
    spool.append(inventory("before"))
    spool.append(batch(1))
    files.full = True
    assert [spool.append(r) for r in (batch(2), inventory("meanwhile"), batch(3), ended())] == [None] * 4
    spool.commit()
    assert [r.WhichOneof("payload") for r in everything(spool)] == ["inventory", "batch"]
    assert caplog.text.count("the disk is full") == 1
    files.full = False
    assert spool.append(batch(4)) == 6
    spool.commit()
    spool.close()
    again = opened(directory)
    kinds = [r.WhichOneof("payload") for r in everything(again)]
    assert kinds == ["inventory", "batch", "loss_report", "inventory", "source_ended", "batch"]
    report = again.read(3).loss_report
    assert (report.reason, report.lost_ticks) == (LOSS.LOSS_REASON_DISK_FULL, 20)
    assert (report.first_lost_sequence, report.last_lost_sequence) == (0, 0)
    assert counters.dropped_records == {"disk_full": 2}
    assert counters.lost_ticks == 20
    assert "accepts writes again" in caplog.text
    again.close()


def test_a_disk_that_fills_up_between_segments_loses_nothing_else(directory):
    files = FaultyFiles()
    spool = opened(directory, files=files, segment_bytes=300)
    appended = 0
    for i in range(58):
        files.full = i % 7 in (3, 4)
        appended += spool.append(batch(i)) is not None
        spool.commit()
    spool.close()
    records = everything_after_reopening(directory)
    assert sum(r.HasField("batch") for r in records) == appended
    assert sum(r.loss_report.lost_ticks for r in records) == 10 * (58 - appended)


def everything_after_reopening(directory, **options):
    spool = opened(directory, **options)
    records = everything(spool)
    spool.close()
    assert [r.sequence for r in records] == list(range(1, len(records) + 1))
    return records


def test_what_cannot_be_synced_is_lost_and_reported_and_was_never_sent(directory):
    files, counters = FaultyFiles(), SelfCounters()
    spool = opened(directory, files=files, counters=counters)
    spool.append(inventory())
    spool.append(batch(1))
    spool.commit()
    files.sync_fails = True
    spool.append(batch(2))
    spool.append(ended())
    spool.commit()
    assert spool.committed_sequence == 2
    assert spool.last_sequence == 2
    assert spool.append(batch(3)) is None
    files.sync_fails = False
    spool.append(batch(4))
    spool.commit()
    kinds = [r.WhichOneof("payload") for r in everything(spool)]
    assert kinds == ["inventory", "batch", "loss_report", "source_ended", "batch"]
    assert spool.read(3).loss_report.lost_ticks == 20
    assert counters.lost_ticks == 20
    spool.close()
    again = opened(directory)
    assert [r.WhichOneof("payload") for r in everything(again)] == kinds
    assert value(again.read(5)) == 4
    again.close()


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_takes_nothing_that_was_committed(directory, seed):
    chance = random.Random(seed)
    files = FaultyFiles(seed)
    spool = opened(directory, files=files, segment_bytes=600, max_bytes=1 << 20)
    written, acked = {}, 0
    spool.append(inventory())
    for i in range(chance.randrange(1, 120)):
        sequence = spool.append(batch(i, size=chance.randrange(200)))
        written[sequence] = i
        if chance.random() < 0.3:
            spool.commit()
        if chance.random() < 0.1:
            acked = chance.randrange(acked, spool.committed_sequence + 1)
            spool.acknowledge(acked)
    committed = spool.committed_sequence
    files.lose_power()
    spool._file_lock.release()  # the machine is off

    again = opened(directory, files=FaultyFiles(), segment_bytes=600)
    assert again.first_available_sequence <= acked + 1
    assert again.last_sequence >= committed
    for sequence in range(max(2, acked + 1), committed + 1):
        assert value(again.read(sequence)) == written[sequence]
    assert again.append(batch()) > committed
    again.close()


def test_two_agents_cannot_share_a_spool(directory):
    spool = opened(directory)
    script = (
        "import sys; from pathlib import Path; from gpusonde.agent.spool import Spool\n"
        "from gpusonde.errors import DirectoryLockedError\n"
        f"try: Spool(Path({str(directory)!r}), max_bytes=1 << 20).open()\n"
        "except DirectoryLockedError as error: print(error); sys.exit(7)\n"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert other.returncode == 7
    assert "in use by another agent" in other.stdout
    with pytest.raises(DirectoryLockedError):
        opened(directory)
    spool.close()
    opened(directory).close()


def test_the_agent_keeps_its_name_and_takes_a_configured_one(directory):
    first = opened(directory)
    name, spool_id = first.agent_id, first.spool_id
    first.close()
    second = opened(directory)
    assert (second.agent_id, second.spool_id) == (name, spool_id)
    second.close()
    third = opened(directory, agent_id="node-7")
    assert (third.agent_id, third.spool_id) == ("node-7", spool_id)
    third.close()
    fourth = opened(directory)
    assert fourth.agent_id == "node-7"
    fourth.close()


def test_removed_segments_mean_a_new_spool_id_because_numbers_start_again(directory):
    spool = opened(directory)
    old = spool.spool_id
    spool.append(batch())
    spool.close()
    for path in directory.glob("*.seg"):
        path.unlink()
    again = opened(directory)
    assert again.last_sequence == 0
    assert again.spool_id != old
    again.close()


def test_a_removed_identity_means_a_new_spool_id_and_keeps_the_records(directory):
    spool = opened(directory)
    old = spool.spool_id
    spool.append(batch(7))
    spool.close()
    (directory / "identity.json").unlink()
    again = opened(directory)
    assert again.spool_id != old
    assert value(again.read(1)) == 7
    again.close()


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="file"):
        opened(tmp_path / "file" / "spool")


def test_segment_bytes_are_pinned():
    assert encode_header(7, b"ctx").hex() == (
        "475353504f4f4c31"  # GSSPOOL1
        "0700000000000000"
        "03000000"
        "e5262622"
        "637478"
    )
    assert encode_record(9, 10, b"payload").hex() == (
        "47535231"  # GSR1
        "07000000"
        "0900000000000000"
        "0a000000"
        "d8ccb5e7"
        "7061796c6f6164"
    )


def reopened_after_a_kill(spool, directory, **options):
    spool._file_lock.release()
    spool._appender.close()
    spool._ledger.close()
    spool._journal.close()
    return opened(directory, **options)


def lost_ticks(spool):
    return sum(r.loss_report.lost_ticks for r in everything(spool) if r.HasField("loss_report"))


def test_ticks_that_a_full_disk_refused_are_reported_although_the_agent_was_killed_meanwhile(directory):
    files = FaultyFiles()
    spool = opened(directory, files=files)
    spool.append(inventory())
    spool.append(batch(1))
    spool.commit()
    for life in range(3):
        files.full = True
        for _ in range(4):
            assert spool.append(batch(2)) is None
            spool.commit()
        assert spool.append(ended()) is None  # waits in memory: not a tick
        spool = reopened_after_a_kill(spool, directory, files=files)
        assert spool.read(2).batch.blocks[0].start_time_unix_nano == 1
        assert lost_ticks(spool) == 40 * life
        files.full = False
        spool.commit()
        assert lost_ticks(spool) == 40 * (life + 1)
    # Told once, also over one more start.
    spool = reopened_after_a_kill(spool, directory, files=files)
    spool.append(batch(3))
    spool.commit()
    assert lost_ticks(spool) == 120
    spool.close()


def test_a_report_that_was_written_and_not_committed_before_a_kill_is_not_told_twice(directory):
    files = FaultyFiles()
    spool = opened(directory, files=files)
    spool.append(batch(1))
    spool.commit()
    files.full = True
    spool.append(batch(2))
    files.full = False
    spool.append(batch(3))  # the report goes ahead of it; neither is synced
    spool = reopened_after_a_kill(spool, directory, files=files)
    spool.append(batch(4))
    spool.commit()
    assert [r.WhichOneof("payload") for r in everything(spool)] == ["batch", "loss_report", "batch", "batch"]
    assert lost_ticks(spool) == 10
    spool.close()


def test_an_agent_starts_and_is_emptied_on_a_disk_that_is_full(directory):
    files = FaultyFiles()
    spool = opened(directory, files=files)
    spool.append(inventory())
    spool.append(batch(1))
    spool.close()
    files.full = True
    spool = opened(directory, files=files)
    spool.acknowledge(1)
    assert value(spool.read(2)) == 1
    # Sent, killed: the next start knows that a collector may have it.
    spool = reopened_after_a_kill(spool, directory, files=files)
    assert spool.known_sequence == 2
    spool.close()


def written_ticks(spool):
    return [value(r) for r in everything(spool) if r.HasField("batch")]


def killed_with_steps(directory, **options):
    """An inventory, a batch of two steps that was appended, and two steps of one that was not."""
    spool = opened(directory, **options)
    spool.append(inventory())
    spool.keep(batch(1))
    spool.keep(batch(2))
    spool.append(batch(12, ticks=20))
    spool.keep(batch(3))
    spool.keep(batch(4))
    spool.commit()
    return spool


def test_the_steps_of_a_batch_that_was_being_filled_outlive_a_kill(directory):
    spool = reopened_after_a_kill(killed_with_steps(directory), directory)
    assert written_ticks(spool) == [12, 3, 4]
    assert [r.sequence for r in everything(spool)] == [1, 2, 3, 4]
    for _ in range(2):
        spool = reopened_after_a_kill(spool, directory)
        assert written_ticks(spool) == [12, 3, 4]
    spool.append(inventory())
    spool.keep(batch(5))
    spool = reopened_after_a_kill(spool, directory)
    assert written_ticks(spool) == [12, 3, 4, 5]
    spool.close()


def test_steps_whose_batch_was_written_are_not_written_again(directory):
    spool = killed_with_steps(directory, segment_bytes=300)
    spool.append(batch(34, ticks=20))
    for _ in range(5):
        spool.append(ended())
    spool.commit()
    spool.acknowledge(spool.committed_sequence)
    spool = reopened_after_a_kill(spool, directory, segment_bytes=300)
    assert all(not r.HasField("batch") for r in everything(spool))
    spool.close()


def test_steps_of_a_batch_that_the_disk_refused_count_as_lost_and_not_as_both(directory):
    files = FaultyFiles()
    spool = killed_with_steps(directory, files=files)
    files.full = True
    assert spool.append(batch(34, ticks=20)) is None
    files.full = False
    spool = reopened_after_a_kill(spool, directory, files=files)
    spool.commit()
    assert (written_ticks(spool), lost_ticks(spool)) == ([12], 20)
    spool.close()


def test_a_step_that_the_disk_refuses_counts_as_lost_unless_its_batch_is_written(directory):
    files = FaultyFiles()
    spool = killed_with_steps(directory, files=files)
    files.full = True
    spool.keep(batch(5))
    copy_directory(directory, directory.with_name("killed"))
    files.full = False
    spool.append(batch(345, ticks=30))
    spool = reopened_after_a_kill(spool, directory, files=files)
    spool.commit()
    assert (written_ticks(spool), lost_ticks(spool)) == ([12, 345], 0)
    spool.close()
    killed = opened(directory.with_name("killed"))
    killed.commit()
    assert (written_ticks(killed), lost_ticks(killed)) == ([12, 3, 4], 10)
    killed.close()


def test_steps_that_a_report_came_between_are_there_after_a_kill(directory):
    files = FaultyFiles()
    spool = opened(directory, files=files)
    spool.append(inventory())
    files.full = True
    spool.append(batch(1))
    files.full = False
    spool.keep(batch(2))
    spool.commit()
    spool = reopened_after_a_kill(spool, directory)
    assert (written_ticks(spool), lost_ticks(spool)) == ([2], 10)
    spool.close()


def test_steps_on_a_disk_that_is_full_at_the_next_start_are_lost_and_reported(directory):
    spool = killed_with_steps(directory)
    files = FaultyFiles()
    files.full = True
    spool = reopened_after_a_kill(spool, directory, files=files)
    assert written_ticks(spool) == [12]
    files.full = False
    spool.commit()
    assert lost_ticks(spool) == 20
    spool.close()
