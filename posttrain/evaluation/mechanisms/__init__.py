"""One file per reproduced paper: its claims as measurements, with rule and threshold written before any run."""
