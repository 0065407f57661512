"""A TCP proxy that can stop forwarding without closing anything, as a network does that loses every packet."""

from __future__ import annotations

import selectors
import socket
import threading


class FreezingProxy:
    """Forwards connections to a target until ``freeze``; use it as a context manager."""

    def __init__(self, target):
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._frozen = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def freeze(self):
        """Forward nothing any more, of old connections and of new ones."""
        self._frozen.set()

    def thaw(self):
        """Forward again, on new connections; those that were frozen have lost bytes and are closed."""
        self._frozen.clear()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join(240)

    def _run(self):
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            peers = {}
            while not self._ended.is_set():
                for key, _ in selector.select(0.05):
                    if key.fileobj is self._listener:
                        near, far = self._listener.accept()[0], socket.create_connection(self._target)
                        peers |= {near: far, far: near}
                        for end in (near, far):
                            selector.register(end, selectors.EVENT_READ)
                        continue
                    near = key.fileobj
                    try:
                        data = near.recv(1 << 16)
                    except OSError:
                        data = b""
                    if self._frozen.is_set() and data:
                        continue
                    try:
                        if data:
                            peers[near].sendall(data)
                    except OSError:
                        data = b""
                    if not data:
                        for end in (near, peers[near]):
                            selector.unregister(end)
                            end.close()
                        del peers[peers.pop(near)]
                        break
            for end in peers:
                end.close()
