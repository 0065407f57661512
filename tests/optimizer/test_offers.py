"""Offers from the catalogue and from tables of spot prices: what is missing is said, never guessed."""

from datetime import date, datetime, timedelta, timezone

import pytest

from gpusonde.catalog import CatalogError, UnknownGpuError, load_offers
from gpusonde.errors import ProblemError, TableError
from gpusonde.optimizer.offers import BatchLimits, OfferFilter, Quota, Terms, listed_offers, region_of
from gpusonde.optimizer.problem import Billing, Problem
from gpusonde.optimizer.spot_offers import ask_spot_rows, read_spot_rows, spot_offers

CATALOG = load_offers()
V100, T4 = "V100-SXM2-16GB", "T4"
TERMS = Terms(quotas=[Quota(machines=8)], batches={V100: BatchLimits(8, 128), T4: BatchLimits(4, 64)})
NOW = datetime(2026, 11, 21, 15, 0, tzinfo=timezone.utc)
HEADER = "provider,region,zone,instance_type,time,usd_per_hour,available_machines,preemptions_per_hour\n"


def names(selection):
    return [offer.name for offer in selection.offers]


def reason(selection, name):
    return next(left.reason for left in selection.left_out if left.offer == name)


def spot_table(folder, *lines, header=HEADER):
    path = folder / "spot.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return path


def test_an_offer_of_the_catalogue_keeps_price_network_and_gpus():
    found = listed_offers(CATALOG, TERMS, OfferFilter(providers=["aws"], instance_types=["g4dn.12xlarge"]))
    (offer,) = found.offers
    listed = next(each for each in CATALOG.all if each.instance_type == "g4dn.12xlarge")
    assert (offer.device, offer.devices, offer.quota) == (T4, 4, 8)
    assert offer.usd_per_hour == listed.usd_per_hour
    assert offer.network_bytes_per_second == 50e9 / 8
    assert (offer.smallest_batch, offer.largest_batch) == (4, 64)
    assert offer.billing is Billing.ON_DEMAND
    assert listed.price_date in found.described[offer.name]


def test_the_offers_make_a_problem():
    found = listed_offers(CATALOG, TERMS, OfferFilter(providers=["aws"], regions=["us-east-1"]))
    assert Problem(global_batch=1024, iterations=100, offers=found.offers).offers == found.offers
    assert len(found.offers) > 4


def test_a_machine_without_batch_limits_is_left_out_and_says_so():
    found = listed_offers(CATALOG, TERMS, OfferFilter(providers=["aws"]))
    assert {offer.device for offer in found.offers} == {T4, V100}
    assert "no batch limits for A10G" in reason(found, "aws/us-east-1/g5.xlarge")
    assert found.reasons()


def test_a_machine_without_quota_is_left_out_and_says_so():
    terms = Terms([Quota(machines=2, instance_type="g4dn.xlarge")], TERMS.batches)
    found = listed_offers(CATALOG, terms, OfferFilter(providers=["aws"]))
    assert names(found) == ["aws/us-east-1/g4dn.xlarge"]
    assert "no quota" in reason(found, "aws/us-east-1/g4dn.2xlarge")


def test_every_quota_that_fits_limits_and_gpus_are_counted_in_whole_machines():
    quotas = [Quota(machines=8), Quota(gpus=10, gpu=T4), Quota(machines=50, provider="aws")]
    found = listed_offers(CATALOG, Terms(quotas, TERMS.batches), OfferFilter(providers=["aws"], gpus=["T4"]))
    by_type = {offer.name.rpartition("/")[2]: offer.quota for offer in found.offers}
    assert by_type["g4dn.12xlarge"] == 2  # 4 GPUs each
    assert by_type["g4dn.xlarge"] == 8
    assert "g4dn.metal" in by_type


def test_a_quota_of_less_than_a_machine_leaves_none():
    terms = Terms([Quota(gpus=3)], TERMS.batches)
    found = listed_offers(CATALOG, terms, OfferFilter(instance_types=["g4dn.12xlarge"]))
    assert found.offers == ()
    assert "0" in found.left_out[0].reason


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-1a", "us-east-1"), ("us-central1-a", "us-central1"), ("eu-north1", "eu-north1"), ("FIN-02", "FIN-02")],
)
def test_a_zone_belongs_to_its_region(zone, region):
    assert region_of(zone) == region


def test_of_an_unknown_network_one_machine_is_taken_without_a_rate_or_a_fabric_from_the_user():
    chosen = OfferFilter(gpus=["V100"], billing="spot", instance_types=["p3.8xlarge"])
    spot = {"preemptions_per_hour": {"*": 0.1}}
    alone = listed_offers(CATALOG, Terms(TERMS.quotas, TERMS.batches, **spot), chosen).offers[0]
    assert (alone.network_bytes_per_second, alone.quota) == (None, 1)
    rate = Terms(TERMS.quotas, TERMS.batches, network_bytes_per_second={"p3.8xlarge": 1.25e9}, **spot)
    assert listed_offers(CATALOG, rate, chosen).offers[0].network_bytes_per_second == 1.25e9
    named = Terms(TERMS.quotas, TERMS.batches, fabrics={"p3.8xlarge": "ours"}, **spot)
    assert listed_offers(CATALOG, named, chosen).offers[0].fabric == "ours"


def test_a_spot_price_of_the_catalogue_needs_a_preemption_rate():
    terms = Terms(TERMS.quotas, TERMS.batches, network_bytes_per_second={"p3.8xlarge": 1.25e9})
    chosen = OfferFilter(billing="spot", instance_types=["p3.8xlarge"])
    assert "preemption rate unknown" in listed_offers(CATALOG, terms, chosen).left_out[0].reason


def test_old_prices_are_left_out_on_request():
    since = OfferFilter(providers=["aws"], gpus=["T4"], priced_since=date(2026, 8, 1))
    found = listed_offers(CATALOG, TERMS, since)
    assert found.offers == ()
    assert all("older than 2026-08-01" in left.reason for left in found.left_out)


def test_unknown_providers_and_gpus_are_refused():
    with pytest.raises(CatalogError):
        listed_offers(CATALOG, TERMS, OfferFilter(providers=["amazon"]))
    with pytest.raises(UnknownGpuError):
        listed_offers(CATALOG, TERMS, OfferFilter(gpus=["V1000"]))


def test_the_newest_spot_row_of_a_zone_counts_and_none_of_the_future(tmp_path):
    table = spot_table(
        tmp_path,
        "aws,us-east-1,us-east-1a,g4dn.12xlarge,2026-11-21T12:00:00Z,1.50,,0.2",
        "aws,us-east-1,us-east-1a,g4dn.12xlarge,2026-11-21T14:00:00+00:00,1.20,3,0.2",
        "aws,us-east-1,us-east-1a,g4dn.12xlarge,2026-11-21T16:00:00Z,0.10,,0.2",
        "aws,us-east-1,us-east-1b,g4dn.12xlarge,2026-11-21T13:00,1.40,,0.1",
    )
    found = spot_offers(CATALOG, read_spot_rows(table), TERMS, NOW)
    assert names(found) == ["aws/us-east-1a/g4dn.12xlarge/spot", "aws/us-east-1b/g4dn.12xlarge/spot"]
    first, second = found.offers
    assert (first.usd_per_hour, first.quota, first.preemptions_per_hour, first.zone) == (1.2, 3, 0.2, "us-east-1a")
    assert (second.usd_per_hour, second.quota, second.devices) == (1.4, 8, 4)
    assert first.billing is Billing.SPOT
    assert "2026-11-21 14:00 UTC" in found.described[first.name]
    (future,) = found.left_out
    assert future.offer == first.name
    assert future.reason.startswith("its time is 2026-11-21 16:00 UTC, still to come")
    assert future.reason.endswith("until then its price of 2026-11-21 14:00 UTC counts")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("aws,us-east-1,,g4dn.12xlarge,2026-11-19T12:00:00Z,1.5,,0.1", "too old"),
        ("aws,us-east-1,,g4dn.12xlarge,2026-11-21T12:00:00Z,1.5,,", "preemption rate unknown"),
        ("aws,us-east-1,,g4dn.12xlarge,2026-11-21T12:00:00Z,1.5,0,0.1", "none can be rented"),
        ("aws,us-east-1,,g99.large,2026-11-21T12:00:00Z,1.5,,0.1", "does not know this instance type"),
    ],
)
def test_a_spot_row_that_is_no_offer_says_why(row, why, tmp_path):
    found = spot_offers(CATALOG, read_spot_rows(spot_table(tmp_path, row)), TERMS, NOW)
    assert found.offers == ()
    assert why in found.left_out[0].reason


def test_spot_rows_are_filtered_by_provider_region_gpu_and_age(tmp_path):
    rows = [
        *read_spot_rows(
            spot_table(
                tmp_path,
                "aws,us-east-1,us-east-1a,g4dn.12xlarge,2026-11-20T00:00:00Z,1.50,,0.2",
                "aws,us-west-2,us-west-2a,p3.8xlarge,2026-11-21T14:00:00Z,3.68,,0.2",
            )
        )
    ]
    terms = Terms(TERMS.quotas, TERMS.batches, fabrics={"p3.8xlarge": "p3"})

    def chosen(**conditions):
        return names(spot_offers(CATALOG, rows, terms, NOW, OfferFilter(**conditions), longest_age=timedelta(days=7)))

    west, east = "aws/us-west-2a/p3.8xlarge/spot", "aws/us-east-1a/g4dn.12xlarge/spot"
    assert chosen() == [east, west]
    assert chosen(regions=["us-west-2"]) == [west]
    assert chosen(regions=["us-east-1a"]) == [east]
    assert chosen(gpus=["V100"]) == [west]
    assert chosen(providers=["gcp"]) == []
    assert chosen(instance_types=["g4dn.12xlarge"]) == [east]
    assert chosen(priced_since=date(2026, 11, 21)) == [west]


def test_offers_on_demand_and_spot_offers_stand_in_one_selection(tmp_path):
    row = "aws,us-east-1,,g4dn.12xlarge,2026-11-21T12:00:00Z,1.5,,0.1"
    spot = spot_offers(CATALOG, read_spot_rows(spot_table(tmp_path, row)), TERMS, NOW)
    both = listed_offers(CATALOG, TERMS, OfferFilter(instance_types=["g4dn.12xlarge"])) + spot
    assert names(both) == ["aws/us-east-1/g4dn.12xlarge", "aws/us-east-1/g4dn.12xlarge/spot"]
    assert Problem(global_batch=64, iterations=1, offers=both.offers)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("aws,us-east-1,,p3.8xlarge,yesterday,1.5,,", "2: time 'yesterday' is not ISO 8601"),
        ("aws,us-east-1,,p3.8xlarge,2026-11-21,0,,", "usd_per_hour must be above zero"),
        ("aws,us-east-1,,p3.8xlarge,2026-11-21,,,", "usd_per_hour must be above zero"),
        ("aws,us-east-1,,p3.8xlarge,2026-11-21,-1,,", "usd_per_hour must be a finite number"),
        ("aws,us-east-1,,p3.8xlarge,2026-11-21,nan,,", "usd_per_hour must be a finite number"),
        ("aws,us-east-1,,p3.8xlarge,2026-11-21,1,1.5,", "available_machines must be a whole number"),
        ("aws,us-east-1,,p3.8xlarge,2026-11-21,1", "another number of fields"),
        ("aws,us-east-1,,p3.8xlarge,2026-11-21,1,,,extra", "another number of fields"),
        (",us-east-1,,p3.8xlarge,2026-11-21,1,,", "provider must be a text"),
    ],
)
def test_a_bad_line_of_a_spot_table_is_refused_by_its_number(line, why, tmp_path):
    with pytest.raises(TableError, match=r"spot\.csv:2") as refused:
        list(read_spot_rows(spot_table(tmp_path, line)))
    assert why in str(refused.value)


def test_a_spot_table_that_a_spreadsheet_saved_is_read(tmp_path):
    """Spreadsheets save UTF-8 with a byte order mark before the first column's name."""
    plain = spot_table(tmp_path, "aws,us-east-1,,p3.8xlarge,2026-11-21,1,,").read_bytes()
    saved = tmp_path / "saved.csv"
    saved.write_bytes(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"))
    assert [row.usd_per_hour for row in read_spot_rows(saved)] == [1.0]
    assert [row.usd_per_hour for row in ask_spot_rows(["cat", "saved.csv"], tmp_path)] == [1.0]


def test_a_spot_table_needs_its_columns_and_to_be_there(tmp_path):
    with pytest.raises(TableError, match="lacks column 'usd_per_hour'"):
        list(read_spot_rows(spot_table(tmp_path, header="provider,region,instance_type,time\n")))
    with pytest.raises(TableError, match="cannot be read"):
        list(read_spot_rows(tmp_path / "none.csv"))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="not UTF-8"):
        list(read_spot_rows(tmp_path / "bytes.csv"))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (Quota, "either machines or gpus"),
        (lambda: Quota(machines=1, gpus=1), "either machines or gpus"),
        (lambda: Quota(machines=-1), "0 or more"),
        (lambda: Quota(machines=1, billing="reserved"), "on_demand or spot"),
        (lambda: BatchLimits(0, 4), "1 or more"),
        (lambda: BatchLimits(8, 4), "below the smallest"),
        (lambda: Terms([], {}, network_bytes_per_second={"p3": 0.0}), "above zero"),
        (lambda: Terms([], {}, preemptions_per_hour={"p3": -1.0}), "not negative"),
    ],
)
def test_terms_that_make_no_sense_are_refused(make, why):
    with pytest.raises(ProblemError, match=why):
        make()
