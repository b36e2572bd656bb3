"""Wall-clock time of a whole study, as one JSON object: python benchmarks/studies.py [ALGO] [--seeds 12] [--jobs 2]

By default `posttrain reproduce sparse-opd`: claims S1 to S5 with their arms, learning rates tuned per arm, 12 seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from posttrain.evaluation import experiment
from posttrain.evaluation.conduct import Watch, conduct


@dataclass
class Work:
    """How many units (one seed of one arm, tuning included) and updates there were."""

    units: int = 0
    updates: int = 0

    def add(self, units: int, updates: int) -> None:
        """Is told of each phase before it runs."""
        self.units += units
        self.updates += updates


def main() -> None:
    """Runs the study in a folder of its own and prints what it took and what its claims came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="?", default="sparse-opd", metavar="ALGO")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    study = experiment.study(options.algorithm, {"seeds": f"42-{41 + options.seeds}"})
    work, began = Work(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        artifact = conduct(study, Path(folder), jobs=options.jobs, watch=Watch(start=work.add)).artifact
    seconds = time.perf_counter() - began
    found = {
        "algorithm": options.algorithm,
        "arms": len(study.arms),
        "seeds": options.seeds,
        "jobs": options.jobs,
        "units": work.units,
        "updates": work.updates,
        "wall_seconds": round(seconds, 1),
        "job_seconds_per_unit": round(seconds * options.jobs / work.units, 3),
        "claims": {claim["id"]: claim["outcome"] for claim in artifact["mechanism"]["claims"]},
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":  # the workers of --jobs import this file
    main()
