"""The regressors of the residual: a Gaussian process and decision trees, predicting in plain numpy."""
