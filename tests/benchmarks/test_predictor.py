"""The benchmark of predictions across GPUs in a small form, over gRPC too, without hitting a limit of rates."""

from __future__ import annotations

from pathlib import Path

from support.synthetic_runs import synthetic_runs, write_runs

from gpusonde.catalog import load_gpus
from gpusonde.predictor.crossgpu import read_runs

BENCHMARKS = ("predictor",)


def test_queries_are_timed_in_process_and_over_grpc(module, tmp_path: Path) -> None:
    runs = read_runs(write_runs(tmp_path / "runs.csv", synthetic_runs()))
    every = len(load_gpus().specs)
    # More than the 100 questions that a collector takes of a caller in a second, on any machine that is not slow.
    found = module("queries").measure_queries(runs, count=120)
    assert [(name.partition(",")[0], targets) for name, targets, *_ in found] == [
        ("in process", 1), ("in process", 1), ("in process", every),
        ("gRPC on loopback", 0), ("gRPC on loopback", 1), ("gRPC on loopback", every),
    ]  # fmt: skip
    for _, _, median, high, worst, mean, count in found:
        assert 0 < median <= high <= worst
        assert 0 < mean <= worst
        assert count == 120


def test_jobs_on_several_gpus_have_a_floor_of_what_the_same_two_gpus_showed(module, tmp_path: Path) -> None:
    heading = "pair_key,dataset,gpu,precision,t_rel,main,n_gpus,batch_per_gpu,interconnect\n"
    jobs = [(f"job{number}", 1.0 + number) for number in range(5)]
    rows = [
        f"{job},lambda,{gpu},fp32,{seconds * factor},True,4,32,\n"
        for job, seconds in jobs
        for gpu, factor in (("T4", 1.0), ("V100-SXM2-16GB", 0.123))
    ]
    path = tmp_path / "timings.csv"
    path.write_text(heading + "".join(rows))
    table = [line for line in module("static").several_gpus_section(path).splitlines() if line.startswith("| 4")]
    assert len(table) == 2  # all, and lambda
    for line in table:
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        assert cells[2] == "10"
        assert float(cells[3].split()[0]) > 5.0  # as one GPU they are off
        assert cells[-1] == "0.0 %"  # but all by the same factor
