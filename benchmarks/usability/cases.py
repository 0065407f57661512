"""What is tried: kinds of files with the cycle that each holds, and mistakes with the words that help."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import tool_files as make
from tool_files import PERIOD_S, Tick, ticks

_TIMEOUT_S = 300.0
_WITHIN = 0.04


class Verdict(Enum):
    """What became of a case."""

    RIGHT = "right"
    HELPED = "refused, says what to do"
    UNCLEAR = "refused, does not help"
    WRONG = "WRONG"


@dataclass(frozen=True)
class Judgement:
    """The verdict and the answer or error in one line."""

    verdict: Verdict
    words: str


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        name: The file, or the mistake.
        write: Makes the files in a folder and returns the words of the command in front of the options.
        options: The rest of the command.
        period_s: Length of the cycle that is to be found; None where the command is to be refused.
        helps: Pattern of words that tell what to do.
        environment: Variables that are set.
        stdin: Name of the file that comes on stdin.
        interrupt_s: When Ctrl-C is pressed.
    """

    name: str
    write: Callable[[Path], Sequence[str]]
    options: tuple[str, ...] = ()
    period_s: float | None = None
    helps: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    interrupt_s: float | None = None


def judge(case: Case, folder: Path) -> Judgement:
    """Run the command and say what became of it."""
    own = folder / re.sub(r"\W+", "_", f"{case.name} {' '.join(case.options)}")[:100]
    own.mkdir()
    words = [*case.write(own), *case.options]
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("gpusonde")), *words, *(["--json"] if case.period_s else [])],
        cwd=own,
        env={**plain, "COLUMNS": "100", **case.environment},
        stdin=(own / case.stdin).open("rb") if case.stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if case.interrupt_s is not None:
        time.sleep(case.interrupt_s)
        process.send_signal(signal.SIGINT)
    try:
        out, errors = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return Judgement(Verdict.WRONG, "no answer in five minutes")
    shown = " ".join(errors.replace(str(folder), "").replace(f"{own.name}/", "").split())
    if process.returncode == 0:
        return _answer(case, out)
    helped = re.search(case.helps or _ADVICE, errors) is not None and "Traceback" not in errors
    first = shown.partition("usage:")[0].replace("gpusonde: error: ", "").lstrip("/")
    return Judgement(Verdict.HELPED if helped else Verdict.UNCLEAR, first[:240])


# What every refusal should have: a word that asks for something to be done.
_ADVICE = (
    r"\b(?:say|record|write|choose|name|give|use|correct|convert|install|export|ask|set|did you mean|takes one of|"
    r"complete|delete|sort|start|try|add|pip)\b"
)


def _answer(case: Case, out: str) -> Judgement:
    if case.period_s is None:
        return Judgement(Verdict.WRONG, f"exit code 0: {' '.join(out.split())[:200]}")
    answer = json.loads(out)
    plan = answer.get("plan")
    answer = answer.get("detection", answer)
    found = answer["period_s"]
    if found is None:
        return Judgement(Verdict.WRONG, f"no cycle: {answer['reason']}")
    right = abs(found / case.period_s - 1) <= _WITHIN
    told = f"{answer['verdict']} of {found:.4g} s, in the file {case.period_s:g} s"
    if plan is not None:
        right = right and plan["status"] in ("optimal", "feasible")
        told += f"; {plan['proof']['words'] if plan['plan'] is None else plan['why']}"
    return Judgement(Verdict.RIGHT if right else Verdict.WRONG, told)


# --- files ---

_SLOW_S = 60.0
_FAST = ticks()
_SECONDS = ticks(1.0, period_s=_SLOW_S)
_TWO = ticks(0.1, 2)
_EIGHT = ticks(1.0, 8, period_s=_SLOW_S)


def _file(name: str, text: Callable[[], str]) -> Callable[[Path], Sequence[str]]:
    def write(folder: Path) -> Sequence[str]:
        make.write(folder / name, text())
        return ["detect", name]

    return write


def _kind(name: str, text: Callable[[], str], *options: str, file: str = "made", period_s: float = PERIOD_S) -> Case:
    return Case(name, _file(file, text), options, period_s=period_s)


def _zoned(tick: Tick) -> str:
    return f"{tick.moment.isoformat()}+01:00"


def _hidden(made: Sequence[Tick]) -> str:
    return make.query_log(made, fields="timestamp,power.draw,utilization.gpu")


def _two_files(folder: Path) -> Sequence[str]:
    for gpu in (0, 1):
        make.write(folder / f"gpu{gpu}.csv", make.own_csv([tick for tick in _TWO if tick.gpu == gpu]))
    return ["detect", "gpu*.csv"]


def _on_stdin(folder: Path) -> Sequence[str]:
    make.write(folder / "in", make.query_log(_FAST))
    return ["detect", "-"]


_PERCENT = "--column=gpu_utilization=gpu_utilization:percent"
FILES_OF_THE_FIRST_TRIAL: tuple[Case, ...] = (
    _kind("nvidia-smi query log", lambda: make.query_log(_FAST)),
    _kind("pandas, our names", lambda: make.own_csv(_FAST)),
    _kind("pandas, `+01:00`", lambda: make.own_csv(_FAST, stamp=_zoned)),
    _kind("query log, 2 GPUs, no index", lambda: _hidden(_TWO), "--gpu", "all"),
    _kind("query log, 8 GPUs, no index", lambda: _hidden(ticks(0.1, 8)), "--gpu", "all"),
    _kind(
        "query log with `noheader`",
        lambda: make.query_log(_FAST, header=False),
        *["--column", "1=timestamp", "--column", "3=power_watts", "--column", "4=gpu_utilization"],
    ),
    _kind(
        "query log without `timestamp`",
        lambda: make.query_log(_FAST, fields="index,power.draw,utilization.gpu"),
        "--interval-s",
        "100ms",
    ),
    _kind("query log, `-l 1`", lambda: make.query_log(_SECONDS), period_s=_SLOW_S),
    _kind("nvidia-smi tables in a loop", lambda: make.smi_tables(_SECONDS), period_s=_SLOW_S),
    _kind("nvidia-smi dmon", lambda: make.dmon(_SECONDS, times=""), "--interval-s", "1s", period_s=_SLOW_S),
    _kind("nvidia-smi dmon -o DT", lambda: make.dmon(_SECONDS), period_s=_SLOW_S),
    _kind("the same, 8 GPUs", lambda: make.dmon(_EIGHT), "--gpu", "all", period_s=_SLOW_S),
    _kind("the same, `--format csv`", lambda: make.dmon(_SECONDS, comma=True), period_s=_SLOW_S),
    _kind("nvidia-smi pmon", lambda: make.pmon(_SECONDS), period_s=_SLOW_S),
    _kind("dcgmi dmon -d 100", lambda: make.dcgmi(_FAST), "--interval-s", "100ms"),
    _kind("Prometheus range query", lambda: make.prometheus(_SECONDS), period_s=_SLOW_S),
    _kind("own JSON Lines", lambda: make.own_lines(_FAST)),
    _kind("gpustat --json", lambda: make.gpustat(_SECONDS), period_s=_SLOW_S),
    _kind("dynolog", lambda: make.dynolog(_SECONDS), period_s=_SLOW_S),
    _kind("Grafana CSV, values with units", lambda: make.grafana(_EIGHT, " W"), "--gpu", "all", period_s=_SLOW_S),
    _kind("W&B events CSV", lambda: make.wandb_events(ticks(2.0, period_s=120)), period_s=120),
    _kind("W&B chart CSV", lambda: make.wandb_chart(ticks(2.0, period_s=120)), period_s=120),
    _kind("nvitop CSV", lambda: make.nvitop(_SECONDS), period_s=_SLOW_S),
    _kind("zeus, samples", lambda: make.zeus_samples(_FAST)),
    _kind("zeus, `Time,Power`", lambda: make.zeus_power(_FAST)),
    _kind("MLflow long CSV", lambda: make.mlflow_csv(ticks(10.0, period_s=600)), period_s=600),
    _kind("codecarbon", lambda: make.codecarbon(ticks(15.0, period_s=900)), period_s=900),
    _kind(
        "pandas, own names",
        lambda: make.own_csv(_FAST, names=("when", "load", "draw"), utilization=lambda tick: tick.utilization),
        *["--column", "when=timestamp", "--column", "load=gpu_utilization:percent", "--column", "draw=power_watts"],
    ),
    _kind(
        "pandas, `gpu_utilization` in per cent",
        lambda: make.own_csv(_FAST, utilization=lambda tick: tick.utilization),
        _PERCENT,
    ),
    _kind(
        "`04.12.2025 01:22:31`", lambda: make.own_csv(_SECONDS, stamp=lambda tick: f"{tick.moment:%d.%m.%Y %H:%M:%S}")
    ),
    _kind("`.csv.gz`", lambda: make.own_csv(_FAST), file="made.csv.gz"),
    Case("two files of one job", _two_files, period_s=PERIOD_S),
)
MORE_FILES: tuple[Case, ...] = (
    Case("stdin", _on_stdin, period_s=PERIOD_S, stdin="in"),
    _kind("`.csv.zst`", lambda: make.own_csv(_FAST), file="made.csv.zst"),
    _kind("VictoriaMetrics export", lambda: make.victoria(_SECONDS), period_s=_SLOW_S),
    _kind("nvtop -s", lambda: make.nvtop(_SECONDS), "--interval-s", "1s", period_s=_SLOW_S),
    _kind("W&B events JSON Lines", lambda: make.wandb_jsonl(ticks(2.0, period_s=120)), period_s=120),
    _kind("MLflow metrics/get-history", lambda: make.mlflow_json(ticks(10.0, period_s=600)), period_s=600),
    _kind(
        "Grafana CSV, bare values",
        lambda: make.grafana(_SECONDS),
        "--column",
        "GPU *=gpu_utilization:percent",
        period_s=_SLOW_S,
    ),
)


# --- mistakes ---


def _with(text: Callable[[], str], *words: str) -> Callable[[Path], Sequence[str]]:
    def write(folder: Path) -> Sequence[str]:
        make.write(folder / "made", text())
        return [*words, "made"] if words else ["detect", "made"]

    return write


def _words(line: str) -> Callable[[Path], Sequence[str]]:
    return lambda _folder: shlex.split(line)


def _bytes(content: bytes) -> Callable[[Path], Sequence[str]]:
    def write(folder: Path) -> Sequence[str]:
        (folder / "made").write_bytes(content)
        return ["detect", "made"]

    return write


def _toml(text: str, line: str) -> Callable[[Path], Sequence[str]]:
    def write(folder: Path) -> Sequence[str]:
        (folder / "made.toml").write_text(text)
        return shlex.split(line)

    return write


def _folder(folder: Path) -> Sequence[str]:
    (folder / "made").mkdir()
    return ["detect", "made"]


def _cut_gzip(folder: Path) -> Sequence[str]:
    path = make.write(folder / "made.gz", make.own_csv(_FAST))
    path.write_bytes(path.read_bytes()[:-2000])
    return ["detect", "made.gz"]


def _run_on(line: str) -> Callable[[Path], Sequence[str]]:
    return _with(lambda: make.own_csv(_FAST), *shlex.split(line))


def _twice() -> str:
    return make.own_csv(_TWO[:400])


_PROBLEM = """format = "gpusonde.problem/1"
name = "small"
global_batch = 64
iterations = 100
[job]
curves = [{ device = "T4", probes = [{ batch_size = 32, total_s = 0.2 }, { batch_size = 64, total_s = 0.4 }] }]
gradients = { parameter_bytes = 102_000_000 }
[[offers]]
name = "t4"
device = "T4"
usd_per_hr = 0.5
"""
_SECONDS_ALONE = r"write 100ms|100ms"
MISTAKES: tuple[Case, ...] = (
    Case(
        "per cent as a ratio",
        _with(lambda: make.own_csv(_FAST, utilization=lambda t: t.utilization)),
        helps="per cent.*(name|convert)",
    ),
    Case(
        "milliseconds as `--interval-s 100`",
        _with(lambda: make.dcgmi(_FAST)),
        ("--interval-s", "100"),
        helps=_SECONDS_ALONE,
    ),
    Case("dcgmi dmon without an interval", _with(lambda: make.dcgmi(_FAST)), helps="--interval-s 100ms"),
    Case("mW as W", _with(lambda: make.own_csv(_FAST, watts=lambda t: t.watts * 1000)), helps="mW"),
    Case("kW as W", _with(lambda: make.own_csv(_FAST, watts=lambda t: t.watts / 1000)), helps="kW"),
    Case(
        "MiB as bytes",
        _with(
            lambda: make.own_csv(
                _FAST, names=("timestamp", "framebuffer_used_bytes", "power_watts"), utilization=lambda t: t.mebibytes
            )
        ),
        helps="MiB",
    ),
    Case(
        "GHz as MHz",
        _with(
            lambda: make.own_csv(
                _FAST, names=("timestamp", "sm_clock_mhz", "power_watts"), utilization=lambda t: t.mhz / 1000
            )
        ),
        helps="GHz",
    ),
    Case(
        "milliseconds since 1970 in `time_s`",
        _with(
            lambda: make.own_csv(
                _FAST, names=("time_s", "gpu_utilization", "power_watts"), stamp=lambda t: round(1000 * t.unix_s)
            )
        ),
        helps="milliseconds",
    ),
    Case(
        "milliseconds in `time_s`",
        _with(
            lambda: make.own_csv(
                _FAST, names=("time_s", "gpu_utilization", "power_watts"), stamp=lambda t: round(1000 * t.time_s)
            )
        ),
        helps="ms|milliseconds",
    ),
    Case("two GPUs in one column", _with(_twice), helps="name the GPU"),
    Case(
        "two GPUs in one column, some ms apart",
        _with(lambda: make.own_csv(_TWO, stamp=lambda t: f"{t.unix_s + 0.004 * t.gpu:.3f}")),
        helps="GPU",
    ),
    Case(
        "local time that goes back an hour",
        _with(lambda: make.own_csv(_FAST[:400]) + make.own_csv(_FAST[100:]).partition("\n")[2]),
        helps="sort|cut",
    ),
    Case(
        "day before month",
        _with(lambda: make.own_csv(_SECONDS, stamp=lambda t: f"{t.moment:%d.%m.%Y %H:%M:%S}")),
        helps="ISO 8601",
    ),
    Case(
        "times of day alone",
        _with(lambda: make.own_csv(_SECONDS, stamp=lambda t: f"{t.moment:%H:%M:%S}")),
        helps="ISO 8601",
    ),
    Case(
        "a column twice",
        _with(lambda: make.own_csv(_FAST, names=("timestamp", "power_watts", "power_watts"))),
        helps="rename or remove",
    ),
    Case("text for a number", _with(lambda: make.own_csv(_FAST, utilization=lambda _: "busy")), helps="correct it"),
    Case("no metric", _with(lambda: make.own_csv(_FAST, names=("timestamp", "a", "b"))), helps="--column"),
    Case(
        "no time",
        _with(lambda: make.own_csv(_FAST, names=("a", "gpu_utilization", "power_watts"))),
        helps="--interval-s|--column",
    ),
    Case("pmon", _with(lambda: make.pmon(_SECONDS)), helps="dmon -o DT"),
    Case("a file cut by gzip", _cut_gzip, helps="copy it again"),
    Case("a binary", _bytes(bytes(range(256)) * 40), helps="UTF-8"),
    Case("an empty file", _bytes(b""), helps="needs a header"),
    Case("a folder", _folder, helps="file"),
    Case("no such file", _words("detect nowhere.csv"), helps="No such file"),
    Case("`--gpu 7` of one", _run_on("detect --gpu 7"), helps="--gpu takes one of"),
    Case("several GPUs, none chosen", _with(lambda: make.query_log(_TWO)), helps="--gpu"),
    Case("unknown metric", _run_on("detect --metric sm_activ"), helps="did you mean sm_active"),
    Case("a metric that the file has not", _run_on("detect --metric dram_active"), helps="it has"),
    Case(
        "`--column` to an unknown metric",
        _run_on("detect --column power_watts=power"),
        helps="did you mean power_watts",
    ),
    Case("`--column` in a wrong unit", _run_on("detect --column power_watts=power_watts:MiB"), helps="takes one of W"),
    Case("`--column` of no column", _run_on("detect --column watts=power_watts"), helps="there are"),
    Case("misspelt command", _run_on("detcet"), helps="did you mean detect"),
    Case("misspelt option", _run_on("detect --gpuu 0"), helps="did you mean --gpu"),
    Case("abbreviated option", _run_on("detect --inter 1s"), helps="did you mean --interval"),
    Case("`--json` before the command", _words("--json gpus"), helps="behind the command"),
    Case("`--epoch-s soon`", _words("predict --gpu-model T4 --epoch-s soon"), helps="write 100ms"),
    Case("`--epoch-s -3`", _words("predict --gpu-model T4 --epoch-s -3"), helps="above zero"),
    Case(
        "`--precision bf17`", _words("predict --gpu-model T4 --epoch-s 3 --precision bf17"), helps="did you mean bf16"
    ),
    Case("unknown GPU `titan`", _words("predict --gpu-model titan --epoch-s 3"), helps="gpus|did you mean|nearest"),
    Case("AMD's `mi300`", _words("predict --gpu-model mi300 --epoch-s 3"), helps="NVIDIA|AMD"),
    Case("`T4x`", _words("predict --gpu-model T4x --epoch-s 3"), helps="T4"),
    Case("unknown target", _words("predict --gpu-model T4 --epoch-s 3 --targets H1000"), helps="H100"),
    Case("`predict` of nothing", _words("predict"), helps="give one of --trace"),
    Case(
        "`workload predict --batch-size 0`",
        _words("workload predict zoo:resnet50 --target-gpus T4 --batch-size 0"),
        helps="above zero",
    ),
    Case("`zoo:rsnet50`", _words("workload predict zoo:rsnet50 --target-gpus T4"), helps="did you mean resnet50"),
    Case("`workload predict` without a GPU", _words("workload predict zoo:resnet50"), helps="--target-gpus|--device"),
    Case("`plan job.toml` without an action", _toml("", "plan made.toml"), helps="solve"),
    Case("`plan solve` of no file", _words("plan solve nowhere.toml"), helps="No such file"),
    Case(
        "misspelt key of a problem",
        _toml(_PROBLEM, "plan solve made.toml"),
        helps="did you mean '?usd_per_hour",
    ),
    Case("bad TOML", _toml("a = = 1\n", "plan solve made.toml"), helps="line"),
    Case(
        "misspelt key of a configuration",
        _toml("[source]\nintervall = '0.1s'\n", "agent --config made.toml --check-config"),
        helps="did you mean",
    ),
    Case(
        "a key that there is not, by `--set`",
        _words("agent --check-config --set sorce.interval=1s"),
        helps="did you mean|source",
    ),
    Case("an interval without a unit", _words("agent --check-config --set source.interval=100"), helps="unit"),
    Case("an interval of 1 us", _words("agent --check-config --set source.interval=1us"), helps="short|least|100ms"),
    Case("port 80000", _words("runs --collector localhost:80000"), helps="HOST:PORT"),
    Case("an address with `https://`", _words("runs --collector https://localhost:7433"), helps="HOST:PORT|https://"),
    Case("IPv6 without brackets", _words("runs --collector ::1:7433"), helps="bracket"),
    Case("no collector there", _words("runs --collector 127.0.0.1:1"), helps="start|is it running|--collector"),
    Case(
        "a proxy in the way",
        _words("runs --collector 192.0.2.1:7433"),
        helps="prox",
        environment={"grpc_proxy": "http://127.0.0.1:9"},
    ),
    Case("no such token file", _words("runs --token-file nowhere"), helps="No such file|--tls"),
    Case("every address without TLS", _words("collector --set server.listen=0.0.0.0:7433 --check-config"), helps="tls"),
    Case("a picture where none can be written", _run_on("detect --plot /proc/x.png"), helps="folder|file"),
    Case("`record` without a GPU", _words("record out.csv --duration-s 1s"), helps="driver|GPU"),
    Case("Ctrl-C after 0.5 s", _run_on("detect"), helps="^interrupted$", interrupt_s=0.5),
    Case("Ctrl-C after 1 s", _run_on("detect"), helps="^interrupted$", interrupt_s=1.0),
)


# --- from a file to a plan ---


WANTED = "--gpu-model T4 --epochs 2000 --deadline 24h --providers aws"


def _advised(case: Case) -> Case:
    def write(folder: Path) -> Sequence[str]:
        return ["advise", *case.write(folder)[1:], *WANTED.split()]

    return replace(case, write=write)


PLANS: tuple[Case, ...] = tuple(_advised(case) for case in FILES_OF_THE_FIRST_TRIAL)
