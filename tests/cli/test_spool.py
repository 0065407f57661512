"""``gpusonde spool``: reads beside a running agent, repairs what its next start would repair, and says so."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support.spools import batch, hold, write_damaged_spool, write_spool

from gpusonde.agent.spool import Spool
from gpusonde.cli.main import main
from gpusonde.ingest.v1 import ingest_pb2


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of ``gpusonde spool``."""
    code = main(["spool", *arguments, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, answer


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a spool."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_ls_lists_segments_with_sequences_ticks_bytes_and_times(tmp_path, capsys):
    directory = write_spool(tmp_path / "spool")
    before = contents(directory)
    code, answer = ask(capsys, "ls", str(directory))
    assert code == 0
    assert (answer["agent_id"], answer["held_by"], answer["acked_sequence"]) == ("node-7", None, 0)
    assert (answer["records"], answer["last_sequence"], answer["ticks"]) == (31, 31, 300)
    segments = answer["segments"]
    assert [s["file"] for s in segments] == [str(path) for path in sorted(directory.glob("*.seg"))]
    assert [s["size_bytes"] for s in segments] == [path.stat().st_size for path in sorted(directory.glob("*.seg"))]
    assert segments[0]["first_sequence"] == 1
    for earlier, later in itertools.pairwise(segments):
        assert later["first_sequence"] == earlier["last_sequence"] + 1
        assert later["first_tick_time"] > earlier["last_tick_time"]
    assert segments[0]["first_tick_time"] == "2023-11-14T22:13:20.000000+00:00"
    assert segments[-1]["last_tick_time"] == "2023-11-14T22:13:49.900000+00:00"
    assert contents(directory) == before


def test_ls_shows_the_batch_that_is_being_filled(tmp_path, capsys):
    directory = write_spool(tmp_path / "spool")
    spool = Spool(directory, max_bytes=1 << 20, segment_bytes=1024)
    spool.open()
    assert ask(capsys, "ls", str(directory))[1]["journal"] is None
    for number in (30, 31):
        spool.keep(batch(number))
    before = contents(directory)
    _, answer = ask(capsys, "ls", str(directory))
    assert answer["journal"] == {
        "file": str(directory / "journal"),
        "steps": 2,
        "ticks": 20,
        "first_tick_time": "2023-11-14T22:13:50.000000+00:00",
        "last_tick_time": "2023-11-14T22:13:51.900000+00:00",
    }
    assert (answer["records"], answer["ticks"]) == (31, 300)
    assert main(["spool", "ls", str(directory)]) == 0
    assert "20 ticks more in journal" in capsys.readouterr().out
    assert contents(directory) == before
    spool.append(batch(32, ticks=20))
    _, answer = ask(capsys, "ls", str(directory))
    assert (answer["journal"], answer["ticks"]) == (None, 320)
    spool.close()


def test_another_directory_with_a_lock_is_no_spool(tmp_path, capsys):
    for name in ("lock", "catalog.sqlite"):
        (tmp_path / name).touch()
    assert main(["spool", "ls", str(tmp_path)]) == 1
    assert "not a spool" in capsys.readouterr().err


def test_what_was_acknowledged_is_no_longer_listed(tmp_path, capsys):
    directory = write_spool(tmp_path / "spool")
    spool = Spool(directory, max_bytes=1 << 20, segment_bytes=1024)
    spool.open()
    spool.acknowledge(20)
    spool.close()
    _, answer = ask(capsys, "ls", str(directory))
    assert 10 < answer["acked_sequence"] <= 20
    assert answer["segments"][0]["first_sequence"] == answer["acked_sequence"] + 1


def test_a_whole_spool_has_no_findings(tmp_path, capsys):
    code, answer = ask(capsys, "fsck", str(write_spool(tmp_path / "spool")))
    assert code == 0
    assert answer["findings"] == []
    assert not answer["repaired"]


def test_damage_is_found_without_touching_it_and_repaired_when_asked_as_the_agent_would(tmp_path, capsys):
    directory = write_damaged_spool(tmp_path / "spool")
    before = contents(directory)
    code, answer = ask(capsys, "fsck", str(directory))
    assert code == 1
    assert [f["kind"] for f in answer["findings"]] == ["lost_records", "torn_tail"]
    assert (answer["lost_records"], answer["torn_bytes"], answer["repaired"]) == (1, 18, False)
    assert contents(directory) == before

    code, repaired = ask(capsys, "fsck", str(directory), "--repair")
    assert code == 0
    assert repaired["repaired"]
    assert repaired["findings"] == answer["findings"]
    assert ask(capsys, "fsck", str(directory))[1]["findings"] == []
    spool = Spool(directory, max_bytes=1 << 20, segment_bytes=1024)
    spool.open()
    records = [spool.read(sequence) for sequence in range(1, spool.last_sequence + 1)]
    spool.close()
    (report,) = [record for record in records if record.HasField("loss_report")]
    assert report.loss_report.first_lost_sequence == report.sequence
    assert report.loss_report.reason == ingest_pb2.LOSS_REASON_SPOOL_CORRUPT
    assert len(records) == 31


def test_ls_tells_both_ends_of_a_segment_s_time_or_neither(tmp_path, capsys):
    directory = write_damaged_spool(tmp_path / "spool")
    _, answer = ask(capsys, "ls", str(directory))
    times = [(each["first_tick_time"], each["last_tick_time"]) for each in answer["segments"]]
    assert times[1] == (None, None)
    assert all(first < last for first, last in times if first is not None)
    assert sum(first is None for first, _ in times) == 1


def test_the_next_start_of_the_agent_does_the_same_as_a_repair(tmp_path, capsys):
    by_hand, by_agent = write_damaged_spool(tmp_path / "hand"), write_damaged_spool(tmp_path / "agent")
    ask(capsys, "fsck", str(by_hand), "--repair")
    spool = Spool(by_agent, max_bytes=1 << 20, segment_bytes=1024)
    spool.open()
    spool.close()
    segments = [{n: c for n, c in contents(d).items() if n.endswith(".seg")} for d in (by_hand, by_agent)]
    assert segments[0] == segments[1]


def test_beside_a_running_agent_it_reads_and_refuses_to_repair(tmp_path, capsys):
    directory = write_spool(tmp_path / "spool")
    agent = hold(directory)
    try:
        assert agent.stdin is not None
        assert agent.stdout is not None
        code, answer = ask(capsys, "ls", str(directory))
        assert (code, answer["held_by"]) == (0, str(agent.pid))
        for _ in range(20):
            agent.stdin.write("\n")
            agent.stdin.flush()
            code, answer = ask(capsys, "fsck", str(directory))
            assert (code, answer["findings"]) == (0, [])
            assert agent.stdout.readline() == "done\n"
        with (newest := sorted(directory.glob("*.seg"))[-1]).open("ab") as file:
            file.write(b"GSR1 being written")
        assert ask(capsys, "fsck", str(directory))[0] == 0
        before = newest.read_bytes()
        code, answer = ask(capsys, "fsck", str(directory), "--repair")
        assert code == 1
        assert f"in use by another agent (process {agent.pid})" in answer["error"]["message"]
        assert newest.read_bytes() == before
    finally:
        agent.kill()
        agent.communicate()
    # The kernel gave the lock back; now the same bytes are a torn tail.
    assert ask(capsys, "fsck", str(directory))[0] == 1


def test_asking_who_holds_a_spool_does_not_keep_an_agent_from_starting(tmp_path, capsys):
    directory = write_spool(tmp_path / "spool")
    for _ in range(20):
        ask(capsys, "ls", str(directory))
        spool = Spool(directory, max_bytes=1 << 20)
        spool.open()
        assert ask(capsys, "ls", str(directory))[1]["held_by"]
        spool.close()


def test_what_a_person_must_decide_is_said_and_left_alone(tmp_path, capsys):
    directory = write_spool(tmp_path / "spool")
    (directory / "identity.json").write_text("{")
    (directory / "notes.seg").write_text("mine")
    before = contents(directory)
    code, answer = ask(capsys, "fsck", str(directory), "--repair")
    assert code == 1
    assert not answer["repaired"]
    assert {f["kind"] for f in answer["findings"]} == {"unusable"}
    assert "remove the file to continue" in answer["findings"][0]["detail"]
    assert "move the file away" in answer["findings"][1]["detail"]
    assert {n: c for n, c in contents(directory).items() if n != "lock"} == {
        n: c for n, c in before.items() if n != "lock"
    }


@pytest.mark.parametrize("action", ["ls", "fsck"])
def test_a_directory_that_is_no_spool_is_refused_and_stays_as_it_was(tmp_path, capsys, action):
    code, answer = ask(capsys, action, str(tmp_path))
    assert code == 1
    assert "name the spool.directory of an agent" in answer["error"]["message"]
    assert list(tmp_path.iterdir()) == []
    assert ask(capsys, action, str(tmp_path / "absent"))[0] == 1


def test_people_get_tables(tmp_path, capsys):
    directory = write_damaged_spool(tmp_path / "spool")
    assert main(["spool", "ls", str(directory)]) == 0
    assert "up to 0 acknowledged" in capsys.readouterr().out
    assert main(["spool", "fsck", str(directory)]) == 1
    out = capsys.readouterr().out
    assert "1 record is lost" in out
    assert "18 bytes of an unfinished record" in out
    assert "nothing was changed" in out
