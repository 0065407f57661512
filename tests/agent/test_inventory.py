"""CUDA driver attributes from a short-lived process, and the host's own facts."""

import os
import subprocess
import sys

from gpusonde.agent import cuda_attributes
from gpusonde.agent.host import describe_host
from gpusonde.agent.inventory import read_cuda_attributes

SECOND = "GPU-fa4e0000-0000-0000-0000-000000000001"


def child(fake_cuda_path):
    """The real script in a process that finds the stand-in under the driver's name."""
    preload = (
        f"import ctypes, runpy; ctypes.CDLL({str(fake_cuda_path)!r}); "
        f"runpy.run_path({cuda_attributes.__file__!r}, run_name='__main__')"
    )
    return (sys.executable, "-I", "-c", preload)


def test_attributes_come_by_uuid_and_only_those_the_driver_knows(fake_cuda_path):
    found = read_cuda_attributes(child(fake_cuda_path))
    assert set(found) == {"GPU-fa4e0000-0000-0000-0000-000000000000", SECOND}
    assert found[SECOND] == {
        "sm_count": 132.0,
        "l2_cache_bytes": 52428800.0,
        "shared_memory_bytes_per_sm": 233472.0,
        "max_threads_per_sm": 2048.0,
        "warp_size": 32.0,
    }


def test_the_agent_s_own_cuda_visible_devices_hides_nothing(fake_cuda_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert SECOND in read_cuda_attributes(child(fake_cuda_path))


def test_a_driver_that_hangs_costs_the_timeout_and_some_figures(fake_cuda_path, monkeypatch, caplog):
    monkeypatch.setenv("FAKE_CUDA_HANG", "1")
    assert read_cuda_attributes(child(fake_cuda_path), timeout_s=0.5) == {}
    assert "does not tell its attributes" in caplog.text


def test_nonsense_from_the_child_is_not_believed(caplog):
    assert read_cuda_attributes((sys.executable, "-c", "print('[1, 2]')")) == {}
    assert read_cuda_attributes(("/nonexistent",)) == {}
    assert caplog.text.count("does not tell") == 2


def test_the_module_runs_by_name_and_answers_without_a_driver():
    done = subprocess.run(
        [sys.executable, "-m", "gpusonde.agent.cuda_attributes"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().startswith("{")


def test_host_facts_are_this_machine_s():
    host = describe_host()
    assert host.cpu_count == os.cpu_count()
    assert host.memory_bytes > 1 << 28
    assert host.host_name
    assert host.kernel_release == os.uname().release


def test_host_facts_stay_empty_where_proc_is_not_readable(tmp_path):
    host = describe_host(tmp_path)
    assert (host.memory_bytes, host.cpu_model) == (0, "")
