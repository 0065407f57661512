"""ClickHouse's HTTP interface, as much of it as its client uses, in front of the engine in this process.

It shows that what the collector sends over HTTP is whole: addresses, credentials, bound values, Arrow bodies, error
codes. It is no server: sessions, compression, limits and everything else that ClickHouse does behind HTTP are not here.
"""

from __future__ import annotations

import base64
import email
import re
import ssl
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import chdb

_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_TABLE = re.compile(r"(?:INTO|FROM)\s+`?(\w+)`?(?!\.)\b", re.IGNORECASE)
_INSERT = re.compile(r"^(INSERT\s+INTO\s+.*?)\s+FORMAT\s+(\w+)\s*$", re.IGNORECASE | re.DOTALL)


class ClickHouseHttp:
    """Serves an engine's directory on loopback for one user.

    Attributes:
        url: Where.
        refusals: Requests with a wrong user or password.
        broken: While True, every request is cut off without an answer.
        forgets: While True, a connection is closed after each answer, which does not say so.
        connections: How many were made.
        version: What the server says that it is, if not the engine's; servers before 20 lack what clients ask for.
        replicated: Names of tables that the server says are replicated.
        busy: So many of the next inserts meet that of another collector, if they ask for a quorum.
        tunnels: Places that it was asked for as a proxy.
        settings: Settings of every insert and query of a table of the collector, as (table, values).
    """

    def __init__(
        self, directory: Path, user: str = "gpusonde", password: str = "s3cret", tls: ssl.SSLContext | None = None
    ) -> None:
        self._engine = chdb.connect(str(directory))
        self._credentials = (user, password)
        self._lock = threading.Lock()
        self.refusals = 0
        self.broken = self.forgets = False
        self.connections = 0
        self.version = ""
        self.replicated: tuple[str, ...] = ()
        self.busy = 0
        self.tunnels: list[str] = []
        self.settings: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # An answer goes out as one, as a server's does; its body would else wait for the peer's delayed ACK.
            wbufsize = -1

            def do_POST(self) -> None:
                outer.answer(self)

            do_GET = do_POST

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def do_CONNECT(self) -> None:
                """Answer as a proxy does, and go on as the server behind it."""
                outer.tunnels.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.flush()
                self.close_connection = False

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> ClickHouseHttp:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._engine.close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        values = dict(parse_qsl(urlsplit(request.path).query, keep_blank_values=True))
        body = _body(request)
        if (kind := request.headers.get("Content-Type", "")).startswith("multipart/form-data"):
            # So the client sends values that are too long for an address.
            values |= _form(kind, body)
            body = b""
        if self.broken:
            request.close_connection = True
            return
        if self._user(request) != self._credentials:
            self.refusals += 1
            self._reply(request, 403, b"Code: 516. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)", 516)
            return
        try:
            with self._lock:
                found = self._run(values, body)
        except RuntimeError as error:
            code = re.search(r"Code: (\d+)", str(error))
            self._reply(request, 500, str(error).encode(), int(code[1]) if code else 1)
        else:
            self._reply(request, 200, found)

    def _run(self, values: dict[str, str], body: bytes) -> bytes:
        statement = values.get("query") or body.decode()
        if self.version:
            statement = statement.replace("version()", f"'{self.version}'")
        if self.replicated:
            names = ", ".join(f"'{name}'" for name in self.replicated)
            engine = f"if(name IN ({names}), concat('Replicated', engine), engine) AS engine"
            statement = statement.replace("system.tables", f"(SELECT * REPLACE ({engine}) FROM system.tables)")
        if values.get("database"):
            self._engine.query(f"USE {values['database']}")
        insert = _INSERT.match(statement) if "query" in values else None
        if table := _TABLE.search(statement):
            self.settings.append((table[1], values))
        if insert:
            if self.busy and values.get("insert_quorum"):
                self.busy -= 1
                raise RuntimeError("Code: 286. DB::Exception: Quorum for previous write has not been satisfied yet.")
            with tempfile.NamedTemporaryFile(suffix=".data") as file:
                file.write(body)
                file.flush()
                self._engine.query(f"{insert[1]} FROM INFILE '{file.name}' FORMAT {insert[2]}")
            return b""
        bound = {name[6:]: value for name, value in values.items() if name.startswith("param_")}
        found = _FORMAT.search(statement)
        form = found[1] if found else values.get("default_format", "TabSeparated")
        return self._engine.query(_FORMAT.sub("", statement), form, params=bound).bytes() or b""

    def _user(self, request: BaseHTTPRequestHandler) -> tuple[str, str]:
        if name := request.headers.get("X-ClickHouse-User"):
            return name, request.headers.get("X-ClickHouse-Key", "")
        kind, _, credentials = request.headers.get("Authorization", "").partition(" ")
        user, _, password = base64.b64decode(credentials).decode().partition(":") if kind == "Basic" else ("", "", "")
        return user, password

    def _reply(self, request: BaseHTTPRequestHandler, status: int, body: bytes, code: int | None = None) -> None:
        request.send_response(status)
        if code is not None:
            request.send_header("X-ClickHouse-Exception-Code", str(code))
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
        request.wfile.flush()
        request.close_connection |= self.forgets


def _form(kind: str, body: bytes) -> dict[str, str]:
    message = email.message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    found = {}
    for part in message.get_payload():
        content = part.get_payload(decode=True)
        found[str(part.get_param("name", header="content-disposition"))] = content.decode()
    return found


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))
    parts = []
    while size := int(request.rfile.readline(), 16):
        parts.append(request.rfile.read(size))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)
