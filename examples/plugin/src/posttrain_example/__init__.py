"""Importing this package registers the algorithm `forking-tokens` with its study, and the reward `first-half`."""

from posttrain_example import study
from posttrain_example.first_half import FirstHalf
from posttrain_example.forking_tokens import ForkingTokens

__all__ = ["FirstHalf", "ForkingTokens", "study"]
