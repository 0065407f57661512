"""``DataParallelModel``: steps of networks on several GPUs, a process for each, from steps on one.

What nobody measured with several processes is put together: the step on one GPU as the model of graphs has it, and the
exchange of the graph's own gradients over the links that the cluster has, behind the backward pass as far as it fits
there. Over ``DataParallelModel.predict`` go the command, and a collector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from gpusonde.catalog import GpuCatalog, Offer, Precision, load_gpus, load_offers
from gpusonde.errors import MeasurementError, ModelError
from gpusonde.predictor.workload.engine import Parallelism, WorkloadModel, WorkloadPrediction, WorkloadRequest
from gpusonde.predictor.workload.engine.encoders import EncoderReference
from gpusonde.predictor.workload.engine.memory import StepMemory
from gpusonde.predictor.workload.engine.model import note_memory
from gpusonde.simulator.gradients import DEFAULT_BUCKET_BYTES
from gpusonde.simulator.links import (
    NVSWITCH,
    PCIE,
    RatedLink,
    RatedNetwork,
    inner_link,
    outer_link,
    pcie_bytes_per_second,
)
from gpusonde.simulator.parallel import JOB_LOG_SPREAD, NORMAL_90, Placement, find_too_many, measure_step

_HALF = (Precision.FP16, Precision.BF16)


class DataParallelModel:
    """A model of times from graphs that also knows jobs of a process per GPU.

    Args:
        model: The model. What it was fitted to with several processes it answers by itself.
        gpus: Where its devices are.
    """

    def __init__(self, model: WorkloadModel, gpus: GpuCatalog | None = None) -> None:
        self.model = model
        self._given = gpus

    @cached_property
    def _gpus(self) -> GpuCatalog:
        return self._given or load_gpus()

    @cached_property
    def _offers(self) -> tuple[Offer, ...]:
        return load_offers().all

    @property
    def encoder(self) -> EncoderReference | None:
        """The model's."""
        return self.model.encoder

    def predict(self, requests: Sequence[WorkloadRequest], *, regressor: str | None = None) -> list[WorkloadPrediction]:
        """Predict steps; arguments, order and errors are those of ``WorkloadModel.predict``.

        Raises:
            ModelError: Also for links that such GPUs do not have, and for more of them in a host than machines hold.
        """
        apart = [row for row, each in enumerate(requests) if self._is_new(each)]
        asked = list(requests)
        for row in apart:
            alone = replace(
                requests[row].cluster, device_count=1, node_count=1, parallelism=Parallelism.NONE,
                link="", network_bytes_per_second=0.0,
            )  # fmt: skip
            asked[row] = replace(requests[row], cluster=alone)
        found = self.model.predict(asked, regressor=regressor)
        for row in apart:
            found[row] = self._exchange(requests[row], asked[row], found[row])
        return found

    def _is_new(self, request: WorkloadRequest) -> bool:
        cluster = request.cluster
        measured = Parallelism.DISTRIBUTED.value in self.model.state.ood_detector.parallelisms
        return cluster.device_count > 1 and cluster.parallelism is Parallelism.DISTRIBUTED and not measured

    def _exchange(
        self, request: WorkloadRequest, alone: WorkloadRequest, single: WorkloadPrediction
    ) -> WorkloadPrediction:
        cluster, gpu = request.cluster, self._gpus.get(request.cluster.device)
        try:
            placement = Placement(
                gpu, cluster.device_count, cluster.node_count, cluster.link, cluster.network_bytes_per_second
            )
        except MeasurementError as error:
            raise ModelError(str(error)) from None
        # Hosts that somebody has hold what they hold.
        if cluster.host is None and (problem := find_too_many(placement, self._offers)):
            raise ModelError(problem)
        width = 2 if cluster.precision in _HALF else 4
        gradients = width * request.graph.parameter_count
        bus = _network(placement).bus_bandwidth([float(DEFAULT_BUCKET_BYTES)], placement.gpu_count)
        ratio = placement.traffic_share * gradients / float(bus.bytes_per_second[0]) / single.seconds
        off = math.exp(NORMAL_90 * float(bus.log_spread[0]))
        low, step, high = measure_step(np.array([ratio / off, ratio, ratio * off])).tolist()
        half_width = math.hypot(
            math.log(single.high_s / single.low_s) / 2, math.log(high / low) / 2, NORMAL_90 * JOB_LOG_SPREAD
        )
        seconds = single.seconds * step
        counted = StepMemory.of(request.graph, cluster.precision, request.optimizer, buckets=True)
        memory = counted.fit(request.batch_size, gpu.memory_bytes)
        without = note_memory(alone, single.memory) if single.memory is not None else []
        reasons = [each for each in single.reasons if each not in without]
        # Hundreds of answers have few such words, so that they become one note each.
        where = f"{placement.inner_link} inside of a host" if placement.gpus_per_host > 1 else ""
        told = "" if cluster.network_bytes_per_second else ", which is assumed"
        network = f"{8 * placement.host_network / 1e9:.4g} Gbit/s between hosts{told}" if cluster.node_count > 1 else ""
        links = " and ".join(filter(None, (where, network)))
        reasons.append(
            f"nothing was measured with a process per GPU: the exchange of gradients is simulated, by {links}"
        )
        return replace(
            single,
            seconds=seconds,
            low_s=seconds * math.exp(-half_width),
            high_s=seconds * math.exp(half_width),
            out_of_distribution=True,
            reasons=(*reasons, *note_memory(request, memory)),
            memory=memory,
            communication_ratio=1 - 1 / step,
        )


def _network(placement: Placement) -> RatedNetwork:
    """Return the links of a placement as such links were measured elsewhere."""
    gpu, inside = placement.gpu, inner_link(placement.gpu)
    if placement.link == "pcie":
        inside = RatedLink(PCIE, pcie_bytes_per_second(gpu))
    elif placement.link and inside.kind is PCIE:
        inside = RatedLink(NVSWITCH, (gpu.nvlink_bytes_per_second or 0.0) / 2)
    between = outer_link(placement.host_network) if placement.host_count > 1 else None
    return RatedNetwork(inside, placement.gpus_per_host, between)
