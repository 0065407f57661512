"""The default detector: cycles that repeat, and how likely they are epochs."""
