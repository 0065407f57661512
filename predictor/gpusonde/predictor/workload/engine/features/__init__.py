"""What the engine sees of a request: counts of its graph, roofline times on its device, columns for regressors."""
