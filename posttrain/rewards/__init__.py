"""Rewards: a problem and a completion's text in, a number or a `Failure` out."""
