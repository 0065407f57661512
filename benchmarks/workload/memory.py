"""Largest batches that fit, by the graph alone against torch's own count of what a training step holds.

torch's count is ``torch.distributed._tools.MemTracker`` over two steps of forward pass, loss, backward pass and a real
optimizer, with fake tensors: every tensor that PyTorch makes, none of them filled. Between two or three batch sizes it
is taken for a line, and where that meets the memory is the largest batch. Autocast is that of CUDA by its lists of
functions.

Set aside before anything was counted: every network of ``_SET_ASIDE``. Rules were looked at with ``_LOOKED_AT`` only;
``llama_1b`` was set aside until what it keeps of rotations and hand-made norms was mended; ``qwen2_500m`` took its
place.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from page import NotRunError, bar, table

from gpusonde.catalog import Precision, load_gpus
from gpusonde.predictor.workload.engine.memory import Optimizer, StepMemory, usable_bytes

_LOOKED_AT = ("resnet50", "vgg16", "mobilenet_v3_large", "vit_b_16", "gpt2", "llama_1b")
_SET_ASIDE = (
    "resnet152", "densenet121", "efficientnet_b0", "convnext_tiny", "swin_t", "regnet_y_8gf", "shufflenet_v2_x1_0",
    "inception_v3", "vit_l_16", "bert_base_128", "bert_base_512", "bert_large_512", "opt_350m", "qwen2_500m",
)  # fmt: skip
_QUICK = ("efficientnet_b0", "swin_t", "densenet121", "bert_base_512", "bert_large_512", "llama_1b", "qwen2_500m")
_GPUS = ("T4", "A100-SXM4-40GB", "H100-SXM5-80GB")
_IMAGES = ((Precision.FP32, Optimizer.MOMENTUM), (Precision.MIXED, Optimizer.MOMENTUM))
_TEXT = ((Precision.FP32, Optimizer.ADAMW), (Precision.MIXED, Optimizer.ADAMW), (Precision.BF16, Optimizer.ADAMW))
# A batch of few samples has its peak where gradients are, one of many where activations are.
_IMAGE_BATCHES, _TEXT_BATCHES = (16, 64), (2, 8, 64)
_WITHIN = 1.25
# Below, a batch of one more or less is a larger share than that.
_FEW = 4
# What CUDA's autocast computes in single precision, of that what training uses.
_SINGLE = (
    "layer_norm", "group_norm", "rms_norm", "softmax", "log_softmax", "cross_entropy", "nll_loss", "pow", "rsqrt",
    "exp", "log", "softplus", "cumsum", "sum", "prod", "norm",
)  # fmt: skip
_SAID = (
    "Largest batch per GPU of {gpus}, by the graph and by torch's own count of every tensor of two training steps "
    "(`MemTracker` on fake tensors, loss and optimizer included). Rules were looked at with {looked} only; *set aside* "
    "are all others, named before. Images with momentum, text with AdamW. *Off*: the larger over the smaller; where "
    "torch's count lets fewer than {few} fit, a difference of one is none."
)


@dataclass(frozen=True)
class Case:
    """One network in one precision.

    Attributes:
        network: Its name.
        precision: Of the step.
        ratios: Batch by the graph over batch by torch, of the GPUs on which one fits.
        batches: Both, on the first GPU.
    """

    network: str
    precision: Precision
    ratios: tuple[float, ...]
    batches: tuple[int, int]

    @property
    def off(self) -> float:
        """The larger over the smaller, of the worst GPU."""
        return max((max(each, 1 / each) for each in self.ratios), default=1.0)


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``.

    Raises:
        NotRunError: torch, torchvision or transformers is missing.
    """
    try:
        import torch
        import transformers  # noqa: F401
        from torchvision_networks import torchvision_models

        torchvision_models()
    except ModuleNotFoundError as error:
        raise NotRunError(f"needs {error.name}, which is not installed here") from error
    torch.set_num_threads(1)
    cases = [case for name in (_QUICK if args.quick else (*_LOOKED_AT, *_SET_ASIDE)) for case in compare(name)]
    aside = [case for case in cases if case.network not in _LOOKED_AT]
    good = sum(case.off <= _WITHIN for case in aside)
    bar(args, "largest batch that fits, networks set aside", f"within {_WITHIN - 1:.0%}",
        f"{good} of {len(aside)}, median {statistics.median(case.off for case in aside) - 1:.0%} off, "
        f"worst {max(case.off for case in aside) - 1:.0%}", met=good == len(aside))  # fmt: skip
    of_network: dict[str, list[Case]] = {}
    for case in cases:
        of_network.setdefault(case.network + (" (looked at)" if case.network in _LOOKED_AT else ""), []).append(case)
    rows = [
        (name, *("; ".join(map(cell, some)) for cell in (_precision, _batches, _off)))
        for name, some in of_network.items()
    ]
    said = _SAID.format(gpus=", ".join(_GPUS), looked=", ".join(_LOOKED_AT), few=_FEW)
    columns = ("network", "precisions", f"batch on {_GPUS[0]}, graph/torch", "off, worst GPU")
    return ["## Memory", "", said, "", *table(columns, rows)]


def _precision(case: Case) -> str:
    return case.precision.value


def _batches(case: Case) -> str:
    return f"{case.batches[0]}/{case.batches[1]}"


def _off(case: Case) -> str:
    return f"{case.off - 1:.0%}"


def compare(name: str) -> Iterator[Case]:
    """Count one network both ways, in all of its precisions."""
    from gpusonde.predictor.workload.graph.torch import from_torch

    make, example, is_text = _network(name)
    graph = from_torch(make(), example(1), name=name)
    gpus = [load_gpus().get(each) for each in _GPUS]
    sizes = _TEXT_BATCHES if is_text else _IMAGE_BATCHES
    for precision, optimizer in _TEXT if is_text else _IMAGES:
        counted = StepMemory.of(graph, precision, optimizer)
        peaks = {size: count_by_torch(make(), example(size), precision, optimizer) for size in sizes}
        found = [
            (counted.largest_batch(gpu.memory_bytes), _largest_batch(peaks, usable_bytes(gpu.memory_bytes)))
            for gpu in gpus
        ]
        ratios = [_ratio(*each) for each in found if each != (0, 0)]
        yield Case(name, precision, tuple(ratios), found[0])


def _largest_batch(peaks: Mapping[int, float], usable: float) -> int:
    """Return where the lines through the peaks of batch sizes meet the memory; peaks never fall."""
    lines = list(itertools.pairwise(peaks.items()))
    (low, least), (high, most) = next((line for line in lines if usable < line[1][1]), lines[-1])
    return max(0, math.floor(low + (usable - least) / max((most - least) / (high - low), 1.0)))


def _ratio(mine: int, theirs: int) -> float:
    if theirs < _FEW and abs(mine - theirs) <= 1:
        return 1.0
    return max(mine, 0.5) / max(theirs, 0.5)


def _network(name: str) -> tuple[Callable[[], Any], Callable[[int], Any], bool]:
    """Return what makes a network on the meta device and its inputs, and whether these are text."""
    import torch
    from torchvision_networks import build, image_size

    if name not in _TEXTS:
        side = image_size(name)

        def build_to_train() -> Any:
            keywords = {"aux_logits": False} if name == "inception_v3" else {}
            return build(name, **keywords).train()

        return build_to_train, lambda size: torch.empty(size, 3, side, side, device="meta"), False
    length, settings = _TEXTS[name]

    def build_text() -> Any:
        import transformers

        kind, config = settings
        with torch.device("meta"):
            return getattr(transformers, kind[0])._from_config(getattr(transformers, kind[1])(**config)).train()

    return build_text, lambda size: torch.empty(size, length, dtype=torch.int64, device="meta"), True


# As the networks' authors publish their configurations.
_BERT = ("BertForMaskedLM", "BertConfig")
_NO_DROPOUT = {"attention_probs_dropout_prob": 0.0}
_TEXTS: dict[str, tuple[int, tuple[tuple[str, str], dict[str, Any]]]] = {
    "bert_base_128": (128, (_BERT, _NO_DROPOUT)),
    "bert_base_512": (512, (_BERT, _NO_DROPOUT)),
    "bert_large_512": (
        512,
        (_BERT, _NO_DROPOUT | {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                               "intermediate_size": 4096}),
    ),
    "gpt2": (1024, (("GPT2LMHeadModel", "GPT2Config"), {"attn_pdrop": 0.0, "use_cache": False})),
    "opt_350m": (
        1024,
        (("OPTForCausalLM", "OPTConfig"),
         {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
          "word_embed_proj_dim": 512, "do_layer_norm_before": False, "use_cache": False}),
    ),
    "qwen2_500m": (
        2048,
        (("Qwen2ForCausalLM", "Qwen2Config"),
         {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
          "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True, "use_cache": False}),
    ),
    "llama_1b": (
        2048,
        (("LlamaForCausalLM", "LlamaConfig"),
         {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
          "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True, "use_cache": False}),
    ),
}  # fmt: skip


def count_by_torch(module: Any, example: Any, precision: Precision, optimizer: Optimizer) -> float:
    """Return the bytes of all tensors at the peak of the second of two training steps."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        _refill(module, torch.bfloat16 if precision is Precision.BF16 else torch.float32)
        inputs = torch.empty(example.shape, dtype=example.dtype)
        update = {
            Optimizer.MOMENTUM: lambda: torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, foreach=True),
            Optimizer.ADAMW: lambda: torch.optim.AdamW(module.parameters(), foreach=True),
        }[optimizer]()
        tracker = MemTracker()
        tracker.track_external(module, update, inputs)
        with tracker:
            for step in range(2):
                with _autocast() if precision is Precision.MIXED else contextlib.nullcontext():
                    found = module(inputs)
                    numbers = getattr(found, "logits", found)
                    flat = numbers.flatten(0, -2)
                    labels = torch.empty(flat.shape[0], dtype=torch.int64)
                    loss = torch.nn.functional.cross_entropy(flat.float(), labels)
                loss.backward()
                update.step()
                update.zero_grad()
                if step == 0:
                    del found, numbers, flat, loss
                    tracker.reset_mod_stats()
        peak = next(iter(tracker.get_tracker_snapshot("peak").values()))
    gc.collect()
    return float(next(amount for kind, amount in peak.items() if str(kind).endswith("Total")))


def _refill(module: Any, dtype: Any) -> None:
    """Give a network of the meta device fake tensors of the processor; what was one tensor stays one."""
    import torch

    made: dict[int, Any] = {}
    for part in module.modules():
        for held in (part._parameters, part._buffers):
            for name, tensor in list(held.items()):
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    kind = dtype if tensor.is_floating_point() else tensor.dtype
                    empty = torch.empty(tensor.shape, dtype=kind)
                    made[id(tensor)] = torch.nn.Parameter(empty) if held is part._parameters else empty
                held[name] = made[id(tensor)]


@contextlib.contextmanager
def _autocast() -> Iterator[None]:
    """Cast as CUDA's autocast does; the processor's leaves normalisations in half precision."""
    import torch
    from torch.overrides import TorchFunctionMode

    class InSingle(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(function, "__name__", "").strip("_") in _SINGLE:
                args = [each.float() if _is_half(each) else each for each in args]
            return function(*args, **(kwargs or {}))

    def _is_half(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16

    with torch.autocast("cpu", dtype=torch.bfloat16), InSingle():
        yield
