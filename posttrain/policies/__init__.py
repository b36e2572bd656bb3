"""Policies: what draws completions and prices them. One interface from a softmax over candidates to a causal LM."""
