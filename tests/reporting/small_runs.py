"""Real runs of a few steps, dressed as runs of committed code, and a root to publish them in."""

import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from posttrain import cli
from posttrain.artifacts.documents import dumps, read
from posttrain.artifacts.manifest import execution_document
from posttrain.artifacts.verify import verify as verify_with
from posttrain.evaluation import facts
from posttrain.evaluation.records import regenerate
from posttrain.reporting import publishing
from posttrain.reporting.facts import Dataset, Method
from posttrain.reporting.reading import received_files

REPOSITORY = Path(__file__).parents[2]
HISTORICAL = "docs/post-training/historical/sparse-opd-arithmetic-smoke-seeds42-44.json"
SMALL = ("dataset.train_examples=12", "dataset.validation_examples=12", "steps=3", "eval_steps=3")
CONTROLLED_PLAN = "sparse-opd-vs-dense-vs-random-decisions-32da25-seeds42-47"  # digits of the data's other options
STUDY_PLAN = "dpo-study-preferences-f96fd7-seeds42-47"
COMPARED = f"docs/post-training/2609.04565-sparse-opd/metrics/{CONTROLLED_PLAN}.json"
DENSE = f"docs/post-training/sparse-opd.dense/metrics/{CONTROLLED_PLAN}.json"
STUDY = f"docs/post-training/2305.18290-dpo/metrics/{STUDY_PLAN}.json"
CONTROLLED = ("train", "sparse-opd", "--config", "l1-paper", "controls=dense,random", "tune=null", *SMALL)


@dataclass(frozen=True)
class Runs:
    """Folders of finished runs."""

    solo: Path  # the recorded protocol, three seeds
    controlled: Path  # six seeds, two rival arms
    study: Path  # a study with claims
    grpo: Path  # six seeds on other data than the above
    rloo: Path  # the same plan as grpo


def verify(path: Path) -> Any:
    """Verification up to V2 with the data drawn again."""
    return verify_with(path, fingerprints=regenerate)


@cache
def methods() -> tuple[Method, ...]:
    """Everything registered."""
    return tuple(facts.methods())


@cache
def datasets() -> tuple[Dataset, ...]:
    """Every dataset that is registered."""
    return tuple(facts.datasets())


def command(*words: str) -> tuple[int, str]:
    """Runs one command in this process: exit code and output."""
    output = StringIO()
    with redirect_stdout(output):
        code = cli.main(list(words))
    return code, output.getvalue()


def make(folder: Path, *words: str) -> Path:
    """A finished run of clean code."""
    code, said = command(*words, "--output", str(folder), "--jobs", "1")
    assert code == 0, said
    for place in (folder, *folder.glob("arms/*")):
        as_clean(place, ["posttrain", *words, "--output", str(folder), "--jobs", "1"])
    return folder


def as_clean(place: Path, argv: list[str]) -> None:
    """The execution record as of committed code, whatever this working tree is like."""

    def change(record: dict[str, Any]) -> None:
        record["code"] |= {"git_commit": "c" * 40, "git_dirty": False, "diff_sha256": None, "unknown": {}}
        record["argv"] = argv

    edit_execution(place, change)


def edit_execution(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes an execution record and forms its digest again."""
    record = read(place / "execution.json")["execution"]
    change(record)
    (place / "execution.json").write_bytes(dumps(execution_document(record)))


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    """Changes a JSON file without forming any digest again."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, indent=2) + "\n")


def make_runs(folder: Path) -> Runs:
    """All of them; a few seconds."""
    other = (*SMALL, "seeds=42-47", "group_size=4")
    return Runs(
        make(folder / "solo", "train", "sparse-opd", "steps=12"),
        make(folder / "controlled", *CONTROLLED, "seeds=42-47"),
        make(folder / "study", "reproduce", "dpo", *SMALL, "seeds=42-47"),
        make(folder / "grpo", "train", "grpo", *other),
        make(folder / "rloo", "train", "rloo", *other),
    )


def publish(root: Path, *runs: Path) -> None:
    """A root with the recorded artifacts and these runs in their places."""
    received = [path.relative_to(REPOSITORY).as_posix() for path in received_files(REPOSITORY)]
    for name in (HISTORICAL, "docs/bench/historical/sequence.json", *received):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    for run in runs:
        publishing.put(root, publishing.publication(run, verify))


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file below a root."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}
