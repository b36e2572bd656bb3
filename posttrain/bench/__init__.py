"""Tiny-model benchmark tracks: an idea against a tuned baseline in minutes, paired by seed.

`track.Track` is a benchmark as data, `track.Idea` what someone wants to try on it. `posttrain bench list` names the
tracks, `posttrain bench new idea NAME` writes a starting point.
"""
