"""Plans as files for launchers: each is read by what reads such files."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.real_slurm import real_slurm
from support.wire_agent import wait_until

from gpusonde.errors import ProblemError
from gpusonde.optimizer import Billing, Group, MachineOffer, Plan
from gpusonde.optimizer.launch_files import LAUNCHERS, launch_file

G5 = MachineOffer("aws/us-east-1/g5.12xlarge", "A10G", 4, 4, 5.67, largest_batch=64, region="aws/us-east-1")
SPOT = replace(G5, name="aws/us-east-1a/g4dn.12xlarge/spot", billing=Billing.SPOT, zone="us-east-1a", usd_per_hour=1.4)
LONE = Plan((Group(SPOT.name, 2, 32),))
MIXED = Plan((Group(G5.name, 1, 64), Group(SPOT.name, 2, 32)))


def made(launcher: str, plan: Plan) -> str:
    return launch_file(launcher, plan, (G5, SPOT), name="ResNet-50, 90 epochs!", at_most_s=7200.0)


def run(script: str, tmp_path: Path, **variables: str) -> str:
    """Run a script with an ``aws`` that prints what it is given."""
    (tmp_path / "aws").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    (tmp_path / "aws").chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", **variables},
    )  # fmt: skip
    return done.stdout if done.returncode == 0 else f"failed: {done.stderr}"


def test_a_skypilot_task_names_machine_place_and_batch() -> None:
    task = yaml.safe_load(made("skypilot", LONE))
    assert task["name"] == "resnet-50-90-epochs"
    assert task["num_nodes"] == 2
    assert task["resources"] == {
        "cloud": "aws", "region": "us-east-1", "zone": "us-east-1a", "instance_type": "g4dn.12xlarge", "use_spot": True,
    }  # fmt: skip
    assert task["envs"] == {"BATCH_PER_GPU": "32", "SCRIPT": None}
    assert "--nproc-per-node 4" in task["run"]
    with pytest.raises(ProblemError, match="k8s-job"):
        made("skypilot", MIXED)


@pytest.mark.parametrize(("at_most_s", "said"), [(1800.0, "30.0 min"), (25_920.0, "7.20 h")])
def test_the_end_is_said_as_solve_says_it(at_most_s: float, said: str) -> None:
    text = launch_file("slurm", LONE, (G5, SPOT), name="x", at_most_s=at_most_s)
    assert f"# ends within {said} with the wanted confidence\n" in text


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_plan_that_reckons_with_checkpoints_says_how_often_the_script_saves_them(launcher: str) -> None:
    for interval_s, said in ((667.5, True), (math.inf, False)):
        text = launch_file(launcher, LONE, (G5, SPOT), name="x", at_most_s=7200.0, checkpoint_interval_s=interval_s)
        assert ("# the script itself saves a checkpoint after every 11.1 min of work" in text) is said


@pytest.mark.parametrize(
    ("name", "region", "place"),
    [
        ("aws/us-east-1/us-west-2/g4dn.2xlarge/spot", "aws/us-east-1/us-west-2", ("aws", "us-east-1", "g4dn.2xlarge")),
        ("lambda/all/gpu_1x_a10", "lambda/all", ("lambda", None, "gpu_1x_a10")),
        ("mine", "", (None, None, "mine")),
    ],
)
def test_machines_at_one_price_in_several_regions_are_started_in_the_first(
    name: str, region: str, place: tuple[str | None, ...]
) -> None:
    """The catalogue has both: as many regions as the price holds in, and "all"."""
    plan, offers = Plan((Group(name, 2, 32),)), (replace(G5, name=name, region=region),)
    task = yaml.safe_load(launch_file("skypilot", plan, offers, name="x", at_most_s=60.0))
    assert tuple(task["resources"].get(key) for key in ("cloud", "region", "instance_type")) == place
    _, job = yaml.safe_load_all(launch_file("k8s-job", plan, offers, name="x", at_most_s=60.0))
    assert job["spec"]["template"]["spec"]["nodeSelector"].get("topology.kubernetes.io/region") == place[1]


def test_skypilot_knows_every_key_of_its_task() -> None:
    schemas = pytest.importorskip("sky.utils.schemas", reason="the package skypilot is not installed")
    task = yaml.safe_load(made("skypilot", LONE))
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


@pytest.mark.parametrize("plan", [LONE, MIXED])
def test_a_slurm_script_asks_for_every_machine_and_tells_each_its_batch(plan: Plan) -> None:
    script = made("slurm", plan)
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=60, check=False).returncode == 0
    assert sum(map(int, re.findall(r"--nodes=(\d+)", script))) == plan.machines
    assert re.findall(r"--time=(\d+)", script) == ["120"] * len(plan.groups)
    assert re.findall(r"BATCH_PER_GPU=(\d+)", script) == [str(group.batch_size) for group in plan.groups]
    assert script.count("#SBATCH hetjob") == len(plan.groups) - 1
    assert f"--nnodes {plan.machines} " in script


@pytest.mark.needs_root
def test_a_real_slurm_runs_the_script_of_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = replace(G5, name="pair", devices=2)
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text(f'#!/bin/sh\necho "$BATCH_PER_GPU $@" > {tmp_path}/begun\nmv {tmp_path}/begun {tmp_path}/ran\n')
    torchrun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{torchrun.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SCRIPT", "train.py")
    scripts = []
    for name, plan in (("lone", Plan((Group("pair", 1, 64),))), ("mixed", MIXED)):
        scripts.append(tmp_path / f"{name}.sh")
        scripts[-1].write_text(launch_file("slurm", plan, (pair, G5, SPOT), name=name, at_most_s=7200.0))
    (tmp_path / "slurm").mkdir()
    with real_slurm(tmp_path / "slurm") as run:
        run("sbatch", "-o", str(tmp_path / "said"), str(scripts[0]))
        wait_until((tmp_path / "ran").exists, 120, "the job")
        # The node has too few GPUs for it to begin.
        job = run("sbatch", "--parsable", "--hold", "-o", "/dev/null", str(scripts[1])).strip()
        queued = run("scontrol", "show", "job", job)
        run("scancel", job)
    batch, *arguments = (tmp_path / "ran").read_text().split()
    assert (batch, arguments[:4], arguments[-1]) == ("64", ["--nnodes", "1", "--nproc-per-node", "2"], "train.py")
    assert re.findall(r"HetJobOffset=(\d+) JobName=(\S+)", queued) == [("0", "mixed"), ("1", "mixed")]
    assert re.findall(r"NumNodes=(\d+)", queued) == ["1", "2"]
    assert queued.count("TimeLimit=02:00:00") == 2


def test_an_aws_script_orders_what_the_plan_has_once_the_account_is_named(tmp_path: Path) -> None:
    script = made("aws-cli", MIXED)
    assert "the image to boot" in run(script, tmp_path), "nothing starts before the image is known"
    said = run(script, tmp_path, AMI="ami-1", SUBNET="subnet-1", KEY="me")
    orders = [json.loads(found) for found in re.findall(r"^\{.*?^\}", said, re.DOTALL | re.MULTILINE)]
    assert [(o["InstanceType"], o["MinCount"], o["MaxCount"], o["ImageId"]) for o in orders] == [
        ("g5.12xlarge", 1, 1, "ami-1"), ("g4dn.12xlarge", 2, 2, "ami-1"),
    ]  # fmt: skip
    assert "InstanceMarketOptions" not in orders[0]
    assert orders[1]["InstanceMarketOptions"]["MarketType"] == "spot"
    assert orders[1]["Placement"] == {"AvailabilityZone": "us-east-1a"}
    with pytest.raises(ProblemError, match="gcp"):
        launch_file("aws-cli", LONE, (replace(SPOT, region="gcp/asia-east1"),), name="x", at_most_s=1.0)


def test_an_aws_script_asks_for_a_subnet_of_every_zone_and_an_image_of_every_region(tmp_path: Path) -> None:
    """A subnet lies in one zone, an image and a key in one region: the second order would fail, the first be paid."""
    other = replace(SPOT, name="aws/us-east-1b/g4dn.12xlarge/spot", zone="us-east-1b")
    west = replace(G5, name="aws/us-west-2/g5.12xlarge", region="aws/us-west-2")
    given = {"AMI": "ami-1", "SUBNET": "subnet-1", "KEY": "k"}

    def ordered(*offers: MachineOffer, **variables: str) -> list[dict[str, str]]:
        plan = Plan(tuple(Group(offer.name, 1, 32) for offer in offers))
        printed = run(launch_file("aws-cli", plan, offers, name="x", at_most_s=60.0), tmp_path, **variables)
        documents = re.findall(r"^{.*?^}", printed, re.MULTILINE | re.DOTALL)
        return [{key: json.loads(text)[key] for key in ("ImageId", "SubnetId", "KeyName")} for text in documents]

    one = {"ImageId": "ami-1", "SubnetId": "subnet-1", "KeyName": "k"}
    assert ordered(G5, SPOT, **given) == [one, one]
    assert ordered(SPOT, other, **given) == []
    zones = {"SUBNET_US_EAST_1A": "subnet-a", "SUBNET_US_EAST_1B": "subnet-b"}
    a, b = {**one, "SubnetId": "subnet-a"}, {**one, "SubnetId": "subnet-b"}
    assert ordered(G5, SPOT, other, **given, **zones) == [a, a, b]
    regions = {"AMI_US_EAST_1": "ami-1", "KEY_US_EAST_1": "k", "SUBNET_US_EAST_1": "subnet-1"}
    regions |= {"AMI_US_WEST_2": "ami-2", "KEY_US_WEST_2": "l", "SUBNET_US_WEST_2": "subnet-2"}
    assert ordered(G5, west, **regions) == [one, {"ImageId": "ami-2", "SubnetId": "subnet-2", "KeyName": "l"}]


def test_kubernetes_jobs_share_one_world() -> None:
    service, first, second = yaml.safe_load_all(made("k8s-job", MIXED))
    assert service["spec"]["clusterIP"] == "None"
    assert [job["spec"]["completions"] for job in (first, second)] == [1, 2]
    assert [job["spec"]["completionMode"] for job in (first, second)] == ["Indexed"] * 2
    for job in (first, second):
        pod = job["spec"]["template"]["spec"]
        container = pod["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 4
        assert pod["subdomain"] == service["metadata"]["name"]
        assert "--nnodes 3 " in container["command"][2]
        assert "--master-addr resnet-50-90-epochs-0-0.resnet-50-90-epochs" in container["command"][2]
    assert "$((1 + JOB_COMPLETION_INDEX))" in second["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert second["spec"]["template"]["spec"]["nodeSelector"]["karpenter.sh/capacity-type"] == "spot"


@pytest.mark.parametrize("plan", [LONE, MIXED])
def test_kubernetes_knows_every_key_of_its_documents(plan: Plan) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="the package kubernetes-validate is not installed")
    for document in yaml.safe_load_all(made("k8s-job", plan)):
        kubernetes.validate(document, kubernetes.latest_version(), strict=True)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", ["", "\n rm -rf / $(x) `y`", "ä" * 300])
def test_no_name_of_a_job_gets_into_a_script_as_it_is(launcher: str, name: str) -> None:
    text = launch_file(launcher, LONE, (SPOT,), name=name, at_most_s=60.0)
    assert "rm -rf" not in text
    assert "`" not in text


WORDS_OF_YAML = ("123", "true", "null", "no", "1e3", "0x1f", "2026-11-23", "2024-run")


@pytest.mark.parametrize("word", WORDS_OF_YAML)
def test_what_yaml_takes_for_a_number_or_a_bool_stays_a_name(word: str) -> None:
    offer = replace(G5, name=word, region=f"{word}/{word}", zone=word)
    plan = Plan((Group(word, 1, 32),))
    task = yaml.safe_load(launch_file("skypilot", plan, (offer,), name=word, at_most_s=60.0))
    assert {key: task["resources"][key] for key in ("cloud", "region", "zone", "instance_type")} == dict.fromkeys(
        ("cloud", "region", "zone", "instance_type"), word
    )
    service, job = yaml.safe_load_all(launch_file("k8s-job", plan, (offer,), name=word, at_most_s=60.0))
    name = service["metadata"]["name"]
    assert task["name"] == name
    assert name in (word, f"job-{word}")
    assert re.fullmatch(r"[a-z][a-z0-9-]*", name), "Kubernetes wants a letter first for a Service"
    pod = job["spec"]["template"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"] == {"gpusonde-job": name}
    assert (job["metadata"]["name"], pod["spec"]["subdomain"]) == (f"{name}-0", name)
    assert all(isinstance(value, str) for value in pod["spec"]["nodeSelector"].values())


def test_a_region_without_a_cloud_is_the_region_of_the_task() -> None:
    offer = replace(G5, name="g5.12xlarge", region="us-east-1", zone="us-east-1b")
    task = yaml.safe_load(
        launch_file("skypilot", Plan((Group(offer.name, 1, 32),)), (offer,), name="x", at_most_s=60.0)
    )
    assert (task["resources"]["region"], task["resources"]["zone"]) == ("us-east-1", "us-east-1b")
    assert "cloud" not in task["resources"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("at_most_s", [math.inf, math.nan, 1e300])
def test_a_plan_that_may_not_end_has_no_end(launcher: str, at_most_s: float) -> None:
    text = launch_file(launcher, LONE, (SPOT,), name="x", at_most_s=at_most_s)
    assert "# may not end" in text
    assert "--time" not in text


@pytest.mark.parametrize("word", ["AMI", "KEY", "SUBNET"])
def test_only_what_is_to_be_filled_in_is_a_variable(word: str, tmp_path: Path) -> None:
    offer = replace(G5, name=word, zone=word)
    script = launch_file("aws-cli", Plan((Group(word, 1, 32),)), (offer,), name="x", at_most_s=60.0)
    (order,) = re.findall(
        r"^\{.*?^\}", run(script, tmp_path, AMI="ami-1", SUBNET="subnet-1", KEY="me"), re.DOTALL | re.MULTILINE
    )
    found = json.loads(order)
    assert (found["InstanceType"], found["Placement"]["AvailabilityZone"]) == (word, word)
    assert (found["ImageId"], found["SubnetId"], found["KeyName"]) == ("ami-1", "subnet-1", "me")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_warning_stands_at_the_head_and_nowhere_else(launcher: str) -> None:
    text = launch_file(launcher, LONE, (SPOT,), name="x", at_most_s=60.0, warning="misses its\nreboot")
    assert "# WARNING: misses its reboot" in text.splitlines()[:2]
    if text.startswith("#!"):
        assert subprocess.run(["bash", "-n"], input=text, text=True, timeout=60, check=False).returncode == 0
    else:
        assert all(yaml.safe_load_all(text))


def test_an_unknown_launcher_is_refused_by_name() -> None:
    with pytest.raises(ProblemError, match="skypilot, slurm"):
        made("nomad", LONE)


@pytest.mark.parametrize("launcher", ["skypilot", "aws-cli", "k8s-job"])
def test_an_offer_that_is_no_machine_of_a_cloud_is_refused(launcher: str) -> None:
    for bad in ("on demand", "a\nb", "$(reboot)", "aws/x/$(reboot)"):
        with pytest.raises(ProblemError, match="cloud/region/machine"):
            launch_file(launcher, Plan((Group(bad, 1, 32),)), (replace(G5, name=bad),), name="x", at_most_s=60.0)


def test_no_name_of_an_offer_leaves_its_comment() -> None:
    bad = replace(G5, name="a\nreboot")
    script = launch_file("slurm", Plan((Group(bad.name, 1, 32),)), (bad,), name="x", at_most_s=60.0)
    assert not any(line.startswith("reboot") for line in script.splitlines())
