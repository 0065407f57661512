import json
from pathlib import Path

import pytest
from support.price_lists import AWS_ROWS, aws_file, aws_row, azure_page

from gpusonde.catalog import CatalogError, GpuCatalog, OfferCatalog, load_offers, own_offers_file
from gpusonde.catalog.price_lists import PriceList, read_aws, read_azure
from gpusonde.catalog.refreshing import Refreshed, refresh


def aws(*rows: dict[str, str], published: str = "2026-11-20T00:00:00Z") -> PriceList:
    return read_aws(aws_file(rows or AWS_ROWS, published=published).splitlines(keepends=True), "list.csv")


def put(listed: PriceList, gpus: GpuCatalog, file: Path) -> Refreshed:
    refreshed = refresh(listed, load_offers(gpus=gpus, own=file), gpus, file)
    file.write_text(refreshed.content, encoding="utf-8")
    return refreshed


def test_a_list_replaces_the_shipped_prices_of_its_region_and_says_what_changed(
    tmp_path: Path, gpus: GpuCatalog, offers: OfferCatalog
) -> None:
    file = tmp_path / "offers.csv"
    refreshed = put(aws(*AWS_ROWS, aws_row("p6e-gb200.36xlarge", "90", GPU="4")), gpus, file)
    changes = {change.instance_type: change for change in refreshed.changes}
    assert (changes["p5.48xlarge"].before_usd_per_hour, changes["p5.48xlarge"].usd_per_hour) == (55.04, 49.536)
    assert changes["p5.48xlarge"].change == pytest.approx(-0.1)
    assert changes["p6e-gb200.36xlarge"].before_usd_per_hour is None
    assert changes["p6e-gb200.36xlarge"].change is None
    assert changes["g5.xlarge"].usd_per_hour is None
    assert "g4dn.xlarge" not in changes
    assert (refreshed.offer_count, refreshed.unchanged_count) == (4, 2)
    now = load_offers(gpus=gpus, own=file)
    here = {offer.instance_type: offer for offer in now.offers(provider="aws", region="us-east-1")}
    assert set(here) == {"g4dn.xlarge", "p5.48xlarge", "g5g.16xlarge", "p6e-gb200.36xlarge"}
    assert here["p6e-gb200.36xlarge"].gpu_model == "GB200"
    assert here["p6e-gb200.36xlarge"].usd_per_gpu_hour == 22.5
    assert here["p5.48xlarge"].price_date == here["p5.48xlarge"].source.retrieved == "2026-11-20"
    assert "AWS price list" in here["p5.48xlarge"].source.title
    # What the list leaves open is known from elsewhere; a count that was entered by hand is believed.
    assert here["g4dn.xlarge"].network_bits_per_second == 5e9
    assert (here["g5g.16xlarge"].gpu_count, here["g5g.16xlarge"].note) == (2, "2 GPUs; the list says 1")
    # Other regions, spot prices, fractions and GPUs without a data sheet are as shipped.
    assert {o for o in offers.all if o.billing == "spot"} == {o for o in now.all if o.billing == "spot"}
    assert {o.instance_type for o in now.offers(whole_only=False)} >= {"g6f.large"}
    assert {o.gpu_model for o in now.offers(known_only=False)} >= {"AMD Radeon Pro V520"}
    assert offers.offers(provider="nebius") == now.offers(provider="nebius")


def test_machines_that_are_not_entered_are_named_with_the_reason(tmp_path: Path, gpus: GpuCatalog) -> None:
    refreshed = put(aws(), gpus, tmp_path / "offers.csv")
    assert refreshed.left_out == {
        "AMD Radeon Pro V520, not NVIDIA: nothing measured": ("g4ad.xlarge",),
        "of a family that the catalogue does not know": ("g9z.xlarge",),
    }
    listed = read_azure([json.loads(azure_page())], "2026-11-23", "page")
    refreshed = put(listed, gpus, tmp_path / "offers.csv")
    assert refreshed.left_out == {
        "a fraction of an A10": ("Standard_NV6ads_A10_v5",),
        "of a family that the catalogue does not know": ("Standard_NV8as_v4",),
    }


def test_a_second_list_changes_its_own_lines_and_keeps_the_others(tmp_path: Path, gpus: GpuCatalog) -> None:
    file = tmp_path / "offers.csv"
    put(aws(), gpus, file)
    put(read_azure([json.loads(azure_page())], "2026-11-23", "page"), gpus, file)
    file.write_text(
        file.read_text() + "aws,eu-north1,g5.xlarge,A10G,1,yes,,,,1.07,on_demand,2026-11,skypilot_nebius,by hand\n"
    )
    again = put(aws(aws_row("g4dn.xlarge", "0.6312", GPU="1"), published="2026-11-22T00:00:00Z"), gpus, file)
    (change,) = (change for change in again.changes if change.usd_per_hour is not None)
    assert change.instance_type == "g4dn.xlarge"
    assert change.change == pytest.approx(0.2)
    assert {change.instance_type for change in again.changes if change.usd_per_hour is None} == {
        "p5.48xlarge", "g5g.16xlarge",
    }  # fmt: skip
    now = load_offers(gpus=gpus, own=file)
    assert [o.instance_type for o in now.offers(provider="aws", region="us-east-1")] == ["g4dn.xlarge"]
    assert len(now.offers(provider="azure")) == 2
    assert len(now.offers(provider="azure", billing="spot")) == 1
    assert [o.note for o in now.offers(provider="aws", region="eu-north1")] == ["by hand"]
    # Nothing has changed since, so nothing is changed.
    same = put(aws(aws_row("g4dn.xlarge", "0.6312", GPU="1"), published="2026-11-23T00:00:00Z"), gpus, file)
    assert (same.changes, same.unchanged_count) == ((), 1)


def test_a_list_without_gpus_changes_nothing(tmp_path: Path, gpus: GpuCatalog) -> None:
    file = tmp_path / "offers.csv"
    with pytest.raises(CatalogError, match="the list of aws holds no machine with GPUs of the catalogue"):
        put(aws(aws_row("m5.large", "0.096", GPU="NA")), gpus, file)
    assert not file.exists()


def test_a_damaged_file_of_own_offers_is_an_error_that_names_it(tmp_path: Path, gpus: GpuCatalog) -> None:
    file = tmp_path / "offers.csv"
    file.write_text("provider,region\n")
    with pytest.raises(CatalogError, match=r"offers\.csv:1: lacks column 'instance_type'"):
        load_offers(gpus=gpus, own=file)


def test_where_own_offers_are_read_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpus: GpuCatalog) -> None:
    assert own_offers_file() is None
    monkeypatch.setenv("GPUSONDE_OFFERS", str(tmp_path / "mine.csv"))
    assert own_offers_file() == tmp_path / "mine.csv"
    shipped = load_offers(gpus=gpus)
    put(aws(), gpus, tmp_path / "mine.csv")
    assert len(load_offers(gpus=gpus)) != len(shipped)
    monkeypatch.delenv("GPUSONDE_OFFERS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert own_offers_file() == tmp_path / "gpusonde" / "offers.csv"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert own_offers_file() == Path("/home/somebody/.local/share/gpusonde/offers.csv")
