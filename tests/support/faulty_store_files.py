"""The store's file layer with faults: a disk that fills up, syncs that fail, power that goes."""

from __future__ import annotations

import errno
import random
from pathlib import Path

from gpusonde.collector.storage.disk.files import OsFiles


class PowerLost(Exception):
    """The power went in the middle of an operation."""


class FaultyStoreFiles(OsFiles):
    """Real files with faults.

    ``room`` is how many more bytes fit (None: any number); a write that does not fit is done in part. ``sync_fails``
    and ``truncate_fails`` make those fail with EIO. ``power_lost_in`` counts operations down to a ``PowerLost``.
    ``lose_power`` then rewrites the directories to what a disk may hold: of a file at least what was synced, of a
    directory's names at least those of its last sync.
    """

    def __init__(self, seed=0):
        self.room = None
        self.sync_fails = False
        self.truncate_fails = False
        self.power_lost_in = None
        self.random = random.Random(seed)
        self.files = {}  # path -> _File, as the running system sees it
        self.durable = {}  # directory -> {path: _File}, as of its last sync

    def step(self):
        if self.power_lost_in is not None:
            self.power_lost_in -= 1
            if self.power_lost_in < 0:
                raise PowerLost

    def create(self, path):
        self.step()
        if self.room is not None and self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.files[path] = _File(self, super().create(path))
        return self.files[path]

    def rename(self, source, target):
        self.step()
        super().rename(source, target)
        self.files[target] = self.files.pop(source)

    def remove(self, path):
        self.step()
        super().remove(path)
        self.files.pop(path, None)

    def sync_directory(self, path):
        self.step()
        super().sync_directory(path)
        self.durable[path] = {p: f for p, f in self.files.items() if p.parent == path}

    def free_bytes(self, path):
        return super().free_bytes(path) if self.room is None else self.room

    def lose_power(self):
        """Leave one of the states that the disk may be in, and work again."""
        directories = {path.parent for path in self.files} | set(self.durable)
        for directory in directories:
            durable = self.durable.get(directory, {})
            current = {p: f for p, f in self.files.items() if p.parent == directory}
            for path in set(durable) | set(current):
                candidates = [durable.get(path), current.get(path)]
                file = candidates[0] if candidates[0] is candidates[1] else self.random.choice(candidates)
                path.unlink(missing_ok=True)
                if file is not None:
                    path.write_bytes(file.after_power_loss(self.random))
        self.files.clear()
        self.durable.clear()
        self.power_lost_in = None


class _File:
    def __init__(self, layer: FaultyStoreFiles, real):
        self._layer = layer
        self._real = real
        self.content = b""
        self.synced = b""

    def write(self, data):
        self._layer.step()
        room = self._layer.room
        fitting = data if room is None else data[: max(room, 0)]
        self._real.write(fitting)
        self.content += fitting
        if room is not None:
            self._layer.room -= len(fitting)
        if len(fitting) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self):
        self._layer.step()
        if self._layer.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        self._real.sync()
        self.synced = self.content

    def truncate(self, size):
        self._layer.step()
        if self._layer.truncate_fails:
            raise OSError(errno.EIO, "Input/output error")
        self._real.truncate(size)
        self.content = self.content[:size]

    def close(self):
        self._real.close()

    def after_power_loss(self, chance: random.Random) -> bytes:
        if self.content[: len(self.synced)] != self.synced:  # cut below its synced length since
            return chance.choice([self.synced, self.content])
        extra = self.content[len(self.synced) :]
        kept = bytearray(extra[: chance.randint(0, len(extra))])
        if kept and chance.random() < 0.5:  # blocks of a file reach the disk in any order
            kept[chance.randrange(len(kept))] ^= 0xFF
        return self.synced + bytes(kept)


def flip_byte(path: Path, offset: int) -> None:
    """Change one byte of a file; a negative offset counts from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(bytes(data))
