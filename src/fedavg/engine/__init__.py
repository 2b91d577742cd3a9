"""The hot path: how one worker trains and evaluates clients at full speed. Knows nothing of rounds or fleets."""
