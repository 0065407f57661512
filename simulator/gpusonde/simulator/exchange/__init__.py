"""When the gradients of a step have been exchanged."""

from gpusonde.simulator.exchange.events import simulate_exchange
from gpusonde.simulator.exchange.many import simulate_exchanges
from gpusonde.simulator.exchange.policy import ExchangeTimeline, LinkPolicy, LinkShare

__all__ = ["ExchangeTimeline", "LinkPolicy", "LinkShare", "simulate_exchange", "simulate_exchanges"]
