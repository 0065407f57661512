"""What ``profile`` makes of jobs whose times and gradients are known."""

from __future__ import annotations

import itertools
import sys
import time

import numpy as np
import pytest
from support.torch_ranks import run_ranks

from gpusonde.errors import MeasurementError
from gpusonde.simulator.job_profile import JobProfile

torch = pytest.importorskip("torch", reason="needs torch (extra torch)")

from gpusonde.simulator.instrument.entry_point import load_job  # noqa: E402
from gpusonde.simulator.instrument.profile import TrainingJob, profile  # noqa: E402

LAYERS = 5


class Sleep(torch.autograd.Function):
    """A layer of known duration."""

    @staticmethod
    def forward(ctx, value, weights, seconds):
        ctx.seconds, ctx.shape = seconds, weights.shape
        time.sleep(seconds)
        return value + 0.0

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, torch.zeros(ctx.shape), None


class Sleeper(torch.nn.Module):
    """Layers of 2 ms + 0.1 ms per sample forward and twice that backward; the last is largest."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ParameterList([torch.zeros(1000 * (place + 1)) for place in range(LAYERS)])

    def forward(self, batch):
        value = torch.zeros(1)
        for weights in self.layers:
            value = Sleep.apply(value, weights, 0.002 + 1e-4 * len(batch))
        return value.sum()


class SlowOptimizer(torch.optim.SGD):
    def step(self, closure=None):
        time.sleep(0.01)


@pytest.fixture(scope="module")
def slept():
    model = Sleeper()
    return profile(
        model, torch.zeros, lambda model, batch: model(batch), optimizer=SlowOptimizer(model.parameters(), lr=0.1),
        batch_sizes=[10, 80], steps=5, bucket_bytes=8000, first_bucket_bytes=8000,
    )  # fmt: skip


def test_steps_take_as_long_as_they_do(slept):
    # Sleep never ends early; how late it ends is the machine's matter.
    for probe, layer_s in zip(slept.probes, (0.003, 0.010), strict=True):
        assert LAYERS * 3 * layer_s <= probe.total_s < LAYERS * 3 * layer_s * 1.5
        assert probe.forward_s == pytest.approx(probe.total_s / 3, rel=0.2)
        assert probe.spread is not None
    assert slept.optimizer_s >= 0.01


def test_gradients_come_from_the_last_layer_on_when_they_are_ready(slept):
    # Layers of 20, 16, 12, 8 and 4 kB in buckets that close at 8 kB.
    assert slept.gradients.bucket_bytes.tolist() == [20_000, 16_000, 12_000, 8_000, 4_000]
    assert slept.gradients.ready_fractions == pytest.approx(np.arange(1, LAYERS + 1) / LAYERS, abs=0.1)
    assert not slept.gradients.assumed


def test_the_profile_survives_its_file(slept, tmp_path):
    slept.write(tmp_path / "profile.json")
    assert JobProfile.read(tmp_path / "profile.json").as_json() == slept.as_json()


def test_the_model_keeps_its_weights_and_no_hooks_without_an_optimizer():
    model = torch.nn.Linear(3, 2)
    before = [each.detach().clone() for each in model.parameters()]
    profile(model, lambda size: torch.ones(size, 3), lambda model, batch: model(batch).mean(), batch_sizes=[1, 2])
    for parameter, kept in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, kept)
        assert not parameter._post_accumulate_grad_hooks


def mixed_network():
    """Two data types, tied and frozen parameters, and one that never gets a gradient."""
    torch.manual_seed(1)

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(40, 60)
            self.second = torch.nn.Linear(60, 60).double()
            self.third = torch.nn.Linear(60, 60)
            self.third.weight = torch.nn.Parameter(self.third.weight.detach())
            self.tied = torch.nn.Linear(60, 60)
            self.tied.weight = self.third.weight
            self.frozen = torch.nn.Linear(60, 500).requires_grad_(requires_grad=False)

        def forward(self, batch):
            value = self.second(self.first(batch).double()).float()
            return self.frozen(self.tied(self.third(value))).square().mean()

    return Mixed()


def buckets_of_ddp(rank, cap_mb):
    """Sizes of the buckets that torch exchanges, in their order, once it has seen one backward pass."""
    model = torch.nn.parallel.DistributedDataParallel(mixed_network(), bucket_cap_mb=cap_mb)
    seen = []

    def note(state, bucket):
        seen.append(bucket.buffer().numel() * bucket.buffer().element_size())
        return torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    model.register_comm_hook(None, note)
    for _ in range(3):
        seen.clear()
        model(torch.ones(4, 40)).backward()
    return seen


def test_buckets_are_those_of_torch():
    cap_mb = 0.01
    (seen,) = run_ranks(1, buckets_of_ddp, cap_mb)
    limit = int(cap_mb * 2**20)
    profiled = profile(
        mixed_network(), lambda size: torch.ones(size, 40), lambda model, batch: model(batch), batch_sizes=[2, 4],
        bucket_bytes=limit, first_bucket_bytes=limit,
    )  # fmt: skip
    assert len(seen) == 3
    # Buckets that the end of the pass closes come in an order of torch's own.
    assert sorted(profiled.gradients.bucket_bytes.tolist()) == sorted(seen)
    assert profiled.gradients.bucket_bytes.tolist()[:2] == seen[:2]


def refused(model, loss=lambda model, batch: model(batch).sum(), **options):
    with pytest.raises(MeasurementError) as error:
        profile(model, lambda size: torch.ones(size, 3), loss, **({"batch_sizes": [1, 2]} | options))
    return str(error.value)


def test_what_cannot_be_profiled_is_refused_with_what_to_do():
    linear = torch.nn.Linear(3, 2)
    assert "two batch sizes" in refused(linear, batch_sizes=[4])
    assert "two batch sizes" in refused(linear, batch_sizes=[0, 4])
    assert "which batch sizes" in refused(linear, batch_sizes=None)
    assert "larger than the largest" in refused(linear, batch_sizes=[1, 9], largest_batch=8)
    assert "steps must be" in refused(linear, steps=1)
    assert "lie on 0 devices" in refused(torch.nn.ReLU())
    assert "not on meta" in refused(torch.nn.Linear(3, 2, device="meta"))
    assert "one number" in refused(linear, lambda model, batch: model(batch))
    assert "one number" in refused(linear, lambda model, batch: model(batch).sum().item())
    assert "sparse" in refused(
        torch.nn.Embedding(5, 2, sparse=True), lambda model, batch: model(batch.flatten().long()).sum()
    )


def test_steps_that_scatter_are_warned_of(caplog):
    waits = itertools.cycle([0.002, 0.012])

    def loss(model, batch):
        time.sleep(next(waits))
        return model(batch).sum()

    profile(torch.nn.Linear(3, 2), lambda size: torch.ones(size, 3), loss, batch_sizes=[2, 4])
    assert "steps of batch size 2, 4 scatter" in caplog.text


def test_a_batch_that_does_not_fit_is_named():
    def loss(model, batch):
        if len(batch) == 4:
            raise torch.OutOfMemoryError
        return model(batch).sum()

    assert "batch size 4 does not fit" in refused(torch.nn.Linear(3, 2), loss, batch_sizes=[2, 4])


def small_memory(most):
    """A loss with which no more than so many samples fit; and the batches that it saw."""
    seen = []

    def loss(model, batch):
        seen.append(len(batch))
        if len(batch) > most:
            raise RuntimeError("CUDA out of memory. Tried to allocate 20 MiB")
        return model(batch).sum()

    return loss, seen


def test_the_largest_batch_is_found_by_trying_and_probed():
    loss, seen = small_memory(300)
    found = profile(torch.nn.Linear(3, 2), lambda size: torch.ones(size, 3), loss, find_largest=True, steps=3)
    assert found.largest_batch is not None
    assert 0.97 * 300 <= found.largest_batch <= 300
    sizes = [probe.batch_size for probe in found.probes]
    assert len(sizes) == 4
    assert sizes[-1] == found.largest_batch
    # Too large a batch is not asked for: never more than twice what fitted.
    assert max(seen) <= 600
    assert found.curve().largest_batch == found.largest_batch


def test_a_network_that_fits_nowhere_is_refused():
    assert "does not fit" in refused(torch.nn.Linear(3, 2), small_memory(0)[0], batch_sizes=None, find_largest=True)
    assert "two batch sizes" in refused(torch.nn.Linear(3, 2), small_memory(2)[0], batch_sizes=None, find_largest=True)


JOB = """
import torch
from helper_beside_it import LAYER  # noqa: E402
from gpusonde.simulator.instrument.profile import TrainingJob  # noqa: E402
def job():
    return TrainingJob(LAYER, lambda size: torch.ones(size, 3), lambda model, batch: model(batch).mean())
def nothing():
    return None
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    (tmp_path / "helper_beside_it.py").write_text("import torch\nLAYER = torch.nn.Linear(3, 2)\n")
    (tmp_path / "my_training_script.py").write_text(JOB)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path / "my_training_script.py"
    for name in ("helper_beside_it", "my_training_script"):
        sys.modules.pop(name, None)


def test_a_job_comes_from_a_function_in_a_file_or_a_module(script, monkeypatch):
    assert isinstance(load_job(f"{script}:job"), TrainingJob)
    monkeypatch.chdir(script.parent)
    assert isinstance(load_job("my_training_script:job"), TrainingJob)


def test_entry_points_without_a_job_are_refused(script):
    for entry_point, words in [
        ("train.py", "must be FILE.py:FUNCTION"), (f"{script}:", "must be FILE.py:FUNCTION"),
        ("absent.py:job", "no file absent.py"), (f"{script}:absent", "no function absent"),
        (f"{script}:nothing", "returned NoneType"), ("no_such_module:job", "no module no_such_module"),
    ]:  # fmt: skip
        with pytest.raises(MeasurementError, match=words):
            load_job(entry_point)
    other = script.parent / "json.py"
    other.write_text("job = None")
    with pytest.raises(MeasurementError, match="name of another module"):
        load_job(f"{other}:job")
