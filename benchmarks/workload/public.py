"""What the shipped model says of well-known networks, beside what their authors publish; none was fitted on."""

from __future__ import annotations

import argparse
import functools
import json
import lzma
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt
from page import bar, percent, table

from gpusonde.catalog import Precision, load_gpus
from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.engine import Cluster, WorkloadModel, WorkloadRequest
from gpusonde.predictor.workload.graph import WorkloadGraph, dump_graph, load_graph
from gpusonde.predictor.workload.graph.config import from_config

_SAID = (
    "The shipped model, asked without the name of a place, beside published rates per second and GPU (each rate and "
    "its source stand in `benchmarks/workload/public.py`; all licences permit it). Their places are not among those "
    "fitted, but for NVIDIA's containers, where other networks were. Where activations are computed again (half of "
    "Llama-8B's products) as much of the model's forward pass is added. Where an executor of graphs starts kernels, "
    "by what the source says that it ran (TensorFlow 1, MXNet, JAX, traced PyTorch), it is told so; not that others "
    "used torch.compile, nor that torchtitan's H100 was held at 500 W and had slower memory. MLPerf's ResNet-50 on "
    "H100 is fused by hand. Stable Diffusion's pipelines of lambda-diffusers hold 3 % of other work. Four of its "
    "rates were asked in FP32 at first (0.50 to 0.74) and are TF32, as NVIDIA's containers have it on. No figure with "
    "batch, precision and software was found for training on a T4. Forward passes came out too slow (50.5 % of 97 "
    "within 30 %, 7 off by 2x; of all 131 rates 60.3 %, 7) while all was learnt from training steps. They have rows "
    "of their own now, of other networks, and products of matrices run at base clock; both were chosen by rows of T4, "
    "of NVIDIA's examples and of timm that were left out, without a look at these rates. ResNeXt and EfficientNet of "
    "the same pages as ResNet-50, Swin of those as BERT and ViT, BEiT and ConvNeXt of those as ViT are among the "
    "rows."
)
_NVIDIA = "NVIDIA/DeepLearningExamples@729963dd, "
_RN50 = _NVIDIA + "PyTorch/Classification/ConvNets/resnet50v1.5 (BSD-3-Clause)"
_BERT_TORCH = _NVIDIA + "PyTorch/LanguageModeling/BERT (Apache-2.0)"
_BERT_TF = _NVIDIA + "TensorFlow/LanguageModeling/BERT (Apache-2.0)"
_NANO = "karpathy/nanoGPT, README: 600,000 steps in four days on 8 A100 (MIT)"
_TINY = "jzhang38/TinyLlama, README (Apache-2.0)"
_TITAN = "pytorch/torchtitan, docs/performance.md (BSD-3-Clause)"
_RN50_TF = _NVIDIA + "TensorFlow/Classification/ConvNets/resnet50v1.5 (Apache-2.0)"
_RN50_MXNET = _NVIDIA + "MxNet/Classification/RN50v1.5 (Apache-2.0)"
_VIT_JAX = "NVIDIA/JAX-Toolbox@00eff412, rosetta/rosetta/projects/vit/README.md (Apache-2.0)"
_FASTER_BERT = "NVIDIA/FasterTransformer@df4a7534, docs: PyTorch, traced; beside it TensorFlow (Apache-2.0)"
_FASTER_VIT = "NVIDIA/FasterTransformer@df4a7534, docs: PyTorch, not traced (Apache-2.0)"
_AIT = "facebookincubator/AITemplate@c8aad377, examples: PyTorch 1.12 (Apache-2.0)"
_HF = "huggingface/transformers@0559c47b, docs/source/en/perf_torch_compile.md (Apache-2.0)"
_DIFFUSERS = "huggingface/diffusers@2c529b75, docs/source/en/optimization/torch2.0.md (Apache-2.0)"
_STABLE_FAST = "chengzeyi/stable-fast@2b9b84e9, README: PyTorch 2.1 (MIT)"
_LAMBDA = "LambdaLabsML/lambda-diffusers@8571d8d4, benchmarks: 30 steps of whole pipelines (MIT)"
_MOSAIC = "mosaicml/diffusion@49282fd7, README (Apache-2.0)"
_DLPERF = "Oneflow-Inc/DLPerf@c89430ba, reports/dlperf_benchmark_test_report_v1.md: NVIDIA's PyTorch (Apache-2.0)"
_MLPERF = "mlcommons/training_results_v4.0@6fe95437, NVIDIA/results/eos_ngc24.04 (Apache-2.0)"
_FMS = "foundation-model-stack/fms-fsdp@5a296afe, README (Apache-2.0)"
_SPEEDRUN = "KellerJordan/modded-nanogpt@f411b3d3, records/track_1_short/2024-10-10_Muon (MIT)"
_GRAPHS = Path(__file__).with_name("data") / "public_graphs.jsonl.xz"
# Its "selective op" keeps every second product.
_SELECTIVE = 0.5
# Sources that are not PyTorch's.
_OTHER_FRAMEWORKS = frozenset({_BERT_TF, _RN50_TF, _RN50_MXNET, _VIT_JAX, _MLPERF + " (MXNet)"})
# Those whose kernels an executor of graphs starts, by what each source says that it ran: TensorFlow 1, MXNet, JAX under
# jit, traced PyTorch. torch.compile's own code starts them from Python.
_GRAPH_LAUNCHES = _OTHER_FRAMEWORKS | {_FASTER_BERT}
# In the table, but not among the networks that the bar names.
_NOT_NAMED = "Llama-7B"


@dataclass(frozen=True)
class Published:
    """A published rate.

    Attributes:
        network: Which of ``_graph``.
        length: Tokens of a sequence, or pixels of an image's side.
        device: Where.
        precision: In what.
        batch: Samples per GPU and step; of Stable Diffusion's U-Net two per image where it is guided.
        rate: Samples per second and GPU; of GPT and Llama tokens.
        source: Who says so.
        forward: The forward pass alone.
        again: Share of the forward pass that the backward pass computes again.
        others: Other published rates of the same network, GPU, precision and passes: other frameworks, software of
            another year, other hosts, and where nobody had room for it another batch.
        channels_last: Images lay with their channels innermost.
    """

    network: str
    length: int
    device: str
    precision: Precision
    batch: int
    rate: float
    source: str
    forward: bool = False
    again: float = 0.0
    others: tuple[float, ...] = ()
    channels_last: bool = False

    @property
    def question(self) -> tuple[object, ...]:
        """What two rates have in common that answer the same question, whatever the memory of an A100."""
        device = self.device.removesuffix("-40GB").removesuffix("-80GB")
        return (self.network.split(",")[0], self.length, device, self.precision, self.batch, self.forward)


_FP32, _TF32, _FP16, _BF16, _MIXED = (
    Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16, Precision.MIXED
)  # fmt: skip
_A100, _A100_40, _V100, _H100 = "A100-SXM4-80GB", "A100-SXM4-40GB", "V100-SXM2-16GB", "H100-SXM5-80GB"
_V100_32, _H100_PCIE = "V100-SXM2-32GB", "H100-PCIe-80GB"
# The first of a kind that were found, on 2026-11-23; ``others`` of 2026-11-24.
_FIRST = (
    Published("ResNet-50", 224, _A100, _TF32, 256, 938, _RN50, others=(1055.78, 1024)),
    Published("ResNet-50", 224, _A100, _MIXED, 256, 2470, _RN50, others=(3410.52, 2_897), channels_last=True),
    Published("ResNet-50", 224, _V100, _FP32, 112, 367, _RN50, others=(384, 412)),
    Published("ResNet-50", 224, _V100, _MIXED, 256, 1200, _RN50, others=(1376, 1270), channels_last=True),
    Published("BERT-large", 128, _A100, _TF32, 128, 317, _BERT_TORCH, others=(282.98, 307)),
    Published("BERT-large", 128, _A100, _MIXED, 256, 580, _BERT_TORCH, others=(485.59, 694)),
    Published("BERT-large", 512, _A100_40, _MIXED, 16, 70.856, _BERT_TF),
    Published("BERT-large", 384, _A100, _TF32, 32, 61.5, _BERT_TORCH, others=(43.9, 83)),
    Published("BERT-large", 384, _A100, _MIXED, 32, 110.5, _BERT_TORCH, others=(134.22, 123)),
    Published("BERT-large", 128, _V100_32, _FP32, 32, 50, _BERT_TORCH, others=(46.78, 35.32, 49.97)),
    Published("BERT-large", 128, _V100_32, _MIXED, 64, 224, _BERT_TORCH, others=(168.63, 188.04, 206.5)),
    Published("BERT-large", 512, _V100_32, _MIXED, 8, 31.23, _BERT_TF, others=(35.32, 40.95)),
    Published("BERT-large", 384, _V100_32, _FP32, 8, 12, _BERT_TORCH, others=(10.42, 11.15, 11.11)),
    Published("BERT-large", 384, _V100_32, _MIXED, 16, 52, _BERT_TORCH, others=(51.02, 55.28, 47.06)),
    Published("BERT-base", 128, _V100, _MIXED, 8, 962.83, _BERT_TF, forward=True, others=(1081.17,)),
    Published("BERT-base", 384, _V100, _MIXED, 8, 421.26, _BERT_TF, forward=True, others=(504.24,)),
    Published("BERT-base", 128, "T4", _MIXED, 8, 289.52, _BERT_TF, forward=True, others=(532.56,)),
    Published("BERT-base", 384, "T4", _MIXED, 8, 106.78, _BERT_TF, forward=True, others=(192.61,)),
    Published("BERT-base", 128, "T4", _FP32, 8, 98.92, _BERT_TF, forward=True, others=(174.46,)),
    Published("BERT-base", 384, "T4", _FP32, 8, 31.8, _BERT_TF, forward=True, others=(51.33,)),
    Published("BERT-large", 128, "T4", _MIXED, 8, 107.5, _BERT_TF, forward=True, others=(186.99,)),
    Published("BERT-large", 384, "T4", _MIXED, 8, 38.29, _BERT_TF, forward=True, others=(62.99,)),
    Published("BERT-large", 384, "T4", _FP32, 8, 9.75, _BERT_TF, forward=True, others=(16.04,)),
    Published("GPT-2 small", 1024, _A100_40, _MIXED, 12, 106_700, _NANO),
    Published("Llama-1B", 2048, _A100_40, _MIXED, 8, 24_000, _TINY),
    Published("Llama-8B", 8192, _A100, _MIXED, 1, 2_973, _TITAN, again=_SELECTIVE, others=(2_904,)),
    Published("Llama-8B", 8192, _H100, _MIXED, 2, 5_762, _TITAN, again=_SELECTIVE, others=(6_667,)),
)
# Found on 2026-11-28, after the model was made, and written down before it was asked. Of a table over batches: the one
# nearest to 8 and the largest. Frameworks that train only: no inference compilers. Half precision without loss scaling
# is FP16. Which A100 is said by few: the one with 40 GB then.
_LATER = (
    Published("ViT-B/16", 224, _A100, _BF16, 512, 7200.38 / 8, _VIT_JAX, others=(7129.27 / 8,)),
    Published("ViT-B/16", 224, _H100, _BF16, 512, 11669.52 / 8, _VIT_JAX),
    Published("ViT-B/16", 384, _A100, _BF16, 64, 1841.43 / 8, _VIT_JAX),
    Published("ViT-B/16", 224, _A100_40, _FP16, 8, 1439.03, _AIT, forward=True),
    Published("ViT-B/16", 224, _A100_40, _FP16, 256, 2226.10, _AIT, forward=True),
    Published("ViT-B/16", 384, "T4", _FP32, 8, 8 / 0.29555, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 384, "T4", _FP32, 32, 32 / 1.21299, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 384, "T4", _FP16, 8, 8 / 0.16172, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 384, "T4", _FP16, 32, 32 / 0.68427, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 384, _A100_40, _FP32, 8, 8 / 0.07431, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 384, _A100_40, _FP32, 32, 32 / 0.2907, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 384, _A100_40, _FP16, 8, 8 / 0.03041, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 384, _A100_40, _FP16, 32, 32 / 0.12117, _FASTER_VIT, forward=True),
    Published("ViT-B/16", 224, _A100_40, _FP32, 16, 16 / 0.040944, _HF, forward=True, others=(16 / 0.04001,)),
    Published("ViT-B/16", 224, _V100, _FP32, 16, 16 / 0.052209, _HF, forward=True, others=(16 / 0.051633,)),
    Published("ViT-B/16", 224, "T4", _FP32, 16, 16 / 0.163914, _HF, forward=True, others=(16 / 0.160907,)),
    Published("ResNet-50", 224, _A100_40, _FP32, 16, 16 / 0.007018, _HF, forward=True, others=(16 / 0.005024,)),
    Published("ResNet-50", 224, _V100, _FP32, 16, 16 / 0.014857, _HF, forward=True, others=(16 / 0.012089,)),
    Published("ResNet-50", 224, "T4", _FP32, 16, 16 / 0.044114, _HF, forward=True, others=(16 / 0.037604,)),
    Published("ResNet-50", 224, _A100_40, _FP16, 8, 1138.83, _AIT, forward=True),
    Published("ResNet-50", 224, _A100_40, _FP16, 256, 5026.40, _AIT, forward=True),
    Published("ResNet-50", 224, _V100, _FP32, 8, 709, _RN50, forward=True, others=(783.24,)),
    Published("ResNet-50", 224, _V100, _FP32, 256, 1261, _RN50, forward=True, others=(1348.52,)),
    Published("ResNet-50", 224, _V100, _MIXED, 8, 595, _RN50, True,
              others=(1454.93, 1153.92, 1642), channels_last=True),
    Published("ResNet-50", 224, _V100, _MIXED, 256, 3382, _RN50, True,
              others=(2742.14, 2898.12, 3057), channels_last=True),
    Published("ResNet-50", 224, "T4", _FP32, 8, 363, _RN50, forward=True, others=(341.77,)),
    Published("ResNet-50", 224, "T4", _FP32, 256, 415, _RN50, forward=True, others=(425.72,)),
    Published("ResNet-50", 224, "T4", _MIXED, 8, 652, _RN50, True, others=(791.12, 802.13, 672), channels_last=True),
    Published("ResNet-50", 224, "T4", _MIXED, 256, 1198, _RN50, True,
              others=(993.39, 1193.74, 1559), channels_last=True),
    Published("ResNet-50", 224, _A100_40, _TF32, 8, 963.86, _RN50_TF, forward=True, others=(1021.20,)),
    Published("ResNet-50", 224, _A100_40, _TF32, 256, 1911.96, _RN50_TF, forward=True, others=(2548.87,)),
    Published("ResNet-50", 224, _A100_40, _MIXED, 8, 1503.24, _RN50_TF, True, others=(1215.50,), channels_last=True),
    Published("ResNet-50", 224, _A100_40, _MIXED, 256, 3229.32, _RN50_TF, True, others=(3676.14,), channels_last=True),
    Published("ResNet-50", 224, _A100, _MIXED, 8, 2593.88, _RN50_MXNET, True, channels_last=True),
    Published("ResNet-50", 224, _A100, _MIXED, 256, 7909.62, _RN50_MXNET, True, channels_last=True),
    Published("ResNet-50", 224, _V100, _FP32, 128, 367.29, _DLPERF,
              others=(397.64, 392.24, 362.44, 384.19, 321.80, 348.62, 352.72)),
    Published("ResNet-50", 224, _V100, _MIXED, 256, 802.9, _DLPERF,
              others=(1472.72, 1393.87, 1198.55, 945.18, 833.65, 1075.27, 887.17)),
    Published("ResNet-50", 224, _H100, _MIXED, 400, 57_200 / 8, _MLPERF + " (MXNet)", channels_last=True),
    Published("BERT-base", 128, _A100_40, _FP16, 8, 985.72, _AIT, forward=True),
    Published("BERT-base", 128, _A100_40, _FP16, 256, 4543.88, _AIT, forward=True),
    Published("BERT-base", 384, _A100_40, _FP16, 8, 858.70, _AIT, forward=True),
    Published("BERT-base", 384, _A100_40, _FP16, 128, 1276.67, _AIT, forward=True),
    Published("BERT-base", 128, _A100, _TF32, 8, 8 / 0.00496, _FASTER_BERT, forward=True, others=(8 / 0.00488,)),
    Published("BERT-base", 128, _A100, _TF32, 32, 32 / 0.01349, _FASTER_BERT, forward=True, others=(32 / 0.01297,)),
    Published("BERT-base", 384, _A100, _TF32, 8, 8 / 0.01287, _FASTER_BERT, forward=True, others=(8 / 0.01216,)),
    Published("BERT-base", 384, _A100, _TF32, 32, 32 / 0.04717, _FASTER_BERT, forward=True, others=(32 / 0.04686,)),
    Published("BERT-base", 128, _A100, _FP16, 8, 8 / 0.00435, _FASTER_BERT, forward=True, others=(8 / 0.00332,)),
    Published("BERT-base", 128, _A100, _FP16, 32, 32 / 0.00957, _FASTER_BERT, forward=True, others=(32 / 0.00838,)),
    Published("BERT-base", 384, _A100, _FP16, 8, 8 / 0.00951, _FASTER_BERT, forward=True, others=(8 / 0.00855,)),
    Published("BERT-base", 384, _A100, _FP16, 32, 32 / 0.03243, _FASTER_BERT, forward=True, others=(32 / 0.0278,)),
    Published("BERT-base", 128, _A100, _FP32, 8, 8 / 0.01329, _FASTER_BERT, forward=True),
    Published("BERT-base", 128, _A100, _FP32, 32, 32 / 0.0459, _FASTER_BERT, forward=True),
    Published("BERT-base", 384, _A100, _FP32, 8, 8 / 0.03807, _FASTER_BERT, forward=True),
    Published("BERT-base", 384, _A100, _FP32, 32, 32 / 0.15026, _FASTER_BERT, forward=True),
    Published("BERT-base", 128, "T4", _FP32, 8, 8 / 0.05391, _FASTER_BERT, forward=True, others=(8 / 0.04919,)),
    Published("BERT-base", 128, "T4", _FP32, 32, 32 / 0.20304, _FASTER_BERT, forward=True, others=(32 / 0.18349,)),
    Published("BERT-base", 384, "T4", _FP32, 8, 8 / 0.18082, _FASTER_BERT, forward=True, others=(8 / 0.15409,)),
    Published("BERT-base", 384, "T4", _FP32, 32, 32 / 0.70727, _FASTER_BERT, forward=True, others=(32 / 0.60269,)),
    Published("BERT-base", 128, "T4", _FP16, 8, 8 / 0.01341, _FASTER_BERT, forward=True, others=(8 / 0.01234,)),
    Published("BERT-base", 128, "T4", _FP16, 32, 32 / 0.05428, _FASTER_BERT, forward=True, others=(32 / 0.0455,)),
    Published("BERT-base", 384, "T4", _FP16, 8, 8 / 0.04682, _FASTER_BERT, forward=True, others=(8 / 0.03988,)),
    Published("BERT-base", 384, "T4", _FP16, 32, 32 / 0.1928, _FASTER_BERT, forward=True, others=(32 / 0.15993,)),
    Published("BERT-base", 128, _V100, _FP32, 8, 8 / 0.02086, _FASTER_BERT, forward=True, others=(8 / 0.01698,)),
    Published("BERT-base", 128, _V100, _FP32, 32, 32 / 0.07065, _FASTER_BERT, forward=True, others=(32 / 0.06298,)),
    Published("BERT-base", 384, _V100, _FP32, 8, 8 / 0.0612, _FASTER_BERT, forward=True, others=(8 / 0.05346,)),
    Published("BERT-base", 384, _V100, _FP32, 32, 32 / 0.23266, _FASTER_BERT, forward=True, others=(32 / 0.2084,)),
    Published("BERT-base", 128, _V100, _FP16, 8, 8 / 0.00683, _FASTER_BERT, forward=True, others=(8 / 0.00558,)),
    Published("BERT-base", 128, _V100, _FP16, 32, 32 / 0.0202, _FASTER_BERT, forward=True, others=(32 / 0.01724,)),
    Published("BERT-base", 384, _V100, _FP16, 8, 8 / 0.01751, _FASTER_BERT, forward=True, others=(8 / 0.01459,)),
    Published("BERT-base", 384, _V100, _FP16, 32, 32 / 0.06562, _FASTER_BERT, forward=True, others=(32 / 0.05324,)),
    Published("BERT-base", 128, _V100, _FP32, 32, 119.6, _DLPERF, others=(152.89, 107.33, 132.64, 150.11)),
    Published("BERT-base", 128, _V100, _FP32, 48, 121.94, _DLPERF, others=(112.76,)),
    Published("BERT-base", 128, _V100, _MIXED, 64, 444.51, _DLPERF, others=(534.72, 183.25, 422.53, 289.23, 473.76)),
    Published("BERT-base", 128, _V100, _MIXED, 96, 462.35, _DLPERF, others=(468.1,)),
    Published("GPT-2 small", 1024, _H100, _BF16, 64, 2**19 / 8 / 0.21633, _SPEEDRUN),
    Published("Llama-7B", 4096, _A100, _BF16, 2, 4550, _FMS),
    Published("Llama-7B", 4096, _H100, _BF16, 2, 9600, _FMS),
    Published("SD 1 U-Net", 512, _A100_40, _FP16, 2, 2 * 21.66, _DIFFUSERS, True, channels_last=True,
              others=(2 * 23.13, 2 * 44.03, 2 * 49.74)),
    Published("SD 1 U-Net", 512, _A100_40, _FP16, 8, 8 * 11.6, _DIFFUSERS, True, channels_last=True,
              others=(8 * 13.12, 8 * 14.62, 8 * 17.27)),
    Published("SD 1 U-Net", 512, _A100_40, _FP16, 32, 32 * 3.04, _DIFFUSERS, True, channels_last=True,
              others=(32 * 3.6, 32 * 3.83, 32 * 4.68)),
    Published("SD 1 U-Net", 512, _V100, _FP16, 2, 2 * 18.99, _DIFFUSERS, True, channels_last=True,
              others=(2 * 19.14, 2 * 20.95, 2 * 22.17)),
    Published("SD 1 U-Net", 512, _V100, _FP16, 8, 8 * 5.96, _DIFFUSERS, True, channels_last=True,
              others=(8 * 5.89, 8 * 6.83, 8 * 6.86)),
    Published("SD 1 U-Net", 512, _V100, _FP16, 32, 32 * 1.66, _DIFFUSERS, True, channels_last=True,
              others=(32 * 1.66, 32 * 1.92, 32 * 1.9)),
    Published("SD 1 U-Net", 512, "T4", _FP16, 2, 2 * 6.9, _DIFFUSERS, True, channels_last=True,
              others=(2 * 6.95, 2 * 7.3, 2 * 7.56)),
    Published("SD 1 U-Net", 512, "T4", _FP16, 8, 8 * 1.79, _DIFFUSERS, True, channels_last=True,
              others=(8 * 1.79, 8 * 2.03, 8 * 1.99)),
    Published("SD 1 U-Net", 512, "T4", _FP16, 32, 32 / 2.34, _DIFFUSERS, True, channels_last=True,
              others=(32 / 2.30, 32 / 1.99)),
    Published("SD 1 U-Net", 512, _A100_40, _FP16, 2, 2 * 35.6, _STABLE_FAST, forward=True, others=(2 * 41.9,)),
    Published("SD 1 U-Net", 512, _H100, _FP16, 2, 2 * 54.5, _STABLE_FAST, forward=True, others=(2 * 66.0,)),
    Published("SD 1 U-Net, separate", 512, _A100_40, _FP16, 2, 2 / 0.06052, _AIT, forward=True),
    Published("SD 1 U-Net", 512, _A100_40, _FP16, 8, 240 / 2.68, _LAMBDA, forward=True, others=(240 / 3.35,)),
    Published("SD 1 U-Net", 512, _A100_40, _FP16, 256, 7680 / 69.31, _LAMBDA, forward=True),
    Published("SD 1 U-Net", 512, _A100_40, _TF32, 8, 240 / 5.35, _LAMBDA, forward=True, others=(240 / 5.53,)),
    Published("SD 1 U-Net", 512, _A100_40, _TF32, 128, 3840 / 77.05, _LAMBDA, forward=True),
    Published("SD 1 U-Net", 512, _V100, _FP16, 8, 240 / 5.62, _LAMBDA, forward=True),
    Published("SD 1 U-Net", 512, _V100, _FP16, 128, 3840 / 79.82, _LAMBDA, forward=True),
    Published("SD 1 U-Net", 512, _V100, _FP32, 8, 240 / 16.56, _LAMBDA, forward=True),
    Published("SD 1 U-Net", 512, _V100, _FP32, 64, 1920 / 110.17, _LAMBDA, forward=True),
    Published("SD 1 U-Net, separate", 512, _H100_PCIE, _FP16, 8, 240 / 2.63, _LAMBDA, forward=True),
    Published("SD 1 U-Net, separate", 512, _H100_PCIE, _FP16, 64, 1920 / 19.07, _LAMBDA, forward=True),
    Published("SD 1 U-Net, separate", 512, _H100_PCIE, _TF32, 8, 240 / 4.47, _LAMBDA, forward=True),
    Published("SD 1 U-Net, separate", 512, _H100_PCIE, _TF32, 64, 1920 / 32.04, _LAMBDA, forward=True),
    Published("SD 2 U-Net", 256, _A100_40, _MIXED, 16, 1100 / 8, _MOSAIC),
    Published("SD 2 U-Net", 512, _A100_40, _MIXED, 16, 290 / 8, _MOSAIC),
    Published("SD 2 U-Net", 512, _H100, _MIXED, 64, 126.7, _MLPERF + " (NeMo)", channels_last=True),
)  # fmt: skip
_LLAMA = {"model_type": "llama", "num_attention_heads": 32}
_BERT = {"model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 512, "_attn_implementation": "eager"}
_CONFIGURATIONS = {
    "BERT-base": {**_BERT, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                  "intermediate_size": 3072},
    "BERT-large": {**_BERT, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                   "intermediate_size": 4096},
    "GPT-2 small": {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
                    "vocab_size": 50257},
    "Llama-7B": {**_LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_key_value_heads": 32,
                 "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 4096},
    "Llama-1B": {**_LLAMA, "hidden_size": 2048, "num_hidden_layers": 22, "num_key_value_heads": 4,
                 "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048},
    "Llama-8B": {**_LLAMA, "hidden_size": 4096, "num_hidden_layers": 32, "num_key_value_heads": 8,
                 "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192},
}  # fmt: skip


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    published = (*_FIRST, *_LATER)
    model, catalog = WorkloadModel.shipped(), load_gpus()
    requests = [
        WorkloadRequest(
            _graph(each.network, each.length),
            each.batch,
            Cluster(
                catalog.resolve(each.device).spec.name,
                precision=each.precision,
                channels_last=each.channels_last,
                graph_launch=each.source in _GRAPH_LAUNCHES,
            ),
            forward_only=each.forward,
        )
        for each in published
    ]
    answers = model.predict(requests)
    passes = model.predict([replace(each, forward_only=True) for each in requests])
    ratio, inside = np.zeros(len(published)), np.zeros(len(published), dtype=bool)
    rows_of: dict[tuple[str, str], list[int]] = {}
    for row, (each, request, found, forward) in enumerate(zip(published, requests, answers, passes, strict=True)):
        unit = (request.tokens or 0) if each.network.startswith(("GPT", "Llama")) else each.batch
        longer = 1 + each.again * forward.seconds / found.seconds
        ratio[row] = unit / (longer * found.seconds) / each.rate
        inside[row] = unit / (longer * found.high_s) <= each.rate <= unit / (longer * found.low_s)
        what = f"{each.network.split(',')[0]}{', forward' if each.forward else ''}"
        rows_of.setdefault((what, each.device), []).append(row)
    named = np.array([each.network != _NOT_NAMED for each in published])
    far = _count_far(ratio[named])
    near = _share_near(ratio[named])
    bar(
        args,
        "published rates of well-known networks",
        "none off by 2x, 80 % within 30 %",
        f"{far} of {named.sum()} off by 2x, {percent(near)} within 30 %, inside {percent(float(inside[named].mean()))}",
        met=not far and near >= 0.8,
    )
    torch = named & np.array([each.source not in _OTHER_FRAMEWORKS for each in published])
    of_range = _compare_with_range(published, ratio, torch)
    owners = [(row, other / each.rate) for row, each in enumerate(published) for other in each.others]
    among = np.array([other for _, other in owners])
    modelled = np.array([ratio[row] / other for row, other in owners])
    first = ratio[: len(_FIRST)]
    forward_only = np.array([each.forward for each in published])
    said = (
        f"All {len(ratio)} rates, with Llama-7B, which the bar does not name: {_count_far(ratio)} off by 2x, "
        f"{percent(_share_near(ratio))} within 30 %. PyTorch's {int(torch.sum())} alone, which is what the model was "
        f"fitted on under mixed precision: {_count_far(ratio[torch])} off by 2x, {percent(_share_near(ratio[torch]))} "
        "within 30 %. Beside the range of PyTorch's rates of the same question (network, size, GPU, precision, batch, "
        f"pass), some of which differ by a factor of two: {_count_far(of_range)} off by 2x, "
        f"{percent(_share_near(of_range))} within 30 %. "
        f"Of {int((~forward_only).sum())} training steps {percent(_share_near(ratio[~forward_only]))} are within 30 %, "
        f"{_count_far(ratio[~forward_only])} off by 2x; of {int(forward_only.sum())} forward passes "
        f"{percent(_share_near(ratio[forward_only]))}, {_count_far(ratio[forward_only])} off by 2x. "
        f"The {len(_FIRST)} rates found first: {_count_far(first)} off by 2x, {percent(_share_near(first))} within "
        f"30 %; the {len(_LATER)} of 2026-11-28: {_count_far(ratio[len(_FIRST) :])} off by 2x, "
        f"{percent(_share_near(ratio[len(_FIRST) :]))} within 30 %. *Others*: {len(among)} further rates of the same "
        "networks, GPUs, precisions and passes, of other frameworks, compiled, of another year or host, compared with "
        f"the same answers. {percent(_share_near(among))} of them are within 30 % of the rate beside which they "
        "stand: what a model would reach that knew those exactly. Of this one's answers "
        f"{percent(_share_near(modelled))} are within 30 % of them, {_count_far(modelled)} off by 2x."
    )
    rows = [
        (*of, str(len(some)), _span(ratio[some]), percent(_share_near(ratio[some])),
         _span(np.array([other for row, other in owners if row in some])))
        for of, some in rows_of.items()
    ]  # fmt: skip
    columns = ("network", "GPU", "rates", "model / published", "within 30 %", "others / published")
    return ["## Published rates", "", _SAID, "", said, "", *table(columns, rows)]


def _compare_with_range(
    published: Sequence[Published], ratio: npt.NDArray[np.float64], chosen: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Return answers over the nearest rate between the least and the largest of their question, of the chosen ones."""
    rates: dict[tuple[object, ...], list[float]] = {}
    some = [each for each, taken in zip(published, chosen, strict=True) if taken]
    for each in some:
        rates.setdefault(each.question, []).append(each.rate)
    answers = ratio[chosen] * np.array([each.rate for each in some])
    ends = np.array([(min(rates[each.question]), max(rates[each.question])) for each in some])
    compared: npt.NDArray[np.float64] = answers / np.clip(answers, ends[:, 0], ends[:, 1])
    return compared


def _count_far(ratio: npt.NDArray[np.float64]) -> int:
    return int((np.abs(np.log(ratio)) > np.log(2)).sum())


def _share_near(ratio: npt.NDArray[np.float64]) -> float:
    return float((np.abs(ratio - 1) <= 0.3).mean())


def _span(ratio: npt.NDArray[np.float64]) -> str:
    return " to ".join(f"{each:.2f}" for each in sorted({ratio.min(), ratio.max()})) if len(ratio) else ""


@functools.cache
def _graph(network: str, length: int) -> WorkloadGraph:
    if network == "ResNet-50":
        return zoo.load("resnet50")
    if network in _CONFIGURATIONS:
        return from_config(_CONFIGURATIONS[network], sequence_length=length, name=network)
    return _traced()[network, length]


@functools.cache
def _traced() -> dict[tuple[str, int], WorkloadGraph]:
    with lzma.open(_GRAPHS, "rt", encoding="utf-8") as file:
        held = [json.loads(line) for line in file]
    return {(each["name"], each["length"]): load_graph(json.dumps(each["graph"])) for each in held}


def _write_graphs() -> None:
    """Read Stable Diffusion's U-Nets and ViT-B/16 where torch, diffusers and timm are, with ``TIMM_FUSED_ATTN=0``."""
    import diffusers
    import torch
    from torchvision_networks import torchvision_models

    torchvision_models()  # timm imports torchvision, which wants this first
    import timm

    from gpusonde.predictor.workload.graph.torch import export, from_torch

    blocks = {"cross_attention_dim": 768, "attention_head_dim": 8}
    second = {"cross_attention_dim": 1024, "attention_head_dim": (5, 10, 20, 20), "use_linear_projection": True}
    nets = {
        ("SD 1 U-Net", 512): blocks,
        ("SD 1 U-Net, separate", 512): blocks,
        ("SD 2 U-Net", 256): second,
        ("SD 2 U-Net", 512): second,
    }
    with lzma.open(_GRAPHS, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as out:
        for (name, size), options in nets.items():
            module = export.build(functools.partial(diffusers.UNet2DConditionModel, **options))
            if name.endswith("separate"):
                module.set_default_attn_processor()
            side = size // 8
            inputs = (((4, side, side), "float32"), ((), "int64"), ((77, options["cross_attention_dim"]), "float32"))
            _write(out, name, size, from_torch(module, export.example(inputs, 1), name=name))
        for size in (224, 384):
            module = export.build(functools.partial(timm.create_model, f"vit_base_patch16_{size}"))
            _write(out, "ViT-B/16", size, from_torch(module, torch.empty(1, 3, size, size, device="meta")))


def _write(out: TextIO, name: str, length: int, graph: WorkloadGraph) -> None:
    held = {"name": name, "length": length, "graph": json.loads(dump_graph(graph))}
    out.write(json.dumps(held, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    _write_graphs()
