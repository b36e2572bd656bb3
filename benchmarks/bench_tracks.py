"""What a bench track costs, and how that grows with seeds and sweep cells. Prints JSON.

    python benchmarks/bench_tracks.py [TRACK ...] [--whole] [--grown]

For each track: processor seconds of one training of either arm (median of three seeds; wall time would measure the
machine's other work too), the number of trainings of a default run,
what they add up to on one core, and the same for more seeds and cells. `--whole` also times a default run with two
processes, plan and artifact included. `--grown` makes whole runs of several sizes instead, one process each, and gives
their processor seconds beside the number of trainings.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from posttrain.bench.conduct import Unit, conduct, perform
from posttrain.bench.options import Bench, load
from posttrain.bench.track import tracks

RUNS = ((1, 8), (2, 8), (4, 8), (8, 8), (4, 16), (4, 32))  # tuning seeds, evaluation seeds
GROWTH = ((1, 4, 8), (3, 4, 8), (9, 4, 8), (3, 4, 16), (3, 8, 8), (9, 8, 16))  # cells, tuning seeds, evaluation seeds


def main(words: list[str]) -> None:
    """Measures the named tracks, or all."""
    names = [word for word in words if not word.startswith("--")] or tracks.names()
    if "--grown" in words:
        print(json.dumps({name: grown(name) for name in names}, indent=2))
        return
    print(json.dumps({name: measure(load(name), whole="--whole" in words) for name in names}, indent=2))


def grown(name: str) -> list[dict[str, Any]]:
    """Processor seconds of whole runs: plan, trainings, figure and records."""
    perform(load(name), Unit("baseline", 0, 0))  # imports and first allocations
    rows = []
    for tuning, evaluation in RUNS:
        bench = load(name, overrides=[f"tuning_seeds=100-{99 + tuning}", f"evaluation_seeds=0-{evaluation - 1}"])
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            conduct(bench, Path(folder) / "run")
            seconds = time.process_time() - began
        trainings = 2 * (len(bench.track.sweep) * tuning + evaluation)
        each = {"trainings": trainings, "seconds": round(seconds, 2), "per_training": round(seconds / trainings, 4)}
        rows.append({"tuning_seeds": tuning, "evaluation_seeds": evaluation, **each})
    return rows


def measure(bench: Bench, whole: bool) -> dict[str, Any]:
    """Processor seconds per training and what a run adds up to."""
    perform(bench, Unit("baseline", 0, 0))  # imports and first allocations
    each = {arm: statistics.median(_timed(bench, arm, seed) for seed in (0, 1, 2)) for arm in ("baseline", "idea")}
    pair = sum(each.values())
    cells, tuning, evaluation = len(bench.track.sweep), len(bench.tuning_seeds), len(bench.evaluation_seeds)
    found: dict[str, Any] = {
        "seconds_per_training": {arm: round(seconds, 4) for arm, seconds in each.items()},
        "trainings": 2 * (cells * tuning + evaluation),
        "seconds_one_core": round(pair * (cells * tuning + evaluation), 2),
        "growth": [
            {
                "cells": c,
                "tuning_seeds": t,
                "evaluation_seeds": e,
                "trainings": 2 * (c * t + e),
                "seconds_one_core": round(pair * (c * t + e), 2),
            }
            for c, t, e in GROWTH
        ],
    }
    if whole:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            conduct(bench, Path(folder) / "run", jobs=2)
            found["seconds_default_run_two_processes"] = round(time.perf_counter() - began, 2)
    return found


def _timed(bench: Bench, arm: str, seed: int) -> float:
    began = time.process_time()
    perform(bench, Unit(arm, 0, seed))
    return time.process_time() - began


if __name__ == "__main__":
    main(sys.argv[1:])
