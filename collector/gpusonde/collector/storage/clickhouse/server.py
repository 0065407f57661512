"""``ClickHouseServer``: statements and rows to a server over its HTTP interface, on connections that are kept.

ClickHouse's own client takes 1.3 ms of CPU for a statement and 1.8 ms for an insert, whatever is in them, and a
collector has up to five for each agent that greets it. Of the interface little is needed: values bound by the server,
answers and rows as Arrow or JSON.
"""

from __future__ import annotations

import http.client
import re
import secrets
import ssl
import urllib.request
from base64 import b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from gpusonde.collector.config import ClickHouseConfig
from gpusonde.errors import StoreError

Parameters = Mapping[str, int | str | Sequence[int] | Sequence[str]]

# The first with codec GCD (September 2023).
_LEAST_VERSION = (23, 9)
# Not all servers know them; of one that it does not know, a server refuses the statement.
FORMAT_SETTINGS: Mapping[str, str | int] = {
    "output_format_arrow_compression_method": "none",
    "output_format_arrow_string_as_string": 1,
    "output_format_json_quote_64bit_integers": 0,
}
_ESCAPES = str.maketrans({character: f"\\{character}" for character in "\\'`\t\n"})
# Beyond, values travel as a form: an address has its limits at proxies (8 KiB) and servers.
_LONGEST_VALUES = 4000
_MOST_IDLE = 8
# A body that is longer is not copied behind its head.
_SENT_AT_ONCE = 1 << 16
_LONGEST_LINE = 1 << 16
_MOST_HEADERS = 100


class StatementError(Exception):
    """A statement that the server has refused; not of the tree: ``ClickHouseSql`` makes store errors of all that fails.

    Attributes:
        code: ClickHouse's number of the error, 0 if it gave none.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class ClickHouseServer:
    """A server; safe for threads, each of which has a connection of its own while it asks.

    Args:
        config: Where it is and how to get in.
        settings: Said with every statement.

    Raises:
        StoreError: The password cannot be read, or the server is too old.
        OSError: It cannot be reached, or a file of the TLS settings cannot be read.
        StatementError: It does not let us in.
    """

    def __init__(self, config: ClickHouseConfig, settings: Mapping[str, str | int]) -> None:
        address = urlsplit(config.url)
        secure = address.scheme == "https"
        self._host = address.hostname or "localhost"
        self._port = address.port or (8443 if secure else 8123)
        self._proxy = _proxy(address.scheme, f"{self._host}:{self._port}")
        self._tls = _tls_context(config) if secure else None
        self._connect_timeout_s = config.connect_timeout_s
        self._timeout_s = config.timeout_s
        host = f"[{self._host}]" if ":" in self._host else self._host
        headers = {"Host": f"{host}:{self._port}", "Accept-Encoding": "identity", **_credentials(config, secure=secure)}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._idle: deque[_Connection] = deque()
        self._database = ""
        self._settings: dict[str, str | int] = {}
        self._always = ""
        _check_version(config.url, self._ask({}, b"SELECT version()").decode(errors="replace").strip())
        # wait_end_of_query: an error on the way is one, and not half an answer.
        self.use({**settings, "wait_end_of_query": 1})
        names = ", ".join(f"'{name}'" for name in FORMAT_SETTINGS)
        known = self._ask({}, f"SELECT name FROM system.settings WHERE name IN ({names})".encode()).decode().split()  # noqa: S608 - own names
        self.use({name: FORMAT_SETTINGS[name] for name in known})

    def use(self, settings: Mapping[str, str | int], database: str | None = None) -> None:
        """Say more settings with every statement, and, where given, the database that it is about."""
        self._settings |= settings
        self._database = self._database if database is None else database
        self._always = urlencode(self._settings | ({"database": self._database} if self._database else {}))

    def query(self, statement: str, parameters: Parameters, form: str) -> bytes:
        """Return the answer to a query in one of ClickHouse's formats."""
        values = {f"param_{name}": _bound(value) for name, value in parameters.items()}
        if sum(map(len, values.values())) > _LONGEST_VALUES:
            boundary = secrets.token_hex(16)
            body = _form({"query": statement, **values}, boundary)
            return self._ask({"default_format": form}, body, f"multipart/form-data; boundary={boundary}")
        return self._ask({"default_format": form, **values}, statement.encode())

    def insert(self, table: str, columns: Sequence[str], rows: bytes | pa.Buffer, form: str) -> None:
        """Insert rows that are in one of ClickHouse's formats."""
        names = ", ".join(f"`{name}`" for name in columns)
        statement = f"INSERT INTO {table} ({names}) FORMAT {form}"
        self._ask({"query": statement}, rows, "application/octet-stream")

    def run(self, statement: str) -> None:
        """Run a statement that answers nothing."""
        self._ask({}, statement.encode())

    def close(self) -> None:
        """Disconnect; nothing is asked any more."""
        while self._idle:
            self._idle.pop().close()

    def _ask(
        self, values: Mapping[str, str], body: bytes | pa.Buffer, kind: str = "text/plain; charset=utf-8"
    ) -> bytes:
        content = memoryview(body)
        head = (
            f"POST /?{self._always}&{urlencode(values)} HTTP/1.1\r\n{self._headers}"
            f"Content-Type: {kind}\r\nContent-Length: {content.nbytes}\r\n\r\n"
        ).encode("latin-1")
        while True:
            try:
                connection, kept = self._idle.pop(), True
            except IndexError:
                connection, kept = self._connect(), False
            try:
                answer = connection.ask(head, content)
            except ConnectionError:
                connection.close()
                if kept:
                    # Servers close idle connections. One that closed this later may have done what was asked: asking
                    # changes nothing, and of rows that are inserted twice one counts.
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            break
        if answer.will_close or len(self._idle) >= _MOST_IDLE:
            connection.close()
        else:
            self._idle.append(connection)
        code = answer.headers.get("x-clickhouse-exception-code")
        if answer.status != HTTPStatus.OK or code:
            raise _refusal(answer.status, code, answer.content)
        return answer.content

    def _connect(self) -> _Connection:
        host, port = self._proxy or (self._host, self._port)
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=self._connect_timeout_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._connect_timeout_s)
        if self._proxy:
            connection.set_tunnel(self._host, self._port)
        connection.connect()
        connection.sock.settimeout(self._timeout_s)
        return _Connection(connection)


class _HttpAnswer(NamedTuple):
    """An answer; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes
    will_close: bool


class _Connection:
    """Asks over a connection that ``http.client`` has made.

    That makes an e-mail of every answer's headers: of the 0.4 ms that a statement took in caches that others had
    filled, three quarters were Python's for that and the like, and a greeting has up to five.

    Args:
        made: The connection.
    """

    def __init__(self, made: http.client.HTTPConnection) -> None:
        self._made = made
        self._reader: BinaryIO = made.sock.makefile("rb")

    def ask(self, head: bytes, body: memoryview) -> _HttpAnswer:
        """Send a request and return the answer.

        Raises:
            OSError: The connection ended, or the answer takes too long.
            http.client.HTTPException: What came is no answer of HTTP/1.
        """
        if body.nbytes <= _SENT_AT_ONCE:
            self._made.sock.sendall(head + body)
        else:
            self._made.sock.sendall(head)
            self._made.sock.sendall(body)
        try:
            status = HTTPStatus.CONTINUE.value
            while status == HTTPStatus.CONTINUE:
                version, status = self._status()
                headers = self._headers()
            way = headers.get("transfer-encoding", "").lower()
            length = headers.get("content-length")
            if way not in ("", "chunked"):
                raise http.client.HTTPException(f"a body in an encoding that was not asked for: {way}")
            if length is None or way:
                content = self._chunks() if way else self._reader.read()
            else:
                content = self._read(int(length))
        except ValueError as error:
            raise http.client.HTTPException(f"a number that is none: {error}") from None
        wish = headers.get("connection", "" if version != "HTTP/1.0" else "close").lower()
        return _HttpAnswer(status, headers, content, "close" in wish or not (way or length))

    def close(self) -> None:
        """Disconnect."""
        self._reader.close()
        self._made.close()

    def _status(self) -> tuple[str, int]:
        line = self._line()
        version, _, rest = line.partition(" ")
        if not version.startswith("HTTP/1."):
            raise http.client.BadStatusLine(line)
        return version, int(rest[:3])

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
            if len(headers) > _MOST_HEADERS:
                raise http.client.HTTPException(f"more than {_MOST_HEADERS} headers")
        return headers

    def _chunks(self) -> bytes:
        chunks: list[bytes] = []
        while size := int(self._line().partition(";")[0], 16):
            chunks.append(self._read(size))
            self._line()
        self._headers()  # what may follow the last one
        return b"".join(chunks)

    def _line(self) -> str:
        line = self._reader.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            raise http.client.LineTooLong("answer")
        if not line.endswith(b"\n"):
            raise http.client.RemoteDisconnected("the server ended the connection without a whole answer")
        return line.rstrip(b"\r\n").decode("latin-1")

    def _read(self, size: int) -> bytes:
        content = self._reader.read(size)
        if size < 0 or len(content) < size:
            raise http.client.IncompleteRead(content, size - len(content))
        return content


def _bound(value: int | str | Sequence[int] | Sequence[str]) -> str:
    """Return a value as the server takes it for a parameter: text with escapes, lists with quoted text."""
    if isinstance(value, str):
        return value.translate(_ESCAPES)
    if isinstance(value, int):
        return str(value)
    items = [f"'{_bound(item)}'" if isinstance(item, str) else str(item) for item in value]
    return f"[{','.join(items)}]"


def _form(fields: Mapping[str, str], boundary: str) -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    return f"{''.join(parts)}--{boundary}--\r\n".encode()


def _refusal(status: int, code: str | None, content: bytes) -> StatementError:
    text = content.decode(errors="replace").strip() or f"HTTP status {status}"
    number = code or next(iter(re.findall(r"^Code: (\d+)", text)), "0")
    return StatementError(text, int(number))


def _credentials(config: ClickHouseConfig, *, secure: bool) -> dict[str, str]:
    if secure and config.tls_certificate:
        return {"X-ClickHouse-User": config.user, "X-ClickHouse-SSL-Certificate-Auth": "on"}
    try:
        password = Path(config.password_file).read_text().rstrip("\n") if config.password_file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the password of ClickHouse cannot be read from {config.password_file}: {error}") from error
    return {"Authorization": f"Basic {b64encode(f'{config.user}:{password}'.encode()).decode()}"}


def _tls_context(config: ClickHouseConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=config.tls_ca or None)
    if config.tls_certificate:
        context.load_cert_chain(config.tls_certificate, config.tls_key or None)
    return context


def _proxy(scheme: str, place: str) -> tuple[str, int] | None:
    """Return where the environment says that servers are reached through, as for other programs."""
    found = urllib.request.getproxies_environment().get(scheme)
    if not found or urllib.request.proxy_bypass_environment(place):  # type: ignore[attr-defined]  # typeshed lacks it
        return None
    address = urlsplit(found if "//" in found else f"//{found}")
    return (address.hostname, address.port or 80) if address.hostname else None


def _check_version(url: str, version: str) -> None:
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < _LEAST_VERSION:
        least = ".".join(map(str, _LEAST_VERSION))
        raise StoreError(f"ClickHouse at {url} is version {version}, the collector needs {least} or newer: update it")
