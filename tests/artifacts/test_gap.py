"""The share of the gap to the teacher: hand-computed, and never a number where there is no gap."""

import pytest

from posttrain.artifacts.gap import TEACHER, TIERS, gap_closed, share


def run(seed, before, after, teacher):
    measures = {} if teacher is None else {TEACHER: teacher}
    return {"seed": seed, "baseline": {"accuracy": before}, "final": {"accuracy": after}, "measures": measures}


def artifact(*runs, tier="l2_tiny_lm"):
    return {"evaluation_protocol": {"tier": tier}, "runs": list(runs)}


@pytest.mark.parametrize(
    ("before", "after", "teacher", "expected"),
    [
        (0.25, 0.5, 0.75, 0.5),
        (0.25, 0.75, 0.75, 1.0),  # the teacher's accuracy
        (0.25, 0.25, 0.75, 0.0),  # the start's
        (0.5, 0.25, 0.75, -1.0),  # a loss as large as the gap
        (0.25, 1.0, 0.5, 3.0),  # beyond the teacher
        (0.5, 0.75, 0.5, None),  # no gap
        (0.5, 0.25, 0.25, None),  # a teacher below the start: the quotient would be 1
    ],
)
def test_the_share_of_one_seed(before, after, teacher, expected):
    assert share(run(1, before, after, teacher)) == expected


def test_over_seeds_it_is_the_mean_with_its_t_interval():
    """Shares 0.5, 0.25, 0.75: mean 0.5, standard error 0.25 / sqrt(3), t(2, 0.975) = 4.302653."""
    found = gap_closed(artifact(run(1, 0.25, 0.5, 0.75), run(2, 0.0, 0.25, 1.0), run(3, 0.0, 0.75, 1.0)))
    assert found.shares == {1: 0.5, 2: 0.25, 3: 0.75}
    assert found.mean == 0.5
    half = 4.302653 * 0.25 / 3**0.5
    assert found.ci95 == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    assert found.missing == []


def test_one_seed_has_no_interval():
    found = gap_closed(artifact(run(1, 0.25, 0.5, 0.75)))
    assert (found.mean, found.ci95) == (0.5, None)


def test_one_seed_without_a_gap_leaves_no_mean():
    """A mean of the others would be one of chosen seeds."""
    found = gap_closed(artifact(run(1, 0.25, 0.5, 0.75), run(2, 0.5, 0.5, 0.5)))
    assert (found.mean, found.ci95, found.missing) == (None, None, [2])
    assert found.shares == {1: 0.5, 2: None}


@pytest.mark.parametrize("tier", ["l0_smoke", "l1_mechanism"])
def test_only_language_models_are_measured_by_it(tier):
    assert gap_closed(artifact(run(1, 0.25, 0.5, 0.75), tier=tier)) is None
    assert all(gap_closed(artifact(run(1, 0.25, 0.5, 0.75), tier=tier)) for tier in TIERS)


def test_without_a_teacher_in_every_run_there_is_none():
    assert gap_closed(artifact(run(1, 0.25, 0.5, 0.75), run(2, 0.25, 0.5, None))) is None
    failed = {**run(3, 0.25, 0.5, None), "status": "failed", "final": None}
    assert gap_closed(artifact(run(1, 0.25, 0.5, 0.75), failed)).shares == {1: 0.5}
    assert gap_closed(artifact(failed)) is None
