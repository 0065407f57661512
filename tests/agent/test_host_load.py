"""What the agent says of its host's load: means between two readings, and nothing that it cannot read."""

import asyncio

import pytest
from support.uplink_rig import Rig

from gpusonde.agent.host import HostLoadReader, describe_host
from gpusonde.agent.uplink.session import GreetedStream, Session, StreamLimits
from gpusonde.common.v1 import gpu_pb2
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.service.process import end


class Kernel:
    """The files that a kernel shows."""

    def __init__(self, directory):
        self.proc, self.blocks = directory / "proc", directory / "block"
        self.proc.mkdir()
        self.now_s = 100.0
        for disk in ("sda", "nvme0n1", "loop0", "dm-0"):
            (self.blocks / disk).mkdir(parents=True)
        self.show()

    def show(self, busy=0, idle=0, disks=()):
        (self.proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4\nintr 5\n")
        (self.proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
        rows = [f"8 0 {name} 1 0 {read} 5 2 0 {written} 5 0 {ms} 9" for name, read, written, ms in disks]
        (self.proc / "diskstats").write_text("\n".join(rows) + "\n")

    def reader(self):
        return HostLoadReader(self.proc.parent, self.proc, self.blocks, lambda: self.now_s)


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


def test_the_first_reading_has_no_means_and_the_next_ones_are_of_the_time_between(kernel):
    reader = kernel.reader()
    kernel.show(busy=1000, idle=1000, disks=[("sda", 0, 0, 0)])
    first = reader.read()
    assert (first.available_memory_bytes, first.HasField("cpu_busy_ratio")) == (400 * 1024, False)
    assert first.free_disk_bytes > 0
    kernel.now_s += 10.0
    kernel.show(busy=1075, idle=1025, disks=[("sda", 2000, 48, 2500)])
    second = reader.read()
    assert second.cpu_busy_ratio == pytest.approx(0.75)
    assert second.disk_bytes_per_second == pytest.approx(2048 * 512 / 10)
    assert second.disk_busy_ratio == pytest.approx(0.25)


def test_the_busiest_disk_counts_and_what_is_made_of_disks_does_not(kernel):
    reader = kernel.reader()
    names = ("sda", "nvme0n1", "loop0", "dm-0", "sda1")
    kernel.show(disks=[(name, 0, 0, 0) for name in names])
    reader.read()
    kernel.now_s += 1.0
    kernel.show(disks=[(name, 2, 0, ms) for name, ms in zip(names, (100, 300, 900, 900, 900), strict=True)])
    found = reader.read()
    assert (found.disk_bytes_per_second, found.disk_busy_ratio) == (2 * 2 * 512, 0.3)


def test_a_disk_that_comes_or_goes_leaves_a_reading_without_a_mean(kernel):
    reader = kernel.reader()
    kernel.show(disks=[("sda", 0, 0, 0), ("nvme0n1", 5, 5, 5)])
    reader.read()
    kernel.now_s += 1.0
    kernel.show(disks=[("sda", 10, 0, 10)])
    assert not reader.read().HasField("disk_bytes_per_second")
    kernel.now_s += 1.0
    kernel.show(disks=[("sda", 20, 0, 10)])
    assert reader.read().disk_bytes_per_second == 10 * 512


def test_what_cannot_be_read_stays_unset(kernel, tmp_path):
    nowhere = HostLoadReader(tmp_path / "none", tmp_path / "none", tmp_path / "none")
    nowhere.read()
    assert nowhere.read() == gpu_pb2.HostLoad()
    (kernel.proc / "stat").write_text("cpu x y\n")
    (kernel.proc / "meminfo").write_text("MemAvailable:\n")
    reader = kernel.reader()
    reader.read()
    assert not reader.read().HasField("cpu_busy_ratio")


CPUINFO = """\
processor\t: {0}
model name\t: A Processor
flags\t\t: fpu sse avx {flags}
cpu MHz\t\t: 2000.5
physical id\t: {package}
core id\t\t: {core}

"""


def write_processors(proc, rows, flags=""):
    text = "".join(
        CPUINFO.format(number, flags=flags, package=package, core=core) for number, (package, core) in enumerate(rows)
    )
    (proc / "cpuinfo").write_text(text)


def test_cores_are_counted_once_however_many_processors_they_show(kernel, tmp_path):
    write_processors(kernel.proc, [(0, 0), (0, 1), (1, 0), (1, 1)] * 2, "fma")
    host = describe_host(kernel.proc, tmp_path / "none", tmp_path)
    assert host.cpu_core_count == 4
    assert host.cpu_flops == pytest.approx(4 * 2000.5e6 * 32)
    assert host.disk_bytes > 0


def test_the_highest_clock_counts_where_it_is_told(kernel, tmp_path):
    write_processors(kernel.proc, [(0, 0)], "fma avx512f")
    folder = tmp_path / "cpu" / "cpu0" / "cpufreq"
    folder.mkdir(parents=True)
    (folder / "cpuinfo_max_freq").write_text("4000000\n")
    assert describe_host(kernel.proc, tmp_path / "cpu").cpu_flops == pytest.approx(4e9 * 64)


def test_other_processors_tell_less(kernel, tmp_path):
    (kernel.proc / "cpuinfo").write_text("processor: 0\nFeatures: fp asimd\n\nprocessor: 1\nFeatures: fp asimd\n")
    host = describe_host(kernel.proc, tmp_path / "none")
    assert (host.cpu_core_count, host.cpu_flops) == (2, 0.0)


class Call:
    """Acknowledges records at once and keeps what was written."""

    def __init__(self):
        self.written = []
        self.responses = asyncio.Queue()

    async def write(self, data):
        request = ingest_pb2.StreamSamplesRequest.FromString(data)
        self.written.append(request)
        if request.WhichOneof("payload") == "record":
            ack = ingest_pb2.Ack(durable_sequence=request.record.sequence)
            await self.responses.put(ingest_pb2.StreamSamplesResponse(ack=ack))

    async def read(self):
        return await self.responses.get()


def sent_kinds(rig, interval_ms, read_load):
    rig.fill(3)
    call = Call()

    async def main():
        session = Session(
            GreetedStream(call, ingest_pb2.HelloAck(host_load_interval_ms=interval_ms), 1),
            rig.spool, rig.counters, asyncio.Event(),
            limits=StreamLimits(), on_batch_interval=lambda _: None, read_load=read_load,
        )  # fmt: skip
        running = asyncio.ensure_future(session.run())
        while rig.counters.acked_sequence < 3:
            await asyncio.sleep(0)
            assert not running.done(), running.exception()
        await end(running)

    asyncio.run(asyncio.wait_for(main(), 60))
    return [request.WhichOneof("payload") for request in call.written]


def test_the_load_goes_with_the_records_as_often_as_the_collector_asks(tmp_path):
    def load():
        return gpu_pb2.HostLoad(cpu_busy_ratio=0.5)

    assert sent_kinds(Rig(tmp_path / "a"), 60_000, load) == ["host_load", "record", "record", "record"]
    assert sent_kinds(Rig(tmp_path / "b"), 0, load) == ["record"] * 3
    assert sent_kinds(Rig(tmp_path / "c"), 60_000, None) == ["record"] * 3
