"""How far a prediction can be trusted: intervals, and what is unlike everything that was measured."""
