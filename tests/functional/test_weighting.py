"""Aggregations by hand and against whole-batch formulas (oracles E1-E7, F15; cases BR-01, BR-03)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.functional.divergences import log_softmax
from posttrain.functional.selection import Select, select
from posttrain.functional.surrogates import ppo_clip, reinforce
from posttrain.functional.weighting import (
    constant,
    sequence_mean,
    sequence_sum,
    sparse_kept,
    sparse_response_length,
    token_mean,
)

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
MEANS = [token_mean, sequence_mean]
F64 = torch.float64


def prefix_mask(*lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def settle(loss, weight, normaliser) -> torch.Tensor:
    """What the trainer does with unreduced losses."""
    total = normaliser.sum()
    return (weight * loss).sum() / total if total else (weight * loss).sum()


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=tolerance, rtol=0)


@st.composite
def masks(draw, smallest=0):
    rows, length = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    lengths = draw(st.lists(st.integers(smallest, length), min_size=rows, max_size=rows))
    return torch.arange(length) < torch.tensor(lengths)[:, None]


def test_the_table_of_the_design_row_by_row():
    """Lengths 2, 0, 4; kept: the first of row 0 and the last two of row 2."""
    mask = prefix_mask(2, 0, 4)
    kept = torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]]).bool()
    table = {
        "token": (token_mean(mask, F64), mask.double(), [2, 0, 4]),
        "sequence": (sequence_mean(mask, F64), [[0.5, 0.5, 0, 0], [0, 0, 0, 0], [0.25] * 4], [1, 0, 1]),
        "constant": (constant(mask, 8, F64), mask.double(), [8, 0, 8]),
        "sum": (sequence_sum(mask, F64), mask.double(), [1, 0, 1]),
        "sparse length": (
            sparse_response_length(mask, kept, F64),
            [[0.5, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0.25, 0.25]],
            [1, 0, 1],
        ),
        "sparse kept": (sparse_kept(kept, F64), kept.double(), [1, 0, 2]),
    }
    for (weight, normaliser), expected_weight, expected_normaliser in table.values():
        close(weight, expected_weight, 0)
        close(normaliser, expected_normaliser, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_and_normalisers_have_the_dtype_asked_for(dtype):
    mask = prefix_mask(2, 3)
    found = [token_mean(mask, dtype), sequence_mean(mask, dtype), constant(mask, 4, dtype), sequence_sum(mask, dtype)]
    found += [sparse_response_length(mask, mask, dtype), sparse_kept(mask, dtype)]
    for weight, normaliser in found:
        assert weight.dtype == normaliser.dtype == dtype
        assert weight.shape == mask.shape
        assert normaliser.shape == mask.shape[:1]


@pytest.mark.parametrize("mean", MEANS)
@PROPERTY
@given(masks(smallest=1), st.floats(-9, 9))
def test_the_mean_of_a_constant_is_the_constant(mean, mask, number):
    close(settle(torch.full(mask.shape, number, dtype=F64), *mean(mask, F64)), number)


@PROPERTY
@given(masks(), st.integers(1, 5), st.integers(0, 2**31))
def test_no_aggregation_depends_on_how_the_step_was_cut_permuted_or_padded(mask, part, seed):
    loss = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=F64)
    kept = mask & (loss > 0)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    for function in (
        lambda m, k: token_mean(m, F64),
        lambda m, k: sequence_mean(m, F64),
        lambda m, k: constant(m, 7, F64),
        lambda m, k: sequence_sum(m, F64),
        lambda m, k: sparse_response_length(m, k, F64),
        lambda m, k: sparse_kept(k, F64),
    ):
        weight, normaliser = function(mask, kept)
        whole = settle(loss, weight, normaliser)
        pieces = zip(*(x[order].split(part) for x in (mask, kept, loss)), strict=True)
        cut = [(function(m, k), x) for m, k, x in pieces]
        total = sum(n.sum() for (_, n), _ in cut)
        found = sum((w * x).sum() for (w, _), x in cut) / (total if total else 1)
        close(found, whole)
        padded = function(*(torch.nn.functional.pad(x, (0, 2)) for x in (mask, kept)))
        close(settle(torch.nn.functional.pad(loss, (0, 2), value=5), *padded), whole)


def test_br01_uneven_micro_batches_weigh_tokens_and_not_batches():
    """100 tokens at 2.0 and 900 at 0.5: (200 + 450)/1000 = 0.65, not (2.0 + 0.5)/2 = 1.25."""
    mask = prefix_mask(100, 900)
    loss = torch.tensor([[2.0], [0.5]]).double().expand(2, 900)
    close(settle(loss, *token_mean(mask, F64)), 0.65)


def test_br01_the_gradient_of_two_uneven_micro_batches():
    """Two tokens w·3 and eight w·1: (6 + 8)/10 = 1.4, not (3 + 1)/2 = 2."""
    w = torch.ones((), dtype=F64, requires_grad=True)
    mask = prefix_mask(2, 8)
    loss = w * torch.tensor([[3.0], [1.0]]).double().expand(2, 8)
    close(torch.autograd.grad(settle(loss, *token_mean(mask, F64)), w)[0], 1.4)


def test_br03_a_masked_completion_leaves_numerator_and_denominator():
    """4 tokens of loss 1 beside a truncated, masked completion: 4/4 = 1, not 4/12."""
    mask = prefix_mask(4, 8)
    mask[1] = False
    close(settle(torch.ones(2, 8).double(), *token_mean(mask, F64)), 1.0)


@pytest.mark.parametrize("mean", [*MEANS, sequence_sum, sparse_kept])
def test_br03_a_step_without_tokens_has_loss_and_gradient_zero(mean):
    loss = torch.randn(2, 3, dtype=F64, requires_grad=True)
    total = settle(loss, *mean(torch.zeros(2, 3, dtype=torch.bool), F64))
    assert total.item() == 0
    assert torch.equal(torch.autograd.grad(total, loss)[0], torch.zeros(2, 3).double())


def test_f15_equal_lengths_make_both_means_equal_and_uneven_ones_do_not():
    torch.manual_seed(0)
    loss = torch.randn(3, 4).double()
    equal, uneven = prefix_mask(3, 3, 3), prefix_mask(1, 4, 2)
    close(settle(loss[:, :3], *token_mean(equal, F64)), settle(loss[:, :3], *sequence_mean(equal, F64)))
    rows = torch.stack([loss[i][uneven[i]].mean() for i in range(3)])
    lengths = uneven.sum(1).double()
    close(settle(loss, *sequence_mean(uneven, F64)), rows.mean())
    close(settle(loss, *token_mean(uneven, F64)), (lengths / lengths.sum() * rows).sum())
    assert (settle(loss, *token_mean(uneven, F64)) - rows.mean()).abs() > 1e-3


def test_the_constant_and_the_sum_are_averages_over_rows():
    """Row sums 3 and 1 over C = 4 and two rows: 4/8; the plain sum per row: 4/2."""
    mask = prefix_mask(3, 1)
    ones = torch.ones(2, 3).double()
    close(settle(ones, *constant(mask, 4, F64)), 0.5)
    close(settle(ones, *sequence_sum(mask, F64)), 2.0)


class Student:
    """A tabular student of T = 9 tokens and V = 7, with sampled tokens and a teacher's credit: one row [1, T]."""

    def __init__(self, at_rest=False):
        torch.manual_seed(0)
        self.logits = torch.randn(9, 7).double().requires_grad_()
        logp = torch.log_softmax(self.logits, 1)
        teacher = logp.detach() if at_rest else torch.log_softmax(torch.randn(9, 7).double(), 1)
        self.tokens = torch.multinomial(logp.detach().exp(), 1)
        self.p = logp.detach().exp()
        self.logprobs = logp.gather(1, self.tokens).T
        self.credit = (teacher.gather(1, self.tokens).T - self.logprobs).detach()
        self.mask = torch.ones(1, 9, dtype=torch.bool)

    def keep(self, rule):
        return select(rule, self.credit, self.mask, 1, torch.zeros(1, 4, dtype=torch.int64))

    def loss(self, kept, by_length=True):
        loss = ppo_clip(self.logprobs - self.logprobs.detach(), self.credit, 0.2, 0.2)
        table = sparse_response_length(self.mask, kept, F64) if by_length else sparse_kept(kept, F64)
        return settle(loss, *table)

    def gradient(self, loss):
        return torch.autograd.grad(loss, self.logits, retain_graph=True)[0]


@pytest.fixture
def student():
    return Student()


@pytest.mark.parametrize("by_length", [True, False])
def test_e1_keeping_everything_is_dense_distillation(student, by_length):
    dense = reinforce(student.logprobs, student.credit).mean()
    found = student.loss(student.keep(Select("top_fraction", fraction=1)), by_length)
    close(found, -student.credit.mean())
    close(student.gradient(found), student.gradient(dense))


def test_e2_one_random_token_is_dense_over_the_length_or_dense_itself(student):
    one_hot = torch.eye(9, dtype=torch.bool)[:, None]
    dense = student.loss(student.mask)
    by_length = torch.stack([student.loss(kept) for kept in one_hot]).mean()
    by_kept = torch.stack([student.loss(kept, by_length=False) for kept in one_hot]).mean()
    for found, expected in ((by_length, dense / 9), (by_kept, dense)):
        close(found, expected.detach())
        close(student.gradient(found), student.gradient(expected))


def test_e3_extremes_are_lowest_plus_highest_under_the_response_length(student):
    both, low, high = (student.loss(student.keep(Select(rule))) for rule in ("extremes", "lowest", "highest"))
    close(both, (low + high).detach())
    close(student.gradient(both), student.gradient(low + high))


def test_e4_e5_dropped_tokens_get_exactly_nothing_and_kept_ones_their_bounded_share(student):
    """-(A_t/|y|)(e_y - π), whose norm is at most sqrt(2) |A_t| / |y|."""
    kept = student.keep(Select("extremes"))
    gradient = student.gradient(student.loss(kept))
    assert torch.equal(gradient[~kept[0]], torch.zeros(7, 7).double())
    sampled = torch.nn.functional.one_hot(student.tokens[:, 0], 7)
    expected = -(student.credit.T * (sampled - student.p)) / 9
    close(gradient[kept[0]], expected[kept[0]])
    assert (gradient.norm(dim=1) <= math.sqrt(2) * student.credit[0].abs() / 9 + 1e-12).all()


def test_e6_the_first_step_of_adam_does_not_see_the_normaliser(student):
    kept = student.keep(Select("extremes"))
    by_length, by_kept = (student.gradient(student.loss(kept, by_length)) for by_length in (True, False))
    close(by_kept, 4.5 * by_length)
    close(by_length / (by_length.abs() + 1e-12), by_kept / (by_kept.abs() + 1e-12), 1e-6)


def test_e7_a_student_equal_to_its_teacher_is_at_rest_under_any_selection():
    student = Student(at_rest=True)
    for rule in ("all", "extremes", "tails", "random"):
        for by_length in (True, False):
            gradient = student.gradient(student.loss(student.keep(Select(rule, k=3)), by_length))
            assert torch.equal(gradient, torch.zeros(9, 7).double())


def test_a_selection_does_not_change_the_denominator_of_the_response_length():
    """Loss 1 everywhere, 2 of 9 tokens kept: 2/9, where dividing by what is kept gives 1."""
    mask = torch.ones(1, 9, dtype=torch.bool)
    kept = mask & (torch.arange(9) < 2)
    close(settle(torch.ones(1, 9).double(), *sparse_response_length(mask, kept, F64)), 2 / 9)
    close(settle(torch.ones(1, 9).double(), *sparse_kept(kept, F64)), 1.0)


def test_a_weight_of_zero_gives_an_exactly_zero_gradient_beside_banned_tokens():
    logits = torch.randn(2, 3, 5).double()
    logits[..., 4] = -math.inf
    logits.requires_grad_()
    mask = prefix_mask(3, 1)
    logprobs = log_softmax(logits)[..., 0]
    for loss in (reinforce(logprobs, logprobs), ppo_clip(logprobs - logprobs.detach(), logprobs, 0.2, 0.2)):
        gradient = torch.autograd.grad(settle(loss, *token_mean(mask, F64)), logits, retain_graph=True)[0]
        assert gradient.isfinite().all()
        assert torch.equal(gradient[~mask], torch.zeros(2, 5).double())
        assert torch.equal(gradient[..., 4], torch.zeros(2, 3).double())
        assert (gradient[mask].abs().sum(1) > 0).all()


def test_types_that_cannot_count_and_lengths_that_cannot_divide_are_refused():
    mask = prefix_mask(2, 3)
    with pytest.raises(TypeError, match=r"dtype: found torch.bfloat16, expected torch.float32 or torch.float64"):
        token_mean(mask, torch.bfloat16)
    with pytest.raises(TypeError, match=r"mask: found torch.float32 of shape \(2, 3\), expected torch.bool \[B, T\]"):
        sequence_mean(mask.float())
    with pytest.raises(ValueError, match=r"length: found 0, expected a number above 0"):
        constant(mask, 0)


def test_a_masked_completion_beside_a_valid_one_does_not_halve_the_loss():
    """Every token loss is 1: four tokens of a valid row over that one row are 1, not 1/2; both masked give 0 over 0."""
    mask = prefix_mask(4, 0)
    for function in (sequence_mean, token_mean):
        weight, normaliser = function(mask, F64)
        assert weight.sum() / normaliser.sum() == 1
        weight, normaliser = function(prefix_mask(0, 0), F64)
        assert weight.sum() == normaliser.sum() == 0
