"""``Controller``: the parts that answer questions about workloads, put together from the configuration."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import Executor
from pathlib import Path

from gpusonde.catalog import load_gpus
from gpusonde.collector.config import CollectorConfig
from gpusonde.collector.counters import CollectorCounters
from gpusonde.collector.ingest.agents import Agents
from gpusonde.collector.storage.store import Store
from gpusonde.collector.workers.pool import PoolOptions, Purpose
from gpusonde.collector.workload.checker import TaskChecker
from gpusonde.collector.workload.hosts.describer import ClusterDescriber
from gpusonde.collector.workload.hosts.resources import ResourceCollector
from gpusonde.collector.workload.processes import PURPOSE, WorkloadProcesses
from gpusonde.collector.workload.service import WorkloadOptions, WorkloadService
from gpusonde.collector.workload.training.queue import TrainingQueue
from gpusonde.collector.workload.training.trainings import Trainings, has_torch, trainer_command
from gpusonde.predictor.workload.embedding.registry import Registry


class Controller:
    """Owns those parts.

    Args:
        config: The configuration at the start.
        store: Where hosts, GPUs and samples are.
        agents: The streams that say what hosts are doing.
        executor: Runs what blocks.
        counters: Where answers and refusals are counted.
        purpose: What answers in the processes.

    Attributes:
        service: Answers over gRPC.
    """

    def __init__(
        self,
        config: CollectorConfig,
        store: Store,
        agents: Agents,
        executor: Executor,
        counters: CollectorCounters,
        purpose: Purpose = PURPOSE,
    ) -> None:
        self._config = config
        self._executor = executor
        gpus = load_gpus()
        resources = ResourceCollector(store, agents.sessions, gpus)
        self._processes = WorkloadProcesses(pool_options(config), purpose)
        queue = TrainingQueue(config.trainings, config.workload.max_trainings)
        self._trainings = Trainings(queue, self._trainer_command, counters.trainings)
        self.service = WorkloadService(
            self._processes,
            TaskChecker(gpus),
            resources,
            ClusterDescriber(resources, store),
            self._trainings,
            functools.cache(lambda: Registry(config.embeddings)),
            executor,
            lambda: workload_options(self._config),
            counters,
        )
        counters.workload_waiting = lambda: self._processes.waiting

    async def check_model(self, config: CollectorConfig) -> None:
        """Read the model that a configuration names, with the encoder that it may need.

        Raises:
            MissingEncoderError: Its encoder is not in the folder of the encoders.
            ModelFileError: It cannot be used.
            OSError: It cannot be read.
        """
        options = workload_options(config)
        if options.model:
            await asyncio.get_running_loop().run_in_executor(self._executor, _check, options)

    def configure(self, config: CollectorConfig) -> None:
        """Set other bounds, from the next question on."""
        self._config = config
        self._processes.configure(pool_options(config))
        self._trainings.wake()

    async def run(self) -> None:
        """Look after the queue of trainings until cancelled."""
        await self._trainings.run()

    async def close(self) -> None:
        """End the processes that answer."""
        await self._processes.close()

    def _trainer_command(self, dataset_type: str) -> tuple[str, ...] | None:
        config = self._config
        if not config.workload.train or not has_torch():
            return None
        datasets = config.workload.datasets
        folder = Path(datasets).expanduser() if datasets else None
        return trainer_command(dataset_type, config.trainings, config.embeddings, folder)


def _check(options: WorkloadOptions) -> None:
    # It brings what computes models, which this process does not need otherwise.
    from gpusonde.collector.workload.parts import load_model  # noqa: PLC0415

    load_model(options.model, options.embeddings)


def pool_options(config: CollectorConfig) -> PoolOptions:
    """Bounds of the processes."""
    workload = config.workload
    return PoolOptions(
        processes=workload.processes,
        waiting=workload.max_waiting,
        time_limit_s=workload.time_limit_s,
        memory_bytes=workload.memory_bytes,
    )


def workload_options(config: CollectorConfig) -> WorkloadOptions:
    """What is taken, and where things lie."""
    workload = config.workload
    return WorkloadOptions(
        max_request_bytes=workload.max_request_bytes,
        max_questions=workload.max_questions,
        max_operations=workload.max_operations,
        graph_time_limit_s=workload.graph_time_limit_s,
        model=str(Path(workload.model).expanduser()) if workload.model else "",
        embeddings=config.embeddings,
    )
