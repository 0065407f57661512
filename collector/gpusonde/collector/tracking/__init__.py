"""Runs and their epochs, found in the samples as they become durable."""
