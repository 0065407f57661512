"""A TCP proxy with the faults of a network: it refuses, holds back, trickles, resets and closes one direction."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

FAULTS = ("refuse", "black_hole", "delay", "trickle", "reset", "half_close")
_RESET = struct.pack("ii", 1, 0)


class FaultyProxy:
    """Forwards connections to a target, and meanwhile has one of ``FAULTS`` or none; a context manager.

    Args:
        target: ``host:port``.
    """

    def __init__(self, target: str):
        host, _, port = target.rpartition(":")
        self._to = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.fault = ""
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._ended = threading.Event()

    def begin(self, fault: str):
        """Begin a fault; those of a moment befall the connections that are open."""
        self.fault = fault
        for near, far in [*self._pairs]:
            with contextlib.suppress(OSError):
                if fault == "reset":
                    for end in (near, far):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        end.shutdown(socket.SHUT_RDWR)
                elif fault == "half_close":
                    near.shutdown(socket.SHUT_WR)

    def end(self):
        """Be a network again; what was held back arrives late."""
        self.fault = ""

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _accept(self):
        while not self._ended.is_set():
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.fault == "refuse":
                    raise ConnectionRefusedError
                far = socket.create_connection(self._to, timeout=5)
                far.settimeout(None)
            except OSError:
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                near.close()
                continue
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source, sink):
        try:
            while data := source.recv(7 if self.fault == "trickle" else 1 << 16):
                while self.fault == "black_hole" and not self._ended.wait(0.01):
                    pass
                if self.fault in ("delay", "trickle"):
                    self._ended.wait(0.3 if self.fault == "delay" else 0.005)
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
