"""Series straight from the API of Prometheus or of what speaks like it: ``prom://HOST:PORT/?query=...``.

A selector is asked for as it was scraped, with the scrapes' own times; any other query is evaluated every ``step``.
Prefixes in front of ``/api/v1`` are kept, ``proms://`` is https, a user and password stand in front of the host.
"""

from __future__ import annotations

import base64
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode

from gpusonde.errors import TraceFormatError, shown
from gpusonde.http_request import send
from gpusonde.telemetry.readers.delimited import unix_scale
from gpusonde.telemetry.readers.records import Records, decode, records_of

_SCHEMES = {"prom": "http", "proms": "https"}
_SILENCE_S = 60.0
_LONGEST_ANSWER_S = 600.0
_MOST_BYTES = 256 << 20
_LAST_S = 3600.0
# Prometheus refuses to evaluate at more places than this.
_MOST_STEPS = 11_000
_KEYS = ("query", "start", "end", "last", "step")
_ASKS = re.compile(rf"\?(?=(?:{'|'.join(_KEYS)})=)")
_SERVER = re.compile(
    r"(?P<host>[\w.-]+|\[[\w:.%]+\])(?::(?P<port>[1-9]\d{0,4}))?(?P<prefix>/[!-~]*?)?(?:\?(?P<asked>.*))?", re.DOTALL
)
# What a key is given, up to the next one: an ampersand in a string of PromQL begins none.
_ASKED = re.compile(
    r"""(\w+)=((?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`|&(?!\w+=)|[^&])*)(?:&|\Z)""", re.ASCII | re.DOTALL
)
_SELECTOR = re.compile(r"\s*(?:[a-zA-Z_:][\w:]*\s*(?:\{[^{}]*\})?|\{[^{}]*\})\s*", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)?", re.ASCII)
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
    place = without_password(address)
    server = _parse(place, address)
    asked = server.asked
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
    records = records_of(place, _decoded(place, _ask(place, server, path, form)), [])
    if path == "query_range":
        records.warnings.append(f"evaluated every {step:g} s, which repeats values where scrapes are further apart")
    return records


def without_password(address: object) -> str:
    """Return an address as it may be shown: without user and password. What is no address stays as it is."""
    text = str(address)
    if not is_address(text):
        return text
    # A path has one slash for two.
    return f"{text.partition(':')[0]}://{_split(text)[1]}"


def _split(address: str) -> tuple[str, str]:
    """Return user and password, and what comes after them; they may hold any character.

    They end at the last @ before the query, which may have an @ of its own, or at the last one where there is no query.
    """
    rest = address.partition(":")[2].lstrip("/")
    queries = [match.start() for match in _ASKS.finditer(rest)]
    pair, _, after = rest.rpartition("@") if not queries else rest[: queries[-1]].rpartition("@")
    return pair, after + (rest[queries[-1] :] if queries else "")


@dataclass(frozen=True)
class _Api:
    """An API, as an address names it."""

    url: str
    host: str
    pair: str
    asked: dict[str, str]


def _parse(place: str, address: str) -> _Api:
    pair, rest = _split(address)
    match = _SERVER.fullmatch(rest)
    asked, at = {}, 0
    text = (match["asked"] if match is not None else None) or ""
    while found := _ASKED.match(text, at):
        asked[found[1]], at = unquote(found[2]), found.end()
        if at == len(text):
            break
    unknown = next((key for key in asked if key not in _KEYS), text[at:])
    if match is None or int(match["port"] or 0) >= 1 << 16 or "query" not in asked or unknown:
        what = f"{shown(unknown)} is not asked for" if unknown else "no host or no query"
        raise TraceFormatError(
            place, f"{what}; write prom://HOST:PORT/?query=DCGM_FI_DEV_GPU_UTIL&last=2h (also start, end, step)"
        )
    scheme = _SCHEMES[address.partition(":")[0]]
    port = f":{match['port']}" if match["port"] else ""
    url = f"{scheme}://{match['host']}{port}{(match['prefix'] or '').rstrip('/')}/api/v1/"
    return _Api(url, match["host"].strip("[]"), pair, asked)


def _ask(place: str, api: _Api, path: str, form: dict[str, str]) -> str:
    url = f"{api.url}{path}"
    request = urllib.request.Request(url, urlencode(form).encode())  # noqa: S310 - http or https
    if api.pair:
        user, _, password = api.pair.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}"
        request.add_header("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")
    try:
        body = send(request, _LONGEST_ANSWER_S, silence_s=_SILENCE_S, most_bytes=_MOST_BYTES)
    except TimeoutError:
        raise TraceFormatError(
            place, f"{url} took longer than {_LONGEST_ANSWER_S:g} s; ask for fewer series or a shorter time"
        ) from None
    except urllib.error.HTTPError as error:
        if error.code // 100 == 3:
            leads = shown(error.headers.get("Location") or "elsewhere")
            raise TraceFormatError(
                place, f"{url} leads to {leads}, which is not followed; write the address of Prometheus itself"
            ) from None
        said = error.read().decode(errors="replace")
        match = re.search(r'"error"\s*:\s*"((?:[^"\\]|\\.)*)"', said)
        raise TraceFormatError(
            place,
            f"{url} refused ({error.code}): {shown(match[1] if match else said or error.reason)}; correct the query",
        ) from None
    except OSError as error:
        reason = shown(str(getattr(error, "reason", error)) or type(error).__name__).strip("'\"")
        raise TraceFormatError(
            place, f"no answer from {url}: {reason}; is this the address of Prometheus, and is it running?"
        ) from None
    if len(body) > _MOST_BYTES:
        raise TraceFormatError(place, f"more than {_MOST_BYTES:,} bytes; ask for fewer series or a shorter time")
    return body.decode(errors="replace")


def _decoded(place: str, body: str) -> list[tuple[int, Any]]:
    """Return the one object that every answer is."""
    try:
        values = decode(place, body)
    except TraceFormatError:
        values = []
    if len(values) != 1 or not isinstance(values[0][1], dict) or not {"data", "error"} & values[0][1].keys():
        raise TraceFormatError(
            place, f"what answers there is not Prometheus, it says {shown(body)}; correct host, port or path"
        )
    return values


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
