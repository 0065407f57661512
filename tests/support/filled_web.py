"""A collector with HTTP, tokens, an encoder, one run that is over, and an agent that still streams."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from support.running_collector import ThreadCollector
from support.trace_records import trace_records
from support.web_client import WebClient
from support.wire_agent import WireStream, hello, wait_until

from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import token_entry
from gpusonde.predictor.workload.embedding import EncoderDescription, EncoderWeights
from gpusonde.predictor.workload.embedding.registry import Registry
from gpusonde.telemetry import read_trace

DEMO = Path(__file__).parents[1] / "data" / "demo_trace.parquet"
WEB = {"web__listen": "127.0.0.1:0"}
START_NS = 1_700_000_000_000_000_000
GPU = "GPU-generated-demo-t4"
ADMIN = "of-the-admin"
TOKENS = {ADMIN: Role.ADMIN, "of-a-reader": Role.READER, "of-an-agent": Role.AGENT}


@contextlib.contextmanager
def filled_collector(directory: Path) -> Iterator[SimpleNamespace]:
    """Yield where it listens, its data directory, a client with the admin's token and the run's id."""
    (directory / "tokens.toml").write_text("\n".join(token_entry(token, role) for token, role in TOKENS.items()))
    description = EncoderDescription(dataset_type="scenes", training_steps=7)
    Registry(directory / "data" / "embeddings").add(EncoderWeights(description, EncoderWeights.random(1).arrays))
    settings = WEB | {"security__tokens_file": str(directory / "tokens.toml"), "store__segment_interval": "100ms"}
    with ThreadCollector(directory / "data", **settings) as collector:
        admin = WebClient(directory / "data", ADMIN)
        with WireStream(collector.target, hello("agent-1"), timeout_s=250) as stream:
            stream.greet()
            records = trace_records(read_trace(DEMO).window(0, 130))
            stream.send(*records).wait_acked(len(records))
            wait_until(lambda: _ended_runs(admin), 60, "end of the run")
            (run,) = _ended_runs(admin)
            yield SimpleNamespace(
                target=collector.target, directory=directory / "data", admin=admin, run_id=run["run_id"]
            )


def _ended_runs(client: WebClient) -> list[dict[str, str]]:
    found: list[dict[str, str]] = client.get("/v1/runs?status=RUN_STATUS_ENDED")["runs"]
    return found
