"""``gpusonde prices``: prices that clouds publish into the file of your own offers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, names
from gpusonde.errors import CatalogError, UsageError
from gpusonde.formatting import count, percent

if TYPE_CHECKING:
    from gpusonde.catalog.price_lists import PriceList
    from gpusonde.catalog.refreshing import Refreshed

_REGIONS = {"aws": "us-east-1", "azure": "eastus"}
_KEYS_NEEDED = "asks for an account's key before it gives its prices, and gpusonde keeps none"
_LARGEST_PAGE_BYTES = 64 << 20


class PriceChangePayload(TypedDict):
    """One machine whose price is new, different or gone."""

    region: str
    instance_type: str
    billing: Annotated[str, JsonKey("`on_demand` or `spot`")]
    gpu_model: str
    gpu_count: int
    before_usd_per_hour: Annotated[float | None, JsonKey("null for a new machine")]
    usd_per_hour: Annotated[float | None, JsonKey("null for one that is gone")]
    change: Annotated[float | None, JsonKey("ratio - 1")]


class UnenteredMachinesPayload(TypedDict):
    """Machines with GPUs that are not entered."""

    reason: str
    instance_types: list[str]


class PricesPayload(TypedDict):
    """What ``gpusonde prices`` prints."""

    provider: str
    regions: list[str]
    price_date: Annotated[str, JsonKey("of the latest list")]
    file: Annotated[str, JsonKey("of your own offers")]
    written: Annotated[bool, JsonKey("false with `--dry-run`")]
    offer_count: int
    unchanged_count: int
    changes: list[PriceChangePayload]
    left_out: list[UnenteredMachinesPayload]


def add_prices_options(parser: Parser) -> None:
    """Declare ``gpusonde prices``."""
    parser.description = (
        "Fetch what a cloud publishes about the prices of its machines with NVIDIA GPUs, say what has changed, and "
        "write it into the file of your own offers, which 'gpusonde offers' and plans read beside the shipped ones "
        "(docs/catalog.md). The list of an AWS region has some 300 MB, which are read and not kept; Azure's has some "
        "pages, with spot prices."
    )
    parser.add_argument("provider", metavar="PROVIDER", help="aws or azure; others publish no list without a key")
    parser.add_argument(
        "--region", type=names, metavar="A,B", help="regions to fetch (default: us-east-1 of AWS, eastus of Azure)"
    )
    parser.add_argument(
        "--from",
        type=Path,
        nargs="+",
        dest="files",
        metavar="FILE",
        help="read these instead: index.csv of AWS regions, or pages of Azure as JSON",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="file of your own offers (default: GPUSONDE_OFFERS, else ~/.local/share/gpusonde/offers.csv)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would change and write nothing")


def run_prices(args: argparse.Namespace) -> int:
    """Fetch, compare, write."""
    from gpusonde.catalog import load_gpus, load_offers, own_offers_file
    from gpusonde.catalog.refreshing import refresh
    from gpusonde.service.durable_files import write_durably

    provider = args.provider.casefold()
    if provider not in _REGIONS:
        raise UsageError(f"{args.provider} {_KEYS_NEEDED}; use aws or azure, or enter prices by hand (docs/catalog.md)")
    if args.files and args.region:
        raise UsageError("--region is for fetching: files say their regions themselves")
    file = args.out or own_offers_file()
    if file is None:
        raise UsageError("GPUSONDE_OFFERS is empty, so that no own offers are read: name a file with --out")
    output = Output(as_json=args.json)
    gpus = load_gpus()
    listed = _read(provider, args.files) if args.files else _fetch(provider, args.region or [_REGIONS[provider]])
    refreshed = refresh(listed, load_offers(gpus=gpus, own=file), gpus, file)
    if not args.dry_run:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, refreshed.content.encode())
    payload: PricesPayload = {
        "provider": provider,
        "regions": sorted({price.region for price in listed.prices}),
        "price_date": listed.price_date,
        "file": str(file),
        "written": not args.dry_run,
        "offer_count": refreshed.offer_count,
        "unchanged_count": refreshed.unchanged_count,
        "changes": [
            {
                "region": change.region,
                "instance_type": change.instance_type,
                "billing": change.billing,
                "gpu_model": change.gpu_model,
                "gpu_count": change.gpu_count,
                "before_usd_per_hour": change.before_usd_per_hour,
                "usd_per_hour": change.usd_per_hour,
                "change": change.change,
            }
            for change in refreshed.changes
        ],
        "left_out": [{"reason": reason, "instance_types": list(types)} for reason, types in refreshed.left_out.items()],
    }
    output.result(payload, lambda screen: _render(screen, refreshed, payload))
    return 0


def _fetch(provider: str, regions: list[str]) -> PriceList:
    from gpusonde.catalog.fetching import fetch_aws, fetch_azure
    from gpusonde.catalog.price_lists import join_lists

    return join_lists([(fetch_aws if provider == "aws" else fetch_azure)(region) for region in regions])


def _read(provider: str, files: list[Path]) -> PriceList:
    from gpusonde.catalog.price_lists import join_lists, read_aws, read_azure

    if provider == "azure":
        lists, is_whole = [], False
        for file in files:
            page = _page(file)
            lists.append(read_azure([page], _day_of(file), str(file)))
            is_whole |= not (isinstance(page, Mapping) and page.get("NextPageLink"))
        if not is_whole:
            raise CatalogError(f"{files[-1]}: goes on at its NextPageLink; name the last page, too, and all between")
    else:
        lists = [read_aws(_lines(file), str(file)) for file in files]
    return join_lists(lists)


def _lines(file: Path) -> Iterator[str]:
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        yield from lines


def _page(file: Path) -> object:
    if file.stat().st_size > _LARGEST_PAGE_BYTES:
        raise CatalogError(f"{file}: is larger than {_LARGEST_PAGE_BYTES:,} bytes, which no page of Azure is")
    try:
        page: object = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"{file}: is not JSON: {error}") from error
    return page


def _day_of(file: Path) -> str:
    """Return the day on which a file was downloaded: Azure's pages do not say when they were asked for."""
    return date.fromtimestamp(file.stat().st_mtime).isoformat()


def _render(screen: Screen, refreshed: Refreshed, payload: PricesPayload) -> None:
    for left_out in payload["left_out"]:
        types = left_out["instance_types"]
        screen.note(f"left out, {left_out['reason']}: {', '.join(types[:5])}{' ...' if len(types) > 5 else ''}")
    if refreshed.changes:
        screen.table(
            ("instance", "region", "GPU", "GPUs", "billing", "$ per hour before", "now", "change"),
            [
                (
                    change.instance_type,
                    change.region,
                    change.gpu_model,
                    str(change.gpu_count),
                    change.billing.replace("_", " "),
                    "" if change.before_usd_per_hour is None else f"{change.before_usd_per_hour:,.3f}",
                    "" if change.usd_per_hour is None else f"{change.usd_per_hour:,.3f}",
                    _in_words(change.before_usd_per_hour, change.change),
                )
                for change in refreshed.changes
            ],
            numeric=("GPUs", "$ per hour before", "now"),
            optional=("billing", "region"),
        )
        screen.line()
    screen.line(
        f"{count(payload['offer_count'], 'price')} of {payload['price_date']} in {', '.join(payload['regions'])}:"
        f" {payload['unchanged_count']} as before, {len(refreshed.changes)} changed"
    )
    screen.line(f"written: {payload['file']}" if payload["written"] else "nothing was written")


def _in_words(before: float | None, change: float | None) -> str:
    if before is None:
        return "new"
    return "gone" if change is None else f"{percent(change, 1, sign='+')}"
