"""Gradients of uneven batches, weighted so that the result is that of one process with the whole batch.

torch's DistributedDataParallel divides the sum of all gradients by the number of ranks. With a loss that is the mean
over a rank's samples, a sample of a small batch then counts for more than one of a large batch. Weighting the
gradient of rank ``i`` with ``batch_i / global batch`` instead makes every sample count the same (Srifty, section 5).
Scaling the loss by batch * world / global batch gives the same sums but changes the loss that users log.
"""

# Without postponed annotations: torch compares those of a communication hook with its types.
import torch
import torch.distributed as dist


class GradientReweighting:
    """Weights the gradients of a DistributedDataParallel module by the samples that each rank has.

    ::

        model = DistributedDataParallel(network)
        reweighting = GradientReweighting(model)
        for batch, target in loader:
            reweighting.begin_step(len(batch))
            loss(model(batch), target).backward()  # a mean over the batch
            optimizer.step()

    It takes the module's communication hook; the exchange still overlaps with the backward pass. A rank without samples
    takes part with a gradient of zeros, whatever its loss was. Gradients gathered over several backward passes
    (``no_sync``) need a loss that is the sum over a pass divided by the samples of all of the rank's passes, and that
    number here, once, before the last of them.

    Args:
        model: The DistributedDataParallel module, on every rank.
    """

    def __init__(self, model: torch.nn.parallel.DistributedDataParallel) -> None:
        self._group = model.process_group
        self._device = next(model.parameters()).device
        self._weight: float | None = None
        model.register_comm_hook(self, _exchange)

    def begin_step(self, local_batch_size: int, global_batch_size: int | None = None) -> None:
        """Say how many samples the next backward pass has.

        Args:
            local_batch_size: Samples of this rank, 0 or more.
            global_batch_size: Samples of all ranks. None asks the other ranks, which then must ask as well: one
                allreduce of a single number, worth saving where batch sizes never change.

        Raises:
            ValueError: No samples at all, a negative number, or more here than in all.
        """
        if local_batch_size < 0:
            raise ValueError(f"a batch has 0 samples or more, not {local_batch_size}")
        if global_batch_size is None:
            count = torch.tensor([local_batch_size], dtype=torch.int64, device=self._device)
            dist.all_reduce(count, group=self._group)
            global_batch_size = int(count.item())
        if global_batch_size < max(1, local_batch_size):
            raise ValueError(f"{local_batch_size} samples of a rank do not fit into {global_batch_size} of all ranks")
        self._weight = local_batch_size / global_batch_size

    @property
    def weight(self) -> float:
        """Weight of this rank's gradients in the next exchange.

        Raises:
            RuntimeError: ``begin_step`` has not been called since the last exchange.
        """
        if self._weight is None:
            raise RuntimeError("call begin_step with the size of the batch before every backward pass that exchanges")
        return self._weight

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Weight a bucket and add it up over the ranks; torch calls this as soon as the bucket is ready."""
        gradients, weight = bucket.buffer(), self.weight
        if weight == 0:
            # The mean over no samples is NaN, and NaN times zero still is.
            gradients.zero_()
        else:
            gradients.mul_(weight)
        if bucket.is_last():
            # A batch whose size nobody told must not pass for one like the last.
            self._weight = None
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        return work.get_future().then(_first_value)


def _exchange(state: GradientReweighting, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return state.exchange(bucket)


def _first_value(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]
