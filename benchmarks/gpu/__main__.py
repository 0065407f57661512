"""Measure on a real GPU: ``python benchmarks/gpu --out docs/results/gpu`` (needs torch; about 20 minutes).

Four parts, each of which can be taken alone with ``--part``:

* ``read``: what a reading of the agent's source costs,
* ``kernels``: whether the metrics agree with kernels of known load, and how far they lag,
* ``recordings``: known jobs recorded together with the true times of their epochs,
* ``paired``: how much slower a training job gets with the agent on.

``--device cpu --source replay --trace FILE --tiny`` runs the same code without a GPU: a rehearsal, whose figures mean
nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paired
import read_cost
from recordings import PLANS, TINY_PLANS, record_all
from report import report

from gpusonde.agent import make_source
from gpusonde.agent.config import SourceConfig
from gpusonde.catalog import GpuSpec, UnknownGpuError, load_gpus
from gpusonde.errors import SourceError

PARTS = ("read", "kernels", "recordings", "paired")
INTERVAL_S = 0.1


def main() -> None:
    arguments = _arguments()
    config = SourceConfig(kind=arguments.source, trace=arguments.trace, keep_time=False)
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here; install a CUDA build of torch, or rehearse with --device cpu --tiny")
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"environment": _environment(arguments)}
    parts: dict[str, Callable[[], Any]] = {
        "read": lambda: _read(config, arguments),
        "kernels": lambda: _kernels(config, arguments, results["environment"]["gpu"]),
        "recordings": lambda: record_all(
            TINY_PLANS if arguments.tiny else PLANS, arguments.device, out, lambda path: _recorder(path, config), _say
        ),
        "paired": lambda: _paired(config, arguments),
    }
    for name in arguments.part or PARTS:
        _say(f"== {name}")
        try:
            results[name] = parts[name]()
        except (SourceError, paired.JobFailedError, ValueError) as error:
            # One part that cannot be had here must not cost the others.
            results[name] = {"failed": str(error)}
            _say(f"{name} failed: {error}")
        (out / "results.json").write_text(json.dumps(results, indent=1, default=_plain) + "\n")
    (out / "README.md").write_text(report(results))
    _say(f"written: {out / 'README.md'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md, results.json and the recordings")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part (repeatable)")
    parser.add_argument("--source", default="auto", help="as in the agent's source.kind")
    parser.add_argument("--trace", default="", help="trace to replay, with --source replay")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--pairs", type=int, default=12, help="pairs of blocks with and without the agent")
    parser.add_argument("--block-s", type=float, default=8.0, help="seconds of a block")
    parser.add_argument("--readings", type=int, default=300, help="readings to time")
    parser.add_argument(
        "--tiny", action="store_true", help="smallest sizes: a rehearsal of the code, not a measurement"
    )
    return parser.parse_args()


def _read(config: SourceConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    readings = 20 if arguments.tiny else arguments.readings
    return dataclasses.asdict(read_cost.measure(make_source(config), INTERVAL_S, readings))


def _kernels(config: SourceConfig, arguments: argparse.Namespace, gpu: str) -> dict[str, Any]:
    import kernels
    import torch

    device = torch.device(arguments.device)
    with kernels.Watch(make_source(config), INTERVAL_S) as watch:
        rows = kernels.steady_kernels(watch, _spec(gpu), 2.0 if arguments.tiny else 8.0, device)
        more, lag_s = kernels.duty_cycle(watch, 3 if arguments.tiny else 15, device)
    return {"rows": [dataclasses.asdict(row) for row in [*rows, *more]], "lag_s": lag_s}


def _paired(config: SourceConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    network, batch, pairs, block_s = "residual_34", 128, arguments.pairs, arguments.block_s
    if arguments.tiny:
        network, batch, pairs, block_s = "tiny", 4, 3, 1.0
    spec = {"network": network, "batch_size": batch, "device": arguments.device, "block_s": block_s}
    options = ["--set", f"source.kind={config.kind}"]
    if config.trace:
        options += ["--set", f"source.trace={config.trace}"]
    found = paired.measure(spec, pairs, options, _say)
    return {"network": network, "batch_size": batch, **dataclasses.asdict(found)}


def _recorder(path: Path, config: SourceConfig) -> list[str]:
    command = [*paired.GPUSONDE, "record", str(path), "--interval-s", str(INTERVAL_S)]
    return [*command, "--replay", config.trace] if config.trace else command


def _spec(gpu: str) -> GpuSpec | None:
    try:
        return load_gpus().get(gpu)
    except UnknownGpuError:
        return None


def _environment(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    on_gpu = arguments.device == "cuda"
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name() if on_gpu else "none: a rehearsal, figures mean nothing",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "source": arguments.source,
        "command": " ".join(["python", "benchmarks/gpu", *sys.argv[1:]]),
    }


def _plain(value: object) -> object:
    return str(value)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
