"""``gpusonde report``: what is written about a run is what ``detect`` and the collector say of it."""

import html.parser
import json
import shutil
import subprocess
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from support.collector_process import ask
from support.epoch_traces import training_trace
from support.job_records import binding
from support.perfetto_file import PerfettoFile
from support.running_collector import ThreadCollector
from support.trace_records import incoming, trace_records
from support.tracked_store import TrackedStore

from gpusonde.cli.main import main
from gpusonde.cli.report import perfetto, story
from gpusonde.cli.report.page import _events
from gpusonde.ingest.v1 import ingest_pb2
from gpusonde.telemetry import Trace, write_trace

ORIGIN_S = 1_700_000_000.0
PERIOD_S, EPOCHS, IDLE_S = 20.0, 9, 15.0


def job_trace(gpu=0):
    trace, _ = training_trace(PERIOD_S, EPOCHS, seed=gpu)
    xid = np.where(trace.time_s < 100.0, 0.0, 1.0)
    values = {**trace.values, "xid_count": xid, "framebuffer_used_bytes": np.full(len(trace), 8e9)}
    return Trace(trace.time_s, values, gpu_uuid=f"GPU-{gpu}", gpu_model="Tesla T4", origin_unix_s=ORIGIN_S)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "job.csv"
    write_trace([job_trace(0), job_trace(1)], path)
    return path


@pytest.fixture(scope="module")
def written(traces, tmp_path_factory):
    out = tmp_path_factory.mktemp("perfetto") / "job.pftrace"
    return ask("report", str(traces), "-o", str(out)), PerfettoFile(out)


def test_cycles_are_slices_on_the_tracks_of_their_levels(written, traces):
    printed, found = written
    detected = ask("detect", str(traces), "--gpu", "all")
    told = detected["cycles"][detected["level"]]
    (track,) = (
        uuid
        for uuid, slices in found.slices.items()
        if np.allclose([begin for begin, _, _ in slices][:1], ORIGIN_S + detected["epoch_starts_s"][0])
        and len(slices) == detected["epochs"]
    )
    begins = [begin - ORIGIN_S for begin, _, _ in found.slices[track]]
    assert begins == pytest.approx(detected["epoch_starts_s"], abs=1e-3)
    assert f"{told['period_s']:.3g}"[:2] in found.tracks[track].name
    assert printed["epochs"] == detected["epochs"] == EPOCHS
    # Each level lies below its parent's track, the outermost below the run's.
    levels = [uuid for uuid in found.slices if found.tracks[uuid].name != "states"]
    assert len(levels) == printed["levels"] == len(detected["cycles"])
    nested = sum(cycle["parent"] is not None for cycle in detected["cycles"])
    assert sum(found.tracks[uuid].parent in levels for uuid in levels) == nested


def test_states_metrics_and_events_are_there(written):
    printed, found = written
    states = found.slices[found.uuid("states")]
    assert len(states) == printed["states"] > 0
    assert {"training", "evaluating"} <= {name for *_, name in states}
    assert [(round(at - ORIGIN_S), name) for at, name in found.instants[found.uuid("events")]] == [
        (100, "GPU-0: 1 XID error"),
        (100, "GPU-1: 1 XID error"),
    ]
    gpu = found.uuid("GPU-1 (Tesla T4)")
    power = found.uuid("power_watts", gpu)
    assert found.tracks[power].unit == "W"
    times, values = np.array(found.counters[power]).T
    assert values == pytest.approx(job_trace(1).values["power_watts"], rel=1e-6)
    assert times - ORIGIN_S == pytest.approx(job_trace(1).time_s, abs=1e-3)
    # What does not change is said once.
    assert len(found.counters[found.uuid("framebuffer_used_bytes", gpu)]) == 1


def test_more_values_than_a_browser_opens_are_thinned_and_counted(traces, tmp_path, monkeypatch):
    monkeypatch.setattr(perfetto, "MOST_VALUES", 2000)
    printed = ask("report", str(traces), "-o", str(tmp_path / "thin.pftrace"))
    found = PerfettoFile(tmp_path / "thin.pftrace")
    assert sum(map(len, found.counters.values())) <= 2000
    (note,) = printed["notes"]
    assert "values of metrics are in the file: means over" in note
    mean = np.mean([value for _, value in found.counters[found.uuid("power_watts", found.uuid("GPU-0"))]])
    assert mean == pytest.approx(job_trace(0).values["power_watts"].mean(), rel=0.01)


def test_a_trace_without_clock_cycles_or_gpu_name_is_written_all_the_same(tmp_path):
    still = Trace(np.arange(300) * 0.1 - 5.0, {"power_watts": np.full(300, 55.0)})
    write_trace(still, tmp_path / "still.csv")
    printed = ask("report", str(tmp_path / "still.csv"), "-o", str(tmp_path / "still.pftrace"))
    assert (printed["levels"], printed["epochs"]) == (0, 0)
    assert PerfettoFile(tmp_path / "still.pftrace").uuid("GPU 0")


def test_a_hole_is_no_state_and_no_part_of_the_goodput_and_counters_say_where_it_lies(tmp_path):
    trace = job_trace()
    half = len(trace) // 2
    apart = np.where(np.arange(len(trace)) < half, 0.0, 10_000_000.0)
    write_trace(replace(trace, time_s=trace.time_s + apart), tmp_path / "apart.csv")
    ask("report", str(tmp_path / "apart.csv"), "-o", str(tmp_path / "apart.pftrace"))
    found = PerfettoFile(tmp_path / "apart.pftrace")
    states = found.slices[found.uuid("states")]
    assert sum(end - begin for begin, end, _ in states) <= trace.duration_s
    at, name = found.instants[found.uuid("no value", found.uuid("GPU-0 (Tesla T4)"))][0]
    assert at - ORIGIN_S == pytest.approx(trace.time_s[half - 1], abs=1e-3)
    assert name == "no tick for 2,778 h"


def test_a_metric_without_values_among_ticks_is_told_of(tmp_path):
    trace = job_trace()
    at = slice(len(trace) // 4, len(trace) // 2)
    power = trace.values["power_watts"].copy()
    power[at] = np.nan
    write_trace(replace(trace, values={**trace.values, "power_watts": power}), tmp_path / "dark.csv")
    ask("report", str(tmp_path / "dark.csv"), "-o", str(tmp_path / "dark.pftrace"))
    found = PerfettoFile(tmp_path / "dark.pftrace")
    ((begin, name),) = found.instants[found.uuid("no value", found.uuid("GPU-0 (Tesla T4)"))]
    assert begin - ORIGIN_S == pytest.approx(trace.time_s[at.start - 1], abs=1e-3)
    assert name.startswith("power_watts: no value for ")


class Page(html.parser.HTMLParser):
    """What a browser would show and load: texts, tables by the heading above them, tags with their attributes."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.tables = [], [], {}
        self._heading, self._open = "", []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._open.append(tag)
        if tag == "tr":
            self.tables.setdefault(self._heading, []).append([])
        if tag in ("td", "th"):
            self.tables[self._heading][-1].append("")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append(data)
        if "h2" in self._open:
            self._heading = data
        elif "td" in self._open or "th" in self._open:
            self.tables[self._heading][-1][-1] += data


@pytest.fixture(scope="module")
def page(traces, tmp_path_factory):
    out = tmp_path_factory.mktemp("page") / "job.html"
    ask("report", str(traces), "-o", str(out))
    return Page(out)


def test_a_page_tells_what_detect_tells(page, traces):
    detected = ask("detect", str(traces), "--gpu", "all")
    levels = page.tables["Levels of cycles"][1:]
    assert [int(row[3]) for row in levels] == [cycle["count"] for cycle in detected["cycles"]]
    (heading,) = (name for name in page.tables if name.lower() in ("cycles", "epochs", "evaluation cycles"))
    starts = [float(row[1].replace(",", "")) for row in page.tables[heading][1:]]
    assert starts == pytest.approx(detected["epoch_starts_s"], abs=0.006)
    assert {"training", "evaluating"} <= {row[0] for row in page.tables["States"]}
    assert ["100.0", "1 XID error", "GPU-1"] in page.tables["Slowdowns and other events"]
    facts = {row[0]: row[1] for row in page.tables["Evidence"]}
    assert facts["gpusonde"] == version("gpusonde")
    assert facts["model of epoch latency"]
    assert any(text.startswith("gpusonde report ") and str(traces) in text for text in page.texts)
    targets = {row[0] for row in page.tables["On other GPUs"]}
    assert {"2x T4", "2x A100-SXM4-80GB"} <= targets


def test_a_page_loads_nothing_and_runs_nothing_whatever_names_say(tmp_path):
    bad = '<script src="http://evil.example/x.js"></script><img src=x onerror=alert(1)>"\'&amp;'
    trace = replace(job_trace(), gpu_uuid=bad, gpu_model=bad, attributes={"generated": bad})
    write_trace(trace, tmp_path / "bad.csv")
    ask("report", str(tmp_path / "bad.csv"), "-o", str(tmp_path / "bad.html"))
    page = Page(tmp_path / "bad.html")
    assert {tag for tag, _ in page.tags} <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "table", "tr", "th", "td", "img", "ul", "li",
        "svg", "rect", "span", "code",
    }  # fmt: skip
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "href"]
        assert attributes.get("src", "data:").startswith("data:"), tag
    (policy,) = (known["content"] for _, known in page.tags if known.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    # What was given is there to be read.
    assert any(bad in text for text in page.texts)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_chromium_shows_the_page_without_a_complaint(page, traces, tmp_path):
    out, picture = tmp_path / "job.html", tmp_path / "job.png"
    ask("report", str(traces), "-o", str(out))
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    words += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1200,2400",
        f"--screenshot={picture}",
        out.as_uri(),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    # Its console has what breaks the policy, and what could not be loaded.
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    assert picture.stat().st_size > 50_000


def throttled(gpu, slow_gpu=1):
    """Epochs of 20 s, 4 of them an evaluation; in the last twelve the clock of a GPU is lower, and the others wait."""
    works, noise = np.random.default_rng(0).integers(158, 163, 26), np.random.default_rng(gpu)
    watts, use, clock = [70.0] * 300, [0.0] * 300, [1410.0] * 300
    for epoch, work in enumerate(works):
        more = 18 if epoch >= 14 else 0
        lower = more and gpu == slow_gpu
        watts += [300.0] * work + [300.0 if lower else 130.0] * more + [200.0] * 40
        use += [1.0] * (work + more) + [0.9] * 40
        clock += [1280.0 if lower else 1410.0] * (work + more + 40)
    power = np.array(watts) * np.exp(noise.normal(0, 0.01, len(watts)))
    values = {"power_watts": power, "gpu_utilization": np.array(use), "sm_clock_mhz": np.array(clock)}
    return Trace(np.arange(power.size) / 10, values, gpu_uuid=f"GPU-{gpu}")


def test_a_report_of_files_says_why_a_job_became_slower_and_which_gpu_drags_it(tmp_path):
    path, out = tmp_path / "job.csv", tmp_path / "job.html"
    write_trace([throttled(gpu) for gpu in range(4)], path)
    ask("report", str(path), "-o", str(out))
    # One row, whatever evaluations lie in it.
    (slower,) = [row for row in Page(out).tables["Slowdowns and other events"] if row[1].startswith("slower for")]
    assert float(slower[0]) == pytest.approx(30 + 14 * 20, abs=25)
    assert "the SM clock of GPU-1 fell by 9.2 %" in slower[2]
    assert "drags: GPU-1, p 1.00" in slower[2]


@pytest.fixture(scope="module")
def collector(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report") / "data"
    subject = TrackedStore(directory)
    records = trace_records(replace(job_trace(), origin_unix_s=None), start_ns=int(ORIGIN_S) * 10**9)
    records.insert(1, ingest_pb2.Record(sequence=2, job_bindings=ingest_pb2.JobBindings(bindings=[binding("GPU-0")])))
    for number, record in enumerate(records, start=1):
        record.sequence = number
    subject.feed(incoming(records), 40)
    subject.store.close()
    with ThreadCollector(directory) as running:
        yield running


def test_a_run_of_a_collector_is_told_as_the_collector_tells_it(collector, tmp_path):
    (run,) = ask("runs", "--collector", collector.target)["runs"]
    out = tmp_path / "run.pftrace"
    printed = ask("report", run["run_id"][:12], "--collector", collector.target, "-o", str(out))
    epochs = ask("epochs", run["run_id"], "--collector", collector.target)["epochs"]
    assert printed["epochs"] == len(epochs) == EPOCHS
    found = PerfettoFile(out)
    page = tmp_path / "run.html"
    ask("report", run["run_id"], "--collector", collector.target, "-o", str(page))
    facts = {row[0]: row[1] for row in Page(page).tables["What it is"]}
    assert (facts["run"], facts["job"]) == (run["run_id"], "slurm job-1")
    starts = [[begin for begin, *_ in slices] for slices in found.slices.values()]
    wanted = [ORIGIN_S + epoch["start_s"] + float(run["start_time"][17:26]) for epoch in epochs]
    assert any(np.allclose(np.diff(begins), np.diff(wanted), atol=1e-3) for begins in starts if len(begins) == EPOCHS)
    (job,) = ask("jobs", "job-1", "--collector", collector.target)["jobs"]
    states = [name for *_, name in found.slices[found.uuid("states")]]
    assert states[: len(job["history"])] == [span["state"] for span in job["history"]]


def test_of_a_job_that_was_requeued_a_run_is_told_with_the_gpus_and_states_that_the_job_had_then():
    def run(name, gpu, start_s, end_s):
        times = {"start_unix_nano": start_s * 10**9, "end_unix_nano": end_s * 10**9}
        return SimpleNamespace(run_id=name, job_id="1", gpu_uuid=gpu, tick_count=9, product_name="T4", **times)

    runs = [
        run("d", "GPU-2", 400, 600),
        run("c", "GPU-1", 401, 600),
        run("b", "GPU-1", 1, 200),
        run("a", "GPU-0", 0, 200),
    ]
    client = SimpleNamespace(
        list_runs=lambda **_: runs,
        read_samples=lambda uuid, **_: Trace(np.arange(9.0), {"sm_active": np.zeros(9)}, gpu_uuid=uuid),
    )
    history = [
        SimpleNamespace(state=name, start_unix_nano=start * 10**9, end_unix_nano=end * 10**9)
        for name, start, end in (("training", 0, 200), ("idle", 200, 400))
    ]
    job = SimpleNamespace(
        members=[SimpleNamespace(run_id=each.run_id, gpu_uuid=each.gpu_uuid) for each in runs[::-1]],
        history=history, state="training", reason="", confidence=0.9, state_unix_nano=400 * 10**9,
        end_unix_nano=600 * 10**9,
    )  # fmt: skip
    first, *_, last = (story._told_states(job, each, 0) for each in runs[::-1])
    assert [(each.state, each.start_s, each.end_s) for each in first] == [("training", 0.0, 200.0)]
    assert [(each.state, each.start_s, each.end_s) for each in last] == [("idle", 340, 400), ("training", 400, 600)]
    told = {each.run_id: [gpu.gpu_uuid for gpu in story._read_gpus(client, each, job)[0]] for each in runs}
    assert told == {"a": ["GPU-0", "GPU-1"], "b": ["GPU-1", "GPU-0"], "c": ["GPU-1", "GPU-2"], "d": ["GPU-2", "GPU-1"]}


@pytest.mark.parametrize(
    ("begin_s", "until_s", "said"),
    [(200.0, 200.0, "hung since then"), (199.8, 200.0, "hung since then"), (201.0, 201.0, "hung since then"),
     (90.0, 200.0, "hung for 110 s or longer")],
)  # fmt: skip
def test_a_run_that_ended_with_a_hang_tells_it_though_the_run_ends_with_its_last_activity(begin_s, until_s, said):
    run = SimpleNamespace(start_unix_nano=0, end_unix_nano=200 * 10**9)
    history = [
        SimpleNamespace(state=name, start_unix_nano=round(start * 1e9), end_unix_nano=round(end * 1e9))
        for name, start, end in (("training", 0, begin_s), ("hung", begin_s, until_s))
    ]
    job = SimpleNamespace(
        history=history, state="ended", reason="", confidence=1.0, state_unix_nano=200 * 10**9,
        end_unix_nano=200 * 10**9 + 10**8,  # of another of its GPUs
    )  # fmt: skip
    states = story._told_states(job, run, 0)
    assert [each.state for each in states] == ["training", "hung"]
    told = _events(SimpleNamespace(states=states, events=[]))
    assert said in told


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing-like-it", "-o", "x.pftrace"), 1, "gpusonde runs"),
        (("./no.csv", "-o", "x.pftrace"), 2, "no such file"),
        (("TRACE", "-o", "x.pdf"), 2, ".html"),
        (("TRACE",), 2, "-o"),
    ],
)
def test_what_cannot_be_written_is_refused(collector, traces, tmp_path, monkeypatch, capsys, words, code, said):
    monkeypatch.chdir(tmp_path)
    words = [str(traces) if word == "TRACE" else word for word in words]
    assert main(["report", *words, "--json", "--collector", collector.target]) == code
    assert said in json.loads(capsys.readouterr().out)["error"]["message"]
    assert list(tmp_path.iterdir()) == []
