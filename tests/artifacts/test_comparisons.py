"""Laws of the comparison block: made and checked by one code, paired by seed, robust against made-up numbers."""

import copy

import pytest
from complete_run import SEEDS, run

from posttrain.artifacts.comparisons import Rival, close, compare_runs, comparison_problems, metric_by_seed

PROTOCOL = {
    "plan_sha256": "sha256:" + "0" * 64,
    "primary_metric": "/final/accuracy",
    "direction": "higher is better",
    "alpha": 0.05,
    "family_size": 2,
    "sesoi": None,
    "failure_value": 0.0,
}
OURS = [run(seed, 5 + seed % 3) for seed in SEEDS]
THEIRS = [
    Rival(name, "sha256:" + digit * 64, [run(seed, n) for seed in SEEDS])
    for name, digit, n in (("a", "a", 4), ("b", "b", 5))
]


def test_a_block_agrees_with_itself_from_runs_and_from_its_differences():
    block = compare_runs(OURS, THEIRS, PROTOCOL)
    assert list(block[0])[:3] == ["against", "metric", "direction"]
    assert comparison_problems(OURS, block, {rival.artifact_sha256: rival.runs for rival in THEIRS}, PROTOCOL) == []
    assert comparison_problems(OURS, block, {}, PROTOCOL) == []


def test_the_family_is_adjusted_as_a_whole():
    block = compare_runs(OURS, THEIRS, PROTOCOL)
    assert [entry["p_value"] for entry in block] == [2 / 64, 8 / 64]
    assert [entry["p_adjusted"] for entry in block] == [4 / 64, 8 / 64]
    del block[1]
    assert comparison_problems(OURS, block, {}, PROTOCOL) == []
    assert "p_adjusted" in comparison_problems(OURS, [{**block[0], "p_adjusted": 2 / 64}], {}, PROTOCOL)[0]


def test_differences_are_paired_by_seed_and_not_by_position():
    turned = Rival("a", "sha256:" + "a" * 64, THEIRS[0].runs[::-1])
    assert compare_runs(OURS[::-1], [turned], PROTOCOL) == compare_runs(OURS, THEIRS[:1], PROTOCOL)


def test_an_arm_without_a_seed_of_its_own_or_without_the_metric_is_an_error():
    twice, bare = [OURS[0], OURS[0]], [{key: value for key, value in OURS[0].items() if key != "seed"}]
    for runs in (twice, bare):
        with pytest.raises(ValueError, match="each needs its own"):
            metric_by_seed(runs, "/final/accuracy")
    for metric in ("/final/reward", "/seed/x", "/final", "/algorithm"):
        with pytest.raises(ValueError, match="the metric"):
            metric_by_seed(OURS, metric)


def test_an_unpaired_rival_gives_an_invalid_entry_that_verifies_and_holds_no_number():
    short = Rival("a", "sha256:" + "a" * 64, THEIRS[0].runs[1:])
    block = compare_runs(OURS, [short], PROTOCOL)
    assert block[0]["verdict"] == "invalid: seeds [42] only in idea"
    for rivals in ({}, {short.artifact_sha256: short.runs}):
        assert comparison_problems(OURS, block, rivals, PROTOCOL) == []
        assert comparison_problems(OURS, [{**block[0], "p_value": 0.03}], rivals, PROTOCOL)


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, 0.0])
def test_differences_made_up_at_the_ends_of_the_number_line_are_told_and_do_not_raise(value):
    block = copy.deepcopy(compare_runs(OURS, THEIRS[:1], PROTOCOL))
    block[0]["per_seed_diffs"] = [value] * len(SEEDS)
    assert comparison_problems(OURS, block, {}, PROTOCOL)


def test_counts_agree_exactly_and_floats_within_the_tolerance():
    assert close(1.0, 1.0 + 5e-13)
    assert not close(1.0, 1.0 + 5e-12)
    assert close({"a": [1e6, None]}, {"a": [1e6 + 1e-7, None]})
    assert not close(1.0, 1.0 + 5e-13, exact=True)
    assert not close(1, True)
    assert not close(1, 2)
    assert not close(None, 0.0)
    assert not close([1.0], [1.0, 1.0])
