"""Uneven batches with re-weighted gradients train as one process with the whole batch does."""

from __future__ import annotations

import pytest
from support.torch_ranks import run_ranks

torch = pytest.importorskip("torch", reason="needs torch (extra torch)")

STEPS = 6


def network(dtype):
    torch.manual_seed(5)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv2d(8, 8, 3, stride=2), torch.nn.Tanh(),
        torch.nn.Flatten(), torch.nn.Linear(72, 40), torch.nn.Tanh(), torch.nn.Linear(40, 10),
    )  # fmt: skip
    return layers.to(dtype)


def batches(sizes, dtype):
    """The batches of all steps; ``sizes`` cycles from rank to rank, so that they change from step to step."""
    generator = torch.Generator().manual_seed(9)
    for step in range(STEPS):
        turned = sizes[step % len(sizes) :] + sizes[: step % len(sizes)]
        samples = torch.randn(sum(sizes), 3, 8, 8, generator=generator, dtype=torch.float64).to(dtype)
        yield turned, samples, torch.randint(0, 10, (sum(sizes),), generator=generator)


def train(model, forward, sizes, dtype, rank=None, begin=lambda local, total: None):
    """Return gradients and weights of every step, flat; ``rank`` None takes the whole batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    states = []
    for turned, samples, targets in batches(sizes, dtype):
        first, size = (0, sum(turned)) if rank is None else (sum(turned[:rank]), turned[rank])
        begin(size, sum(turned))
        optimizer.zero_grad()
        mine = slice(first, first + size)
        torch.nn.functional.cross_entropy(forward(samples[mine]), targets[mine]).backward()
        gradients = torch.cat([each.grad.flatten() for each in model.parameters()])
        optimizer.step()
        states.append((gradients.clone(), torch.cat([each.detach().flatten() for each in model.parameters()])))
    return states


def train_on_rank(rank, sizes, dtype_name, weighted, tell_global):
    from gpusonde.simulator.instrument.reweighting import GradientReweighting

    dtype = getattr(torch, dtype_name)
    model = network(dtype)
    # Small buckets: several exchanges per step, as with a real network.
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
    if not weighted:
        return train(model, parallel, sizes, dtype, rank)
    reweighting = GradientReweighting(parallel)

    def begin(local, total):
        reweighting.begin_step(local, total if tell_global else None)

    return train(model, parallel, sizes, dtype, rank, begin)


def largest_difference(ranks, alone):
    """Largest relative difference of gradients and of weights, over steps and ranks."""
    return max(
        float((got - wanted).norm() / wanted.norm())
        for states in ranks
        for state, single in zip(states, alone, strict=True)
        for got, wanted in zip(state, single, strict=True)
    )


def alone(sizes, dtype_name):
    model = network(getattr(torch, dtype_name))
    return train(model, model, sizes, getattr(torch, dtype_name))


def misuse(rank):
    """The messages that wrong use gets."""
    from gpusonde.simulator.instrument.reweighting import GradientReweighting

    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    reweighting = GradientReweighting(parallel)
    reweighting.begin_step(1)
    parallel(torch.ones(1, 2)).mean().backward()
    messages = []
    with pytest.raises(RuntimeError) as found:
        parallel(torch.ones(1, 2)).mean().backward()
    messages.append(str(found.value))
    for local, total in ((-1, 4), (5, 4), (0, 0)):
        with pytest.raises(ValueError, match="samples") as error:
            reweighting.begin_step(local, total)
        messages.append(str(error.value))
    return messages


def all_on_rank(rank, cases):
    """One start of the processes for all cases: most of a case's time is torch's start."""
    return [train_on_rank(rank, *case) for case in cases], misuse(rank)


# sizes, dtype, weighted, the ranks are told the global batch
CASES = {
    2: [
        ([7, 2], "float64", True, True),
        ([7, 2], "float32", True, False),
        ([6, 0], "float64", True, False),
        ([7, 2], "float64", False, False),
    ],
    3: [([5, 1, 10], "float64", True, False), ([5, 1, 10], "float32", True, True)],
}


@pytest.fixture(scope="module")
def outcome():
    """World size -> for every case the largest relative difference from one process; and the messages."""
    found = {}
    for world_size, cases in CASES.items():
        ranks = run_ranks(world_size, all_on_rank, cases)
        differences = [
            largest_difference([results[place] for results, _ in ranks], alone(sizes, dtype))
            for place, (sizes, dtype, _, _) in enumerate(cases)
        ]
        found[world_size] = (differences, ranks[0][1])
    return found


def test_uneven_batches_train_like_one_process(outcome):
    (double, single, _, _), _ = outcome[2]
    assert double < 1e-12
    assert single < 1e-6


def test_so_do_three_ranks_with_other_batches_in_every_step(outcome):
    (double, single), _ = outcome[3]
    assert double < 1e-12
    assert single < 1e-6


def test_a_rank_without_samples_takes_part(outcome):
    (_, _, nothing_on_one, _), _ = outcome[2]
    assert nothing_on_one < 1e-12


def test_without_the_weights_the_difference_is_seen(outcome):
    (_, _, _, unweighted), _ = outcome[2]
    assert unweighted > 0.01


def test_wrong_use_is_refused_with_what_to_do(outcome):
    _, (not_begun_again, negative, too_many, none) = outcome[2]
    assert "begin_step" in not_begun_again
    assert "not -1" in negative
    assert "5 samples" in too_many
    assert "into 0" in none
