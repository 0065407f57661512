"""Models of boosted trees: the correction of the default, and the published ones."""
