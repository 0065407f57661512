"""How many of one GPU replace one of another for a job: ``ExchangeRates``, as people and schedulers read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Screen, complain
from gpusonde.errors import CommandError

if TYPE_CHECKING:
    from gpusonde.cli.workload.answers import StepPayload
    from gpusonde.collector.client import Prediction
    from gpusonde.predictor.crossgpu import LatencyPrediction

#: Ways to write them beside JSON.
FORMATS = ("table", "csv", "kueue", "slurm")
# More columns do not fit a terminal: then the run's own GPU against each.
_MOST_COLUMNS = 8
_TOO_SMALL = "the memory does not hold the job; a smaller batch may fit"


class RatePayload(TypedDict):
    """What one GPU of a model is worth."""

    rate: Annotated[float, JsonKey("how many of the run's own GPUs one of it is worth")]
    low: Annotated[float, JsonKey("interval of the rate")]
    high: Annotated[float, JsonKey("interval of the rate")]
    extrapolated: bool


class ReplacementPayload(TypedDict):
    """How many GPUs of one model replace one of another."""

    gpu_model: str
    by_gpu_model: str
    count: Annotated[float, JsonKey("so many of the other")]
    low: Annotated[float, JsonKey("interval of the number")]
    high: Annotated[float, JsonKey("interval of the number")]
    extrapolated: bool


class ExchangeRatesPayload(TypedDict):
    """Exchange rates of GPUs for one job."""

    own_gpu_model: str
    rates: Annotated[dict[str, RatePayload], JsonKey("by GPU model")]
    replacements: list[ReplacementPayload]
    left_out: Annotated[dict[str, str], JsonKey("GPU models without a rate, and why")]


@dataclass(frozen=True)
class _Pace:
    """Logarithm of the seconds that one GPU takes for the work, and half of its interval."""

    log_s: float
    half_width: float
    extrapolated: bool


@dataclass(frozen=True)
class ExchangeRates:
    """What GPUs are worth to one job.

    Attributes:
        own: The GPU that it was measured on; rates are relative to it.
        paces: GPU -> how fast one of it is; the own one is among them.
        left_out: GPUs that are worth nothing to the job, or nothing that is known, and why.
    """

    own: str
    paces: dict[str, _Pace]
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_predictions(
        cls, own: str, own_s: float, own_count: int, rows: Iterable[Prediction | LatencyPrediction]
    ) -> ExchangeRates:
        """Take epochs that were predicted from one run.

        Args:
            own: GPU of the run.
            own_s: Seconds of its epoch.
            own_count: GPUs that it had.
            rows: The predictions.

        Raises:
            CommandError: There are several answers for a GPU.
        """
        paces = {own: _Pace(math.log(own_s * own_count), 0.0, False)}
        left_out: dict[str, str] = {}
        for row in rows:
            name = row.gpu_model if hasattr(row, "gpu_model") else row.target_gpu
            if row.status not in ("ok", "extrapolated"):
                if name != own:
                    left_out[name] = row.reason
                continue
            pace = _pace(
                row.epoch_latency_s * row.gpu_count, row.epoch_latency_low_s, row.epoch_latency_high_s, row.extrapolated
            )
            if name == own and row.gpu_count == own_count and math.isclose(row.epoch_latency_s, own_s, rel_tol=1e-3):
                continue
            if paces.get(name, pace) != pace:
                raise CommandError(
                    f"exchange rates are those of one placement for each GPU, and the run's own is {own_count} x {own}:"
                    f" {name} was asked about in several"
                )
            paces[name] = pace
            if row.fits == "no":
                left_out[name] = _TOO_SMALL
        return cls(own, {name: pace for name, pace in paces.items() if name not in left_out}, left_out)

    @classmethod
    def from_steps(cls, rows: Iterable[StepPayload]) -> ExchangeRates:
        """Take steps that were predicted from one graph; the first GPU counts as the own one.

        Raises:
            CommandError: There is no answer, or there are several for a GPU.
        """
        paces: dict[str, _Pace] = {}
        left_out: dict[str, str] = {}
        for row in rows:
            name, count, batch = row["gpu_model"], row["gpu_count"], row["global_batch_size"]
            step_s, low_s, high_s = row["step_s"], row["step_low_s"], row["step_high_s"]
            if name in paces or name in left_out:
                raise CommandError("exchange rates are those of one graph, batch size and number of GPUs: ask for one")
            if not (name and count and batch and step_s and low_s and high_s):
                if name:
                    left_out[name] = row["error"] or "it has no answer"
            elif row["fits"] == "no":
                left_out[name] = _TOO_SMALL
            else:
                paces[name] = _pace(step_s * count / batch, low_s, high_s, bool(row["out_of_distribution"]))
        if not paces:
            problem = "; ".join(_group(left_out)) or "nothing could be predicted"
            raise CommandError(f"there are no exchange rates: {problem}")
        return cls(next(iter(paces)), paces, left_out)

    def rates(self) -> dict[str, RatePayload]:
        """Return what one of each GPU but the own one is worth, in own ones."""
        found = {}
        for name in self.paces:
            if name != self.own:
                count, low, high, extrapolated = self._replace(name, self.own)
                found[name] = RatePayload(
                    rate=_round(count), low=_round(low), high=_round(high), extrapolated=extrapolated
                )
        return found

    def payload(self) -> ExchangeRatesPayload:
        """The rates as they appear in JSON."""
        replacements = []
        for name in self.paces:
            for other in self.paces:
                count, low, high, extrapolated = self._replace(name, other)
                if name != other:
                    replacements.append(
                        ReplacementPayload(
                            gpu_model=name, by_gpu_model=other, count=_round(count), low=_round(low),
                            high=_round(high), extrapolated=extrapolated,
                        )
                    )  # fmt: skip
        return {
            "own_gpu_model": self.own,
            "rates": self.rates(),
            "replacements": replacements,
            "left_out": self.left_out,
        }

    def render(self, screen: Screen, form: str) -> None:
        """Print the rates in one of ``FORMATS``; of those with no place for words, what is left out goes to stderr.

        Raises:
            CommandError: No GPU is left to compare with.
        """
        if len(self.paces) < 2 and self.left_out:
            raise CommandError(f"there is nothing to exchange {self.own} for: {'; '.join(_group(self.left_out))}")
        if form == "csv":
            screen.stream.write("gpu_model,by_gpu_model,count,low,high,extrapolated,left_out\n")
            for each in self.payload()["replacements"]:
                numbers = f"{each['count']:g},{each['low']:g},{each['high']:g}"
                names = f"{each['gpu_model']},{each['by_gpu_model']}"
                screen.stream.write(f"{names},{numbers},{str(each['extrapolated']).lower()},\n")
            for name, why in self.left_out.items():
                quoted = why.replace('"', '""')
                screen.stream.write(f'{name},{self.own},,,,,"{quoted}"\n')
        elif form == "slurm":
            weights = {self.own: 1.0, **{name: rate["rate"] for name, rate in self.rates().items()}}
            told = ",".join(f"GRES/gpu:{_type(name)}={weight:g}" for name, weight in weights.items())
            screen.stream.write(f'TRESBillingWeights="{told}"\n')
            self._complain()
        elif form == "kueue":
            import json

            screen.stream.write(json.dumps({"exchange_rates": self.rates()}, sort_keys=True) + "\n")
            self._complain()
        else:
            self._render_table(screen)

    def _render_table(self, screen: Screen) -> None:
        columns = list(self.paces) if len(self.paces) <= _MOST_COLUMNS else [self.own]
        screen.heading("how many of the GPU above replace one of the GPU on the left")
        ranked = sorted(self.paces, key=lambda name: self.paces[name].log_s)
        screen.table(
            ("GPU", *columns),
            [(name, *(self._cell(name, other) for other in columns)) for name in ranked],
            numeric=columns,
        )
        for words in _group(self.left_out):
            screen.line(f"left out: {words}")

    def _complain(self) -> None:
        for words in _group(self.left_out):
            complain(f"gpusonde: warning: left out: {words}")

    def _cell(self, name: str, other: str) -> str:
        if name == other:
            return "1"
        count, low, high, _ = self._replace(name, other)
        return f"{count:.2g} ({formatting.interval(_round(low), _round(high))})"

    def _replace(self, name: str, other: str) -> tuple[float, float, float, bool]:
        """How many of ``other`` replace one of ``name``, its interval, and whether it is extrapolated."""
        one, another = self.paces[name], self.paces[other]
        log_count = another.log_s - one.log_s
        half_width = math.hypot(one.half_width, another.half_width)
        return (
            math.exp(log_count),
            math.exp(log_count - half_width),
            math.exp(log_count + half_width),
            one.extrapolated or another.extrapolated,
        )


def _pace(one_gpu_s: float, low_s: float, high_s: float, extrapolated: bool) -> _Pace:
    return _Pace(math.log(one_gpu_s), math.log(high_s / low_s) / 2, extrapolated)


def _group(left_out: Mapping[str, str]) -> list[str]:
    """Say what is left out, the GPUs of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in left_out.items():
        by_reason.setdefault(why, []).append(name)
    return [f"{', '.join(names)}: {why}" for why, names in by_reason.items()]


def _round(number: float) -> float:
    return float(f"{number:.3g}")


def _type(name: str) -> str:
    """A GPU's name as a type of Slurm's GRES."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
