"""``simulated_steps``: step times of the problem that a document describes."""

from __future__ import annotations

from collections.abc import Mapping

from gpusonde.optimizer.documents.job import RatedNetwork
from gpusonde.optimizer.documents.problem import ProblemDocument
from gpusonde.optimizer.step_times import SimulatedSteps
from gpusonde.simulator.allreduce.model import AllreduceModel
from gpusonde.simulator.iteration import Network


def simulated_steps(document: ProblemDocument) -> SimulatedSteps:
    """Return the step times: measured fabrics as the allreduce model has them, others as their rating says.

    Raises:
        gpusonde.optimizer.problem.ProblemError: An offer lacks something.
        gpusonde.simulator.allreduce.measurements.MeasurementError: Measurements from which no model can be made.
    """
    job, offers = document.job, document.problem.offers
    return SimulatedSteps(
        offers,
        {offer.name: job.curves[offer.device] for offer in offers},
        _networks(document),
        job.gradients,
        policy=job.policy,
        optimizer_s=job.optimizer_s,
    )


def _networks(document: ProblemDocument) -> Mapping[str, Network]:
    networks: dict[str, Network] = {
        name: RatedNetwork(bytes_per_second) for name, bytes_per_second in document.rated_fabrics.items()
    }
    measured = {measurement.fabric for measurement in document.job.allreduce}
    if measured:
        model = AllreduceModel.fit(document.job.allreduce, kind=document.job.allreduce_model)
        # Where only the inside of a machine was measured, the rating says what several of them reach.
        ratings = {
            offer.fabric: RatedNetwork(offer.network_bytes_per_second)
            for offer in document.problem.offers
            if offer.network_bytes_per_second is not None
        }
        networks |= {fabric: model.network(fabric, beyond=ratings.get(fabric)) for fabric in sorted(measured)}
    return networks
