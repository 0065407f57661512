"""Several processes with torch.distributed over gloo on loopback, each running one function of a test module."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_ranks(world_size: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 120.0) -> list[Any]:
    """Return what ``function(rank, *arguments)`` returned on every rank.

    Args:
        world_size: Number of processes.
        function: A function of a module; it runs inside an initialised process group.
        arguments: Handed to it.
        timeout_s: Until the processes are ended.

    Raises:
        RuntimeError: A rank failed or did not end in time; its output is in the message.
    """
    import subprocess

    import torch
    from support.own_port import own_port

    module = sys.modules[function.__module__].__file__
    with tempfile.TemporaryDirectory() as folder:
        torch.save(arguments, Path(folder) / "arguments")
        command = [sys.executable, __file__, str(module), function.__name__, folder, str(world_size), str(own_port())]
        logs = [Path(folder) / f"log{rank}" for rank in range(world_size)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("w") as file:
                processes.append(subprocess.Popen([*command, str(rank)], stdout=file, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait(timeout_s) for process in processes]
        except subprocess.TimeoutExpired:
            codes = [-1]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(codes):
            raise RuntimeError("\n".join(f"rank {rank}: {log.read_text()}" for rank, log in enumerate(logs)))
        return [torch.load(Path(folder) / f"result{rank}", weights_only=False) for rank in range(world_size)]


def _main() -> None:
    import datetime
    import importlib.util
    import os

    import torch
    import torch.distributed as dist

    module_path, name, folder, world_size, port, rank = sys.argv[1:]
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    arguments = torch.load(Path(folder) / "arguments", weights_only=False)
    spec = importlib.util.spec_from_file_location("ranks_module", module_path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ranks_module"] = module
    spec.loader.exec_module(module)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=int(rank),
        world_size=int(world_size),
        timeout=datetime.timedelta(seconds=60),
    )
    result = getattr(module, name)(int(rank), *arguments)
    torch.save(result, Path(folder) / f"result{rank}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # Started as a file: its folder is not where the package ``support`` lies.
    sys.path[0] = str(Path(__file__).parents[1])
    _main()
