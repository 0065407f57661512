"""What the optimizer is compared with: two greedy policies and Bayesian optimisation on the truth (Srifty, 5.1).

APM and Paleo are models of the iteration, not searches: they are step times like any other, for the same search.
"""

from gpusonde.optimizer.baselines.bayesian import explore
from gpusonde.optimizer.baselines.greedy import MAGIC_BATCH, cheapest_first, fastest_first
from gpusonde.optimizer.baselines.oracle import oracle_bayes

__all__ = ["MAGIC_BATCH", "cheapest_first", "explore", "fastest_first", "oracle_bayes"]
