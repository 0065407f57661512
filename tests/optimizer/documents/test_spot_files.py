"""A problem file may name a table of spot prices; its current rows become offers."""

import io
import json
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.documents.references import read_problem, reread_after_s
from gpusonde.optimizer.documents.watching import start_watch
from gpusonde.optimizer.problem import Billing

HEADER = "provider,region,zone,instance_type,time,usd_per_hour,available_machines,preemptions_per_hour\n"
ROWS = """\
aws,us-east-1,us-east-1a,g4dn.12xlarge,2026-11-21T11:00:00Z,1.43,6,0.05
aws,us-east-1,us-east-1b,g4dn.12xlarge,2026-11-21T11:00:00Z,1.38,2,
aws,us-east-1,us-east-1a,g5.12xlarge,2026-11-21T11:00:00Z,2.50,2,0.05
"""
PROBLEM = """\
format = "gpusonde.problem/1"
global_batch = 256
iterations = 1000
[job]
gradients = { parameter_bytes = 1e8 }
[[job.curves]]
device = "Tesla T4"
largest_batch = 64
probes = [ { batch_size = 16, total_s = 0.1 }, { batch_size = 64, total_s = 0.4 } ]
"""
SPOT = '[[spot]]\nfile = "spot.csv"\nquota = 4\n'


def noon():
    return datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


def read(folder: Path, spot: str = SPOT, rows: str = ROWS, clock=noon):
    (folder / "spot.csv").write_text(HEADER + rows)
    (folder / "job.toml").write_text(PROBLEM + spot)
    gpus = load_gpus()
    return parse_problem(read_problem(folder / "job.toml", clock), gpus, load_offers(gpus=gpus)).problem


def test_current_rows_with_a_curve_and_a_preemption_rate_become_offers(tmp_path, caplog):
    (offer,) = read(tmp_path).offers
    assert (offer.name, offer.device, offer.billing) == ("aws/us-east-1a/g4dn.12xlarge/spot", "T4", Billing.SPOT)
    assert (offer.usd_per_hour, offer.quota, offer.preemptions_per_hour) == (1.43, 4, 0.05)
    assert offer.largest_batch == 64  # of the curve
    assert "preemption rate unknown" in caplog.text
    assert "no batch limits for A10G" in caplog.text


@pytest.mark.parametrize("spot", [SPOT, SPOT.replace('file = "spot.csv"', 'command = ["cat", "spot.csv"]')])
def test_a_table_may_begin_with_the_mark_that_spreadsheets_write(tmp_path, spot):
    read(tmp_path)
    (tmp_path / "spot.csv").write_text(HEADER + ROWS, encoding="utf-8-sig")
    (tmp_path / "job.toml").write_text(PROBLEM + spot)
    assert len(read_problem(tmp_path / "job.toml", noon)["offers"]) == 1


@pytest.mark.parametrize(("was", "row"), [(",1.43,", ",1e10,"), (",6,0.05", ",6,4000")])
def test_a_figure_beyond_what_offers_may_have_is_refused_by_its_line(tmp_path, was, row):
    with pytest.raises(DocumentError, match=r"spot.csv:2: (usd|preemptions)_per_hour must be at most"):
        read(tmp_path, rows=ROWS.replace(was, row))


def test_a_rate_for_all_and_filters_of_the_table_hold(tmp_path):
    first, second = read(tmp_path, SPOT + "preemptions_per_hour = 0.2\nlargest_batch = 32\n").offers
    assert (first.preemptions_per_hour, second.preemptions_per_hour) == (0.05, 0.2)
    assert (second.quota, second.largest_batch) == (2, 32)
    (only,) = read(tmp_path, SPOT + 'preemptions_per_hour = 0.2\nregions = ["us-east-1b"]\n').offers
    assert only.zone == "us-east-1b"


def test_prices_of_the_day_before_are_stale_unless_told_otherwise(tmp_path):
    def later():
        return datetime(2026, 11, 23, tzinfo=timezone.utc)

    with pytest.raises(DocumentError, match="none of its machines can be rented now"):
        read(tmp_path, clock=later)
    assert read(tmp_path, SPOT + "longest_age_hours = 48\n", clock=later).offers


def test_a_quota_of_nothing_means_that_none_is_rented_now(tmp_path):
    assert [offer.quota for offer in read(tmp_path, SPOT.replace("quota = 4", "quota = 0")).offers] == [0]


@pytest.mark.parametrize(
    ("spot", "why"),
    [
        ('[[spot]]\nfile = "none.csv"\nquota = 4\n', "cannot be read"),
        ('[[spot]]\nfile = "spot.csv"\n', r"spot\[0\]\.quota"),
        ("[[spot]]\nquota = 4\n", r"spot\[0\]\.file"),
        (SPOT + "quotas = 3\n", "did you mean 'quota'"),
        (SPOT + 'gpus = ["V1000"]\n', "V1000"),
        (SPOT + "smallest_batch = 64\nlargest_batch = 8\n", "below the smallest"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(spot, why, tmp_path):
    with pytest.raises(DocumentError, match=why):
        read(tmp_path, spot)


def test_a_bad_row_is_named_by_its_line(tmp_path):
    with pytest.raises(DocumentError, match=r"spot\.csv:2: usd_per_hour"):
        read(tmp_path, rows="aws,us-east-1,,g4dn.12xlarge,2026-11-21T11:00:00Z,0,,\n")


def table(hours: int = 11, price: float = 1.43, region: str = "us-east-1") -> str:
    return HEADER + f"aws,{region},,g4dn.12xlarge,2026-11-21T{hours}:00:00Z,{price},6,0.05\n"


def ask(folder: Path, code: str, more: str = "quota = 4"):
    """Read a problem whose prices a program prints."""
    (folder / "prices.py").write_text(code)
    command = [sys.executable, str(folder / "prices.py"), "$HOME; ls"]
    (folder / "job.toml").write_text(f"{PROBLEM}[[spot]]\ncommand = {json.dumps(command)}\n{more}\n")
    return read_problem(folder / "job.toml", noon)


def test_a_program_may_print_the_prices(tmp_path: Path):
    found = ask(tmp_path, f"import sys\nassert sys.argv[1] == '$HOME; ls'\nprint({table()!r}, end='')")
    assert [offer["usd_per_hour"] for offer in found["offers"]] == [1.43]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "ended with status 3"),
        ("print('no table')", "lacks column 'provider'"),
        ("import sys; sys.stdout.buffer.write(bytes([255]))", "is not UTF-8"),
        ("while True: print('x' * 4096)", "more than 0 MiB"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
        ("import os, time; os.close(1); time.sleep(60)", "did not end within 1 s"),
        # It keeps the pipe, in a session of its own.
        (
            "import subprocess; subprocess.Popen(['sleep', '40'], start_new_session=True)",
            "what it started, did not end within 1 s",
        ),
    ],
)
def test_a_program_that_prints_no_prices_is_named(tmp_path: Path, monkeypatch, code: str, words: str):
    monkeypatch.setattr("gpusonde.optimizer.spot_offers._COMMAND_S", 1.0 if "sleep" in code else 30.0)
    monkeypatch.setattr("gpusonde.optimizer.spot_offers._MOST_PRINTED", 1 << 16)
    began = time.monotonic()
    with pytest.raises(DocumentError, match=words) as error:
        ask(tmp_path, code)
    assert error.value.field == "spot[0]"
    assert time.monotonic() - began < 30


def test_a_program_that_is_not_there_is_named(tmp_path: Path):
    (tmp_path / "job.toml").write_text(PROBLEM + '[[spot]]\ncommand = ["./no-such-program"]\nquota = 4\n')
    with pytest.raises(DocumentError, match="cannot be run"):
        read_problem(tmp_path / "job.toml", noon)


@pytest.mark.parametrize("spot", ["quota = 4", 'quota = 4\nfile = "spot.csv"\ncommand = ["prices"]'])
def test_prices_come_from_a_file_or_a_program(tmp_path: Path, spot: str):
    (tmp_path / "job.toml").write_text(f"{PROBLEM}[[spot]]\n{spot}\n")
    with pytest.raises(DocumentError, match="file, or the command"):
        read_problem(tmp_path / "job.toml", noon)


def test_a_command_in_a_document_that_was_sent_is_none(tmp_path: Path):
    found = ask(tmp_path, f"print({table()!r}, end='')")
    assert "spot" not in found
    with pytest.raises(DocumentError, match="spot"):
        parse_problem(found | {"spot": [{"command": ["true"], "quota": 4}]}, load_gpus(), load_offers())


def test_a_command_in_a_problem_on_stdin_is_not_run(tmp_path: Path, monkeypatch):
    text = f'{PROBLEM}[[spot]]\ncommand = ["touch", "{tmp_path / "ran"}"]\nquota = 4\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    with pytest.raises(DocumentError, match="is not run for a problem on stdin") as error:
        read_problem(Path("-"), noon)
    assert error.value.field == "spot[0].command"
    assert not (tmp_path / "ran").exists()


def test_prices_from_the_future_and_regions_misspelt_are_named(tmp_path: Path):
    with pytest.raises(DocumentError, match=r"time is 2026-11-21 13:00 UTC, still to come; write UTC") as error:
        ask(tmp_path, f"print({table(13)!r}, end='')")
    assert error.value.field == "spot[0]"
    with pytest.raises(DocumentError, match="did you mean 'us-east-1'"):
        ask(tmp_path, f"print({table()!r}, end='')", 'quota = 4\nregions = ["us-eats-1"]')


def test_a_watched_job_follows_prices_that_are_read_again(tmp_path: Path):
    first = ask(tmp_path, f"print({table()!r}, end='')", "quota = 4\nreread_s = 60")
    assert reread_after_s(tmp_path / "job.toml") == 60.0
    watch = start_watch(parse_problem(first, load_gpus(), load_offers()), {})
    watch.follow(parse_problem(ask(tmp_path, f"print({table(11, 0.5)!r}, end='')"), load_gpus(), load_offers()))
    assert [offer.usd_per_hour for offer in watch.problem.offers] == [0.5]
    elsewhere = ask(tmp_path, f"print({table(region='us-west-2')!r}, end='')")
    watch.follow(parse_problem(elsewhere, load_gpus(), load_offers()))
    assert [offer.quota for offer in watch.problem.offers] == [0]


def test_a_price_that_is_still_to_come_beside_an_older_one_is_told_with_its_key(tmp_path, caplog):
    later = table(hours=13).removeprefix(HEADER)
    assert len(read(tmp_path, rows=table().removeprefix(HEADER) + later).offers) == 1
    (said,) = [record.getMessage() for record in caplog.records if "still to come" in record.getMessage()]
    assert said.startswith("spot[0]: 1 price left out of ")
    assert "its time is 2026-11-21 13:00 UTC" in said
    assert said.endswith("until then its price of 2026-11-21 11:00 UTC counts")
