"""What the demo found, as JSON and as the last page of its screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gpusonde import formatting
from gpusonde.catalog import CostedOffer, Offer, cheapest, fastest, rank_offers
from gpusonde.cli.commands.catalog import OfferPayload, offer_payload
from gpusonde.cli.measuring import Predictions, PredictPayload
from gpusonde.cli.output import JsonKey, Screen
from gpusonde.cli.runs_view import (
    EpochPayload,
    RunPayload,
    doubt,
    epochs_payload,
    headline,
    noun_of,
    render_epochs,
    run_payload,
)
from gpusonde.collector.client import RunEpochs, RunInfo
from gpusonde.predictor.crossgpu import LatencyPrediction


class CostedOfferPayload(OfferPayload):
    """An offer, and what an epoch takes and costs on it."""

    epoch_latency_s: float
    usd_per_epoch: float
    usd_per_epoch_low: Annotated[float, JsonKey("from the interval of the latency")]
    usd_per_epoch_high: Annotated[float, JsonKey("from the interval of the latency")]
    extrapolated: bool


class DemoPayload(PredictPayload):
    """What ``gpusonde demo`` prints."""

    mode: Annotated[str, JsonKey("`live` or `replay`")]
    live_note: Annotated[str | None, JsonKey("why no live GPU is shown")]
    trace: str | None
    generated: Annotated[str | None, JsonKey("how the trace was")]
    speed: Annotated[float | None, JsonKey("25 is 25 times faster than recorded")]
    ticks_sampled: int
    ticks_stored: Annotated[int, JsonKey("that came back out of the store")]
    missed_ticks: int
    run: RunPayload
    reason: str
    epochs: list[EpochPayload]
    offers: Annotated[list[CostedOfferPayload], JsonKey("one epoch on every offer with one GPU, the cheapest first")]
    cheapest: CostedOfferPayload | None
    fastest: CostedOfferPayload | None
    picture: Annotated[str, JsonKey("of the stored trace with its epochs")]
    elapsed_s: float


@dataclass(frozen=True)
class Observation:
    """How a run was obtained, and what the collector says about it.

    Attributes:
        mode: ``live`` or ``replay``.
        trace: The replayed file, or None.
        generated: How that file was generated, or None for a recording.
        speed: How many times faster than recorded, or None.
        run: The run.
        epochs: Its epochs.
        ticks_sampled: Ticks that the agent took.
        ticks_stored: Ticks that came back out of the store.
        missed_ticks: Deadlines without a reading.
    """

    mode: str
    trace: Path | None
    generated: str | None
    speed: float | None
    run: RunInfo
    epochs: RunEpochs
    ticks_sampled: int
    ticks_stored: int
    missed_ticks: int


@dataclass(frozen=True)
class DemoReport:
    """Everything the demo has to say.

    Attributes:
        observation: The run and its epochs.
        live_note: Why no live GPU is shown, or None.
        predictions: Its epoch latency on every GPU.
        offers: One epoch on every offer with one GPU, cheapest first.
        picture: The picture.
        elapsed_s: How long the demo took.
    """

    observation: Observation
    live_note: str | None
    predictions: Predictions
    offers: Sequence[CostedOffer]
    picture: Path
    elapsed_s: float

    def payload(self) -> DemoPayload:
        """The report as it appears in JSON."""
        seen = self.observation
        best, quickest = cheapest(self.offers), fastest(self.offers)
        return {
            "mode": seen.mode,
            "live_note": self.live_note,
            "trace": None if seen.trace is None else str(seen.trace),
            "generated": seen.generated,
            "speed": seen.speed,
            "ticks_sampled": seen.ticks_sampled,
            "ticks_stored": seen.ticks_stored,
            "missed_ticks": seen.missed_ticks,
            "run": run_payload(seen.run),
            "reason": seen.epochs.reason,
            "epochs": epochs_payload(seen.run, seen.epochs),
            **self.predictions.payload(),
            "offers": [self._offer(offer) for offer in self.offers],
            "cheapest": None if best is None else self._offer(best),
            "fastest": None if quickest is None else self._offer(quickest),
            "picture": str(self.picture),
            "elapsed_s": self.elapsed_s,
        }

    def _offer(self, costed: CostedOffer) -> CostedOfferPayload:
        row = self._row(costed)
        low, high = _cost_interval(costed, row)
        return {
            **offer_payload(costed.offer),
            "epoch_latency_s": costed.epoch_latency_s,
            "usd_per_epoch": costed.usd_per_epoch,
            "usd_per_epoch_low": low,
            "usd_per_epoch_high": high,
            "extrapolated": row.extrapolated,
        }

    def _row(self, costed: CostedOffer) -> LatencyPrediction:
        return next(row for row in self.predictions.rows if row.target_gpu == costed.offer.gpu_model)

    def render(self, screen: Screen) -> None:
        """Print predictions, offers and where the picture is."""
        best_of: dict[str, CostedOffer] = {}
        for costed in self.offers:
            best_of.setdefault(costed.offer.gpu_model, costed)
        coverage = formatting.percent(self.predictions.rows[0].interval_coverage)
        noun = noun_of(self.observation.epochs.role)
        screen.heading(f"What one {noun} takes and costs elsewhere, on the cheapest machine with one such GPU")
        columns = (f"{noun} (s)", f"{coverage} interval (s)", f"$ per {noun}", f"{coverage} interval ($)")
        screen.table(
            ("GPU", *columns, "machine", "price of", "extrapolated"),
            [self._table_row(costed) for costed in best_of.values()],
            numeric=columns,
            optional=(columns[3], "machine", "price of"),
        )
        others = len(self.predictions.rows) - len(best_of)
        screen.line(
            f"{others} more GPUs are in the catalogue without such an offer ('gpusonde predict'). Extrapolated: the "
            f"model ({self.predictions.model_version}) has seen no measurement on that GPU, or of such a run."
        )
        screen.line()
        if (best := cheapest(self.offers)) and (quickest := fastest(self.offers)):
            screen.line(f"cheapest: {self._sentence(best)}")
            screen.line(f"fastest:  {self._sentence(quickest)}")
        screen.line()
        screen.line(f"picture:  {self.picture}")

    def _table_row(self, costed: CostedOffer) -> tuple[str, ...]:
        row = self._row(costed)
        return (
            costed.offer.gpu_model,
            formatting.number(costed.epoch_latency_s),
            formatting.interval(row.epoch_latency_low_s, row.epoch_latency_high_s),
            formatting.money(costed.usd_per_epoch),
            formatting.interval(*_cost_interval(costed, row)),
            f"{costed.offer.provider} {costed.offer.instance_type}",
            costed.offer.price_date or "undated",
            "measured" if row.method == "measured" else formatting.yes_no(row.extrapolated),
        )

    def _sentence(self, costed: CostedOffer) -> str:
        offer, row = costed.offer, self._row(costed)
        note = ", extrapolated" if row.extrapolated else ""
        return (
            f"{offer.provider} {offer.instance_type} ({offer.gpu_model}, {offer.region}): "
            f"{formatting.seconds(costed.epoch_latency_s)} "
            f"({formatting.interval(row.epoch_latency_low_s, row.epoch_latency_high_s)} s) and "
            f"{formatting.dollars(costed.usd_per_epoch)} per {noun_of(self.observation.epochs.role)} "
            f"at its price of {offer.price_date or 'no date'}{note}"
        )


def render_run(screen: Screen, seen: Observation) -> None:
    """Print the run and its epochs."""
    run = seen.run
    screen.heading(f"run {run.run_id} on {run.product_name or run.gpu_uuid}: {headline(run, seen.epochs.role)}")
    screen.line(seen.epochs.reason)
    if run.verdict == "epochs" and noun_of(seen.epochs.role) == "cycle":
        screen.line(doubt(seen.epochs.role))
    if seen.epochs.epochs:
        screen.line()
        render_epochs(screen, run, seen.epochs.epochs, noun_of(seen.epochs.role))


def rank(predictions: Predictions, offers: Sequence[Offer]) -> list[CostedOffer]:
    """One epoch on every offer with one GPU, cheapest first."""
    return rank_offers({row.target_gpu: row.epoch_latency_s for row in predictions.rows}, offers)


def _cost_interval(costed: CostedOffer, row: LatencyPrediction) -> tuple[float, float]:
    per_second = costed.usd_per_epoch / costed.epoch_latency_s
    return per_second * row.epoch_latency_low_s, per_second * row.epoch_latency_high_s
