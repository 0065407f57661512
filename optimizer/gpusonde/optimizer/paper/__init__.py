"""The seed's own search: pruned and exhaustive, or Banchor with an integer programme (Srifty, section 4.4)."""

from gpusonde.optimizer.paper.search import MOST_SIMULATIONS, paper_search
from gpusonde.optimizer.paper.space import count_plans, list_plans, saturating_batch

__all__ = ["MOST_SIMULATIONS", "count_plans", "list_plans", "paper_search", "saturating_batch"]
