"""Checking a data directory: ``gpusonde store fsck``."""
