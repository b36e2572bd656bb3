"""The loop: what one optimizer step does, number by number, and what a run leaves behind."""

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from posttrain import settings
from posttrain.algorithms.base import Algorithm
from posttrain.assembly import assemble
from posttrain.batch import SOURCES, Batch, Problem
from posttrain.policies.candidate import Bandit
from posttrain.registry import ConfigError
from posttrain.rewards.exact import Exact
from posttrain.tracking import Evaluator, NonFinite
from posttrain.trainer import Optimization, Trainer


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Imitate(Algorithm):
    """-log pi of the data row, every row the same: with two candidates everything can be worked out by hand."""

    rollouts = "data"

    @property
    def needs(self):
        return frozenset()

    def prepare(self, rollouts, signals):
        return Batch(rollouts, rollouts.mask.double(), rollouts.mask.sum(1).double())

    def loss(self, scores, batch):
        return -scores.logprobs


def two_candidates(*columns: float, count: int = 1) -> list[Problem]:
    """Candidate 0 has the features `columns`, candidate 1 their opposite, and candidate 0 is right.

    At weight w the log-odds are 2 c.w, so the gradient of -log p(0) is -(1 - tanh(c.w)) c: at zero it is -c.
    """
    features = np.array([columns, [-c for c in columns]])[None]
    return [Problem(str(i), "", "0", ("0", "1"), features, responses=("0",)) for i in range(count)]


def trainer(problems=None, algorithm=None, policy=None, **options) -> Trainer:
    problems = problems or two_candidates(1.0)
    student = (policy or Bandit()).build(problems, {}, False)
    options = Optimization(**{"optim": "sgd", "learning_rate": 0.1, "steps": 4, **options})
    evaluator = Evaluator(tuple(problems), Exact(), Exact())
    algorithm = algorithm or Imitate()
    return Trainer(algorithm, student, student.snapshot(), None, problems, Exact(), evaluator, options, seed=0)


def weights(of: Trainer) -> list[float]:
    return of.policy.weight.tolist()


def descent(rates, start: float = 0.0) -> list[float]:
    """The weight after each update w <- w + rate (1 - tanh w) of `two_candidates(1.0)`."""
    w, path = start, []
    for rate in rates:
        w += rate * (1 - math.tanh(w))
        path.append(w)
    return path


def walked(of: Trainer, steps: int) -> list[float]:
    path = []
    for step in range(1, steps + 1):
        of.step(step)
        path += weights(of)
    return path


# -- optimizers -------------------------------------------------------------------------------------------------------


def test_sgd_takes_the_gradient_times_the_rate():
    """w = 0: gradient -1, loss log 2. Then w = 0.1: gradient -(1 - tanh 0.1)."""
    of = trainer()
    first = of.step(1)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-15)
    assert first["gradient_norm"] == pytest.approx(1.0, abs=1e-15)
    assert weights(of) == pytest.approx([0.1], abs=1e-15)
    assert of.step(2)["gradient_norm"] == pytest.approx(1 - math.tanh(0.1), abs=1e-15)
    assert weights(of) == pytest.approx([0.1 + 0.1 * (1 - math.tanh(0.1))], abs=1e-15)


def test_sgd_decays_by_the_gradient_of_half_the_squared_norm():
    """w1 = 0.1. w2 = w1 + 0.1 ((1 - tanh w1) - 0.5 w1)."""
    expected = 0.1 + 0.1 * ((1 - math.tanh(0.1)) - 0.5 * 0.1)
    assert walked(trainer(weight_decay=0.5), 2) == pytest.approx([0.1, expected], abs=1e-15)


def test_adamw_takes_the_ratio_of_its_averages_and_decays_apart_from_the_gradient():
    """beta1 0.5, beta2 0.25, epsilon 1, decay 0.2, rate 0.1, from w = 0 with gradients g1 = -1, g2 = -(1 - tanh w1).

    Update 1: m / (1 - 0.5) = g1, v / (1 - 0.25) = g1^2: w1 = 0.1 * 1 / (1 + 1) = 0.05.
    Update 2: m = 0.25 g1 + 0.5 g2 over 0.75, v = 0.1875 g1^2 + 0.75 g2^2 over 0.9375,
    w2 = w1 (1 - 0.02) - 0.1 m / (sqrt(v) + 1).
    """
    of = trainer(optim="adamw_torch", adam_beta1=0.5, adam_beta2=0.25, adam_epsilon=1.0, weight_decay=0.2)
    g1, g2 = -1.0, -(1 - math.tanh(0.05))
    m, v = (0.25 * g1 + 0.5 * g2) / 0.75, (0.1875 * g1**2 + 0.75 * g2**2) / 0.9375
    assert walked(of, 2) == pytest.approx([0.05, 0.05 * 0.98 - 0.1 * m / (math.sqrt(v) + 1)], abs=1e-15)


def test_the_first_adamw_update_is_the_rate_whatever_the_size_of_the_gradient():
    for size in (1e-3, 1.0, 1e3):
        of = trainer(two_candidates(size), optim="adamw_torch")
        of.step(1)
        assert weights(of) == pytest.approx([0.1], rel=1e-4)


# -- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({}, [1, 1, 1, 1]),
        ({"warmup_steps": 3}, [1 / 3, 2 / 3, 1, 1]),
        ({"lr_scheduler_type": "linear"}, [1, 3 / 4, 2 / 4, 1 / 4]),
        (
            {"lr_scheduler_type": "cosine"},  # (1 + cos(0, 45, 90, 135 degrees)) / 2
            [1, 0.5 + math.sqrt(0.5) / 2, 0.5, 0.5 - math.sqrt(0.5) / 2],
        ),
        ({"lr_scheduler_type": "linear", "warmup_steps": 2}, [1 / 2, 1, 1, 1 / 2]),
    ],
    ids=["constant", "warm-up", "linear", "cosine", "both"],
)
def test_the_rate_of_each_of_four_steps_is_what_the_schedule_says(options, factors):
    of = trainer(**options)
    assert walked(of, 4) == pytest.approx(descent([0.1 * factor for factor in factors]), abs=1e-14)


@pytest.mark.parametrize(("options", "updates"), [({"num_iterations": 3}, 3), ({"minibatch_problems": 1}, 2)])
def test_a_schedule_runs_over_the_steps_of_the_run_however_many_updates_a_step_makes(options, updates):
    """Four steps at rates 0.1, 0.075, 0.05 and 0.025, each for all updates of its step: the last one still moves."""
    of = trainer(problems_per_step=2, lr_scheduler_type="linear", **options)
    rates = [0.1 * factor for factor in (1, 3 / 4, 2 / 4, 1 / 4) for _ in range(updates)]
    assert walked(of, 4) == pytest.approx(descent(rates)[updates - 1 :: updates], abs=1e-14)


# -- bounds on the gradient -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "step"),
    [
        ({}, [3.0, 4.0]),
        ({"max_grad_norm": 5.5}, [3.0, 4.0]),
        ({"max_grad_norm": 1.0}, [0.6, 0.8]),
        ({"max_grad_value": 3.5}, [3.0, 3.5]),
        ({"max_grad_norm": 2.5, "max_grad_value": 1.75}, [1.5, 1.75]),  # (1.5, 2) after the norm
    ],
)
def test_gradients_are_bounded_as_a_whole_and_then_by_component_and_reported_as_they_were(options, step):
    """Features (3, 4): the gradient at zero is (-3, -4), of norm 5. torch divides by norm + 1e-6."""
    of = trainer(two_candidates(3.0, 4.0), **options)
    assert of.step(1)["gradient_norm"] == pytest.approx(5.0, abs=1e-12)
    assert weights(of) == pytest.approx([0.1 * value for value in step], rel=3e-7)


# -- passes and parts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        ({}, 1),
        ({"num_iterations": 3}, 3),
        ({"minibatch_problems": 2}, 3),
        ({"minibatch_problems": 5}, 1),
        ({"minibatch_problems": 1, "num_iterations": 2}, 10),
    ],
)
def test_a_step_makes_one_update_a_minibatch_and_pass_each_from_the_weights_before_it(options, updates):
    """Five problems alike; the loss of the step is the mean over its updates of log(1 + exp(-2 w))."""
    of = trainer(problems_per_step=5, **options)
    path = descent([0.1] * updates)
    losses = [math.log1p(math.exp(-2 * w)) for w in [0.0, *path[:-1]]]
    assert of.step(1)["loss"] == pytest.approx(sum(losses) / updates, abs=1e-14)
    assert weights(of) == pytest.approx(path[-1:], abs=1e-14)


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_micro_batches_change_memory_and_nothing_else(rows):
    of = trainer(problems_per_step=5, micro_batch_size=rows)
    of.step(1)
    assert weights(of) == pytest.approx([0.1], abs=1e-15)


def configured(name, **raw) -> Trainer:
    """A small trainer over `decisions` or `preferences` from settings."""
    data = {
        "dataset": {"name": "decisions", "train_examples": 6, "validation_examples": 3, "positions": 4},
        "policy": {"name": "factored", "start": "student"},
        "teacher": {"name": "frozen"},
        "reward": "positions",
        "evaluation": {"accuracy": "positions", "reward": "positions"},
        "problems_per_step": 4,
        "group_size": 2,
        "steps": 3,
        "learning_rate": 0.02,
    }
    return assemble(settings.resolve({**data, **raw}, name), 0)


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        ({}, 3),
        ({"num_iterations": 2}, 6),
        ({"minibatch_problems": 1}, 12),
        ({"minibatch_problems": 3, "num_iterations": 2}, 12),
    ],
)
def test_the_critic_is_updated_once_a_minibatch_and_pass(options, updates):
    """Three steps of four problems: 3 x passes x ceil(4 / minibatch)."""
    of = configured("ppo", **options)
    before = of.policy.critic.detach().clone()
    assert of.run().critic_updates == updates
    assert not torch.equal(of.policy.critic, before)


def test_without_a_critic_none_is_updated():
    of = configured("grpo", num_iterations=2)
    assert of.run().critic_updates == 0
    assert of.policy.critic is None


def test_a_second_pass_prices_the_moved_policy_against_the_one_that_sampled():
    """With one pass every ratio is 1; with two the second one has moved."""
    assert configured("grpo").step(1)["ratio"] == 1.0
    twice = configured("grpo", num_iterations=2, learning_rate=0.3).step(1)
    assert twice["ratio"] != pytest.approx(1.0, abs=1e-6)


# -- where completions come from --------------------------------------------------------------------------------------


def sources(of: Trainer, steps: int = 1) -> Counter:
    drawn = [of._rollouts(step)[1] for step in range(1, steps + 1)]
    return Counter(SOURCES[i] for rollouts in drawn for i in rollouts.source.tolist())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.75, 1.0])
def test_the_student_draws_its_share_of_the_problems(share):
    """2000 coins: four standard deviations of the share are at most 0.045."""
    algorithm = {"student_share": share}
    of = configured("gkd", algorithm=algorithm, group_size=1, problems_per_step=40)
    found = sources(of, 50)
    assert found["student"] / 2000 == pytest.approx(share, abs=0.045 * (0 < share < 1))
    assert found["student"] + found["data"] == 2000


def test_a_mixture_keeps_the_order_of_the_problems_and_their_data_rows():
    of = configured("gkd", algorithm={"student_share": 0.5}, group_size=1, problems_per_step=30)
    problems, rollouts = of._rollouts(1)
    assert rollouts.problem_ids == tuple(problem.id for problem in problems)
    assert set(rollouts.source.tolist()) == {0, 2}
    for problem, text, source in zip(problems, rollouts.texts, rollouts.source.tolist(), strict=True):
        assert source == 0 or text == problem.answer
    mine = rollouts.source == 0
    assert (rollouts.logprobs[mine] != 0).all()
    assert not rollouts.logprobs[~mine].any()


def test_coins_belong_to_seed_step_and_place_and_not_to_the_stream():
    of = configured("gkd", algorithm={"student_share": 0.5}, group_size=1, problems_per_step=30)
    first, second = (of._rollouts(7)[1].source for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, of._rollouts(8)[1].source)


def test_completions_drawn_once_are_used_throughout():
    of = configured("lightning-opd", teacher={"name": "frozen"}, group_size=1, problems_per_step=30)
    of._sample_once()
    seen = {}
    for step in range(1, 4):
        for name, text in zip(*(lambda r: (r.problem_ids, r.texts))(of._rollouts(step)[1]), strict=True):
            assert seen.setdefault(name, text) == text
    assert len(seen) == 6


def test_data_rows_and_pairs_must_be_as_many_as_a_group():
    with pytest.raises(ConfigError, match="group_size"):
        configured("gkd", group_size=2)
    with pytest.raises(ConfigError, match=r"needs pairs .* Write dataset=preferences"):
        configured("dpo")


# -- numbers that are lost --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Break(Imitate):
    """Loses a number at one step and in one minibatch: in the loss, in its gradient, or in a diagnostic."""

    where: str = "loss"
    step: int = 3
    row: int = 0

    def loss(self, scores, batch):
        loss = -scores.logprobs
        if int(batch.rollouts.keys[0, 1]) != self.step or not (batch.advantages[:, 0] == self.row).any():
            return loss
        if self.where == "loss":
            return loss * math.nan
        if self.where == "infinite":
            return loss + math.inf
        if self.where == "gradient":
            return loss + (scores.logprobs - scores.logprobs.detach()).abs().sqrt()  # 0, with an infinite slope
        return loss

    def prepare(self, rollouts, signals):
        rows = torch.arange(len(rollouts.texts)).double().unsqueeze(1)
        return replace(super().prepare(rollouts, signals), advantages=rows)

    def diagnostics(self, scores, batch):
        lost = self.where == "diagnostic" and int(batch.rollouts.keys[0, 1]) == self.step
        return {"extra": torch.full_like(scores.logprobs, math.nan if lost else 1.0)}


@pytest.mark.parametrize("where", ["loss", "infinite", "gradient"])
def test_a_lost_number_stops_the_run_names_the_step_and_leaves_the_weights_as_they_were(where):
    of = trainer(algorithm=Break(where=where), steps=10)
    with pytest.raises(NonFinite, match=r"^step 3: (loss|gradient_norm) is (nan|inf)\."):
        of.run()
    assert weights(of) == pytest.approx(descent([0.1, 0.1])[-1:], abs=1e-15)


@pytest.mark.parametrize("row", [0, 1, 2])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_number_lost_in_any_minibatch_stops_the_run_before_the_next_one(where, row):
    of = trainer(
        algorithm=Break(where=where, row=row), steps=10, problems_per_step=3, minibatch_problems=1, num_iterations=2
    )
    with pytest.raises(NonFinite, match=r"^step 3: (loss|gradient_norm) is (nan|inf)\."):
        of.run()
    assert weights(of) == pytest.approx(descent([0.1] * (2 * 6 + row))[-1:], abs=1e-14)


def test_a_diagnostic_that_is_lost_stops_the_run_too():
    with pytest.raises(NonFinite, match=r"^step 3: extra is nan\."):
        trainer(algorithm=Break(where="diagnostic"), steps=10).run()


def test_an_evaluation_that_is_lost_stops_the_run_and_names_the_step():
    of = trainer(steps=10)
    point, calls = of.evaluator, []

    def evaluator(*policies):
        calls.append(1)
        return {**point(*policies), "entropy": math.nan if len(calls) == 3 else 1.0}

    of.evaluator = evaluator
    with pytest.raises(NonFinite, match=r"^step 2: entropy is nan\."):
        of.run()


# -- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"steps": 1}, [1]),
        ({"steps": 7}, [1, 2, 3, 4, 5, 6, 7]),
        ({"steps": 25}, [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 25]),
        ({"steps": 10, "eval_steps": 4}, [1, 4, 8, 10]),
        ({"steps": 10, "eval_steps": 99}, [1, 10]),
    ],
)
def test_the_history_has_a_row_after_the_first_update_every_tenth_of_the_run_and_the_last(options, steps):
    rows = []
    of = trainer(**options)
    of.report = rows.append
    outcome = of.run()
    assert [row["step"] for row in outcome.history] == steps
    assert [row["step"] for row in rows] == list(range(1, options["steps"] + 1))
    assert [row["step"] for row in rows if "accuracy" in row] == steps
    assert outcome.final == {name: v for name, v in outcome.history[-1].items() if name not in ("step", "loss")}


def test_the_history_measures_after_the_update_and_its_loss_is_from_before():
    """After one update w = 0.1: entropy of p(0) = 1 / (1 + exp(-0.2)); the loss is still log 2."""
    outcome = trainer(steps=1).run()
    p = 1 / (1 + math.exp(-0.2))
    assert outcome.history[0]["loss"] == pytest.approx(math.log(2), abs=1e-15)
    assert outcome.final["entropy"] == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), abs=1e-14)
    assert outcome.baseline["entropy"] == pytest.approx(math.log(2), abs=1e-15)
    assert outcome.last_diagnostics["loss"] == outcome.history[0]["loss"]


def test_samples_and_evaluations_do_not_touch_the_stream_of_training():
    plain, watched = configured("grpo"), configured("grpo")
    for step in range(1, 4):
        plain.step(step)
        watched.samples()
        watched._evaluate(step)
        watched.step(step)
    assert torch.equal(plain.policy.weight, watched.policy.weight)
    assert plain.samples() == watched.samples()


def test_samples_show_the_first_held_out_problems():
    of = configured("grpo")
    found = of.samples(2)
    assert [row["problem"] for row in found] == ["0/validation/0", "0/validation/1"]
    assert all(row["answer"] == p.answer for row, p in zip(found, of.evaluator.problems, strict=False))
    assert all(len(row["completion"].split()) == 4 for row in found)


def test_a_step_in_which_nothing_counts_leaves_the_weights_and_has_a_loss_of_minus_zero():
    @dataclass(frozen=True)
    class Nothing(Imitate):
        def prepare(self, rollouts, signals):
            return Batch(rollouts, torch.zeros_like(rollouts.logprobs), torch.zeros(len(rollouts.texts)))

    of = trainer(algorithm=Nothing())
    found = of.step(1)
    assert weights(of) == [0.0]
    assert found["loss"] == 0
    assert math.copysign(1, found["loss"]) == -1
    assert found["gradient_norm"] == found["supervised_positions"] == found["supervision_fraction"] == 0


@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "opd", "tip"])
def test_a_trainer_made_of_the_same_problems_after_another_has_trained_starts_where_that_one_started(algorithm):
    """Training once moved the dataset's own checkpoint: every later arm started from trained weights."""
    config = configured(algorithm).options
    problems = config.dataset.build(0)
    first = assemble(config, 0, problems=problems)
    start = first.policy.weight.detach().clone()
    ended = first.run()
    assert not torch.equal(first.policy.weight, start)
    second = assemble(config, 0, problems=problems)
    assert torch.equal(second.policy.weight, start)
    again = second.run()
    assert (again.baseline, again.history) == (ended.baseline, ended.history)


def test_the_reference_and_the_teacher_stay_where_they_started():
    of = configured("grpo", algorithm={"kl_coef": 0.1})
    before = [p.weight.detach().clone() for p in (of.reference, of.teacher.policy)]
    of.run()
    assert all(torch.equal(p.weight, w) for p, w in zip((of.reference, of.teacher.policy), before, strict=True))
    assert not torch.equal(of.policy.weight, of.reference.weight)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("problems_per_step", 0),
        ("group_size", 0),
        ("num_iterations", 0),
        ("warmup_steps", -1),
        ("minibatch_problems", 0),
        ("micro_batch_size", 0),
        ("eval_steps", 0),
        ("learning_rate", 0.0),
        ("learning_rate", -1.0),
        ("learning_rate", math.inf),
        ("learning_rate", math.nan),
        ("max_grad_norm", 0.0),
        ("max_grad_norm", math.nan),
        ("max_grad_value", -5.0),
        ("adam_beta1", 1.0),
        ("adam_beta2", -0.1),
        ("adam_epsilon", -1e-8),
        ("weight_decay", -0.1),
        ("weight_decay", math.nan),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_name_with_what_was_found(name, value):
    with pytest.raises(ConfigError, match=rf"^{name}: found {value}, expected \S+"):
        Optimization(**{name: value})
