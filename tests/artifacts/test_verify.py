"""Laws of verification: an honest run passes, any edit fails, and what was not checked is said."""

import copy
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from complete_run import RECORD, SEEDS, CompleteRun, point

from posttrain.artifacts import recompute
from posttrain.artifacts.digests import bytes_digest, content_digest, file_digest
from posttrain.artifacts.documents import dumps, read
from posttrain.artifacts.report import Check, Report
from posttrain.artifacts.verify import HISTORICAL, SENTINEL, render, verify

Where = tuple[str | int, ...]


def leaves(value: Any, path: Where = ()) -> Iterator[Where]:
    """Every place of a document that holds no other."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [leaf for key, member in inside for leaf in leaves(member, (*path, key))]
    yield from below or [path]


def edited(document: Any, path: Where, value: Any) -> Any:
    """A copy with another value at one place."""
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def at(document: Any, path: Where) -> Any:
    for key in path:
        document = document[key]
    return document


def other(value: Any) -> Any:
    """A value of the same type that differs, by one unit in the last place if it is a float."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    if isinstance(value, int):
        return value + 1
    return value + "x" if isinstance(value, str) else 0.5


def check(run: CompleteRun, **more: Any) -> Report:
    return verify(run.folder, fingerprints=run.fingerprints, package_root=run.package, **more)


def status(report: Report) -> dict[str, str]:
    return {item.name: item.status for item in report.checks}


def failures(report: Report) -> dict[str, str]:
    return {item.name: item.message for item in report.checks if item.status == "failed"}


def test_a_complete_run_verifies_at_all_three_levels(complete):
    for path in (complete.folder, complete.folder / "artifact.json"):
        report = verify(path, fingerprints=complete.fingerprints, package_root=complete.package)
        assert failures(report) == {}
        assert report.exit_code == 0
        assert report.passed_levels == ("V0", "V1", "V2")
        # Its study is in no registry, so nobody can decide its claims again.
        assert {item.name for item in report.checks if item.status != "passed"} == {"claim measurements", "place"}


def test_every_edit_of_a_single_leaf_fails(complete):
    path, artifact = complete.folder / "artifact.json", complete.artifact
    places = list(leaves(artifact))
    survivors = []
    for place in places:
        path.write_bytes(dumps(edited(artifact, place, other(at(artifact, place)))))
        if check(complete).exit_code != 1:
            survivors.append(place)
    assert len(places) > 250
    assert survivors == []


def test_a_change_of_spelling_alone_fails_too(complete):
    path = complete.folder / "artifact.json"
    for spelling in (path.read_bytes().replace(b'"loss": -0.0', b'"loss": 0.0', 1), path.read_bytes() + b"\n"):
        path.write_bytes(spelling)
        assert list(failures(check(complete))) == ["execution", "output files"]
        complete.replace(complete.artifact)


def test_a_resealed_edit_passes_only_where_nothing_can_be_recomputed(complete):
    """What is left to a rerun: primary measurements, counters and words. One run of six stands for all."""
    artifact = complete.artifact
    unnoticed = set()
    for place in leaves(artifact):
        if (place[:1] == ("runs",) and place[1] != 0) or place[-1] == "content_digest":
            continue
        complete.replace(edited(artifact, place, other(at(artifact, place))))
        if check(complete).exit_code == 0:
            unnoticed.add("/".join("*" if isinstance(key, int) else key for key in place))
    training = {
        *("learning_rate", "group_size", "data_source", "teacher_cache_entries", "teacher_prefill_calls"),
        *("online_teacher_calls", "drift_events", "critic_updates", "rollout_policy_refreshes", "fidelity"),
        "last_diagnostics/supervised_positions",
    }
    assert unnoticed == {
        "runs/*/baseline/mean_reward",
        "runs/*/history/*/loss",
        "runs/*/history/*/mean_reward",
        # within the tolerance of the identity
        *(f"runs/*/{place}/{key}" for place in ("baseline", "history/*") for key in ("entropy", "kl_from_reference")),
        *(f"runs/*/training/{key}" for key in training),
        "mechanism/study",
        "mechanism/claims/*/measured/ci95/*",
        "mechanism/claims/*/measured/diffs/*",
        "notes/*",
        "comparison/*/delta_mean",  # one unit in the last place is within the tolerance
        *(f"comparison/*/{key}" for key in ("p_value", "p_adjusted", "mde_80", "min_attainable_p", "sesoi", "alpha")),
        "comparison/*/ci95/*",
        *(f"comparison/*/effect/{key}" for key in ("dz", "g_z", "prob_superiority")),
    }


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [
        (("runs", 0, "final", "accuracy"), 0.5, "history"),
        (("runs", 0, "relative_accuracy"), 1.4999999999999998, "relative accuracy"),
        (("runs", 0, "relative_accuracy"), None, "relative accuracy"),
        (("runs", 0, "baseline", "accuracy"), 0.3, "accuracy grid"),
        (("runs", 0, "history", 0, "entropy"), 1.5, "entropy identity"),
        (("runs", 0, "history", 0, "step"), 2.0, "history"),
        (("runs", 0, "training", "steps"), 3, "history"),
        (("runs", 0, "seed"), 43, "seeds"),
        (("runs", 0, "algorithm"), "opd", "names"),
        (("runs", 0, "dataset"), "other", "names"),
        (("runs", 0, "training", "validation_examples"), 16, "plan"),
        (("runs", 0, "status"), "failed", "comparison"),
        (("method",), "opd", "names"),
        (("seeds",), SEEDS[::-1], "seeds"),
        (("manifest_ref",), "post-training:other", "plan"),
        (("manifest_ref",), "https://example.com/plan", "artifact schema"),
        (("manifest_ref",), "elsewhere:arithmetic-smoke-seeds42-47", "plan file"),
        (("manifest_ref",), "post-training:arithmetic-smoke-seeds42-47@sha256:" + "0" * 64, "plan file"),
        (("evaluation_protocol", "claim_policy"), "outperforms everything", "claim policy"),
        (("evaluation_protocol", "claim_policy"), "smoke only, no performance claim", "claim policy"),
        (("evaluation_protocol", "claim_policy"), "formal multi-seed tiny-LM comparison", "claim policy"),
        (("evaluation_protocol", "claim_policy"), "descriptive single-seed mechanism reproduction", "claim policy"),
        (("evaluation_protocol", "formal_comparison"), False, "claim policy"),
        (("evaluation_protocol", "alpha"), 0.1, "plan"),
        (("evaluation_protocol", "direction"), "lower is better", "plan"),
        (("evaluation_protocol", "family_size"), 2, "plan"),
        (("evaluation_protocol", "planned_n"), 7, "claim policy"),
        (("evaluation_protocol", "sesoi"), None, "plan"),
        (("evaluation_protocol", "failure_value"), None, "plan"),
        (("evaluation_protocol", "plan_sha256"), "sha256:" + "0" * 64, "plan digest"),
        (("provenance", "dataset_fingerprint"), "sha256:" + "0" * 64, "plan"),
        (("provenance", "dataset_fingerprint"), SENTINEL, "sentinel"),
        (("provenance", "artifact_path"), "docs/post-training/opd/metrics/a.json", "names"),
        (("provenance", "manifest_sha256"), "sha256:" + "0" * 64, "plan digest"),
        (("comparison", 0, "p_count"), 4, "comparison"),
        (("comparison", 0, "verdict"), "no significant win", "comparison"),
        (("comparison", 0, "per_seed_diffs", 0), 0.5, "comparison"),
        (("comparison", 0, "mde_80"), None, "comparison"),
        (("comparison", 0, "delta_mean"), 0.3, "comparison"),
        (("comparison", 0, "against", "method"), "opd", "arms"),
        (("comparison", 0, "against", "artifact_sha256"), "sha256:" + "0" * 64, "study"),
        (("comparison",), [], "study"),
        (("mechanism", "claims", 0, "outcome"), "refuted", "claims"),
        (("mechanism", "claims", 0, "threshold"), -1.0, "claims"),
        (("mechanism", "claims", 0, "measured"), None, "claims"),
        (("mechanism", "claims"), [], "claims"),
        (("mechanism", "arms"), [], "study"),
        (("mechanism", "arms", 0, "name"), "random", "study"),
        (("mechanism", "arms", 0, "learning_rate"), 0.04, "arms"),
        (("mechanism", "arms", 0, "artifact_sha256"), "sha256:" + "0" * 64, "arms"),
    ],
)
def test_a_resealed_lie_fails_at_the_check_that_knows_better(complete, place, value, name):
    artifact = complete.artifact
    complete.replace(edited({**artifact, "provenance": {**artifact["provenance"]}}, place, value))
    report = check(complete)
    assert report.exit_code == 1
    assert name in failures(report)


@pytest.mark.parametrize("key", ["seed", "status"])
def test_a_run_says_its_seed_and_how_it_ended(complete, key):
    artifact = complete.artifact
    del artifact["runs"][0][key]
    complete.replace(artifact)
    assert key in failures(check(complete))["seeds"]


def test_a_formal_artifact_without_its_plan_fields_fails(complete):
    artifact = complete.artifact
    for key in ("plan_sha256", "primary_metric", "direction", "planned_n", "alpha", "family_id", "family_size"):
        complete.replace(
            {**artifact, "evaluation_protocol": {k: v for k, v in artifact["evaluation_protocol"].items() if k != key}}
        )
        assert key in failures(check(complete))["claim policy"]


def test_a_baseline_of_zero_has_no_relative_accuracy(complete):
    artifact = complete.artifact
    artifact["runs"][0]["baseline"] = point(0, 0.0)
    complete.replace(artifact)
    assert "give None" in failures(check(complete))["relative accuracy"]
    artifact["runs"][0]["relative_accuracy"] = None
    complete.replace(artifact)
    assert check(complete).exit_code == 0


def test_the_sign_of_a_zero_tells_a_final_point_from_its_history(complete):
    artifact = complete.artifact
    artifact["runs"][0]["history"][1]["mean_reward"], artifact["runs"][0]["final"]["mean_reward"] = 0.0, -0.0
    complete.replace(artifact)
    assert list(failures(check(complete))) == ["history"]


def test_an_edit_in_a_record_that_was_made_anew_still_breaks_the_content_digest(complete):
    artifact = edited(complete.artifact, ("notes", 0), "no bias")
    (complete.folder / "artifact.json").write_bytes(dumps(artifact))
    complete.record()
    assert list(failures(check(complete))) == ["content digest"]
    del artifact["provenance"]["content_digest"]
    (complete.folder / "artifact.json").write_bytes(dumps(artifact))
    complete.record()
    assert "content_digest is None" in failures(check(complete))["content digest"]


@pytest.mark.parametrize("seeds", [SEEDS[:2], SEEDS[:5], [*SEEDS[:5], 48]])
def test_other_seeds_than_the_planned_ones_fail_and_two_are_never_formal(complete, seeds):
    artifact = complete.artifact
    artifact |= {"seeds": seeds, "runs": artifact["runs"][: len(seeds)]}
    for part, seed in zip(artifact["runs"], seeds, strict=True):
        part["seed"] = seed
    artifact["evaluation_protocol"] |= {"seeds": seeds, "planned_n": len(seeds)}
    complete.replace(artifact)
    found = failures(check(complete))
    assert f"/seeds is {seeds}, the plan says {SEEDS}" in found["plan"]
    assert ("a formal comparison needs 3 seeds" in found.get("claim policy", "")) == (len(seeds) == 2)


@pytest.mark.parametrize(("count", "broken"), [(1, False), (2, True)])
def test_a_single_seed_policy_is_of_one_seed(complete, count, broken):
    artifact = complete.artifact
    artifact["seeds"], artifact["runs"] = SEEDS[:count], artifact["runs"][:count]
    artifact["evaluation_protocol"] |= {
        "seeds": SEEDS[:count], "planned_n": count, "formal_comparison": False,
        "claim_policy": "descriptive single-seed mechanism reproduction",
    }  # fmt: skip
    found = list(recompute.policy_problems(artifact, {"looks": []}, historical=False))
    assert found == (
        ["the claim policy 'descriptive single-seed mechanism reproduction' is of one seed, found 2"] * broken
    )


def test_a_failed_seed_stays_and_counts_with_the_failure_value(complete):
    artifact = complete.artifact
    artifact["runs"][0] |= {"status": "non_finite", "final": None, "relative_accuracy": None}
    complete.replace(artifact)
    message = failures(check(complete))["comparison"]
    assert "/comparison/0/per_seed_diffs" in message
    assert "-0.5" in message  # 0 planned for a failure, less the rival's 4/8
    artifact["runs"][0]["status"] = "completed"
    complete.replace(artifact)
    assert "final is null though the run completed" in failures(check(complete))["history"]


def test_a_comparison_is_worked_out_from_its_differences_where_the_rival_is_not_at_hand(complete):
    shutil.rmtree(complete.folder / "arms")
    report = check(complete)
    assert report.exit_code == 0
    assert any("rival artifacts: 1 not at hand" in item for item in report.not_checked)
    complete.replace(edited(complete.artifact, ("comparison", 0, "p_count"), 4))
    assert "comparison" in failures(check(complete))


def test_a_rival_under_another_plan_is_no_rival(complete):
    path = complete.folder / "arms/dense/artifact.json"
    path.write_bytes(dumps(edited(read(path), ("evaluation_protocol", "plan_sha256"), "sha256:" + "0" * 64)))
    text, old, new = (complete.folder / "artifact.json").read_text(), complete.artifact, file_digest(path)
    complete.replace(json.loads(text.replace(old["mechanism"]["arms"][0]["artifact_sha256"], new)))
    assert "has another plan_sha256" in failures(check(complete))["arms"]


def test_the_record_from_before_provenance_cannot_be_verified_and_says_why():
    report = verify(RECORD)
    assert bytes_digest(RECORD.read_bytes()) in HISTORICAL
    assert report.exit_code == 3
    assert report.unverifiable == ("historical: 1 field not recorded",)
    assert failures(report) == {}
    assert status(report)["accuracy grid"] == status(report)["entropy identity"] == "passed"
    assert "not verified (historical: 1 field not recorded)" in render(report)


def test_every_changed_number_of_the_historical_record_fails(tmp_path):
    record, path = read(RECORD), tmp_path / "record.json"
    for place in leaves(record):
        value = at(record, place)
        if isinstance(value, int | float) and place[:2] in (("runs", 1), ("seeds", 1), ("schema_version",)):
            path.write_bytes(dumps(edited(record, place, other(value))))
            assert verify(path).exit_code == 1, place
    path.write_bytes(RECORD.read_bytes())
    assert verify(path).exit_code == 3


@pytest.mark.parametrize(
    ("missing", "words"),
    [("execution.json", "the run is incomplete or was copied without its execution record"), ("plan.json", "plan")],
)
def test_a_run_without_its_plan_or_execution_record_cannot_be_verified(complete, missing, words):
    (complete.folder / missing).unlink()
    report = check(complete)
    if missing == "plan.json":  # it is also an output of the execution
        assert list(failures(report)) == ["output files"]
        complete.record()
        report = check(complete)
    assert report.exit_code == 3
    assert words in report.unverifiable[0]
    assert report.not_checked[:-2]


def test_a_run_folder_without_an_artifact_is_incomplete(tmp_path):
    report = verify(tmp_path)
    assert report.exit_code == 3
    assert "there is no artifact.json: the run is incomplete" in render(report)


def test_the_plan_and_the_execution_record_bear_their_own_digests(complete):
    plan = read(complete.folder / "plan.json")
    (complete.folder / "plan.json").write_bytes(dumps(edited(plan, ("plan", "alpha"), 0.2)))
    complete.record()
    assert {"plan digest", "plan"} <= set(failures(check(complete)))
    (complete.folder / "plan.json").write_bytes(dumps(plan))
    complete.record()
    execution = read(complete.folder / "execution.json")
    for key, value in (("argv", []), ("exit_code", 1), ("status", "killed"), ("method", "opd")):
        (complete.folder / "execution.json").write_bytes(dumps(edited(execution, ("execution", key), value)))
        assert "execution" in failures(check(complete))


def test_a_plan_moved_after_the_run_fails_even_with_new_digests(complete):
    body = read(complete.folder / "plan.json")["plan"] | {"alpha": 0.2}
    moved = {"manifest_version": 1, "plan": body, "plan_sha256": content_digest(body)}
    (complete.folder / "plan.json").write_bytes(dumps(moved))
    complete.record()
    assert "/evaluation_protocol/plan_sha256" in failures(check(complete))["plan digest"]


def test_tuning_on_evaluation_seeds_fails(complete):
    body = read(complete.folder / "plan.json")["plan"]
    body["tuning"]["seeds"] = [0, 42]
    moved = {"manifest_version": 1, "plan": body, "plan_sha256": content_digest(body)}
    (complete.folder / "plan.json").write_bytes(dumps(moved))
    complete.replace(edited(complete.artifact, ("evaluation_protocol", "plan_sha256"), moved["plan_sha256"]))
    assert "seeds [42] serve tuning and evaluation" in failures(check(complete))["plan"]


def test_output_files_are_there_whole_and_inside_the_folder(complete):
    metrics = complete.folder / "metrics.jsonl"
    for damage, words in ((b'{"step": 2}\n', "digest"), (b"", "bytes"), (None, "missing")):
        metrics.unlink() if damage is None else metrics.write_bytes(damage)
        assert words in failures(check(complete))["output files"]
    metrics.mkdir()
    assert "not a regular file" in failures(check(complete))["output files"]


def test_a_file_that_no_record_names_is_a_warning(complete):
    (complete.folder / "notes.txt").write_text("x")
    report = check(complete)
    assert (report.exit_code, status(report)["other files"]) == (0, "warned")
    assert '["notes.txt"]' in render(report)


def test_records_cannot_send_the_reader_out_of_the_folder(complete, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    execution = read(complete.folder / "execution.json")
    (complete.folder / "link").symlink_to(secret)
    for path in ("../../secret.txt", str(secret), "link", "/dev/zero"):
        entry = {"path": path, "sha256": file_digest(secret), "bytes": 1}
        body = {**execution["execution"], "outputs": [*execution["execution"]["outputs"], entry]}
        document = {"manifest_version": 1, "execution": body, "execution_sha256": content_digest(body)}
        (complete.folder / "execution.json").write_bytes(dumps(document))
        assert "leads out of" in failures(check(complete))["output files"]


def test_a_plan_or_an_arm_behind_a_symlink_out_of_the_folder_is_refused(complete, tmp_path):
    shutil.move(complete.folder / "plan.json", tmp_path / "plan.json")
    (complete.folder / "plan.json").symlink_to(tmp_path / "plan.json")
    shutil.move(complete.folder / "arms/dense", tmp_path / "dense")
    (complete.folder / "arms/dense").symlink_to(tmp_path / "dense")
    assert {"plan file", "arm dense"} <= set(failures(check(complete)))


HOSTILE = {
    "deep": b"[" * 1_000_000,
    "long integer": b'{"schema_version": ' + b"9" * 5000 + b"}",
    "duplicate keys": b'{"schema_version": 2, "schema_version": 2}',
    "nan": b'{"x": NaN}',
    "bom": b"\xef\xbb\xbf{}",
    "not utf-8": b"\xff\xfe{}",
    "empty": b"",
    "list": b"[]",
    "null": b"null",
    "terminal": b'{"\\u001b[2J": "\\u001b]0;x\\u0007"}',
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("file", ["artifact.json", "plan.json", "execution.json", "arms/dense/artifact.json"])
def test_a_hostile_file_fails_and_never_raises(complete, file, name):
    (complete.folder / file).write_bytes(HOSTILE[name])
    report = check(complete)
    assert report.exit_code == 1
    assert "\x1b" not in render(report)


def test_a_pipe_in_place_of_an_artifact_does_not_hold_the_reader_up(tmp_path):
    os.mkfifo(tmp_path / "artifact.json")
    assert verify(tmp_path).exit_code == 1


def test_nothing_an_artifact_names_is_imported(complete, monkeypatch):
    canary = complete.folder / "canary.py"
    canary.write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(complete.folder)
    body = read(complete.folder / "plan.json")["plan"]
    body["dataset"]["generator"] = "canary"
    plan = {"manifest_version": 1, "plan": body, "plan_sha256": content_digest(body)}
    (complete.folder / "plan.json").write_bytes(dumps(plan))
    complete.replace(edited(complete.artifact, ("evaluation_protocol", "plan_sha256"), plan["plan_sha256"]))
    record = read(complete.folder / "execution.json")["execution"]
    record |= {"entrypoint": "canary", "plugins": [{"name": "canary", "sha256": file_digest(canary)}]}
    document = {"manifest_version": 1, "execution": record, "execution_sha256": content_digest(record)}
    (complete.folder / "execution.json").write_bytes(dumps(document))
    assert status(check(complete))["execution"] == "passed"
    assert "canary" not in sys.modules


def test_the_data_set_is_drawn_again_if_a_generator_is_given(complete):
    def refuse(_):
        raise ValueError("maximum_examples must be positive")

    for fingerprints, expected in (
        (None, "skipped"),
        (lambda _: None, "skipped"),
        (lambda _: "sha256:" + "0" * 64, "failed"),
        (refuse, "failed"),
    ):
        report = verify(complete.folder, fingerprints=fingerprints)
        assert status(report)["data set"] == expected
        assert (report.exit_code == 1) == (expected == "failed")


def test_other_code_is_a_warning_and_no_failure(complete):
    (complete.package / "more.py").write_text("")
    report = check(complete)
    assert (report.exit_code, status(report)["code"]) == (0, "warned")


@pytest.fixture
def published(complete: CompleteRun, tmp_path: Path) -> Path:
    """The run's artifact and records at their places below docs/."""
    place = tmp_path / complete.artifact["provenance"]["artifact_path"]
    manifests = tmp_path / "docs/post-training/manifests"
    (manifests / "arithmetic-smoke-seeds42-47").mkdir(parents=True)
    place.parent.mkdir(parents=True)
    shutil.copy(complete.folder / "artifact.json", place)
    shutil.copy(complete.folder / "plan.json", manifests / "arithmetic-smoke-seeds42-47.json")
    shutil.copy(complete.folder / "execution.json", manifests / "arithmetic-smoke-seeds42-47/sparse-opd.json")
    return place


def test_a_published_artifact_finds_its_records_and_must_lie_where_it_says(published, tmp_path):
    report = verify(published)
    assert (report.exit_code, status(report)["place"]) == (0, "passed")
    elsewhere = published.with_name("elsewhere.json")
    shutil.copy(published, elsewhere)
    assert "the file lies in docs/post-training" in failures(verify(elsewhere))["place"]


def test_a_published_artifact_finds_its_rivals_by_digest(published, complete):
    report = verify(published)
    assert any("rival artifacts" in item for item in report.not_checked)
    rival = published.with_name("arithmetic-smoke-seeds42-47-dense.json")
    shutil.copy(complete.folder / "arms/dense/artifact.json", rival)
    report = verify(published)
    assert not any("rival artifacts" in item for item in report.not_checked)
    assert next(c for c in report.checks if c.name == "comparison").message.endswith("1 from the rivals' runs")


def test_an_incomplete_run_does_not_borrow_a_published_execution_record(published, complete):
    (complete.folder / "execution.json").unlink()
    assert check(complete).exit_code == 3


def test_a_report_always_says_what_was_not_checked_and_never_verified_without_a_level(complete):
    reports = [check(complete), verify(complete.folder), verify(RECORD), verify(complete.folder / "nothing.json")]
    (complete.folder / "artifact.json").write_bytes(b"[]")
    reports.append(check(complete))
    for report in reports:
        text = render(report)
        assert "V3: the training was not run again" in text
        assert text.count("verified at V0, V1, V2") == (report.exit_code == 0)
        assert text.replace("not verified (", "").count("verified") == (report.exit_code == 0)
        assert dumps(report.as_json())
        assert report.as_json()["exit_code"] == report.exit_code


def test_a_failure_outranks_what_could_not_be_verified():
    failed, skipped = Check("a", "V1", "failed", ""), Check("b", "V2", "skipped", "")
    assert Report("p", (failed, skipped), ("x",), ("no plan",)).exit_code == 1
    assert Report("p", (skipped,), ("x",), ("no plan",)).exit_code == 3
    assert Report("p", (skipped,), ("x",)).exit_code == 0
