"""Case BR-32: NaN and Infinity in files that other readers reject."""

import json
import math
import re
import shutil
import subprocess

import numpy as np
import pytest

from posttrain.artifacts import documents
from posttrain.artifacts.comparisons import metric_by_seed
from posttrain.artifacts.documents import DocumentError
from posttrain.artifacts.verdicts import compare
from posttrain.cli import main
from posttrain.evaluation.conduct import _line


def strict(text):
    """The one value of a text without NaN and Infinity."""

    def fail(name):
        raise AssertionError(f"{name} is in the file")

    return json.loads(text, parse_constant=fail)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"loss": math.nan, "best": -math.inf, "ok": 0.5}, "/loss"),
        ({"ok": 0.5, "best": -math.inf}, "/best"),
        ({"metrics": {"loss": [0.5, np.float32("nan")]}}, "/metrics/loss/1"),
    ],
)
@pytest.mark.parametrize("write", [documents.dumps, _line], ids=["artifact", "line"])
def test_br_32_a_number_that_is_none_is_refused_by_its_place(value, place, write):
    """BR-32: the write fails loudly and names the path; a float32 NaN of numpy too."""
    with pytest.raises(DocumentError, match=re.escape(f"'{place}'")):
        write(value)


@pytest.mark.parametrize("write", [documents.dumps, _line], ids=["artifact", "line"])
def test_br_32_what_is_written_keeps_text_and_numbers_exactly(write):
    """BR-32: the string 'NaN' is untouched, 0.5 round-trips, null stays null; a second parser accepts it."""
    value = {"name": "NaN", "ok": 0.5, "tiny": 5e-324, "loss": None, "reason": "step 3: loss is nan"}
    data = write(value)
    assert strict(data) == value
    assert documents.parse(data.strip()) == value
    jq = shutil.which("jq") or shutil.which("node")
    if jq is not None and jq.endswith("jq"):
        subprocess.run([jq, "."], input=data, check=True, capture_output=True)


def test_br_32_a_trajectory_with_a_reward_that_is_none_leaves_no_line():
    """BR-32, the JSONL: the row is named by the place of its reward."""
    with pytest.raises(DocumentError, match="'/reward' is nan"):
        _line({"seed": 1, "completion": "NaN", "reward": math.nan})


def test_br_32_every_file_of_a_run_is_strict(tmp_path):
    """BR-32: artifact, plan, execution record, metrics and samples of a real run."""
    words = ["dataset.train_examples=8", "dataset.validation_examples=4", "steps=2", "seeds=3", "teacher=null"]
    assert main(["train", "grpo", *words, "--output", str(tmp_path / "run")]) == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.suffix in (".json", ".jsonl")]
    assert {path.name for path in files} >= {"artifact.json", "plan.json", "metrics.jsonl", "samples.jsonl"}
    for path in files:
        for text in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            assert strict(text) == documents.parse(text.encode())


def test_br_32_a_lost_value_is_missing_to_whoever_compares():
    """BR-32: a seed without a value makes the comparison invalid by name; it is never taken for a number."""
    runs = [{"seed": 1, "final": {"accuracy": 0.5}}, {"seed": 2, "status": "failed", "final": {"accuracy": None}}]
    values = metric_by_seed(runs, "/final/accuracy")
    found = compare(values, {1: 0.4, 2: 0.4}, metric="/final/accuracy", direction="higher is better")
    assert found.verdict == "invalid: non-finite in seeds [2]"
    assert found.delta_mean is None
    with pytest.raises(ValueError, match="leads to null"):
        metric_by_seed([{"seed": 1, "final": {"accuracy": None}}], "/final/accuracy")
