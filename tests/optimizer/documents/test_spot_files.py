"""A problem file may name a table of spot prices; its current rows become offers."""

from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpusonde.catalog import load_gpus, load_offers
from gpusonde.errors import DocumentError
from gpusonde.optimizer.documents.problem import parse_problem
from gpusonde.optimizer.documents.references import read_problem
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
