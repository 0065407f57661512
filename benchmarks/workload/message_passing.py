"""Batched message passing against the equations node by node, and what it costs."""

from __future__ import annotations

import argparse
import importlib.util
import random
import textwrap
import time
from collections.abc import Sequence

import numpy as np
from page import bar
from sequential_encoder import embed_in_sequence

from gpusonde.predictor.workload import zoo
from gpusonde.predictor.workload.embedding import Encoder, EncoderDescription, EncoderWeights, VirtualEdgeRule
from gpusonde.predictor.workload.graph import Operation, Primitive, WorkloadGraph

_BAR = 1e-5
_SHAPES = ((), (16,), (10, 64), (64, 3, 3, 3), (64, 1, 5, 5), (2048, 512, 1, 1))
_RULES = {VirtualEdgeRule.PAPER: "Eq. 4, 1 < s", VirtualEdgeRule.PUBLISHED_CODE: "published code, 1 <= s"}


def section(args: argparse.Namespace) -> list[str]:
    """Lines of the section, bars noted in ``args``."""
    generator = random.Random(0)
    drawn = [_random_graph(generator, number) for number in range(20 if args.quick else 200)]
    known = [zoo.load(name) for name in zoo.names()]
    known = known[::10] if args.quick else known
    rows, worst = [], 0.0
    for title, graphs in (("random graphs", drawn), ("networks of the zoo", known)):
        for rule, said in _RULES.items():
            weights = EncoderWeights.random(0, EncoderDescription(virtual_edges=rule))
            row, difference = _compared(title, said, graphs, weights)
            rows.append(row)
            worst = max(worst, difference)
    bar(args, "batched message passing = the sequential equations", "<= 1e-5", f"{worst:.1e}", met=worst <= _BAR)
    nodes = [len(graph.operations) for graph in known]
    by_torch = ", ".join(dict.fromkeys(row[4] for row in rows))
    *_, node_by_node, batched, single = rows[len(_RULES)]
    said = (
        f"Embeddings of untrained encoders of {len(drawn)} random graphs and the {len(known)} networks of the zoo "
        f"({min(nodes)} to {max(nodes)} operations, {np.mean(nodes):.0f} on average), by "
        f"{' and '.join(_RULES.values())}: by the batched traversal and by the equations as written. Differences of "
        f"the encoder that training uses, in single precision: {by_torch}. A network of the zoo takes {batched} of CPU "
        f"time, one at a time {single}, node by node {node_by_node}."
    )
    return ["## Message passing", "", *textwrap.wrap(said, 118), ""]


def _compared(
    title: str, rule: str, graphs: Sequence[WorkloadGraph], weights: EncoderWeights
) -> tuple[tuple[str, ...], float]:
    encoder = Encoder(weights)
    encoder.embed(graphs[:1])
    started = time.process_time()
    batched = encoder.embed(graphs)
    batched_s = time.process_time() - started
    started = time.process_time()
    for graph in graphs:
        encoder.embed([graph])
    single_s = time.process_time() - started
    started = time.process_time()
    sequential = np.array([embed_in_sequence(encoder, graph) for graph in graphs])
    sequential_s = time.process_time() - started
    difference = float(np.abs(batched - sequential).max())
    times = [f"{1e3 * seconds / len(graphs):.1f} ms" for seconds in (sequential_s, batched_s, single_s)]
    return (title, rule, str(len(graphs)), f"{difference:.1e}", _torch(graphs, weights, batched), *times), difference


def _torch(graphs: Sequence[WorkloadGraph], weights: EncoderWeights, expected: np.ndarray) -> str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    from gpusonde.predictor.workload.training.hypernetwork import TorchEncoder

    twin = TorchEncoder(weights)
    worst = 0.0
    with torch.no_grad():
        for graph, embedding in zip(graphs, expected, strict=True):
            found = twin([twin.structure(graph)]).mean(0).numpy()
            worst = max(worst, float(np.abs(found - embedding).max()))
    return f"{worst:.1e}"


def _random_graph(generator: random.Random, number: int) -> WorkloadGraph:
    """A graph of 1 to 80 operations, each of which reads up to three earlier ones."""
    count = generator.randint(1, 80)
    operations = tuple(
        Operation(generator.choice(list(Primitive)), f"operation_{position}", (1, 8), weight=generator.choice(_SHAPES))
        for position in range(count)
    )
    edges = {
        (generator.randrange(max(0, reader - 8), reader), reader)
        for reader in range(1, count)
        for _ in range(generator.randint(0, 3))
    }
    return WorkloadGraph(f"random {number}", operations, tuple(sorted(edges)), 1)
