"""``gpusonde store``: what is wrong is found, what is exported reads back, and SQL can only read."""

import sqlite3

import numpy as np
import pytest
from support.collector_process import ask
from support.faulty_files import flip_byte
from support.store_records import EVER, Feed
from support.wire_agent import START_NS, TICK_NS, batch, block

from gpusonde.cli import main
from gpusonde.collector import LocalStore
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.fsck import SequenceRanges
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import read_traces


@pytest.fixture
def filled(tmp_path):
    """A data directory with a compacted file, two small segments and records in its log."""
    directory = tmp_path / "data"
    store = LocalStore(directory, StoreConfig(reserve_bytes=0))
    store.open()
    for first in (1, 11, 21, 31):
        store.samples.append(Feed().batches(first, first + 9))
        store.flush()
        if first == 11:
            store.maintenance.compact_all()
    empty = ingest_pb2.Record(sequence=41, job_bindings=ingest_pb2.JobBindings())
    store.samples.append([Feed().incoming(empty), *Feed().batches(42, 44)])
    store.close()
    return directory


def fsck(directory, *more, exit_code=0):
    return ask("store", "fsck", str(directory), *more, exit_code=exit_code)


def kinds(report):
    return sorted({finding["kind"] for finding in report["findings"]})


def test_a_store_without_faults_has_no_findings(filled):
    report = fsck(filled)
    assert report["findings"] == []
    assert (report["segments"], report["rows"], report["log_entries"]) == (4, 390 + 19, 4)
    assert not report["live"]


def test_losses_on_record_are_no_findings(filled):
    store = LocalStore(filled, StoreConfig(reserve_bytes=0))
    store.open()
    store.samples.append([Feed().incoming(batch(60))])
    store.flush()
    store.close()
    report = fsck(filled)
    assert report["findings"] == []
    assert report["recorded_gaps"] == 1


@pytest.mark.parametrize("folder", ["segments", "hours", "seconds"])
@pytest.mark.parametrize("damage", ["flipped byte", "cut", "gone", "no parquet"])
def test_a_damaged_segment_is_found(filled, folder, damage):
    segment = min((filled / folder).iterdir())
    if damage == "flipped byte":
        flip_byte(segment, 100)
    elif damage == "cut":
        segment.write_bytes(segment.read_bytes()[:-10])
    elif damage == "gone":
        segment.unlink()
    else:
        segment.write_bytes(b"x" * segment.stat().st_size)
    report = fsck(filled, exit_code=1)
    assert kinds(report) == ["missing" if damage == "gone" else "damaged"]
    assert report["findings"][0]["file"] == f"{folder}/{segment.name}"
    assert "restore the file from a backup" in report["findings"][0]["problem"]


def test_another_file_in_the_place_of_a_segment_is_found(filled):
    first, second = sorted((filled / "segments").iterdir())
    first.write_bytes(second.read_bytes())
    with sqlite3.connect(filled / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE segments SET size_bytes = ? WHERE file_name = ?", (second.stat().st_size, first.name))
    catalog.close()
    assert kinds(fsck(filled, exit_code=1)) == ["mismatch"]


def test_segments_that_somebody_took_out_of_the_catalogue_are_a_hole(filled):
    segment = min((filled / "segments").iterdir()).name
    with sqlite3.connect(filled / "catalog.sqlite") as catalog:
        (number,) = catalog.execute("SELECT segment FROM segments WHERE file_name = ?", (segment,)).fetchone()
        catalog.execute("DELETE FROM segment_parts WHERE segment = ?", (number,))
        catalog.execute("DELETE FROM segments WHERE segment = ?", (number,))
    catalog.close()
    report = fsck(filled, exit_code=1)
    assert kinds(report) == ["hole", "orphan"]
    assert "records 21 to 30 of spool spool-1 of agent agent-1" in str(report["findings"])


def test_records_in_two_segments_are_found(filled):
    with sqlite3.connect(filled / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE segment_parts SET last_sequence = 25 WHERE last_sequence = 20 AND row_count > 100")
    catalog.close()
    assert kinds(fsck(filled, exit_code=1)) == ["mismatch", "overlap"]


def test_repair_sets_aside_what_it_does_not_know_and_removes_what_is_half_made(filled):
    known = set(filled.rglob("*.parquet*"))
    for name in ("segments/1.parquet", "hours/2.hour.parquet.tmp", "seconds/3.second.parquet"):
        (filled / name).write_bytes(b"left over")
    half_made = f"{1:020d}-{2:020d}.hour.parquet.tmp"
    (filled / "hours" / half_made).write_bytes(b"half made")
    assert kinds(fsck(filled, exit_code=1)) == ["orphan"]
    report = fsck(filled, "--repair", exit_code=1)
    assert [finding["repaired"] for finding in report["findings"]] == [True] * 4
    aside = set((filled / "lost+found").glob("*/*"))
    assert {path.name for path in aside} == {"1.parquet", "2.hour.parquet.tmp", "3.second.parquet"}
    assert set(filled.rglob("*.parquet*")) == known | aside
    assert {finding["file"] for finding in fsck(filled, exit_code=1)["findings"]} == {
        str(path.relative_to(filled)) for path in aside
    }


def test_a_lost_catalogue_is_made_anew(filled, capsys):
    (filled / "catalog.sqlite").unlink()
    assert main.main(["store", "fsck", str(filled)]) == 1
    assert f"gpusonde store fsck --rebuild {filled}" in capsys.readouterr().err
    report = fsck(filled, "--rebuild", exit_code=1)
    assert {(f["kind"], f["repaired"]) for f in report["findings"]} == {("catalog", True), ("catalog", False)}
    assert (report["segments"], report["rows"]) == (4, 390 + 19)
    assert fsck(filled)["findings"] == []


def test_a_torn_log_is_found(filled):
    (part,) = (filled / "log").iterdir()
    part.write_bytes(part.read_bytes()[:-3])
    report = fsck(filled, exit_code=1)
    assert kinds(report) == ["log_tail"]
    assert report["log_entries"] == 3


def test_a_directory_in_use_is_checked_and_exported_but_neither_repaired_nor_compacted(filled, tmp_path, capsys):
    store = LocalStore(filled, StoreConfig(reserve_bytes=0))
    store.open()
    try:
        (filled / "hours" / "new.hour.parquet.tmp").write_bytes(b"being written")
        report = fsck(filled)
        assert report["live"]
        assert report["findings"] == []
        assert main.main(["store", "fsck", str(filled), "--repair"]) == 1
        assert main.main(["store", "compact", str(filled)]) == 1
        assert "in use by" in capsys.readouterr().err
        exported = ask("store", "export", str(filled), str(tmp_path / "out.parquet"))
        assert exported["live"]
        assert exported["gpus"][0]["ticks"] == 390
    finally:
        store.close()


@pytest.mark.parametrize("action", [["fsck"], ["compact"], ["export"], ["sql"], ["backup"]])
def test_what_is_no_data_directory_is_said_and_not_made_one(tmp_path, action, capsys):
    rest = {"export": ["out.csv"], "backup": [str(tmp_path / "out")], "sql": ["SELECT 1"]}.get(action[0], [])
    assert main.main(["store", *action, str(tmp_path / "nothing"), *rest]) == 1
    assert "is no data directory of a collector" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()


def test_compacting_by_hand_takes_everything_and_changes_no_sample(filled):
    before = samples(filled)
    report = ask("store", "compact", str(filled))
    assert (report["files_written"], report["segments_left"]) == (1, 0)
    assert list((filled / "segments").iterdir()) == list((filled / "log").iterdir()) == []
    after = samples(filled)
    assert (after.time_unix_nano == before.time_unix_nano).all()
    assert (after.columns["sm_active"] == before.columns["sm_active"]).all()
    assert fsck(filled)["findings"] == []
    assert ask("store", "compact", str(filled))["files_written"] == 0


def samples(directory):
    store = LocalStore(directory, StoreConfig(reserve_bytes=0))
    store.open()
    found = store.samples.read("GPU-a", *EVER)
    store.close()
    return found


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_an_export_reads_back_as_a_trace(filled, tmp_path, ending):
    out = tmp_path / f"out.{ending}"
    report = ask("store", "export", str(filled), str(out), "--gpu", "GPU-a")
    (trace,) = read_traces(out)
    stored = samples(filled)
    assert report["gpus"][0]["ticks"] == len(trace) == len(stored)
    assert trace.gpu_uuid == "GPU-a"
    assert trace.origin_unix_s == START_NS / 1e9
    assert trace.time_s == pytest.approx((stored.time_unix_nano - START_NS) / 1e9)
    assert np.array_equal(trace.values["sm_active"], stored.columns["sm_active"].astype(float), equal_nan=True)


def test_an_export_keeps_to_its_time(filled, tmp_path):
    out = tmp_path / "out.csv"
    begin, end = (START_NS + 50 * TICK_NS) / 1e9, "2023-11-14T22:13:30Z"
    ask("store", "export", str(filled), str(out), "--from", repr(begin), "--to", end)
    (trace,) = read_traces(out)
    assert len(trace) == 50
    assert main.main(["store", "export", str(filled), str(out), "--from", "2030-01-01"]) == 1
    assert main.main(["store", "export", str(filled), str(out), "--gpu", "GPU-x"]) == 1


@pytest.mark.parametrize(
    "wrong",
    [["--from", "yesterday"], ["--from", "9", "--to", "8"]],
)
def test_an_export_that_makes_no_sense_is_a_usage_error(filled, tmp_path, wrong):
    assert main.main(["store", "export", str(filled), str(tmp_path / "out.csv"), *wrong]) == 2
    assert main.main(["store", "export", str(filled), str(tmp_path / "out.txt")]) == 2


def test_sql_reads_ticks_averages_and_the_catalogue(filled):
    pytest.importorskip("duckdb")
    answer = ask("store", "sql", str(filled), "SELECT gpu_uuid, COUNT(*) n, MAX(sm_active) m FROM samples GROUP BY 1")
    assert [column["name"] for column in answer["columns"]] == ["gpu_uuid", "n", "m"]
    assert answer["rows"] == [["GPU-a", 390, pytest.approx(0.99)]]
    assert ask("store", "sql", str(filled), "SELECT COUNT(*) FROM seconds")["rows"] == [[19]]
    assert ask("store", "sql", str(filled), "SELECT agent_id FROM spools")["rows"] == [["agent-1"]]
    few = ask("store", "sql", str(filled), "SELECT time_unix_nano FROM samples", "--limit", "5")
    assert (len(few["rows"]), few["truncated"]) == (5, True)


def test_sql_tells_times_in_utc_whatever_the_host_s_zone(filled, monkeypatch):
    pytest.importorskip("duckdb")
    monkeypatch.setenv("TZ", "America/New_York")
    statement = "SELECT t, [t], {'at': t}, MAP {DATE '2026-11-21': t} FROM (SELECT to_timestamp(1795246561) t)"
    time = "2026-11-21 07:36:01+00:00"
    (row,) = ask("store", "sql", str(filled), statement)["rows"]
    assert row == [time, [time], {"at": time}, {"2026-11-21": time}]


def test_gpus_of_an_export_keep_their_own_metrics_and_sql_knows_those_of_all(filled, tmp_path):
    pytest.importorskip("duckdb")
    store = LocalStore(filled, StoreConfig(reserve_bytes=0))
    store.open()
    other = Feed("agent-2", "spool-2", gpus=("GPU-b",), metrics=("dram_active",))
    store.samples.append([other.incoming(other.first), other.incoming(batch(2, block(metrics=("dram_active",))))])
    store.flush()
    store.close()
    ask("store", "export", str(filled), str(tmp_path / "out.parquet"))
    found = {trace.gpu_uuid: set(trace.metrics) for trace in read_traces(tmp_path / "out.parquet")}
    assert found["GPU-b"] == {"dram_active"}
    assert "sm_active" in found["GPU-a"]
    assert "dram_active" not in found["GPU-a"]
    question = "SELECT gpu_uuid, COUNT(dram_active), COUNT(sm_active) FROM samples GROUP BY 1 ORDER BY 1"
    assert ask("store", "sql", str(filled), question)["rows"] == [["GPU-a", 0, 420], ["GPU-b", 10, 0]]


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE runs",
        "SELECT 1; SELECT 2",
        "COPY (SELECT 1) TO 'out.csv'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_text('/etc/passwd')",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "CALL pragma_version()",
        "SELECT",
    ],
)
def test_sql_can_do_nothing_but_read_the_store(filled, tmp_path, monkeypatch, statement, capsys):
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    assert main.main(["store", "sql", str(filled), statement]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_numbers_that_are_missing_come_as_runs():
    found = SequenceRanges()
    found.add_all(np.array([7, 3, 4, 4, 12]))
    found.add(9, 10)
    assert list(found.missing(1, 14)) == [(1, 2), (5, 6), (8, 8), (11, 11), (13, 14)]
    assert list(found.missing(3, 4)) == []
    assert list(SequenceRanges().missing(1, 2)) == [(1, 2)]
