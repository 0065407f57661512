"""What processes of ``multiprocessing`` do in tests.

They find this module by its name, but modules of tests only where pytest was begun as ``python -m pytest``.
"""

from __future__ import annotations

import os


def add_again_and_again(folder, encoders, ready):
    """Add encoders to a registry ten times over, once ``ready`` is set."""
    from gpusonde.predictor.workload.embedding.registry import Registry

    ready.set()
    for encoder in encoders * 10:
        Registry(folder).add(encoder)


def train_all(directory, names):
    """Ask for trainings, do those that no other process has begun, and return their names."""
    from gpusonde.collector.workload.training import drain
    from gpusonde.collector.workload.training_queue import TrainingQueue

    queue = TrainingQueue(directory, largest=100)
    for name in names:
        queue.enqueue_if_absent(name)
    begun = []
    drain(queue, lambda name, _: begun.append(name) or "00")
    return begun


def probe_as_rank(rank, world_size, port, grid, answers):
    """Put the rank and what it measured, or why it did not, into ``answers``."""
    from gpusonde.errors import MeasurementError
    from gpusonde.simulator.instrument.allreduce_probe import Rendezvous, probe_allreduce

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rendezvous = Rendezvous(rank, world_size, f"127.0.0.1:{port}")
    try:
        found = probe_allreduce(
            "loopback", grid, rendezvous=rendezvous, backend="gloo", timeout_s=60, clock=lambda: 1234.0
        )
    except MeasurementError as error:
        found = str(error)
    answers.put((rank, found))
