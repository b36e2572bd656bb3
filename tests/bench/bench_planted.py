"""A track without training: a number per seed, with a planted effect and noise. For the tests of bench."""

import math

import numpy as np

from posttrain.bench.track import Idea, Result, Track


class Planted:
    """metric = level of the seed + noise of seed and salt - effect; NaN at the seed `fails`."""

    def drawn(self, seed, options):
        return {"train": [{"seed": seed, "scale": options["scale"]}]}

    def run(self, cell):
        own = cell.settings
        level = np.random.default_rng(cell.seed).normal()
        noise = np.random.default_rng([cell.seed, own["salt"]]).normal()
        metric = 10 + cell.data["scale"] * level + own["noise"] * noise - own["effect"] + own["offset"]
        if cell.seed == own["fails"]:
            metric = math.nan
        start = {"data": f"{cell.seed}"} if not own["unpaired"] else {"data": f"{cell.seed} {cell.idea is None}"}
        return Result(float(metric), {"level": float(level)}, start)


track = Track(
    name="planted",
    model="none",
    metric="a planted number",
    direction="lower is better",
    rationale="Known effects.",
    task=Planted(),
    budget={"epochs": 1},
    base={"offset": 0.0, "effect": 0.0, "noise": 0.1, "salt": 0, "fails": -1, "unpaired": False},
    data={"scale": 1.0},
    sweep=({"offset": 0.5}, {"offset": 0.0}, {"offset": 0.0}),
    shown=("offset", "epochs"),
    idea=Idea(name="effect", settings={"effect": 1.0, "salt": 1}),
    domain="tests",
)
