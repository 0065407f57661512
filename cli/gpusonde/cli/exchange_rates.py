"""How many of one GPU replace one of another for a job: ``ExchangeRates``, as people and schedulers read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypedDict

from gpusonde import formatting
from gpusonde.cli.output import JsonKey, Screen
from gpusonde.errors import CommandError

if TYPE_CHECKING:
    from gpusonde.cli.workload.answers import StepPayload
    from gpusonde.collector.client import Prediction
    from gpusonde.predictor.crossgpu import LatencyPrediction

#: Ways to write them beside JSON.
FORMATS = ("table", "csv", "kueue", "slurm")
# More columns do not fit a terminal: then the run's own GPU against each.
_MOST_COLUMNS = 8


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
        too_small: GPUs whose memory does not hold the job, which are worth nothing to it.
    """

    own: str
    paces: dict[str, _Pace]
    too_small: tuple[str, ...] = ()

    @classmethod
    def from_predictions(
        cls, own: str, own_s: float, own_count: int, rows: Iterable[Prediction | LatencyPrediction]
    ) -> ExchangeRates:
        """Take epochs that were predicted from one run; what cannot be predicted is left out.

        Args:
            own: GPU of the run.
            own_s: Seconds of its epoch.
            own_count: GPUs that it had.
            rows: The predictions.

        Raises:
            CommandError: There are several answers for a GPU.
        """
        paces = {own: _Pace(math.log(own_s * own_count), 0.0, False)}
        too_small: dict[str, None] = {}
        for row in rows:
            name = row.gpu_model if hasattr(row, "gpu_model") else row.target_gpu
            if row.status not in ("ok", "extrapolated"):
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
                too_small[name] = None
        return cls(own, {name: pace for name, pace in paces.items() if name not in too_small}, tuple(too_small))

    @classmethod
    def from_steps(cls, rows: Iterable[StepPayload]) -> ExchangeRates:
        """Take steps that were predicted from one graph; the first GPU counts as the own one.

        Raises:
            CommandError: There is no answer, or there are several for a GPU.
        """
        paces: dict[str, _Pace] = {}
        too_small: dict[str, None] = {}
        for row in rows:
            name, count, batch = row["gpu_model"], row["gpu_count"], row["global_batch_size"]
            step_s, low_s, high_s = row["step_s"], row["step_low_s"], row["step_high_s"]
            if not (name and count and batch and step_s and low_s and high_s):
                continue
            if name in paces or name in too_small:
                raise CommandError("exchange rates are those of one graph, batch size and number of GPUs: ask for one")
            if row["fits"] == "no":
                too_small[name] = None
            else:
                paces[name] = _pace(step_s * count / batch, low_s, high_s, bool(row["out_of_distribution"]))
        if not paces:
            problem = "no GPU's memory holds the step" if too_small else "nothing could be predicted"
            raise CommandError(f"{problem}, so there are no exchange rates")
        return cls(next(iter(paces)), paces, tuple(too_small))

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
        return {"own_gpu_model": self.own, "rates": self.rates(), "replacements": replacements}

    def render(self, screen: Screen, form: str) -> None:
        """Print the rates in one of ``FORMATS``.

        Raises:
            CommandError: No GPU is left to compare with.
        """
        if len(self.paces) < 2 and self.too_small:
            raise CommandError(
                f"the memory of {', '.join(self.too_small)} does not hold the job, so there is nothing to exchange "
                f"{self.own} for; a smaller batch may fit"
            )
        if form == "csv":
            screen.stream.write("gpu_model,by_gpu_model,count,low,high,extrapolated\n")
            for each in self.payload()["replacements"]:
                numbers = f"{each['count']:g},{each['low']:g},{each['high']:g}"
                names = f"{each['gpu_model']},{each['by_gpu_model']}"
                screen.stream.write(f"{names},{numbers},{str(each['extrapolated']).lower()}\n")
        elif form == "slurm":
            weights = {self.own: 1.0, **{name: rate["rate"] for name, rate in self.rates().items()}}
            told = ",".join(f"GRES/gpu:{_type(name)}={weight:g}" for name, weight in weights.items())
            screen.stream.write(f'TRESBillingWeights="{told}"\n')
        elif form == "kueue":
            import json

            screen.stream.write(json.dumps({"exchange_rates": self.rates()}, sort_keys=True) + "\n")
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
        if self.too_small:
            screen.line(f"left out, as the memory does not hold the job: {', '.join(self.too_small)}")

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


def _round(number: float) -> float:
    return float(f"{number:.3g}")


def _type(name: str) -> str:
    """A GPU's name as a type of Slurm's GRES."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
