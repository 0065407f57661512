"""The hosts that agents run on: what they have, and what of it is free."""
