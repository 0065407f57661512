from datetime import date
from pathlib import Path

import pytest

from gpusonde.catalog import (
    CatalogError,
    GpuCatalog,
    OfferCatalog,
    UnknownGpuError,
    load_offers,
)
from gpusonde.catalog.offers import latest_day

HEADER = (
    "provider,region,instance_type,gpu,gpu_count,whole_gpu,vcpu_count,memory_gib,network_gbit_per_s,usd_per_hour,"
    "billing,price_date,source,note\n"
)
LINE = "c,r1,i1,T4,1,yes,4,16,5,0.5,on_demand,2026-01-31,s,\n"
SOURCES = '[sources.s]\ntitle = "Price list"\nurl = ""\nretrieved = "2026-02-01"\n'


def load(tmp_path: Path, gpus: GpuCatalog, text: str) -> OfferCatalog:
    (tmp_path / "sources.toml").write_text(SOURCES, encoding="utf-8")
    (tmp_path / "offers.csv").write_text(text, encoding="utf-8")
    return load_offers(tmp_path / "offers.csv", sources=tmp_path / "sources.toml", gpus=gpus)


def test_a_line_becomes_an_offer_in_base_units(tmp_path: Path, gpus: GpuCatalog) -> None:
    (offer,) = load(tmp_path, gpus, "# comment\n\n" + HEADER + LINE).all
    assert (offer.vcpu_count, offer.memory_bytes, offer.network_bits_per_second) == (4, 16 * 2**30, 5e9)
    assert (offer.usd_per_hour, offer.billing, offer.price_date) == (0.5, "on_demand", "2026-01-31")
    assert offer.source.title == "Price list"
    assert offer.gpu_known
    assert offer.describe() == "c r1 i1 (1x T4): $0.500 per hour on demand, price of 2026-01-31"


def test_empty_host_figures_are_none_not_zero(tmp_path: Path, gpus: GpuCatalog) -> None:
    (offer,) = load(tmp_path, gpus, HEADER + LINE.replace("4,16,5", ",,")).all
    assert (offer.vcpu_count, offer.memory_bytes, offer.network_bits_per_second) == (None, None, None)


def test_only_the_newest_price_of_an_offer_is_shown_unless_older_ones_are_asked_for(
    tmp_path: Path, gpus: GpuCatalog
) -> None:
    text = (
        HEADER
        + LINE
        + LINE.replace("0.5", "0.7").replace("2026-01-31", "2025-12")
        + LINE.replace("0.5", "0.4").replace("2026-01-31", "")
    )
    catalog = load(tmp_path, gpus, text)
    assert [offer.usd_per_hour for offer in catalog.offers()] == [0.5]
    assert [offer.price_date for offer in catalog.offers(newest_only=False)] == ["2026-01-31", "2025-12", ""]
    assert catalog.offers(newest_only=False)[-1].describe().endswith("undated price")


def test_a_region_known_only_from_years_ago_is_history(tmp_path: Path, gpus: GpuCatalog) -> None:
    old = LINE.replace("r1", "r2").replace("2026-01-31", "2020-03")
    recent = LINE.replace("r1", "r3").replace("2026-01-31", "2025-06")
    catalog = load(tmp_path, gpus, HEADER + LINE + old + recent)
    assert {offer.region for offer in catalog.offers()} == {"r1", "r3"}
    assert {offer.region for offer in catalog.offers(newest_only=False)} == {"r1", "r2", "r3"}


def test_one_offer_from_two_sources_on_one_date_counts_once(tmp_path: Path, gpus: GpuCatalog) -> None:
    catalog = load(tmp_path, gpus, HEADER + LINE + LINE)
    assert len(catalog.offers()) == 1
    assert len(catalog) == 2


def test_spot_fractional_and_unknown_gpus_are_shown_on_request_only(offers: OfferCatalog) -> None:
    default = offers.offers()
    assert default
    assert all(
        offer.billing == "on_demand" and offer.whole_gpu and offer.gpu_known and offer.price_date >= "2025"
        for offer in default
    )
    assert {offer.billing for offer in offers.offers(billing=None)} == {"on_demand", "spot"}
    fractions = set(offers.offers(whole_only=False)) - set(default)
    assert {offer.instance_type for offer in fractions} == {"g6f.large", "g6f.xlarge", "g6f.2xlarge", "g6f.4xlarge"}
    unknown = set(offers.offers(known_only=False)) - set(default)
    assert {offer.gpu_model for offer in unknown} == {"AMD Radeon Pro V520"}


def test_offers_are_filtered_by_any_spelling_of_a_gpu_by_provider_and_by_region(offers: OfferCatalog) -> None:
    assert {offer.instance_type for offer in offers.offers("Tesla V100", provider="aws")} == {
        "p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p3dn.24xlarge",
    }  # fmt: skip
    assert {offer.provider for offer in offers.offers("A6000", region="eu-north1")} == {"lambda"}
    assert {offer.region for offer in offers.offers(provider="gcp", region="us-central1")} == {"us-central1-a"}
    assert {offer.region for offer in offers.offers(billing="spot", region="us-west-2", newest_only=False)} >= {
        "us-west-2a", "us-east-1/us-west-2",
    }  # fmt: skip
    assert not offers.offers(provider="aws", region="us-east")
    assert offers.offers("B300", known_only=False)


def test_a_name_of_several_gpus_finds_the_offers_of_each(tmp_path: Path, gpus: GpuCatalog) -> None:
    forms = ["A100-SXM4-40GB", "A100-SXM4-80GB", "A100-PCIe-40GB", "A100-PCIe-80GB"]
    catalog = load(tmp_path, gpus, HEADER + "".join(LINE.replace(",T4,", f",{form},") for form in [*forms, "A10G"]))
    assert {offer.gpu_model for offer in catalog.offers("A100")} == set(forms)
    assert {offer.gpu_model for offer in catalog.offers("A100 PCIe")} == set(forms[2:])
    assert {offer.gpu_model for offer in catalog.offers(forms[3])} == {forms[3]}


def test_wrong_conditions_are_refused(offers: OfferCatalog) -> None:
    with pytest.raises(UnknownGpuError):
        offers.offers("T5")
    with pytest.raises(CatalogError, match="known: aws, gcp, lambda, nebius, runpod, verda"):
        offers.offers(provider="azure")
    with pytest.raises(ValueError, match="use on_demand, spot or None"):
        offers.offers(billing="reserved")


def test_every_offer_has_a_source_and_every_instance_type_resolves_to_its_gpu(
    offers: OfferCatalog, gpus: GpuCatalog
) -> None:
    for offer in offers.all:
        assert offer.source.retrieved
        if offer.gpu_known and offer.whole_gpu and "+" not in offer.instance_type:
            resolution = gpus.resolve(offer.instance_type)
            assert (resolution.spec.name, resolution.note) == (offer.gpu_model, ""), offer.instance_type
    assert max(offer.price_date for offer in offers.all) == "2026-07-20"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("0.5", "free"), ":2: field 'usd_per_hour' is 'free', not a positive number"),
        (("0.5", "0"), "field 'usd_per_hour' is '0'"),
        (("0.5", "nan"), "field 'usd_per_hour' is 'nan'"),
        (("0.5", ""), "field 'gpu_count' or 'usd_per_hour' is empty"),
        (("T4,1,", "T4,1.5,"), "field 'gpu_count' is '1.5', not a positive whole number"),
        (("yes", "true"), "field 'whole_gpu' is 'true'"),
        (("on_demand", "ondemand"), "field 'billing' is 'ondemand'; use on_demand or spot"),
        (("2026-01-31", "2026-02-30"), "field 'price_date': "),
        (("2026-01-31", "2026-13"), "field 'price_date': '2026-13' has no such month"),
        (("2026-01-31", "31.1.2026"), "is not a date (YYYY, YYYY-MM or YYYY-MM-DD)"),
        ((",s,", ",t,"), "field 'source' is 't'; known: s"),
        (("T4", "V100"), "write one of V100-SXM2-16GB, V100-SXM2-32GB"),
        (("T4", ""), "field 'gpu' is empty"),
        (("on_demand,", ""), ":2: has 13 fields, the header 14"),
        (("c,", '"c,'), "unexpected end of data"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_by_line_and_field(
    tmp_path: Path, gpus: GpuCatalog, change: tuple[str, str], complaint: str
) -> None:
    assert change[0] in LINE
    with pytest.raises(CatalogError) as caught:
        load(tmp_path, gpus, HEADER + LINE.replace(*change, 1))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("before", ["", "# comment\n"])
def test_a_file_that_a_spreadsheet_saved_is_read(tmp_path: Path, gpus: GpuCatalog, before: str) -> None:
    """Spreadsheets save UTF-8 with a byte order mark before the first line."""
    (offer,) = load(tmp_path, gpus, "\ufeff" + before + HEADER + LINE).all
    assert offer.provider == "c"


def test_a_file_without_the_columns_is_refused(tmp_path: Path, gpus: GpuCatalog) -> None:
    with pytest.raises(CatalogError, match="lacks column 'region'"):
        load(tmp_path, gpus, "provider\naws\n")
    with pytest.raises(CatalogError, match="is empty"):
        load(tmp_path, gpus, "# nothing\n")
    with pytest.raises(CatalogError, match="cannot be read"):
        load_offers(tmp_path / "absent.csv", gpus=gpus)


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2026-07-20", date(2026, 7, 20)),
        ("2024-02", date(2024, 2, 29)),
        ("2026-12", date(2026, 12, 31)),
        ("2025", date(2025, 12, 31)),
        ("", date.min),
    ],
)
def test_a_partial_date_counts_as_its_last_day(text: str, day: date) -> None:
    assert latest_day(text) == day
