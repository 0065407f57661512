"""A file layer with faults: a disk that fills up, operations that fail, power that goes."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

from gpusonde.service.durable_files import OsFiles


class UnsyncedFiles(OsFiles):
    """Real files that are never synced, for tests that open thousands of spools and pull no plug."""

    def create(self, path, mode=0o640):
        return _Unsynced(super().create(path, mode))

    def open(self, path):
        return _Unsynced(super().open(path))

    def sync_directory(self, path):
        return None


class _Unsynced:
    def __init__(self, real):
        self.write, self.read, self.truncate, self.close = real.write, real.read, real.truncate, real.close

    def sync(self):
        return None


class PowerLost(BaseException):
    """The power went, or the process was killed, in the middle of an operation; nobody can handle that."""


class FaultyFiles(OsFiles):
    """Real files with faults.

    ``room`` is how many more bytes fit (None: any number); a write that does not fit is done in part, and without room
    no file can be made. ``full`` refuses the same without any count. What was synced can be written over all the same.
    ``sync_fails`` and ``truncate_fails`` make those fail with EIO. ``before(number)`` is called before every operation
    that changes something, and may raise or set faults; ``power_lost_in`` counts operations down to a ``PowerLost``,
    after which none is done any more.
    ``lose_power`` then rewrites the directories to what a disk may hold: of a file at least what was synced, and of
    what was not, any blocks; of a directory's names at least those of its last sync.
    """

    def __init__(self, seed=0):
        self.full = False
        self.room = None
        self.sync_fails = False
        self.truncate_fails = False
        self.power_lost_in = None
        self.dead = False
        self.before = lambda number: None
        self.operations = 0
        self.syncs = 0
        self.random = random.Random(seed)
        self.contents = {}  # path -> _Content, as the running system sees it
        self.durable = {}  # directory -> {path: _Content}, as of its last sync

    def step(self):
        number, self.operations = self.operations, self.operations + 1
        if self.power_lost_in is not None:
            self.power_lost_in -= 1
            self.dead = self.dead or self.power_lost_in < 0
        if self.dead:
            raise PowerLost
        try:
            self.before(number)
        except PowerLost:
            self.dead = True
            raise

    def create(self, path, mode=0o640):
        self.step()
        if self.full or (self.room is not None and self.room <= 0):
            raise OSError(errno.ENOSPC, "No space left on device")
        real = super().create(path, mode)
        self.contents[path] = _Content()
        return _FaultyFile(self, real, self.contents[path])

    def open(self, path):
        real = super().open(path)
        self.adopt(path)
        return _FaultyFile(self, real, self.contents[path])

    def rename(self, source, target):
        self.step()
        self.adopt(source)
        self.adopt(target)
        super().rename(source, target)
        self.contents[target] = self.contents.pop(source)

    def adopt(self, path):
        """Take over a file that was there before, and is safe."""
        if path not in self.contents and path.is_file():
            content = self.contents[path] = _Content(path.read_bytes())
            self.durable.setdefault(path.parent, {})[path] = content

    def remove(self, path):
        self.step()
        self.adopt(path)
        super().remove(path)
        self.contents.pop(path, None)

    def sync_directory(self, path):
        self.step()
        self.durable[path] = {p: content for p, content in self.contents.items() if p.parent == path}

    def free_bytes(self, path):
        return super().free_bytes(path) if self.room is None else self.room

    def fitting(self, data):
        """The part of the data that the disk takes."""
        if self.full:
            return data[: self.random.randrange(len(data))] if data else b""
        if self.room is None:
            return data
        fitting = data[: max(self.room, 0)]
        self.room -= len(fitting)
        return fitting

    def lose_power(self):
        """Leave one of the states that the disks may be in, and work again."""
        directories = {path.parent for path in self.contents} | set(self.durable)
        for directory in sorted(directories):
            durable = self.durable.get(directory, {})
            current = {p: content for p, content in self.contents.items() if p.parent == directory}
            for path in sorted(set(durable) | set(current)):
                candidates = [durable.get(path), current.get(path)]
                content = candidates[0] if candidates[0] is candidates[1] else self.random.choice(candidates)
                path.unlink(missing_ok=True)
                if content is not None:
                    path.write_bytes(content.after_power_loss(self.random))
        self.contents.clear()
        self.durable.clear()
        self.power_lost_in = None
        self.dead = False


class _Content:
    """What was written to a file, and how much of it is safe."""

    def __init__(self, data=b""):
        self.written = self.synced = data

    def after_power_loss(self, chance):
        if self.written[: len(self.synced)] != self.synced:  # cut or written over below its synced length since
            return chance.choice([self.synced, self.written])
        extra = self.written[len(self.synced) :]
        kept = bytearray(extra[: chance.randint(0, len(extra))])
        if kept and chance.random() < 0.5:  # blocks of a file reach the disk in any order
            kept[chance.randrange(len(kept))] ^= 0xFF
        return self.synced + bytes(kept)


class _FaultyFile:
    def __init__(self, layer, real, content):
        self._layer = layer
        self._real = real
        self._content = content
        self.read = real.read
        self.close = real.close

    def write(self, data, offset):
        try:
            self._layer.step()
        except PowerLost:
            self._put(data[: self._layer.random.randrange(len(data) + 1)], offset)
            raise
        in_place = max(0, len(self._content.synced) - offset)
        fitting = data[:in_place] + self._layer.fitting(data[in_place:])
        self._put(fitting, offset)
        if len(fitting) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self):
        self._layer.step()
        self._layer.syncs += 1
        if self._layer.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        self._content.synced = self._content.written

    def truncate(self, size):
        self._layer.step()
        if self._layer.truncate_fails:
            raise OSError(errno.EIO, "Input/output error")
        self._real.truncate(size)
        self._content.written = self._content.written[:size]

    def _put(self, data, offset):
        self._real.write(data, offset)
        before = self._content.written
        self._content.written = before[:offset].ljust(offset, b"\0") + data + before[offset + len(data) :]


def copy_directory(source: Path, target: Path) -> Path:
    """Copy a directory as a crash would leave it; returns the copy."""
    shutil.copytree(source, target)
    return target


def flip_byte(path: Path, offset: int) -> None:
    """Change one byte of a file; a negative offset counts from its end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(bytes(data))
