"""Ways to find the best plan."""
