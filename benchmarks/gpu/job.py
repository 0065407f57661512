"""One job on the GPU, in a process of its own: ``python job.py SPEC.json EVENTS.jsonl``.

Writes what it does and when as JSON lines (``event``, ``time_unix_s``), the truth beside a recording. In the mode
``blocks`` it answers every line on stdin with the seconds that a fixed number of training steps took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from networks import Workload, make_workload
from torch import nn

_WARM_UP_STEPS = 20
_TIMED_STEPS = 20
_POOL_BATCHES = 8


class _Job:
    """A network in training on batches that come from the host's memory, as they do from a data loader."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.device = torch.device(spec["device"])
        torch.manual_seed(spec.get("seed", 1))
        workload: Workload = make_workload(spec["network"])
        self.network = workload.network.to(self.device)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()
        host = torch.device("cpu")
        pool = [workload.batch(spec["batch_size"], host) for _ in range(_POOL_BATCHES)]
        cuda = self.device.type == "cuda"
        self.pool = [tuple(part.pin_memory() if cuda else part for part in batch) for batch in pool]
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=bool(spec.get("mixed_precision")))
        self.count = 0

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.count += 1
        inputs, labels = self.pool[self.count % len(self.pool)]
        return inputs.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def train(self, steps: int) -> None:
        self.network.train()
        for _ in range(steps):
            inputs, labels = self.batch()
            self.optimizer.zero_grad(set_to_none=True)
            with self.autocast:
                loss = self.loss(self.network(inputs), labels)
            loss.backward()
            self.optimizer.step()
        self.wait()

    @torch.no_grad()
    def infer(self, steps: int) -> None:
        self.network.eval()
        for _ in range(steps):
            with self.autocast:
                self.network(self.batch()[0])
        self.wait()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def save(self) -> None:
        path = Path(self.spec["checkpoint_file"])
        with path.open("wb") as file:
            torch.save({"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}, file)
        path.unlink()

    def seconds_per_step(self, work: Callable[[int], None]) -> float:
        work(_WARM_UP_STEPS)
        began_s = time.perf_counter()
        work(_TIMED_STEPS)
        return (time.perf_counter() - began_s) / _TIMED_STEPS


def _train(job: _Job, say: Callable[..., None]) -> None:
    spec = job.spec
    step_s = job.seconds_per_step(job.train)
    evaluation_s = job.seconds_per_step(job.infer) if spec["validation_share"] else 0.0
    validation_s = spec["epoch_s"] * spec["validation_share"]
    steps = max(1, round((spec["epoch_s"] - validation_s) / step_s))
    evaluations = max(1, round(validation_s / evaluation_s)) if evaluation_s else 0
    say("ready", steps_per_epoch=steps, validation_steps=evaluations, seconds_per_step=step_s)
    time.sleep(spec["lead_s"])
    for epoch in range(spec["epochs"]):
        say("epoch_start", epoch=epoch)
        job.train(steps)
        if evaluations:
            say("validation_start", epoch=epoch)
            job.infer(evaluations)
        if spec["checkpoint_every"] and (epoch + 1) % spec["checkpoint_every"] == 0:
            say("checkpoint_start", epoch=epoch)
            job.save()
        say("epoch_end", epoch=epoch)
    time.sleep(spec["lead_s"])


def _serve(job: _Job, say: Callable[..., None], bursts: bool) -> None:
    """Inference: steady, or requests that arrive in bursts of random size at random times."""
    random = torch.Generator().manual_seed(job.spec.get("seed", 1))
    job.infer(_WARM_UP_STEPS)
    say("ready")
    until_s = time.monotonic() + job.spec["duration_s"]
    while time.monotonic() < until_s:
        if bursts:
            draws = torch.rand(2, generator=random)
            job.infer(1 + int(30 * draws[0]))
            time.sleep(float(-1.2 * torch.log(draws[1] + 1e-6)))
        else:
            job.infer(10)


def _idle(job: _Job, say: Callable[..., None]) -> None:
    job.train(1)
    say("ready")
    time.sleep(job.spec["duration_s"])


def _blocks(job: _Job, say: Callable[..., None]) -> None:
    steps = max(1, round(job.spec["block_s"] / job.seconds_per_step(job.train)))
    say("ready", steps_per_block=steps)
    print(json.dumps({"steps": steps}), flush=True)
    for _ in sys.stdin:
        began_s = time.perf_counter()
        job.train(steps)
        print(json.dumps({"seconds": time.perf_counter() - began_s}), flush=True)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    with Path(sys.argv[2]).open("a", buffering=1) as events:

        def say(event: str, **facts: Any) -> None:
            events.write(json.dumps({"event": event, "time_unix_s": time.time(), **facts}) + "\n")

        job = _Job(spec)
        modes: dict[str, Callable[[], None]] = {
            "train": lambda: _train(job, say),
            "inference": lambda: _serve(job, say, bursts=False),
            "inference_bursts": lambda: _serve(job, say, bursts=True),
            "idle": lambda: _idle(job, say),
            "blocks": lambda: _blocks(job, say),
        }
        modes[spec["mode"]]()
        say("end")


if __name__ == "__main__":
    main()
