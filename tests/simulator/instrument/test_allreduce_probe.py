import importlib.util
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.own_port import own_port
from support.spawned_work import probe_as_rank

from gpusonde.errors import MeasurementError
from gpusonde.simulator.allreduce import AllreduceModel, measurements_from_json, measurements_to_json
from gpusonde.simulator.instrument import allreduce_probe
from gpusonde.simulator.instrument.allreduce_probe import ProbeGrid, Rendezvous, probe_allreduce

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
GRID = ProbeGrid(sizes=(4, 4096, 1 << 20), concurrent=(1, 2), seconds_per_point=0.02, most_repeats=8)


def probe(world_size, grid):
    context = multiprocessing.get_context("spawn")
    answers, port = context.Queue(), own_port()
    ranks = [
        context.Process(target=probe_as_rank, args=(rank, world_size, port, grid, answers))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    found = dict(answers.get(timeout=120) for _ in ranks)
    for rank in ranks:
        rank.join(timeout=200)
    return found


@needs_torch
def test_two_processes_measure_the_grid():
    found = probe(2, GRID)
    assert found[1] == ()
    rows = found[0]
    assert {(one.transfer_bytes, one.concurrent) for one in rows} == {
        (size, count) for size in GRID.sizes for count in GRID.concurrent
    }
    for one in rows:
        assert one.fabric == "loopback"
        assert one.device.startswith("CPU")
        assert one.world_size == 2
        assert one.measured_at_s == 1234.0
        assert GRID.least_repeats <= one.repeats <= GRID.most_repeats
        assert 0 < one.seconds < 10
        assert one.log_spread >= 0
    assert measurements_from_json(measurements_to_json(rows)) == rows
    assert (AllreduceModel.fit(rows).network("loopback").bus_bandwidth([1e5, 1e6], 2).bytes_per_second > 0).all()


@needs_torch
def test_one_launch_measures_several_world_sizes():
    found = probe(3, ProbeGrid(sizes=(4096,), concurrent=(1,), world_sizes=(2, 3), seconds_per_point=0.02))
    assert [one.world_size for one in found[0]] == [2, 3]
    assert found[1] == found[2] == ()


@needs_torch
def test_a_world_larger_than_the_group_is_an_error_on_every_rank():
    found = probe(2, ProbeGrid(sizes=(4,), world_sizes=(4,)))
    assert all("2 processes take part; world size 4 needs 4 of them" in answer for answer in found.values())


@needs_torch
def test_torchrun_starts_it(tmp_path):
    script = tmp_path / "probe.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from gpusonde.simulator.allreduce import measurements_to_json\n"
        "from gpusonde.simulator.instrument.allreduce_probe import ProbeGrid, probe_allreduce\n"
        "grid = ProbeGrid(sizes=(4096,), concurrent=(1,), seconds_per_point=0.02)\n"
        "found = probe_allreduce('loopback', grid, backend='gloo', timeout_s=60)\n"
        "if found:\n"
        "    Path(sys.argv[1]).write_text(measurements_to_json(found))\n"
    )
    out = tmp_path / "found.json"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    subprocess.run([*command, f"--master-port={own_port()}", script, out], env=environment, check=True, timeout=200)
    (row,) = measurements_from_json(Path(out).read_text())
    assert (row.world_size, row.devices_per_machine) == (2, 2)


@needs_torch
def test_without_a_group_it_says_how_to_start_one(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(MeasurementError, match="torchrun"):
        probe_allreduce("loopback", GRID)


@needs_torch
def test_processes_that_do_not_come_are_an_error():
    rendezvous = Rendezvous(0, 2, f"127.0.0.1:{own_port()}")
    with pytest.raises(MeasurementError, match="do not find each other"):
        probe_allreduce("loopback", GRID, rendezvous=rendezvous, backend="gloo", timeout_s=1)


def test_without_torch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MeasurementError, match=r"gpusonde\[torch\]"):
        probe_allreduce("loopback", GRID)


def test_a_name_that_no_measurement_can_have_is_refused_at_once():
    with pytest.raises(ValueError, match="fabric"):
        probe_allreduce("")


def test_the_default_grid_is_the_papers():
    sizes = ProbeGrid().sizes
    assert (sizes[0], sizes[-1]) == (4, 512 << 20)
    assert all(size * count <= 1 << 30 for size, count in ProbeGrid().points())
    assert allreduce_probe.ProbeGrid() == ProbeGrid()


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": ()},
        {"sizes": (3,)},
        {"sizes": (0,)},
        {"concurrent": ()},
        {"concurrent": (0,)},
        {"world_sizes": (1,)},
        {"warm_up": 0},
        {"least_repeats": 9, "most_repeats": 8},
        {"seconds_per_point": 0.0},
        {"most_bytes": 1},
    ],
)
def test_grids_that_measure_nothing_are_refused(change):
    with pytest.raises(ValueError, match=r"bytes|transfers|world size|repeats|seconds"):
        ProbeGrid(**change)


@pytest.mark.parametrize(("rank", "master"), [(2, "host:1"), (-1, "host:1"), (0, "host"), (0, ":1"), (0, "host:x")])
def test_a_rendezvous_that_cannot_be_is_refused(rank, master):
    with pytest.raises(ValueError, match=r"rank|master"):
        Rendezvous(rank, 2, master)
