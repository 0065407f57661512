"""One rank of a real training over a shaped network: ``python ddp_rank.py TASK.json``; see ``ddp.py``.

Measures allreduces, then the iterations of every configuration, and writes both down (rank 0).
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from emulated_job import EmulatedNetwork, optimizer_of

from gpusonde.simulator.instrument.allreduce_probe import ProbeGrid, probe_allreduce

_TRIES = 4


def main() -> None:
    """Take part in the task."""
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    rank = int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{task['address']}:29500",
        rank=rank,
        world_size=task["world_size"],
        timeout=datetime.timedelta(seconds=120),
    )
    found = {"allreduces": probe(task), "iterations": [measure(each, task) for each in task["configurations"]]}
    if rank == 0:
        Path(task["result"]).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def probe(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Time allreduces of every size, alone and two at a time, as gloo runs them; on rank 0."""
    grid = ProbeGrid(sizes=tuple(task["transfer_bytes"]), concurrent=(1, 2))
    return [vars(each) for each in probe_allreduce("shaped", grid)]


def measure(configuration: dict[str, Any], task: dict[str, Any]) -> list[dict[str, Any]]:
    """Time the iterations of every batch size of one configuration."""
    rank = dist.get_rank()
    model = EmulatedNetwork(configuration["slowness"][rank], configuration["noise"], seed=100 + rank)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=task["bucket_bytes"] / 2**20)
    optimizer = optimizer_of(model)
    return [
        {"batch_size": size, **_settled(parallel, optimizer, size, configuration["iterations"], task)}
        for size in task["batch_sizes"]
    ]


def _settled(parallel: Any, optimizer: Any, batch_size: int, iterations: int, task: dict[str, Any]) -> dict[str, Any]:
    """Iteration times, taken again while they scatter too much."""
    tries = 0
    while True:
        tries += 1
        seconds = [_iteration(parallel, optimizer, batch_size) for _ in range(task["warm_up"] + iterations)]
        mine = torch.tensor(seconds[task["warm_up"] :], dtype=torch.float64)
        # An iteration ends when the last rank has its gradients; all ranks decide alike.
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        slowest = mine.tolist()
        scatter = statistics.stdev(slowest) / statistics.mean(slowest)
        if scatter < task["most_scatter"] or tries == _TRIES:
            return {"seconds": slowest, "scatter": scatter, "tries": tries}


def _iteration(parallel: Any, optimizer: Any, batch_size: int) -> float:
    begin = time.perf_counter()
    parallel(batch_size).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
