"""`distillation_gap`: what its number means, and that its arms differ in nothing but the tokens that are supervised."""

import pytest
import torch

from posttrain.bench.conduct import Unit, perform
from posttrain.bench.options import load
from posttrain.bench.tracks import distillation_gap as gap
from posttrain.evaluation.study import Results

pytestmark = pytest.mark.usefixtures("hardly_trained")
OPTIONS = {**gap.BUDGET, **gap.BASE, "problems_per_step": 4, "steps": 2}
DATA = {**gap.track.data, "train_examples": 8, "validation_examples": 4}


@pytest.mark.parametrize(
    ("before", "after", "teacher", "share"),
    [(0.5, 0.5, 0.9, 0.0), (0.5, 0.9, 0.9, 1.0), (0.5, 0.7, 0.9, 0.5), (0.5, 0.4, 0.9, -0.25), (0.5, 1.0, 0.75, 2.0)],
)
def test_the_share_is_what_is_gone_of_the_distance(before, after, teacher, share):
    assert gap.share_closed(before, after, teacher) == pytest.approx(share, abs=1e-15)


@pytest.mark.parametrize("teacher", [0.5, 0.4])
def test_where_there_is_no_gap_there_is_no_share(teacher):
    assert gap.share_closed(0.5, 0.6, teacher) is None


def test_an_arm_supervises_what_it_says_and_both_ask_the_teacher_equally_often():
    bench = load(
        "distillation_gap",
        overrides=[f"data.{k}={DATA[k]}" for k in ("train_examples", "validation_examples")]
        + ["settings.steps=1", "settings.problems_per_step=4"],
    )
    dense, sparse = (perform(bench, Unit(arm, 0, 0)).measures for arm in ("baseline", "idea"))
    # The first step draws from the same weights with the same keys.
    assert dense["sampled_positions"] == sparse["sampled_positions"] == dense["supervised_positions"]
    assert sparse["supervised_positions"] <= 2 * 4
    assert dense["teacher_calls"] == sparse["teacher_calls"] == 4
    assert dense["accuracy_before"] == sparse["accuracy_before"]


@pytest.mark.parametrize(("length", "same"), [(1, True), (2, True), (6, False)])
def test_the_arms_are_one_algorithm_only_while_completions_have_two_tokens(length, same):
    gradients = []
    for algorithm in ("opd", "sparse-opd"):
        options = {**OPTIONS, "algorithm": algorithm, "policy.max_completion_tokens": length}
        trainer = gap.TASK.trainer(options, DATA, 0)
        problems = list(trainer.problems)
        drawn = trainer.policy.sample(problems, 1, trainer.stream, 0, 1)
        gradients.append(trainer.gradient(problems, drawn))
    dense, sparse = gradients
    assert bool(dense.any())
    assert torch.allclose(dense, sparse, rtol=1e-4, atol=1e-7) is same


def test_its_analytic_checks_hold():
    assert gap.math_check()["confirmed"] is True


def test_predictions_are_read_from_the_measures_of_both_arms():
    def run(before, after, supervised):
        measures = {"accuracy_before": before, "accuracy_after": after}
        return {"measures": {**measures, "sampled_positions": 100, "supervised_positions": supervised}}

    results = Results({"baseline": [run(0.5, 0.75, 100)] * 8, "idea": [run(0.5, 0.625, 10)] * 8})
    kept, few = (claim.decide(results) for claim in gap.IDEA.claims)
    assert (kept["measured"]["mean"], kept["outcome"]) == (0.5, "refuted")
    assert (few["measured"]["value"], few["outcome"]) == (0.1, "confirmed")
    level = Results({"baseline": [run(0.5, 0.5, 100)] * 8, "idea": [run(0.5, 0.6, 10)] * 8})
    assert gap.IDEA.claims[0].decide(level)["outcome"] == "inconclusive", "a gain of nothing has no share"
