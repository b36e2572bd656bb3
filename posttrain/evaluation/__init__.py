"""From a configuration to an artifact: arms, seeds, plans, claims and what a person sees of them.

from posttrain.evaluation import train
artifact = train("sparse-opd")
print(artifact)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.evaluation.api import Artifact, compare, evaluate, reproduce, train

__all__ = ["Artifact", "compare", "evaluate", "reproduce", "train"]


def __getattr__(name: str) -> Any:
    """The functions when they are first asked for: the command line's parser lies in this package and stays instant."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from posttrain.evaluation import api

    return getattr(api, name)
