"""How sure a prediction is: conformal quantiles, and how far a query lies from what was fitted on."""
