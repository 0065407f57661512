"""Amounts in words."""


def seconds(value: float) -> str:
    """Return a time in words."""
    return f"{value:.0f} s" if value >= 1000 else f"{value:.3g} s"


def usd(value: float) -> str:
    """Return an amount in words."""
    return f"{value:.2f} USD" if value >= 1 else f"{value:.3g} USD"
