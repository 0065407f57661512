"""Processes that answer: one that is lost takes no answer of another graph with it, and is replaced."""

import asyncio
import time
from pathlib import Path

import pytest
from support.layered_graphs import graph_json

from gpusonde.catalog import load_gpus
from gpusonde.collector.workload.checker import check_workloads
from gpusonde.collector.workload.processes import WorkloadProcesses
from gpusonde.errors import ChildBusyError
from gpusonde.service.child import PoolOptions, Purpose
from gpusonde.workload.v1 import workload_pb2

HEAD = {"model": "", "embeddings": "", "max_operations": 1000, "graph_time_limit_s": 5.0}
PURPOSE = Purpose("support.workload_parts:make_answer", "workloads", "workload", "ask about less")
GPUS = load_gpus()


@pytest.fixture(autouse=True)
def _processes_find_the_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def questions(*contents):
    workloads = [
        workload_pb2.Workload(
            graph=workload_pb2.GraphSource(graph=workload_pb2.Graph(content=content)),
            batch_size=8,
            cluster=workload_pb2.Cluster(device="T4"),
        )
        for content in contents
    ]
    return check_workloads(workloads, [], GPUS)


def run(work, **options):
    async def main():
        processes = WorkloadProcesses(PoolOptions(**{"time_limit_s": 6.0, **options}), PURPOSE)
        try:
            return await work(processes)
        finally:
            await processes.close()

    return asyncio.run(asyncio.wait_for(main(), 250))


def kinds(found):
    return [answer["error"]["kind"] if "error" in answer else "ok" for answer in found["answers"]]


def ask(*contents, **options):
    return kinds(run(lambda processes: processes.ask("predict", questions(*contents), HEAD), **options))


def test_a_graph_that_kills_its_process_is_the_only_one_without_an_answer():
    assert ask(graph_json(), b"die", graph_json("other")) == ["ok", "out_of_memory", "ok"]


def test_a_graph_that_never_ends_is_the_only_one_without_an_answer():
    assert ask(graph_json(), b"sleep", graph_json("other")) == ["ok", "out_of_time", "ok"]


def test_graphs_that_never_end_take_no_more_than_twice_the_time_of_one_answer():
    began = time.monotonic()
    found = ask(b"sleep", b"sleep ", b"die", graph_json(), b"sleep  ", time_limit_s=10.0)
    assert found == ["out_of_time", "out_of_time", "out_of_memory", "ok", "out_of_time"]
    # Beside the limits this takes the starts of six processes.
    assert time.monotonic() - began < 150


def test_a_fault_of_ours_is_in_the_collector_s_log_and_not_in_the_answer(caplog):
    found = run(lambda processes: processes.ask("predict", questions(b"fault", b"fault "), HEAD))
    (told,) = {tuple(answer["error"]) for answer in found["answers"] if answer["error"]["kind"] == "internal"}
    assert told == ("kind", "text", "field")
    assert "a fault of ours" not in str(found)
    assert "ZeroDivisionError: a fault of ours" in caplog.text


def test_questions_that_are_refused_before_reach_no_process():
    refused = check_workloads([workload_pb2.Workload(batch_size=1)], [], GPUS)
    found = run(lambda processes: processes.ask("predict", refused, HEAD), processes=0)
    assert kinds(found) == ["invalid_request"]


def test_the_queue_is_bounded_and_goes_on_after_a_loss():
    async def work(processes):
        asked = [asyncio.ensure_future(processes.ask("predict", questions(b"sleep"), HEAD)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert processes.waiting == 2
        with pytest.raises(ChildBusyError):
            await processes.ask("predict", questions(graph_json()), HEAD)
        found = [kinds(await each) for each in asked]
        return found, kinds(await processes.ask("predict", questions(graph_json()), HEAD))

    found, after = run(work, waiting=2, time_limit_s=3.0)
    assert found == [["out_of_time"]] * 3
    assert after == ["ok"]
