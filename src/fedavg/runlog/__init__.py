"""Run directories: written, read back, resumed, summarised and drawn. Knows nothing about how a run is computed."""
