"""What SkyPilot's own optimizer chooses, offline: ``HOME`` is an empty folder, the catalogue two machines of ours.

Prints JSON: without our estimate the cheapest hour, with it the cheapest and the fastest job; for one and two nodes.
"""

import json
import sys
from pathlib import Path
from unittest import mock

import sky
from sky import clouds
from sky.skylet import constants

from gpusonde.optimizer.problem import MachineOffer, Problem
from gpusonde.optimizer.skypilot import set_time_estimator
from gpusonde.optimizer.step_times import TableSteps

_GPU = (
    "\"{{'Gpus': [{{'Name': '{0}', 'Manufacturer': 'NVIDIA', 'Count': 1.0, 'MemoryInfo': {{'SizeInMiB': 16384}}}}]}}\""
)
_MACHINES = {"V100": ("gpu_1x_v100", 1.0), "A100": ("gpu_1x_a100", 2.0)}

OFFERS = tuple(
    MachineOffer(
        name=f"lambda/us-east-1/{kind}", device=device, devices=1, quota=4, usd_per_hour=price, largest_batch=512
    )
    for device, (kind, price) in (("V100-SXM2-16GB", _MACHINES["V100"]), ("A100-SXM4-40GB", _MACHINES["A100"]))
)


def write_catalog(home):
    """The two machines, where SkyPilot looks before it downloads anything."""
    folder = home / ".sky" / "catalogs" / constants.CATALOG_SCHEMA_VERSION
    (folder / "lambda").mkdir(parents=True, exist_ok=True)
    (folder / "common").mkdir(exist_ok=True)
    lines = ["InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"]
    lines += [f"{kind},{gpu},1,8,64,{price},us-east-1,{_GPU.format(gpu)}," for gpu, (kind, price) in _MACHINES.items()]
    (folder / "lambda" / "vms.csv").write_text("\n".join(lines) + "\n")
    (folder / "common" / "accelerators.csv").write_text(
        "AcceleratorName,MemoryGiB,Clouds\nV100,16,Lambda\nA100,40,Lambda\n"
    )


def choice(minimize, nodes, slowdown):
    """The instance type that SkyPilot takes, and the seconds it counts with."""
    task = sky.Task(name="training", run="true", num_nodes=nodes)
    task.set_resources({sky.Resources(accelerators={gpu: 1}) for gpu in _MACHINES})
    if slowdown is not None:
        # An iteration of the whole batch takes 1 s on one A100 and ``slowdown`` times as long on one V100.
        latencies = {(OFFERS[0].name, size): slowdown * size / 512 for size in (256, 512)}
        latencies |= {(OFFERS[1].name, size): size / 512 for size in (256, 512)}
        problem = Problem(global_batch=512, iterations=7200, offers=OFFERS)
        set_time_estimator(task, problem, TableSteps(OFFERS, latencies))
    dag = sky.Dag()
    dag.add(task)
    sky.optimizer.Optimizer.optimize(dag, minimize=minimize, quiet=True)
    seconds = task.estimate_runtime(task.best_resources) if slowdown is not None else None
    return [task.best_resources.instance_type, seconds]


def main():
    """Print the choices."""
    write_catalog(Path(sys.argv[1]))
    cost, time = sky.OptimizeTarget.COST, sky.OptimizeTarget.TIME
    with mock.patch("sky.check.get_cached_enabled_clouds_or_refresh", return_value=[clouds.Lambda()]):
        found = {
            "version": sky.__version__,
            "alone": choice(cost, 1, None),
            "cost, V100 3 times as slow": choice(cost, 1, 3.0),
            "cost, V100 1.5 times as slow": choice(cost, 1, 1.5),
            "time, V100 1.5 times as slow": choice(time, 1, 1.5),
            "cost, V100 3 times as slow, 2 nodes": choice(cost, 2, 3.0),
        }
    print("CHOICES " + json.dumps(found))


if __name__ == "__main__":
    main()
