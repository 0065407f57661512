"""The decoders of what agents and collectors keep on disk: spool, log, state of runs."""

from __future__ import annotations

import contextlib
import struct
import zlib

from fuzz.folders import clean
from fuzz.target import Target
from support.wire_agent import batch, inventory, source_ended

from gpusonde.agent.metrics import SelfCounters
from gpusonde.agent.spool import Spool
from gpusonde.agent.spool.segment import encode_header, encode_record
from gpusonde.agent.spool.segments import examine
from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.log import PartReport, encode_entry, read_part
from gpusonde.collector.storage.local.states import StateFiles
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.collector.storage.model import EntryKind, LogEntry
from gpusonde.collector.storage.store import UnusableStateError
from gpusonde.errors import SpoolError, StoreError
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.durable_files import OsFiles as StoreFiles

_MARKER = b"\x9f\x01\xee\x42\x00\x7a\xc3\x55"  # random in a log that is used
_SPOOL_IDENTITY = b'{"agent_id": "host-1", "spool_id": "0123456789abcdef0123456789abcdef"}'


def _spool_records() -> list[ingest_pb2.Record]:
    return [inventory(), batch(2), batch(3)]


def _segment_seed() -> bytes:
    return encode_header(1, b"") + b"".join(
        encode_record(r.sequence, 10, r.SerializeToString()) for r in _spool_records()
    )


def _read_spool(segment: bytes, identity: bytes | None = None) -> None:
    folder = clean("spool")
    (folder / f"{1:020d}.seg").write_bytes(segment)
    if identity is not None:
        (folder / "identity.json").write_bytes(identity)
    spool = Spool(folder, max_bytes=1 << 20, counters=SelfCounters(), agent_id="agent-1" if identity is None else "")
    spool.open()
    try:
        for sequence in range(spool.first_available_sequence, spool.committed_sequence + 1):
            spool.read(sequence)
    finally:
        spool.close()
    # What a start has repaired is in order for the next one.
    assert examine(folder, StoreFiles(), in_use=False).findings == ()


def _read_log(data: bytes) -> None:
    path = clean("log") / "00000001.log"
    path.write_bytes(data)
    report = PartReport()
    with contextlib.suppress(StoreError):
        list(read_part(path, report))
        assert report.good_bytes + report.damaged_bytes + report.torn_bytes == len(data)


def _entry(payload: bytes, sequence: int = 1, kind: EntryKind = EntryKind.RECORD) -> bytes:
    return encode_entry(LogEntry("agent-1", "spool-1", sequence, 5, kind, payload), _MARKER, 16)


def _recover_store(log: bytes) -> None:
    folder = clean("store")
    (folder / "log").mkdir()
    (folder / "log" / "00000001.log").write_bytes(log)
    store = LocalStore(folder, StoreConfig(reserve_bytes=0))
    try:
        store.open()
    finally:
        store.close()


def _log_of(*entries: bytes) -> bytes:
    return b"GSLOG002" + _MARKER + b"".join(entries)


def _log_with_body(body: bytes) -> bytes:
    head = struct.pack("<QI", 16, len(body))
    return _log_of(_MARKER + head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body)


def _state_files() -> StateFiles:
    return StateFiles(clean("states"), StoreFiles(), lambda: None)


def _state_seed() -> bytes:
    files = _state_files()
    files.write(("a", "g"), 1, b"content")
    return files.path(("a", "g")).read_bytes()


def _read_state(data: bytes) -> None:
    files = _state_files()
    files.path(("a", "g")).write_bytes(data)
    files.read(("a", "g"), 1)


DISK_TARGETS = {
    "spool_segment": Target(_read_spool, lambda: [_segment_seed()], (SpoolError,), is_slow=True),
    "spool_record": Target(
        lambda data: _read_spool(encode_header(1, b"") + encode_record(1, 1, data)),
        lambda: [r.SerializeToString() for r in _spool_records()], (SpoolError,), is_slow=True,
    ),
    "spool_context": Target(
        lambda data: _read_spool(encode_header(1, data) + encode_record(1, 1, batch(1).SerializeToString())),
        lambda: [inventory().SerializeToString()], (SpoolError,), is_slow=True,
    ),
    "spool_identity": Target(
        lambda data: _read_spool(_segment_seed(), data), lambda: [_SPOOL_IDENTITY], (SpoolError,), is_slow=True
    ),
    "log_part": Target(
        _read_log, lambda: [_log_of(*(_entry(r.SerializeToString(), r.sequence) for r in _spool_records()))],
        (ValueError,),
    ),
    "log_recovery": Target(
        lambda data: _recover_store(_log_with_body(data)),
        lambda: [_entry(inventory().SerializeToString())[24:]], (StoreError,), is_slow=True,
    ),
    "log_record": Target(
        lambda data: _recover_store(_log_of(_entry(inventory().SerializeToString()), _entry(data, 2))),
        lambda: [r.SerializeToString() for r in (batch(2), source_ended(2))], (StoreError,), is_slow=True,
    ),
    "log_rejection": Target(
        lambda data: _recover_store(_log_of(_entry(data, 1, EntryKind.REJECTION))),
        lambda: [b'{"field": "f", "problem": "p", "size_bytes": 3, "file_name": "n"}'], (StoreError,), is_slow=True,
    ),
    "state_file": Target(_read_state, lambda: [_state_seed()], (UnusableStateError,)),
}  # fmt: skip
