"""How fast the mechanism tier is, as one JSON object: python benchmarks/speed.py [--quick]

Training is measured in CPU seconds of this process, which runs one thread, so that a busy machine disturbs it little.
Compare ratios and differences within one run; seconds belong to the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import correlation, linear_regression, median
from typing import Any

import torch

import posttrain
from posttrain import settings
from posttrain.assembly import assemble, pin
from posttrain.evaluation import train
from posttrain.registry import algorithms
from posttrain.trainer import Outcome

RECORDED = "sparse-opd"  # its default configuration is the recorded protocol
SEED = 42
SHORT, LONG = 10, 60  # steps of the two runs whose difference is the price of a step
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(posttrain.__file__).parents[1])}
IMPORTS = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
LOADED = """
import json, sys, tempfile
from posttrain.evaluation import train
with tempfile.TemporaryDirectory() as folder:
    train("sparse-opd", steps=2, seeds="42", output=folder)
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""
HEAVY = ("accelerate", "datasets", "pandas", "pyarrow", "torch", "transformers")


def main() -> None:
    """Measures everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: a check that it runs")
    rounds = 1 if parser.parse_args().quick else 5
    pin()
    found = {
        "rounds": rounds,
        "recorded_seed": recorded_seed(rounds),
        "against_steps": against_steps(rounds),
        "against_seeds": against_seeds(rounds),
        "start": start(5 if rounds == 1 else 15),
        "one_step_over_reinforce": steps_of_all(rounds),
        "loaded_on_the_l1_path": loaded(),
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cpus": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 1),
        },
    }
    print(json.dumps(rounded(found), indent=2))


# -- training -------------------------------------------------------------------------------------------------


def one_seed(algorithm: str, **options: Any) -> tuple[float, Outcome]:
    """CPU seconds of one seed, data and evaluations included, and what came out."""
    config = settings.load(algorithm, overrides=options)
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        outcome = assemble(config, SEED, folder=Path(folder)).run()
    return time.process_time() - began, outcome


def recorded_seed(rounds: int) -> dict[str, Any]:
    """One seed of the recorded protocol: data, 100 updates, 12 evaluations. Medians."""
    one_seed(RECORDED)  # the first of a process pays for lazy imports
    wall, cpu, outcomes = [], [], []
    for _ in range(2 * rounds + 1):
        began = time.perf_counter()
        seconds, outcome = one_seed(RECORDED)
        wall.append(time.perf_counter() - began)
        cpu.append(seconds)
        outcomes.append(outcome)
    phases = outcomes[0].seconds
    return {
        "wall_seconds": median(wall),
        "cpu_seconds": median(cpu),
        "evaluations": 1 + len(outcomes[0].history),
        "share_of_phases": {name: median(o.seconds[name] for o in outcomes) / median(wall) for name in phases},
    }


def against_steps(rounds: int) -> dict[str, Any]:
    """One recorded seed with more updates, evaluated every ten of them: the best of several."""
    return line((100, 200, 400), rounds, lambda steps: one_seed(RECORDED, steps=steps, eval_steps=10)[0])


def against_seeds(rounds: int) -> dict[str, Any]:
    """`train` with more seeds, from the plan to the execution record: the best of several."""

    def whole(seeds: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            began = time.process_time()
            train(RECORDED, seeds=f"{SEED}-{SEED + seeds - 1}", output=folder)
            return time.process_time() - began

    return line((1, 2, 4), rounds, whole)


def line(sizes: Sequence[int], rounds: int, seconds: Callable[[int], float]) -> dict[str, Any]:
    """A straight line through the best time of each size; the sizes take turns, so that drift meets all of them."""
    taken = [[seconds(size) for size in sizes] for _ in range(rounds)]
    best = [min(column) for column in zip(*taken, strict=True)]
    slope, intercept = linear_regression(sizes, best)
    return {
        "seconds": dict(zip(map(str, sizes), best, strict=True)),
        "slope": slope,
        "intercept": intercept,
        "intercept_over_smallest": intercept / best[0],
        "r_squared": correlation(sizes, best) ** 2,
    }


def steps_of_all(rounds: int) -> dict[str, Any]:
    """One step of each algorithm under its own L1 configuration over one of reinforce: ratios of the best of several.

    A longer run minus a shorter one: data, evaluations and what is done once before training cancel. Configurations
    differ in length and group size, so the tokens of a step are given too.
    """
    names = [name for name in algorithms.names() if (settings.config_folder() / name / "l1.yaml").is_file()]
    taken: dict[tuple[str, int], list[float]] = {}
    tokens: dict[str, float] = {}
    for _ in range(rounds):
        for name in names:
            for steps in (SHORT, LONG):
                seconds, outcome = one_seed(name, steps=steps, eval_steps=steps)
                taken.setdefault((name, steps), []).append(seconds)
                tokens[name] = outcome.last_diagnostics["sampled_positions"]
    price = {name: min(taken[name, LONG]) - min(taken[name, SHORT]) for name in names}
    return {
        name: {
            "seconds_ratio": price[name] / price["reinforce"],
            "tokens_ratio": tokens[name] / tokens["reinforce"],
        }
        for name in sorted(names, key=price.__getitem__)
    }


# -- processes ------------------------------------------------------------------------------------------------


def start(times: int) -> dict[str, Any]:
    """Wall seconds: `posttrain --help` beyond a bare interpreter, in turns, and imports in fresh processes."""
    bare, helped = [], []
    for _ in range(times):
        bare.append(process("-c", "pass")[0])
        helped.append(process("-m", "posttrain", "--help")[0])
    shallow, deep = (
        median(float(process("-c", IMPORTS.format(name))[1]) for _ in range(max(3, times // 3)))
        for name in ("posttrain", "posttrain.evaluation")
    )
    return {
        "bare_interpreter": median(bare),
        "help_minus_bare": median(helped) - median(bare),
        "import_posttrain": shallow,
        "import_posttrain_evaluation": deep,
    }


def loaded() -> dict[str, Any]:
    """Top-level modules in a fresh process that has trained: which heavy ones are among them."""
    names = json.loads(process("-c", LOADED)[1])
    return {"top_level_modules": len(names), **{name: name in names for name in HEAVY}}


def process(*arguments: str) -> tuple[float, str]:
    """Seconds and output of a fresh interpreter."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], env=ENVIRONMENT, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stderr}")
    return seconds, done.stdout


def rounded(found: Any) -> Any:
    """Floats to four significant digits."""
    if isinstance(found, dict):
        return {name: rounded(value) for name, value in found.items()}
    return float(f"{found:.4g}") if isinstance(found, float) else found


if __name__ == "__main__":
    main()
