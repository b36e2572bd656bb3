"""From a configuration to an artifact: arms, seeds, plans, claims and what a person sees of them."""
