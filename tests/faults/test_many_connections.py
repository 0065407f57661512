"""More connections than the process may have files open: the store goes on."""

import socket
from contextlib import ExitStack

from support.running_collector import ProcessCollector
from support.wire_agent import WireStream, batch, hello, inventory

LIMIT = 320
ROOM = 160  # half of so low a limit; the rest is for the store


def test_connections_leave_the_store_the_files_it_needs(tmp_path):
    with ProcessCollector(tmp_path / "data", open_files=LIMIT) as collector, ExitStack() as stack:
        first = stack.enter_context(WireStream(collector.target, hello("agent-1")))
        first.greet()
        host, _, port = collector.target.rpartition(":")
        flood = [stack.enter_context(socket.create_connection((host, int(port)), 5)) for _ in range(2 * ROOM)]
        # The store has not opened its log yet: it needs a file now.
        first.send(inventory(1), batch(2))
        while first.acked < 2:
            first.acked = first.next().ack.durable_sequence
        for connection in flood:
            connection.close()
        later = stack.enter_context(WireStream(collector.target, hello("agent-2")))
        assert later.greet().durable_sequence == 0
