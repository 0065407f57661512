"""``AllreduceModel``: bus bandwidth, with its spread, of allreduces of any size among any number of devices."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np

from gpusonde.errors import ProblemError
from gpusonde.simulator.allreduce.boosting import PaperModel, Residual, learn_residual
from gpusonde.simulator.allreduce.curves import (
    MOST_OTHERS,
    FloatArray,
    LinkCurves,
    LocatedCurves,
    LogBandwidth,
    smooth_curves,
)
from gpusonde.simulator.allreduce.history import Decay, make_size_curve, select_newest
from gpusonde.simulator.allreduce.measurements import KNOWN_TOPOLOGIES, AllreduceMeasurement, Link, LinkTopology
from gpusonde.simulator.iteration import BusBandwidth, NetworkModel

# Probes a month old count half: networks change rarely, by upgrades.
DEFAULT_HALF_LIFE_S = 30 * 86_400.0
# A machine is taken for one with unlike links only when that explains its world sizes at least this much better ...
_BETTER = 0.5
# ... and when they need an explanation.
_NEEDS_EXPLANATION = 0.15
_WORLDS_TO_TELL = 4
# What other fabrics say about one that nobody measured: a factor of e either way is within one standard deviation.
_OTHER_FABRIC_SPREAD = 1.0


# How a model predicts: by interpolation in logarithms, with a boosted residual where it helps, or by Srifty's two
# XGBoost models.
ModelKind: TypeAlias = Literal["default", "paper"]
# Whether the default corrects its interpolation with boosted trees: where there is enough data and cross-validation
# shows a gain, or never.
ResidualUse: TypeAlias = Literal["auto", "off"]


@dataclass(frozen=True)
class AllreduceModel:
    """Made by ``fit`` from measurements; ``network`` gives one fabric's figures.

    Attributes:
        measurements: What it rests on.
        kind: How it predicts.
        decay: How measurements lose weight with time.
        topologies: Fabric -> direct links inside of its machines, as given.
        residual_use: Whether a residual may be learnt.
        links: Link -> its curves.
        residual: The residual in use, or None.
        paper: The paper's models, or None.
    """

    measurements: tuple[AllreduceMeasurement, ...]
    kind: ModelKind
    decay: Decay
    topologies: Mapping[str, LinkTopology]
    residual_use: ResidualUse
    links: Mapping[Link, LinkCurves] = field(repr=False)
    residual: Residual | None = field(repr=False)
    paper: PaperModel | None = field(repr=False)

    @classmethod
    def fit(
        cls,
        measurements: Iterable[AllreduceMeasurement],
        *,
        kind: ModelKind = "default",
        now_s: float | None = None,
        half_life_s: float = DEFAULT_HALF_LIFE_S,
        topologies: Mapping[str, LinkTopology] | None = None,
        residual: ResidualUse = "auto",
    ) -> AllreduceModel:
        """Return the model of measurements, in any order.

        Args:
            measurements: One or more. Of every configuration the newest are kept.
            kind: "default" or "paper".
            now_s: Unix time in seconds that ages are counted from; None: the newest measurement.
            half_life_s: Seconds after which a measurement counts half.
            topologies: Fabric -> direct links inside of its machines, where devices do not see each other alike.
            residual: "auto" or "off"; of the default only.

        Raises:
            ValueError: No measurements, or an unknown kind or use of a residual.
            CommandError: The paper's kind without XGBoost.
        """
        decay = Decay(half_life_s, now_s)
        found = select_newest(measurements, decay)
        if not found:
            raise ValueError("an allreduce model needs measurements: take some with gpusonde probe allreduce")
        told = dict(topologies or {})
        links = fit_link_curves(found, decay, told)
        if kind not in get_args(ModelKind) or residual not in get_args(ResidualUse):
            raise ValueError(f"there is no allreduce model {kind!r} with the residual {residual!r}")
        is_default = kind == "default"
        return cls(
            measurements=found,
            kind=kind,
            decay=decay,
            topologies=told,
            residual_use=residual,
            links=links,
            residual=learn_residual(links) if is_default and residual == "auto" else None,
            paper=None if is_default else PaperModel(found, decay),
        )

    def update(self, measurements: Iterable[AllreduceMeasurement], now_s: float | None = None) -> AllreduceModel:
        """Return the model with new measurements; older ones count less, by their age at ``now_s`` (Unix seconds)."""
        return AllreduceModel.fit(
            (*self.measurements, *measurements),
            kind=self.kind,
            now_s=now_s,
            half_life_s=self.decay.half_life_s,
            topologies=self.topologies,
            residual=self.residual_use,
        )

    @property
    def fabrics(self) -> tuple[str, ...]:
        """Names of the fabrics that were measured."""
        return tuple(sorted({link.fabric for link in self.links}))

    def network(
        self,
        fabric: str,
        *,
        device: str = "",
        location: str = "",
        assume: bool = False,
        beyond: NetworkModel | None = None,
    ) -> FabricNetwork:
        """Return what allreduces reach on a fabric.

        With a device or a location that was not measured on it, or none, those measured count together, and their
        differences go into the spread.

        Args:
            fabric: Its name.
            device: GPU, or empty.
            location: Cloud, region and zone, or empty.
            assume: For a fabric that nobody measured: take all others, those with the same device if there are some,
                and a spread of a factor of e or more, instead of an error.
            beyond: What to take for worlds of several machines where only the inside of one was measured; None: an
                error.

        Raises:
            ProblemError: Nothing was measured on it, and ``assume`` is false.
        """
        links = [link for link in sorted(self.links) if link.fabric == fabric]
        basis = "measured"
        if not links:
            if not assume:
                raise ProblemError(self._unknown(fabric))
            links, basis = sorted(self.links), "assumed from other fabrics"
        for name, wanted in (("device", device), ("location", location)):
            same = [link for link in links if getattr(link, name) == wanted]
            if same:
                links = same
            elif wanted and basis == "measured":
                basis = f"measured with another {name}"
        return FabricNetwork(self, tuple(links), basis, beyond)

    def _unknown(self, fabric: str) -> str:
        near = difflib.get_close_matches(fabric, self.fabrics, n=3, cutoff=0.4) or list(self.fabrics[:3])
        names = ", ".join(f'"{name}"' for name in near)
        return (
            f'no allreduce was measured on "{fabric}"; {len(self.fabrics)} fabrics were, among them {names}. '
            "Measure it with gpusonde probe allreduce, or allow assumptions from other fabrics"
        )


@dataclass(frozen=True)
class FabricNetwork:
    """A model's figures for one fabric; a ``NetworkModel`` of the iteration simulator.

    Attributes:
        model: The model.
        links: Which links count.
        basis: What the figures rest on, for people.
        beyond: What counts across machines where only the inside of one was measured; None: nothing does.
    """

    model: AllreduceModel
    links: tuple[Link, ...]
    basis: str
    beyond: NetworkModel | None = None

    @property
    def is_assumed(self) -> bool:
        """Whether nothing was measured on this fabric."""
        return self.basis.startswith("assumed")

    def bus_bandwidth(
        self, transfer_bytes: FloatArray | Sequence[float], world_size: int, concurrent: int = 1
    ) -> BusBandwidth:
        """Return the bus bandwidth of each of ``concurrent`` transfers at a time.

        Args:
            transfer_bytes: Shape (n,), sizes of the buffers.
            world_size: Number of devices, 2 or more.
            concurrent: Transfers at a time.

        Raises:
            ValueError: A size that is not above zero, or a world of less than two devices.
            ProblemError: A world of several machines where only the inside of one was measured.
        """
        sizes = np.atleast_1d(np.asarray(transfer_bytes, dtype=np.float64))
        if not (np.isfinite(sizes).all() and (sizes > 0).all()):
            raise ValueError("sizes of transfers must be finite and above zero")
        if world_size < 2 or concurrent < 1:
            raise ValueError("an allreduce has two devices or more, and one transfer or more")
        links = [link for link in self.links if not self.model.links[link].crosses_unmeasured(world_size)]
        if not links and not self.is_assumed:
            return self._beyond(sizes, world_size)
        if self.model.paper is not None:
            return self._paper(self.model.paper, sizes, world_size, concurrent)
        links = links or list(self.links)
        found = [self._bandwidth_on_link(link, np.log(sizes), world_size, concurrent) for link in links]
        weights = np.array([self._weight(link) for link in links])
        weights = weights / weights.sum()
        means, spreads = np.array([one.mean for one in found]), np.array([one.spread for one in found])
        mean = weights @ means
        spread = np.sqrt(weights @ (spreads**2 + (means - mean) ** 2))
        if self.is_assumed:
            spread = np.maximum(spread, _OTHER_FABRIC_SPREAD)
        # Sizes of a few bytes on links as slow as anyone's: far inside of what a double holds.
        return BusBandwidth(np.exp(np.clip(mean, -300.0, 300.0)), spread)

    def seconds(self, transfer_bytes: FloatArray | Sequence[float], world_size: int, concurrent: int = 1) -> FloatArray:
        """Return the duration of each of ``concurrent`` transfers at a time, shape (n,)."""
        sizes = np.atleast_1d(np.asarray(transfer_bytes, dtype=np.float64))
        reached = self.bus_bandwidth(sizes, world_size, concurrent).bytes_per_second
        return np.asarray(2.0 * sizes * (world_size - 1) / (world_size * reached))

    def _beyond(self, sizes: FloatArray, world_size: int) -> BusBandwidth:
        if self.beyond is not None:
            return self.beyond.bus_bandwidth(sizes, world_size)
        inside = max(self.model.links[link].devices_per_machine for link in self.links)
        raise ProblemError(
            f'"{self.links[0].fabric}" was measured inside of one machine only: {world_size} devices need several of '
            f"{inside}. Run gpusonde probe allreduce across machines"
        )

    def _bandwidth_on_link(self, link: Link, log_bytes: FloatArray, world_size: int, concurrent: int) -> LogBandwidth:
        curves = self.model.links[link]
        found = curves.predict(log_bytes, world_size, concurrent)
        residual = self.model.residual
        if residual is None:
            return found
        change = residual.correction(link, curves, log_bytes, world_size, concurrent)
        return LogBandwidth(found.mean + change, found.spread)

    def _weight(self, link: Link) -> float:
        return max(curve.weight for curve in self.model.links[link].curves.values())

    def _paper(self, paper: PaperModel, sizes: FloatArray, world_size: int, concurrent: int) -> BusBandwidth:
        found = np.mean([paper.bytes_per_second(link, sizes, world_size, concurrent) for link in self.links], axis=0)
        return BusBandwidth(np.asarray(found), np.zeros(sizes.shape))


def fit_link_curves(
    measurements: Sequence[AllreduceMeasurement], decay: Decay, topologies: Mapping[str, LinkTopology]
) -> dict[Link, LinkCurves]:
    """Return the curves of every link.

    Args:
        measurements: Of any links.
        decay: How they lose weight with time.
        topologies: Fabric -> direct links inside of its machines. Of a fabric that is not named here a known topology
            is assumed where its world sizes show it.
    """
    of_links: dict[Link, list[AllreduceMeasurement]] = defaultdict(list)
    for one in measurements:
        of_links[Link.from_measurement(one)].append(one)
    curves = {link: _fit_curves(found, decay, topologies.get(link.fabric)) for link, found in of_links.items()}
    of_fabrics: dict[tuple[str, str], list[Link]] = defaultdict(list)
    for link in sorted(of_links, key=lambda each: (-len(of_links[each]), each)):
        of_fabrics[link.fabric, link.device].append(link)
    located: dict[Link, LinkCurves] = {}
    for link, own in curves.items():
        others = [curves[each] for each in of_fabrics[link.fabric, link.device] if each != link][:MOST_OTHERS]
        if others:
            machine = own.devices_per_machine or max(each.devices_per_machine for each in others)
            topology = own.topology or next((each.topology for each in others if each.topology), None)
            located[link] = LocatedCurves(own.curves, topology, machine, tuple(others))
    return {**curves, **located}


def _fit_curves(
    measurements: Sequence[AllreduceMeasurement], decay: Decay, topology: LinkTopology | None
) -> LinkCurves:
    of_worlds: dict[tuple[int, int], list[AllreduceMeasurement]] = defaultdict(list)
    for one in measurements:
        of_worlds[one.world_size, one.concurrent].append(one)
    curves = smooth_curves({key: make_size_curve(found, decay) for key, found in sorted(of_worlds.items())})
    devices = max(one.devices_per_machine for one in measurements)
    if topology is not None:
        return LinkCurves(curves, topology, devices or topology.devices)
    plain = LinkCurves(curves, None, devices)
    return min((plain, *_explanations(plain)), key=_unexplained)


def _explanations(plain: LinkCurves) -> list[LinkCurves]:
    """The same curves on known machines that explain them far better."""
    worlds = {world for world, _ in plain.curves}
    if len(worlds) < _WORLDS_TO_TELL or _unexplained(plain) < _NEEDS_EXPLANATION:
        return []
    found = []
    for topology in KNOWN_TOPOLOGIES.values():
        if max(worlds) <= topology.devices:
            told = LinkCurves(plain.curves, topology, plain.devices_per_machine or topology.devices)
            if _unexplained(told) < _BETTER * _unexplained(plain):
                found.append(told)
    return found


def _unexplained(curves: LinkCurves) -> float:
    return max(curves.world_spreads.values(), default=0.0)
