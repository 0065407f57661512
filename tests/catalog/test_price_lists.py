import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.price_lists import AZURE_ITEMS, aws_file, aws_row, azure_item, azure_page

from gpusonde.catalog import CatalogError, GpuCatalog
from gpusonde.catalog.price_lists import _AZURE_GPU_COUNTS, join_lists, read_aws, read_azure


def read_csv(text: str) -> dict[str, float]:
    listed = read_aws(text.splitlines(keepends=True), "list.csv")
    return {price.instance_type: price.usd_per_hour for price in listed.prices}


def test_the_offer_file_gives_linux_on_demand_prices_and_what_the_machine_has() -> None:
    listed = read_aws(aws_file().splitlines(keepends=True), "list.csv")
    assert (listed.provider, listed.price_date, listed.source) == ("aws", "2026-11-20", "aws_price_list")
    by_type = {price.instance_type: price for price in listed.prices}
    assert set(by_type) == {"g4dn.xlarge", "p5.48xlarge", "g9z.xlarge", "g4ad.xlarge", "g5g.16xlarge", "m5.large"}
    t4, h100, cpu = by_type["g4dn.xlarge"], by_type["p5.48xlarge"], by_type["m5.large"]
    assert (t4.region, t4.billing, t4.usd_per_hour, t4.gpu_count) == ("us-east-1", "on_demand", 0.526, 1)
    assert (t4.vcpu_count, t4.memory_gib, t4.network_gbit_per_s) == (4, 16, None)
    assert (h100.gpu_count, h100.memory_gib, h100.network_gbit_per_s) == (8, 2048, 3200)
    assert (cpu.has_gpus, cpu.gpu_count, t4.has_gpus) == (False, None, True)


def test_of_several_prices_the_lowest_stands() -> None:
    rows = (aws_row("g4dn.xlarge", "0.6", GPU="1"), aws_row("g4dn.xlarge", "0.5", GPU="1"))
    assert read_csv(aws_file(rows)) == {"g4dn.xlarge": 0.5}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no offer file of AmazonEC2"),
        ("<!DOCTYPE html>\n<title>Sign in</title>\n", "begins with '<!DOCTYPE html>'"),
        ('{"formatVersion": "v1.0",\n "offerCode": "AmazonEC2"}\n', "is no offer file of AmazonEC2 as CSV"),
        (aws_file().replace('"AmazonEC2"', '"AmazonS3"', 1), "which is no dated list of AmazonEC2"),
        (aws_file(published="soon"), "which is no dated list of AmazonEC2"),
        (aws_file().replace('"PricePerUnit"', '"Price"', 1), "lacks the column 'priceperunit'"),
        (aws_file()[:-300], "is the file cut off?"),
        (aws_file().replace('"0.5260000000"', '"free"'), "g4dn.xlarge: the price 'free' is no amount of money"),
        (aws_file().replace('"0.5260000000"', '"-1"'), "the price '-1' is no amount"),
        (aws_file().replace('"0.5260000000"', '"inf"'), "the price 'inf' is no amount"),
    ],
)
def test_what_is_no_offer_file_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(CatalogError, match=r"list\.csv") as caught:
        read_csv(text)
    assert complaint in str(caught.value)


def test_pages_of_azure_give_linux_prices_on_demand_and_spot() -> None:
    listed = read_azure([json.loads(azure_page())], "2026-11-23", "page")
    assert (listed.provider, listed.price_date, listed.source) == ("azure", "2026-11-23", "azure_retail_prices")
    assert [(p.instance_type, p.billing, p.usd_per_hour, p.gpu_count) for p in listed.prices] == [
        ("Standard_NC24ads_A100_v4", "on_demand", 3.673, 1),
        ("Standard_NC40ads_H100_v5", "on_demand", 6.98, 1),
        ("Standard_NC40ads_H100_v5", "spot", 1.42, 1),
        ("Standard_NV6ads_A10_v5", "on_demand", 0.454, None),
        ("Standard_NV8as_v4", "on_demand", 0.466, None),
    ]


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ([], "it has no list 'Items'"),
        ({"Items": {}}, "it has no list 'Items'"),
        ({"error": {"code": "429"}}, "it has no list 'Items'"),
        ({"Items": ["x"]}, "holds 'x' where an item should be"),
        ({"Items": [azure_item("Standard_NC6s_v3", float("nan"))]}, "Standard_NC6s_v3: the price 'nan'"),
        ({"Items": [azure_item("Standard_NC6s_v3", 1.0, retailPrice=None)]}, "the price 'None'"),
    ],
)
def test_what_is_no_page_of_azure_is_refused(page: object, complaint: str) -> None:
    with pytest.raises(CatalogError) as caught:
        read_azure([page], "2026-11-23", "page")
    assert complaint in str(caught.value)


def test_every_size_of_azure_with_a_count_is_of_a_known_gpu(gpus: GpuCatalog) -> None:
    for size in _AZURE_GPU_COUNTS:
        assert gpus.resolve(size).note == "", size


def test_lists_of_several_regions_are_joined() -> None:
    east = read_aws(aws_file().splitlines(keepends=True), "east")
    west = read_aws(
        aws_file(
            (aws_row("g4dn.xlarge", "0.6", GPU="1", Region_Code="us-west-1"),), published="2026-11-21T00:00:00Z"
        ).splitlines(keepends=True),
        "west",
    )
    joined = join_lists([east, west])
    assert joined.price_date == "2026-11-21"
    assert {price.region for price in joined.prices} == {"us-east-1", "us-west-1"}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_list_is_read_or_refused(data: st.DataObject) -> None:
    text = aws_file()
    at = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(at, min(at + 50, len(text))))
    damaged = text[:at] + data.draw(st.text(max_size=20)) + text[end:]
    try:
        read_csv(damaged)
    except CatalogError as error:
        assert len(str(error)) < 2000  # noqa: PT017


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=8), st.lists))
def test_any_value_in_an_item_is_read_or_refused(value: object) -> None:
    for key in AZURE_ITEMS[0]:
        try:
            read_azure([{"Items": [{**AZURE_ITEMS[0], key: value}]}], "2026-11-23", "page")
        except CatalogError as error:
            assert len(str(error)) < 2000  # noqa: PT017
