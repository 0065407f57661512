"""Cross-GPU prediction: every table of docs/results/predictor.md, with its two pictures.

    python benchmarks/predictor ../shared/data/cross_gpu/hardware_metrics_runs.csv

Takes about half an hour on two cores. ``--only default`` takes a third of that: the paper's stack, which does not
change with the default model, keeps the figures that are there.
"""

from __future__ import annotations

import os

# The matrices are small: more threads per product only contend with the trees' own.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import datetime
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from fleet import fleet_section
from kept import PUBLISHED, kept_cells, kept_sections
from pictures import draw_reliability, draw_scatter
from queries import queries_section
from several_sources import combine_predictions
from sklearn.ensemble import HistGradientBoostingRegressor
from static import precision_section, several_gpus_section, static_section, utilisation_section
from text import log, percent, table, with_spread

from gpusonde.predictor.crossgpu import LatencyModel, ModelSettings, PaperStack, RunsTable, read_runs
from gpusonde.predictor.crossgpu.evaluation import (
    LatencyEvaluation,
    LatencyProtocol,
    PairErrors,
    Scores,
    Task,
    evaluate,
    make_default_predictor,
    make_paper_predictor,
    make_prior_predictor,
)
from gpusonde.predictor.crossgpu.neighbourhood import Regime
from gpusonde.predictor.crossgpu.paper import FeatureGroups
from gpusonde.predictor.crossgpu.prior import MetricLevel

SEEDS = range(5)
NOISE = 0.096
ROOT = Path(__file__).resolve().parents[2]

BARS = {
    LatencyProtocol.RANDOM: "<= 5 %",
    LatencyProtocol.CONFIG: "<= 5.5 %",
    LatencyProtocol.CNN: "<= 7 %",
    LatencyProtocol.TARGET: "<= 12.5 %, below the prior",
    LatencyProtocol.BOTH: "<= 13 %, a point below the prior",
    LatencyProtocol.STATIC: "",
}
HELD_OUT = {
    LatencyProtocol.RANDOM: "pairs",
    LatencyProtocol.CONFIG: "configurations",
    LatencyProtocol.CNN: "CNN",
    LatencyProtocol.TARGET: "target GPU",
    LatencyProtocol.BOTH: "both GPUs",
    LatencyProtocol.STATIC: "target GPU, metrics",
}

BY_PROTOCOL = "Mean absolute relative error by protocol"
NOISY = "With a source latency that is 9.6 % off"
NOISE_IN = {True: "training, queries", False: "queries, told"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--timings", type=Path, help="default: cross_gpu_long.csv beside the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "predictor.md")
    parser.add_argument("--only", choices=("default",), help="keep what --out says of the paper's stack")
    parser.add_argument("--protocols", nargs="+", default=[protocol.value for protocol in LatencyProtocol])
    arguments = parser.parse_args()
    # Now, not after an hour: the pictures go there too.
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    runs = read_runs(arguments.runs)
    timings = arguments.timings or arguments.runs.with_name("cross_gpu_long.csv")
    protocols = [LatencyProtocol(name) for name in arguments.protocols]
    started = time.monotonic()
    default = {
        p: log(f"default {p.value}", evaluate(runs, make_default_predictor(ModelSettings(), p), p, seeds=SEEDS))
        for p in protocols
    }
    prior = {p: evaluate(runs, make_prior_predictor(), p, seeds=SEEDS) for p in protocols}
    kept = kept_sections(arguments.out) if arguments.only else {}
    if arguments.only:
        by_protocol, with_noise = kept_cells(kept, BY_PROTOCOL, 1), kept_cells(kept, NOISY, 2)
        published_sections = [text for title, text in kept.items() if title.startswith(PUBLISHED)]
    else:
        # Without metrics the published stack has no features.
        published = {p: paper(runs, p) for p in protocols if p is not LatencyProtocol.STATIC}
        by_protocol = {(HELD_OUT[p],): with_spread(result) for p, result in published.items()}
        noisy = paper(runs, LatencyProtocol.CONFIG, NOISE)
        with_noise = {(HELD_OUT[LatencyProtocol.CONFIG], NOISE_IN[True]): with_spread(noisy)}
        published_sections = [section_table_iv(published), section_ablation(runs), section_single_models(runs)]
    sections = [
        heading(arguments.runs, runs, shorter=arguments.only is not None),
        section_protocols(protocols, default, prior, by_protocol, arguments.out.parent),
        section_noise(runs, protocols, with_noise),
        section_by_gpu(default),
        section_prior(runs),
        static_section(timings),
        utilisation_section(timings),
        several_gpus_section(timings),
        precision_section(timings.with_name("neusight_transformers.csv")),
        section_combined(runs),
        fleet_section(runs),
        *published_sections,
    ]
    sections += [queries_section(runs), section_picture(default, arguments.out.parent)]
    sections.append(f"\nThe whole took {(time.monotonic() - started) / 60:.0f} minutes.\n")
    arguments.out.write_text("\n".join(sections), encoding="utf-8")
    print("\n".join(sections))


def heading(path: Path, runs: RunsTable, *, shorter: bool) -> str:
    source, _ = runs.pairs()
    kept = (
        "\nMade with `--only default`: what is said of the paper's stack is kept from the full run before.\n"
        if shorter
        else ""
    )
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return (
        "# Cross-GPU prediction: results\n\n"
        f"Made by `python benchmarks/predictor` on {today}, {platform.machine()}, {os.cpu_count()} cores. Data: "
        f"`{path.name}` (github.com/ddps-lab/cloud-hw-trainpred, Apache-2.0 and MIT; not in this repository): "
        f"{len(runs)} runs, {len(source)} ordered pairs, on {', '.join(runs.gpu_names)}. Errors are "
        "relative to the measured epoch latency; ± is the standard deviation over seeds (five unless said; one for the "
        "noisy CNN and target rows). The default model's few constants were chosen by cross-validation on these same "
        "runs, so its figures are somewhat optimistic.\n\n"
        "What is held out ([protocols](../latency_prediction.md#evaluation-protocols)): a fifth of the *pairs* (the "
        "paper's split, which leaks), a fifth of the *configurations*, one *CNN*, the *target GPU*, *both GPUs*, or "
        "the *target GPU* with all *metrics*.\n" + kept
    )


def paper(
    runs: RunsTable, protocol: LatencyProtocol, noise: float = 0.0, seeds: Sequence[int] = SEEDS
) -> LatencyEvaluation:
    result = evaluate(
        runs, make_paper_predictor(lambda seed: PaperStack(seed=seed)), protocol, seeds=seeds, noise=noise
    )
    return log(f"paper {protocol.value} noise {noise}", result)


def section_protocols(
    protocols: Sequence[LatencyProtocol],
    default: dict[LatencyProtocol, LatencyEvaluation],
    prior: dict[LatencyProtocol, LatencyEvaluation],
    published: Mapping[tuple[str, ...], str],
    folder: Path,
) -> str:
    """Errors and intervals of all models, with the picture of coverage in ``folder``."""
    rows = []
    for protocol in protocols:
        scores = default[protocol].overall
        rows.append(
            (
                HELD_OUT[protocol],
                published.get((HELD_OUT[protocol],), ""),
                with_spread(prior[protocol]),
                with_spread(default[protocol]),
                BARS[protocol],
                percent(scores.median_ape),
                percent(scores.p90_ape),
                f"{scores.r2:.3f}",
                f"{scores.rmse_s:.2f} s",
                percent(scores.coverage),
                percent(scores.width),
                percent(scores.extrapolated, 0),
            )
        )
    columns = ("held out", "paper stack", "prior", "default", "aim", "median", "90 % quantile", "R²", "RMSE",
               "coverage", "width", "flagged")  # fmt: skip
    draw_reliability(default, folder / "predictor_intervals.png")
    return (
        f"## {BY_PROTOCOL}\n\n"
        "From the median on the default model's; coverage and mean full width are those of 90 % intervals, flagged is "
        "the share with status `extrapolated`. The paper reports 11.7 % (random split, its own data).\n\n"
        + table(columns, rows)
        + "\n![coverage against nominal coverage](predictor_intervals.png)\n"
    )


def section_noise(
    runs: RunsTable, protocols: Sequence[LatencyProtocol], published: Mapping[tuple[str, ...], str]
) -> str:
    rows = []
    for protocol in protocols:
        if protocol not in (LatencyProtocol.CONFIG, LatencyProtocol.CNN, LatencyProtocol.TARGET):
            continue
        seeds = SEEDS if protocol is LatencyProtocol.CONFIG else SEEDS[:1]
        for in_training in (True, False):
            predictor = make_default_predictor(ModelSettings(), protocol)
            result = evaluate(runs, predictor, protocol, seeds=seeds, noise=NOISE, noise_in_training=in_training)
            log(f"noisy {protocol.value}", result)
            scores = result.overall
            rows.append(
                (
                    HELD_OUT[protocol],
                    NOISE_IN[in_training],
                    published.get((HELD_OUT[protocol], NOISE_IN[in_training]), ""),
                    with_spread(result),
                    percent(scores.coverage),
                    percent(scores.width),
                )
            )
    return (
        f"## {NOISY}\n\nLog-normal noise of 9.6 % mean absolute error (the paper's epoch detection) on every source "
        "run's epoch latency, in training too as the paper fits, or in queries alone that tell their error.\n\n"
        + table(("held out", "noise in", "paper stack", "default", "coverage of 90 %", "mean full width"), rows)
    )


def section_table_iv(published: dict[LatencyProtocol, LatencyEvaluation]) -> str:
    gpus = sorted({gpu for result in published.values() for gpu in result.by_source})
    rows = [
        (HELD_OUT[protocol], *(f"{percent(s.mape)}, {s.r2:.2f}" for s in map(result.by_source.__getitem__, gpus)))
        for protocol, result in published.items()
        if protocol in (LatencyProtocol.RANDOM, LatencyProtocol.CONFIG)
    ]
    return (
        "## Paper stack by source GPU (the form of Table IV)\n\nMean error and R². The paper reports T4 11.67 %, A10G "
        "15.82 % and V100 13.77 %, R² 0.83 to 0.84, for its random split.\n\n" + table(("held out", *gpus), rows)
    )


def section_by_gpu(default: dict[LatencyProtocol, LatencyEvaluation]) -> str:
    gpus = sorted({gpu for result in default.values() for gpu in result.by_target})
    rows = [
        (
            HELD_OUT[protocol],
            *(
                f"{percent(each.mape)} ({percent(each.coverage, 0)})"
                for each in map(result.by_target.__getitem__, gpus)
            ),
        )
        for protocol, result in default.items()
    ]
    return (
        "## By target GPU, default model\n\nMean error, in brackets the coverage of 90 % intervals; `gpusonde evaluate "
        "predictor` prints those by source, too.\n\n" + table(("held out", *gpus), rows)
    )


def section_prior(runs: RunsTable) -> str:
    rows = []
    levels = {
        None: "utilisation, with peak FP32 rates (the baseline)",
        MetricLevel.UTILIZATION: "utilisation",
        MetricLevel.NVIDIA_SMI: "utilisation and memory utilisation",
        MetricLevel.STATIC: "nothing dynamic",
    }
    for level, name in levels.items():
        scores = evaluate(runs, make_prior_predictor(level), LatencyProtocol.CNN).overall
        rows.append((name, percent(scores.mape), percent(scores.median_ape), percent(scores.p90_ape)))
    return (
        "## The prior alone, by what it knows of the source\n\nNothing is fitted, but the slope of the memory "
        "utilisation's weight (0.2) was chosen, and the caution without metrics (0.13) measured, on these runs.\n\n"
        + table(("metrics", "mean error", "median", "90 % quantile"), rows)
    )


def section_combined(runs: RunsTable) -> str:
    """Every CNN left out in turn; its runs predicted from each other run of the configuration and from all together."""
    source, target = runs.pairs()
    workload = np.array([run.configuration.model for run in runs.runs])
    settings = ModelSettings(regimes=(Regime.SEEN_GPUS, Regime.PRIOR_ONLY))
    single, combined, inside = [], [], []
    for name in np.unique(workload):
        training = workload[source] != name
        model = LatencyModel(settings).fit(runs, pairs=(source[training], target[training]))
        for row in np.flatnonzero(workload == name).tolist():
            run, others = runs.run(row), runs.counterparts(row)
            if len(others) < 2:
                continue
            sources = [other.measurement() for other in others]
            single += [abs(model.predict(s, [run.gpu])[0].epoch_latency_s / run.epoch_latency_s - 1) for s in sources]
            answer = combine_predictions([model.predict(source, [run.gpu])[0] for source in sources])
            combined.append(abs(answer.epoch_latency_s / run.epoch_latency_s - 1))
            inside.append(answer.epoch_latency_low_s <= run.epoch_latency_s <= answer.epoch_latency_high_s)
    rows = [
        ("one", len(single), percent(float(np.mean(single))), percent(float(np.median(single))), ""),
        (
            "two or three",
            len(combined),
            percent(float(np.mean(combined))),
            percent(float(np.median(combined))),
            percent(float(np.mean(inside))),
        ),
    ]
    return (
        "## Several sources, CNN held out\n\nThe same target runs, predicted from every other run of their "
        "configuration and from all of those together.\n\n"
        + table(("sources", "predictions", "mean error", "median", "coverage of 90 %"), rows)
    )


def section_ablation(runs: RunsTable) -> str:
    groups = {
        "dynamic metrics alone": FeatureGroups(static=False, latency=False),
        "dynamic metrics and the source's latency": FeatureGroups(static=False),
        "static ratios and the source's latency": FeatureGroups(dynamic=False),
        "all": FeatureGroups(),
    }
    rows = []
    for name, group in groups.items():
        make: Callable[[int], PaperStack] = lambda seed, group=group: PaperStack(seed=seed, groups=group)  # noqa: E731
        cells = []
        for protocol in (LatencyProtocol.RANDOM, LatencyProtocol.CONFIG):
            result = evaluate(runs, make_paper_predictor(make), protocol, seeds=SEEDS[:1])
            cells.append(with_spread(log(f"ablation {name} {protocol.value}", result)))
        rows.append((name, *cells))
    return (
        "## Paper stack: which inputs matter (the form of Table V)\n\nOne seed. The paper reports 71.6 %, 20.1 % and "
        "11.7 % for dynamic, static and all; with or without the source's latency it does not say.\n\n"
        + table(("inputs", "random pairs", "unseen configuration"), rows)
    )


def section_single_models(runs: RunsTable) -> str:
    rows, columns = [], []
    for protocol in (LatencyProtocol.RANDOM, LatencyProtocol.CONFIG):
        parts: dict[str, list[PairErrors]] = {}

        def predictor(task: Task, parts: dict[str, list[PairErrors]] = parts) -> PairErrors:
            stack = PaperStack(seed=task.seed).fit(task.training, pairs=task.fit_on)
            predictions = stack.predict_pairs(task.test, *task.predict)
            y = np.array([task.training.runs[index].epoch_latency_s for index in task.fit_on[1]])
            single = HistGradientBoostingRegressor(random_state=task.seed)
            single.fit(stack.features(task.training, *task.fit_on), y)
            predictions["hist_gradient_boosting"] = single.predict(stack.features(task.test, *task.predict))
            for name, seconds in predictions.items():
                parts.setdefault(name, []).append(PairErrors.without_intervals(task.test, *task.predict, seconds))
            return parts["stack"][-1]

        evaluate(runs, predictor, protocol, seeds=SEEDS[:2])
        mape = {name: Scores.from_errors(PairErrors.join(errors)).mape for name, errors in parts.items()}
        stack = mape.pop("stack")
        columns = ["held out", "stack", *(name.replace("_", " ") for name in mape)]
        singles = (f"{percent(value)}, by {percent(1 - stack / value)}" for value in mape.values())
        rows.append((HELD_OUT[protocol], percent(stack), *singles))
        print(stack, mape, flush=True)
    return (
        "## Paper stack against its parts (the form of Fig. 12)\n\nMean error, and by how much the stack's is lower; "
        "two seeds. The paper reports 16.7 % (CatBoost), 20.2 % (random forest) and 32 % (HistGradientBoosting).\n\n"
        + table(columns, rows)
    )


def section_picture(default: dict[LatencyProtocol, LatencyEvaluation], folder: Path) -> str:
    draw_scatter(default, folder / "predictor_scatter.png")
    return "## Predicted against measured\n\n![predicted against measured epoch latency](predictor_scatter.png)\n"


if __name__ == "__main__":
    main()
