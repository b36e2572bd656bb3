"""Algorithms, one file each. None knows which tier it runs at."""
