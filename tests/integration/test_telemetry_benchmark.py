"""The benchmark of the telemetry path runs, and what it checks it would notice."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "telemetry"


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("ingest", ["| 4 | off | 5 |", "| 0 | 0 / 0 of 200 | - |", "| 0 | 0 / 0 of 200 | 4, "]),
        ("tracking", ["| 0 to 30 s |"]),
        ("shapes", ["| **ours**", "one message per GPU and tick | 80 |"]),
        ("restart", ["| 8 | 0 min |"]),
    ],
)
def test_a_section_prints_its_table(section, words, tmp_path):
    out = tmp_path / "page.md"
    command = [sys.executable, str(BENCHMARK), section, "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    page = out.read_text()
    for word in words:
        assert word in page


def stored_ticks(directory, sequences, times):
    """A data directory with these ticks of one GPU of one agent."""
    (directory / "segments").mkdir(parents=True)
    columns = {
        "spool": np.ones(len(times), dtype=np.int64),
        "sequence": np.array(sequences, dtype=np.int64),
        "gpu_uuid": pa.array(["GPU-a"] * len(times)),
        "time_unix_nano": np.array(times, dtype=np.int64) * 10**8,
    }
    pq.write_table(pa.table(columns), directory / "segments" / "one.parquet")
    with sqlite3.connect(directory / "catalog.sqlite") as database:
        database.execute("CREATE TABLE spools (agent_id TEXT, spool INTEGER)")
        database.execute("INSERT INTO spools VALUES ('host', 1)")
        database.execute("CREATE TABLE segments (file_name TEXT)")
        database.execute("INSERT INTO segments VALUES ('one.parquet')")
    return directory


@pytest.mark.parametrize(
    ("sequences", "times", "expected"),
    [
        ([2] * 10 + [3] * 10, range(20), (20, 0, 0, 0)),
        ([2] * 10, range(10), (10, 1, 0, 0)),
        ([2] * 10 + [3] * 9, range(19), (19, 0, 1, 0)),
        ([2] * 10 + [3] * 10 + [3] * 10, [*range(20), *range(10, 20)], (30, 0, 1, 10)),
    ],
    ids=["whole", "a record missing", "a tick missing", "a record doubled"],
)
def test_missing_and_doubled_ticks_are_noticed(sequences, times, expected, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK))
    from stored import examine

    found = examine(stored_ticks(tmp_path / "store", sequences, times), {"host": 3}, gpus=1)
    assert (found.ticks, found.missing, found.incomplete, found.repeated) == expected
