"""``ByteCache``: keeps what was used last, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_V = TypeVar("_V")


class ByteCache(Generic[_V]):
    """A mapping that forgets what was not used for longest; may be used from any thread.

    Args:
        capacity_bytes: Sum of the sizes that are kept; 0 keeps nothing.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[Hashable, tuple[_V, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Sum of the sizes of what is kept."""
        return self._size_bytes

    def get(self, key: Hashable) -> _V | None:
        """Return what is kept for a key, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, value: _V, size_bytes: int) -> None:
        """Keep a value; one larger than the whole cache is not kept."""
        if size_bytes > self._capacity_bytes:
            return
        with self._lock:
            if older := self._entries.pop(key, None):
                self._size_bytes -= older[1]
            self._entries[key] = (value, size_bytes)
            self._size_bytes += size_bytes
            while self._size_bytes > self._capacity_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._size_bytes -= freed
