"""Levels V3 and V4: training again, and what only the whole suite can show."""

import json
import math
import os
import subprocess
import sys

import pytest
from small_runs import COMPARED, DENSE, REPOSITORY, command, datasets, edit_execution, methods, verify

from posttrain.artifacts.digests import bytes_digest, sealed
from posttrain.artifacts.documents import dumps, read
from posttrain.evaluation.rerun import rerun
from posttrain.reporting.reading import read_suite
from posttrain.reporting.suite_checks import verify_suite


def fourth(root):
    report = verify_suite(root, methods(), verify, datasets())[-1]
    return {check.name: (check.status, check.message) for check in report.checks}


def test_a_sound_suite_passes_every_check(published):
    assert {name: status for name, (status, _) in fourth(published).items()} == {
        "pairing": "passed", "families": "passed", "orphans": "passed", "methods": "passed", "seeds": "passed",
        "pages": "passed",
    }  # fmt: skip
    code, said = command("verify", str(published / "docs"))
    assert code == 3  # the recorded artifacts are never verified
    assert "V4 the published suite" in said


def test_a_missing_rival_breaks_pairing_and_leaves_an_orphan(root):
    (root / DENSE).unlink()
    found = fourth(root)
    assert "the rival's artifact is not published" in found["pairing"][1]
    assert "sparse-opd.dense.json belongs to no published artifact" in found["orphans"][1]
    assert "plans the arm sparse-opd.dense, which is not published" in found["orphans"][1]


def test_an_orphan_manifest_is_named(root):
    (root / "docs/post-training/manifests/stray.json").write_text("{}")
    assert "manifests/stray.json belongs to no published artifact" in fourth(root)["orphans"][1]


def rewrite(root, name, change):
    """Changes a published artifact and forms every digest again, as a careful forger would."""
    value = read(root / name)
    change(value)
    data = dumps(sealed(value))
    (root / name).write_bytes(data)
    plan, method = value["manifest_ref"].partition(":")[2], value["method"]

    def outputs(record):
        for file in record["outputs"]:
            if file["role"] == "artifact":
                file |= {"sha256": bytes_digest(data), "bytes": len(data)}

    place = root / f"docs/post-training/manifests/{plan}"
    (place / f"{method}.json").rename(place / "execution.json")
    edit_execution(place, outputs)
    (place / "execution.json").rename(place / f"{method}.json")


def test_a_family_with_more_members_than_declared_is_cherry_picking(root):
    def change(value):
        value["comparison"].append(dict(value["comparison"][0]))

    rewrite(root, COMPARED, change)
    assert "declares 2 comparisons, 3 are published" in fourth(root)["families"][1]


def test_a_wrong_adjustment_is_found(root):
    rewrite(root, COMPARED, lambda value: value["comparison"][0].update(p_adjusted=0.001))
    assert "Holm gives" in fourth(root)["families"][1]


def test_differences_that_are_not_those_of_the_artifacts_are_found(root):
    def change(value):
        value["comparison"][0]["per_seed_diffs"][0] += 0.5

    rewrite(root, COMPARED, change)
    assert "are not those of the two artifacts" in fourth(root)["pairing"][1]


def test_a_stale_page_fails_the_suite(root):
    (root / "docs/post-training/README.md").write_text("gone")
    assert fourth(root)["pages"][0] == "failed"


def test_an_unreadable_suite_is_one_failed_check(root):
    (root / DENSE).write_text("{")
    (report,) = verify_suite(root, methods(), verify, datasets())
    assert report.exit_code == 1
    assert DENSE in report.checks[0].message


# -- V3 -------------------------------------------------------------------------------------------------------


def third(path, **options):
    report = rerun(verify(path), path, **options)
    found = [check for check in report.checks if check.level == "V3"]
    return report, found


@pytest.mark.parametrize("arm", ["", "arms/sparse-opd.dense"])
def test_a_rerun_gives_every_bit_again(runs, arm):
    report, (check,) = third(runs.controlled / arm)
    assert check.status == "passed"
    assert check.message == "6 of 6 seeds give what is recorded (the same environment class, every bit)"
    assert report.exit_code == 0
    assert report.passed_levels == ("V0", "V1", "V2", "V3")
    assert not any(item.startswith("V3") for item in report.not_checked)


def test_a_study_is_run_again_with_its_probes(runs):
    _, (check,) = third(runs.study)
    assert check.status == "passed"


def test_numbers_made_up_with_care_fail_the_rerun_alone(runs, root):
    name = "docs/post-training/2609.04565-sparse-opd/metrics/arithmetic-smoke-seeds42-44.json"

    def change(value):
        value["runs"][1]["history"][0]["loss"] += 1e-9

    rewrite(root, name, change)
    assert verify(root / name).exit_code == 0
    report, (check,) = third(root / name)
    assert check.status == "failed"
    assert "seed 43: /history/0/loss" in check.message
    assert report.exit_code == 1


def test_another_environment_class_compares_floats_to_a_tolerance(runs, run):
    edit_execution(run, lambda record: record["hardware"].update(torch_threads=7))
    _, (check,) = third(run)
    assert check.status == "passed"
    assert "another environment class, floats to 1e-12" in check.message


def test_in_another_class_one_item_is_a_warning_and_two_are_a_failure():
    from posttrain.evaluation.rerun import _compare

    def run(items):
        return {"training": {"validation_examples": 64}, "final": {"accuracy": items / 64}, "seed": 1}

    assert _compare(run(30), run(31), 1, same=False)[0] == []
    assert len(_compare(run(30), run(31), 1, same=False)[1]) == 1
    assert len(_compare(run(30), run(32), 1, same=False)[0]) == 1
    assert len(_compare(run(30), run(31), 1, same=True)[0]) == 1


@pytest.mark.parametrize(("a", "b"), [(0.1, math.nextafter(0.1, 1)), (0.0, -0.0)])
def test_the_last_bit_and_the_sign_of_zero_count_in_the_same_class_only(a, b):
    from posttrain.evaluation.rerun import _compare

    assert len(_compare({"history": [a]}, {"history": [b]}, 1, same=True)[0]) == 1
    assert _compare({"history": [a]}, {"history": [b]}, 1, same=False) == ([], [])


@pytest.mark.slow
def test_a_fresh_process_finds_itself_in_the_class_of_the_run(runs):
    """Threads and BLAS are only known once torch is there: looked at before, the class was always another."""
    words = [sys.executable, "-m", "posttrain", "verify", str(runs.solo), "--rerun"]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    said = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout
    assert "the same environment class, every bit" in said


def test_what_the_budget_leaves_out_is_said(runs):
    report, (check,) = third(runs.controlled, budget=0.0)
    assert check.message.startswith("1 of 6 seeds")
    assert sum(item.startswith("V3: seed") for item in report.not_checked) == 5


def test_a_longer_tier_is_run_up_to_the_budget_and_compared_with_its_history(runs, monkeypatch):
    monkeypatch.setattr("posttrain.evaluation.rerun.WHOLE_SEEDS", ())
    report, (check,) = third(runs.solo, budget=0.0)
    assert check.status == "passed"
    assert any("seed 42 was run again up to step 1 only" in item for item in report.not_checked)


def test_a_longer_tier_that_the_budget_holds_is_run_whole_and_nothing_is_said_to_be_left_out(runs, monkeypatch):
    monkeypatch.setattr("posttrain.evaluation.rerun.WHOLE_SEEDS", ())
    report, (check,) = third(runs.solo, budget=1e6)
    assert check.message.startswith("3 of 3 seeds give what is recorded")
    assert not any(item.startswith("V3") for item in report.not_checked)


def test_what_a_run_measured_after_its_last_step_is_said_to_be_left_out_of_a_longer_tiers_rerun(runs, monkeypatch):
    monkeypatch.setattr("posttrain.evaluation.rerun.WHOLE_SEEDS", ())
    report, _ = third(runs.study, budget=1e6)
    said = [item for item in report.not_checked if item.startswith("V3")]
    assert said == [
        f"V3: every step of seed {seed} was run again, what was measured after the last was not"
        for seed in range(42, 48)
    ]


def test_the_command_reports_the_level(runs):
    code, said = command("verify", str(runs.solo), "--rerun", "--budget", "30", "--json")
    assert code == 0
    (report,) = json.loads(said)
    assert "V3" in report["passed_levels"]


def test_a_historical_artifact_is_not_run_again(published):
    path = published / "docs/post-training/historical/sparse-opd-arithmetic-smoke-seeds42-44.json"
    report, checks = third(path)
    assert checks == []
    assert report.exit_code == 3


def test_a_whole_suite_is_a_line_for_each_and_a_sum(root):
    code, said = command("verify", str(root / "docs"))
    assert code == 3  # for the recorded artifacts
    lines = said.strip().splitlines()
    count = len(read_suite(root).entries) + 1
    assert lines[-1].startswith(f"{count} reports: {count - 2} verified, 2 not verified")
    assert sum(": verified at V0, V1, V2: " in line for line in lines) == count - 3
    (root / COMPARED).write_text((root / COMPARED).read_text().replace('"n_pairs": 6', '"n_pairs": 7', 1))
    code, said = command("verify", str(root / "docs"))
    assert code == 1 and " failed" in said.strip().splitlines()[-1]
    assert f"{COMPARED}\n  V0 parse and schema" in said, "what failed is shown whole"
