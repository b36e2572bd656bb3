"""Artifacts: the records a run leaves, the comparisons made of them and the checks they must pass."""
