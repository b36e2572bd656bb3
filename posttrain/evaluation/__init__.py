"""From a configuration to an artifact: arms, seeds, plans, claims and what a person sees of them.

from posttrain.evaluation import train
artifact = train("sparse-opd")
print(artifact)
"""

from posttrain.evaluation.api import Artifact, compare, reproduce, train

__all__ = ["Artifact", "compare", "reproduce", "train"]
