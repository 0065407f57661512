"""How long an iteration of data-parallel training takes on a set of GPUs that nobody has rented yet."""
