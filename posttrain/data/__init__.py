"""Datasets: a seed in, problems out, with what was drawn kept for the fingerprint."""
