"""Small spools on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from gpusonde.agent.spool import Spool
from gpusonde.agent.spool.segment import RECORD, scan
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2

START_NS = 1_700_000_000_000_000_000


def batch(number: int, ticks: int = 10, size: int = 100) -> ingest_pb2.Record:
    """Ten ticks of one GPU, those of the ``number``-th second."""
    block = ingest_pb2.GpuBlock(
        tick_count=ticks,
        start_time_unix_nano=START_NS + number * 10**9,
        tick_offsets_us=(np.arange(ticks) * 100_000).astype("<i4").tobytes(),
        values=b"\x05" * size,
    )
    return ingest_pb2.Record(batch=ingest_pb2.SampleBatch(blocks=[block]))


def write_spool(directory: Path, batches: int = 30, segment_bytes: int = 1024) -> Path:
    """An inventory and so many batches in a spool that is closed again."""
    spool = Spool(directory, max_bytes=1 << 20, segment_bytes=segment_bytes, agent_id="node-7")
    spool.open()
    spool.append(ingest_pb2.Record(inventory=ingest_pb2.Inventory(gpus=[gpu_pb2.Gpu(gpu_uuid="GPU-a")])))
    for number in range(batches):
        spool.append(batch(number))
    spool.close()
    return directory


def write_damaged_spool(directory: Path) -> Path:
    """One with a damaged record in its second segment, and a torn tail."""
    write_spool(directory)
    second, newest = sorted(directory.glob("*.seg"))[1], sorted(directory.glob("*.seg"))[-1]
    content = bytearray(second.read_bytes())
    content[scan(bytes(content)).records[1].offset + RECORD.size] ^= 1
    second.write_bytes(content)
    with newest.open("ab") as file:
        file.write(b"GSR1 half a record")
    return directory


def hold(directory: Path) -> subprocess.Popen[str]:
    """A process that has the spool open, and appends and commits a record whenever it gets a line."""
    code = (
        "import sys; from pathlib import Path; from gpusonde.agent.spool import Spool\n"
        "from support.spools import batch\n"
        "spool = Spool(Path(sys.argv[1]), max_bytes=1 << 20, segment_bytes=1024); spool.open()\n"
        "print('open', flush=True)\n"
        "for number, line in enumerate(sys.stdin):\n"
        "    spool.append(batch(number)); spool.commit(); print('done', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process
