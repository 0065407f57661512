"""``gpusonde prices``: what is downloaded elsewhere, into a file of one's own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.price_lists import aws_file, aws_row, azure_page

from gpusonde.catalog import fetching
from gpusonde.cli.main import main


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUSONDE_OFFERS", str(tmp_path / "data" / "offers.csv"))
    return tmp_path / "data" / "offers.csv"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_a_downloaded_list_is_compared_written_and_listed(
    tmp_path: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.csv").write_text(aws_file())
    arguments = ("prices", "aws", "--from", str(tmp_path / "index.csv"))
    dry = run(capsys, *arguments, "--dry-run")
    assert not dry["written"]
    assert not own.exists()
    report = run(capsys, *arguments)
    assert {**report, "written": False} == dry
    assert (report["provider"], report["regions"], report["price_date"]) == ("aws", ["us-east-1"], "2026-11-20")
    changes = {change["instance_type"]: change for change in report["changes"]}
    assert changes["p5.48xlarge"]["change"] == pytest.approx(-0.1)
    assert changes["g5.xlarge"]["usd_per_hour"] is None
    offers = run(capsys, "offers", "--provider", "aws", "--region", "us-east-1")["offers"]
    assert {offer["instance_type"] for offer in offers} == {"g4dn.xlarge", "p5.48xlarge", "g5g.16xlarge"}
    assert {offer["price_date"] for offer in offers} == {"2026-11-20"}
    again = run(capsys, *arguments)
    assert (again["changes"], again["unchanged_count"]) == ([], again["offer_count"])


def test_files_may_begin_with_the_mark_that_spreadsheets_write(
    tmp_path: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.csv").write_text(aws_file(), encoding="utf-8-sig")
    report = run(capsys, "prices", "aws", "--from", str(tmp_path / "index.csv"))
    own.write_text(own.read_text(), encoding="utf-8-sig")
    assert len(run(capsys, "offers", "--provider", "aws", "--region", "us-east-1")["offers"]) == report["offer_count"]


def test_several_files_and_pages_are_read_together(
    tmp_path: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "east.csv").write_text(aws_file())
    (tmp_path / "west.csv").write_text(aws_file((aws_row("g4dn.xlarge", "0.6", GPU="1", Region_Code="us-west-1"),)))
    report = run(capsys, "prices", "aws", "--from", str(tmp_path / "east.csv"), str(tmp_path / "west.csv"))
    assert report["regions"] == ["us-east-1", "us-west-1"]
    page = tmp_path / "page.json"
    page.write_text(azure_page())
    os.utime(page, (1_789_992_000, 1_789_992_000))
    report = run(capsys, "prices", "Azure", "--from", str(page))
    assert report["price_date"] == "2026-09-21"
    assert {offer["provider"] for offer in run(capsys, "offers", "--gpu", "H100 NVL")["offers"]} == {"azure"}
    assert run(capsys, "offers", "--spot", "--gpu", "H100 NVL")["offers"][0]["usd_per_hour"] == 1.42


def test_what_people_see(tmp_path: Path, own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "index.csv").write_text(aws_file())
    assert main(["prices", "aws", "--from", str(tmp_path / "index.csv"), "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "-10.0 %" in shown.out
    assert "gone" in shown.out
    assert "3 prices of 2026-11-20" in shown.out
    assert "2 as before" in shown.out
    assert "nothing was written" in shown.out
    assert "g9z.xlarge" in shown.out + shown.err


def test_a_list_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, own: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.csv").write_text(aws_file())
    run(capsys, "prices", "aws", "--from", str(tmp_path / "index.csv"))
    before = own.read_bytes()
    (tmp_path / "cut.csv").write_text(aws_file()[:-100])
    assert main(["prices", "aws", "--from", str(tmp_path / "cut.csv")]) == 1
    assert "is the file cut off?" in capsys.readouterr().err
    assert main(["prices", "azure", "--from", str(tmp_path / "index.csv")]) == 1
    assert "is not JSON" in capsys.readouterr().err
    assert main(["prices", "aws", "--from", str(tmp_path / "none.csv")]) == 1
    monkeypatch.setattr(fetching, "_SILENCE_S", 1.0)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    assert main(["prices", "azure", "--region", "eastus,westus"]) == 1
    assert "is there a network" in capsys.readouterr().err
    assert own.read_bytes() == before
    assert [path.name for path in own.parent.iterdir()] == ["offers.csv"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gcp"], "gcp asks for an account's key before it gives its prices"),
        (["lambda"], "use aws or azure"),
        (["aws", "--region", "us-east-1", "--from", "x.csv"], "--region is for fetching"),
    ],
)
def test_wrong_usage_is_explained(
    own: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["prices", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_without_a_file_of_own_offers_one_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "aws"]) == 2
    assert "name a file with --out" in capsys.readouterr().err


def test_pages_without_the_last_one_are_refused_as_they_would_make_the_rest_gone(
    tmp_path: Path, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.json").write_text(azure_page(following="https://prices.azure.com/api/retail/prices?$skip=1000"))
    assert main(["prices", "azure", "--from", str(tmp_path / "1.json")]) == 1
    assert "NextPageLink" in capsys.readouterr().err
    assert not own.exists()
    (tmp_path / "2.json").write_text(azure_page())
    assert run(capsys, "prices", "azure", "--from", str(tmp_path / "1.json"), str(tmp_path / "2.json"))["written"]
