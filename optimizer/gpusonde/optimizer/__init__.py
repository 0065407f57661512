"""Which machines to rent for a training job, under a deadline and a budget, and what to change while it runs."""

from gpusonde.errors import ProblemError
from gpusonde.optimizer.problem import Billing, Group, MachineOffer, Objective, Plan, Problem
from gpusonde.optimizer.simulated_steps import SimulatedSteps
from gpusonde.optimizer.solution import Nearest, PlanEstimate, Proof, Relaxation, Solution, Status
from gpusonde.optimizer.solve import ParetoFront, ParetoPoint, pareto, solve
from gpusonde.optimizer.step_times import StepEstimate, StepTimes, TableSteps

__all__ = [
    "Billing",
    "Group",
    "MachineOffer",
    "Nearest",
    "Objective",
    "ParetoFront",
    "ParetoPoint",
    "Plan",
    "PlanEstimate",
    "Problem",
    "ProblemError",
    "Proof",
    "Relaxation",
    "SimulatedSteps",
    "Solution",
    "Status",
    "StepEstimate",
    "StepTimes",
    "TableSteps",
    "pareto",
    "solve",
]
