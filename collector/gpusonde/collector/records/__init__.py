"""Records as they arrive: their limits, their validation and their decoded form."""
