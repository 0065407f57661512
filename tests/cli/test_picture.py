"""The picture of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpusonde.cli.picture import (
    MAX_PANELS,
    EpochMarks,
    JobMarks,
    LatencyMark,
    LevelMarks,
    PlanMark,
    choose_panels,
    draw,
    draw_jobs,
    draw_latencies,
    draw_plans,
)
from gpusonde.telemetry import Trace


def make_trace(n: int = 600) -> Trace:
    time_s = np.arange(n) * 0.1
    wave = 0.5 + 0.5 * np.sign(np.sin(time_s / 3))
    return Trace(
        time_s=time_s,
        values={
            "framebuffer_used_bytes": np.full(n, 6e9) + wave,
            "memory_clock_mhz": np.full(n, 5001.0),
            "power_watts": 60 + 5 * wave,
            "gpu_utilization": wave,
            "sm_active": wave * 0.9,
            "dram_active": wave * 0.5,
        },
    )


def test_the_most_telling_metrics_come_first_and_constant_ones_are_left_out() -> None:
    assert choose_panels(make_trace()) == ["dram_active", "sm_active", "gpu_utilization", "power_watts"]


def test_metrics_asked_for_are_shown_up_to_the_limit() -> None:
    trace = make_trace()
    assert choose_panels(trace, ["memory_clock_mhz"]) == ["memory_clock_mhz"]
    assert len(choose_panels(trace, trace.metrics)) == MAX_PANELS


def test_a_trace_of_constants_still_gets_a_picture(tmp_path: Path) -> None:
    trace = Trace(time_s=np.arange(5.0), values={"power_watts": np.full(5, 9.0)})
    draw(tmp_path / "flat.png", trace, EpochMarks(np.empty(0), np.empty(0), "no epochs"))
    assert (tmp_path / "flat.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_is_written_where_asked(tmp_path: Path) -> None:
    trace = make_trace()
    starts = np.array([5.0, 23.0, 41.0])
    path = tmp_path / "epochs.png"
    draw(path, trace, EpochMarks(starts, np.append(starts[1:], 59.0), "3 epochs", "a detail"))
    assert path.read_bytes().startswith(b"\x89PNG")


def test_true_starts_are_drawn_beside_those_found(tmp_path: Path) -> None:
    trace, found = make_trace(), (np.array([5.0, 23.0]), np.array([23.0, 41.0]))
    draw(tmp_path / "found.png", trace, EpochMarks(*found, "2 epochs"))
    draw(tmp_path / "both.png", trace, EpochMarks(*found, "2 epochs", true_starts_s=np.array([5.0, 14.0, 23.0])))
    assert (tmp_path / "found.png").read_bytes() != (tmp_path / "both.png").read_bytes()


def test_levels_have_a_row_each_below_the_metrics(tmp_path: Path) -> None:
    trace, found = make_trace(), (np.array([5.0, 23.0]), np.array([23.0, 41.0]), "2 epochs")
    steps = LevelMarks("step, 0.01 s", np.linspace(5, 41, 4000))
    epochs = LevelMarks("epoch, 18 s", np.array([5.0, 23.0, 41.0]), told=True)
    heights = []
    for levels in ((), (epochs,), (steps, epochs)):
        path = tmp_path / f"{len(levels)}.png"
        draw(path, trace, EpochMarks(*found, levels=levels))
        heights.append(int.from_bytes(path.read_bytes()[20:24], "big"))
    assert heights == sorted(set(heights))


def test_dollars_are_no_formulas(tmp_path: Path) -> None:
    marks = JobMarks("a$^2$b", [("training", 1e9, 1e9 + 60)])
    draw_jobs(tmp_path / "job.svg", [marks], "from $2.00 to $3.00", "")
    assert (tmp_path / "job.svg").read_text(encoding="utf-8").count("<!-- a$^2$b -->") == 1
    assert "<!-- from $2.00 to $3.00" in (tmp_path / "job.svg").read_text(encoding="utf-8")


def test_holes_and_missing_values_do_not_stop_the_picture(tmp_path: Path) -> None:
    trace = make_trace()
    keep = (trace.time_s < 20) | (trace.time_s > 30)
    values = {name: np.where(trace.time_s > 50, np.nan, column)[keep] for name, column in trace.values.items()}
    draw(
        tmp_path / "holes.png",
        Trace(time_s=trace.time_s[keep], values=values),
        EpochMarks(np.array([5.0]), np.array([12.0]), "1 epoch"),
    )
    assert (tmp_path / "holes.png").stat().st_size > 1000


def heights_of(folder: Path) -> dict[str, int]:
    return {path.name: int.from_bytes(path.read_bytes()[20:24], "big") for path in folder.glob("*.png")}


def test_latencies_get_a_row_each_and_kinds_look_different(tmp_path: Path) -> None:
    def marks(count: int, kind: str) -> list[LatencyMark]:
        return [LatencyMark(f"GPU {i}", 2.0 + i, 1.0 + i, 9.0 + i, kind) for i in range(count)]

    draw_latencies(tmp_path / "known.png", marks(3, "predicted"), "one epoch", "90 % intervals", "seconds per epoch")
    draw_latencies(tmp_path / "new.png", marks(3, "extrapolated"), "one epoch", "90 % intervals", "seconds per epoch")
    draw_latencies(tmp_path / "many.png", marks(250, "predicted"), "one epoch", "90 % intervals", "seconds per epoch")
    draw_latencies(tmp_path / "none.png", [], "one epoch", "nothing is known", "seconds per epoch")
    heights = heights_of(tmp_path)
    assert heights["none.png"] < heights["known.png"] == heights["new.png"] < heights["many.png"] < 5000
    assert (tmp_path / "known.png").read_bytes() != (tmp_path / "new.png").read_bytes()


def test_plans_and_jobs_have_pictures(tmp_path: Path) -> None:
    plans = [PlanMark(f"{n} x t4 @ 64", 9000.0 / n, 9500.0 / n, 2.0 + n, 2.2 + n) for n in (1, 2, 4)]
    draw_plans(tmp_path / "plans.png", plans, "resnet50: 3 plans", "", "kept with 95 % confidence")
    draw_plans(tmp_path / "no_plans.png", [], "resnet50: 0 plans", "", "kept with 95 % confidence")
    spans = [("starting", 1e9, 1e9 + 60), ("training", 1e9 + 60, 1e9 + 4000), ("a new state", 1e9 + 4000, 1e9 + 4100)]
    draw_jobs(tmp_path / "jobs.png", [JobMarks("4711", spans), JobMarks("4712", spans)], "what 2 jobs did", "")
    draw_jobs(tmp_path / "ends.png", [JobMarks("4711", spans, (1e9 + 7e3, 1e9 + 8e3, 1e9 + 9e3))], "job 4711", "")
    draw_jobs(tmp_path / "no_jobs.png", [], "what 0 jobs did", "")
    heights = heights_of(tmp_path)
    assert heights["no_plans.png"] < heights["plans.png"]
    assert heights["no_jobs.png"] < heights["ends.png"] < heights["jobs.png"]
