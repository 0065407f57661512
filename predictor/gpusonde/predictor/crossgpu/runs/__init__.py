"""Tables of measured runs: reading them, and the pairs that models are fitted on."""
