"""``agent doctor``: what it finds on hosts with and without what it needs."""

import json
import sys

import pytest
from support.dcgm_agent_host import BINDINGS, no_nvml
from support.fake_dcgm.engine import TURING

from gpusonde.agent.config import SourceConfig
from gpusonde.agent.doctor import SystemFacts, examine, read_system
from gpusonde.agent.sources.nvml.gpu import NvmlProcesses
from gpusonde.agent.sources.nvml.source import NvmlSource
from gpusonde.cli.commands.daemons import payload, render_doctor
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.main import main
from gpusonde.cli.output import Screen
from gpusonde.telemetry import METRICS, MissingReason

DRIVER = SystemFacts("570.1", profiling_admin_only=False, is_root=False, device_nodes=())


class Running:
    """Knows the processes of every GPU, or of none."""

    def __init__(self, processes):
        self.processes = processes

    def compute_processes(self):
        return self.processes

    def close(self):
        return


def diagnose(host, *sources, config=None, facts=DRIVER, processes=None, cost_s=0.0):
    return examine(
        config or SourceConfig(),
        sources=sources,
        processes=Running(processes if processes is not None else {}),
        read_facts=lambda: facts,
        monotonic=lambda: host.monotonic_s,
        sleep=host.advance,
        cost_s=cost_s,
    )


def text_of(diagnosis, capsys):
    render_doctor(Screen(sys.stdout), diagnosis)
    return capsys.readouterr().out


def test_a_healthy_engine_is_shown_with_fields_origins_and_rates(dcgm_host, capsys):
    dcgm_host.engine.groups = {1: TURING}
    running = {dcgm_host.engine.uuid(0): (7, 12), dcgm_host.engine.uuid(1): ()}
    diagnosis = diagnose(dcgm_host, dcgm_host.source(), NvmlSource(load=no_nvml), processes=running)
    assert diagnosis.chosen is diagnosis.sources[0]
    assert diagnosis.chosen.library_version == "4.4.2"
    assert diagnosis.chosen.engine_address == "127.0.0.1:5555"
    assert diagnosis.sources[1].reason == "no NVML in this test"
    gpu = diagnosis.chosen.gpus[1]
    metrics = {m.name: m for m in gpu.metrics}
    assert set(metrics) == {m.name for m in METRICS}
    assert gpu.tick_rate_hz == pytest.approx(10, abs=0.05)
    assert (metrics["sm_active"].origin, metrics["sm_active"].interval_s) == ("dcgm 1002", 0.1)
    assert (metrics["energy_joules"].origin, metrics["energy_joules"].interval_s) == ("dcgm 156", 10.0)
    assert metrics["sm_active"].multiplexed
    assert metrics["sm_active"].has_value
    assert diagnosis.advice == ()
    assert [g.processes for g in diagnosis.chosen.gpus] == [2, 0]
    assert (metrics["power_watts"].origin, diagnosis.chosen.lag_s > 0) == ("dcgm 157, else 155", True)
    assert dcgm_host.engine.connections == []
    said = text_of(diagnosis, capsys)
    assert "driver: 570.1" in said
    assert "processes that compute on it: 2" in said
    assert "the agent would sample with dcgm" in said
    assert "measured in turns" in said


def test_a_field_that_a_gpu_lacks_is_shown_with_the_reason(dcgm_host, capsys):
    dcgm_host.engine.blanks = {(0, 140): "not supported"}
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    (row,) = [m for m in diagnosis.chosen.gpus[0].metrics if m.name == "memory_temperature_celsius"]
    assert row.missing_reason is MissingReason.NOT_SUPPORTED
    assert "missing: not_supported" in text_of(diagnosis, capsys)


def test_a_field_that_gives_nothing_on_one_gpu_is_shown_with_the_reason(dcgm_host):
    dcgm_host.engine.blanks = {(1, 1011): "blank"}
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    rows = [{m.name: m for m in gpu.metrics}["nvlink_tx_bytes_per_second"] for gpu in diagnosis.chosen.gpus]
    assert [(row.has_value, row.missing_reason) for row in rows] == [(True, None), (False, MissingReason.NO_DATA)]


def test_a_zero_of_the_engine_is_not_shown_as_measured(dcgm_host):
    dcgm_host.engine.inner_unsupported = {140, 157}
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    metrics = {m.name: m for m in diagnosis.chosen.gpus[0].metrics}
    assert metrics["memory_temperature_celsius"].missing_reason is MissingReason.NOT_SUPPORTED
    assert metrics["power_watts"].has_value


@pytest.mark.parametrize("function", ["dcgmConnect_v2", "dcgmEntitiesGetLatestValues"])
def test_a_library_older_than_the_bindings_is_named_as_the_cause(dcgm_host, function):
    if function == "dcgmConnect_v2":
        dcgm_host.engine.refused = {function: -20}
    else:
        dcgm_host.engine.library_lacks = {function}
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    assert "libdcgm is older than the Python bindings" in diagnosis.sources[0].reason
    assert "dcgmStartEmbedded" not in dcgm_host.engine.calls


def test_an_engine_that_says_a_gpu_is_lost_leads_to_the_kernel_s_log(dcgm_host):
    dcgm_host.engine.refused = {"dcgmWatchFields": -18}
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    assert not diagnosis.sources[0].usable
    assert "the kernel's log for XID errors" in diagnosis.sources[0].reason


def test_a_reading_that_takes_longer_than_a_tick_is_told(dcgm_host):
    dcgm_host.engine.request_s = 0.12
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    assert any("longer than the 0.1 s between two" in advice for advice in diagnosis.advice)


def test_gpm_is_chosen_where_the_engine_may_not_profile(dcgm_host, fake_nvml):
    dcgm_host.engine.refused = {"profiling watch": -33}
    nvml = fake_nvml.source()
    diagnosis = diagnose(dcgm_host, dcgm_host.source(), nvml)
    assert (diagnosis.chosen.name, diagnosis.sources[0].usable) == ("nvml", True)
    origins = {m.name: m.origin for m in diagnosis.chosen.gpus[0].metrics}
    assert (origins["sm_active"], origins["gpu_utilization"]) == ("gpm 2", "nvml")
    assert any("datacenter-gpu-manager-4-proprietary" in advice for advice in diagnosis.advice)


def test_refused_profiling_is_explained_by_the_driver_s_restriction(dcgm_host):
    dcgm_host.engine.refused = {"profiling watch": -17}
    facts = SystemFacts("570.1", profiling_admin_only=True, is_root=False, device_nodes=())
    diagnosis = diagnose(dcgm_host, dcgm_host.source(), facts=facts)
    assert not diagnosis.chosen.profiles
    assert any("no source gives activity ratios" in advice for advice in diagnosis.advice)
    assert any("the driver reserves profiling for root" in advice for advice in diagnosis.advice)


def test_a_source_that_is_asked_for_but_broken_is_not_replaced(dcgm_host, fake_nvml):
    dcgm_host.engine.remote = dcgm_host.engine.embeddable = False
    diagnosis = diagnose(dcgm_host, dcgm_host.source(), fake_nvml.source(), config=SourceConfig(kind="dcgm"))
    assert diagnosis.chosen is None
    assert diagnosis.sources[0].bindings_folder == str(BINDINGS)
    assert "systemctl start nvidia-dcgm" in diagnosis.sources[0].reason
    assert any("set source.kind to auto" in advice for advice in diagnosis.advice)


def test_gpus_that_open_but_give_no_tick_are_not_called_usable(dcgm_host):
    dcgm_host.engine.silent = {0, 1}
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    assert diagnosis.chosen is None
    assert "no GPU gave a tick" in diagnosis.sources[0].reason


def test_a_pause_for_a_profiler_is_told(dcgm_host, tmp_path):
    pause = tmp_path / "profiling"
    pause.touch()
    config = SourceConfig(profiler_pause_file=str(pause))
    diagnosis = diagnose(dcgm_host, dcgm_host.source(profiler_pause_file=str(pause)), config=config)
    assert any(f"{pause} exists" in advice for advice in diagnosis.advice)


def test_the_instances_of_a_split_gpu_are_shown_with_what_they_give(fake_nvml, capsys):
    instance = fake_nvml.set_mig(1, 0, 3, 2)
    fake_nvml.add_process(4711, 1, 0)
    reader = NvmlProcesses(fake_nvml.loader())
    processes = reader.compute_processes()
    reader.close()
    diagnosis = diagnose(fake_nvml, fake_nvml.source(), processes=processes)
    part = diagnosis.chosen.gpus[2]
    assert (part.key, part.gpu_uuid, part.processes) == (instance, fake_nvml.uuid(1), 1)
    metrics = {m.name: m for m in part.metrics}
    assert (metrics["sm_active"].origin, metrics["sm_active"].has_value) == ("gpm 2", True)
    assert metrics["power_watts"].missing_reason is MissingReason.NOT_SUPPORTED
    assert not any("processes" in advice for advice in diagnosis.advice)
    said = text_of(diagnosis, capsys)
    assert f"MIG instance {instance} of GPU 1" in said
    assert "processes that compute on it: not told" in said  # the split GPU itself
    assert [g["mig_uuid"] for g in payload(diagnosis, "auto")["gpus"]] == [None, None, instance]


def test_refused_gpm_and_hidden_processes_are_told_with_what_to_do(fake_nvml):
    fake_nvml.fail("nvmlGpmSampleGet", 4)
    diagnosis = diagnose(fake_nvml, fake_nvml.source())
    fake_nvml.heal()
    metrics = {m.name: m for m in diagnosis.chosen.gpus[0].metrics}
    assert metrics["sm_active"].missing_reason is MissingReason.NO_PERMISSION
    assert any("run the agent as root" in advice for advice in diagnosis.advice)
    assert any("the processes on" in advice for advice in diagnosis.advice)


def test_what_sampling_costs_is_measured_when_it_is_asked_for(fake_nvml, dcgm_host, capsys):
    assert diagnose(fake_nvml, fake_nvml.source()).sources[0].cost is None
    for host in (fake_nvml, dcgm_host):
        diagnosis = diagnose(host, host.source(), cost_s=5.0)
        cost = diagnosis.chosen.cost
        assert (cost.readings, cost.interval_s) == (50, 0.1)
        assert 0 < cost.processor_s < 0.1
        assert cost.core_share == pytest.approx(10 * cost.processor_s)
        assert cost.adaptive_core_share == pytest.approx(cost.core_share / 28)
        assert "% of one at 10 readings per second" in text_of(diagnosis, capsys)
        assert payload(diagnosis, "auto")["sources"][0]["cost"]["readings"] == 50


def test_values_that_arrive_late_are_told(dcgm_host):
    dcgm_host.engine.lag_s = 2.5
    diagnosis = diagnose(dcgm_host, dcgm_host.source())
    assert any("after they were measured" in advice for advice in diagnosis.advice)


def test_the_driver_and_the_rights_are_read_from_the_system(tmp_path):
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    proc.mkdir()
    dev.mkdir()
    (proc / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: gcc\n"
    )
    (proc / "params").write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm", "null"):
        (dev / name).touch()
    facts = read_system(proc, dev)
    assert (facts.driver_version, facts.profiling_admin_only) == ("535.183.01", True)
    assert [node.path for node in facts.device_nodes] == [str(dev / "nvidia0"), str(dev / "nvidiactl")]
    assert all(node.accessible for node in facts.device_nodes)
    open_module = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    (proc / "version").write_text(open_module)
    assert read_system(proc, dev).driver_version == "570.86.15"
    nothing = read_system(tmp_path / "none", tmp_path / "none")
    assert (nothing.driver_version, nothing.profiling_admin_only, nothing.device_nodes) == ("", None, ())


def test_a_host_without_a_gpu_is_told_what_is_missing(dcgm_host, capsys):
    dcgm_host.engine.library = False
    facts = SystemFacts("", profiling_admin_only=None, is_root=True, device_nodes=())
    diagnosis = diagnose(dcgm_host, dcgm_host.source(), NvmlSource(load=no_nvml), facts=facts)
    said = text_of(diagnosis, capsys)
    assert "no NVIDIA kernel module is loaded" in said
    assert "nothing can be sampled on this host" in said
    assert "the libdcgm of the same major version is not installed" in said
    found = payload(diagnosis, "auto")
    assert (found["can_sample"], found["source"], found["gpus"]) == (False, None, [])
    assert "gpusonde agent --replay FILE" in found["advice"][0]


@pytest.mark.parametrize("before", [(), ("--json",)])
def test_the_command_says_yes_to_a_trace_that_can_be_replayed(capsys, before):
    after = () if before else ("--json",)
    replay = ("--set", "source.kind=replay", "--set", f"source.trace={bundled_trace()}")
    assert main(["agent", *before, "doctor", *replay, *after]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["can_sample"], found["source"]) == (True, "replay")
    assert found["gpus"][0]["tick_rate_hz"] > 0
    assert found["sources"][0]["cost"] is None


def test_the_command_says_what_sampling_costs(capsys):
    replay = ("--set", "source.kind=replay", "--set", f"source.trace={bundled_trace()}", "--set", "source.speed=1")
    assert main(["agent", "doctor", "--cost", "--json", *replay]) == 0
    assert json.loads(capsys.readouterr().out)["sources"][0]["cost"]["processor_s"] > 0


def test_the_command_fails_when_nothing_can_be_sampled(capsys, tmp_path):
    missing = ("--set", "source.kind=replay", "--set", f"source.trace={tmp_path / 'none.csv'}")
    assert main(["agent", "doctor", "--json", *missing]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["can_sample"]
    assert "none.csv" in found["sources"][0]["reason"]
