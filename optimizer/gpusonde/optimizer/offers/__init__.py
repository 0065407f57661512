"""Offers of a problem from the catalogue of instance types and from tables of spot prices."""

from gpusonde.optimizer.offers.listed import OfferFilter, listed_offers
from gpusonde.optimizer.offers.selection import LeftOut, OfferSelection
from gpusonde.optimizer.offers.spot import SpotRow, SpotTableError, read_spot_rows, spot_offers
from gpusonde.optimizer.offers.terms import BatchLimits, Quota, Terms, TermsError

__all__ = [
    "BatchLimits",
    "LeftOut",
    "OfferFilter",
    "OfferSelection",
    "Quota",
    "SpotRow",
    "SpotTableError",
    "Terms",
    "TermsError",
    "listed_offers",
    "read_spot_rows",
    "spot_offers",
]
