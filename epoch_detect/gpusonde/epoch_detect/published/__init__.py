"""The published detector: Luminol, Savitzky-Golay, peaks."""
