"""Recordings of known jobs: what the agent's source sees, and from the job itself when every epoch began."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from truth import read_events, truth_of

from gpusonde.telemetry import Trace, read_trace, write_trace

JOB = Path(__file__).with_name("job.py")
_START_TIMEOUT_S = 180.0
_POLL_S = 0.1


@dataclass(frozen=True)
class JobPlan:
    """One job to record.

    Attributes:
        name: Name of the recording.
        mode: ``train``, ``inference``, ``inference_bursts`` or ``idle``.
        network: One of ``networks.WORKLOADS``.
        batch_size: Samples per step.
        epoch_s: Seconds an epoch is to take, about; the steps are chosen so at the start of the job.
        epochs: Number of epochs.
        validation_share: Share of an epoch spent on validation, 0 for none.
        checkpoint_every: Epochs between checkpoints, 0 for none.
        mixed_precision: Whether bfloat16 is used where torch allows it.
        lead_s: Idle seconds before the first and after the last epoch.
        duration_s: Length of a job without epochs.
    """

    name: str
    mode: str = "train"
    network: str = "residual_18"
    batch_size: int = 64
    epoch_s: float = 5.0
    epochs: int = 9
    validation_share: float = 0.0
    checkpoint_every: int = 0
    mixed_precision: bool = False
    lead_s: float = 2.0
    duration_s: float = 40.0


PLANS = (
    JobPlan("residual_18_b64", epoch_s=4.0),
    JobPlan("residual_18_b256_validation", batch_size=256, epoch_s=5.0, validation_share=0.2),
    JobPlan("residual_34_b128_validation_checkpoint", "train", "residual_34", 128, 6.0, 8, 0.15, 1),
    JobPlan("plain_b128_validation_checkpoint", "train", "plain", 128, 4.5, 9, 0.15, 1, True),
    JobPlan("separable_b64_checkpoint_every_3", "train", "separable", 64, 3.5, 12, 0.0, 3),
    JobPlan("separable_b256_validation", "train", "separable", 256, 6.5, 8, 0.1, 0, True),
    JobPlan("transformer_b32_validation_checkpoint", "train", "transformer", 32, 5.5, 8, 0.15, 1, True),
    JobPlan("transformer_b16_checkpoint_every_4", "train", "transformer", 16, 3.0, 13, 0.1, 4),
    JobPlan("inference_steady", "inference", "residual_34", 32),
    JobPlan("inference_bursts", "inference_bursts", "transformer", 8),
    JobPlan("idle", "idle", "separable", 8, duration_s=30.0),
)
TINY_PLANS = (
    JobPlan("tiny_validation", network="tiny", batch_size=4, epoch_s=1.0, epochs=4, validation_share=0.2, lead_s=0.5),
    JobPlan("tiny_idle", "idle", "tiny", 4, duration_s=2.0),
)


class JobFailedError(RuntimeError):
    """A job did not start, or did not finish."""


def record_all(
    plans: Iterable[JobPlan], device: str, out: Path, recorder: Callable[[Path], list[str]], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Record every plan into ``out/recordings.parquet`` and ``out/truth.json``; return a line about each.

    A job that fails (out of memory, say) is left out and said so; the others go on.
    """
    traces: list[Trace] = []
    truth: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    for plan in plans:
        say(f"recording {plan.name}")
        try:
            trace, events = _record(plan, device, recorder)
            truth[plan.name] = truth_of(events, trace.origin_unix_s or 0.0, plan.name)
        except (JobFailedError, ValueError) as error:
            say(f"{plan.name} is left out: {error}")
            continue
        # The name takes the place of the GPU's own identity, which is nobody's business.
        traces.append(
            replace(trace, gpu_uuid=plan.name, attributes={**trace.attributes, "job": json.dumps(asdict(plan))})
        )
        entry = truth[plan.name]
        rows.append(
            {
                "recording": plan.name,
                "duration_s": trace.duration_s,
                "ticks": len(trace),
                "metrics": len(trace.metrics),
                "epochs": len(entry.get("epoch_starts_s", ())),
                "period_s": entry["period_s"],
            }
        )
    if traces:
        out.mkdir(parents=True, exist_ok=True)
        write_trace(traces, out / "recordings.parquet")
        (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return rows


def _record(plan: JobPlan, device: str, recorder: Callable[[Path], list[str]]) -> tuple[Trace, list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        spec, events, trace = (Path(folder) / name for name in ("spec.json", "events.jsonl", "trace.parquet"))
        checkpoint = str(Path(folder) / "checkpoint.pt")
        spec.write_text(json.dumps({**asdict(plan), "device": device, "checkpoint_file": checkpoint}))
        recording = subprocess.Popen(recorder(trace), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        job = subprocess.Popen([sys.executable, str(JOB), str(spec), str(events)], stderr=subprocess.PIPE, text=True)
        try:
            longest_s = _START_TIMEOUT_S + 4 * (plan.epochs * plan.epoch_s + plan.duration_s)
            _, said = job.communicate(timeout=longest_s)
        except subprocess.TimeoutExpired:
            job.kill()
            job.communicate()
            raise JobFailedError(f"the job did not end within {longest_s:.0f} s") from None
        finally:
            recording.send_signal(signal.SIGTERM)
            _, complaint = recording.communicate()
        if job.returncode:
            raise JobFailedError(said.strip().splitlines()[-1] if said.strip() else f"exit status {job.returncode}")
        if recording.returncode or not trace.is_file():
            raise JobFailedError(f"the recorder failed: {complaint.decode(errors='replace').strip()}")
        return _from_ready(read_trace(trace), read_events(events))


def _from_ready(trace: Trace, events: list[dict[str, Any]]) -> tuple[Trace, list[dict[str, Any]]]:
    """Leave out what precedes the job itself: the start of torch and the steps that were timed to size an epoch."""
    ready = [each["time_unix_s"] for each in events if each["event"] == "ready"]
    if not ready or trace.origin_unix_s is None:
        raise JobFailedError("the job never became ready")
    return trace.window(ready[0] - trace.origin_unix_s, float("inf")), events
