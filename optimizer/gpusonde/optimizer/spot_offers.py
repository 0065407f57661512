"""Spot prices and availability from the user's own table: no catalogue can keep them up to date."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from gpusonde.catalog import Offer, OfferCatalog
from gpusonde.errors import TableError
from gpusonde.optimizer.offers import ExcludedOffer, OfferFilter, OfferSelection, PricedMachine, Terms, select_offers

_NEEDED = ("provider", "region", "instance_type", "time", "usd_per_hour")
_OPTIONAL = ("zone", "available_machines", "preemptions_per_hour")
_MOST_ROWS = 5_000_000
_LONGEST_TEXT = 128
# What offers may cost and lose.
_MOST_USD = 1e9
_MOST_PREEMPTIONS = 3600.0
# What a program that prints prices may take and print.
_COMMAND_S = 60.0
_STOP_LOOK_S = 0.1
_MOST_PRINTED = 64 << 20
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class SpotRow:
    """Price of one kind of spot machine from one moment on.

    Attributes:
        provider: As in the catalogue.
        region: Region.
        zone: Zone; empty where the price holds in the whole region.
        instance_type: The provider's name of the machine.
        time: When the price was seen, with its time zone.
        usd_per_hour: Price of the whole machine, above zero.
        available_machines: Most that could be had then; None where nobody looked.
        preemptions_per_hour: How often one is taken away; None where unknown.
    """

    provider: str
    region: str
    zone: str
    instance_type: str
    time: datetime
    usd_per_hour: float
    available_machines: int | None
    preemptions_per_hour: float | None


def read_spot_rows(path: Path | str) -> Iterator[SpotRow]:
    """Yield the rows of a CSV file, line by line.

    Columns: provider, region, instance_type, time (ISO 8601, UTC where no zone is written), usd_per_hour; and where
    known zone, available_machines, preemptions_per_hour. Others are ignored.

    Raises:
        TableError: The file cannot be read, lacks a column or has a row that cannot be used.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            yield from _read_rows(file, str(path))
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {error.strerror}; name an existing file") from error
    except UnicodeDecodeError as error:
        raise TableError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def ask_spot_rows(command: Sequence[str], folder: Path, *, stop: threading.Event | None = None) -> list[SpotRow]:
    """Return the rows of the table that a program prints, as ``read_spot_rows`` reads them from a file.

    The program runs in a folder, without a shell and without input. It is ended after a minute, or once it has printed
    64 MiB; what it says on stderr is not kept.

    Args:
        command: The program and its arguments.
        folder: Where it runs.
        stop: Once set, the program is ended at once.

    Raises:
        TableError: It cannot be run, fails, is stopped, or prints no such table.
    """
    name = f"the table of {command[0]!r}"
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise TableError(f"{name}: it cannot be run: {getattr(error, 'strerror', None) or error}") from None
    try:
        printed = _read_output(process, stop or threading.Event())
    except InterruptedError:
        raise TableError(f"{name}: it was ended before it had printed it") from None
    except subprocess.TimeoutExpired:
        raise TableError(f"{name}: it, or what it started, did not end within {_COMMAND_S:.0f} s") from None
    if len(printed) > _MOST_PRINTED:
        raise TableError(f"{name}: more than {_MOST_PRINTED >> 20} MiB; print the prices of the last day")
    if process.returncode:
        raise TableError(f"{name}: it ended with status {process.returncode}; run it by hand to see why")
    try:
        return list(_read_rows(io.StringIO(printed.decode("utf-8-sig"), newline=""), name))
    except UnicodeDecodeError as error:
        raise TableError(f"{name}: is not UTF-8 text (byte {error.start})") from error


def _read_output(process: subprocess.Popen[bytes], stop: threading.Event) -> bytes:
    """Return what a program prints until it ends, and a little more than ``_MOST_PRINTED`` of one that prints more.

    Raises:
        InterruptedError: It is to stop.
        subprocess.TimeoutExpired: It takes longer than ``_COMMAND_S``.
    """
    printed, ends_at = bytearray(), time.monotonic() + _COMMAND_S
    with process.stdout or io.BytesIO() as pipe, selectors.DefaultSelector() as readable:
        try:
            readable.register(pipe, selectors.EVENT_READ)
            is_open = True
            while len(printed) <= _MOST_PRINTED:
                # What left the program's session may keep the pipe open for ever: only the clock ends that.
                left_s = ends_at - time.monotonic()
                if stop.is_set():
                    raise InterruptedError
                if left_s <= 0.0:
                    raise subprocess.TimeoutExpired(process.args, _COMMAND_S)
                if not is_open:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(min(left_s, _STOP_LOOK_S))
                        break
                elif readable.select(min(left_s, _STOP_LOOK_S)):
                    chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
                    printed += chunk
                    is_open = bool(chunk)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return bytes(printed)


def _read_rows(lines: Iterable[str], name: str) -> Iterator[SpotRow]:
    reader = csv.DictReader(lines, strict=True)
    try:
        missing = [column for column in _NEEDED if column not in (reader.fieldnames or ())]
        if missing:
            raise TableError(
                f"{name}: lacks column {missing[0]!r}; needed: {','.join(_NEEDED)}; optional: {','.join(_OPTIONAL)}"
            )
        for count, row in enumerate(reader):
            where = f"{name}:{reader.line_num}"
            if count >= _MOST_ROWS:
                raise TableError(f"{where}: more than {_MOST_ROWS:,} rows; keep those of the last weeks")
            if None in row or None in row.values():
                raise TableError(f"{where}: has another number of fields than the header")
            yield _parse(row, where)
    except csv.Error as error:
        raise TableError(f"{name}:{reader.line_num}: {error}") from error


def spot_offers(
    catalog: OfferCatalog,
    rows: Iterable[SpotRow],
    terms: Terms,
    now: datetime,
    chosen: OfferFilter | None = None,
    *,
    longest_age: timedelta = timedelta(days=1),
) -> OfferSelection:
    """Return the spot machines that the newest rows offer under the user's terms.

    Prices, zones, availability and preemption rates are the rows', everything else about a machine is the catalogue's.
    Of every kind of machine and zone the newest row that is not of the future counts.

    Args:
        catalog: Knows GPUs and network of the instance types.
        rows: Spot rows, in any order.
        terms: What only the user knows; its preemption rates hold where a row has none.
        now: The moment of planning, with its time zone.
        chosen: Which machines to look at; ``billing`` is not looked at, ``priced_since`` beside ``longest_age``.
        longest_age: Older rows are left out: spot prices move within hours.

    Raises:
        UnknownGpuError: The filter names a GPU that the catalogue does not know.
        ValueError: ``now`` without a time zone.
    """
    if now.tzinfo is None:
        raise ValueError("now needs a time zone, for example datetime.now(timezone.utc)")
    machines = _machines(catalog)
    newest: dict[tuple[str, str, str, str], SpotRow] = {}
    future: dict[tuple[str, str, str, str], SpotRow] = {}
    for row in rows:
        key = (row.provider, row.region, row.zone, row.instance_type)
        if row.time > now:
            future[key] = row
        elif key not in newest or row.time >= newest[key].time:
            newest[key] = row
    left_out = [
        ExcludedOffer(
            _name(row),
            f"its time is {row.time:%Y-%m-%d %H:%M %Z}, still to come; write UTC, or the time's zone (+01:00)"
            + (f"; until then its price of {newest[key].time:%Y-%m-%d %H:%M %Z} counts" if key in newest else ""),
        )
        for key, row in future.items()
    ]
    wanted = chosen or OfferFilter()
    models = {offer.gpu_model for gpu in wanted.gpus for offer in catalog.offers(gpu, None, False, known_only=False)}
    candidates = []
    for row in newest.values():
        if not _passes(wanted, row):
            continue
        name = _name(row)
        machine = machines.get((row.provider, row.instance_type))
        if machine is None:
            left_out.append(ExcludedOffer(name, "the catalogue does not know this instance type; add a line for it"))
        elif wanted.gpus and machine.gpu_model not in models:
            continue
        elif now - row.time > longest_age or _before(row.time, wanted):
            left_out.append(ExcludedOffer(name, f"its newest price is of {row.time:%Y-%m-%d %H:%M %Z}, too old"))
        else:
            candidates.append(
                PricedMachine(
                    machine=machine,
                    region=row.region,
                    zone=row.zone,
                    billing="spot",
                    usd_per_hour=row.usd_per_hour,
                    preemptions_per_hour=row.preemptions_per_hour,
                    available=row.available_machines,
                    priced=f"spot price of {row.time:%Y-%m-%d %H:%M %Z}",
                )
            )
    return select_offers(candidates, terms, left_out)


def _name(row: SpotRow) -> str:
    return f"{row.provider}/{row.zone or row.region}/{row.instance_type}/spot"


def _machines(catalog: OfferCatalog) -> dict[tuple[str, str], Offer]:
    """Instance types with whole GPUs; of several entries the one whose network rate is known."""
    found: dict[tuple[str, str], Offer] = {}
    for offer in catalog.all:
        key = (offer.provider, offer.instance_type)
        if offer.whole_gpu and (key not in found or found[key].network_bits_per_second is None):
            found[key] = offer
    return found


def _passes(wanted: OfferFilter, row: SpotRow) -> bool:
    places = {row.region, row.zone}
    return (
        (not wanted.providers or row.provider in wanted.providers)
        and (not wanted.regions or any(region in places for region in wanted.regions))
        and (not wanted.instance_types or row.instance_type in wanted.instance_types)
    )


def _before(time: datetime, wanted: OfferFilter) -> bool:
    return wanted.priced_since is not None and time.date() < wanted.priced_since


def _parse(row: Mapping[str, str], where: str) -> SpotRow:
    for column in ("provider", "region", "instance_type"):
        text = row[column].strip()
        if not text or len(text) > _LONGEST_TEXT or not text.isprintable():
            raise TableError(f"{where}: {column} must be a text of 1 to {_LONGEST_TEXT} characters")
    price = _number(row, "usd_per_hour", where, most=_MOST_USD)
    if price is None or price == 0:
        raise TableError(f"{where}: usd_per_hour must be above zero; leave out what is not for rent")
    available = _number(row, "available_machines", where)
    if available is not None and available != int(available):
        raise TableError(f"{where}: available_machines must be a whole number, not {available}")
    return SpotRow(
        provider=row["provider"].strip(),
        region=row["region"].strip(),
        zone=row.get("zone", "").strip(),
        instance_type=row["instance_type"].strip(),
        time=_time(row["time"].strip(), where),
        usd_per_hour=price,
        available_machines=None if available is None else int(available),
        preemptions_per_hour=_number(row, "preemptions_per_hour", where, most=_MOST_PREEMPTIONS),
    )


def _time(text: str, where: str) -> datetime:
    try:
        # Python 3.10 does not read the Z that most tables end with.
        time = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise TableError(f"{where}: time {text[:40]!r} is not ISO 8601, for example 2026-11-21T15:00:00Z") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


def _number(row: Mapping[str, str], column: str, where: str, most: float = math.inf) -> float | None:
    text = row.get(column, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TableError(f"{where}: {column} must be a finite number that is not negative, not {text[:40]!r}")
    if value > most:
        raise TableError(f"{where}: {column} must be at most {most:g}, not {text[:40]!r}")
    return value
