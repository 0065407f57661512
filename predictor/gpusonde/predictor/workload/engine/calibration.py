"""``CalibratedRoofline``: roofline times corrected by what was measured, the regressor of few features.

A step takes::

    device = sum of the device's parts      host = sum of the host's parts
    seconds = (device ** p + host ** p) ** (1 / p) + exchange + input + fixed

as the host runs ahead of the device, and the slower of the two decides. Each part is its roofline time times a factor::

    log factor = common + passes + precision + device + environment + (environment, device, precision)
                 + (..., number of devices)

Every term has a normal prior around nothing, the common one around what the field knows, so that a factor moves as far
as measurements show: what no measurement tells of (a device, an environment, a part that no measured network has) keeps
the factor of what is next to it. All are found together, as the mode of the posterior, by Gauss-Newton steps; errors
are those of the logarithm, with Student's t distribution, as single measurements are off by factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpusonde.predictor.workload.engine.features import DEVICE_PARTS, HOST_PARTS, OTHER_PARTS, FeatureTable, StepPart

FloatArray = npt.NDArray[np.float64]
IndexArray = npt.NDArray[np.intp]

LEVELS = ("passes", "precision", "device", "environment", "setting", "setting and count")

# How many times the roofline's time a part takes, before any measurement: half of the peak rate of matrix products,
# with algorithms that save half of the operations where there are such, a fifth of it in grouped ones, two thirds of
# the memory's; weights of convolutions are read and reordered several times.
_USUAL_FACTORS = {
    StepPart.DENSE: 1.0,
    StepPart.POINTWISE: 2.0,
    StepPart.SPATIAL: 2.0,
    StepPart.LINEAR: 1.3,
    StepPart.THIN: 1.5,
    StepPart.UNEVEN: 3.0,
    StepPart.ATTENTION: 2.0,
    StepPart.GROUPED: 3.0,
    StepPart.WIDE: 3.0,
    StepPart.UNTUNED: 6.0,
    StepPart.DEPTHWISE: 3.0,
    StepPart.UNALIGNED: 1.0,
    StepPart.NORMALISATION: 1.5,
    StepPart.ROWWISE: 1.5,
    StepPart.SOFTMAX: 1.5,
    StepPart.GROUPWISE: 1.5,
    StepPart.POOLING: 3.0,
    StepPart.ACTIVATION: 1.5,
    StepPart.MEMORY: 1.5,
    StepPart.KERNELS: 5.0,
    StepPart.LAYOUT: 1.0,
    StepPart.UPDATE: 1.0,
    StepPart.LAUNCH: 1.0,
    StepPart.REPLICAS: 0.5,
    StepPart.EXCHANGE: 2.0,
    StepPart.INPUT: 1.0,
    StepPart.FIXED: 1.0,
}
_COMMON_DEVIATIONS = np.ones(len(StepPart))
# No product is faster than the peak, and large ones come near it.
_COMMON_DEVIATIONS[StepPart.LINEAR] = 0.2
# Of the levels, in their order: the more special one is, the less it may explain.
_LEVEL_DEVIATIONS = (0.4, 0.4, 0.4, 0.4, 0.25, 0.15)
# Of that, by part: what the host takes to start a kernel does not change with precision or device, and where little is
# bound by it, it must not stand in for what else is missing.
_FREEDOM = np.ones(len(StepPart))
_FREEDOM[[StepPart.LAUNCH, StepPart.UPDATE, StepPart.LINEAR]] = 0.1, 0.5, 0.4
_OVERLAP = 2.5
_NOISE = 0.1
_DEGREES_OF_FREEDOM = 4.0
_STEPS = 12
_STEPS_FROM_NEAR = 5
_SETTLED = 2e-3
_LARGEST_STEP = 1.0
_TELLING = 1e-6


def name_levels(table: FeatureTable) -> tuple[npt.NDArray[np.str_], ...]:
    """Return what each row is at each level; "" where it is nothing that could be known again."""
    environment, device, precision = table.environment, table.device, table.precision
    setting = _join(_join(environment, device), precision)
    devices = np.round(np.exp(table.cluster[:, 0])).astype(int)
    counted = _join(setting, _join(table.parallelism, devices.astype(str)))
    known = environment != ""
    own = np.where(known, setting, "")
    return table.passes, precision, device, environment, own, np.where(known & (devices > 1), counted, "")


def _join(one: npt.NDArray[np.str_], other: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    return np.char.add(np.char.add(one, " | "), other)


@dataclass(frozen=True)
class CalibratedRoofline:
    """Fitted factors, as natural logarithms.

    Attributes:
        common: Of each part, shape (parts,).
        names: Of each level, what has deviations.
        deviations: Of each level, shape (names, parts).
    """

    common: FloatArray
    names: tuple[tuple[str, ...], ...]
    deviations: tuple[FloatArray, ...]

    def log_seconds(self, table: FeatureTable) -> FloatArray:
        """Return the natural logarithm of the seconds of each row, shape (n,)."""
        factors = np.tile(self.common, (len(table), 1))
        for names, deviations, keys in zip(self.names, self.deviations, name_levels(table), strict=True):
            # The last row is that of what has no deviation.
            padded = np.vstack([deviations, np.zeros(len(StepPart))])
            factors += padded[_find_positions(names, keys)]
        return _combine(np.log(table.parts) + factors)[0]

    @classmethod
    def fit(
        cls, table: FeatureTable, log_seconds: FloatArray, *, near: CalibratedRoofline | None = None
    ) -> CalibratedRoofline:
        """Find the factors.

        Args:
            table: What was measured.
            log_seconds: Natural logarithm of the seconds, shape (n,).
            near: Begin at these factors, which were fitted to nearly the same rows: the same result sooner.
        """
        keys = name_levels(table)
        names = tuple(tuple(sorted({key for key in each.tolist() if key})) for each in keys)
        layout = _TermIndex.of(names, keys)
        prior = np.log([_USUAL_FACTORS[part] for part in StepPart])
        state = layout.start(prior, near)
        log_parts = np.log(table.parts)
        weights = np.ones(len(table))
        for step in range(_STEPS if near is None else _STEPS_FROM_NEAR):
            predicted, shares = _combine(log_parts + layout.factors(state, prior))
            error = log_seconds - predicted
            if step or near is not None:
                weights = (_DEGREES_OF_FREEDOM + 1) / (_DEGREES_OF_FREEDOM + (error / _NOISE) ** 2)
            move = layout.solve(shares, weights / _NOISE**2, error, state)
            state = state + np.clip(move, -_LARGEST_STEP, _LARGEST_STEP)
            if np.abs(move).max() < _SETTLED:
                break
        parts = len(StepPart)
        blocks = np.split(state.reshape(-1, parts)[1:], np.cumsum([len(each) for each in names])[:-1])
        return cls(prior + state[:parts], names, tuple(blocks))


@dataclass(frozen=True)
class _TermIndex:
    """Where in the vector of unknowns each row finds its terms: the common one, then level by level."""

    names: tuple[tuple[str, ...], ...]
    blocks: IndexArray  # (n, levels + 1); one past the last block is that of what has no deviation
    count: int
    shared: int  # the first blocks: of what rows of several environments have
    environments: tuple[_EnvironmentRows, ...]
    precisions: FloatArray  # of the prior, (count * parts,)

    @classmethod
    def of(cls, names: tuple[tuple[str, ...], ...], keys: Sequence[npt.NDArray[np.str_]]) -> _TermIndex:
        sizes = [len(each) for each in names]
        count = 1 + sum(sizes)
        columns = [np.zeros(len(keys[0]), dtype=np.intp)]
        first = 1
        for own, level, size in zip(names, keys, sizes, strict=True):
            positions = _find_positions(own, level)
            columns.append(np.where(positions < 0, count, first + positions))
            first += size
        deviations = [1.0]
        for size, deviation in zip(sizes, _LEVEL_DEVIATIONS, strict=True):
            deviations += [deviation] * size
        allowed = np.array(deviations)[:, None] * np.where(np.arange(count)[:, None] == 0, _COMMON_DEVIATIONS, _FREEDOM)
        blocks = np.stack(columns, axis=1)
        place = LEVELS.index("environment")
        environments = tuple(
            _EnvironmentRows.of(blocks, np.flatnonzero(blocks[:, 1 + place] == each), count)
            for each in np.unique(blocks[:, 1 + place])
        )
        return cls(names, blocks, count, 1 + sum(sizes[:place]), environments, allowed.ravel() ** -2.0)

    def start(self, prior: FloatArray, near: CalibratedRoofline | None) -> FloatArray:
        state = np.zeros((self.count, len(StepPart)))
        if near is not None:
            state[0] = near.common - prior
            first = 1
            for own, names, deviations in zip(self.names, near.names, near.deviations, strict=True):
                known: Mapping[str, FloatArray] = dict(zip(names, deviations, strict=True))
                for position, name in enumerate(own):
                    if name in known:
                        state[first + position] = known[name]
                first += len(own)
        return state.ravel()

    def factors(self, state: FloatArray, prior: FloatArray) -> FloatArray:
        padded = np.vstack([state.reshape(self.count, -1), np.zeros(len(prior))])
        summed: FloatArray = prior + padded[self.blocks].sum(axis=1)
        return summed

    def solve(self, shares: FloatArray, weights: FloatArray, error: FloatArray, state: FloatArray) -> FloatArray:
        """Make one Gauss-Newton step of the posterior's mode.

        Two environments meet in the shared blocks alone: the unknowns of each are eliminated on their own.
        """
        from scipy.linalg import cho_factor, cho_solve  # noqa: PLC0415

        parts = shares.shape[1]
        weighted = weights[:, None] * shares
        # What no row tells of returns to its prior and moves nothing else; that is every second unknown.
        told = self._add_up(weighted * shares) > _TELLING * self.precisions
        gradient = self._add_up(weighted * error[:, None]) - self.precisions * state
        size = self.shared * parts
        normal, wanted = np.diag(self.precisions[:size]), gradient[:size].copy()
        eliminated = []
        for each in self.environments:
            unknowns = (each.blocks[:, None] * parts + np.arange(parts)).ravel()
            kept = told[unknowns]
            unknowns, matrix = unknowns[kept], each.add_up_products(shares, weighted)[np.ix_(kept, kept)]
            first = int(np.searchsorted(unknowns, size))
            outer, own = unknowns[:first], unknowns[first:]
            inner, across = matrix[first:, first:], matrix[first:, :first]
            inner[np.diag_indices_from(inner)] += self.precisions[own]
            factor = cho_factor(inner, lower=True, check_finite=False)
            found = cho_solve(factor, np.column_stack([across, gradient[own]]), check_finite=False)
            normal[np.ix_(outer, outer)] += matrix[:first, :first] - across.T @ found[:, :-1]
            wanted[outer] -= across.T @ found[:, -1]
            eliminated.append((outer, own, found))
        step = -state
        kept = np.flatnonzero(told[:size])
        step[kept] = cho_solve(cho_factor(normal[np.ix_(kept, kept)], check_finite=False), wanted[kept])
        for outer, own, found in eliminated:
            step[own] = found[:, -1] - found[:, :-1] @ step[outer]
        return step

    def _add_up(self, values: FloatArray) -> FloatArray:
        """Return the sum over the rows of each block, of values of shape (n, parts)."""
        parts = values.shape[1]
        columns = self.blocks[:, :, None] * parts + np.arange(parts)
        weights = np.broadcast_to(values[:, None, :], columns.shape)
        size = self.count * parts
        summed: FloatArray = np.bincount(columns.ravel(), weights.ravel(), minlength=size)[:size].astype(np.float64)
        return summed


@dataclass(frozen=True)
class _EnvironmentRows:
    """Rows of one environment, or of none that is known.

    Attributes:
        blocks: All that they have terms in, shared ones first.
        alike: Rows with terms in the same blocks, and where among ``blocks`` these are.
    """

    blocks: IndexArray
    alike: tuple[tuple[IndexArray, IndexArray], ...]

    @classmethod
    def of(cls, blocks: IndexArray, rows: IndexArray, count: int) -> _EnvironmentRows:
        kinds, inverse = np.unique(blocks[rows], axis=0, return_inverse=True)
        own = np.unique(kinds[kinds < count])
        alike = (
            (rows[inverse == number], np.searchsorted(own, kind[kind < count])) for number, kind in enumerate(kinds)
        )
        return cls(own, tuple(alike))

    def add_up_products(self, shares: FloatArray, weighted: FloatArray) -> FloatArray:
        """Return the normal matrix of its blocks without the prior."""
        count, parts = len(self.blocks), shares.shape[1]
        products = np.zeros((count, count, parts, parts))
        for rows, positions in self.alike:
            products[positions[:, None], positions] += weighted[rows].T @ shares[rows]
        normal: FloatArray = products.transpose(0, 2, 1, 3).reshape(count * parts, -1)
        return normal


def _find_positions(names: Sequence[str], keys: npt.NDArray[np.str_]) -> IndexArray:
    """Return the position of each key among the names, -1 where it is none of them."""
    position = {name: number for number, name in enumerate(names)}
    found, inverse = np.unique(keys, return_inverse=True)
    of_found = np.array([position.get(key, -1) for key in found.tolist()], dtype=np.intp)
    return of_found[inverse]


def _combine(log_parts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a step's log seconds, and how much each part's logarithm moves them, shape (n,) and (n, parts)."""
    parts = np.exp(log_parts)
    device = parts[:, DEVICE_PARTS].sum(axis=1)
    host = parts[:, HOST_PARTS].sum(axis=1)
    both = (device**_OVERLAP + host**_OVERLAP) ** (1 / _OVERLAP)
    seconds = both + parts[:, OTHER_PARTS].sum(axis=1)
    shares = parts / seconds[:, None]
    shares[:, DEVICE_PARTS] *= ((device / both) ** (_OVERLAP - 1))[:, None]
    shares[:, HOST_PARTS] *= ((host / both) ** (_OVERLAP - 1))[:, None]
    return np.log(seconds), shares
