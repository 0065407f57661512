"""``launch_file``: a plan as a file for whoever starts machines, which people read, complete and run by hand.

What a plan does not know stands in it as a variable with a name in capitals (image, script, account), so that nothing
starts before somebody has filled it in. The script gets the batch per GPU as ``BATCH_PER_GPU``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpusonde.errors import ProblemError
from gpusonde.formatting import duration
from gpusonde.optimizer.problem import Billing, MachineOffer, Plan

LAUNCHERS = ("skypilot", "slurm", "aws-cli", "k8s-job")
_PORT = 29500
# As the catalogue has it.
_EVERYWHERE = "all"
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_NOT_IN_COMMENTS = re.compile(r"[^ -~]+")
# What stands in scripts and YAML as it is.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Slurm counts minutes in 32 bits; a plan that takes longer is as one that does not end.
_LONGEST_S = 60.0 * 2**31


@dataclass(frozen=True)
class _Machines:
    """One kind of machine of a plan."""

    offer: MachineOffer
    count: int
    batch: int
    first_rank: int

    @property
    def instance_type(self) -> str:
        """Its type as its cloud writes it: offers of the catalogue are named cloud/place/type."""
        name = self.offer.name
        if self.offer.region and name.startswith(f"{self.offer.region}/"):
            machine = name.removeprefix(f"{self.offer.region}/").split("/")[0]
        else:
            # The place may be a zone.
            machine = name.split("/")[2] if name.count("/") > 1 else name
        return _plain(machine, f"the machine of offer {name!r}")

    @property
    def cloud(self) -> str:
        """Its cloud; empty where the problem does not say."""
        return _plain(self.offer.region.split("/")[0], "a cloud") if "/" in self.offer.region else ""

    @property
    def region(self) -> str:
        """Its region, without the cloud: the first of several at one price; empty where it is in all, or unknown."""
        first = self.offer.region.split("/")[:2][-1]
        return _plain(first, "a region") if first not in ("", _EVERYWHERE) else ""

    @property
    def zone(self) -> str:
        """Its zone; empty where the problem does not say."""
        return _plain(self.offer.zone, "a zone") if self.offer.zone else ""

    @property
    def spot(self) -> bool:
        """Whether it can be taken away."""
        return self.offer.billing is Billing.SPOT


def launch_file(
    launcher: str,
    plan: Plan,
    offers: Sequence[MachineOffer],
    *,
    name: str,
    at_most_s: float,
    checkpoint_interval_s: float = math.inf,
    warning: str = "",
) -> str:
    """Return the text of a file that starts a plan's machines and the job on them.

    Args:
        launcher: One of ``LAUNCHERS``.
        plan: What to start.
        offers: Offers of its problem.
        name: The job's; what names may not hold is left out, and one that begins with no letter gets ``job-``.
        at_most_s: Seconds in which the job ends with the wanted confidence; infinite for one that may not end.
        checkpoint_interval_s: Seconds of work between two checkpoints that this reckons with; infinite for none.
        warning: What is to be known before the file is run.

    Raises:
        ProblemError: The launcher cannot start this plan; the message says which can.
    """
    by_name = {offer.name: offer for offer in offers}
    groups, rank = [], 0
    for group in plan.groups:
        groups.append(_Machines(by_name[group.offer], group.machines, group.batch_size, rank))
        rank += group.machines
    short = _NOT_IN_NAMES.sub("-", name.lower()).strip("-")[:40].strip("-") or "job"
    if not short[0].isalpha():
        short = f"job-{short}"
    makers = {"skypilot": _skypilot, "slurm": _slurm, "aws-cli": _aws_cli, "k8s-job": _kubernetes}
    if launcher not in makers:
        raise ProblemError(f"no launcher {launcher!r}; there are {', '.join(LAUNCHERS)}")
    head = [f"# {_comment(f'gpusonde: {plan}')}", f"# {_ends(at_most_s)}"]
    if str(plan.mode):
        head.append(f"# BATCH_PER_GPU is that of a micro-batch; the script itself runs {plan.mode} per iteration")
    if math.isfinite(checkpoint_interval_s):
        head.append(f"# the script itself saves a checkpoint after every {duration(checkpoint_interval_s)} of work")
    if warning:
        head.insert(0, f"# WARNING: {_comment(warning)}")
    return makers[launcher](groups, short, head, at_most_s)


def _skypilot(groups: Sequence[_Machines], name: str, head: Sequence[str], at_most_s: float) -> str:
    if len(groups) > 1:
        raise ProblemError(
            "a SkyPilot task has one kind of machine, this plan has several; --emit k8s-job or aws-cli starts it"
        )
    (machines,) = groups
    # A region without a cloud is looked for in those that SkyPilot may use.
    place = {"cloud": machines.cloud, "region": machines.region, "zone": machines.zone}
    return "\n".join([
        *head,
        f"# sky launch {name}.yaml --env SCRIPT=train.py",
        f"name: {json.dumps(name)}",
        f"num_nodes: {machines.count}",
        "resources:",
        *(f"  {key}: {json.dumps(value)}" for key, value in place.items() if value),
        f"  instance_type: {json.dumps(machines.instance_type)}",
        f"  use_spot: {str(machines.spot).lower()}",
        "envs:",
        f'  BATCH_PER_GPU: "{machines.batch}"',
        "  SCRIPT: null  # what torchrun starts",
        "run: |",
        "  torchrun --nnodes $SKYPILOT_NUM_NODES --node-rank $SKYPILOT_NODE_RANK \\",
        f"    --nproc-per-node {machines.offer.devices} --master-port {_PORT} \\",
        '    --master-addr "$(echo "$SKYPILOT_NODE_IPS" | head -n 1)" $SCRIPT',
        "",
    ])  # fmt: skip


def _slurm(groups: Sequence[_Machines], name: str, head: Sequence[str], at_most_s: float) -> str:
    limit = [f"#SBATCH --time={max(1, math.ceil(at_most_s / 60))}"] if at_most_s < _LONGEST_S else []
    total = sum(machines.count for machines in groups)
    components = []
    for number, machines in enumerate(groups):
        components += [
            *(["#SBATCH hetjob"] if number else [f"#SBATCH --job-name={name}"]),
            _comment(f"# {machines.count} x {machines.offer.name}: {machines.offer.devices} x {machines.offer.device}"),
            f"#SBATCH --nodes={machines.count} --ntasks-per-node=1",
            f"#SBATCH --gpus-per-node={machines.offer.devices}",
            *limit,
        ]
    steps = []
    for number, machines in enumerate(groups):
        where = f"--het-group={number} " if len(groups) > 1 else ""
        steps.append(
            f"{where}env BATCH_PER_GPU={machines.batch} torchrun --nnodes {total}"
            f" --nproc-per-node {machines.offer.devices} --rdzv-backend c10d"
            f' --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$HEAD:{_PORT}" $SCRIPT'
        )
    return "\n".join([
        "#!/bin/bash",
        *head,
        f"# SCRIPT=train.py sbatch {name}.sh",
        *components,
        "set -eu",
        ': "${SCRIPT:?say what torchrun starts: SCRIPT=train.py sbatch ...}"',
        'HEAD=$(scontrol show hostnames "${SLURM_JOB_NODELIST_HET_GROUP_0:-$SLURM_JOB_NODELIST}" | head -n 1)',
        "srun " + " : \\\n  ".join(steps),
        "",
    ])  # fmt: skip


def _aws_cli(groups: Sequence[_Machines], name: str, head: Sequence[str], at_most_s: float) -> str:
    others = {machines.cloud for machines in groups} - {"", "aws"}
    if others:
        raise ProblemError(f"the aws command starts no machines of {', '.join(sorted(others))}; --emit skypilot does")
    # An image and a key pair are of one region, a subnet of one zone, which machines without a zone take as well.
    zones = {machines.region: machines.zone for machines in reversed(groups) if machines.zone}
    images = _variables("AMI", [machines.region for machines in groups])
    keys = _variables("KEY", [machines.region for machines in groups])
    subnets = _variables(
        "SUBNET", [machines.zone or zones.get(machines.region, machines.region) for machines in groups]
    )
    meant = {"the image to boot": images, "the subnet to start in": subnets, "the name of the key pair": keys}
    given = {"ami-...": images, "subnet-...": subnets, "...": keys}
    filled = " ".join(f"{name}={value}" for value, names in given.items() for name in dict.fromkeys(names))
    lines = [
        "#!/bin/bash",
        *head,
        f"# {filled} bash {name}.sh, then ends by hand:",
        f"# aws ec2 describe-instances --filters Name=tag:gpusonde,Values={name} lists the machines",
        "set -eu",
        ": " + " ".join(f'"${{{name}:?{what}}}"' for what, names in meant.items() for name in dict.fromkeys(names)),
    ]
    for machines, image, subnet, key in zip(groups, images, subnets, keys, strict=True):
        content: dict[str, object] = {
            "ImageId": f"${{{image}}}",
            "InstanceType": machines.instance_type,
            "MinCount": machines.count,
            "MaxCount": machines.count,
            "KeyName": f"${{{key}}}",
            "SubnetId": f"${{{subnet}}}",
            "InstanceInitiatedShutdownBehavior": "terminate",
            "TagSpecifications": [
                {
                    "ResourceType": "instance",
                    "Tags": [
                        {"Key": "gpusonde", "Value": name},
                        {"Key": "batch-per-gpu", "Value": str(machines.batch)},
                    ],
                }
            ],
        }
        if machines.spot:
            content["InstanceMarketOptions"] = {
                "MarketType": "spot",
                "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
            }
        if machines.zone:
            content["Placement"] = {"AvailabilityZone": machines.zone}
        region = f" --region {machines.region}" if machines.region else ""
        lines += [
            f'aws ec2 run-instances{region} --cli-input-json "$(cat <<JSON',
            json.dumps(content, indent=2),
            "JSON",
            ')"',
        ]
    return "\n".join([*lines, ""])


def _variables(name: str, places: Sequence[str]) -> list[str]:
    """Return the variable of each place: the bare name where there is one place only."""
    if len(set(places)) == 1:
        return [name] * len(places)
    return ["_".join(filter(None, [name, _NOT_IN_NAMES.sub("_", place.lower()).upper()])) for place in places]


def _kubernetes(groups: Sequence[_Machines], name: str, head: Sequence[str], at_most_s: float) -> str:
    total = sum(machines.count for machines in groups)
    documents = [
        "\n".join([
            *head,
            f"# write image and script in place of IMAGE and SCRIPT, then kubectl create -f {name}.yaml",
            "apiVersion: v1",
            "kind: Service",
            "metadata:",
            f"  name: {json.dumps(name)}",
            "spec:",
            "  clusterIP: None",
            "  selector:",
            f"    gpusonde-job: {json.dumps(name)}",
            "",
        ])
    ]  # fmt: skip
    for number, machines in enumerate(groups):
        selector = {"node.kubernetes.io/instance-type": machines.instance_type}
        if machines.region:
            selector["topology.kubernetes.io/region"] = machines.region
        if machines.zone:
            selector["topology.kubernetes.io/zone"] = machines.zone
        if machines.spot:
            selector["karpenter.sh/capacity-type"] = "spot"
        documents.append("\n".join([
            "apiVersion: batch/v1",
            "kind: Job",
            "metadata:",
            f"  name: {name}-{number}",
            "spec:",
            f"  completions: {machines.count}",
            f"  parallelism: {machines.count}",
            "  completionMode: Indexed",
            f"  backoffLimit: {10 * machines.count if machines.spot else machines.count}",
            "  template:",
            "    metadata:",
            "      labels:",
            f"        gpusonde-job: {json.dumps(name)}",
            "    spec:",
            f"      subdomain: {json.dumps(name)}",
            "      restartPolicy: Never",
            "      nodeSelector:",
            *(f"        {key}: {json.dumps(value)}" for key, value in selector.items()),
            "      containers:",
            "      - name: train",
            "        image: IMAGE",
            "        env:",
            f'        - {{name: BATCH_PER_GPU, value: "{machines.batch}"}}',
            "        command:",
            "        - sh",
            "        - -c",
            f"        - torchrun --nnodes {total} --node-rank $(({machines.first_rank} + JOB_COMPLETION_INDEX))",
            f"          --nproc-per-node {machines.offer.devices} --master-addr {name}-0-0.{name}",
            f"          --master-port {_PORT} SCRIPT",
            "        resources:",
            "          limits:",
            f"            nvidia.com/gpu: {machines.offer.devices}",
            "",
        ]))  # fmt: skip
    return "---\n".join(documents)


def _plain(text: str, what: str) -> str:
    """Return a name that a script may hold as it is.

    Raises:
        ProblemError: It may not.
    """
    if not _PLAIN.fullmatch(text):
        raise ProblemError(
            f"{what} is nothing that can be launched: name offers cloud/region/machine, as the catalogue"
        )
    return text


def _comment(text: str) -> str:
    return _NOT_IN_COMMENTS.sub(" ", text)


def _ends(seconds: float) -> str:
    if not seconds < _LONGEST_S:
        return "may not end"
    return f"ends within {duration(seconds)} with the wanted confidence"
