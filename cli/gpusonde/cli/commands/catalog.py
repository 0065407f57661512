"""``gpusonde gpus``, ``offers`` and ``metrics``: what the catalogues hold.

GPUs with the source of every figure, machines that can be rented with their prices, metrics with their units.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Output, Screen
from gpusonde.cli.parsing import Parser, names

if TYPE_CHECKING:
    from gpusonde.catalog import GpuCatalog, GpuSpec, Offer, OtherAccelerator


class MetricPayload(TypedDict):
    """One metric of the catalogue."""

    name: str
    unit: Annotated[str, JsonKey("`ratio`, `bytes`, `watts` ...")]
    kind: Annotated[str, JsonKey("`gauge` or `counter`")]
    sampling_class: Annotated[str, JsonKey("`fast` (every tick), `slow` or `static`")]
    description: str
    dcgm_field_id: int | None
    gpm_metric_id: int | None
    codes: Annotated[list[str], JsonKey("in `dcgmi dmon` and in the paper")]


class MetricsPayload(TypedDict):
    """What ``gpusonde metrics`` prints."""

    metrics: list[MetricPayload]


def add_metrics_options(parser: Parser) -> None:
    """Declare ``gpusonde metrics``."""


def run_metrics(args: argparse.Namespace) -> int:
    """Print the catalogue."""
    from gpusonde.telemetry import METRICS

    payload: MetricsPayload = {
        "metrics": [
            {
                "name": m.name,
                "unit": m.unit.value,
                "kind": m.kind.value,
                "sampling_class": m.sampling_class.value,
                "description": m.description,
                "dcgm_field_id": m.dcgm_field_id,
                "gpm_metric_id": m.gpm_metric_id,
                "codes": list(m.codes),
            }
            for m in METRICS
        ]
    }

    def render(screen: Screen) -> None:
        screen.table(
            ("metric", "unit", "kind", "sampled", "DCGM", "codes", "what it is"),
            [
                (
                    m.name,
                    m.unit.value,
                    m.kind.value,
                    m.sampling_class.value,
                    str(m.dcgm_field_id or ""),
                    " ".join(m.codes),
                    m.description,
                )
                for m in METRICS
            ],
            numeric=("DCGM",),
            optional=("codes", "DCGM", "kind", "sampled", "unit"),
        )

    Output(as_json=args.json).result(payload, render)
    return 0


class OfferPayload(TypedDict):
    """One offer: a machine that can be rented."""

    provider: str
    region: str
    instance_type: Annotated[str, JsonKey("as the provider calls it")]
    gpu_model: str
    gpu_count: int
    whole_gpu: Annotated[bool, JsonKey("false for a part of a GPU")]
    vcpu_count: float | None
    memory_bytes: int | None
    network_bits_per_second: float | None
    usd_per_hour: Annotated[float, JsonKey("of the whole machine")]
    billing: Annotated[str, JsonKey("`on_demand` or `spot`")]
    usd_per_gpu_hour: float
    price_date: Annotated[str | None, JsonKey("a year, a month or a day")]
    source: str
    url: str | None
    note: Annotated[str | None, JsonKey("what to know before relying on it")]


class OffersPayload(TypedDict):
    """What ``gpusonde offers`` prints."""

    gpus: Annotated[list[str], JsonKey("what `--gpu` was taken for")]
    billing: Annotated[str, JsonKey("`on_demand` or `spot`")]
    notes: Annotated[list[str], JsonKey("also that no offer names the region")]
    offers: Annotated[list[OfferPayload], JsonKey("the cheapest first for each GPU")]


def add_offers_options(parser: Parser) -> None:
    """Declare ``gpusonde offers``."""
    parser.description = (
        "List instance offers with whole NVIDIA GPUs at the newest on-demand price known; others on request."
    )
    parser.add_argument("--gpu", type=names, metavar="A,B", help="only offers with these GPUs (any spelling)")
    parser.add_argument("--provider", metavar="NAME", help="only offers of this provider")
    parser.add_argument("--region", metavar="NAME", help="only offers in this region and its zones")
    parser.add_argument("--spot", action="store_true", help="spot prices instead of on-demand ones")
    parser.add_argument("--all", action="store_true", help="also older prices and offers with a part of a GPU")


def run_offers(args: argparse.Namespace) -> int:
    """Print the offers, cheapest first for each GPU."""
    from gpusonde.catalog import load_gpus, load_offers

    gpus = load_gpus()
    catalog = load_offers(gpus=gpus)
    resolutions = [gpus.resolve(name) for name in args.gpu or ()]
    wanted: list[str] = list(dict.fromkeys(name for resolution in resolutions for name in resolution.candidates))
    notes = [
        f"{each.requested}: {each.note if len(each.candidates) == 1 else 'any of ' + ', '.join(each.candidates)}"
        for each in resolutions
        if each.note
    ]
    billing = "spot" if args.spot else "on_demand"
    offers = [
        offer
        for gpu in wanted or (None,)
        for offer in catalog.offers(
            gpu,
            billing,
            not args.all,
            not args.all,
            provider=args.provider,
            region=args.region,
        )
    ]
    if args.region and offers and all(offer.region == "all" for offer in offers):
        notes.append(f"no offer names the region {args.region!r}; those shown have one price in all regions")
    offers.sort(key=lambda offer: (offer.gpu_model, offer.usd_per_gpu_hour))
    payload: OffersPayload = {
        "gpus": wanted,
        "billing": billing,
        "notes": notes,
        "offers": [offer_payload(offer) for offer in offers],
    }
    Output(as_json=args.json).result(payload, lambda screen: _render(screen, offers, notes, billing))
    return 0


def offer_payload(offer: Offer) -> OfferPayload:
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
                formatting.number(offer.vcpu_count, 3),
                formatting.gibibytes(offer.memory_bytes),
                formatting.number(None if (bits := offer.network_bits_per_second) is None else bits / 1e9),
                f"{offer.usd_per_hour:,.3f}",
                offer.price_date or "undated",
            )
            for offer in offers
        ],
        numeric=("GPUs", "vCPUs", "memory", "network (Gbit/s)", "$ per hour"),
        optional=("vCPUs", "memory", "network (Gbit/s)", "price of", "region"),
    )


class FigurePayload(TypedDict):
    """A figure of a GPU, with its source."""

    name: Annotated[str, JsonKey("with its unit")]
    value: float
    source: str
    url: str | None
    retrieved: Annotated[str, JsonKey("date")]
    from_memory: Annotated[bool, JsonKey("nobody looked it up: to be checked")]


class GpuPayload(TypedDict):
    """One GPU of the catalogue."""

    name: str
    vendor: Annotated[str, JsonKey("nothing is predicted for GPUs of others than `NVIDIA`")]
    aliases: list[str]
    architecture: str
    memory_type: str
    released: str | None
    note: Annotated[str | None, JsonKey("what to know before trusting a figure")]
    figures: list[FigurePayload]


class GpusPayload(TypedDict):
    """What ``gpusonde gpus`` prints."""

    requested: str | None
    note: Annotated[str | None, JsonKey("what an ambiguous name was taken for")]
    gpus: Annotated[list[GpuPayload], JsonKey("all, or the one asked for")]


def add_gpus_options(parser: Parser) -> None:
    """Declare ``gpusonde gpus``."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="one GPU, by any name: V100-SXM2-16GB, 'Tesla T4', 'NVIDIA A10G' ..."
    )


def run_gpus(args: argparse.Namespace) -> int:
    """Print all GPUs, or one."""
    from gpusonde.catalog import load_gpus

    catalog = load_gpus()
    output = Output(as_json=args.json)
    if args.name is None:
        gpus = [*map(_payload, catalog.specs), *map(_payload, catalog.others)]
        every: GpusPayload = {"requested": None, "note": None, "gpus": gpus}
        output.result(every, lambda screen: _render_all(screen, catalog))
        return 0
    if (other := catalog.find_other(args.name)) is not None:
        note = f"{other.vendor}, not NVIDIA: nothing measured, so nothing is predicted for it"
        read: GpusPayload = {"requested": args.name, "note": note, "gpus": [_payload(other)]}
        output.result(read, lambda screen: _render_one(screen, other, note))
        return 0
    resolution = catalog.resolve(args.name, with_slices=True)
    payload: GpusPayload = {
        "requested": args.name,
        "note": resolution.note or None,
        "gpus": [_payload(resolution.spec)],
    }
    output.result(payload, lambda screen: _render_one(screen, resolution.spec, resolution.note))
    return 0


def _payload(spec: GpuSpec | OtherAccelerator) -> GpuPayload:
    figures = spec.figures()
    return {
        "name": spec.name,
        "vendor": spec.vendor,
        "aliases": list(spec.aliases),
        "architecture": spec.architecture,
        "memory_type": spec.memory_type,
        "released": spec.released or None,
        "note": spec.note or None,
        "figures": [
            {
                "name": name,
                "value": value,
                "source": source.title,
                "url": source.url or None,
                "retrieved": source.retrieved,
                "from_memory": source.from_memory,
            }
            for name, value in figures.items()
            for source in (spec.source_of(name),)
        ],
    }


def _render_all(screen: Screen, catalog: GpuCatalog) -> None:
    columns = ("GPU", "architecture", "SMs", "boost (MHz)", "memory", "bandwidth (GB/s)", "FP32 (TFLOPS)", "power (W)")
    screen.table(
        columns,
        [
            (
                spec.name,
                spec.architecture,
                str(spec.sm_count),
                formatting.number(spec.boost_clock_mhz, 4),
                formatting.gibibytes(spec.memory_bytes),
                formatting.number(spec.memory_bandwidth_bytes_per_second / 1e9, 4),
                formatting.number(spec.fp32_tflops),
                formatting.number(spec.power_limit_watts, 4),
            )
            for spec in catalog.specs
        ],
        numeric=columns[2:],
        optional=("boost (MHz)", "power (W)", "architecture", "SMs"),
    )
    screen.line()
    others = ", ".join(f"{other.name} ({other.vendor})" for other in catalog.others)
    screen.line(f"figures only, nothing is predicted for them: {others}")
    screen.line("'gpusonde gpus NAME' shows every figure of one with its source.")


def _render_one(screen: Screen, spec: GpuSpec | OtherAccelerator, note: str) -> None:
    if note:
        screen.note(f"note: {note}")
    screen.heading(f"{spec.name} ({spec.architecture}, {spec.memory_type}, released {spec.released or 'unknown'})")
    if spec.aliases:
        screen.line(f"also called: {', '.join(spec.aliases)}")
    if spec.note:
        screen.note(f"note: {spec.note}")
    screen.line()
    screen.table(
        ("figure", "value", "source", "retrieved"),
        [
            (
                name,
                f"{value:,.12g}",
                f"{source.title}{' (from memory)' if source.from_memory else ''}",
                source.retrieved,
            )
            for name, value in spec.figures().items()
            for source in (spec.source_of(name),)
        ],
        numeric=("value",),
        optional=("retrieved",),
    )
