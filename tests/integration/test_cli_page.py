"""``docs/cli.md`` lists the options and the JSON keys of every command, no more and no less."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
from typing import Any

import pytest
from support.cli_page import PAGE as CLI_PAGE
from support.cli_page import Section, keys_of, read_page
from support.collector_process import CollectorProcess, ask, running_collector
from support.epoch_traces import write_scored_traces
from support.fleet_store import write_fleet
from support.page_files import write_page_files
from support.problem_documents import small_problem
from support.spools import write_damaged_spool
from support.synthetic_runs import synthetic_runs, write_runs
from support.timed_networks import write_timed_networks
from support.trained_encoders import add_encoder, training_result
from support.training_times import KERAS, write_training_times
from support.wire_agent import WireStream, hello
from support.workload_graphs import small_network

from gpusonde.cli import main
from gpusonde.cli.commands import profile
from gpusonde.cli.demo.run import bundled_trace
from gpusonde.cli.parsing import Parser
from gpusonde.cli.workload import train as workload_train
from gpusonde.collector.security.identity import Role
from gpusonde.collector.security.tokens import token_entry
from gpusonde.predictor.workload.graph import dump_graph
from gpusonde.service.durable_files import write_json
from gpusonde.simulator.allreduce import AllreduceMeasurement
from gpusonde.simulator.compute import ComputeProbe
from gpusonde.simulator.gradients import assumed_trace
from gpusonde.simulator.job_profile import JobProfile

# The first test that asks for the answers waits for every command.
pytestmark = pytest.mark.timeout(900)

PAGE = read_page()
COMMON_OPTIONS = {"--json", "--verbose", "--log-format", "--help"}


@pytest.fixture(scope="session")
def collector_report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a collector prints at its end."""
    with running_collector(tmp_path_factory.mktemp("short")) as collector:
        pass
    return collector.report()


@pytest.fixture(scope="session")
def fleet_answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What an administrator is told about an agent that streams, and about draining it."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "token").write_text("of-the-admin")
    (folder / "tokens.toml").write_text(token_entry("of-the-admin", Role.ADMIN))
    with running_collector(folder, "--set", f"security.tokens_file={folder / 'tokens.toml'}") as collector:
        at = ("--collector", collector.address, "--token-file", str(folder / "token"))
        with WireStream(collector.address, hello()) as stream:
            stream.greet()
            return [ask("fleet", "list", *at), ask("fleet", "drain", "--all", "--to", "127.0.0.1:9", *at)]


@pytest.fixture(scope="session")
def planning_answers(
    collector: CollectorProcess, run: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """What the commands say about the page's own problem, about one without a plan, and about the tracked run."""
    folder = write_page_files(CLI_PAGE, tmp_path_factory.mktemp("planning"))
    job, at = str(folder / "job.toml"), ("--collector", collector.address)
    runs = ("--group", "g4dn.xlarge=4@64")
    hopeless, watched = folder / "hopeless.json", folder / "watched.json"
    write_json(hopeless, small_problem(deadline_s=30.0))
    write_json(watched, small_problem(iterations=run["epochs"], samples_per_epoch=256))
    spot = small_problem(iterations=200_000, deadline_s=40_000.0)
    spot["offers"][0] |= {"billing": "spot", "preemptions_per_hour": 0.05}
    write_json(folder / "spot.json", spot)
    (folder / "spot.jsonl").write_text('{"elapsed_s": 60, "completed_iterations": 200}')
    progress = str(folder / "progress.jsonl")
    return {
        "plan": [
            ask("plan", "solve", job, "--out", str(folder / "solution.json")),
            ask("plan", "solve", str(hopeless), exit_code=1),
            ask("plan", "solve", job, *at),
            ask("plan", "pareto", job),
            ask("plan", "estimate", job, *runs),
            ask("plan", "estimate", job, "--plan", str(folder / "solution.json"), *at),
        ],
        "monitor": [
            ask("monitor", job, *runs, "--progress", progress, "--out", str(folder / "out.jsonl")),
            ask("monitor", job, *runs, "--progress", progress, *at),
            ask("monitor", str(folder / "spot.json"), "--group", "t4=4@64", "--progress", str(folder / "spot.jsonl")),
            ask("monitor", str(watched), "--group", "t4=4@64", "--run", run["run_id"], *at),
        ],
        # Torch, which measures, is not here.
        "profile": [
            profile.profile_payload(
                JobProfile("T4", (ComputeProbe(8, 0.1), ComputeProbe(64, 0.5)), assumed_trace(1e8), 0.01, 96), folder
            )
        ],
        "probe": [profile.probe_payload("lab", [AllreduceMeasurement("lab", 1e6, 2, 0.01)], folder)],
    }


@pytest.fixture(scope="session")
def workload_answers(
    collector: CollectorProcess, run: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What is said of networks, of encoders and of models."""
    folder = tmp_path_factory.mktemp("workload")
    network, registry = folder / "net.json", add_encoder(folder / "registry", "tiny")
    network.write_text(dump_graph(small_network()))
    table, model = write_timed_networks(folder), folder / "model"
    at = "--collector", collector.address
    return [
        ask("workload", "fit", str(table), "--out", str(model), "--regressor", "linear"),
        ask("workload", "fit", str(table), "--out", f"{model}2", "--regressor", "linear", "--encoder", "digits"),
        ask("workload", "predict", str(network), "--device", "T4,H100-SXM5-80GB", "--model", str(model)),
        ask("workload", "graph", str(network), "--out", str(folder / "copy.json")),
        ask("workload", "embed", str(network), "--dataset-type", "tiny", "--registry", str(folder / "registry")),
        ask("workload", "embed", str(network), "--nearest", "0", *at),
        # Torch, which trains, is not here.
        {"registry": "registry", "trainings": [workload_train.train_payload(registry, training_result())]},
        # The collector queues a training for it.
        ask("workload", "predict", str(network), "--device", "T4", "--dataset-type", "voices", *at),
        ask("workload", "predict", str(network), "--hosts", "nobody", *at),
        ask("workload", "trainings", *at),
        ask("workload", "hosts", *at),
    ]


@pytest.fixture(scope="session")
def answers(
    collector: CollectorProcess,
    run: dict[str, Any],
    agent_report: dict[str, Any],
    collector_report: dict[str, Any],
    demo_report: dict[str, Any],
    fleet_answers: list[dict[str, Any]],
    planning_answers: dict[str, list[dict[str, Any]]],
    workload_answers: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[dict[str, Any]]]:
    """Command -> what it prints under ``--json``; several answers where a command has several."""
    folder = tmp_path_factory.mktemp("answers")
    trace, at = str(bundled_trace()), ("--collector", collector.address)
    table = write_runs(folder / "runs.csv", synthetic_runs())
    times = write_training_times(folder / "times.csv", (), KERAS[:4], image_sizes=(32,))
    fleet = folder / "fleet"
    write_fleet(fleet, jobs=2, batches=2)
    spool = write_damaged_spool(folder / "spool")
    damaged = folder / "damaged"
    write_fleet(damaged, jobs=1, batches=1)
    (damaged / "segments" / "half.parquet.tmp").touch()
    return {
        "demo": [demo_report],
        "detect": [ask("detect", trace), ask("detect", trace, "--plot", str(folder / "p.png"), "--total-epochs", "40")],
        "predict": [
            ask("predict", "--trace", trace),
            ask("predict", "--runs", str(table), "--row", "0"),
            ask("predict", "--run", run["run_id"], "--targets", "V100", *at),
        ],
        "train": [
            ask("train", str(table), "--out", str(folder / "model")),
            ask("train", "--from-store", str(fleet), str(table)),
            ask("train", "--from-store", str(fleet)),
            ask("train", "--rollback", str(fleet)),
        ],
        "evaluate": [
            ask("evaluate", "epochs", *map(str, write_scored_traces(folder))),
            ask("evaluate", "predictor", str(table), "--protocol", "config", "--mode", "prior"),
            ask("evaluate", "predictor", str(table), "--protocol", "config", "--mode", "default,prior"),
            ask("evaluate", "workload", str(times)),
        ],
        "agent": [
            agent_report,
            ask("agent", "--print-config"),
            ask("agent", "--check-config"),
            ask("agent", "doctor", "--set", "source.kind=replay", "--set", f"source.trace={trace}"),
        ],
        "record": [ask("record", str(folder / "copy.csv"), "--replay", trace, "--speed", "1000")],
        "spool": [ask("spool", "ls", str(spool)), ask("spool", "fsck", str(spool), "--repair")],
        "collector": [collector_report, ask("collector", "--print-config")],
        "token": [ask("token", "new", "--role", "agent", "--agent-id", "host-*")],
        "store": [
            ask("store", "fsck", str(damaged), exit_code=1),
            ask("store", "compact", str(fleet)),
            ask("store", "export", str(fleet), str(folder / "all.csv"), "--all"),
            ask("store", "sql", str(fleet), "SELECT COUNT(*) AS ticks FROM samples"),
        ],
        "fleet": fleet_answers,
        **planning_answers,
        "workload": workload_answers,
        "runs": [ask("runs", *at)],
        "epochs": [ask("epochs", "--latest", *at), ask("epochs", run["run_id"], "--total-epochs", "40", *at)],
        "gpus": [ask("gpus"), ask("gpus", "V100")],
        "offers": [ask("offers", "--gpu", "V100,T4"), ask("offers", "--spot")],
        "metrics": [ask("metrics")],
    }


def subparser(command: str) -> Parser:
    """The parser of one subcommand."""
    parser = main.build_parser()
    (subparsers,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    found = subparsers.choices[command]
    assert isinstance(found, Parser)
    return found


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Long options of a parser and of the parsers below it."""
    assert isinstance(parser, Parser)
    parser.complete()
    own = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return own.union(*(options_of(choice) for action in below for choice in action.choices.values()))


def mismatch(answers: list[dict[str, Any]], section: Section) -> tuple[set[str], set[str]]:
    """Keys that are printed but not on the page, and keys of the page that nothing printed.

    An empty list hides the keys of its elements, so it vouches for whatever the page says of them.
    """
    printed = {key for answer in answers for key in keys_of(answer)}
    # A key that may be null or an object is printed plain when it is null.
    undocumented = {
        key for key in printed - section.keys if not any(known.startswith((key, f"{key}.")) for known in section.keys)
    }
    empty = {key for key in printed if key.endswith("[]")}
    missing = {key for key in section.keys - printed if not any(key.startswith(list_) for list_ in empty)}
    return undocumented, missing


def test_every_command_has_its_section() -> None:
    assert set(main.COMMANDS) <= set(PAGE)


@pytest.mark.parametrize("command", main.COMMANDS)
def test_the_page_lists_every_option(command: str) -> None:
    assert options_of(subparser(command)) - COMMON_OPTIONS == PAGE[command].options


@pytest.mark.parametrize("command", main.COMMANDS)
def test_the_page_lists_every_json_key(command: str, answers: dict[str, list[dict[str, Any]]]) -> None:
    assert mismatch(answers[command], PAGE[command]) == (set(), set())


def test_the_page_lists_the_keys_of_an_error() -> None:
    stdout = io.StringIO()
    with contextlib.redirect_stdout(stdout):
        assert main.main(["gpus", "V1000", "--json"]) == 1
    assert set(keys_of(json.loads(stdout.getvalue()))) == PAGE["Every command"].keys


@pytest.mark.parametrize("command", main.COMMANDS)
def test_every_key_names_its_unit_and_the_page_repeats_it(command: str) -> None:
    suffixes = {"_s": "seconds", "_bytes": "bytes", "_per_second": "bits per second"}
    for key, unit in PAGE[command].units.items():
        name = key.removesuffix("[]")
        for suffix, expected in suffixes.items():
            if name.endswith(suffix):
                assert unit == expected, key
        if "usd" in name:
            assert unit.startswith("US dollars"), key


def test_shares_and_errors_are_ratios(answers: dict[str, list[dict[str, Any]]]) -> None:
    for section in PAGE.values():
        for key, unit in section.units.items():
            assert "%" not in unit, key
    assert 0 <= answers["detect"][0]["confidence"] <= 1
    assert answers["predict"][0]["predictions"][0]["interval_coverage"] == 0.9
