"""A name server on loopback that knows SRV records, for the resolver of dnspython."""

from __future__ import annotations

import socket
import threading

import dns.flags
import dns.message
import dns.resolver
import dns.rrset


class DnsServer:
    """Answers over UDP; use it as a context manager.

    Attributes:
        records: Name without the last dot -> SRV records as in a zone: "priority weight port host.".
    """

    def __init__(self, records: dict[str, list[str]]) -> None:
        self.records = records
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)

    def resolver(self) -> dns.resolver.Resolver:
        """Return a resolver that asks this server and no other."""
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], self._socket.getsockname()[1]
        return resolver

    def __enter__(self) -> DnsServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, peer = self._socket.recvfrom(4096)
            if not data:
                return
            query = dns.message.from_wire(data)
            answer = dns.message.make_response(query)
            (question,) = query.question
            found = self.records.get(question.name.to_text(omit_final_dot=True), [])
            if found:
                answer.answer.append(dns.rrset.from_text(question.name, 1, "IN", "SRV", *found))
            self._socket.sendto(answer.to_wire(), peer)
