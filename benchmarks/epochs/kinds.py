"""The kinds of jobs that are simulated; which of them are set aside, and why, is said in ``jobs.py``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from script import MOST_PIECES, Script
from simulation import IDLE, Step, load, log_uniform

from gpusonde.epoch_detect import CycleRole

Kind = Callable[[Script], None]


def _epoch_of(s: Script, step: Step, count: int, tempo: float = 1.0) -> None:
    s.begin_epoch()
    s.train(step, count, tempo=tempo)
    s.maybe_stall()


def cnn_validation(s: Script) -> None:
    """A convolutional network with validation after each epoch, often a checkpoint of the best."""
    epochs, each_s = s.sized(4, 90, 8)
    share = s.rng.uniform(0.04, 0.35)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 1.5)
    step, gigabytes = s.step(step_s), log_uniform(s.rng, 0.02, 0.6)
    batch, best = s.evaluation_batch(step), s.rng.random() < 0.6
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        s.begin_epoch(CycleRole.EVALUATION)
        s.train(step, count)
        s.evaluate(batch, each_s * share, tail_s=0.1)
        if best and s.rng.random() < 1 / (1 + i / 4):
            s.checkpoint(gigabytes)
        s.maybe_stall()


def checkpoint_every_k(s: Script) -> None:
    """Epochs, every k of them a checkpoint that takes long."""
    k = int(s.rng.integers(2, 11))
    epochs, each_s = s.sized(3 * k, 120, 5)
    step_s, count = s.plan_steps(each_s, 0.04, 1.5)
    step, gigabytes = s.step(step_s), s.disk_gb_s * each_s * s.rng.uniform(0.05, 0.6)
    validates, share = s.rng.random() < 0.5, s.rng.uniform(0.04, 0.2)
    batch = s.evaluation_batch(step)
    s.turn_s = max(s.turn_s, 0.15)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        s.begin_epoch(*([CycleRole.EVALUATION] if validates else []))
        s.train(step, count)
        if validates:
            s.evaluate(batch, each_s * share)
        if (i + 1) % k == 0:
            s.checkpoint(gigabytes, mark=True)


def input_shards(s: Script) -> None:
    """Data come in shards of a few per epoch; each has to be opened and fetched, which starves the GPU."""
    epochs, each_s = s.sized(3, 40, 15)
    shards = int(s.rng.integers(3, 13))
    step_s, count = s.plan_steps(each_s / shards, 0.04, 0.8)
    step = s.step(step_s, wait=s.rng.uniform(0.1, 0.5), scatter=s.rng.uniform(0.03, 0.2))
    stall_s, batch = each_s / shards * s.rng.uniform(0.03, 0.3), s.evaluation_batch(step)
    validates, share = s.rng.random() < 0.7, s.rng.uniform(0.04, 0.25)
    s.epochs, s.steps_per_epoch = epochs, count * shards
    for _ in range(epochs):
        s.begin_epoch(*([CycleRole.EVALUATION] if validates else []))
        for _ in range(shards):
            s.line.mark("shard", CycleRole.UNKNOWN)
            s.train(step, count)
            s.line.stay(stall_s * float(np.exp(s.rng.normal(0, 0.2))), IDLE, "training")
        if validates:
            s.evaluate(batch, each_s * share)


def k_fold(s: Script) -> None:
    """Folds of some epochs each; after each the test set, a new network, and compiling again."""
    folds = int(s.rng.integers(3, 11))
    of_each, each_s = s.sized(folds * 3, folds * 20, 4)
    of_each = max(3, of_each // folds)
    share = s.rng.uniform(0.04, 0.25)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 0.8)
    step, compile_s = s.step(step_s), each_s * s.rng.uniform(0.1, 1.5)
    batch, test = s.evaluation_batch(step), s.rng.uniform(0.1, 0.6)
    s.epochs, s.steps_per_epoch = folds * of_each, count
    for _ in range(folds):
        s.line.mark("fold", CycleRole.TRIAL)
        s.line.hold_memory(s.held * 0.2)
        s.line.stay(compile_s, load(sm=0.03, power=0.04, busy=0.1), "starting")
        s.line.hold_memory(s.held)
        for _ in range(of_each):
            s.begin_epoch(CycleRole.EVALUATION)
            s.train(step, count)
            s.evaluate(batch, each_s * share)
        s.evaluate(batch, each_s * test, tail_s=1.0)


def validation_interval(s: Script) -> None:
    """Validation at every half, third, quarter or fifth of an epoch; a new epoch is little more than new workers."""
    parts = int(s.rng.choice([2, 3, 4, 4, 5]))
    epochs, each_s = s.sized(3, 30, 20)
    share = s.rng.uniform(0.05, 0.3)
    step_s, count = s.plan_steps(each_s * (1 - share) / parts, 0.04, 1.0)
    step, gigabytes = s.step(step_s), log_uniform(s.rng, 0.1, 3)
    batch = s.evaluation_batch(step)
    s.turn_s, saves = max(s.turn_s, log_uniform(s.rng, 0.4, 5)), s.rng.random() < 0.5
    s.epochs, s.steps_per_epoch = epochs, count * parts
    for _ in range(epochs):
        s.begin_epoch(*([CycleRole.CHECKPOINT] if saves else []))
        for _ in range(parts):
            s.train(step, count)
            s.line.mark("evaluation", CycleRole.EVALUATION)
            s.evaluate(batch, each_s * share / parts, fork=False)
        if saves:
            s.checkpoint(gigabytes)


def gan_evaluation_every_k(s: Script) -> None:
    """Generator and discriminator take turns; every k epochs images are made and scored."""
    k = int(s.rng.integers(2, 9))
    epochs, each_s = s.sized(3 * k, 100, 5)
    step_s, count = s.plan_steps(each_s, 0.06, 1.2, pieces=8)
    step, turns = s.step(step_s, micro=2), s.evaluation_batch(s.step(step_s))
    score_s = each_s * s.rng.uniform(0.3, 2.5)
    s.turn_s = max(s.turn_s, 0.2)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        _epoch_of(s, step, count)
        if (i + 1) % k == 0:
            s.line.mark("evaluation", CycleRole.EVALUATION)
            s.line.work(turns, max(1, round(score_s * 0.6 / turns.usual_s)), "evaluating")
            s.line.stay(score_s * 0.4, load(sm=0.05, power=0.08, busy=0.1), "evaluating")


def diffusion_samples(s: Script) -> None:
    """Fine-tuning a diffusion model; every k epochs it draws samples, at full power and without gradients."""
    k = int(s.rng.integers(2, 7))
    epochs, each_s = s.sized(3 * k, 60, 8)
    step_s, count = s.plan_steps(each_s, 0.15, 2.5)
    step = s.step(step_s, tensor=s.rng.uniform(0.4, 0.8), wait=0.0)
    denoise = s.evaluation_batch(step).scaled(0.4)
    sample_s, gigabytes = each_s * s.rng.uniform(0.2, 1.5), log_uniform(s.rng, 1, 5)
    s.turn_s = max(s.turn_s, 0.2)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        _epoch_of(s, step, count)
        if (i + 1) % k == 0:
            s.line.mark("evaluation", CycleRole.EVALUATION, also=(CycleRole.CHECKPOINT,))
            s.line.work(denoise, max(2, round(sample_s / denoise.usual_s)), "evaluating")
            s.line.stay(s.rng.uniform(0.5, 3), IDLE, "evaluating")
            s.checkpoint(gigabytes)


def llm_pretraining(s: Script) -> None:
    """Steps without epochs on many GPUs; evaluation every N steps, a checkpoint every few evaluations."""
    s.gpus, s.gpu_spread = int(s.rng.choice([2, 4, 8, 8])), s.rng.uniform(0.005, 0.03)
    step_s = log_uniform(s.rng, max(0.8, s.budget_s * 30 / MOST_PIECES), 12)
    micro = int(s.rng.choice([1, 1, 2, 4, 8]))
    step = s.step(
        step_s, tensor=s.rng.uniform(0.4, 0.8), micro=micro, wait=0.0, scatter=log_uniform(s.rng, 0.002, 0.02)
    )
    intervals = round(log_uniform(s.rng, 4, max(5, min(40, s.budget_s / step_s / 6))))
    count = max(4, round(s.budget_s / intervals / step_s))
    batch, share, k = s.evaluation_batch(step), s.rng.uniform(0.02, 0.15), int(s.rng.integers(1, 5))
    gigabytes = s.disk_gb_s * log_uniform(s.rng, 2, 40)
    background, asks = s.rng.random() < 0.3, s.rng.random() < 0.85
    for i in range(intervals):
        s.train(step, count)
        if asks:
            s.line.mark("evaluation", CycleRole.EVALUATION, also=(CycleRole.CHECKPOINT,) if k == 1 else ())
            s.evaluate(batch, count * step_s * share, fork=False)
        if (i + 1) % k == 0:
            s.checkpoint(gigabytes, mark=k > 1 or not asks, background=background)
        s.maybe_stall()


def llm_fine_tuning(s: Script) -> None:
    """A few epochs, evaluation every N steps that does not divide them, adapters or the whole model saved."""
    s.gpus = int(s.rng.choice([1, 1, 2, 4, 8]))
    s.gpu_spread = 0.0 if s.gpus == 1 else s.rng.uniform(0.005, 0.03)
    epochs, each_s = s.sized(3, 8, 60)
    micro = int(s.rng.choice([1, 4, 8, 16]))
    step_s, count = s.plan_steps(each_s, 0.5, 8.0, pieces=3 * micro + 3)
    step = s.step(step_s, tensor=s.rng.uniform(0.3, 0.8), micro=micro, wait=0.0, scatter=s.rng.uniform(0.02, 0.3))
    every = max(3, round(count / s.rng.uniform(1.3, 7.7)))
    batch, share, gigabytes = s.evaluation_batch(step), s.rng.uniform(0.05, 0.3), log_uniform(s.rng, 0.1, 20)
    saves = s.rng.random() < 0.6
    s.turn_s = max(s.turn_s, 0.3)
    s.epochs, s.steps_per_epoch = epochs, count
    done = 0
    for _ in range(epochs):
        s.begin_epoch(*([CycleRole.CHECKPOINT] if saves else []))
        left = count
        while left:
            now = min(left, every - done % every)
            s.train(step, now)
            left, done = left - now, done + now
            if done % every == 0:
                s.line.mark("evaluation", CycleRole.EVALUATION)
                s.evaluate(batch, every * step_s * share, fork=False)
        if saves:
            s.checkpoint(gigabytes)


def lora_accumulation(s: Script) -> None:
    """Adapters of a language model: steps of many micro-batches, a checkpoint at the end, hardly anything else."""
    s.gpus, s.gpu_spread = int(s.rng.choice([1, 2, 4])), s.rng.uniform(0.0, 0.02)
    steps = int(s.rng.choice([20, 40, 60, 100, 200]))
    micro = int(s.rng.choice([8, 16, 32, 48]))
    # Often a try of some minutes, the steps of a small model among them.
    budget = log_uniform(s.rng, steps * max(0.5, 8 * s.tick_s), min(s.budget_s, 30.0 * steps))
    s.budget_s = budget
    step = s.step(budget / steps, tensor=s.rng.uniform(0.05, 0.6), micro=micro, wait=s.rng.choice([0.0, 0.1]),
                  comm=s.rng.uniform(0.0, 0.06), scatter=s.rng.uniform(0.05, 0.4))  # fmt: skip
    every, log_s = int(s.rng.choice([steps, steps // 2, 10])), budget / steps * s.rng.choice([0.0, 0.01, 0.04])
    for i in range(steps):
        s.train(step, 1)
        s.line.stay(log_s, IDLE, "training")
        if (i + 1) % every == 0:
            s.checkpoint(log_uniform(s.rng, 0.02, 0.5), mark=True)


def narrow_dips(s: Script) -> None:
    """A plateau of short steps; evaluation is a dip of one to three ticks at even distance."""
    dips = round(log_uniform(s.rng, 6, min(60, s.budget_s / 15)))
    each_s = s.budget_s / dips
    step_s, count = s.plan_steps(each_s, 0.03, 0.4)
    s.gpus = int(s.rng.choice([1, 4, 8]))
    step = s.step(step_s, wait=0.0, scatter=log_uniform(s.rng, 0.005, 0.05))
    batch = s.evaluation_batch(step)
    dip_s, tail_s = s.rng.uniform(0.1, 2.0), s.rng.uniform(0, 0.5)
    is_epoch = s.rng.random() < 0.5
    s.turn_s = 0.0
    if is_epoch:
        s.epochs, s.steps_per_epoch = dips, count
    for _ in range(dips):
        if is_epoch:
            s.begin_epoch(CycleRole.EVALUATION)
        else:
            s.line.mark("evaluation", CycleRole.EVALUATION)
        s.train(step, count)
        s.evaluate(batch, dip_s, tail_s=tail_s, fork=False)


def detection(s: Script) -> None:
    """A detector of objects: epochs of minutes, evaluation after each, its boxes matched on the CPU."""
    epochs, each_s = s.sized(4, 16, 60)
    s.gpus, s.gpu_spread = int(s.rng.choice([1, 2, 8])), s.rng.uniform(0.0, 0.03)
    share = s.rng.uniform(0.04, 0.2)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.12, 1.2)
    step = s.step(step_s, scatter=s.rng.uniform(0.05, 0.25))
    batch, tail_s, gigabytes = s.evaluation_batch(step), each_s * s.rng.uniform(0.01, 0.12), log_uniform(s.rng, 0.1, 1)
    s.epochs, s.steps_per_epoch = epochs, count
    for _ in range(epochs):
        s.begin_epoch(CycleRole.EVALUATION, CycleRole.CHECKPOINT)
        s.train(step, count)
        s.evaluate(batch, each_s * share, tail_s=tail_s)
        s.checkpoint(gigabytes)


def speech_buckets(s: Script) -> None:
    """Batches of equal length: a step takes half to twice the usual time; the first epoch goes from short to long."""
    epochs, each_s = s.sized(4, 30, 20)
    step_s, count = s.plan_steps(each_s * 0.85, 0.08, 1.5)
    step, spread = s.step(step_s), s.rng.uniform(0.15, 0.5)
    batch, share = s.evaluation_batch(step), s.rng.uniform(0.05, 0.3)
    lengths = np.exp(spread * s.rng.normal(0, 1, count))
    lengths *= count / lengths.sum()
    s.epochs, s.steps_per_epoch = epochs, count
    bucketed = s.rng.random() < 0.5
    order = np.sort(lengths)
    for i in range(epochs):
        s.begin_epoch(CycleRole.EVALUATION)
        now = order if i == 0 else s.rng.permutation(lengths)
        if bucketed and i:  # buckets of like length one after the other, in another order each time
            buckets = np.array_split(order, 6)
            now = np.concatenate([buckets[b] for b in s.rng.permutation(6)])
        for length in np.array_split(now, max(1, count // 4)):
            s.train(step.scaled(float(length.mean())), length.size)
        s.evaluate(batch, each_s * share)


def hyperparameter_trials(s: Script) -> None:
    """Trainings one after the other with other batch sizes and widths; each has some epochs."""
    trials = int(s.rng.integers(3, 9))
    of_each = int(s.rng.integers(4, 13))
    each_s = s.budget_s / trials / of_each
    s.epochs = trials * of_each
    for _ in range(trials):
        s.line.mark("trial", CycleRole.TRIAL)
        s.held = s.rng.uniform(0.2, 0.95)
        s.line.hold_memory(0.02)
        s.line.stay(log_uniform(s.rng, 1, 12), IDLE, "starting")
        s.line.hold_memory(s.held)
        now_s = each_s * log_uniform(s.rng, 0.8, 1.25)
        step_s, count = s.plan_steps(now_s, 0.04, 0.8)
        step = s.step(step_s)
        batch, share = s.evaluation_batch(step), s.rng.uniform(0.05, 0.3)
        for _ in range(of_each):
            s.begin_epoch(CycleRole.EVALUATION)
            s.train(step, count)
            s.evaluate(batch, now_s * share)


def data_parallel(s: Script) -> None:
    """Several GPUs in step; one of them is slower now and then, and the others wait for it in the all-reduce."""
    s.gpus, s.gpu_spread = int(s.rng.choice([2, 4, 8])), s.rng.uniform(0.01, 0.08)
    s.straggles = True
    epochs, each_s = s.sized(4, 40, 12)
    share = s.rng.uniform(0.04, 0.25)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.1, 1.5)
    step = s.step(step_s, comm=s.rng.uniform(0.08, 0.35))
    batch, slower = s.evaluation_batch(step), s.rng.uniform(1.1, 1.6)
    s.epochs, s.steps_per_epoch = epochs, count
    for _ in range(epochs):
        s.begin_epoch(CycleRole.EVALUATION)
        tempo = np.ones(count)
        if s.rng.random() < 0.25:
            begin = int(s.rng.integers(0, count))
            tempo[begin : begin + max(2, int(count * s.rng.uniform(0.1, 1.0)))] = slower
        s.train(step, count, tempo=tempo)
        s.evaluate(batch, each_s * share)


def progressive_resizing(s: Script) -> None:
    """The images grow in two to four stages: steps and epochs become longer and the load higher."""
    stages = int(s.rng.integers(2, 5))
    of_each = int(s.rng.integers(4, 12))
    growth = s.rng.uniform(1.25, 2.0)
    first_s = s.budget_s / of_each / sum(growth**i for i in range(stages))
    step_s, count = s.plan_steps(first_s, 0.05, 0.6)
    step, share = s.step(step_s), s.rng.uniform(0.05, 0.25)
    batch = s.evaluation_batch(step)
    s.epochs, s.steps_per_epoch = stages * of_each, count
    for stage in range(stages):
        s.line.hold_memory(s.held * (stage + 1) / stages)
        s.line.stay(log_uniform(s.rng, 0.5, 8), IDLE, "starting")
        for _ in range(of_each):
            s.begin_epoch(CycleRole.EVALUATION)
            s.train(step, count, tempo=growth**stage)
            s.evaluate(batch.scaled(growth**stage), first_s * growth**stage * share)


def early_stopping(s: Script) -> None:
    """Runs with other seeds, each ended when it gets no better: after different numbers of epochs."""
    runs = int(s.rng.integers(3, 8))
    epochs, each_s = s.sized(runs * 4, runs * 15, 6)
    share = s.rng.uniform(0.05, 0.3)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 1.0)
    step, gigabytes = s.step(step_s), log_uniform(s.rng, 0.02, 0.5)
    batch = s.evaluation_batch(step)
    s.steps_per_epoch, s.epochs, left = count, 0, epochs
    while left >= 3:
        now = min(left, int(s.rng.integers(3, 2 * epochs // runs + 1)))
        s.line.mark("run", CycleRole.TRIAL)
        s.line.hold_memory(s.held * 0.3)
        s.line.stay(log_uniform(s.rng, 1, 10), IDLE, "starting")
        s.line.hold_memory(s.held)
        for i in range(now):
            s.begin_epoch(CycleRole.EVALUATION)
            s.train(step, count)
            s.evaluate(batch, each_s * share)
            if s.rng.random() < 1 / (1 + i / 2):
                s.checkpoint(gigabytes)
        s.epochs, left = s.epochs + now, left - now


def warm_up(s: Script) -> None:
    """Sequence length or batch grows over the first epochs, with the learning rate; then all epochs are alike."""
    epochs, each_s = s.sized(6, 40, 12)
    share = s.rng.uniform(0.04, 0.2)
    step_s, count = s.plan_steps(each_s * (1 - share), 0.05, 1.0)
    step, grows = s.step(step_s), int(s.rng.integers(1, max(2, epochs // 3)))
    batch, low = s.evaluation_batch(step), s.rng.uniform(0.3, 0.8)
    s.epochs, s.steps_per_epoch = epochs, count
    for i in range(epochs):
        s.begin_epoch(CycleRole.EVALUATION)
        s.train(step, count, tempo=min(1.0, low + (1 - low) * i / grows))
        s.evaluate(batch, each_s * share)
        s.maybe_stall()


def recommender(s: Script) -> None:
    """Embeddings and small layers: steps of milliseconds that no tick shows, evaluation every part of an epoch."""
    epochs, each_s = s.sized(3, 10, 30)
    parts, share = int(s.rng.choice([1, 5, 10, 20])), s.rng.uniform(0.05, 0.3)
    step_s, count = s.plan_steps(each_s * (1 - share) / parts, 0.02, 0.06)
    s.gpus = int(s.rng.choice([1, 8]))
    step = s.step(step_s, tensor=s.rng.uniform(0.0, 0.2), scatter=0.05)
    batch = s.evaluation_batch(step)
    s.turn_s = max(s.turn_s, 0.5)
    s.epochs, s.steps_per_epoch = epochs, count * parts
    for _ in range(epochs):
        s.begin_epoch(*([CycleRole.EVALUATION] if parts == 1 else []))
        for _ in range(parts):
            s.train(step, count)
            if parts > 1:
                s.line.mark("evaluation", CycleRole.EVALUATION)
            s.evaluate(batch, each_s * share / parts, fork=False)


def _burst(s: Script, power: float, state: str, seconds: float) -> None:
    sm = power * s.rng.uniform(0.7, 1.0)
    s.line.stay(seconds, load(sm, sm * 0.4, sm * 0.5, power, min(1.0, 1.3 * power), receive=0.03, send=0.01), state)


def serving(s: Script) -> None:
    """Requests come by chance, by a rhythm of the day that is squeezed into the recording, and are answered at once."""
    s.run_state = "serving"
    rate, answer_s = log_uniform(s.rng, 0.1, 4), log_uniform(s.rng, 0.05, 2.0)
    swing, rhythm_s = s.rng.uniform(0.1, 0.9), s.budget_s / s.rng.uniform(0.5, 4)
    power = s.rng.uniform(0.2, 0.8)
    while s.line.now_s < s.budget_s:
        now = rate * (1 + swing * np.sin(2 * np.pi * s.line.now_s / rhythm_s))
        s.line.stay(s.rng.exponential(1 / max(now, 0.02)), IDLE, "serving")
        _burst(s, power * s.rng.uniform(0.6, 1.2), "serving", s.rng.gamma(2, answer_s / 2))


def batch_inference(s: Script) -> None:
    """A data set is scored shard by shard, each loaded, worked through and written."""
    s.run_state = "other"
    shards = round(log_uniform(s.rng, 8, 60))
    each_s = s.budget_s / shards
    step_s, count = s.plan_steps(each_s * 0.85, 0.04, 0.8)
    batch = s.evaluation_batch(s.step(step_s))
    spread = log_uniform(s.rng, 0.02, 0.5)
    for _ in range(shards):
        if spread < 0.15:
            s.line.mark("shard", CycleRole.UNKNOWN)
        s.line.stay(each_s * 0.1, load(receive=0.1), "other")
        s.line.work(batch, max(2, round(count * step_s / batch.usual_s * np.exp(s.rng.normal(0, spread)))), "other")
        s.line.stay(each_s * 0.05, load(send=0.1), "other")


def rl_loop(s: Script) -> None:
    """Reinforcement learning: rollouts with small batches and much waiting, then an update at full load."""
    s.run_state = "other"
    loops = round(log_uniform(s.rng, 8, 120))
    each_s, share = s.budget_s / loops, s.rng.uniform(0.3, 0.8)
    act = s.evaluation_batch(s.step(max(0.05, s.budget_s * 3 / MOST_PIECES), wait=0.6))
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 0.5)
    step = s.step(step_s)
    for _ in range(loops):
        s.line.mark("iteration", CycleRole.UNKNOWN)
        long_s = each_s * share * float(np.exp(s.rng.normal(0, 0.08)))
        s.line.work(act, max(2, round(long_s / act.usual_s)), "other")
        starts, _ = s.line.work(step, count, "other")
        s.line.mark("step", CycleRole.STEP, starts)


def cron(s: Script) -> None:
    """A scheduled program: the same minutes of work at even distance, nothing between them."""
    s.run_state = "other"
    runs = int(s.rng.integers(4, 16))
    every_s = s.budget_s / runs
    work_s, power = every_s * s.rng.uniform(0.05, 0.5), s.rng.uniform(0.3, 0.9)
    for _ in range(runs):
        s.line.mark("scheduled run", CycleRole.UNKNOWN)
        begin = s.line.now_s
        s.line.stay(log_uniform(s.rng, 0.5, 4), load(receive=0.3, power=0.03), "other")
        for _ in range(6):
            _burst(s, power * s.rng.uniform(0.8, 1.1), "other", work_s / 6 * s.rng.uniform(0.7, 1.3))
        s.line.stay(max(0.1, begin + every_s - s.line.now_s + s.rng.normal(0, 0.3)), IDLE, "idle")


def hpc_iterations(s: Script) -> None:
    """A simulation: iterations of a solver, now and then a snapshot."""
    s.run_state = "other"
    snapshots = round(log_uniform(s.rng, 4, 40))
    step_s, count = s.plan_steps(s.budget_s / snapshots, 0.05, 6.0)
    step = s.step(step_s, tensor=0.0, wait=0.0)
    gigabytes = s.disk_gb_s * log_uniform(s.rng, 0.3, 8)
    even, converges = s.rng.random() < 0.5, s.rng.uniform(0.05, 0.4)
    for _ in range(snapshots):
        now = count if even else max(2, round(count * np.exp(s.rng.normal(0, converges))))
        if even:
            s.line.mark("snapshot", CycleRole.CHECKPOINT)
        starts, _ = s.line.work(step, now, "other")
        s.line.mark("iteration", CycleRole.UNKNOWN, starts)
        s.checkpoint(gigabytes)


def idle_with_spikes(s: Script) -> None:
    """A GPU that nobody uses: a monitor or a desktop wakes it now and then."""
    s.run_state = "idle"
    every_s = log_uniform(s.rng, 5, 120)
    while s.line.now_s < s.budget_s:
        s.line.stay(s.rng.exponential(every_s), IDLE, "idle")
        _burst(s, s.rng.uniform(0.02, 0.3), "idle", log_uniform(s.rng, 0.05, 2))


def notebook(s: Script) -> None:
    """Somebody tries things out: cells of seconds to minutes, thinking between them, some short trainings."""
    s.run_state = "other"
    while s.line.now_s < s.budget_s:
        s.line.stay(log_uniform(s.rng, 3, 200), IDLE, "idle")
        if s.rng.random() < 0.3:
            step = s.step(max(log_uniform(s.rng, 0.05, 0.5), s.budget_s * 6 / MOST_PIECES))
            s.line.work(step, int(s.rng.integers(20, 300)), "other")
        else:
            _burst(s, s.rng.uniform(0.1, 0.9), "other", log_uniform(s.rng, 0.2, 30))


def visible_steps(s: Script) -> None:
    """A language model is fine-tuned for some hundred steps that every tick shows, and nothing else happens."""
    s.gpus = int(s.rng.choice([1, 1, 2, 4, 8]))
    s.gpu_spread = 0.0 if s.gpus == 1 else s.rng.uniform(0.0, 0.03)
    count = round(log_uniform(s.rng, 30, 1500))
    step_s = log_uniform(s.rng, max(0.4, 6 * s.tick_s), min(12.0, s.budget_s / count))
    s.budget_s = count * step_s
    step = s.step(step_s, tensor=s.rng.uniform(0.1, 0.8), micro=int(s.rng.choice([1, 1, 2, 4])),
                  wait=s.rng.choice([0.0, 0.05, 0.2]), scatter=log_uniform(s.rng, 0.005, 0.3))  # fmt: skip
    log_s = step_s * s.rng.choice([0.0, 0.02, 0.1])
    saves = round(count / s.rng.uniform(1.5, 12)) if s.rng.random() < 0.4 else count
    gigabytes = log_uniform(s.rng, 0.02, 4)
    for first in range(0, count, saves):
        for _ in range(min(saves, count - first)):
            s.train(step, 1)
            s.line.stay(log_s * float(np.exp(s.rng.normal(0, 0.3))), IDLE, "training")
        s.checkpoint(gigabytes, mark=saves < count)


def nest(s: Script) -> None:
    """A training whose nest is drawn: what is evaluated and saved, how often, for how long, and with what load."""
    rng = s.rng
    trials = int(rng.integers(2, 8)) if rng.random() < 0.2 else 1
    epochs, each_s = s.sized(3 * trials, 80 * trials, 5)
    of_each = max(3, epochs // trials)
    parts = int(rng.choice([1, 1, 1, 2, 3, 4, 5, 8, 10]))
    evaluates, saves = _how_often(s, parts), _how_often(s, parts)
    share = log_uniform(rng, 0.01, 0.5)
    step_s, count = s.plan_steps(each_s / parts, 0.03, 1.5)
    step = s.step(step_s)
    batch = s.evaluation_batch(step)
    batch = batch.scaled(log_uniform(rng, 0.3, 4)) if rng.random() < 0.3 else batch
    full = s.step(step_s) if rng.random() < 0.3 else None  # generation or search: as much work as training
    idle_share = rng.uniform(0.3, 1.0) if rng.random() < 0.3 else 0.0  # scored on the CPU
    gigabytes, starts_s = s.disk_gb_s * log_uniform(rng, 0.2, 0.5 * each_s + 0.3), log_uniform(rng, 1, 0.3 * each_s + 2)
    forks, background = rng.random() < 0.4, rng.random() < 0.2
    s.epochs, s.steps_per_epoch = trials * of_each, count * parts
    done = 0

    def due(every: int) -> bool:
        return every > 0 and done % every == 0

    with_epoch = [
        role for role, every in ((CycleRole.EVALUATION, evaluates), (CycleRole.CHECKPOINT, saves)) if every == parts
    ]
    for _ in range(trials):
        if trials > 1:
            s.line.mark("trial", CycleRole.TRIAL)
            s.line.hold_memory(s.held * 0.2)
            s.line.stay(starts_s, load(sm=0.03, power=0.04, busy=0.1), "starting")
            s.line.hold_memory(s.held)
        for _ in range(of_each):
            s.begin_epoch(*with_epoch)
            for _ in range(parts):
                s.train(step, count)
                done += 1
                if due(evaluates):
                    if evaluates != parts:
                        s.line.mark(
                            "evaluation", CycleRole.EVALUATION, also=(CycleRole.CHECKPOINT,) * (saves == evaluates)
                        )
                    length_s = evaluates * each_s / parts * share
                    working = full if full is not None else batch
                    if forks:
                        s.line.stay(s.turn_s * rng.uniform(0.3, 0.9), IDLE, "evaluating")
                    if idle_share < 0.9:
                        s.line.work(working, max(1, round(length_s * (1 - idle_share) / working.usual_s)), "evaluating")
                    s.line.stay(length_s * idle_share, load(sm=0.01, power=0.05, busy=0.03), "evaluating")
                if due(saves):
                    s.checkpoint(gigabytes, mark=saves not in (parts, evaluates), background=background)
            s.maybe_stall()


def _how_often(s: Script, parts: int) -> int:
    """Draw after how many parts of an epoch something happens: never, each, once an epoch, every few epochs."""
    draw = s.rng.random()
    return 0 if draw < 0.2 else 1 if draw < 0.45 else parts if draw < 0.7 else parts * int(s.rng.integers(2, 7))


def token_serving(s: Script) -> None:
    """A language model answers many at once: the load wanders with the number of requests, and seldom stops."""
    s.run_state = "serving"
    power, pull = s.rng.uniform(0.3, 0.9), log_uniform(s.rng, 0.01, 0.3)
    prefills, rest = s.rng.uniform(0.0, 0.5), s.rng.choice([0.0, s.rng.uniform(0.0, 0.3)])
    busy, piece_s = s.rng.random(), max(0.2, s.budget_s / 40_000)
    while s.line.now_s < s.budget_s:
        busy += pull * (0.5 - busy) * 0.3 + pull * s.rng.normal(0, 0.35)
        busy = float(np.clip(busy, 0.0, 1.0))
        if busy < rest:
            s.line.stay(s.rng.exponential(4.0), IDLE, "serving")
            busy = rest + 0.1
        elif s.rng.random() < prefills * busy:
            _burst(s, min(1.0, 1.2 * power), "serving", s.rng.exponential(0.4))
        seconds = piece_s * s.rng.uniform(0.5, 2.0)
        s.line.stay(seconds, load(power * (0.3 + 0.7 * busy), 0.2 * busy, 0.3 + 0.5 * busy,
                                  power * (0.5 + 0.5 * busy), 1.0, receive=0.01), "serving")  # fmt: skip


def two_stages(s: Script) -> None:
    """Data are processed in rounds: one stage with little load and much waiting, then one that works in full."""
    s.run_state = "other"
    rounds = round(log_uniform(s.rng, 6, 150))
    each_s, share = s.budget_s / rounds, s.rng.uniform(0.25, 0.85)
    scatter, has_gap = log_uniform(s.rng, 0.01, 0.3), s.rng.random() < 0.4
    first = s.step(max(0.05, s.budget_s * 3 / MOST_PIECES), tensor=0.0, wait=s.rng.uniform(0.3, 0.8))
    first = s.evaluation_batch(first) if s.rng.random() < 0.5 else first
    step_s, count = s.plan_steps(each_s * (1 - share), 0.04, 0.6)
    second = s.step(step_s, tensor=s.rng.uniform(0.0, 0.7))
    for _ in range(rounds):
        if scatter < 0.15:
            s.line.mark("round", CycleRole.UNKNOWN)
        drawn_s = each_s * share * float(np.exp(s.rng.normal(0, scatter)))
        s.line.work(first, max(2, round(drawn_s / first.usual_s)), "other")
        s.line.stay(each_s * s.rng.uniform(0.0, 0.05) * has_gap, IDLE, "other")
        s.line.work(second, max(2, round(count * float(np.exp(s.rng.normal(0, scatter / 2))))), "other")


def repeated_program(s: Script) -> None:
    """The same benchmark or rendering again and again: load, work at one level, write, pause."""
    s.run_state = "other"
    rounds = round(log_uniform(s.rng, 4, 80))
    each_s = s.budget_s / rounds
    pause, scatter = s.rng.uniform(0.05, 0.9), log_uniform(s.rng, 0.003, 0.3)
    levels = s.rng.uniform(0.3, 1.0, int(s.rng.integers(1, 4)))
    for _ in range(rounds):
        if scatter < 0.15:
            s.line.mark("program", CycleRole.UNKNOWN)
        s.line.stay(log_uniform(s.rng, 0.2, 2), load(receive=0.3, power=0.03), "other")
        for level in levels:
            work_s = each_s * (1 - pause) / levels.size
            _burst(s, level, "other", work_s * float(np.exp(s.rng.normal(0, scatter))))
        s.line.stay(each_s * pause * float(np.exp(s.rng.normal(0, scatter))), IDLE, "other")


def queue_of_programs(s: Script) -> None:
    """Programs of different users one after the other, each with its own load and length."""
    s.run_state = "other"
    while s.line.now_s < s.budget_s:
        s.line.stay(log_uniform(s.rng, 1, 60), IDLE, "idle")
        seconds, kind = log_uniform(s.rng, 3, 0.25 * s.budget_s + 5), s.rng.random()
        if kind < 0.4:
            step = s.step(max(log_uniform(s.rng, 0.05, 2), s.budget_s * 6 / MOST_PIECES))
            s.line.work(step, max(3, round(seconds / step.usual_s)), "other")
        else:
            parts = int(s.rng.integers(1, 12))
            for _ in range(parts):
                _burst(s, s.rng.uniform(0.1, 1.0), "other", seconds / parts * s.rng.uniform(0.3, 1.7))
                if kind > 0.8:
                    s.line.stay(log_uniform(s.rng, 0.1, 5), IDLE, "other")


KINDS: dict[str, Kind] = {
    kind.__name__: kind
    for kind in (
        cnn_validation, checkpoint_every_k, input_shards, k_fold, validation_interval, gan_evaluation_every_k,
        diffusion_samples, llm_pretraining, llm_fine_tuning, lora_accumulation, narrow_dips, detection, speech_buckets,
        hyperparameter_trials, data_parallel, progressive_resizing, early_stopping, warm_up, recommender,
        serving, batch_inference, rl_loop, cron, hpc_iterations, idle_with_spikes, notebook, visible_steps, nest,
        token_serving, two_stages, repeated_program, queue_of_programs,
    )
}  # fmt: skip
