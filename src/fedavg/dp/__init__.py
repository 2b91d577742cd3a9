"""The mathematics of differential privacy: what noise costs, and noise in whole numbers. It knows of no plan."""
