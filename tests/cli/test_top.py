"""``gpusonde top``: the terminal, driven by keys, on a collector that answers what it is told to."""

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gpusonde.collector.client import (
    CollectorError,
    CycleInfo,
    EpochInfo,
    JobInfo,
    JobMember,
    JobSpan,
    RunEpochs,
    SampleBounds,
    SlowDevice,
)

pytest.importorskip("textual", reason="the terminal needs the extra cli")

from textual.widgets import DataTable, Static

from gpusonde.cli.commands import jobs
from gpusonde.cli.main import main
from gpusonde.cli.top import FleetPage, JobPage, TopApp

START = 1_700_000_000_000_000_000
SECOND = 10**9


def job(name, state, gpus, since_s=100, **more):
    members = tuple(
        JobMember(f"run-{name}", "agent", f"host-{name[0]}", f"GPU-{name}-{i}", "T4", True) for i in range(gpus)
    )
    return JobInfo(
        job_id=name, scheduler="slurm", active=True, start_unix_nano=START, end_unix_nano=START + 400 * SECOND,
        members=members, state=state, state_unix_nano=START + since_s * SECOND, reason=f"why {name} is {state}",
        confidence=0.9, history=(JobSpan("starting", START, START + since_s * SECOND),), level=None,
        progress_ratio=float("nan"), estimate=None, estimate_reason="the total is not known", goodput_ratio=0.5,
        gpu_s=400.0 * gpus, deviations=(), **more,
    )  # fmt: skip


class ScriptedClient:
    """Answers as a collector does, or not while it is ``gone``."""

    def __init__(self, *jobs):
        self.jobs = list(jobs)
        self.gone = self.broken = False
        self.asked = []

    def list_jobs(self, *, job_id="", active_only=False, limit=None, **_totals):
        self.asked.append((job_id, active_only))
        if self.broken:
            raise ValueError("no such role")
        if self.gone:
            raise CollectorError("UNAVAILABLE", "nobody listens", "start it")
        return [job for job in self.jobs if job_id in ("", job.job_id) and (job.active or not active_only)][:limit]

    def list_epochs(self, run_id):
        epochs = tuple(
            EpochInfo(i, START + 20 * i * SECOND, START + (20 * i + 18 + i) * SECOND, 0.9, "confirmed", 1)
            for i in range(5)
        )
        return RunEpochs("epochs", "", epochs, role="epoch")

    def read_bounds(self, run_id, bins):
        values = np.linspace(0, 0.875, bins)
        values[0] = np.nan
        return SampleBounds("sm_active", START, START + 400 * SECOND, values / 2, values)


def drive(client, steps, size=(80, 24)):
    """Run the terminal, and what is done with it once it shows the first answer."""

    async def run():
        app = TopApp(client, "host:7433", interval_s=0.2)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: client.asked and app.jobs)
            await steps(app, pilot)

    asyncio.run(run())


async def until(pilot, condition):
    for _ in range(1500):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError("waited in vain")


def told(app, name):
    return str(app.screen.query_one(name, Static).content)


def names(app):
    table = app.screen.query_one(DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


JOBS = (job("calm", "training", 8), job("bad", "hung", 2), job("pale", "idle", 1, since_s=300))


def test_those_that_want_somebody_come_first_and_keys_sort_and_filter():
    async def steps(app, pilot):
        assert names(app) == ["bad", "pale", "calm"]
        assert told(app, "#heat").splitlines()[0] == "xx->>>>>>>>"
        assert "x hung 2" in told(app, "#heat")
        await pilot.press("s", "s")
        await until(pilot, lambda: names(app) == ["calm", "bad", "pale"])
        await pilot.press("slash", *"idle")
        await until(pilot, lambda: names(app) == ["pale"])
        assert "3 jobs, 1 shown" in told(app, "#told")
        await pilot.press("escape")
        await until(pilot, lambda: len(names(app)) == 3)
        await pilot.press("a")
        await until(pilot, lambda: app._client.asked[-1] == ("", False))

    drive(ScriptedClient(*JOBS), steps)


def test_enter_opens_a_job_with_its_states_its_cycles_and_what_its_gpus_did():
    slow = replace(
        JOBS[0], state="slower", slow_devices=(SlowDevice("agent", "host-c", "GPU-calm-3", 0.8, "it is hot"),),
        level=CycleInfo(18.0, 17.0, 19.0, 5, 0.9, "epoch", 0.9, None, ()),
    )  # fmt: skip

    async def steps(app, pilot):
        await pilot.press("down", "up", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, JobPage) and app.detail)
        await pilot.pause()
        text = screen_text(app)
        for part in (
            "why calm is training", "progress: epoch 18.0 s x 5", "no estimate of the end: the total is not known",
            "length of the latest 5 epochs, 18.0 s to 22.0 s", "host-c GPU-calm-0 sm_active, at most 0.875",
            "+++++++++++++++++++vvvv", "may drag: host-c/GPU-calm-3, p 0.80: it is hot",
        ):  # fmt: skip
            assert part in text, text
        assert "\u2588" in text
        await pilot.resize_terminal(120, 60)
        await until(pilot, lambda: "+" * 28 + "v" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, FleetPage))
        # The row is the same one, though all were asked for again.
        await until(pilot, lambda: app.jobs and app._client.asked[-1][0] == "")
        assert app.screen.query_one(DataTable).cursor_row == 1

    drive(ScriptedClient(slow, JOBS[1]), steps, size=(80, 80))


def screen_text(app):
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


def test_a_collector_that_is_gone_is_told_of_and_taken_up_again():
    client = ScriptedClient(*JOBS)

    async def steps(app, pilot):
        client.gone = True
        await until(pilot, lambda: "no answer since" in told(app, "#told"))
        assert "nobody listens" in told(app, "#told")
        assert len(names(app)) == 3
        client.gone = False
        client.jobs.append(job("new", "starting", 1))
        await until(pilot, lambda: "new" in names(app))
        assert "host:7433 at " in told(app, "#told")

    drive(client, steps)


def test_a_fault_of_ours_is_shown_and_the_asking_goes_on():
    client = ScriptedClient(*JOBS)

    async def steps(app, pilot):
        client.broken = True
        await until(pilot, lambda: "ValueError: no such role" in told(app, "#told"))
        client.broken = False
        await until(pilot, lambda: "host:7433 at " in told(app, "#told"))

    drive(client, steps)


def test_jobs_of_two_schedulers_with_one_id_are_two_and_one_that_is_gone_is_told_of():
    slurm = job("twin", "training", 1)
    client = ScriptedClient(slurm, replace(slurm, scheduler="kubernetes", state="hung", reason="why the other hangs"))

    async def steps(app, pilot):
        assert names(app) == ["twin", "twin"]
        await pilot.press("enter")
        await until(pilot, lambda: app.detail and "why the other hangs" in screen_text(app))
        client.jobs.clear()
        await until(pilot, lambda: "no such job any more" in screen_text(app))

    drive(client, steps)


def test_a_job_that_begins_to_work_stays_open_though_it_has_another_beginning_since():
    waiting = job("new", "idle", 1)
    client = ScriptedClient(waiting)

    async def steps(app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: app.detail and "why new is idle" in screen_text(app))
        client.jobs = [replace(waiting, start_unix_nano=START + 60 * SECOND, state="training", reason="it works now")]
        await until(pilot, lambda: "it works now" in screen_text(app) or app.is_over)
        assert not app.is_over

    drive(client, steps)


def test_of_a_job_that_was_put_back_into_the_queue_the_gpus_that_it_has_now_are_drawn_and_found():
    left = [JobMember(f"run-{i}", "agent", "host-left", f"GPU-left-{i}", "T4", False) for i in range(8)]
    requeued = job("requeued", "training", 1)
    requeued = replace(requeued, members=(*left, *requeued.members))

    async def steps(app, pilot):
        await pilot.press("slash", *"left")
        await until(pilot, lambda: names(app) == [])
        await pilot.press("escape", "enter")
        await until(pilot, lambda: app.detail and "GPU-requeued-0" in screen_text(app))
        assert "GPU-left" not in screen_text(app)

    drive(ScriptedClient(requeued), steps, size=(80, 60))


@pytest.mark.parametrize(
    ("role", "confidence", "told"),
    [("unknown", 0, "unknown"), ("evaluation", 0.9, "evaluation"), ("epoch", 0.4, "unknown")],
)
def test_cycles_that_may_be_no_epochs_are_cycles_as_in_every_other_answer(role, confidence, told):
    level = CycleInfo(18.0, 17.0, 19.0, 5, 0.9, role, confidence, None, ())
    client = ScriptedClient(replace(JOBS[0], level=level))
    client.list_epochs = lambda run_id: replace(ScriptedClient().list_epochs(run_id), role=told)

    async def steps(app, pilot):
        await pilot.press("enter")
        await until(pilot, lambda: app.detail and "length of the latest 5 " in screen_text(app))
        assert "length of the latest 5 cycles, 18.0 s" in screen_text(app)
        assert "progress: cycle 18.0 s x 5" in screen_text(app)

    drive(client, steps)


@pytest.mark.parametrize("keys", [(), ("slash", "x"), ("enter",)])
def test_ctrl_c_ends_it_wherever_one_is(keys):
    async def steps(app, pilot):
        await pilot.press(*keys, "ctrl+c")
        await until(pilot, lambda: not app.is_running)

    drive(ScriptedClient(*JOBS), steps)


def test_names_are_text_and_nothing_else():
    async def steps(app, pilot):
        assert names(app) == ["[red]x[/] [link=http://x]"]
        await pilot.press("enter")
        await until(pilot, lambda: app.detail is not None)
        await until(pilot, lambda: "[red]x[/] [link=http://x]" in screen_text(app))

    drive(ScriptedClient(job("[red]x[/] [link=http://x]", "training", 1)), steps)


def test_columns_fit_the_terminal():
    async def steps(app, pilot):
        columns = [str(key.value) for key in app.screen.query_one(DataTable).columns]
        assert columns == ["job", "state", "for", "GPUs", "why"]
        await pilot.resize_terminal(120, 24)
        await until(pilot, lambda: "cycle" in [str(key.value) for key in app.screen.query_one(DataTable).columns])
        assert app.screen.query_one(DataTable).virtual_size.width <= 120

    drive(ScriptedClient(*JOBS), steps)


def test_more_gpus_than_columns_show_the_worst_of_those_behind_each():
    async def steps(app, pilot):
        line = told(app, "#heat").splitlines()[0]
        assert len(line) == 78
        assert line.startswith("x>")

    drive(ScriptedClient(job("many", "training", 1000), job("bad", "hung", 2)), steps)


def test_without_a_terminal_it_says_what_to_use():
    command = [sys.executable, "-m", "gpusonde.cli", "top"]
    done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert "top needs a terminal; 'gpusonde jobs --watch'" in done.stderr


@pytest.mark.parametrize("words", [(), ("a-0",)])
def test_jobs_that_are_watched_on_a_terminal_fit_it(monkeypatch, words):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    def sleep(_):
        raise KeyboardInterrupt

    spans = tuple(JobSpan("training", START + i * SECOND, START + (i + 1) * SECOND) for i in range(40))
    client = ScriptedClient(*(replace(job(f"a-{i}", "training", 1), history=spans) for i in range(30)))
    terminal = Terminal()
    monkeypatch.setattr(jobs, "connect", lambda _: contextlib.nullcontext(client))
    monkeypatch.setattr(jobs.time, "sleep", sleep)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.setenv("LINES", "12")
    assert main(["jobs", "--watch", *words]) == 0
    lines = re.sub("\x1b\\[[0-9;]*[A-Za-z]", "", terminal.getvalue()).splitlines()
    assert len(lines) < 12
    assert max(map(len, lines)) <= 70
    assert lines[0].split()[:2] == ["job", "state"]
    assert any(line.startswith("a-0 ") for line in lines)
    assert "..." in lines
    assert lines[-1].startswith("no estimate of the end" if words else "goodput of all")


def test_jobs_that_are_watched_in_a_pipe_are_asked_for_again_once_a_collector_is_back(monkeypatch, capsys):
    client = ScriptedClient(job("a", "training", 1))
    asked = iter([False, True, True, False])

    def sleep(_):
        client.gone = next(asked, None)
        if client.gone is None:
            raise KeyboardInterrupt
        if not client.gone and len(client.asked) > 2:
            client.jobs = [job("a", "hung", 1)]

    monkeypatch.setattr(jobs, "connect", lambda _: contextlib.nullcontext(client))
    monkeypatch.setattr(jobs.time, "sleep", sleep)
    assert main(["jobs", "--watch", "--json"]) == 0
    told = capsys.readouterr()
    assert [json.loads(line)["jobs"][0]["state"] for line in told.out.splitlines()] == ["training", "hung"]
    assert told.err.count("nobody listens") == 1
