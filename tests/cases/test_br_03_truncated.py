"""Case BR-03: truncated completions in the numerator, the denominator and the log."""

import math

import pytest
import scalar
import torch

from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.grpo import GRPO
from posttrain.batch import Rewards, Signals
from posttrain.registry import ConfigError
from posttrain.settings import load

A, B = [1.0] * 4, [1.0] * 8


@pytest.mark.parametrize("cut", [B, [9.0] * 8], ids=["of cost 1", "of cost 9"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_br_03_a_completion_cut_at_the_limit_counts_neither_above_nor_below(aggregation, cut):
    """BR-03, first batch: 4/4 = 1.0 (with the tokens of B below, 4/12 = 0.333), whatever the cut ones cost."""
    made = scalar.trainer([A, cut], [False, True], scalar.Priced(aggregation), mask_truncated=True)
    loss, gradient = scalar.priced(made)
    assert loss == pytest.approx(1.0, abs=1e-15)
    assert gradient == pytest.approx(1.0, abs=1e-15)


def test_br_03_lengths_and_the_truncated_share_are_those_of_what_was_drawn():
    """BR-03, the log: mean length (4 + 8) / 2 = 6.0 and truncated fraction 0.5; from the emptied mask it would be 2."""
    row = scalar.trainer([A, B], [False, True], mask_truncated=True).step(1)
    assert row["completion_length"] == 6.0
    assert row["truncated_fraction"] == 0.5
    assert row["sampled_positions"] == 12
    assert row["supervised_positions"] == 4


def test_br_03_a_batch_of_which_nothing_is_left_has_a_loss_and_gradient_of_zero_and_says_so():
    """BR-03, second batch: loss exactly 0.0, a finite gradient of zero, 0 trainable tokens counted."""
    made = scalar.trainer([A, B], [True, True], mask_truncated=True)
    row = made.step(1)
    assert row["loss"] == 0.0
    assert row["gradient_norm"] == 0.0
    assert row["supervised_positions"] == 0.0
    assert float(made.policy.weight.detach()) == 1.0
    assert all(math.isfinite(value) for value in row.values())


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_br_03_a_masked_micro_batch_beside_a_valid_one_does_not_halve_it(aggregation):
    """BR-03, third batch: micro-batches of one row; the loss is that of the valid one alone."""
    valid = [0.5, 2.0, 3.5]
    made = scalar.trainer(
        [valid, B], [False, True], scalar.Priced(aggregation), mask_truncated=True, micro_batch_size=1
    )
    assert scalar.priced(made) == pytest.approx(
        scalar.priced(scalar.trainer([valid], algorithm=scalar.Priced(aggregation))), abs=1e-15
    )


def test_br_03_without_the_option_every_token_counts():
    """BR-03: the option is off by default, and then 12 tokens of cost 1 make 1.0 over 12 positions."""
    row = scalar.trainer([A, B], [False, True]).step(1)
    assert (row["loss"], row["supervised_positions"]) == (1.0, 12)


@pytest.mark.parametrize(
    "algorithm", [DAPO(), DAPO(overlong_filter=False), GRPO(kl_coef=0.0), DrGRPO(length=8)], ids=str
)
def test_br_03_no_algorithm_divides_by_a_completion_that_it_leaves_out(algorithm):
    """BR-03: the filter of `dapo` and the option give the normaliser of the kept completion alone."""
    rollouts = scalar.completions([A, B], [False, True])
    rollouts = rollouts.rows(slice(0, 2))
    rollouts = type(rollouts)(**{**vars(rollouts), "group_size": 2})
    made = scalar.trainer(
        [A, B], [False, True], algorithm, mask_truncated=not getattr(algorithm, "overlong_filter", False)
    )
    rewards = Rewards(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool))
    batch = made._prepared(rollouts, Signals(rewards=rewards))
    assert batch.where.sum(1).tolist() == [4, 0]
    assert batch.weight[1].tolist() == [0.0] * 8
    assert batch.normaliser[1] == 0
    assert batch.normaliser[0] > 0


def test_br_03_a_pair_is_never_half_masked():
    """BR-03: to compare a completion with one that was emptied would teach nonsense."""
    with pytest.raises(ConfigError, match="mask_truncated: `dpo` compares the two completions of a pair"):
        load("dpo", overrides=["mask_truncated=true"])
