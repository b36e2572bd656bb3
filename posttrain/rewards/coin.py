"""`coin`: a reward that knows nothing of the answer, for the control arm `random_reward`.

What a policy gains under it, it does not owe to the reward's judgement (Shao et al., 2025, arXiv 2506.10947).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

from posttrain.batch import Failure, Problem
from posttrain.ranges import UNIT, check
from posttrain.registry import rewards


@rewards.register("coin")
@dataclass(frozen=True)
class Coin:
    """1 for a share of all completions, drawn by a hash of problem and text, whatever the answer; else 0."""

    share: float = 0.5

    def __post_init__(self) -> None:
        check("reward", self, share=UNIT)

    def __call__(self, problem: Problem, text: str) -> float | Failure:
        drawn = sha256(f"{problem.id}\0{text}".encode()).digest()[:8]
        return float(int.from_bytes(drawn) < self.share * 2**64)
