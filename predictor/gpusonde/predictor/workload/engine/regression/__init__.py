"""What is learned: the calibration of roofline times, and regressors of what it leaves over."""
