"""The recorded protocol: the artifact that came with the project, regenerated number by number."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.artifacts.digests import file_digest
from posttrain.assembly import assemble
from posttrain.cli import main
from posttrain.settings import load

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs/post-training/historical/sparse-opd-arithmetic-smoke-seeds42-44.json"
SEEDS = (42, 43, 44)
EXACT = ("accuracy", "relative_accuracy", "step", "supervised_positions", "sampled_positions", "supervision_fraction")
TOLERANCE = 1e-12


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return json.loads(RECORD.read_bytes())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The run folder of `posttrain train sparse-opd`, made once."""
    folder = tmp_path_factory.mktemp("record") / "run"
    assert main(["train", "sparse-opd", "--output", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def artifact(folder) -> dict[str, Any]:
    return json.loads((folder / "artifact.json").read_bytes())


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield from leaves(member, (*path, key))
    elif isinstance(value, list):
        yield (*path, "length"), len(value)
        for i, member in enumerate(value):
            yield from leaves(member, (*path, i))
    else:
        yield path, value


def agree(recorded: Any, found: Any, name: str) -> bool:
    """Texts, counts and accuracies to the bit, other numbers within 1e-12, types and the sign of a zero always."""
    if type(recorded) is not type(found):
        return False
    if not isinstance(recorded, float):
        return recorded == found
    if recorded == 0 and found == 0:
        return math.copysign(1, recorded) == math.copysign(1, found)
    return recorded == found if name in EXACT else abs(recorded - found) <= TOLERANCE


def disagreements(recorded: Any, found: Any) -> list[str]:
    there = dict(leaves(found))
    return [
        f"{'/'.join(map(str, path))}: recorded {value!r}, found {there.get(path)!r}"
        for path, value in leaves(recorded)
        if path not in there or not agree(value, there[path], path[-1])
    ]


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_record_lies_in_the_project_byte_for_byte():
    digest = "b3d2b04ac61670e1bbcf65b1f094547d9e7afd2b3f7192d2799fcb931313d890"
    assert hashlib.sha256(RECORD.read_bytes()).hexdigest() == digest


# -- the fresh artifact -----------------------------------------------------------------------------------------------


def test_the_fresh_artifact_agrees_in_every_field_the_record_has_but_the_fingerprint_it_lacked(record, artifact):
    found = disagreements(record, artifact)
    assert [line.partition(":")[0] for line in found] == ["provenance/dataset_fingerprint"]
    assert record["provenance"]["dataset_fingerprint"] == "not recorded in historical artifact"
    assert len(list(leaves(record))) > 300


def test_the_fingerprint_is_that_of_the_integers_offsets_and_noise_drawn(artifact):
    expected = "sha256:922900a453abc6ecd8589839982636485f9b7691735caa26b3b495c747e8cad2"
    assert artifact["provenance"]["dataset_fingerprint"] == expected


def test_keys_stand_in_the_recorded_order(record, artifact):
    def order(recorded, found):
        if isinstance(recorded, dict):
            assert [key for key in found if key in recorded] == list(recorded)
            for key, member in recorded.items():
                order(member, found[key])
        elif isinstance(recorded, list):
            for pair in zip(recorded, found, strict=True):
                order(*pair)

    order(record, artifact)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("runs", 0, "final", "accuracy"), lambda v: math.nextafter(v, 1)),
        (("runs", 1, "history", 3, "entropy"), lambda v: v + 2e-12),
        (("runs", 2, "training", "steps"), float),
        (("runs", 0, "training", "rollout_policy_refreshes"), lambda v: 7),
        (("method",), lambda v: "opd"),
        (("seeds",), lambda v: v[:2]),
    ],
)
def test_the_comparison_notices_a_change_of_one_field(record, path, value):
    changed = json.loads(json.dumps(record))
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value(holder[path[-1]])
    assert disagreements(record, changed)


def test_the_comparison_notices_the_sign_of_a_zero(record):
    text, zeros = re.subn(r"-0\.0(?!\d)", "0.0", json.dumps(record))
    assert zeros == 10 + 1  # ten rows of the history and the last diagnostics of one seed
    assert len(disagreements(record, json.loads(text))) == zeros


def test_the_output_says_that_this_is_the_recorded_protocol_and_where_the_papers_own_is(folder, artifact, capsys):
    assert main(["train", "sparse-opd", "steps=1", "seeds=42", "--output", str(folder.parent / "other")]) == 0
    printed = capsys.readouterr().out
    for text in (" ".join(artifact["notes"]), " ".join(printed.split())):
        assert "This is the recorded protocol" in text
        assert "posttrain reproduce sparse-opd" in text
        assert "without replacement, which biases the gradient" in text


def test_the_published_artifact_is_the_fresh_one(artifact):
    """Floats to 1e-12: the bytes, and with them the digest of the content, are promised on one kind of processor.

    The published one also says which historical file it replaces.
    """
    published = json.loads((ROOT / artifact["provenance"]["artifact_path"]).read_bytes())
    assert published["provenance"]["supersedes"] == file_digest(RECORD)
    apart = ("provenance/content_digest: ", "provenance/supersedes: ")
    assert [line for line in disagreements(published, artifact) if not line.startswith(apart)] == []


# -- inside -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "missed"), [(42, 36), (43, 27), (44, 27)])
def test_updates_in_which_the_right_candidate_was_not_drawn_have_a_loss_of_minus_zero(folder, seed, missed):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if row["seed"] == seed]
    assert len(losses) == 100
    zeros = [loss for loss in losses if loss == 0]
    assert len(zeros) == missed
    assert all(math.copysign(1, loss) == -1 for loss in zeros)


@pytest.mark.parametrize(
    ("seed", "first", "final"),
    [
        (
            42,
            [(17, [2, 5, 4, 0]), (148, [5, 4, 0, 2]), (96, [5, 3, 4, 2])],
            [-0.00300782281239, -0.00287395331576, -0.103111231651, 0.189838992975, 0.0597473509882, 0.400715810109],
        ),
        (
            43,
            [(97, [0, 5, 3, 1]), (125, [4, 1, 2, 5]), (74, [1, 2, 0, 3])],
            [-0.00370129945663, -0.00134753497614, -0.0818024663348, 0.117003150352, 0.0642021243261, 0.419118985474],
        ),
        (
            44,
            [(128, [1, 2, 5, 0]), (23, [5, 0, 2, 4]), (140, [5, 2, 3, 0])],
            [-0.0047005727823, -0.00203559593969, -0.128476314524, 0.207235832108, 0.0890965557314, 0.479831337398],
        ),
    ],
)
def test_the_first_draws_and_the_final_weights_are_the_recorded_ones(seed, first, final):
    torch.set_num_threads(1)
    trainer = assemble(load("sparse-opd"), seed)
    drawn, rollouts = [], trainer._rollouts

    def watched(step):
        problems, sample = rollouts(step)
        drawn.append((int(problems[0].id.split("/")[-1]), sample.completion_ids.flatten().tolist()))
        return problems, sample

    trainer._rollouts = watched
    trainer.run()
    assert drawn[:3] == first
    weights = trainer.policy.weight.tolist()
    assert [weights[i] for i in (1, 2, 4, 5, 6, 7)] == pytest.approx(final, rel=2e-11)
    assert [weights[0], weights[3]] == pytest.approx([0, 0], abs=1e-15)


# -- how wrong variants show ------------------------------------------------------------------------------------------


def departs(record, *words: str) -> list[int | None]:
    """The first history step up to 30 of each seed that is not the recorded one."""
    torch.set_num_threads(1)
    config, found = load("sparse-opd", overrides=["steps=30", "eval_steps=10", *words]), []
    for seed, run in zip(SEEDS, record["runs"], strict=True):
        rows = zip(run["history"][:4], assemble(config, seed).run().history, strict=True)
        found.append(next((int(row["step"]) for row, other in rows if disagreements(row, other)), None))
    return found


REWARD = ["outcome=0.7", "format=0.05", "reasoning=0.2", "brevity=0.05"]


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], [None, None, None]),
        (["algorithm.select.rule=lowest"], [10, 1, 1]),
        ([f"reward.{axis}" for axis in REWARD], [1, 1, 1]),
        (["policy.replacement=true"], [10, 1, 10]),
        (["teacher.refresh_every=8"], [30, 20, 10]),
        (["teacher.refresh_every=32"], [20, 30, 20]),
    ],
    ids=["recorded", "smallest discrepancy", "scalar reward", "with replacement", "refresh 8", "refresh 32"],
)
def test_a_variant_departs_from_the_record_at_the_listed_step(record, words, steps):
    assert departs(record, *words) == steps
