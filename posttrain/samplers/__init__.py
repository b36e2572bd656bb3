"""How a causal LM draws completions."""
