"""What the levels of the tree of cycles are: step, evaluation, checkpoint, epoch, trial; or unknown.

The metrics often cannot tell: an evaluation every thousand steps and one at the end of each epoch look the same. A role
is told where fitted trees are sure enough of it, ``unknown`` elsewhere. What a user tells (:class:`Told`) refutes roles
before one is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from gpusonde.epoch_detect.cycles.events import Load
from gpusonde.epoch_detect.cycles.scorer import Scorer
from gpusonde.epoch_detect.cycles.signal import median
from gpusonde.epoch_detect.cycles.tree import JudgedLevel, Level
from gpusonde.epoch_detect.result import Cycle, CycleRole, EpochDetection
from gpusonde.telemetry import FloatArray

_SAME = 0.1  # of the logarithm of a period that a user tells
_TOLD = 0.98  # confidence of a role that follows from what was told
_MORE = 0.02  # share by which a count may exceed what was told, or one
_RATIO = 0.04  # by which the steps of an epoch may differ from what was told
_SURE = 0.3
_AS_LIKELY = 0.5
_LEAST_RATIO = 1.5
_WORKS = 0.25  # of the high level
_LEAST_CONFIDENCE = 0.3  # of a level that may stand in for one that was refuted
_LEAST_TOTAL = 2
_LEAST_COUNTED = 0.75  # share of the epochs told that may be counted: ramp, tail and holes hide some
_LEAST_FOR_SHARE = 4
_FEWEST_STEPS = 20  # in an epoch, once the number of epochs is told
_LEAST_FOR_TRIALS = 4  # epochs told
_LEAST_ROLE = 0.5
_LEAST_LEFT_ROLE = 0.35  # where what was told excludes others
_TRAINS = 0.5  # probability of training below which no level is an epoch
_ONE_METRIC = 0.65  # the most that a single metric, such as the power of a node, can say of a role
_AS_RIGHT = 0.15
_LEAST_LEFT = 0.05


@dataclass(frozen=True, kw_only=True)
class RoleFeatures:
    """The place of a level in the tree, and what happens at its marks; NaN where a feature does not apply."""

    log_period_s: float
    log_cells: float
    log_count: float
    confidence: float
    template: float  # probability that the template matching gives it as an epoch
    chosen: float
    line: float
    steadiness: float
    explained: float
    spread: float
    cover: float
    depth: float
    log_width_s: float
    width_share: float
    shorter: float  # levels that are about as likely to be real
    longer: float
    log_ratio_shorter: float
    log_ratio_longer: float
    shared_marks: float  # share of the marks of the next longer level at which this one has a mark, too
    mark_load: float  # mean load in the marks, in units of that of training
    mark_least: float  # the least
    mark_busy: float  # share of the marks in which the GPU works
    mark_steady: float  # how evenly long they are: standard deviation over mean
    mark_traffic: float  # traffic in the marks, in units of that of training
    mark_most_traffic: float
    head: float  # cycles before the first mark
    tail: float  # cycles after the last one
    metrics: float
    devices: float
    training: float  # probability that the run is training
    likelier: float  # levels that are more likely to be real
    confidence_share: float  # of that of the likeliest level
    template_beside: float  # highest probability that another level is the epoch
    whole_shorter: float  # how far from whole the ratio to the next shorter level is
    whole_longer: float
    shorter_load: float  # what happens at the marks of the next shorter level, as above
    shorter_busy: float
    shorter_width_share: float
    longer_load: float
    longer_busy: float
    longer_width_share: float
    own_width_of_longer: float  # length of its marks in units of those of the next longer level
    log_count_longest: float  # cycles of the longest level that is as likely
    idle_s: float  # seconds without work in a mark
    work_s: float  # seconds of work in it
    work_load: float  # load of that work, in units of that of training
    shorter_idle_s: float
    shorter_work_s: float
    shorter_work_load: float
    longer_idle_s: float
    longer_work_s: float
    longer_work_load: float
    more_idle_s: float  # what the marks of the next longer level have more of than its own
    more_work_s: float
    fewer_idle_s: float  # what those of the next shorter one have less of
    fewer_work_s: float
    idle_share: float  # of the period
    work_share: float


ROLE_FEATURES = tuple(field.name for field in fields(RoleFeatures))
JUDGED_ROLES = (CycleRole.STEP, CycleRole.EVALUATION, CycleRole.CHECKPOINT, CycleRole.EPOCH, CycleRole.TRIAL)


def describe_roles(job: Load, levels: Sequence[JudgedLevel], training: float) -> FloatArray:
    """Describe judged levels for the scorers of the roles; shape (levels, features).

    Args:
        job: What the job does.
        levels: Shortest first.
        training: Probability that the run is training.
    """
    contents = [_MarkContent.measure(job, _marks_of(x.level)) for x in levels]
    rows = [_describe(job, levels, contents, i, training) for i in range(len(levels))]
    return np.array([[getattr(row, name) for name in ROLE_FEATURES] for row in rows]).reshape(-1, len(ROLE_FEATURES))


_OF_GUESS = (
    "log_period_s", "log_count", "confidence", "template", "chosen", "line", "depth", "width_share", "metrics",
    "devices", "training", "template_beside", "mark_load", "mark_busy",
)  # fmt: skip
GUESS_FEATURES = (
    "guess", "guess_beside", "ratio_beside", "guess_sum", "level_below", "level_beyond", "ratio_below", "ratio_beyond",
    *_OF_GUESS,
)  # fmt: skip
_NEXT = (1.5, 40.0)  # ratio of periods between which a level could be mistaken for another


def describe_guesses(features: FloatArray, guess: FloatArray) -> FloatArray:
    """Describe how each level of a job stands beside the others as the best guess of the epoch.

    Args:
        features: Shape (levels, features), what :func:`describe_roles` gives.
        guess: Shape (levels,), probability of each by itself.
    """
    if not guess.size:
        return np.empty((0, len(GUESS_FEATURES)))
    period, level = (features[:, ROLE_FEATURES.index(name)] for name in ("log_period_s", "confidence"))
    apart = period[None, :] - period[:, None]
    near = (np.abs(apart) > np.log(_NEXT[0])) & (np.abs(apart) < np.log(_NEXT[1]))
    others = np.where(np.eye(guess.size, dtype=bool), -1.0, guess)
    rows = []
    for i in range(guess.size):
        beside = int(np.argmax(others[i]))
        row = [guess[i], max(others[i, beside], 0.0), apart[i, beside], guess.sum() - guess[i]]
        for side in (near[i] & (apart[i] < 0), near[i] & (apart[i] > 0)):
            row.append(float(level[side].max(initial=0.0)))
        for side in (near[i] & (apart[i] < 0), near[i] & (apart[i] > 0)):
            row.append(float(apart[i][side][np.argmax(level[side])]) if side.any() else np.nan)
        rows.append(row)
    place = [ROLE_FEATURES.index(name) for name in _OF_GUESS]
    return np.concatenate([np.array(rows), features[:, place]], axis=1)


def name_levels(features: FloatArray, cycles: Sequence[Cycle], *, training: float) -> list[NamedLevel]:
    """Say how likely each level has each role, and is the best guess of the epoch.

    Two roles may be as right: the evaluation after each epoch has the epoch's period. What is hardly a training has
    no epochs and no trials.

    Args:
        features: What :func:`describe_roles` gives.
        cycles: The levels, placed.
        training: Probability that the run is training.
    """
    if not cycles:
        return []
    roles = np.array([Scorer.shipped(f"role_{role}", ROLE_FEATURES).probability(features) for role in JUDGED_ROLES]).T
    if training < _TRAINS:
        roles[:, [JUDGED_ROLES.index(CycleRole.EPOCH), JUDGED_ROLES.index(CycleRole.TRIAL)]] = 0.0
    _tell_work_from_checkpoints(roles, features)
    alone = Scorer.shipped("guess", ROLE_FEATURES).probability(features)
    guess = Scorer.shipped("sure", GUESS_FEATURES).probability(describe_guesses(features, alone))
    surest = np.where(features[:, ROLE_FEATURES.index("metrics")] <= 1, _ONE_METRIC, _TOLD)
    seen = features[:, [ROLE_FEATURES.index("line"), ROLE_FEATURES.index("depth")]]
    measured = (seen[:, 0] > 0) | np.isfinite(seen[:, 1])
    return [
        NamedLevel(c, r, float(g), bool(m), float(most))
        for c, r, g, m, most in zip(cycles, roles, guess, measured, surest, strict=True)
    ]


def _tell_work_from_checkpoints(roles: FloatArray, features: FloatArray) -> None:
    """Give an evaluation what speaks for a checkpoint where the only metric shows work in the marks, in place.

    A checkpoint idles the GPU. Other metrics may show one that is written in the background; of a single one, most
    often the power of a node, what is seen at work every so often is an evaluation (of those simulated 71 to 5).

    Args:
        roles: Shape (levels, roles).
        features: Shape (levels, features), what :func:`describe_roles` gives.
    """
    single = features[:, ROLE_FEATURES.index("metrics")] <= 1
    works = single & (features[:, ROLE_FEATURES.index("idle_s")] == 0)
    evaluation, checkpoint = JUDGED_ROLES.index(CycleRole.EVALUATION), JUDGED_ROLES.index(CycleRole.CHECKPOINT)
    roles[works, evaluation] = np.minimum(1.0, roles[works, evaluation] + roles[works, checkpoint])
    roles[works, checkpoint] = 0.0


def _marks_of(level: Level) -> FloatArray:
    return next((r.marks_s for r in level.readings if len(r.marks_s)), np.empty((0, 2)))


def _width_share(level: Level) -> float:
    marks = _marks_of(level)
    return median(marks[:, 1] - marks[:, 0]) / level.period_s if len(marks) else float("nan")


def _off_whole(ratio: float) -> float:
    return abs(ratio - round(ratio))


def _describe(
    job: Load, levels: Sequence[JudgedLevel], contents: Sequence[_MarkContent], index: int, training: float
) -> RoleFeatures:
    judged = levels[index]
    level, known, content = judged.level, judged.level.features, contents[index]
    likely = [i for i, x in enumerate(levels) if x.confidence >= min(_SURE, _AS_LIKELY * judged.confidence)]
    below = [i for i in likely if levels[i].level.period_s < level.period_s / _LEAST_RATIO]
    beyond = [i for i in likely if levels[i].level.period_s > level.period_s * _LEAST_RATIO]
    shorter = [levels[i].level.period_s for i in below]
    longer = [levels[i].level for i in beyond]
    marked = next((r for r in level.readings if len(r.marks_s)), None)
    above = next((r for x in longer for r in x.readings if len(r.marks_s)), None)
    nothing = _MarkContent.measure(job, np.empty((0, 2)))
    content_below = contents[below[-1]] if below else nothing
    content_beyond = contents[beyond[0]] if beyond else nothing
    beside = [x.level.features.template for i, x in enumerate(levels) if i != index]
    width = marked.width_s if marked else np.nan
    return RoleFeatures(
        log_period_s=np.log(level.period_s),
        log_cells=known.log_cells,
        log_count=known.log_cycles,
        confidence=judged.confidence,
        template=known.template,
        chosen=known.chosen,
        line=known.line,
        steadiness=known.steadiness,
        explained=known.explained,
        spread=known.spread,
        cover=known.cover,
        depth=known.depth,
        log_width_s=np.log(max(width, 1e-3)),
        width_share=known.width_share,
        shorter=len(shorter),
        longer=len(longer),
        log_ratio_shorter=np.log(level.period_s / max(shorter)) if shorter else np.nan,
        log_ratio_longer=np.log(longer[0].period_s / level.period_s) if longer else np.nan,
        shared_marks=_share_marks(marked.marks_s, above.marks_s) if marked and above else np.nan,
        mark_load=content.load,
        mark_least=content.least,
        mark_busy=content.busy,
        mark_steady=content.steady,
        mark_traffic=content.traffic,
        mark_most_traffic=content.most_traffic,
        head=(marked.marks_s[0, 0] - job.start_s) / level.period_s if marked else np.nan,
        tail=(job.end_s - marked.marks_s[-1, 1]) / level.period_s if marked else np.nan,
        metrics=len(job.names),
        devices=known.devices,
        training=training,
        likelier=sum(x.confidence > judged.confidence for x in levels),
        confidence_share=judged.confidence / max(x.confidence for x in levels),
        template_beside=max(beside, default=0.0),
        whole_shorter=_off_whole(level.period_s / shorter[-1]) if shorter else np.nan,
        whole_longer=_off_whole(longer[0].period_s / level.period_s) if longer else np.nan,
        shorter_load=content_below.load,
        shorter_busy=content_below.busy,
        shorter_width_share=_width_share(levels[below[-1]].level) if below else np.nan,
        longer_load=content_beyond.load,
        longer_busy=content_beyond.busy,
        longer_width_share=_width_share(longer[0]) if longer else np.nan,
        own_width_of_longer=width / above.width_s if marked and above and above.width_s > 0 else np.nan,
        log_count_longest=(longer[-1] if longer else level).features.log_cycles,
        idle_s=content.idle_s,
        work_s=content.work_s,
        work_load=content.work_load,
        shorter_idle_s=content_below.idle_s,
        shorter_work_s=content_below.work_s,
        shorter_work_load=content_below.work_load,
        longer_idle_s=content_beyond.idle_s,
        longer_work_s=content_beyond.work_s,
        longer_work_load=content_beyond.work_load,
        more_idle_s=content_beyond.idle_s - content.idle_s,
        more_work_s=content_beyond.work_s - content.work_s,
        fewer_idle_s=content.idle_s - content_below.idle_s,
        fewer_work_s=content.work_s - content_below.work_s,
        idle_share=content.idle_s / level.period_s,
        work_share=content.work_s / level.period_s,
    )


def _share_marks(own_s: FloatArray, other_s: FloatArray) -> float:
    """Share of the marks of another level at which this one has a mark."""
    apart = np.abs(other_s.mean(axis=1)[:, None] - own_s.mean(axis=1)).min(axis=1)
    return float((apart <= 0.5 * (median(np.diff(own_s)) + median(np.diff(other_s)))).mean())


@dataclass(frozen=True)
class _MarkContent:
    """What a job does in the marks of a level, in units of what it does elsewhere; NaN where nothing is known."""

    load: float
    least: float
    busy: float
    steady: float
    traffic: float
    most_traffic: float
    idle_s: float
    work_s: float
    work_load: float

    @classmethod
    def measure(cls, job: Load, marks_s: FloatArray) -> _MarkContent:
        """Measure it."""
        nothing = float("nan")
        cells = np.clip(np.round((marks_s - job.start_s) / job.step_s).astype(np.int64), 0, len(job))
        cells = cells[cells[:, 1] > cells[:, 0]]
        if not len(cells):
            return cls(*(nothing for _ in fields(cls)))
        inside = np.zeros(len(job) + 1, dtype=np.int64)
        np.add.at(inside, cells[:, 0], 1)
        np.add.at(inside, cells[:, 1], -1)
        within = np.cumsum(inside)[:-1] > 0
        load = job.values.mean(axis=0)
        usual = median(load[~within]) if (~within).any() else 1.0
        sums = np.concatenate([[0.0], np.cumsum(load)])
        mean = (sums[cells[:, 1]] - sums[cells[:, 0]]) / (cells[:, 1] - cells[:, 0])
        least = np.minimum.reduceat(np.append(load, np.inf), cells.ravel())[::2]
        widths = (cells[:, 1] - cells[:, 0]).astype(np.float64)
        works = load > _WORKS * usual
        worked = np.concatenate([[0], np.cumsum(works)])
        work = (worked[cells[:, 1]] - worked[cells[:, 0]]).astype(np.float64)
        traffic = most = nothing
        if len(job.traffic) and (~within).any():
            rate = job.traffic.sum(axis=0)
            outside = float(rate[~within].mean()) + 1e-3
            traffic = float(rate[within].mean()) / outside
            most = float(np.median(np.maximum.reduceat(np.append(rate, 0.0), cells.ravel())[::2])) / outside
        return cls(
            median(mean) / max(usual, 1e-3), median(least) / max(usual, 1e-3), float((load[within] > _WORKS).mean()),
            float(widths.std() / widths.mean()), traffic, most, median(widths - work) * job.step_s,
            median(work) * job.step_s,
            float(load[within & works].mean()) / max(usual, 1e-3) if (within & works).any() else nothing,
        )  # fmt: skip


@dataclass(frozen=True)
class Told:
    """What a user knows of the job.

    Attributes:
        total_epochs: Epochs that the whole job has; None if unknown.
        steps_per_epoch: Optimizer steps in an epoch; None if unknown.
        roles: (seconds, role): what the cycle of about so many seconds is.
    """

    total_epochs: int | None = None
    steps_per_epoch: int | None = None
    roles: tuple[tuple[float, CycleRole], ...] = ()

    def __bool__(self) -> bool:
        return self.total_epochs is not None or self.steps_per_epoch is not None or bool(self.roles)

    def excludes(self, epochs: int) -> bool:
        """Whether a job of which this is true cannot have so many epochs; one that was cut off may have fewer."""
        return self.total_epochs is not None and epochs > self.total_epochs + max(1.0, _MORE * self.total_epochs)

    def refute(self, found: EpochDetection) -> str:
        """Say why what was found is not the job's epochs."""
        reason = "what was told refutes every cycle as the epoch"
        if self.excludes(found.epoch_starts_s.size):
            counted = f"{found.epoch_starts_s.size} cycles of {found.period_s:.4g} s repeat"
            reason += f": {counted}, and the job is said to have {self.total_epochs} epochs"
        return reason


@dataclass(frozen=True)
class NamedLevel:
    """A level of the tree with what speaks for each of its names.

    Attributes:
        cycle: The level, placed.
        roles: Shape (roles,), probability of each of :data:`JUDGED_ROLES`.
        guess: Probability that it is the best guess of the epoch.
        measured: Whether events or a line show it, not template matching alone.
        surest: Highest confidence that what was recorded allows for a role.
    """

    cycle: Cycle
    roles: FloatArray
    guess: float
    measured: bool = True
    surest: float = _TOLD

    def named(self, role: CycleRole, confidence: float) -> NamedLevel:
        """Give it a role."""
        return replace(self, cycle=replace(self.cycle, role=role, role_confidence=confidence))


@dataclass(frozen=True)
class Settled:
    """Levels with their roles.

    Attributes:
        levels: The levels, shortest first; one that follows from what was told may have come in.
        epoch: Index of the level that is the epoch by what was told; None if that does not say.
        refuted: Indices of levels that cannot be the epoch.
        warnings: What was told and fits nothing.
    """

    levels: tuple[NamedLevel, ...]
    epoch: int | None
    refuted: frozenset[int]
    warnings: tuple[str, ...]


def settle(found: Sequence[NamedLevel], told: Told, *, ended: bool, span_s: float) -> Settled:
    """Let what a user tells refute and name levels, and the fitted probabilities the others.

    Args:
        found: The levels, shortest first.
        told: What is known.
        ended: Whether the run is over; while it is not, it may have fewer epochs than the job.
        span_s: Seconds from the first work to the last.
    """
    levels, warnings = list(found), []
    for period_s, role in told.roles:
        off = [abs(np.log(x.cycle.period_s / period_s)) for x in levels]
        if off and min(off) <= _SAME:
            at = int(np.argmin(off))
            levels[at] = levels[at].named(role, 1.0)
        else:
            warnings.append(f"no cycle of about {period_s:g} s was found, so that none can be the {role}")
    named = {i for i, x in enumerate(levels) if x.cycle.role_confidence == 1.0}
    refuted = {i for i in named if levels[i].cycle.role != CycleRole.EPOCH}
    epoch = next((i for i in named if levels[i].cycle.role == CycleRole.EPOCH), None)
    if told.total_epochs is not None:
        refuted |= {i for i, x in enumerate(levels) if told.excludes(x.cycle.count)} - {epoch}
    if epoch is None and told.steps_per_epoch is not None:
        epoch = _by_steps(levels, told.steps_per_epoch, refuted)
        if epoch is None:
            warnings.append(f"no two cycles are as {told.steps_per_epoch} steps to an epoch")
    if epoch is None and told.total_epochs is not None and ended:
        epoch = _by_count(levels, told.total_epochs, refuted, span_s)
    if epoch is not None and levels[epoch].cycle.role_confidence < 1.0:
        levels[epoch] = levels[epoch].named(CycleRole.EPOCH, _TOLD)
    order = sorted(range(len(levels)), key=lambda i: levels[i].cycle.period_s)
    place = {old: new for new, old in enumerate(order)}
    epoch = None if epoch is None else place[epoch]
    refuted = {place[i] for i in refuted}
    ordered = [_name(levels[i], _excluded(levels[i], place[i], epoch, place[i] in refuted, told, ended)) for i in order]
    return Settled(tuple(ordered), epoch, frozenset(refuted), tuple(warnings))


def _excluded(level: NamedLevel, at: int, epoch: int | None, refuted: bool, told: Told, ended: bool) -> set[CycleRole]:
    """Roles that a level cannot have by what was told."""
    excluded = set()
    # Of a run that is over the level with as many cycles as it had epochs was looked for.
    if refuted or epoch is not None or (ended and told.total_epochs is not None):
        excluded.add(CycleRole.EPOCH)
    if epoch is not None:
        excluded |= {CycleRole.STEP} if at > epoch else {CycleRole.TRIAL}
    if told.total_epochs is not None:
        if ended and level.cycle.count < _FEWEST_STEPS * told.total_epochs:
            excluded.add(CycleRole.STEP)
        if told.total_epochs < _LEAST_FOR_TRIALS:
            excluded.add(CycleRole.TRIAL)
    return excluded


def _name(level: NamedLevel, excluded: set[CycleRole]) -> NamedLevel:
    """Give a level the likeliest role that nothing excludes, if it is likely enough."""
    if level.cycle.role_confidence > 0:
        return level
    left = np.array([role not in excluded for role in JUDGED_ROLES])
    likely, least = np.where(left, level.roles, 0.0), _LEAST_ROLE
    if excluded:
        least = _LEAST_LEFT_ROLE
        # What is excluded leaves its probability to the others, and to there being no name.
        alone = likely / max(_LEAST_LEFT, 1.0 - float(level.roles[~left].max(initial=0.0)))
        shared = likely / (likely.sum() + max(_LEAST_LEFT, 1.0 - float(level.roles.sum())))
        likely = np.maximum(alone, shared)
    best, as_epoch = int(np.argmax(likely)), JUDGED_ROLES.index(CycleRole.EPOCH)
    # An evaluation after each epoch makes both right: the epoch is the better name.
    if likely[as_epoch] >= max(_LEAST_ROLE, likely[best] - _AS_RIGHT):
        best = as_epoch
    if likely[best] < least:
        return level
    sure = min(float(likely[best]), level.surest)
    if best == as_epoch and not excluded:
        # A real level that is the epoch is the right best guess, so it is no likelier to be the epoch than to be that.
        sure = min(sure, level.guess / max(level.cycle.confidence, level.guess))
    return level.named(JUDGED_ROLES[best], sure)


def _by_steps(levels: list[NamedLevel], steps: int, refuted: set[int]) -> int | None:
    """Index of the level that has so many of a shorter one, which is the step; a new one if there is only the step."""
    pairs = [
        (abs(np.log(b.cycle.period_s / a.cycle.period_s / steps)), i, j)
        for i, a in enumerate(levels)
        for j, b in enumerate(levels)
        if b.cycle.period_s > a.cycle.period_s
        and j not in refuted
        and a.cycle.role in (CycleRole.STEP, CycleRole.UNKNOWN)
    ]
    off, step, epoch = min(pairs, default=(np.inf, 0, 0))
    if off <= _RATIO:
        if levels[step].cycle.role_confidence < 1:
            levels[step] = levels[step].named(CycleRole.STEP, _TOLD)
        return epoch
    known = [x for x in levels if x.cycle.role == CycleRole.STEP and x.cycle.role_confidence == 1.0]
    if not known or known[0].cycle.starts_s.size <= steps:
        return None
    levels.append(_every(known[0], steps))
    return len(levels) - 1


def _by_count(levels: list[NamedLevel], total: int, refuted: set[int], span_s: float) -> int | None:
    """Index of the level with as many cycles as the job has epochs, or of a new one that so many of a shorter make.

    Of several the one whose cycles fill the run is the likelier: of a level that was seen here and there only, as many
    may have been counted by chance.
    """
    free = [
        i for i, x in enumerate(levels) if i not in refuted and x.cycle.role in (CycleRole.EPOCH, CycleRole.UNKNOWN)
    ]
    filled = [total * x.cycle.period_s / span_s for x in levels]
    as_many = max(1.0, _MORE * total)
    equal = [
        i for i in free if abs(levels[i].cycle.count - total) <= as_many or abs(total / filled[i] - total) <= as_many
    ]
    if equal and total > 1:
        return max(equal, key=lambda i: levels[i].guess * min(filled[i], 1 / filled[i]))
    near = [i for i in free if _LEAST_COUNTED * total <= levels[i].cycle.count <= total]
    if near and total >= _LEAST_FOR_SHARE:
        return max(near, key=lambda i: levels[i].cycle.count)
    children = [
        (x.cycle.confidence, i, times)
        for i, x in enumerate(levels)
        if x.cycle.confidence >= _LEAST_CONFIDENCE and x.cycle.role != CycleRole.STEP
        if (times := round(x.cycle.count / total)) > 1 and abs(x.cycle.count - times * total) <= 1
    ]
    if not children or free or total < _LEAST_TOTAL:
        return None
    _, child, times = max(children)
    levels.append(_every(levels[child], times))
    return len(levels) - 1


def _every(level: NamedLevel, times: int) -> NamedLevel:
    """Make the level of which each cycle holds so many of another one."""
    cycle = level.cycle
    made = replace(
        cycle,
        period_s=times * cycle.period_s,
        period_low_s=times * cycle.period_low_s,
        period_high_s=times * cycle.period_high_s,
        count=cycle.count // times,
        starts_s=cycle.starts_s[::times],
        role=CycleRole.UNKNOWN,
        role_confidence=0.0,
    )
    return NamedLevel(made, np.zeros(len(JUDGED_ROLES)), cycle.confidence)
