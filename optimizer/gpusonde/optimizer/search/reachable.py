"""Which world sizes reach the global batch at all: arithmetic without prices, for all world sizes at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gpusonde.optimizer.search.space import Options

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Tables of more entries than this are not made.
_MOST_ENTRIES = 64_000_000


def reachable_worlds(
    options: Sequence[Options],
    counts: Sequence[int],
    world_sizes: IntArray,
    samples: int,
    check_time: Callable[[], None],
) -> BoolArray:
    """Return for which world sizes some machines make exactly that many GPUs and samples, shape of ``world_sizes``.

    Args:
        options: Of every offer.
        counts: How many of them, from the first on, may be taken.
        world_sizes: Ascending.
        samples: The global batch, in units.
        check_time: Called now and then.

    Returns:
        All true where the tables would be too large to find out.
    """
    unit = math.gcd(*(each.offer.devices for each in options))
    most = int(world_sizes[-1]) // unit
    if (most + 1) * (samples + 1) > _MOST_ENTRIES:
        return np.ones(world_sizes.shape, dtype=np.bool_)
    table = np.zeros((most + 1, samples + 1), dtype=np.bool_)
    table[0, 0] = True
    for each, count in zip(options, counts, strict=True):
        with_offer = table.copy()
        for batch in np.unique(each.batch_sizes[:count]).tolist():
            check_time()
            first = int(np.flatnonzero(each.batch_sizes[:count] == batch)[0])
            devices = each.offer.devices // unit
            per_machine = int(each.samples[first] // each.machines[first])
            machines = int(each.machines[:count][each.batch_sizes[:count] == batch].max())
            left, step, reached = min(machines, most // devices, samples // per_machine), 1, table
            # Doubling reaches every number of machines up to the most.
            while left > 0:
                taken = min(step, left)
                more, more_samples = taken * devices, taken * per_machine
                reached = reached.copy()
                reached[more:, more_samples:] |= reached[: most + 1 - more, : samples + 1 - more_samples].copy()
                left -= taken
                step *= 2
            with_offer |= reached
        table = with_offer
    return np.asarray(table[world_sizes // unit, samples])
