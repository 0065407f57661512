"""QueryService: runs, epochs, predictions and samples."""
