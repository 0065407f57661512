"""Training of hypernetworks on the side of whoever owns the images; needs torch, but for the data sets."""
