"""What is measured: means that no cut changes, estimates without data rows, failures that are no rewards."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.batch import Batch, Failure, Problem, Rewards, Rollouts, Signals, Targets
from posttrain.policies.candidate import Bandit
from posttrain.ranks import Ranks
from posttrain.tracking import Averages, Evaluator, NonFinite, judge, require_finite, sampled_kl, track_step

numbers = st.floats(-1e3, 1e3, allow_subnormal=False)


def rollouts(logprobs, mask=None, source=None, group_size=1, texts=None) -> Rollouts:
    logprobs = torch.tensor(logprobs, dtype=torch.float64)
    rows, length = logprobs.shape
    return Rollouts(
        prompt_ids=torch.zeros(rows, 1, dtype=torch.int64),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        completion_ids=torch.zeros(rows, length, dtype=torch.int64),
        mask=torch.ones(rows, length, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool),
        logprobs=logprobs,
        entropy=-logprobs,
        truncated=torch.zeros(rows, dtype=torch.bool),
        texts=texts or tuple(str(i) for i in range(rows)),
        problem_ids=tuple(str(i // group_size) for i in range(rows)),
        group_size=group_size,
        source=torch.tensor(source or [0] * rows),
        keys=torch.zeros(rows, 4, dtype=torch.int64),
    )


def tracked(batch, **signals) -> dict[str, float]:
    averages = Averages()
    track_step(averages, batch.rollouts, batch, Signals(**signals))
    return averages.means(Ranks())


def targets(logprobs, mask=None) -> Targets:
    logprobs = torch.tensor(logprobs, dtype=torch.float64)
    return Targets(logprobs, torch.ones_like(logprobs, dtype=torch.bool) if mask is None else torch.tensor(mask))


# -- averages ---------------------------------------------------------------------------------------------------------


def test_a_mean_is_the_weighted_sum_over_the_sum_of_weights():
    """(1 * 2 + 3 * 1 + 5 * 0) / (2 + 1 + 0) = 5/3, whatever stands where nothing counts."""
    averages = Averages()
    averages.add("x", torch.tensor([1.0, 3.0, math.nan]), torch.tensor([2.0, 1.0, 0.0]))
    assert averages.means(Ranks()) == {"x": pytest.approx(5 / 3, abs=1e-15)}


def test_a_mean_of_means_would_be_wrong_where_parts_carry_different_weight():
    """Parts (1, 1) and (4): the mean is 2, the mean of the parts' means 2.5."""
    averages = Averages()
    averages.add("x", torch.tensor([1.0, 1.0]), torch.ones(2))
    averages.add("x", torch.tensor([4.0]), torch.ones(1))
    assert averages.means(Ranks()) == {"x": 2.0}


@given(st.lists(st.tuples(numbers, st.floats(0, 5, allow_subnormal=False)), min_size=1, max_size=12), st.data())
def test_a_mean_is_the_same_however_the_rows_are_cut(rows, data):
    values, weights = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    whole, parts = Averages(), Averages()
    whole.add("x", values, weights)
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        parts.add("x", values[start:stop], weights[start:stop])
    assert parts.means(Ranks()).keys() == whole.means(Ranks()).keys()
    for name, mean in whole.means(Ranks()).items():
        assert parts.means(Ranks())[name] == pytest.approx(mean, rel=1e-9, abs=1e-9)


def test_half_precision_is_summed_in_double():
    """4097 ones: float16 has no 4097, and float32 sums of float16 values would be rounded back."""
    averages = Averages()
    averages.add("x", torch.ones(4097, dtype=torch.float16), torch.ones(4097, dtype=torch.float16))
    assert averages.sums["x"].item() == 4097.0
    assert averages.means(Ranks()) == {"x": 1.0}


def test_a_name_without_weight_has_no_mean():
    averages = Averages()
    averages.add("x", torch.tensor([7.0]), torch.tensor([0.0]))
    assert averages.means(Ranks()) == {}
    assert Averages().means(Ranks()) == {}


@dataclass(frozen=True)
class Together(Ranks):
    """A rank that is told what the others hold, in place of processes that would say it."""

    others: tuple[Averages, ...] = ()

    def gather(self, value):
        return [value, *((other.sums, other.weights) for other in self.others)]


def test_means_over_ranks_count_a_rank_without_rows_as_nothing():
    """Rank 0 has (1, 3), rank 1 nothing, rank 2 has (8): 12 / 3 = 4, on every rank, also on the empty one."""
    first, empty, third = Averages(), Averages(), Averages()
    first.add("x", torch.tensor([1.0, 3.0]), torch.ones(2))
    third.add("x", torch.tensor([8.0]), torch.ones(1))
    for rank, mine in enumerate((first, empty, third)):
        others = tuple(part for part in (first, empty, third) if part is not mine)
        assert mine.means(Together(rank, 3, others)) == {"x": 4.0}


# -- one step ---------------------------------------------------------------------------------------------------------


def test_sampled_kl_is_the_log_ratio_of_the_students_own_tokens_and_excludes_data_rows():
    """Row 0 (student): (-1) - (-3) = 2 and a masked token; row 1 (data): its zeros are no log-probs.

    Row 2 (student): 0.5 where the other one spoke, nothing where it was silent. Mean (2 + 0.5) / 2 = 1.25.
    """
    drawn = rollouts([[-1, -1], [0, 0], [-1, -1]], [[1, 0], [1, 1], [1, 1]], source=[0, 2, 0])
    other = targets([[-3, -9], [-5, -5], [-1.5, -9]], [[True, True], [True, True], [True, False]])
    values, weights = sampled_kl(drawn, other)
    assert weights.tolist() == [[1, 0], [0, 0], [1, 0]]
    assert (values * weights).sum() / weights.sum() == 1.25
    found = tracked(Batch(drawn, torch.ones(3, 2), torch.ones(3)), teacher=other, reference=other)
    assert found["kl_to_teacher_sampled"] == found["kl_to_reference_sampled"] == 1.25


def test_data_rows_enter_neither_entropy_nor_discrepancy_and_alone_give_no_estimate_at_all():
    """Row 0 (student) has entropy 1 and |(-3) - (-1)| = 2; the zeros of row 1 (data) would halve the first."""
    drawn = rollouts([[-1.0], [0.0]], source=[0, 2])
    found = tracked(Batch(drawn, torch.ones(2, 1), torch.ones(2)), teacher=targets([[-3.0], [-5.0]]))
    assert found["policy_entropy"] == 1.0
    assert found["selected_discrepancy"] == found["kl_to_teacher_sampled"] == 2.0
    data = rollouts([[0.0]], source=[2])
    found = tracked(Batch(data, torch.ones(1, 1), torch.ones(1)), reference=targets([[-5.0]]))
    assert not {"kl_to_reference_sampled", "policy_entropy"} & found.keys()


def test_a_discrepancy_is_averaged_over_supervised_tokens_alone_entropy_over_all_sampled_ones():
    """|teacher - student| = 1, 2, 4; supervised are the first and the last: 2.5. Entropies 1, 2, 3: mean 2."""
    drawn = rollouts([[-1, -2, -3]])
    weight = torch.tensor([[0.5, 0.0, 0.25]])
    found = tracked(Batch(drawn, weight, torch.ones(1)), teacher=targets([[-2, 0, 1]]))
    assert found["selected_discrepancy"] == 2.5
    assert found["policy_entropy"] == 2.0


def test_failures_are_not_rewards():
    """Rewards 1 and 0.5 with two failures: the mean is 0.75, not 0.375."""
    answers = {"0": 1.0, "1": Failure("unreadable"), "2": 0.5, "3": Failure("timed out")}
    drawn = rollouts([[-1.0]] * 4, group_size=2)
    found = judge(lambda problem, text: answers[text], problems(2), drawn)
    assert found.valid.tolist() == [[True, False], [True, False]]
    assert found.values[found.valid].tolist() == [1.0, 0.5]
    assert tracked(Batch(drawn, torch.ones(4), torch.ones(4)), rewards=found)["reward"] == 0.75


@pytest.mark.parametrize(
    ("values", "valid", "share"),
    [
        ([[1, 1], [1, 0]], [[1, 1], [1, 1]], 0.5),
        ([[1, 0], [1, 0]], [[1, 0], [1, 1]], 0.5),  # the failure's place-holder is no second value
        ([[0, 0], [0, 0]], [[0, 0], [0, 0]], 1.0),
    ],
)
def test_a_group_has_no_variance_if_all_its_values_are_equal_failures_left_out(values, valid, share):
    rewards = Rewards(torch.tensor(values, dtype=torch.float64), torch.tensor(valid, dtype=torch.bool))
    drawn = rollouts([[-1.0]] * 4, group_size=2)
    assert tracked(Batch(drawn, torch.ones(4), torch.ones(4)), rewards=rewards)["zero_variance_groups"] == share


# -- evaluation -------------------------------------------------------------------------------------------------------


def problems(count: int) -> list[Problem]:
    """Problem i has the candidates 0, 1, 2, of which i % 3 is right and has the largest feature."""
    one_hot = np.eye(3)[:, :, None]
    words = ("0", "1", "2")
    return [Problem(str(i), "", words[i % 3], words, one_hot[i % 3][None]) for i in range(count)]


def evaluated(weight: float, accuracy, reward=None, teacher: float | None = None, count: int = 6):
    def policy(w):
        return Bandit().build(problems(count), {"weight": np.array([w])}, False)

    evaluator = Evaluator(tuple(problems(count)), accuracy, reward or accuracy)
    return evaluator(policy(weight), policy(0.0), None if teacher is None else policy(teacher))


def exact(problem, text):
    return float(problem.answer == text)


def test_a_point_is_greedy_accuracy_and_reward_with_exact_entropy_and_divergence():
    """p = (e, 1, 1) / (e + 2) against the uniform reference.

    Z = e + 2: H = log Z - e / Z, KL(p || uniform) = log 3 - H.
    """
    total = math.e + 2
    entropy = math.log(total) - math.e / total
    found = evaluated(1.0, exact, lambda problem, text: 0.5 + exact(problem, text))
    assert found == {
        "accuracy": 1.0,
        "mean_reward": 1.5,
        "entropy": pytest.approx(entropy, abs=1e-14),
        "kl_from_reference": pytest.approx(math.log(3) - entropy, abs=1e-14),
    }


def test_the_distance_to_the_teacher_is_there_where_there_is_one_and_is_that_of_the_student_from_it():
    """KL(uniform || t), t = (e, 1, 1) / Z: log Z - log 3 - 1/3."""
    apart = math.log(math.e + 2) - math.log(3) - 1 / 3
    assert evaluated(0.0, exact, teacher=1.0)["kl_from_teacher"] == pytest.approx(apart, abs=1e-14)
    assert "kl_from_teacher" not in evaluated(0.0, exact)


def test_a_failure_is_not_a_right_answer_and_not_a_reward_of_zero():
    """Six problems, two of them unreadable: accuracy 4/6, mean reward over the other four 1."""

    def grader(problem, text):
        return Failure("unreadable") if problem.id in ("0", "1") else exact(problem, text)

    found = evaluated(1.0, grader)
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["mean_reward"] == 1.0


# -- lost numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_lost_names_the_step_and_the_metric(value):
    with pytest.raises(NonFinite, match=rf"^step 17: loss is {value}\. The run stops here"):
        require_finite(17, {"entropy": 1.0, "loss": value})


def test_numbers_that_are_finite_pass():
    require_finite(1, {"loss": -0.0, "entropy": 1e308, "kl": -1e308})


def test_a_lost_number_is_an_arithmetic_error_so_that_the_command_line_reports_it():
    assert issubclass(NonFinite, ArithmeticError)


@pytest.mark.parametrize(
    ("name", "setting"), [("accuracy", "evaluation.accuracy"), ("mean_reward", "evaluation.reward")]
)
def test_a_judgement_that_is_no_number_is_laid_at_the_judge_s_door(name, setting):
    with pytest.raises(NonFinite, match=rf"{name} is nan.*look at what gives {setting}"):
        require_finite(0, {name: float("nan")})


def test_rewards_keep_the_precision_of_the_policy():
    drawn = replace(rollouts([[-1.0]]), logprobs=torch.zeros(1, 1, dtype=torch.float32))
    assert judge(exact, problems(1), drawn).values.dtype == torch.float32


def test_phases_inside_each_other_add_up_to_what_they_took_together(monkeypatch):
    """Refilled steps are judged while they are drawn; counted twice, they would cost more than the run."""
    from posttrain import phases

    clock = iter([0.0, 1.0, 3.0, 3.5, 4.0, 10.0])
    monkeypatch.setattr(phases.time, "perf_counter", lambda: next(clock))
    found = phases.Phases()
    with found.measure("sample"), found.measure("reward"):  # 0 to 3.5, 1 to 3
        pass
    with found.measure("update"):  # 4 to 10
        pass
    assert found.seconds == {"reward": 2.0, "sample": 1.5, "update": 6.0}
