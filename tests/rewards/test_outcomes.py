"""Values, missing answers, things not judged, errors and timeouts: told apart, counted, and bounded (R12)."""

import math
from dataclasses import dataclass

import pytest
import torch

from posttrain import settings
from posttrain.artifacts.evaluations import Completion, Item, measured
from posttrain.assembly import assemble
from posttrain.batch import Batch, Failure, Problem, Rewards, Rollouts, Signals, concatenate_rewards
from posttrain.functional.advantages import group_zscore
from posttrain.judging import FailureWatch, count_outcomes, judge
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError, rewards
from posttrain.rewards.base import RewardError, Verdict, outcomes
from posttrain.rewards.exact import Exact
from posttrain.rewards.numeric import Numeric
from posttrain.rewards.weighted import Sum
from posttrain.shares import shares
from posttrain.tracking import Averages, Evaluator, accuracy_of, track_step

ERROR, TIMEOUT, UNSCORED = Failure("down", "error"), Failure("late", "timeout"), Failure("nothing to say")


@dataclass(frozen=True)
class F1:
    """A reward that says what it is told to; a completion's text is its number."""

    says: tuple

    def __call__(self, problem, text):
        return self.says[int(text)]


@dataclass(frozen=True)
class F2(F1):
    """The same under another name."""


def rollouts(groups: int, size: int) -> Rollouts:
    rows = groups * size
    return Rollouts(
        prompt_ids=torch.zeros(rows, 1, dtype=torch.int64),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        completion_ids=torch.zeros(rows, 1, dtype=torch.int64),
        mask=torch.ones(rows, 1, dtype=torch.bool),
        logprobs=torch.zeros(rows, 1, dtype=torch.float64),
        entropy=torch.zeros(rows, 1, dtype=torch.float64),
        truncated=torch.zeros(rows, dtype=torch.bool),
        texts=tuple(map(str, range(rows))),
        problem_ids=tuple(str(i // size) for i in range(rows)),
        group_size=size,
        source=torch.zeros(rows, dtype=torch.int64),
        keys=torch.zeros(rows, 4, dtype=torch.int64),
    )


def judged(grader, groups: int = 1, size: int = 4) -> Rewards:
    return judge(grader, [Problem(str(i), "", "") for i in range(groups)], rollouts(groups, size))


def logged(rewards: Rewards) -> dict[str, float]:
    groups, size = rewards.values.shape
    drawn, averages = rollouts(groups, size), Averages()
    track_step(
        averages, drawn, Batch(drawn, torch.ones(groups * size), torch.ones(groups * size)), Signals(rewards=rewards)
    )
    return averages.means(Ranks())


# -- sums -------------------------------------------------------------------------------------------------------------


def test_br_22_b_a_part_that_says_nothing_adds_nothing_and_is_averaged_over_what_it_said():
    """BR-22 (b): f1 = [1, None, 0, 1], f2 = 0.5: totals [1.5, 0.5, 0.5, 1.5], mean of f1 2/3 over n = 3."""
    found = judged(Sum((F1((1, None, 0, 1)), F2((0.5,) * 4))))
    assert found.values.tolist() == [[1.5, 0.5, 0.5, 1.5]]
    assert found.valid.all()
    row = logged(found)
    assert row["reward_F1"] == pytest.approx(2 / 3)
    assert row["reward_F2"] == 0.5
    assert row["reward"] == 1.0
    counted = count_outcomes(found)
    assert (counted["reward_F1_scored"], counted["reward_F2_scored"], counted["unscored"]) == (3, 4, 0)


def test_weights_multiply_the_parts_and_not_what_is_logged_of_them():
    found = judged(Sum((F1((1, 0, 0, 1)), F2((0.5,) * 4)), (2.0, -1.0)))
    assert found.values.tolist() == [[1.5, -0.5, -0.5, 1.5]]
    assert logged(found)["reward_F2"] == 0.5


def test_a_part_that_broke_down_is_not_a_zero_of_the_sum():
    """R12: with the other part's 0.5 the sample would look like one that f1 had judged worthless."""
    found = judged(Sum((F1((1, ERROR, TIMEOUT, UNSCORED)), F2((0.5, 0.5, 0.5, None)))))
    assert found.valid.tolist() == [[True, False, False, False]]
    assert [failure and failure.kind for failure in found.failures] == [None, "error", "timeout", "unscored"]
    assert found.failures[1].reason == "F1: down"
    assert found.parts["F2"].valid.tolist() == [[True, True, True, False]]


def test_a_sum_is_configured_by_names_functions_and_options_and_spelled_out():
    words = ("reward=sum", "reward.of=[numeric,{name: exact},my.py:score]", "reward.weights=[1,0.5,2]")
    config = settings.load("grpo", overrides=words)
    assert config.reward.names == ("numeric", "exact", "score")
    assert config.reward.weights == (1.0, 0.5, 2.0)
    written = config.resolved["reward"]
    assert written["of"][0] == {"name": "numeric", "tolerance": 0.0, "percent": "unit"}
    assert written["of"][2] == {"name": "function", "source": "my.py:score", "on_error": "stop"}
    assert settings.resolve(config.resolved, "grpo") == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward=sum"], "reward.of: names no reward"),
        (["reward=sum", "reward.of=[numeric,nummeric]"], r"reward\.of\[1\]\.name: unknown reward `nummeric`. Did you"),
        (["reward=sum", "reward.of=numeric"], "reward.of: found 'numeric', expected a list"),
        (["reward=sum", "reward.of=[{name: numeric, tol: 1}]"], r"reward\.of\[0\]\.tol: reward `numeric` has no such"),
        (
            ["reward=sum", "reward.of=[numeric]", "reward.weights=[1,2]"],
            "found 2, expected one for each",
        ),
        (["reward=sum", "reward.of=[exact,exact]"], "different names"),
        (
            ["reward=sum", "reward.of=[exact]", "reward.weights=[heavy]"],
            "found 'heavy', expected a number",
        ),
    ],
)
def test_a_sum_that_cannot_be_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        settings.load("grpo", overrides=words)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_br_22_c_what_is_not_judged_enters_no_statistic_and_is_counted():
    """BR-22 (c): [1, None, 0, 1]: mean 2/3, deviation 0.577350, advantages [0.577350, none, -1.154701, 0.577350]."""
    found = judged(F1((1, None, 0, 1)))
    assert found.values[found.valid].mean().item() == pytest.approx(2 / 3)
    assert found.values[found.valid].std().item() == pytest.approx(0.577350, abs=1e-6)
    advantages = group_zscore(found.values, found.valid, eps=0)
    assert advantages.tolist()[0] == pytest.approx([0.577350, 0.0, -1.154701, 0.577350], abs=1e-6)
    assert count_outcomes(found)["unscored"] == 1
    assert logged(found)["reward"] == pytest.approx(2 / 3)
    algorithm = settings.load("grpo").algorithm
    batch = algorithm.prepare(rollouts(1, 4), Signals(rewards=found, reference=None))
    assert batch.weight.flatten().tolist()[1] == 0  # excluded, not merely worth 0
    assert torch.isfinite(batch.weight).all()


def test_right_wrong_missing_unscored_error_and_timeout_are_six_states():
    """R12."""
    says = (1.0, Verdict(0.0, True), Verdict(0.0, False), None, ERROR, TIMEOUT, Verdict(TIMEOUT), UNSCORED)
    found = judged(F1(says), 2)
    assert found.values[found.valid].tolist() == [1.0, 0.0, 0.0]
    assert count_outcomes(found) == {"unscored": 5, "unscored_error": 1, "unscored_timeout": 2, "no_answer": 1}
    assert (~found.judged).sum() == 3


UNREADABLE = ["", " ", "I do not know.", "\\boxed{", "####", "1;2;x", "\u0000", "9" * 2000, "((((", "\\frac{1}{0}"]


@pytest.mark.parametrize("text", UNREADABLE)
@pytest.mark.parametrize("name", ["exact", "positions", "last_step", "numeric", "maths", "coin"])
def test_what_the_model_wrote_is_never_a_failure(name, text):
    problem = Problem("p", "1 and 1?", "12")
    reward = rewards.get(name)()
    found = outcomes(reward, [problem], [text])[0]
    value = found.value if isinstance(found, Verdict) else found
    assert value == 0.0 or name == "coin"
    assert not isinstance(value, Failure)


def test_accuracy_in_training_and_in_an_evaluation_agree_where_scores_are_0_or_1_and_nothing_broke_down():
    def both(*says):
        found = judged(F1(says), 1, len(says))
        scores = [value if ok else None for value, ok in zip(found.values[0].tolist(), found.valid[0], strict=True)]
        items = [Item(0, str(i), "", "", Completion(score, 1, False)) for i, score in enumerate(scores)]
        return accuracy_of(found), measured(items, ())["greedy"]["accuracy"]

    assert both(1.0, 0.0, Verdict(0.0, False), UNSCORED, 1.0) == (0.4, 0.4)
    assert both(1.0, 0.5, 0.0, 0.5) == (0.5, 0.25)  # partial scores: a mean there, right or not here
    assert both(1.0, TIMEOUT, 0.0, 1.0) == (2 / 3, 0.5)  # a breakdown: left out there, in the denominator here


def test_a_held_out_evaluation_has_a_watch_of_its_own_that_may_not_be_left_out():
    """Two breakdowns of 100 answers stop it, one does not."""
    drawn = settings.load("grpo").dataset.build(0)
    problems = (drawn.train * 2)[:100]
    policy = assemble(settings.load("grpo"), 0).policy

    def measure(*broken):
        asked = iter(range(len(problems)))
        return Evaluator(problems, lambda problem, text: ERROR if next(asked) in broken else 1.0, Exact())(
            policy, policy, None
        )

    assert measure(3)["accuracy"] == 1.0
    with pytest.raises(RewardError, match="2 of the last 100 samples could not be judged"):
        measure(3, 50)


def test_a_reward_that_looks_for_no_answer_counts_none_missing():
    assert "no_answer" not in count_outcomes(judged(F1((0.0, 1.0, None, 0.0))))


def test_held_out_an_answer_nobody_can_read_is_not_right_and_a_breakdown_is_neither():
    """Right, wrong, unreadable, breakdown: 1/3. Where nothing could be read nothing is known."""
    assert accuracy_of(judged(F1((1.0, Verdict(0.0, False), UNSCORED, TIMEOUT)))) == pytest.approx(1 / 3)
    assert math.isnan(accuracy_of(judged(F1((UNSCORED, TIMEOUT, ERROR, UNSCORED)))))


def test_rewards_are_cut_into_groups_and_put_together_again():
    says = (1, None, ERROR, Verdict(0.0, False), 0.5, 1, Verdict(1.0, True), TIMEOUT)
    whole = judged(Sum((F1(says), F2(says[::-1]))), 2)
    again = concatenate_rewards([whole.take([0]), whole.take([1])])
    assert again.failures == whole.failures
    assert again.parts["F1"].failures == whole.parts["F1"].failures
    for name in ("values", "valid", "answered"):
        assert torch.equal(getattr(again, name), getattr(whole, name))
    assert count_outcomes(again) == count_outcomes(whole)


@pytest.mark.parametrize("value", ["yes", math.inf, math.nan, [1.0], object()])
def test_every_reward_is_held_to_the_contract_and_the_sample_named(value):
    with pytest.raises(RewardError, match=r"reward `F1`, sample 2 \(problem 0\): found .*, expected a finite number"):
        judged(F1((1, 0, value, 1)))


# -- how many failures a run bears ------------------------------------------------------------------------------------


def batch_of(samples: int, failed: int, kind: str = "error") -> Rewards:
    failures = (Failure("down", kind),) * failed + (None,) * (samples - failed)
    valid = torch.tensor([[failure is None for failure in failures]])
    return Rewards(torch.zeros(1, samples), valid, failures=failures)


@pytest.mark.parametrize(
    ("steps", "stops"),
    [
        ([(8, 1)], False),  # one is always borne
        ([(8, 1), (8, 1)], True),  # two among fewer than a hundred
        ([(8, 8)], True),
        ([(100, 1), (100, 1)], False),  # exactly 1 %
        ([(100, 1), (100, 2)], True),
        ([(512, 5)], False),
        ([(512, 6)], True),
        ([(1000, 0)] * 50 + [(100, 12)], True),  # an outage late in a long run: 12 of the last 1100
        ([(1000, 10), (1000, 10), (1000, 10)], False),
        ([(8, 1), *[(100, 0)] * 10, (8, 1), *[(100, 0)] * 10, (8, 1)], False),  # long apart
    ],
)
@pytest.mark.parametrize("kind", ["error", "timeout"])
def test_r12_more_than_one_percent_breakdowns_of_the_window_stop_the_run(steps, stops, kind):
    """R12: of the latest steps with 1000 samples, fewer than 100 counting as 100."""
    watch = FailureWatch()
    for samples, failed in steps[:-1]:
        watch.add(batch_of(samples, failed, kind))
    if stops:
        with pytest.raises(RewardError, match=r"could not be judged, more than 1%.*The last one: down"):
            watch.add(batch_of(*steps[-1], kind))
    else:
        watch.add(batch_of(*steps[-1], kind))


def test_r12_what_merely_cannot_be_judged_does_not_stop_a_run():
    FailureWatch().add(batch_of(512, 512, "unscored"))


def test_the_window_stays_small():
    watch = FailureWatch()
    for _ in range(500):
        watch.add(batch_of(8, 0))
    assert len(watch.steps) == 125


# -- in a run ---------------------------------------------------------------------------------------------------------


def trained(grader, *words: str):
    small = ("dataset.train_examples=8", "dataset.validation_examples=4", "steps=3", "problems_per_step=4")
    one = assemble(settings.load("grpo", overrides=(*small, *words)), 0)
    one.grader = grader
    rows = []
    one.report = rows.append
    return one, rows


def test_a_steps_row_says_how_many_of_its_samples_have_no_reward():
    def grader(problem, text):
        return None if text.startswith("0") else Verdict(1.0, answered=not text.startswith("1"))

    one, rows = trained(grader)
    texts = []
    drawn = one.policy.sample
    one.policy.sample = lambda *given: texts.append(drawn(*given)) or texts[-1]
    one.run()
    for row, step in zip(rows, texts, strict=True):
        assert row["unscored"] == sum(text.startswith("0") for text in step.texts)
        assert row["no_answer"] == sum(text.startswith("1") for text in step.texts)
        assert row["unscored_error"] == row["unscored_timeout"] == 0
    assert sum(row["unscored"] for row in rows) > 0


def test_r12_a_run_whose_reward_breaks_down_stops_and_names_the_reason():
    one, rows = trained(lambda problem, text: ERROR)
    with pytest.raises(RewardError, match=r"32 of the last 32 samples.*down"):
        one.run()
    assert rows == []


def test_what_was_counted_goes_on_after_a_checkpoint():
    one, _ = trained(lambda problem, text: 1.0)
    one.step(1)
    one.watch.add(batch_of(8, 1))
    other, _ = trained(lambda problem, text: 1.0)
    other.load_state_dict(one.state_dict() | {"baseline": None})
    assert list(other.watch.steps) == [(32, 0), (8, 1)]


# -- ranks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Apart(Ranks):
    """One of two ranks, with what the other would say."""

    other: object = None

    def gather(self, value):
        return [value, (self.other, None)] if self.rank == 0 else [(self.other, None), value]


def test_ranks_judge_their_groups_and_all_have_all_rewards():
    """Minibatches of two groups: rank 0 trains on groups 0 and 2, rank 1 on groups 1 and 3."""
    problems, drawn = [Problem(str(i), "", "") for i in range(4)], rollouts(4, 2)
    grader = Sum((F1((1, 0, 0.5, None, ERROR, 1, 1, 1)), F2((1, Verdict(0.0, False), 1, 0, 1, 1, 1, TIMEOUT))))
    whole = judge(grader, problems, drawn)
    for rank, mine, others in ((0, [0, 2], [1, 3]), (1, [1, 3], [0, 2])):
        held = shares(4, 2, Apart(rank, 2, whole.take(others)))
        assert held.mine == tuple(mine)
        own = [problems[group] for group in mine]
        found = held.gathered("judging", 1, lambda own=own, held=held: judge(grader, own, held.own(drawn)))
        for name in ("values", "valid", "answered"):
            assert torch.equal(getattr(found, name), getattr(whole, name))
        assert found.failures == whole.failures
        assert found.parts["F1"].failures == whole.parts["F1"].failures


def test_names_of_rewards_are_those_they_are_registered_under():
    assert Sum((Exact(), Numeric())).names == ("exact", "numeric")


def test_a_step_without_a_failure_may_tip_the_scale_and_the_last_failure_is_named():
    """When a part leaves the window, the share of the others grows, whatever the newest one holds."""
    watch = FailureWatch()
    for size, failed in ((256, 0), (256, 0), (256, 0), (256, 9), (10, 0)):
        watch.add(batch_of(size, failed, "timeout"))
    watch.window = 250
    with pytest.raises(RewardError, match=r"could not be judged.*The last one: "):
        watch.add(batch_of(1, 0, "timeout"))
