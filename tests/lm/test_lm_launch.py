"""The command itself at L3 on several ranks: what one process does, with the rows of every step shared out."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_lm

from posttrain.cli import main

ROOT = Path(__file__).parents[2]
PLUGIN = """
import os
from dataclasses import dataclass

from posttrain.batch import Problem, ProblemSet
from posttrain.registry import datasets, rewards

graded = []  # more than are graded before training starts


@datasets.register("some-words")
@dataclass(frozen=True)
class SomeWords:
    '''Prompts of a few words.'''

    def build(self, seed):
        made = [Problem(f"{seed}/{i}", f"w{i} w{i + 1}", f"w{i}", drawn={"i": i}) for i in range(9)]
        return ProblemSet(tuple(made[:6]), tuple(made[6:]), "some words")


@rewards.register("early-words")
@dataclass(frozen=True)
class EarlyWords:
    '''The share of words with a small number.'''

    def __call__(self, problem, text):
        graded.append(text)
        if len(graded) > 40 and os.environ.get("RANK") == os.environ.get("FAILING_RANK", "none"):
            raise ArithmeticError("this rank cannot grade")
        words = text.split()
        return sum(word < "w3" for word in words) / max(1, len(words))
"""
BUG = """
import os

from posttrain.algorithms.grpo import GRPO

def loss(self, scores, batch):
    if os.environ["RANK"] == "1":
        raise TypeError("a fault of the program, on this rank alone")
    return -scores.logprobs

GRPO.loss = loss
"""
WORDS = [
    "dataset=some-words", "reward=early-words", "evaluation.accuracy=early-words", "evaluation.reward=early-words",
    "steps=3", "seeds=1-2", "problems_per_step=5", "group_size=3", "micro_batch_size=3", "learning_rate=0.05",
    "optim=sgd", "policy.max_completion_tokens=6", "minibatch_problems=3", "eval_steps=3", "max_grad_norm=null",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    tiny_lm.policy("llama", "float32").save(folder / "model")
    (folder / "words.py").write_text(PLUGIN)
    return folder


def command(folder, output):
    model = f"policy.model={folder / 'model'}"
    return ["train", "grpo", model, *WORDS, "--plugin", str(folder / "words.py"), "--output", str(folder / output)]


def launched(folder, output, **environment):
    program = Path(sys.executable).parent / "torchrun"
    if not program.exists():
        pytest.skip("torchrun is not installed beside this Python")
    words = [str(program), "--standalone", "--nproc_per_node", "2", str(ROOT / "posttrain"), *command(folder, output)]
    variables = {key: value for key, value in os.environ.items() if key not in ("WORLD_SIZE", "RANK", "PYTHONPATH")}
    variables |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)


def agree(found, expected, place=""):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key in expected:
            agree(found[key], expected[key], f"{place}/{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for i, pair in enumerate(zip(found, expected, strict=True)):
            agree(*pair, f"{place}/{i}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=2e-5, abs=2e-6), place
    else:
        assert found == expected, place


def test_two_ranks_write_the_run_of_one_with_the_rows_of_each_step_shared_out(folder):
    """Both seeds are trained by both ranks; numbers to float32, counters and texts exactly; one model folder."""
    result = launched(folder, "two")
    assert result.returncode == 0, result.stderr[-3000:]
    assert main(command(folder, "one")) == 0
    one, two = (json.loads((folder / name / "artifact.json").read_text()) for name in ("one", "two"))
    agree(two["runs"], one["runs"])
    for run in one["runs"]:
        assert run["final"] != run["baseline"]
    samples = [(folder / name / "samples.jsonl").read_text().splitlines() for name in ("one", "two")]
    texts = [[json.loads(line)["completion"] for line in lines] for lines in samples]
    assert texts[0] == texts[1]
    assert main(["verify", str(folder / "two")]) == 0


@pytest.mark.slow
def test_a_reward_that_fails_on_one_rank_ends_the_command_on_both_and_is_named(folder):
    result = launched(folder, "failing", FAILING_RANK="1")
    assert result.returncode != 0
    assert "rank 1 of 2 failed in the reward function EarlyWords: ArithmeticError: this rank" in result.stderr
    assert not (folder / "failing" / "artifact.json").exists()


@pytest.mark.slow
def test_a_fault_that_nobody_foresaw_on_one_rank_ends_the_others_promptly_without_a_launchers_help(folder):
    """Between two meetings of the ranks, in processes that nobody watches over; a meeting waits for half an hour."""
    (folder / "bug.py").write_text(BUG)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = [sys.executable, str(ROOT / "posttrain"), *command(folder, "bug"), "--plugin", str(folder / "bug.py")]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    started = [
        subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **shared, "OMP_NUM_THREADS": "1", "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        said = [process.communicate(timeout=100)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [1, 1]
    assert "posttrain: another rank has ended; why, stands in its own output" in said[0]
    assert "TypeError: a fault of the program, on this rank alone" in said[1]
    assert not (folder / "bug" / "artifact.json").exists()
