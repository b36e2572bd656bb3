"""Finished artifacts under one plan: paired and tested, or refused with what is needed."""

import json
import shutil

import pytest
from small_runs import HISTORICAL, REPOSITORY, command, edit_json, make, verify

from posttrain.artifacts.documents import read
from posttrain.reporting import comparing
from posttrain.reporting.comparing import Refused, compare_files


def test_two_runs_of_one_plan_are_compared_as_the_experiment_itself_would(runs, tmp_path):
    found = compare_files([runs.grpo, runs.rloo], verify)
    again = make(tmp_path / "declared", "compare", "grpo", "rloo", *_words(runs.grpo))
    (entry,), (declared,) = found.entries, read(again / "artifact.json")["comparison"]
    for key in ("seeds", "per_seed_diffs", "delta_mean", "p_value", "p_count", "ci95", "mde_80", "wins", "ties"):
        assert entry[key] == declared[key], key
    assert not found.declared
    assert "a look and not a claim" in comparing.render(found)


def _words(run):
    return [word for word in read(run / "execution.json")["execution"]["argv"] if "=" in word]


def test_a_declared_rival_is_compared_under_its_family(runs):
    arms = [runs.controlled / f"arms/sparse-opd.{name}" for name in ("dense", "random")]
    found = compare_files([runs.controlled, *arms], verify)
    assert found.declared
    assert found.family_size == 2
    recorded = read(runs.controlled / "artifact.json")["comparison"]
    assert json.loads(json.dumps(list(found.entries))) == recorded
    assert "a look" not in comparing.render(found)


def test_the_command_writes_numbers_and_figure_and_prints_every_part(runs, tmp_path):
    words = [str(runs.grpo / "artifact.json"), str(runs.rloo), "--output", str(tmp_path / "out")]
    code, said = command("compare", *words)
    assert code == 0
    for part in ("by seed", "difference", "95 % interval", "Holm", "MDE (80 % power)", "verdict", "42: ", "47: "):
        assert part in said
    assert (tmp_path / "out/differences.svg").read_text().startswith("<?xml")
    assert read(tmp_path / "out/comparison.json")["comparison"][0]["n_pairs"] == 6


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (
            "grpo",
            "solo",
            r"other seeds: 42-47 and 42-44, and other data: arithmetic-smoke and decisions\. Needed: both under the "
            r"same seeds and data: posttrain compare grpo sparse-opd",
        ),
        (
            "solo",
            "study",
            r"other seeds: 42-44 and 42-47, and other data: arithmetic-smoke and preferences\. Needed: bo",
        ),
        ("grpo", "study", r"saw other data: decisions sha256:\w+, preferences .*Needed: both on the same problems"),
        ("grpo", "grpo", "names one method twice"),
    ],
)
def test_other_data_seeds_or_the_same_method_are_refused_with_what_is_needed(runs, first, second, reason):
    with pytest.raises(Refused, match=reason):
        compare_files([getattr(runs, first), getattr(runs, second)], verify)


def test_other_seeds_alone_are_not_said_to_be_other_data(tmp_path):
    made = [
        make(tmp_path / name, "train", name, "steps=2", f"seeds={seeds}")
        for name, seeds in (("grpo", "1,2"), ("rloo", "3,4"))
    ]
    with pytest.raises(
        Refused, match=r"other seeds: 1-2 and 3-4\. Needed: both under the same: posttrain compare grpo"
    ):
        compare_files(made, verify)


def test_another_plan_is_refused(runs, tmp_path):
    other = make(tmp_path / "other", "train", "rloo", *_words(runs.grpo), "evaluation.reward=exact")
    with pytest.raises(
        Refused, match=r"differ in plan_sha256: .* Needed: both under one plan: posttrain compare grpo rloo"
    ):
        compare_files([runs.grpo, other], verify)


def test_another_budget_is_refused(runs, tmp_path):
    words = ["steps=4" if word == "steps=3" else word for word in _words(runs.grpo)]
    other = make(tmp_path / "other", "train", "rloo", *words)
    with pytest.raises(Refused, match=r"differ in steps: \[3\] and \[4\]"):
        compare_files([runs.grpo, other], verify)


def test_an_edited_artifact_is_refused(runs, tmp_path):
    shutil.copytree(runs.rloo, tmp_path / "edited")
    edit_json(tmp_path / "edited/artifact.json", lambda value: value["runs"][0]["final"].update(accuracy=1.0))
    with pytest.raises(Refused, match="is not verified"):
        compare_files([runs.grpo, tmp_path / "edited"], verify)


def test_a_historical_artifact_serves_no_comparison(runs):
    with pytest.raises(Refused, match="historical: 1 field not recorded"):
        compare_files([REPOSITORY / HISTORICAL, runs.solo], verify)


def test_one_artifact_a_missing_one_and_a_bench_artifact_are_refused(runs, tmp_path, capsys):
    assert command("compare", str(runs.grpo / "artifact.json"))[0] == 1
    assert "expected two or more" in capsys.readouterr().err
    assert command("compare", str(runs.grpo), str(tmp_path / "none.json"))[0] == 1
    assert command("compare", str(runs.grpo), str(REPOSITORY / "docs/bench/historical/sequence.json"))[0] == 1
    assert "posttrain bench report" in capsys.readouterr().err
