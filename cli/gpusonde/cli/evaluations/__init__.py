"""What ``gpusonde evaluate`` can score: one module for each subject."""
