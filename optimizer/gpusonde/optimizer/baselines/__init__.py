"""What the optimizer is compared with: two greedy policies and Bayesian optimisation on the truth (Srifty, 5.1).

APM is a model of the iteration and not a search: its step times go into the optimizer's own search, as in the seed.
"""

from gpusonde.optimizer.baselines.apm import ApmSteps
from gpusonde.optimizer.baselines.bayesian import explore
from gpusonde.optimizer.baselines.greedy import MAGIC_BATCH, cheapest_first, fastest_first
from gpusonde.optimizer.baselines.oracle import oracle_bayes

__all__ = ["MAGIC_BATCH", "ApmSteps", "cheapest_first", "explore", "fastest_first", "oracle_bayes"]
