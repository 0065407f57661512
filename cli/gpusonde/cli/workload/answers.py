"""Predicted steps as the command shows them: one shape, whether a local model or a collector answered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, cast

from gpusonde import formatting
from gpusonde.cli.exchange_rates import ExchangeRatesPayload
from gpusonde.cli.output import JsonKey, Screen

if TYPE_CHECKING:
    from gpusonde.predictor.workload.engine import WorkloadPrediction, WorkloadRequest

_SHOWN_NEAREST = 2
_FREE = ("free_cores", "free_memory_bytes", "free_disk_throughput", "free_cpu_flops")
_PLACE = ("gpu_model", "gpu_count", "node_count", "parallelism", "link", "network_bytes_per_second", *_FREE)
_ANSWER = (
    "global_batch_size", "step_s", "step_low_s", "step_high_s", "interval_coverage", "steps_per_epoch", "epoch_s",
    "epoch_low_s", "epoch_high_s", "tokens_per_second", "model_flops_utilisation", "communication_ratio", "regressor",
    "features",
    "out_of_distribution", "fits", "memory",
)  # fmt: skip


class AlikePayload(TypedDict):
    """A known network that is like another one."""

    architecture: str
    similarity: Annotated[float, JsonKey("at most 1")]


class MemoryPayload(TypedDict):
    """What a step holds on each GPU when it holds most."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: Annotated[int, JsonKey("kept for the backward pass")]
    workspace_bytes: Annotated[int, JsonKey("what comes and goes, driver and framework")]
    device_bytes: Annotated[int, JsonKey("of the GPU's memory")]
    largest_batch: Annotated[int, JsonKey("samples per GPU that should fit")]
    largest_batch_checkpointed: Annotated[int, JsonKey("with activations that are computed again")]


class StepPayload(TypedDict):
    """The predicted training step of one network in one place."""

    graph: str
    gpu_model: Annotated[str | None, JsonKey("null where named hosts have no answer")]
    gpu_count: int | None
    node_count: Annotated[int | None, JsonKey("hosts")]
    agent_ids: Annotated[list[str], JsonKey("of named hosts")]
    free_cores: Annotated[float | None, JsonKey("of the weakest of these hosts")]
    free_memory_bytes: Annotated[float | None, JsonKey("likewise")]
    free_disk_throughput: Annotated[float | None, JsonKey("likewise", "bytes per second")]
    free_cpu_flops: Annotated[float | None, JsonKey("likewise", "per second")]
    parallelism: Annotated[str | None, JsonKey("`none`, `data_parallel` or `distributed`")]
    link: Annotated[str | None, JsonKey("in a host, where told: `nvlink` or `pcie`")]
    network_bytes_per_second: Annotated[float | None, JsonKey("of a host, where it was told")]
    precision: str
    batch_size: Annotated[int, JsonKey("samples per GPU and step")]
    global_batch_size: Annotated[int | None, JsonKey("on all GPUs")]
    step_s: Annotated[float | None, JsonKey("forward and backward pass, exchange and update")]
    step_low_s: Annotated[float | None, JsonKey("its interval")]
    step_high_s: Annotated[float | None, JsonKey("its interval")]
    interval_coverage: Annotated[float | None, JsonKey("share of such intervals that should hold the truth")]
    steps_per_epoch: Annotated[int | None, JsonKey("null without `--samples-per-epoch`")]
    epoch_s: Annotated[float | None, JsonKey("null without `--samples-per-epoch`")]
    epoch_low_s: Annotated[float | None, JsonKey("null without `--samples-per-epoch`")]
    epoch_high_s: Annotated[float | None, JsonKey("null without `--samples-per-epoch`")]
    tokens_per_second: Annotated[float | None, JsonKey("on all GPUs")]
    model_flops_utilisation: Annotated[float | None, JsonKey("share of the precision's peak that is used")]
    communication_ratio: Annotated[
        float | None,
        JsonKey("share of the step in which GPUs only wait for gradients"),
    ]
    regressor: str | None
    features: str | None
    out_of_distribution: Annotated[
        bool | None,
        JsonKey(
            "unlike all that the model was fitted on ([what follows](workload.md#what-the-interval-and-the-flag-mean))"
        ),
    ]
    fits: Annotated[str | None, JsonKey("into the GPU's memory: `yes`, `likely`, `unknown` or `no`")]
    memory: MemoryPayload | None
    reasons: Annotated[list[str], JsonKey("what is unlike, and what else to know")]
    nearest: Annotated[list[AlikePayload], JsonKey("known networks, the most alike first")]
    error: Annotated[str | None, JsonKey("why there is no answer")]


class StepsPayload(TypedDict):
    """What ``gpusonde workload predict`` prints."""

    model_version: str | None
    notes: Annotated[list[str], JsonKey("what to know of names and graphs")]
    predictions: list[StepPayload]
    exchange_rates: Annotated[ExchangeRatesPayload | None, JsonKey("null without `--matrix`")]


def row(
    request: WorkloadRequest,
    found: WorkloadPrediction | None,
    samples_per_epoch: int | None,
    error: str | None = None,
    agent_ids: Sequence[str] = (),
) -> StepPayload:
    """One answer as it appears in JSON, for the hosts of agents or any; without a prediction, why there is none."""
    cluster = request.cluster
    host = cluster.host
    steps = None if samples_per_epoch is None else request.epoch_iterations(samples_per_epoch)
    ends = (None, None, None) if found is None else (found.seconds, found.low_s, found.high_s)
    epochs = [None if steps is None or seconds is None else steps * seconds for seconds in ends]
    found_row: dict[str, Any] = {
        **unanswered(request.graph.name, request.batch_size, cluster.precision.value, error),
        "gpu_model": cluster.device,
        "gpu_count": cluster.device_count,
        "node_count": cluster.node_count,
        "parallelism": cluster.parallelism.value,
        "link": cluster.link or None,
        "network_bytes_per_second": cluster.network_bytes_per_second or None,
        "agent_ids": list(agent_ids),
        "free_cores": host and host.cores,
        "free_memory_bytes": host and host.memory_bytes,
        "free_disk_throughput": host and host.disk_bytes_per_second,
        "free_cpu_flops": host and host.flops,
        "global_batch_size": request.global_batch_size,
        **dict(zip(("step_s", "step_low_s", "step_high_s"), ends, strict=True)),
        "interval_coverage": None if found is None else found.coverage,
        "steps_per_epoch": steps,
        **dict(zip(("epoch_s", "epoch_low_s", "epoch_high_s"), epochs, strict=True)),
        **_rate(request, found),
        "communication_ratio": None if found is None else found.communication_ratio,
        "regressor": None if found is None else found.regressor,
        "features": None if found is None else found.features,
        "out_of_distribution": None if found is None else found.out_of_distribution,
        **({} if found is None or found.memory is None else found.memory.document()),
        "reasons": [] if found is None else list(found.reasons),
        "nearest": []
        if found is None
        else [{"architecture": name, "similarity": alike} for name, alike in found.nearest],
    }
    return cast(StepPayload, found_row)


def _rate(request: WorkloadRequest, found: WorkloadPrediction | None) -> dict[str, float | None]:
    from gpusonde.catalog import load_gpus
    from gpusonde.predictor.workload.engine import compute_flops_utilisation

    if found is None:
        return {}
    gpu = load_gpus().get(request.cluster.device)
    return {
        "tokens_per_second": None if request.tokens is None else request.tokens / found.seconds,
        "model_flops_utilisation": compute_flops_utilisation(request, found.seconds, gpu),
    }


def unanswered(graph: str, batch_size: int, precision: str, error: str | None) -> StepPayload:
    """Return the same where not even the cluster is known, as the hosts that were named are not."""
    nothing: dict[str, Any] = {
        "graph": graph,
        **dict.fromkeys(_PLACE),
        "agent_ids": [],
        "precision": precision,
        "batch_size": batch_size,
        **dict.fromkeys(_ANSWER),
        "reasons": [],
        "nearest": [],
        "error": error,
    }
    return cast(StepPayload, nothing)


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
    coverage = formatting.percent(rows[0]["interval_coverage"])
    has_epochs = rows[0]["epoch_s"] is not None
    epochs = ("epoch (s)", "from to (s)") if has_epochs else ()
    tokens = ("tokens/s", "MFU") if any(each["tokens_per_second"] is not None for each in rows) else ()
    flag = ("flag",) if any(each["out_of_distribution"] for each in rows) else ()
    columns = (
        "network", "on", "batch per GPU", "step (s)", f"{coverage} interval (s)", *epochs, *tokens, "memory (GiB)"
    )  # fmt: skip
    screen.table(
        (*columns, "fits", *flag, "computed by", "most alike"),
        [
            (
                each["graph"],
                _where(each),
                str(each["batch_size"]),
                formatting.number(each["step_s"]),
                formatting.interval(each["step_low_s"], each["step_high_s"]),
                *(_epoch_cells(each) if has_epochs else ()),
                *(_token_cells(each) if tokens else ()),
                formatting.number(_count_bytes(each) / (1 << 30)),
                each["fits"] or "",
                *(("unlike all known" if each["out_of_distribution"] else "",) if flag else ()),
                f"{each['regressor']} on {each['features']}",
                ", ".join(near["architecture"] for near in each["nearest"][:_SHOWN_NEAREST]),
            )
            for each in rows
        ],
        numeric=columns[2:],
        optional=("computed by", "most alike", "MFU", "tokens/s", "from to (s)", "memory (GiB)", "batch per GPU"),
        naming=2,
    )


def _token_cells(each: Mapping[str, Any]) -> tuple[str, str]:
    if each["tokens_per_second"] is None:
        return "", ""
    return formatting.number(each["tokens_per_second"]), formatting.percent(each["model_flops_utilisation"])


def _count_bytes(each: Mapping[str, Any]) -> float:
    if each["memory"] is None:
        return math.nan
    parts = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "workspace_bytes")
    return float(sum(each["memory"].get(part, 0) for part in parts))


def _epoch_cells(each: Mapping[str, Any]) -> tuple[str, str]:
    return formatting.number(each["epoch_s"]), formatting.interval(each["epoch_low_s"], each["epoch_high_s"])


def _where(each: Mapping[str, Any]) -> str:
    if each["gpu_model"] is None:
        return "these hosts"
    count = each["gpu_count"]
    words = each["gpu_model"] if count == 1 else f"{count} x {each['gpu_model']}"
    if each["link"]:
        words += f"@{each['link']}"
    if each["node_count"] > 1:
        words += f" in {each['node_count']} hosts"
    if each["network_bytes_per_second"]:
        words += f"@{8 * each['network_bytes_per_second'] / 1e9:.4g}gbit"
    return words if each["precision"] == "fp32" else f"{words}, {each['precision']}"
