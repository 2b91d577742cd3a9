"""What is built on runs: estimates before one, judging and personalising a model after it."""
