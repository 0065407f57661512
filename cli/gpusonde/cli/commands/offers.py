"""``gpusonde offers``: machines that can be rented, with their prices."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.output import Output, Screen
from gpusonde.cli.parsing import Parser, Subparsers, add_command, names

if TYPE_CHECKING:
    from gpusonde.catalog import Offer


def add_offers_parser(subparsers: Subparsers, common: Parser) -> None:
    """Declare ``gpusonde offers``."""
    parser = add_command(
        subparsers,
        common,
        "offers",
        "list the machines that can be rented, with their prices",
        "List instance offers with whole NVIDIA GPUs at the newest on-demand price known; others on request.",
    )
    parser.add_argument("--gpu", type=names, metavar="A,B", help="only offers with these GPUs (any spelling)")
    parser.add_argument("--provider", metavar="NAME", help="only offers of this provider")
    parser.add_argument("--region", metavar="NAME", help="only offers in this region and its zones")
    parser.add_argument("--spot", action="store_true", help="spot prices instead of on-demand ones")
    parser.add_argument("--all-dates", action="store_true", help="older prices too, not only the newest of each offer")
    parser.add_argument("--fractional", action="store_true", help="also offers with a part of a GPU")


def run_offers(args: argparse.Namespace) -> int:
    """Print the offers, cheapest first for each GPU."""
    from gpusonde.catalog import load_gpus, load_offers

    gpus = load_gpus()
    catalog = load_offers(gpus=gpus)
    resolutions = [gpus.resolve(name) for name in args.gpu or ()]
    wanted = [resolution.spec.name for resolution in resolutions]
    notes = [f"{resolution.requested}: {resolution.note}" for resolution in resolutions if resolution.note]
    billing = "spot" if args.spot else "on_demand"
    offers = [
        offer
        for gpu in dict.fromkeys(wanted) or [None]
        for offer in catalog.offers(
            gpu,
            billing,
            not args.all_dates,
            not args.fractional,
            provider=args.provider,
            region=args.region,
        )
    ]
    if args.region and offers and all(offer.region == "all" for offer in offers):
        notes.append(f"no offer names the region {args.region!r}; those shown have one price in all regions")
    offers.sort(key=lambda offer: (offer.gpu_model, offer.usd_per_gpu_hour))
    Output(as_json=args.json).result(
        {"gpus": wanted, "billing": billing, "notes": notes, "offers": [offer_payload(offer) for offer in offers]},
        lambda screen: _render(screen, offers, notes, billing),
    )
    return 0


def offer_payload(offer: Offer) -> dict[str, Any]:
    """One offer as it appears in JSON."""
    return {
        "provider": offer.provider,
        "region": offer.region,
        "instance_type": offer.instance_type,
        "gpu_model": offer.gpu_model,
        "gpu_count": offer.gpu_count,
        "whole_gpu": offer.whole_gpu,
        "vcpu_count": offer.vcpu_count,
        "memory_bytes": offer.memory_bytes,
        "network_bits_per_second": offer.network_bits_per_second,
        "usd_per_hour": offer.usd_per_hour,
        "billing": offer.billing,
        "usd_per_gpu_hour": offer.usd_per_gpu_hour,
        "price_date": offer.price_date or None,
        "source": offer.source.title,
        "url": offer.source.url or None,
        "note": offer.note or None,
    }


def _render(screen: Screen, offers: list[Offer], notes: list[str], billing: str) -> None:
    for note in notes:
        screen.note(f"note: {note}")
    if not offers:
        screen.line(f"no {billing.replace('_', '-')} offers; 'gpusonde offers' lists all")
        return
    columns = ("GPU", "GPUs", "instance", "provider", "region", "vCPUs", "memory", "network (Gbit/s)", "$ per hour")
    screen.table(
        (*columns, "price of"),
        [
            (
                offer.gpu_model,
                str(offer.gpu_count) if offer.whole_gpu else f"part of {offer.gpu_count}",
                offer.instance_type,
                offer.provider,
                offer.region,
                wording.number(offer.vcpu_count, 3),
                wording.gibibytes(offer.memory_bytes),
                wording.number(None if (bits := offer.network_bits_per_second) is None else bits / 1e9),
                f"{offer.usd_per_hour:,.3f}",
                offer.price_date or "undated",
            )
            for offer in offers
        ],
        numeric=("GPUs", "vCPUs", "memory", "network (Gbit/s)", "$ per hour"),
        optional=("vCPUs", "memory", "network (Gbit/s)", "price of", "region"),
    )
