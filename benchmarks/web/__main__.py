"""What the collector's page and its viewers cost: ``python benchmarks/web --out docs/results/web.md``.

Needs the extras ``web`` and ``browser`` and a Chromium. The store holds one hour of 64 jobs on 8 GPUs each, and of one
of them the samples of all GPUs at 10 Hz. While viewers watch, agents as processes stream a counter each, so that what
is missing afterwards is known.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from playwright.sync_api import Page, sync_playwright
from support.running_collector import ProcessCollector
from support.trace_records import incoming, trace_records
from support.victim_agent import VictimAgent, stored_of
from support.web_client import WebClient, web_address

from gpusonde.collector.config import StoreConfig
from gpusonde.collector.storage.local.store import LocalStore
from gpusonde.collector.storage.model import JobStateRow, RunRow, RunUpdate
from gpusonde.telemetry import Trace

_JOBS, _GPUS, _HOUR_S = 64, 8, 3600
_STATES = ("training", "evaluating", "checkpointing", "stalled")
_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--enable-precise-memory-info"),
)
# After it the tracker's looks at new runs are over.
_FIRST_LOOK_S = 45.0
_TURNS = 3
# Frames while keys zoom in, pan and zoom out again, in milliseconds.
_FRAMES = """async () => {
  const box = document.querySelector(".chart"), times = [];
  let last = performance.now(), on = true;
  const tick = () => { const now = performance.now(); times.push(now - last); last = now;
                       if (on) requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
  for (const key of "wwwwwwwwwwddddddddddaaaaaaaaaassssssssss") {
    box.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
    await new Promise(done => setTimeout(done, 50));
  }
  on = false;
  return times;
}"""


def fill(directory: Path) -> None:
    """Write a store with an hour of jobs, and of samples of one of them."""
    end_ns = time.time_ns()
    start_ns = end_ns - _HOUR_S * 10**9
    store = LocalStore(directory, StoreConfig(reserve_bytes=0))
    store.open()
    updates = []
    for job in range(_JOBS):
        for gpu in range(_GPUS):
            run = RunRow(
                run_id=f"run-{job}-{gpu}", agent_id=f"host-{job}", gpu_uuid=f"GPU-{job:02}-{gpu}", job_id=f"job-{job}",
                scheduler=1, ended=True, end_reason="", start_unix_nano=start_ns, end_unix_nano=end_ns, first_spool=1,
                first_sequence=1, last_spool=1, last_sequence=2, tick_count=10 * _HOUR_S, missed_ticks=0,
            )  # fmt: skip
            states = [
                JobStateRow(start_ns + minute * 60 * 10**9, _STATES[minute % len(_STATES)], "", 0.9)
                for minute in range(_HOUR_S // 60)
            ]
            updates.append(RunUpdate(run, None, states=states))
    store.results.save(updates, {})
    chance, time_s = np.random.default_rng(0), np.arange(10 * _HOUR_S) * 0.1
    for gpu in range(_GPUS):
        load = np.where(time_s % 20 < 16, 0.8, 0.35) + chance.normal(0, 0.03, time_s.size)
        trace = Trace(time_s, {"sm_active": load, "power_watts": 300 * load}, f"GPU-00-{gpu}", "Tesla T4")
        records = trace_records(trace, start_ns, gpu_uuid=f"GPU-00-{gpu}", ticks_per_record=100)
        store.samples.append(incoming(records, "host-0", f"spool-{gpu}"))
    store.flush()
    store.close()


def look(base: str) -> list[tuple[str, str, str]]:
    """Open fleet and job in a browser; return rows of the table."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(_FLAGS))
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        page.set_default_timeout(120_000)
        page.goto(base)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        began = time.monotonic()
        page.reload()
        page.get_by_role("img", name=f"{_JOBS * _GPUS} GPUs").wait_for()
        shown_s = time.monotonic() - began
        fleet_mb = _heap_mb(page)
        page.goto(f"{base}#/jobs/job-0")
        page.locator(".chart canvas").wait_for()
        page.wait_for_timeout(1000)
        frames = page.evaluate(_FRAMES)
        job_mb = _heap_mb(page)
        processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
        tab_mb = max(_own_mb(process["id"]) for process in processes if process["type"] == "renderer")
        browser.close()
    median, p95, longest = np.percentile(frames, (50, 95, 100))
    return [
        ("first contentful paint of the fleet", f"{paint:.0f} ms", "300 ms"),
        (f"{_JOBS * _GPUS} GPUs x 1 h shown, from a reload", f"{shown_s:.2f} s", ""),
        (f"frames while zooming {_GPUS} GPUs x 1 h at 10 Hz: median, 95 in 100, longest",
         f"{median:.1f}, {p95:.1f}, {longest:.0f} ms", "16.7 ms"),
        ("JavaScript's heap, fleet and job", f"{fleet_mb:.0f} and {job_mb:.0f} MB", ""),
        ("memory of the tab after both, as the browser's task manager has it", f"{tab_mb:.0f} MB", "150 MB"),
    ]  # fmt: skip


def _heap_mb(page: Page) -> float:
    return float(page.evaluate("performance.memory.usedJSHeapSize / 1e6"))


def _own_mb(pid: int) -> float:
    """Memory of a process alone, as the browser's own task manager has it: what is no file's and no other's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(("RssAnon:", "VmSwap:")))


def watch(collector: ProcessCollector, directory: Path, agents: int, viewers: int, seconds: float):
    """Stream from agents, first unwatched, then watched; return rows of the table."""
    gpus = [[f"GPU-live-{i}-{gpu}" for gpu in range(_GPUS)] for i in range(agents)]
    victims = [
        VictimAgent(directory / f"agent-{i}", collector.target, {"agent.id": f"victim-{i}"}, gpu_uuids=own).start()
        for i, own in enumerate(gpus)
    ]
    client = WebClient(directory / "data")
    time.sleep(_FIRST_LOOK_S)
    alone, watched = _share(collector.pid, seconds / _TURNS) / (2 * _TURNS), 0.0
    # By turns, the first and the last of them unwatched: what tracking costs changes with the age of a run.
    for turn in range(_TURNS):
        over = threading.Event()
        threads = [threading.Thread(target=_view, args=(client, over), daemon=True) for _ in range(viewers)]
        for thread in threads:
            thread.start()
        watched += _share(collector.pid, seconds / _TURNS) / _TURNS
        over.set()
        for thread in threads:
            thread.join()
        weight = 2 * _TURNS if turn == _TURNS - 1 else _TURNS
        alone += _share(collector.pid, seconds / _TURNS) / weight
    reports = [victim.finish() for victim in victims]
    collector.terminate()
    lost = 0
    for i, report in enumerate(reports):
        lost += report["ticks"] - sum(
            found.values.size for found in stored_of(directory / "data", gpus[i], f"victim-{i}")
        )
    return [
        (f"CPU of the collector with {agents} agents of {_GPUS} GPUs, without and with {viewers} viewers",
         f"{100 * alone:.1f} and {100 * watched:.1f} % of a core", "5 % more"),
        ("ticks lost meanwhile", str(lost), "0"),
    ]  # fmt: skip


def _view(client: WebClient, over: threading.Event) -> None:
    for _ in client.events("/v1/watch"):
        if over.is_set():
            return


def _share(pid: int, seconds: float) -> float:
    def used_s() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used_s()
    time.sleep(seconds)
    return (used_s() - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="web", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=45.0, help="of each measurement with agents (default: 45)")
    parser.add_argument("--out", type=Path, help="page to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        fill(directory / "data")
        with ProcessCollector(directory / "data", web__listen="127.0.0.1:0") as collector:
            host, port = web_address(directory / "data")
            rows = look(f"http://{host}:{port}/")
            rows += watch(collector, directory, args.agents, args.viewers, args.seconds)
    load = os.getloadavg()[0]
    lines = [
        "# The page: what it costs",
        "",
        f"{datetime.date.today()}, by `python benchmarks/web`, on two cores of a shared",
    ]
    lines += [f"cloud machine at load {load:.0f}, in headless Chromium without a GPU.", ""]
    lines += [
        "| what | figure | bar |",
        "|---|---|---|",
        *(f"| {what} | {got} | {bar} |" for what, got, bar in rows),
        "",
    ]
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
