"""From measurements to curves, one ``LinkCurves`` per link."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gpusonde.simulator.allreduce.curves.interpolation import MOST_OTHERS, LinkCurves, LocatedCurves, smoothed
from gpusonde.simulator.allreduce.history import Decay, size_curve
from gpusonde.simulator.allreduce.measurements import KNOWN_TOPOLOGIES, AllreduceMeasurement, Link, LinkTopology

# A machine is taken for one with unlike links only when that explains its world sizes at least this much better ...
_BETTER = 0.5
# ... and when they need an explanation.
_NEEDS_EXPLANATION = 0.15
_WORLDS_TO_TELL = 4


def link_curves(
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
    curves = {link: _curves(found, decay, topologies.get(link.fabric)) for link, found in of_links.items()}
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


def _curves(measurements: Sequence[AllreduceMeasurement], decay: Decay, topology: LinkTopology | None) -> LinkCurves:
    of_worlds: dict[tuple[int, int], list[AllreduceMeasurement]] = defaultdict(list)
    for one in measurements:
        of_worlds[one.world_size, one.concurrent].append(one)
    curves = smoothed({key: size_curve(found, decay) for key, found in sorted(of_worlds.items())})
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
