"""Asks a collector over HTTP with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from pathlib import Path


def web_address(directory: Path) -> tuple[str, int]:
    """Return where the collector of a data directory serves HTTP."""
    host, _, port = (directory / "web_address").read_text().strip().rpartition(":")
    return host, int(port)


class WebClient:
    """Asks; every answer is (status, headers, body).

    Args:
        directory: The collector's data directory.
        token: Sent with every request.
    """

    def __init__(self, directory: Path, token: str = "") -> None:
        self.address = web_address(directory)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, verb, path, body=None, **headers):
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        try:
            sent = self._headers | {name.replace("_", "-"): value for name, value in headers.items()}
            if isinstance(body, dict):
                body, sent = json.dumps(body), sent | {"Content-Type": "application/json"}
            connection.request(verb, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path):
        """Return a JSON answer that must be one."""
        status, _, body = self.ask("GET", path)
        assert status == 200, body
        return json.loads(body)

    def problem(self, verb, path, body=None, **headers):
        """Return the problem that a request must meet."""
        status, told, answer = self.ask(verb, path, body, **headers)
        assert told["Content-Type"] == "application/problem+json", answer
        document = json.loads(answer)
        assert document["status"] == status
        return document

    def events(self, path):
        """Yield the events of a stream as (name, document)."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            name = ""
            for line in answer:
                key, _, value = line.decode().strip().partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    yield name, json.loads(value)
        finally:
            connection.close()
