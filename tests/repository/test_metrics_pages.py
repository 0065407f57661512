"""The tables of self metrics in docs/ hold every metric that the daemons serve, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric

from gpusonde.agent.metrics import AgentMetrics, RecordAges, SelfCounters
from gpusonde.agent.sources.base import SourceStatistics
from gpusonde.collector.metrics import CollectorCounters, CollectorMetrics, StoreFigures
from gpusonde.collector.storage.store import StoreCounters
from gpusonde.service.reload import ReloadCounters

DOCS = Path(__file__).resolve().parents[2] / "docs"


def agent_metrics() -> list[Metric]:
    metrics = AgentMetrics(
        SelfCounters(), SourceStatistics(), RecordAges(), ReloadCounters(), "1", "nvml", spool_max_bytes=lambda: 1
    )
    return list(metrics.collect())


def collector_metrics() -> list[Metric]:
    figures = CollectorMetrics(
        CollectorCounters(),
        StoreCounters(),
        StoreFigures(),
        ReloadCounters(),
        "1",
        "local",
        streams=lambda: 0,
        ingest_lag_s=lambda: None,
        taking_records=lambda: True,
        tracking_backlog=lambda: 0,
        certificate_expiry_unix_s=lambda: None,
    )
    return list(figures.collect())


@pytest.mark.parametrize(("page", "metrics"), [("agent", agent_metrics), ("collector", collector_metrics)])
def test_a_page_names_every_metric_and_no_other(page, metrics):
    text = (DOCS / f"{page}.md").read_text()
    section = text[text.index("\n## Self metrics and health") :]
    table = section[section.index("| metric |") :].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`([a-z_]+)", row.split("|")[1])]
    served = [
        metric.name.removeprefix(f"gpusonde_{page}_") + ("_total" if metric.type == "counter" else "")
        for metric in metrics()
    ]
    assert sorted(named) == sorted(served)
