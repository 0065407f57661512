"""Series straight from the API of Prometheus or of what speaks like it: ``prom://HOST:PORT/?query=...``.

A selector is asked for as it was scraped, with the scrapes' own times; any other query is evaluated every ``step``.
Prefixes in front of ``/api/v1`` are kept, ``proms://`` is https, a user and password stand in front of the host.
"""

from __future__ import annotations

import base64
import re
import time
import urllib.error
import urllib.parse
import urllib.request

from gpusonde.errors import TraceFormatError, shown
from gpusonde.telemetry.readers.delimited import unix_scale
from gpusonde.telemetry.readers.records import Records, decode, records_of

_SCHEMES = {"prom": "http", "proms": "https"}
_TIMEOUT_S = 60.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_BYTES = 256 << 20
_LAST_S = 3600.0
# Prometheus refuses to evaluate at more places than this.
_MOST_STEPS = 11_000
_KEYS = ("query", "start", "end", "last", "step")
_SELECTOR = re.compile(r"\s*(?:[a-zA-Z_:][\w:]*\s*(?:\{[^{}]*\})?|\{[^{}]*\})\s*", re.ASCII)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?", re.ASCII)
_UNITS = {"ms": 1e-3, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def is_address(path: object) -> bool:
    """Whether this is an address of such an API, and no file."""
    return str(path).startswith(tuple(f"{scheme}:" for scheme in _SCHEMES))


def read_prometheus(address: str, *, now_unix_s: float | None = None) -> Records:
    """Ask for the series of ``query`` from ``start`` to ``end``, or of the ``last`` time, an hour unless told.

    Args:
        address: ``prom://HOST[:PORT]/?query=...[&start=UNIX&end=UNIX][&last=2h][&step=5s]``.
        now_unix_s: The end where none is given; the time of this call if None.

    Raises:
        TraceFormatError: The address cannot be understood, nobody answers there, or the answer holds no series.
    """
    # A path that went through pathlib has lost a slash.
    scheme, _, rest = address.partition(":")
    parts = urllib.parse.urlsplit(f"{_SCHEMES[scheme]}://{rest.lstrip('/')}")
    asked = dict(urllib.parse.parse_qsl(parts.query))
    place = _without_password(address)
    unknown = [key for key in asked if key not in _KEYS]
    if not _has_host(parts) or "query" not in asked or unknown:
        what = f"{shown(unknown[0])} is not asked for" if unknown else "no host or no query"
        raise TraceFormatError(
            place, f"{what}; write prom://HOST:PORT/?query=DCGM_FI_DEV_GPU_UTIL&last=2h (also start, end, step)"
        )
    end = _instant(place, asked, "end", time.time() if now_unix_s is None else now_unix_s)
    start = _instant(place, asked, "start", end - _seconds(place, asked, "last", _LAST_S))
    if start >= end:
        raise TraceFormatError(place, "start does not lie before end; correct them")
    query = asked["query"]
    if _SELECTOR.fullmatch(query) and "step" not in asked:
        # As it was scraped: no place between two scrapes is filled with the value before it.
        path, form = "query", {"query": f"{query.strip()}[{round(1000 * (end - start))}ms]", "time": repr(end)}
    else:
        step = _seconds(place, asked, "step", max(1.0, (end - start) / (_MOST_STEPS - 1)))
        if (end - start) / step >= _MOST_STEPS:
            raise TraceFormatError(
                place, f"more than {_MOST_STEPS} steps of {step:g} s, which Prometheus refuses; ask for a shorter time"
            )
        path = "query_range"
        form = {"query": query, "start": repr(start), "end": repr(end), "step": repr(step)}
    values = decode(place, _ask(place, parts, path, form))
    records = records_of(place, values, [])
    if path == "query_range":
        records.warnings.append(f"evaluated every {step:g} s, which repeats values where scrapes are further apart")
    return records


def _has_host(parts: urllib.parse.SplitResult) -> bool:
    try:
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _ask(place: str, parts: urllib.parse.SplitResult, path: str, form: dict[str, str]) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    netloc = f"{host}:{parts.port}" if parts.port else f"{host}"
    url = f"{parts.scheme}://{netloc}{parts.path.rstrip('/')}/api/v1/{path}"
    request = urllib.request.Request(url, urllib.parse.urlencode(form).encode())  # noqa: S310 - http or https
    if parts.username:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    # As for gRPC: a proxy of the site has no business with this very host.
    own = parts.hostname in _LOOPBACK
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if own else []))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read(_MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        said = error.read(4096).decode(errors="replace")
        match = re.search(r'"error"\s*:\s*"((?:[^"\\]|\\.)*)"', said)
        raise TraceFormatError(
            place,
            f"{url} refused ({error.code}): {shown(match[1] if match else said or error.reason)}; correct the query",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise TraceFormatError(
            place, f"no answer from {url}: {reason}; is this the address of Prometheus, and is it running?"
        ) from None
    if len(body) > _MOST_BYTES:
        raise TraceFormatError(place, f"more than {_MOST_BYTES:,} bytes; ask for fewer series or a shorter time")
    return body.decode(errors="replace")


def _without_password(address: str) -> str:
    return re.sub(r"(:/*)[^/@?]*@", r"\1", address, count=1)


def _instant(place: str, asked: dict[str, str], key: str, otherwise: float) -> float:
    text = asked.get(key)
    if text is None:
        return otherwise
    if not re.fullmatch(r"\d{1,19}(\.\d+)?", text):
        raise TraceFormatError(place, f"{shown(text)} is no Unix time", field=key)
    return float(text) * unix_scale(int(float(text))) / 1e9


def _seconds(place: str, asked: dict[str, str], key: str, otherwise: float) -> float:
    text = asked.get(key)
    if text is None:
        return otherwise
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise TraceFormatError(
            place, f"{shown(text)} is no time above zero; write 30s, 2h or a number of seconds", field=key
        )
    return seconds
