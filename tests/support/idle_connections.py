"""Strangers who connect and say nothing, or never enough; what the server closes they soon open again."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import threading
import time

_CLIENT_HELLO_BEGINS = b"\x16\x03\x01"


def allow_many_files():
    """Raise this process's soft limit of open files to the hard one, and return it."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class IdleConnections:
    """Holds ``count`` connections to ``target``: every other one sends nothing, the rest three bytes of a handshake.

    Those that the server closes are opened again every ``pause_s``.

    ``opened`` counts all that were opened, ``open`` those that the server has not closed.
    """

    def __init__(self, target, count, source="127.0.0.1", pause_s=0.05):
        host, _, port = target.rpartition(":")
        self._address = (host, int(port))
        self._source = (source, 0)
        self._count = count
        self._pause_s = pause_s
        self._selector = selectors.DefaultSelector()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self.opened = 0

    @property
    def open(self):
        return len(self._selector.get_map() or ())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join(240)
        for key in tuple(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _hold(self):
        next_s = 0.0
        while not self._over.is_set():
            if time.monotonic() >= next_s:
                for _ in range(self._count - self.open):
                    if self._over.is_set() or not self._connect():
                        break
                next_s = time.monotonic() + self._pause_s
            for key, _ in self._selector.select(0.05):
                self._look(key.fileobj)

    def _connect(self):
        try:
            channel = socket.create_connection(self._address, 5, self._source)
        except OSError:  # the queue is full, or nobody listens any more
            time.sleep(0.05)
            return False
        channel.setblocking(False)
        self._selector.register(channel, selectors.EVENT_READ)
        self.opened += 1
        if self.opened % 2:
            with contextlib.suppress(OSError):
                channel.send(_CLIENT_HELLO_BEGINS)
        return True

    def _look(self, channel):
        try:
            if channel.recv(65536):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._selector.unregister(channel)
        channel.close()
