"""Rows of today's software: networks of timm, language models, transformers in single precision.

* timm: training steps under automatic mixed precision on an RTX 3090 (huggingface/pytorch-image-models, Apache-2.0);
  its own table is not in the repository. A row's family is the module of timm that makes the network.
* NeuSight: BERT, GPT and OPT with separate attention products in FP32 on T4, V100 and A100, forward passes and three
  training steps (sitar-lab/NeuSight, MIT); its table neither.
* ``data/published_steps.csv``: MPT language models on A100 and H100 (mosaicml/llm-foundry, Apache-2.0; steps of one
  micro-batch on hosts of eight GPUs, without checkpointed activations) and four networks on V100 and A100
  (NVIDIA/DeepLearningExamples, BSD-3-Clause; one GPU). ResNet-50 and BERT of the latter are kept for ``public``.

``data/timm_graphs.jsonl.xz`` holds the graphs of timm's networks, written by this file where torch and timm are:
``TIMM_FUSED_ATTN=0 python benchmarks/workload/modern_rows.py TIMM_TABLE``; attention was separate products then.

Families of timm set aside, named before the first fit: of the modules in alphabetical order the second of every three.
Their single errors have been looked at since; what changes the model is therefore compared on families that are kept.
"""

from __future__ import annotations

import csv
import json
import lzma
import sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from gpusonde.catalog import Precision, load_gpus
from gpusonde.predictor.workload.engine import (
    Cluster,
    KnownNetworks,
    WorkloadMeasurement,
    WorkloadRequest,
    read_measurements,
)
from gpusonde.predictor.workload.engine.measurements import Network
from gpusonde.predictor.workload.graph import Primitive, WorkloadGraph, dump_graph, load_graph
from gpusonde.predictor.workload.graph.config import from_config

Rows = list[WorkloadMeasurement]
DATA = Path(__file__).with_name("data")
GRAPHS = DATA / "timm_graphs.jsonl.xz"
SET_ASIDE = frozenset(
    ("byobnet", "convnext", "densenet", "efficientnet", "inception_v3", "mlp_mixer", "nfnet", "resnet", "senet",
     "twins", "vovnet")
)  # fmt: skip
_TIMM_ENVIRONMENT = "pytorch-1.12/timm"
_TIMM_LATER = "pytorch-2.4/timm"
_NEUSIGHT_ENVIRONMENT = "pytorch-2.1/neusight"
# Width, layers, heads: of the files in scripts/train/yamls/pretrain.
_MPT = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
}
# timm's table of former names takes all of these for the narrowest.
_BASE_WIDTHS = {f"ig_resnext101_32x{width}d": {"base_width": width} for width in (16, 32, 48)}
_SAME_NETWORK = 0.01
_GPT = {"model_type": "gpt2", "vocab_size": 50257}
# scripts/asplos/data/DLmodel_configs; Switch Transformers have no graph here.
_NEUSIGHT: dict[str, dict[str, Any]] = {
    "bert_large": {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                   "intermediate_size": 4096, "max_position_embeddings": 512, "vocab_size": 30522},
    "gpt2_large": {**_GPT, "n_embd": 1280, "n_layer": 36, "n_head": 20, "n_positions": 1024},
    "gpt3_27": {**_GPT, "n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048},
    "gpt3_xl": {**_GPT, "n_embd": 3072, "n_layer": 24, "n_head": 24, "n_positions": 2048},
    "opt_13": {"model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
               "ffn_dim": 8192, "max_position_embeddings": 2048, "vocab_size": 50272},
}  # fmt: skip


@cache
def timm_networks() -> dict[tuple[str, int], Network]:
    """(Name, image size) -> a network of timm."""
    found = {}
    with lzma.open(GRAPHS, "rt", encoding="utf-8") as file:
        for line in file:
            held = json.loads(line)
            graph = load_graph(json.dumps(held["graph"]))
            found[held["name"], held["image_size"]] = Network(graph, held["name"], held["family"])
    return found


class ModernNetworks(KnownNetworks):
    """Finds the networks of timm and MPT too."""

    def find(self, name: str, image_size: int | None, description: str = "") -> Network:
        """As ``KnownNetworks.find``: "timm/resnext101_32x4d", "mpt-7b@2048"."""
        timm = timm_networks().get((name.removeprefix("timm/"), image_size or 0))
        if name.startswith("timm/") and timm:
            return timm
        if name.startswith("mpt-"):
            size, length = name.removeprefix("mpt-").split("@")
            return Network(_mpt(size, int(length)), f"mpt-{size}", "mpt")
        return super().find(name, image_size, description)


@cache
def _mpt(size: str, length: int) -> WorkloadGraph:
    width, layers, heads = _MPT[size]
    config = {"model_type": "mpt", "d_model": width, "n_layers": layers, "n_heads": heads, "vocab_size": 50368}
    return from_config({**config, "max_seq_len": length}, name=f"mpt-{size}")


def published() -> Rows:
    """Steps of MPT and of NVIDIA's examples."""
    return list(read_measurements(DATA / "published_steps.csv", load_gpus(), ModernNetworks()).measurements)


def timm(path: Path) -> Rows:
    """Steps of timm's networks."""
    rows = read_measurements(path, load_gpus(), ModernNetworks()).measurements
    return [_at(each, _TIMM_ENVIRONMENT) for each in rows]


def _at(row: WorkloadMeasurement, environment: str) -> WorkloadMeasurement:
    cluster = replace(row.request.cluster, environment=environment)
    return replace(row, request=replace(row.request, cluster=cluster))


def published_passes() -> Rows:
    """Forward passes of image networks."""
    rows = read_measurements(DATA / "published_passes.csv", load_gpus(), ModernNetworks()).measurements
    return [replace(each, request=replace(each.request, forward_only=True)) for each in rows]


def timm_passes(path: Path) -> Rows:
    """Forward passes of timm's networks, not compiled; those with attention are left out, which is fused by then."""
    catalog, rows = load_gpus(), []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            network = timm_networks().get((row["model"], int(row["image_size"])))
            if row["compiled"] == "True" or row["sw"] != "pt240" or network is None or _has_attention(network.graph):
                continue
            device = catalog.resolve(row["gpu"]).spec.name
            place = Cluster(
                device, precision=Precision.MIXED, environment=_TIMM_LATER, channels_last=row["layout"] == "nhwc"
            )
            batch = int(row["batch"])
            request = WorkloadRequest(network.graph, batch, place, forward_only=True)
            seconds = batch * float(row["t_rel"])
            rows.append(WorkloadMeasurement(request, seconds, network.architecture, network.family, "timm"))
    return rows


def _has_attention(graph: WorkloadGraph) -> bool:
    return any(each.primitive is Primitive.SOFTMAX for each in graph.operations)


def neusight(path: Path) -> Rows:
    """Passes of transformers in FP32; rows with a ``variant`` are left out."""
    catalog, graphs = load_gpus(), {}
    rows = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["main"] != "True" or row["model"] not in _NEUSIGHT:
                continue
            key = (row["model"], int(row["seq"]))
            if key not in graphs:
                config = {**_NEUSIGHT[key[0]], "_attn_implementation": "eager"}
                graphs[key] = from_config(config, sequence_length=key[1], name=key[0])
            device = catalog.resolve(row["gpu"].removeprefix("NVIDIA ").removeprefix("Tesla ")).spec.name
            cluster = Cluster(device, precision=Precision.FP32, environment=_NEUSIGHT_ENVIRONMENT)
            request = WorkloadRequest(graphs[key], int(row["batch"]), cluster, forward_only=row["mode"] == "inf")
            family = key[0].split("_")[0].rstrip("23")
            rows.append(WorkloadMeasurement(request, float(row["t_rel"]), key[0], family, "neusight"))
    return rows


def _write_graphs(table: Path) -> None:
    import torch
    from torchvision_networks import torchvision_models

    torchvision_models()  # timm imports torchvision, which wants this first
    import timm as networks

    from gpusonde.errors import GraphError
    from gpusonde.predictor.workload.graph.torch import export, from_torch

    wanted = dict.fromkeys(
        (("resnext101_32x4d", 224), ("seresnext101_32x4d", 224), ("efficientnet_b0", 224), ("efficientnet_b4", 380))
    )
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            wanted[row["model"].removeprefix("timm/"), int(row["image_size"])] = row["param_count_m"]
    with lzma.open(GRAPHS, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as out:
        for (name, size), millions in sorted(wanted.items()):
            options = _BASE_WIDTHS.get(name, {})
            try:
                module = export.build(partial(networks.create_model, name, pretrained=False, **options))
                graph = from_torch(module, torch.empty(1, 3, size, size, device="meta"), name=name)
            except GraphError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            if millions and abs(graph.parameter_count / 1e6 / float(millions) - 1) > _SAME_NETWORK:
                print(f"{name}: {graph.parameter_count} parameters, {millions} million were measured", file=sys.stderr)
                continue
            family = type(module).__module__.rsplit(".", 1)[-1]
            held = {"name": name, "image_size": size, "family": family, "graph": json.loads(dump_graph(graph))}
            out.write(json.dumps(held, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    _write_graphs(Path(sys.argv[1]))
