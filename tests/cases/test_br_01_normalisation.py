"""Case BR-01: a token's weight depends on how the batch was cut."""

from dataclasses import replace

import pytest
import scalar
import tiny_lm
import torch
from test_lm_laws import LM, trainer_for

from posttrain.algorithms.gkd import GKD
from posttrain.testing import prepare, price


@pytest.mark.parametrize("micro", [None, 1, 2])
def test_br_01_a_the_loss_of_two_micro_batches_is_the_mean_over_all_tokens(micro):
    """BR-01 (a): 100 tokens of mean loss 2.0 and 900 of 0.5 make 0.65; the mean of means would be 1.25."""
    loss, _ = scalar.priced(scalar.trainer([[2.0] * 100, [0.5] * 900], micro_batch_size=micro))
    assert loss == pytest.approx(0.65, abs=1e-12)


@pytest.mark.parametrize(("aggregation", "gradient"), [("token_mean", 1.4), ("sequence_mean", 2.0)])
@pytest.mark.parametrize("micro", [None, 1])
def test_br_01_b_the_gradient_is_that_of_one_pass_over_all_tokens(aggregation, gradient, micro):
    """BR-01 (b): two tokens x = 3, eight x = 1: 14/10. Where sequences count the same it is (3 + 1) / 2, by intent."""
    made = scalar.trainer([[3.0] * 2, [1.0] * 8], algorithm=scalar.Priced(aggregation), micro_batch_size=micro)
    assert scalar.priced(made)[1] == pytest.approx(gradient, abs=1e-12)


def test_br_01_c_the_short_last_window_is_divided_by_what_is_in_it():
    """BR-01 (c): 10 equal micro-batches of gradient 1, 4 to an update, rate 0.1: 3 updates move w by -0.30."""
    made = scalar.trainer([[1.0]] * 10, micro_batch_size=1, minibatch_problems=4)
    updates = []
    made.optimizer.register_step_post_hook(lambda *_: updates.append(1))
    made.step(1)
    assert len(updates) == 3
    assert float(made.policy.weight.detach()) - 1 == pytest.approx(-0.30, abs=1e-12)


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
def test_br_01_d_a_distillation_batch_has_one_gradient_however_it_is_split(kind):
    """BR-01 (d): 8 sequences of lengths 1..8 as 1x8, 2x4, 4x2, 8x1, float32, to 1e-6; one float64 pass agrees."""
    found, single = {}, None
    for dtype in ("float32", "float64"):
        setting = replace(LM, problems=8, group_size=1)
        made = trainer_for(GKD(kind, student_share=0.0), setting, dtype, max_completion_tokens=8)
        if single is not None:  # the very same weights
            made.policy.load_state_dict(single.policy.state_dict())
            made.teacher.policy.load_state_dict(single.teacher.policy.state_dict())
        single = made
        words = [(" ".join(["w5"] * length),) for length in range(8)]
        problems = [replace(p, responses=w) for p, w in zip(tiny_lm.problems(8), words, strict=True)]
        rollouts = made.policy.respond(problems, 0, 1)
        assert rollouts.mask.sum(1).tolist() == list(range(1, 9))
        step = prepare(made, problems, rollouts)
        found[dtype] = {rows: price(made, step, micro=rows).gradient.double() for rows in (8, 4, 2, 1)}
    exact = found["float64"][8]
    size = float(exact.abs().max())
    for rows, gradient in found["float32"].items():
        assert float((gradient - found["float32"][8]).abs().max()) <= 1e-6 * size, rows
        assert float((gradient - exact).abs().max()) <= 1e-5 * size, rows
    for rows, gradient in found["float64"].items():
        torch.testing.assert_close(gradient, exact, rtol=0, atol=1e-10 * size, msg=str(rows))
