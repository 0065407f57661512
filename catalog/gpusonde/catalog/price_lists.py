"""``PriceList``: what a cloud publishes about the prices of its machines, read from its own files.

AWS: the offer file of a region, as CSV (https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-changes.html).
Azure: pages of the Retail Prices API (https://learn.microsoft.com/rest/api/cost-management/retail-prices/).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpusonde.catalog.offers import latest_day
from gpusonde.errors import CatalogError, shown

# The API names a size and not how many GPUs it has. NV6ads to NV18ads hold fractions and are left out by their name.
_AZURE_GPU_COUNTS = {
    "Standard_NC6s_v3": 1, "Standard_NC12s_v3": 2, "Standard_NC24s_v3": 4,
    "Standard_NC4as_T4_v3": 1, "Standard_NC8as_T4_v3": 1, "Standard_NC16as_T4_v3": 1, "Standard_NC64as_T4_v3": 4,
    "Standard_ND40rs_v2": 8, "Standard_ND96asr_v4": 8, "Standard_ND96amsr_A100_v4": 8,
    "Standard_NC24ads_A100_v4": 1, "Standard_NC48ads_A100_v4": 2, "Standard_NC96ads_A100_v4": 4,
    "Standard_ND96isr_H100_v5": 8, "Standard_NC40ads_H100_v5": 1, "Standard_NC80adis_H100_v5": 2,
    "Standard_ND96isr_H200_v5": 8, "Standard_NV36ads_A10_v5": 1, "Standard_NV72ads_A10_v5": 2,
    "Standard_ND128isr_NDR_GB200_v6": 4, "Standard_ND128isr_GB300_v6": 4,
}  # fmt: skip
_AWS_COLUMNS = (
    "termtype", "unit", "priceperunit", "currency", "location type", "instance type", "tenancy", "operating system",
    "pre installed s/w", "capacitystatus", "operation", "region code", "gpu", "vcpu", "memory", "network performance",
)  # fmt: skip
# Linux without licences on shared hardware, paid as it runs; other rows are reservations, Windows, dedicated hosts ...
_AWS_WANTED = {
    "termtype": "OnDemand", "unit": "Hrs", "currency": "USD", "location type": "AWS Region", "tenancy": "Shared",
    "operating system": "Linux", "pre installed s/w": "NA", "capacitystatus": "Used", "operation": "RunInstances",
}  # fmt: skip
_AWS_HEADER_WITHIN_ROWS = 20
# Numbers of few digits: what is read must be a number that an offer file may hold.
_COUNT = re.compile(r"[1-9][0-9]{0,4}")
_GIGABIT = re.compile(r"(?:([1-9][0-9]?)x )?([1-9][0-9]{0,5}(?:\.[0-9]{1,3})?) Gigabit")
_MEMORY = re.compile(r"([1-9][0-9]{0,2}(?:,?[0-9]{3})?(?:\.[0-9]{1,3})?) GiB")
REGION = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_WINDOWS = re.compile(r"\bWin(?:dows)?\b")


@dataclass(frozen=True)
class ListedPrice:
    """One machine at one price, as a cloud lists it.

    Attributes:
        region: As the cloud spells it.
        instance_type: The cloud's name of the machine.
        billing: ``on_demand`` or ``spot``.
        usd_per_hour: Of the whole machine, without tax.
        has_gpus: Whether the machine has GPUs at all, as far as the list tells.
        gpu_count: None where the list does not say.
        vcpu_count: None where the list does not say.
        memory_gib: None where the list does not say.
        network_gbit_per_s: Guaranteed rate; None where the list gives none, or only "up to".
    """

    region: str
    instance_type: str
    billing: str
    usd_per_hour: float
    has_gpus: bool = False
    gpu_count: int | None = None
    vcpu_count: int | None = None
    memory_gib: float | None = None
    network_gbit_per_s: float | None = None


@dataclass(frozen=True)
class PriceList:
    """The prices of one cloud in one or more regions.

    Attributes:
        provider: ``aws`` or ``azure``.
        source: Key of ``offer_sources.toml``.
        price_date: Day on which the list was published or read, ISO 8601.
        prices: One for each region, instance type and billing; of several, the lowest.
    """

    provider: str
    source: str
    price_date: str
    prices: tuple[ListedPrice, ...]


def join_lists(lists: Sequence[PriceList]) -> PriceList:
    """Return the prices of several lists of one cloud as one, dated like the latest.

    Raises:
        ValueError: There are none, or of several clouds.
    """
    (provider,) = {each.provider for each in lists}
    prices = _lowest(price for each in lists for price in each.prices)
    return PriceList(provider, lists[0].source, max(each.price_date for each in lists), prices)


def read_aws(lines: Iterable[str], where: str) -> PriceList:
    """Read the offer file of AmazonEC2, line by line: it has hundreds of megabytes.

    Args:
        lines: Of the CSV file, with their ends.
        where: Named in errors: file or address.

    Raises:
        CatalogError: It is none, is cut off, or a price cannot be read.
    """
    reader = csv.reader(lines, strict=True)
    try:
        published, columns = _aws_header(reader, where)
        wanted = [(columns[column], value) for column, value in _AWS_WANTED.items()]
        width = max(columns.values()) + 1
        prices = []
        for row in reader:
            if len(row) < width:
                raise CatalogError(f"{where}: row {reader.line_num} has {len(row)} fields; is the file cut off?")
            if all(row[index] == value for index, value in wanted):
                price = _aws_price({column: row[index] for column, index in columns.items()}, where)
                if price is not None:
                    prices.append(price)
    except csv.Error as error:
        raise CatalogError(f"{where}: line {reader.line_num}: {error}; is the file cut off?") from error
    return PriceList("aws", "aws_price_list", published, _lowest(prices))


def _aws_header(reader: Iterator[list[str]], where: str) -> tuple[str, dict[str, int]]:
    """Read what precedes the prices: name and value of facts about the file, then the names of the columns."""
    facts: dict[str, str] = {}
    begins = ""
    for number, row in enumerate(reader):
        begins = begins or ",".join(row)
        if number >= _AWS_HEADER_WITHIN_ROWS:
            break
        if row[:1] == ["SKU"]:
            columns = {name.casefold(): index for index, name in enumerate(row)}
            missing = [column for column in _AWS_COLUMNS if column not in columns]
            if missing:
                raise CatalogError(f"{where}: lacks the column {missing[0]!r}")
            published = facts.get("Publication Date", "")[:10]
            if facts.get("OfferCode") != "AmazonEC2" or not _is_day(published):
                raise CatalogError(f"{where}: says {facts}, which is no dated list of AmazonEC2")
            return published, {column: columns[column] for column in _AWS_COLUMNS}
        if len(row) > 1:
            facts[row[0]] = row[1][:100]
    raise CatalogError(
        f"{where}: is no offer file of AmazonEC2 as CSV (index.csv of a region); begins with {shown(begins)}"
    )


def _aws_price(row: Mapping[str, str], where: str) -> ListedPrice | None:
    usd_per_hour = _price(row["priceperunit"], f"{where}: {row['instance type']}")
    if usd_per_hour is None:
        return None
    gpus, vcpus = (int(row[column]) if _COUNT.fullmatch(row[column]) else None for column in ("gpu", "vcpu"))
    memory = _MEMORY.fullmatch(row["memory"])
    network = _GIGABIT.fullmatch(row["network performance"])
    return ListedPrice(
        region=_region(row["region code"], where),
        instance_type=row["instance type"],
        billing="on_demand",
        usd_per_hour=usd_per_hour,
        has_gpus=gpus is not None,
        gpu_count=gpus,
        vcpu_count=vcpus,
        memory_gib=float(memory[1].replace(",", "")) if memory else None,
        network_gbit_per_s=int(network[1] or 1) * float(network[2]) if network else None,
    )


def read_azure(pages: Iterable[object], price_date: str, where: str) -> PriceList:
    """Read pages of Azure's Retail Prices API.

    Args:
        pages: Parsed JSON documents, each with ``Items``.
        price_date: Day on which they were asked for, ISO 8601.
        where: Named in errors: file or address.

    Raises:
        CatalogError: A page is none, or a price cannot be read.
    """
    prices = []
    for page in pages:
        items = page.get("Items") if isinstance(page, Mapping) else None
        if not isinstance(items, list):
            raise CatalogError(f"{where}: is no page of Azure's retail prices: it has no list 'Items'")
        for item in items:
            if not isinstance(item, Mapping):
                raise CatalogError(f"{where}: holds {shown(str(item))} where an item should be")
            price = _azure_price(item, where)
            if price is not None:
                prices.append(price)
    return PriceList("azure", "azure_retail_prices", price_date, _lowest(prices))


def _azure_price(item: Mapping[str, Any], where: str) -> ListedPrice | None:
    texts = {
        key: str(item.get(key, "")) for key in ("armSkuName", "armRegionName", "productName", "skuName", "meterName")
    }
    wanted = {"type": "Consumption", "unitOfMeasure": "1 Hour", "currencyCode": "USD"}
    if any(item.get(key) != value for key, value in wanted.items()) or not texts["armSkuName"]:
        return None
    kind = f"{texts['skuName']} {texts['meterName']}"
    product = texts["productName"]
    if _WINDOWS.search(product) or "Cloud Services" in product or "CloudServices" in product or "Low Priority" in kind:
        return None
    usd_per_hour = _price(item.get("retailPrice"), f"{where}: {texts['armSkuName']}")
    if usd_per_hour is None:
        return None
    return ListedPrice(
        region=_region(texts["armRegionName"], where),
        instance_type=texts["armSkuName"],
        billing="spot" if "Spot" in kind else "on_demand",
        usd_per_hour=usd_per_hour,
        has_gpus=texts["armSkuName"].startswith("Standard_N"),
        gpu_count=_AZURE_GPU_COUNTS.get(texts["armSkuName"]),
    )


def _price(value: object, where: str) -> float | None:
    """Return a price, None for zero: what cannot be had by the hour is listed at nothing."""
    try:
        price = float(value) if isinstance(value, (str, int, float)) else math.nan
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise CatalogError(f"{where}: the price {shown(str(value))} is no amount of money")
    return price or None


def _region(text: str, where: str) -> str:
    if not REGION.fullmatch(text):
        raise CatalogError(f"{where}: {shown(text)} is no name of a region")
    return text


def _lowest(prices: Iterable[ListedPrice]) -> tuple[ListedPrice, ...]:
    lowest: dict[tuple[str, str, str], ListedPrice] = {}
    for price in prices:
        key = (price.region, price.instance_type, price.billing)
        if key not in lowest or price.usd_per_hour < lowest[key].usd_per_hour:
            lowest[key] = price
    return tuple(lowest[key] for key in sorted(lowest))


def _is_day(text: str) -> bool:
    try:
        return len(text) == len("2026-11-23") and bool(latest_day(text))
    except ValueError:
        return False
