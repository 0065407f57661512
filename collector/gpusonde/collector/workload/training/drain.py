"""``drain``: trains what waits in a queue; for the process that has torch."""

from __future__ import annotations

from collections.abc import Callable, Collection

from gpusonde.collector.workload.training.queue import Training, TrainingQueue

# Called with the steps done and all steps.
Progress = Callable[[int, int], None]
# A dataset type, where to report progress -> SHA-256 of the encoder that came of it.
Train = Callable[[str, Progress], str]


class CannotTrainError(Exception):
    """A training that cannot be, for example because there are no data of its type; the text is its reason."""


def drain(
    queue: TrainingQueue,
    train: Train,
    ended: Callable[[Training], None] = lambda _: None,
    dataset_types: Collection[str] | None = None,
) -> int:
    """Train until nothing waits any more.

    Whatever goes wrong with a training is its reason, and the next one follows. What ends the process (a signal) leaves
    the training queued.

    Args:
        queue: The queue.
        train: Trains one encoder and puts it where the collector finds it.
        ended: Called with each training that has ended.
        dataset_types: Those that there are data for; others go on waiting. None for any.

    Returns:
        How many came to a good end.

    Raises:
        TrainingQueueError: The queue cannot be used.
    """
    count = 0
    while claim := queue.claim(dataset_types):
        with claim:
            try:
                claim.done(train(claim.training.dataset_type, claim.progress))
            except CannotTrainError as error:
                claim.failed(str(error))
            except Exception as error:  # its reason is for whoever asks; the others wait
                claim.failed(f"{type(error).__name__}: {error}")
        count += claim.training.state == "done"
        ended(claim.training)
    return count
