"""The mathematics of differential privacy: the cost of noise, and noise in whole numbers. It knows no plans."""
