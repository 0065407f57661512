"""Step times of fabrics that were measured inside of one machine only."""

import numpy as np
import pytest
from support.ring_network import grid

from gpusonde.errors import ProblemError
from gpusonde.optimizer import Group, MachineOffer, Plan, SimulatedSteps
from gpusonde.simulator.allreduce import AllreduceModel
from gpusonde.simulator.compute import ComputeProbe, fit_compute_curve
from gpusonde.simulator.gradients import GradientTrace


@pytest.fixture
def steps():
    model = AllreduceModel.fit(grid(worlds=(2, 4), devices_per_machine=4))
    curve = fit_compute_curve([ComputeProbe(batch, 0.01 + 0.001 * batch) for batch in (8, 16, 32, 64)])
    offer = MachineOffer("node", "A100", 4, 8, 10.0, fabric="ring")
    trace = GradientTrace(np.linspace(0, 1, 4), np.full(4, 25e6))
    return SimulatedSteps((offer,), {"node": curve}, {"ring": model.network("ring")}, trace)


def test_a_plan_of_one_machine_is_estimated(steps):
    assert 0.01 < steps.estimate(Plan((Group("node", 1, 16),))).mean_s < 1.0


def test_a_plan_of_several_machines_says_what_to_measure(steps):
    with pytest.raises(ProblemError, match="probe allreduce across machines"):
        steps.estimate(Plan((Group("node", 2, 16),)))


def test_the_fabric_still_has_its_place_among_others(steps):
    assert steps.network(MachineOffer("node", "A100", 4, 8, 10.0, fabric="ring")) > 0
