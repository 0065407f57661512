"""The section on networks that nobody measured: assumed over measured bus bandwidth of every fabric of a table.

Rows: ``allreduce.csv`` of 1 MiB and more, repeats as their median, without source eBPF (two processes on one GPU), the
example whose GPU nobody names, and Aceso's rows below 10 MB/s (sizes whose time was cut off). Ratings are the data
sheets': NVLink and PCI Express of the GPU, the NICs of the machine; a rack joined by NVLink is one machine. A fabric
counts alike whatever its number of rows.

As shipped, the rounded figures of ``links`` were chosen with these rows in sight. Held out: for each fabric, the offset
and spread of its class come from the other fabrics of the class (median of medians; mean square over fabrics, with two
of the average over all classes added), so that nothing of a fabric tells of itself but the form of the curve.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
from page import bar, data_file, percent, table

from gpusonde.catalog import load_gpus
from gpusonde.simulator.links import RatedNetwork, inner_link, outer_link

_NINETY = 1.645
_LEAST_BYTES = 2**20
# Fabrics of the average that are added to those of a class.
_PRIOR_FABRICS = 2
_SHORT = (
    "Assumed over measured. As shipped the interval holds {shipped} of these rows, fabrics counting alike; with fabrics"
    " held out {kept} of {fabrics} medians lie within 0.7 and 1.4. What falls short: of eight cards on PCI Express some"
    " reach a fifth of what two do, and no data sheet tells which; five and six GPUs of a cube mesh use fewer links."
)
# Part of the fabric's name -> GPU, GPUs of a machine, Gbit/s of its network, cloud.
_MACHINES = {
    "1x 8xA100": ("A100-SXM4-40GB", 8, None, ""),
    "H200": ("H200-SXM-141GB", 8, None, ""),
    "p5.48xlarge (1 node": ("H100-SXM5-80GB", 8, None, ""),
    "p6-b200.48xlarge NVLink5": ("B200", 8, None, ""),
    "p6-b200 node": ("B200", 8, None, ""),
    "intra-node A100-40": ("A100-SXM4-40GB", 4, None, ""),
    "intra-node GH-96": ("GH200-96GB", 4, None, ""),
    "NVLink A100 (vTrain": ("A100-SXM4-40GB", 8, None, ""),
    "NVLink V100 (vTrain": ("V100-SXM2-16GB", 8, None, ""),
    "intra-node V100-16": ("V100-SXM2-16GB", 4, None, ""),
    "RTX-2080": ("RTX 2080 Ti", 8, None, ""),
    "RTX-3090": ("RTX 3090", 8, None, ""),
    "Titan-RTX": ("TITAN RTX", 8, None, ""),
    "p3dn": ("V100-SXM2-32GB", 8, 100, "aws"),
    "p4d": ("A100-SXM4-40GB", 8, 400, "aws"),
    "p5.48xlarge 32x": ("H100-SXM5-80GB", 8, 3200, "aws"),
    "p6-b200.48xlarge 8x": ("B200", 8, 3200, "aws"),
    "CoreWeave H100": ("H100-SXM5-80GB", 8, 3200, "coreweave"),
    "NVL72 1 rack": ("GB200", 72, None, ""),
    "NVL72 2 racks": ("GB200", 64, 64 * 400, "coreweave"),
    "NVL72 20 racks": ("GB200", 72, 72 * 400, "coreweave"),
    "BM.GPU.B4.8": ("A100-SXM4-40GB", 8, 1600, "oci"),
    "BM.GPU.GB200.4": ("GB200", 4, 1600, "oci"),
}


def section(args: argparse.Namespace) -> list[str]:
    """All of it."""
    rows = compare(pd.read_csv(data_file(args, "allreduce.csv")))
    fabrics = rows.groupby(["kind", "fabric"])
    medians = np.exp(fabrics.off.median())
    shipped = _coverage(rows)
    held = _hold_out(rows)
    inside = held.groupby("fabric").inside.mean().mean()
    worst = f"{medians.min():.2f} to {medians.max():.2f}"
    bar(args, f"assumed / measured bandwidth, median of each of {len(medians)} fabrics", "0.7 to 1.4", worst,
        met=bool(medians.between(0.7, 1.4).all()))  # fmt: skip
    bar(args, "the 90 % interval holds, fabrics held out", "88 to 92 %", percent(inside), met=0.88 <= inside <= 0.92)
    held_medians = np.exp(held.groupby("fabric").off.median())
    lines = ["## Networks that nobody measured", ""]
    shown = []
    for (kind, fabric), found in fabrics:
        ratio, own = np.exp(found.off), held[held.fabric == fabric]
        world = "/".join(map(str, sorted(found.world.unique())))
        shown.append((fabric, kind, world, f"{len(found):,}", f"{ratio.median():.2f}",
                      f"{ratio.quantile(0.05):.2f} to {ratio.quantile(0.95):.2f}", f"{held_medians[fabric]:.2f}",
                      percent(float(own.inside.mean()), 0)))  # fmt: skip
    columns = ("fabric", "class", "GPUs", "rows", "median", "90 % of rows", "held out: median", "held out: within 90 %")
    lines += table(columns, shown)
    kept = int(held_medians.between(0.7, 1.4).sum())
    return [*lines, _SHORT.format(shipped=percent(shipped), kept=kept, fabrics=len(held_medians)), ""]


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """Return fabric, kind, world, bytes, ``off`` (logarithm of assumed over measured) and the assumed ``spread``."""
    unnamed = rows.source.str.contains("eBPF") | (rows.gpu == "?")
    rows = rows[~unnamed & (rows.busbw_gbps >= 0.01) & (rows.bytes >= _LEAST_BYTES)]
    rows = rows.groupby(["fabric", "world", "bytes"], as_index=False).busbw_gbps.median()
    gpus = load_gpus()
    found = []
    for (fabric, world), part in rows.groupby(["fabric", "world"]):
        name, devices, gbits, provider = _machine(fabric)
        between = None if gbits is None else outer_link(gbits * 1e9 / 8, provider)
        inside = inner_link(gpus.get(name))
        told = RatedNetwork(inside, devices, between).bus_bandwidth(part.bytes, world)
        kind = between if between is not None and world > devices else inside
        off = np.log(told.bytes_per_second / 1e9 / part.busbw_gbps)
        found.append(part.assign(kind=kind.kind.name, off=off, spread=told.log_spread))
    return pd.concat(found)


def _machine(fabric: str) -> tuple[str, int, int | None, str]:
    """Machine of a fabric: the longest part of its name that is known."""
    return _MACHINES[max((part for part in _MACHINES if part in fabric), key=len)]


def _coverage(rows: pd.DataFrame) -> float:
    inside = rows.off.abs() <= _NINETY * rows.spread
    return float(inside.groupby(rows.fabric).mean().mean())


def _hold_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ``off`` and ``inside`` as if nothing had been known of their fabric."""
    found = []
    for fabric, own in rows.groupby("fabric"):
        others = rows[rows.fabric != fabric]
        alike = others[others.kind == own.kind.iloc[0]]
        middle = float(alike.groupby("fabric").off.median().median())
        squares = ((alike.off - middle) ** 2).groupby(alike.fabric).mean()
        average = float((others.off**2).groupby(others.fabric).mean().mean())
        square = (squares.sum() + _PRIOR_FABRICS * average) / (len(squares) + _PRIOR_FABRICS)
        off = own.off - middle
        found.append(own.assign(off=off, inside=off.abs() <= _NINETY * np.sqrt(square)))
    return pd.concat(found)
