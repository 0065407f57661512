"""``gpusonde demo`` from start to clean end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from support.collector_process import GPUSONDE
from support.json_keys import mismatches

from gpusonde.catalog import load_gpus
from gpusonde.cli.demo.report import DemoPayload
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.telemetry import Trace, read_trace, write_trace

SUPPORT = Path(__file__).parents[1] / "support"
_TIMEOUT_S = 250.0


_BEGIN = "\n__attribute__((constructor)) static void begin(void) { fake_reset(1, 1, PERIOD_S); }\n"


def fake_driver(folder: Path, period_s: float, model: str = "NVIDIA H100 80GB HBM3") -> dict[str, str]:
    """A stand-in for NVIDIA's driver with one GPU whose work repeats; returns the environment that uses it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler (cc or gcc) to build the stand-in for NVIDIA's library")
    source = folder / "gpu.c"
    text = (SUPPORT / "fake_nvml.c").read_text()
    assert "NVIDIA Fake 80GB HBM3" in text
    source.write_text(text.replace("NVIDIA Fake 80GB HBM3", model) + _BEGIN)
    library = folder / "libnvidia-ml.so.1"
    options = ["-shared", "-fPIC", f"-DPERIOD_S={period_s}", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, "-O1", *options, "-o", str(library), str(source)], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def start_demo(
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] = MappingProxyType({}),
    before: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start a demo whose temporary files, and whose children's command lines, carry the name of ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [*before, *GPUSONDE, "demo", "--out", str(folder / "out"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), **environment},
    )


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that name ``folder``."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if str(folder) in command:
            found.append(command)
    return found


def leftovers(folder: Path) -> list[Path]:
    """Temporary folders that a demo left behind."""
    return list(folder.glob("gpusonde-demo-*"))


def test_the_run_is_sampled_streamed_stored_and_its_epochs_found(demo_report: dict[str, Any]) -> None:
    trace = read_trace(bundled_trace())
    truth = json.loads(trace.attributes["true_epoch_starts_s"])
    assert demo_report["mode"] == "replay"
    assert "not recorded on a GPU" in demo_report["generated"]
    assert demo_report["ticks_sampled"] == demo_report["ticks_stored"] == len(trace)
    assert demo_report["run"]["verdict"] == "epochs"
    assert demo_report["run"]["replayed"]
    assert demo_report["run"]["period_s"] == pytest.approx(np.mean(np.diff(truth)[1:]), rel=0.03)
    assert len(demo_report["epochs"]) == len(truth)


def test_every_gpu_is_predicted_and_the_offers_are_ranked(demo_report: dict[str, Any]) -> None:
    assert mismatches(demo_report, DemoPayload) == []
    assert {row["gpu_model"] for row in demo_report["predictions"]} == {spec.name for spec in load_gpus().specs}
    offers = demo_report["offers"]
    costs = [offer["usd_per_epoch"] for offer in offers]
    assert costs == sorted(costs)
    assert demo_report["cheapest"] == offers[0]
    assert demo_report["fastest"]["epoch_latency_s"] == min(offer["epoch_latency_s"] for offer in offers)
    for offer in offers:
        assert offer["gpu_count"] == 1
        assert offer["billing"] == "on_demand"
        assert offer["price_date"]
        assert offer["usd_per_epoch"] == pytest.approx(offer["usd_per_hour"] / 3600 * offer["epoch_latency_s"])
        assert offer["usd_per_epoch_low"] < offer["usd_per_epoch"] < offer["usd_per_epoch_high"]


def test_the_picture_is_written(demo_report: dict[str, Any]) -> None:
    assert Path(demo_report["picture"]).read_bytes().startswith(b"\x89PNG")


def test_it_cleans_up_after_itself(demo_report: dict[str, Any], demo_folder: Path) -> None:
    assert demo_report["elapsed_s"] < 120
    assert leftovers(demo_folder) == []
    assert processes_of(demo_folder) == []


def test_a_second_demo_works_and_its_screen_says_what_matters(
    demo_report: dict[str, Any], demo_folder: Path, tmp_path: Path
) -> None:
    # A proxy that the network demands, and settings of this host's real agent, do not concern the demo.
    foreign = {"http_proxy": "http://127.0.0.1:9", "GPUSONDE_AGENT_SOURCE_INTERVAL": "20s"}
    idle = fake_driver(tmp_path, period_s=1e6)
    demo = start_demo(demo_folder, "--watch-s", "2", "--speed", "200", environment=foreign | idle)
    screen, errors = demo.communicate(timeout=_TIMEOUT_S)
    assert demo.returncode == 0, errors
    for said in (
        "no training epochs on",
        "THE TRACE IS GENERATED",
        "2,490 ticks sampled, 0 missed, 2,490 stored once each",
        "12 cycles of 17.",
        "95 % interval",
        "90 % interval",
        "$ per cycle",
        "price of",
        "extrapolated",
        "measured",
        "cheapest: ",
        "fastest:  ",
        f"picture:  {demo_folder / 'out' / 'epochs.png'}",
    ):
        assert said in screen, said
    assert screen.index("no training epochs on") < screen.index("THE TRACE IS GENERATED")
    assert leftovers(demo_folder) == []


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGINT, 130), (signal.SIGHUP, 130), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_nothing_stays_behind_when_it_is_interrupted(number: signal.Signals, exit_code: int, tmp_path: Path) -> None:
    demo = start_demo(tmp_path, "--replay", "--speed", "1")
    assert demo.stdout is not None
    while "replaying" not in (line := demo.stdout.readline()):
        assert line, demo.communicate()
    deadline = time.monotonic() + _TIMEOUT_S
    while len(processes_of(tmp_path)) < 3:
        assert time.monotonic() < deadline, processes_of(tmp_path)
        time.sleep(0.05)
    demo.send_signal(number)
    demo.communicate(timeout=_TIMEOUT_S)
    assert demo.returncode == exit_code
    # Killed outright, the demo cannot remove its folder, but the kernel ends its children.
    while processes_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of(tmp_path) == []
    if number is not signal.SIGKILL:
        assert leftovers(tmp_path) == []


def test_in_the_background_sigterm_ends_it_and_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    # As a script's "gpusonde demo &" or nohup starts it.
    background = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"]
    demo = start_demo(tmp_path, "--replay", "--speed", "1", before=background)
    assert demo.stdout is not None
    while "replaying" not in (line := demo.stdout.readline()):
        assert line, demo.communicate()
    for ignored in (signal.SIGINT, signal.SIGHUP):
        demo.send_signal(ignored)
    with pytest.raises(subprocess.TimeoutExpired):
        demo.wait(1.0)
    demo.terminate()
    _, errors = demo.communicate(timeout=_TIMEOUT_S)
    assert (demo.returncode, errors.strip().splitlines()[-1]) == (130, "interrupted")
    assert leftovers(tmp_path) == []
    assert processes_of(tmp_path) == []


def test_a_trace_that_cannot_be_predicted_from_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "anonymous.csv"
    write_trace(dataclasses.replace(read_trace(bundled_trace()), gpu_model=""), path)
    demo = start_demo(tmp_path / "demo", "--trace", str(path), "--json")
    out, _ = demo.communicate(timeout=_TIMEOUT_S)
    assert demo.returncode == 1
    assert "--gpu-model" in json.loads(out)["error"]["message"]
    assert leftovers(tmp_path / "demo") == []


def test_a_trace_without_epochs_shows_the_run_and_says_that_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "steady.csv"
    busy = np.concatenate([np.zeros(50), np.ones(500), np.zeros(50)])
    write_trace(Trace(np.arange(600) * 0.1, {"gpu_utilization": busy}, gpu_model="Tesla T4"), path)
    demo = start_demo(tmp_path / "demo", "--trace", str(path), "--speed", "100")
    screen, errors = demo.communicate(timeout=_TIMEOUT_S)
    assert demo.returncode == 1
    assert "no epochs" in screen
    assert "there are no epochs to predict from" in errors
    assert leftovers(tmp_path / "demo") == []


def test_a_gpu_of_this_host_is_watched_live(tmp_path: Path) -> None:
    # The first look comes after 27.5 s and is done in parts while ticks come; what is left then is done without them.
    demo = start_demo(tmp_path, "--watch-s", "38", "--json", environment=fake_driver(tmp_path, period_s=2.4))
    out, errors = demo.communicate(timeout=_TIMEOUT_S)
    assert demo.returncode == 0, errors
    report = json.loads(out)
    assert (report["mode"], report["live_note"], report["trace"]) == ("live", None, None), report["live_note"]
    assert not report["run"]["replayed"]
    assert report["run"]["period_s"] == pytest.approx(2.4, rel=0.05)
    assert report["ticks_sampled"] == report["ticks_stored"] > 100
    assert Path(report["picture"]).is_file()
    assert leftovers(tmp_path) == []
