"""``OfferCatalog``: instance types, their GPUs and prices; ``rank_offers`` by what an epoch costs on them."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

from gpusonde.catalog.gpus import GpuCatalog, load_gpus
from gpusonde.catalog.spec import DATA_DIRECTORY, Source, parse_sources, read_toml
from gpusonde.errors import CatalogError, UnknownGpuError
from gpusonde.formatting import dollars

BILLINGS = ("on_demand", "spot")
OFFER_COLUMNS = (
    "provider", "region", "instance_type", "gpu", "gpu_count", "whole_gpu", "vcpu_count", "memory_gib",
    "network_gbit_per_s", "usd_per_hour", "billing", "price_date", "source", "note",
)  # fmt: skip
_LARGEST_FILE_BYTES = 64 << 20
_GIBIBYTE = 1 << 30
_GIGABIT = 1e9
_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?")
# A price this much older than the same instance type's newest one is history, wherever it was asked.
_SUPERSEDED_AFTER_DAYS = 365


@dataclass(frozen=True)
class Offer:
    """An instance type at a price.

    Attributes:
        provider: ``aws``, ``gcp``, ``lambda``, ``nebius`` ...
        region: Region or zone as the provider spells it; ``all`` where one price holds everywhere.
        instance_type: The provider's name of it.
        gpu_model: ``GpuSpec.name``; where the catalogue lacks the GPU, its name as the offer's source gives it.
        gpu_count: GPUs of the instance.
        vcpu_count: Of the whole instance; None where no source was checked.
        memory_bytes: Host memory of the whole instance; None where no source was checked.
        network_bits_per_second: Guaranteed rate of the whole instance; None where no source was checked.
        usd_per_hour: Price of the whole instance, without tax.
        billing: ``on_demand`` or ``spot``.
        price_date: When the price held: ``YYYY``, ``YYYY-MM`` or ``YYYY-MM-DD``; empty where nobody wrote it down.
        source: Where the price was read.
        whole_gpu: False for a fraction of a GPU.
        gpu_known: Whether the catalogue holds the GPU's data sheet; without it no latency can be predicted.
        note: What to know before relying on the offer; empty otherwise.
    """

    provider: str
    region: str
    instance_type: str
    gpu_model: str
    gpu_count: int
    vcpu_count: int | None
    memory_bytes: int | None
    network_bits_per_second: float | None
    usd_per_hour: float
    billing: str
    price_date: str
    source: Source
    whole_gpu: bool = True
    gpu_known: bool = True
    note: str = ""

    @property
    def usd_per_gpu_hour(self) -> float:
        """Price per GPU and hour."""
        return self.usd_per_hour / self.gpu_count

    def describe(self) -> str:
        """One line for a reader: what, where, at which price, of which date."""
        dated = f"price of {self.price_date}" if self.price_date else "undated price"
        share = "" if self.whole_gpu else "a fraction of "
        return (
            f"{self.provider} {self.region} {self.instance_type} ({share}{self.gpu_count}x {self.gpu_model}):"
            f" {dollars(self.usd_per_hour)} per hour {self.billing.replace('_', ' ')}, {dated}"
        )


def latest_day(price_date: str) -> date:
    """Last day of ``YYYY``, ``YYYY-MM`` or ``YYYY-MM-DD``; day one of year one for an empty string.

    Raises:
        ValueError: The text is none of these or no day of the calendar.
    """
    if not price_date:
        return date.min
    match = _DATE.fullmatch(price_date)
    if match is None:
        raise ValueError(f"{price_date!r} is not a date (YYYY, YYYY-MM or YYYY-MM-DD)")
    year, month, day = match.groups()
    if day is not None:
        return date(int(year), int(month), int(day))
    if month is not None:
        first_of_next = date(int(year) + int(month) // 12, int(month) % 12 + 1, 1) if int(month) <= 12 else None
        if first_of_next is None or int(month) == 0:
            raise ValueError(f"{price_date!r} has no such month")
        return date.fromordinal(first_of_next.toordinal() - 1)
    return date(int(year), 12, 31)


class OfferCatalog:
    """Offers of all providers.

    Args:
        offers: The offers, in any order.
        gpus: Resolves GPU names in ``offers``.
    """

    def __init__(self, offers: Iterable[Offer], gpus: GpuCatalog) -> None:
        self.all: tuple[Offer, ...] = tuple(sorted(offers, key=_order))
        self._gpus = gpus

    @classmethod
    def load(
        cls,
        path: Path | str | None = None,
        *,
        sources: Path | str | None = None,
        gpus: GpuCatalog | None = None,
        own: Path | None = None,
    ) -> OfferCatalog:
        """Read an offer file, the shipped one with the user's own offers by default.

        Own offers replace the shipped ones of the same provider, region and billing.

        Args:
            path: CSV file with the columns of the shipped ``offers.csv``, in place of both.
            sources: TOML file with a ``[sources.<id>]`` table for every id in the ``source`` column.
            gpus: The GPUs that offers may name; the shipped catalogue by default.
            own: File of own offers, which need not exist; ``own_offers_file()`` by default.

        Raises:
            CatalogError: A file cannot be read or a line cannot be used; the message names line and field.
        """
        catalog = gpus if gpus is not None else load_gpus()
        if path is None and sources is None and catalog is load_gpus():
            known, offers = _shipped()
        else:
            known, offers = _read(path, sources, catalog)
        own = own or own_offers_file()
        if path is None and own is not None and own.exists():
            offers = _beside(offers, _read_offers(own, known, catalog))
        return cls(offers, catalog)

    def __len__(self) -> int:
        return len(self.all)

    def offers(
        self,
        gpu: str | None = None,
        billing: str | None = "on_demand",
        newest_only: bool = True,
        whole_only: bool = True,
        *,
        known_only: bool = True,
        provider: str | None = None,
        region: str | None = None,
    ) -> tuple[Offer, ...]:
        """Offers that satisfy every condition, in a fixed order (provider, region, instance type, newest first).

        Args:
            gpu: Any spelling of a GPU; an ambiguous one ("A100") matches every form that it could mean.
            billing: ``on_demand``, ``spot`` or None for both.
            newest_only: Leave out a price when a newer one of the same offer is known, or one of the same instance
                type in another region that is newer by more than a year.
            whole_only: Leave out fractions of a GPU.
            known_only: Leave out GPUs without a data sheet, among them all that are not NVIDIA's.
            provider: Only this provider's.
            region: Only this region and its zones, and prices that hold everywhere.

        Raises:
            UnknownGpuError: Neither the catalogue nor any offer knows ``gpu``.
            CatalogError: No offer names ``provider``.
            ValueError: ``billing`` is none of the above.
        """
        if billing is not None and billing not in BILLINGS:
            raise ValueError(f"billing {billing!r}: use {', '.join(BILLINGS)} or None for both")
        models = None if gpu is None else self.models(gpu)
        providers = sorted({offer.provider for offer in self.all})
        if provider is not None and provider not in providers:
            raise CatalogError(f"no offer of provider {provider!r}; known: {', '.join(providers)}")
        chosen = (
            offer
            for offer in (self._newest() if newest_only else self.all)
            if (models is None or offer.gpu_model in models)
            and (billing is None or offer.billing == billing)
            and (offer.whole_gpu or not whole_only)
            and (offer.gpu_known or not known_only)
            and (provider is None or offer.provider == provider)
            and (region is None or _in_region(offer, region))
        )
        return tuple(chosen)

    def models(self, gpu: str) -> tuple[str, ...]:
        """Return the GPUs that a name could mean, by their names in offers.

        Raises:
            UnknownGpuError: Neither the catalogue nor any offer knows it.
        """
        if any(offer.gpu_model == gpu for offer in self.all):
            return (gpu,)
        return self._gpus.resolve_one(gpu).candidates

    def _newest(self) -> list[Offer]:
        newest_here: dict[tuple[str, ...], date] = {}
        newest_anywhere: dict[tuple[str, ...], date] = {}
        for offer in self.all:
            day = latest_day(offer.price_date)
            here, anywhere = _same_offer(offer), _same_instance(offer)
            newest_here[here] = max(day, newest_here.get(here, day))
            newest_anywhere[anywhere] = max(day, newest_anywhere.get(anywhere, day))
        kept: dict[tuple[str, ...], Offer] = {}
        for offer in self.all:
            day = latest_day(offer.price_date)
            superseded = (newest_anywhere[_same_instance(offer)] - day).days > _SUPERSEDED_AFTER_DAYS
            if day == newest_here[_same_offer(offer)] and not superseded:
                # Two sources may quote one offer on one date: the first in order stands for both.
                kept.setdefault(_same_offer(offer), offer)
        return list(kept.values())


def load_offers(
    path: Path | str | None = None,
    *,
    sources: Path | str | None = None,
    gpus: GpuCatalog | None = None,
    own: Path | None = None,
) -> OfferCatalog:
    """Return the shipped offers with the user's own, or those of another file; see ``OfferCatalog.load``."""
    return OfferCatalog.load(path, sources=sources, gpus=gpus, own=own)


def _same_instance(offer: Offer) -> tuple[str, ...]:
    return (offer.provider, offer.instance_type, offer.gpu_model, str(offer.gpu_count), offer.billing)


def _same_offer(offer: Offer) -> tuple[str, ...]:
    return (*_same_instance(offer), offer.region)


def _in_region(offer: Offer, region: str) -> bool:
    # Zones are the region and a letter: us-east-1a, us-central1-a. A price may name several regions.
    zone = re.compile(rf"{re.escape(region)}(?:-?[a-z])?")
    return offer.region == "all" or any(zone.fullmatch(part) for part in offer.region.split("/"))


def _order(offer: Offer) -> tuple[str, str, str, str, int, float, str]:
    newest_first = -latest_day(offer.price_date).toordinal()
    return (
        offer.provider, offer.region, offer.instance_type, offer.billing, newest_first, offer.usd_per_hour,
        offer.source.title,
    )  # fmt: skip


def own_offers_file() -> Path | None:
    """Return where offers of the user's own are read from, whether it exists or not; None where there are to be none.

    ``GPUSONDE_OFFERS`` names the file, empty for none; else it is ``gpusonde/offers.csv`` in the user's data directory.
    """
    named = os.environ.get("GPUSONDE_OFFERS")
    if named is not None:
        return Path(named) if named else None
    directory = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(directory) / "gpusonde" / "offers.csv" if os.path.isabs(directory) else None


def _beside(shipped: list[Offer], own: list[Offer]) -> list[Offer]:
    """Put own offers in the place of shipped ones: what a newer list no longer has is not to be had.

    Fractions of GPUs and GPUs without a data sheet, which are never refreshed, stay.
    """
    covered = {(offer.provider, offer.region, offer.billing) for offer in own}
    kept = (
        offer
        for offer in shipped
        if not (offer.whole_gpu and offer.gpu_known) or (offer.provider, offer.region, offer.billing) not in covered
    )
    return [*kept, *own]


def _read(
    path: Path | str | None, sources: Path | str | None, gpus: GpuCatalog
) -> tuple[Mapping[str, Source], list[Offer]]:
    source_file = Path(sources) if sources is not None else DATA_DIRECTORY / "offer_sources.toml"
    known = parse_sources(read_toml(source_file).get("sources", {}), source_file)
    return known, _read_offers(Path(path) if path is not None else DATA_DIRECTORY / "offers.csv", known, gpus)


@cache
def _shipped() -> tuple[Mapping[str, Source], list[Offer]]:
    return _read(None, None, load_gpus())


def _read_offers(file: Path, sources: Mapping[str, Source], gpus: GpuCatalog) -> list[Offer]:
    return [_parse_offer(row, sources, gpus, where) for where, row in read_offer_rows(file)]


def read_offer_rows(file: Path) -> list[tuple[str, Mapping[str, str]]]:
    """Return the lines of an offer file by column, each with its place for messages.

    Raises:
        CatalogError: The file cannot be read, is too large, or a line has other fields than the header.
    """
    try:
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise CatalogError(f"{file}: is larger than {_LARGEST_FILE_BYTES:,} bytes, which no offer file is")
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CatalogError(f"{file}: cannot be read: {error.strerror}; name an existing file") from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"{file}: is not UTF-8 text (byte {error.start})") from error
    # Comment lines become empty ones, so that the reader's line numbers stay the file's.
    lines = ["" if line.startswith("#") else line for line in text.splitlines()]
    reader = csv.reader(io.StringIO("\n".join(lines)), strict=True)
    header: list[str] = []
    rows: list[tuple[str, Mapping[str, str]]] = []
    try:
        for fields in filter(None, reader):
            where = f"{file}:{reader.line_num}"
            if not header:
                header = fields
                missing = [column for column in OFFER_COLUMNS if column not in header]
                if missing:
                    raise CatalogError(f"{where}: lacks column {missing[0]!r}; columns: {','.join(OFFER_COLUMNS)}")
            elif len(fields) != len(header):
                raise CatalogError(f"{where}: has {len(fields)} fields, the header {len(header)}")
            else:
                rows.append((where, dict(zip(header, fields, strict=True))))
    except csv.Error as error:
        raise CatalogError(f"{file}:{reader.line_num}: {error}") from error
    if not header:
        raise CatalogError(f"{file}: is empty; its first line must be {','.join(OFFER_COLUMNS)}")
    return rows


def _parse_offer(row: Mapping[str, str], sources: Mapping[str, Source], gpus: GpuCatalog, where: str) -> Offer:
    for column in ("provider", "region", "instance_type", "gpu"):
        if not row[column].strip():
            raise CatalogError(f"{where}: field {column!r} is empty")
    if row["billing"] not in BILLINGS:
        raise CatalogError(f"{where}: field 'billing' is {row['billing']!r}; use {' or '.join(BILLINGS)}")
    if row["whole_gpu"] not in ("yes", "no"):
        raise CatalogError(f"{where}: field 'whole_gpu' is {row['whole_gpu']!r}; use yes or no")
    if row["source"] not in sources:
        raise CatalogError(f"{where}: field 'source' is {row['source']!r}; known: {', '.join(sources)}")
    try:
        latest_day(row["price_date"])
    except ValueError as error:
        raise CatalogError(f"{where}: field 'price_date': {error}") from error
    gpu_count = _number(row, "gpu_count", where, integer=True)
    usd_per_hour = _number(row, "usd_per_hour", where)
    if gpu_count is None or usd_per_hour is None:
        raise CatalogError(f"{where}: field 'gpu_count' or 'usd_per_hour' is empty")
    vcpu_count = _number(row, "vcpu_count", where, integer=True)
    memory_gib = _number(row, "memory_gib", where)
    network = _number(row, "network_gbit_per_s", where)
    gpu_model, gpu_known = _gpu(row["gpu"], gpus, where)
    source = sources[row["source"]]
    return Offer(
        provider=row["provider"],
        region=row["region"],
        instance_type=row["instance_type"],
        gpu_model=gpu_model,
        gpu_count=int(gpu_count),
        vcpu_count=None if vcpu_count is None else int(vcpu_count),
        memory_bytes=None if memory_gib is None else round(memory_gib * _GIBIBYTE),
        network_bits_per_second=None if network is None else network * _GIGABIT,
        usd_per_hour=usd_per_hour,
        billing=row["billing"],
        price_date=row["price_date"],
        # A list that was fetched was read for the day of its prices.
        source=source if source.retrieved else replace(source, retrieved=row["price_date"]),
        whole_gpu=row["whole_gpu"] == "yes",
        gpu_known=gpu_known,
        note=row["note"],
    )


def _gpu(name: str, gpus: GpuCatalog, where: str) -> tuple[str, bool]:
    """Return canonical name and True, or the name as written and False when the catalogue lacks the GPU."""
    try:
        resolution = gpus.resolve(name)
    except UnknownGpuError:
        return name, False
    if resolution.note:
        # A price belongs to one variant; which one is for the file to say, not to be assumed here.
        raise CatalogError(
            f"{where}: field 'gpu' is {name!r}, {resolution.note}; write one of {', '.join(resolution.candidates)}"
        )
    return resolution.spec.name, True


def _number(row: Mapping[str, str], column: str, where: str, *, integer: bool = False) -> float | None:
    text = row[column].strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf) or (integer and value != int(value)):
        kind = "positive whole number" if integer else "positive number"
        raise CatalogError(f"{where}: field {column!r} is {text!r}, not a {kind}")
    return value


_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class CostedOffer:
    """An offer with the latency and the cost of one epoch on it.

    Attributes:
        offer: The offer; its ``price_date`` tells how old the price is.
        epoch_latency_s: Predicted seconds of one epoch on one GPU of the offer.
        usd_per_epoch: ``usd_per_hour / 3600 * epoch_latency_s``: the whole instance for the time of one epoch.
    """

    offer: Offer
    epoch_latency_s: float
    usd_per_epoch: float


def rank_offers(
    latency_s_by_gpu: Mapping[str, float], offers: Iterable[Offer], *, gpu_count: int | None = 1
) -> list[CostedOffer]:
    """Cost one epoch on each offer and sort by it, cheapest first.

    The prediction is for a job on one GPU. An instance with more of them costs its whole price all the same, so such
    offers are left out unless they are asked for.

    Args:
        latency_s_by_gpu: ``GpuSpec.name`` -> seconds of one epoch. NaN stands for "not predicted": such a GPU's
            offers are left out, like those of a GPU that is not a key.
        offers: What may be rented.
        gpu_count: GPUs that an instance must have; None for any number.

    Returns:
        Sorted by ``usd_per_epoch``; ties by latency, then provider, region, instance type and billing, so that the
        order never depends on the input's.

    Raises:
        ValueError: A latency is zero, negative or infinite.
    """
    for gpu, latency in latency_s_by_gpu.items():
        if not (latency > 0 and math.isfinite(latency)) and not math.isnan(latency):
            raise ValueError(f"epoch latency of {gpu} is {latency} s; it must be positive and finite")
    costed = []
    for offer in offers:
        latency = latency_s_by_gpu.get(offer.gpu_model, math.nan)
        if math.isnan(latency) or (gpu_count is not None and offer.gpu_count != gpu_count):
            continue
        costed.append(CostedOffer(offer, latency, offer.usd_per_hour / _SECONDS_PER_HOUR * latency))
    return sorted(costed, key=lambda item: (item.usd_per_epoch, item.epoch_latency_s, *_identity(item.offer)))


def cheapest(costed: Iterable[CostedOffer]) -> CostedOffer | None:
    """Return the offer with the lowest cost per epoch, the faster one of two equal; None when there are none."""
    return min(
        costed, key=lambda item: (item.usd_per_epoch, item.epoch_latency_s, *_identity(item.offer)), default=None
    )


def fastest(costed: Iterable[CostedOffer]) -> CostedOffer | None:
    """Return the offer with the shortest epoch, the cheaper one of two equal; None when there are none."""
    return min(
        costed, key=lambda item: (item.epoch_latency_s, item.usd_per_epoch, *_identity(item.offer)), default=None
    )


def _identity(offer: Offer) -> tuple[str, ...]:
    return (offer.provider, offer.region, offer.instance_type, offer.billing, offer.price_date, offer.source.title)
