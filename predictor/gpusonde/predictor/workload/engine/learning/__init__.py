"""Fitting a model: candidates, their validation, and what is kept."""
