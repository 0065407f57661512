"""Predicted steps as the command shows them: one shape, whether a local model or a collector answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpusonde.cli import wording
from gpusonde.cli.output import Screen

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine import WorkloadPrediction, WorkloadRequest

_SHOWN_NEAREST = 2


def row(
    request: WorkloadRequest, found: WorkloadPrediction | None, samples_per_epoch: int | None, error: str | None = None
) -> dict[str, Any]:
    """One answer as it appears in JSON; without a prediction, why there is none."""
    cluster = request.cluster
    steps = None if samples_per_epoch is None else request.epoch_iterations(samples_per_epoch)
    ends = (None, None, None) if found is None else (found.seconds, found.low_s, found.high_s)
    epochs = [None if steps is None or seconds is None else steps * seconds for seconds in ends]
    return {
        "graph": request.graph.name,
        "gpu_model": cluster.device,
        "gpu_count": cluster.device_count,
        "node_count": cluster.node_count,
        "parallelism": cluster.parallelism.value,
        "precision": cluster.precision.value,
        "batch_size": request.batch_size,
        "global_batch_size": request.global_batch_size,
        **dict(zip(("step_s", "step_low_s", "step_high_s"), ends, strict=True)),
        "interval_coverage": None if found is None else found.coverage,
        "steps_per_epoch": steps,
        **dict(zip(("epoch_s", "epoch_low_s", "epoch_high_s"), epochs, strict=True)),
        "regressor": None if found is None else found.regressor,
        "features": None if found is None else found.features,
        "out_of_distribution": None if found is None else found.out_of_distribution,
        "reasons": [] if found is None else list(found.reasons),
        "nearest": []
        if found is None
        else [{"architecture": name, "similarity": alike} for name, alike in found.nearest],
        "error": error,
    }


def render_predictions(screen: Screen, payload: Mapping[str, Any]) -> None:
    """Print predictions in the order of the questions; what they have in common stands below the table."""
    for note in payload["notes"]:
        screen.note(f"note: {note}")
    rows: Sequence[Mapping[str, Any]] = [each for each in payload["predictions"] if each["error"] is None]
    if rows:
        _render_table(screen, rows)
    remarks: dict[str, int] = {}
    for each in rows:
        for reason in each["reasons"]:
            remarks[reason] = remarks.get(reason, 0) + 1
    for reason, times in remarks.items():
        of_all = "" if times == len(rows) else f" ({times} of {len(rows)} answers)"
        screen.note(f"note: {reason}{of_all}")
    for each in payload["predictions"]:
        if each["error"] is not None:
            screen.note(f"no answer for {each['graph']} on {_where(each)}: {each['error']}")
    if payload["model_version"]:
        screen.line(f"model {payload['model_version']}")


def _render_table(screen: Screen, rows: Sequence[Mapping[str, Any]]) -> None:
    coverage = wording.percent(rows[0]["interval_coverage"])
    has_epochs = rows[0]["epoch_s"] is not None
    epochs = ("epoch (s)", "from to (s)") if has_epochs else ()
    columns = ("network", "on", "batch per GPU", "step (s)", f"{coverage} interval (s)", *epochs)
    screen.table(
        (*columns, "flag", "computed by", "most alike"),
        [
            (
                each["graph"],
                _where(each),
                str(each["batch_size"]),
                wording.number(each["step_s"]),
                wording.interval(each["step_low_s"], each["step_high_s"]),
                *(_epoch_cells(each) if has_epochs else ()),
                "unlike all known" if each["out_of_distribution"] else "",
                f"{each['regressor']} on {each['features']}",
                ", ".join(near["architecture"] for near in each["nearest"][:_SHOWN_NEAREST]),
            )
            for each in rows
        ],
        numeric=columns[2:],
        optional=("computed by", "most alike"),
    )


def _epoch_cells(each: Mapping[str, Any]) -> tuple[str, str]:
    return wording.number(each["epoch_s"]), wording.interval(each["epoch_low_s"], each["epoch_high_s"])


def _where(each: Mapping[str, Any]) -> str:
    count = each["gpu_count"]
    words = each["gpu_model"] if count == 1 else f"{count} x {each['gpu_model']}"
    if each["node_count"] > 1:
        words += f" in {each['node_count']} hosts"
    return words if each["precision"] == "fp32" else f"{words}, {each['precision']}"
