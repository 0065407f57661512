"""Problems of any size end in time and in bounded memory, with a plan where one is easily found."""

import os
import subprocess
import sys

import pytest

from gpusonde.optimizer import MachineOffer, Objective, Problem, Status, TableSteps
from gpusonde.optimizer.solve import solve

_LIMIT_BYTES = 3 << 30


def offers(count, **more):
    """Machines with 1 to 8 GPUs, each kind with a speed and a price of its own."""
    return tuple(
        MachineOffer(
            **{
                "name": f"o{i}",
                "device": f"d{i}",
                "devices": 1 + i % 8,
                "quota": 1000,
                "usd_per_hour": 0.5 + i * 0.37 % 5,
                "largest_batch": 1024,
                **more,
            }
        )
        for i in range(count)
    )


def steps(found):
    sizes = [2**power for power in range(32)]
    table = {(o.name, size): 0.01 + 0.001 * (1 + i % 7) * size for i, o in enumerate(found) for size in sizes}
    return TableSteps(found, table, lambda latency_s, worlds, network: latency_s + 0.04 * (worlds - 1) / worlds)


def huge_batch():
    found = offers(6, largest_batch=None)
    return solve(Problem(global_batch=2**31, iterations=1, offers=found), steps(found), time_limit_s=5)


def many_offers():
    found = offers(200)
    problem = Problem(
        global_batch=65536, iterations=1000, offers=found, objective=Objective.COST, deadline_s=100, confidence=0.9
    )
    return solve(problem, steps(found), time_limit_s=5)


@pytest.mark.parametrize("problem", ["huge_batch", "many_offers"])
def test_a_huge_problem_ends_with_a_plan_in_bounded_memory(problem):
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({_LIMIT_BYTES},) * 2)\n"
        f"import runpy; found = runpy.run_path({__file__!r})[{problem!r}]()\n"
        "print(found.status.value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {"optimal", "feasible"}


def test_a_search_that_is_out_of_time_at_once_still_knows_the_simple_plans():
    found = offers(2)
    solution = solve(
        Problem(global_batch=4096, iterations=10, offers=found), steps(found), time_limit_s=1, clock=ticking_clock()
    )
    assert solution.status is Status.FEASIBLE
    assert len(solution.plan.groups) == 1


def ticking_clock():
    """Every look at it takes an hour."""
    now_s = 0.0

    def clock():
        nonlocal now_s
        now_s += 3600.0
        return now_s

    return clock
