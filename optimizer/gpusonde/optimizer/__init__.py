"""Which machines to rent for a training job, under a deadline and a budget, and what to change while it runs."""

from gpusonde.optimizer.pareto import ParetoFront, ParetoPoint, pareto
from gpusonde.optimizer.plan import Group, Plan
from gpusonde.optimizer.problem import Billing, Objective, Offer, Problem, ProblemError
from gpusonde.optimizer.simulated import SimulatedSteps
from gpusonde.optimizer.solution import Nearest, PlanEstimate, Proof, Relaxation, Solution, Status
from gpusonde.optimizer.solve import solve
from gpusonde.optimizer.steps import StepEstimate, StepTimes, TableSteps

__all__ = [
    "Billing",
    "Group",
    "Nearest",
    "Objective",
    "Offer",
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
