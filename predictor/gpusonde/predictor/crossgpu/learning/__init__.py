"""Learning from a fleet: candidates that have to be better, versions that can be taken back."""
