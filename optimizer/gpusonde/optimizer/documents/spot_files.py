"""Tables of spot prices that a problem file names become offers of the document, as of the moment of reading."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from gpusonde.catalog import GpuCatalog, OfferCatalog, UnknownGpuError, load_gpus, load_offers
from gpusonde.optimizer.documents.fields import DocumentError, Table, text
from gpusonde.optimizer.documents.job import LARGEST_BATCH, device_name
from gpusonde.optimizer.documents.solution import plain_fields
from gpusonde.optimizer.offers import (
    BatchLimits,
    OfferFilter,
    Quota,
    SpotTableError,
    Terms,
    TermsError,
    read_spot_rows,
    spot_offers,
)

_LOG = logging.getLogger(__name__)
_MOST_SPOT_FILES = 64
_MOST_MACHINES = 10_000
_HOUR_S = 3600.0
_KEYS = (
    "file", "gpus", "providers", "regions", "instance_types", "quota", "fabric", "machine_fabric", "smallest_batch",
    "largest_batch", "preemptions_per_hour", "longest_age_hours",
)  # fmt: skip


def with_spot_offers(document: dict[str, Any], folder: Path, clock: Callable[[], datetime]) -> dict[str, Any]:
    """Return the document with ``spot`` turned into ``offers``.

    A machine whose GPU the job has no curve of is left out. What else is left out is logged, with the reason.

    Args:
        document: The document; what its ``job`` refers to is in it already.
        folder: Names of files are relative to it.
        clock: Tells the moment of planning, with its time zone.

    Raises:
        DocumentError: A key or a table cannot be used, or nothing in a table can be rented now.
    """
    if "spot" not in document:
        return document
    gpus = load_gpus()
    catalog = load_offers(gpus=gpus)
    top = Table(document, "", document)
    offers = [element for _, element in top.items("offers", most=1 << 20)]
    for at, element in top.items("spot", most=_MOST_SPOT_FILES):
        offers += _offers(Table(element, at, _KEYS), folder, catalog, _spot_gpus(document, gpus), clock())
    return {**{key: value for key, value in document.items() if key != "spot"}, "offers": offers}


def _spot_gpus(document: Mapping[str, Any], gpus: GpuCatalog) -> set[str]:
    """Devices of the job's curves; what is wrong with these is found where they are read."""
    job = document.get("job")
    curves = job.get("curves") if isinstance(job, Mapping) else None
    found = curves if isinstance(curves, list) else []
    names = [curve.get("device") for curve in found if isinstance(curve, Mapping)]
    return {device_name(name, gpus) for name in names if isinstance(name, str)}


def _offers(
    table: Table, folder: Path, catalog: OfferCatalog, devices: set[str], now: datetime
) -> list[dict[str, Any]]:
    path = folder / Path(table.text("file", longest=4096)).expanduser()
    largest = table.whole("largest_batch", least=0, most=LARGEST_BATCH) if "largest_batch" in table else None
    try:
        limits = BatchLimits(table.whole("smallest_batch", 1, most=LARGEST_BATCH), largest)
        rate = table.number("preemptions_per_hour", above=False) if "preemptions_per_hour" in table else None
        terms = Terms(
            quotas=[Quota(machines=table.whole("quota", most=_MOST_MACHINES))],
            batches=dict.fromkeys(devices, limits),
            preemptions_per_hour={} if rate is None else {"*": rate},
        )
        chosen = OfferFilter(
            providers=_table_texts(table, "providers"),
            regions=_table_texts(table, "regions"),
            gpus=_table_texts(table, "gpus"),
            instance_types=_table_texts(table, "instance_types"),
        )
        age = timedelta(seconds=_HOUR_S * table.number("longest_age_hours", 24.0, most=1e6))
        selection = spot_offers(catalog, read_spot_rows(path), terms, now, chosen, longest_age=age)
    except (SpotTableError, TermsError, UnknownGpuError) as error:
        raise DocumentError(table.path, str(error)) from None
    for reason, count in selection.reasons().items():
        _LOG.warning("%s: %d offers are left out: %s", path, count, reason)
    if not selection.offers:
        raise DocumentError(table.at("file"), f"{path}: none of its machines can be rented now; the log says why")
    fabrics = {key: table.text(key) for key in ("fabric", "machine_fabric") if key in table}
    # A document leaves out what it does not say.
    said = (
        {key: value for key, value in plain_fields(offer).items() if value not in (None, "")}
        for offer in selection.offers
    )
    return [{**fields, **fabrics} for fields in said]


def _table_texts(table: Table, key: str) -> tuple[str, ...]:
    return tuple(text(value, at) for at, value in table.items(key, most=64))
