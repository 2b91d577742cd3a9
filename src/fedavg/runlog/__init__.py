"""Run directories: what is written, read back, resumed, summed up and drawn. Knows nothing of how a run is computed."""
