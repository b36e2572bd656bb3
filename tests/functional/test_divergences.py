"""Divergences against exact enumeration in float64 (oracles A1-A6, C1-C2, D1-D4, F18, H1-H2, H12, H15)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.functional.divergences import (
    Divergence,
    Estimator,
    divergence,
    entropy,
    forward_kl,
    jsd,
    kl_estimator,
    log_softmax,
    logit_gradient,
    reverse_kl,
    with_tail,
)
from posttrain.functional.surrogates import reinforce

V, INF = 7, math.inf
PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)
KINDS: list[Divergence] = ["forward_kl", "reverse_kl", "jsd"]
ESTIMATORS: list[Estimator] = ["k1", "k2", "k3", "k3_plus", "ratio_k3"]


class Bandit:
    """One softmax over V candidates, a teacher and an older policy; probabilities by hand, all float64 [V]."""

    def __init__(self):
        torch.manual_seed(0)
        self.theta = torch.randn(V).double().requires_grad_()
        self.logp = torch.log_softmax(self.theta, 0)
        self.logq = torch.log_softmax(torch.randn(V).double(), 0)
        self.logold = torch.log_softmax(torch.randn(V).double(), 0)
        self.p, self.q = self.logp.detach().exp(), self.logq.exp()
        self.rkl = float((self.p * (self.p / self.q).log()).sum())
        self.fkl = float((self.q * (self.q / self.p).log()).sum())
        self.rkl_gradient = self.p * ((self.p / self.q).log() - self.rkl)
        self.fkl_gradient = self.p - self.q

    def gradient(self, loss):
        return torch.autograd.grad(loss, self.theta, retain_graph=True)[0]

    def expected(self, kind, **options):
        """Expectation at fixed samples drawn from the policy."""
        return (self.p * kl_estimator(kind, self.logp, self.logq, **options)).sum()


@pytest.fixture
def bandit():
    return Bandit()


def f64(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def close(found, expected, tolerance=1e-9):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=tolerance, rtol=0)


@st.composite
def two_logits(draw):
    size = draw(st.integers(2, 9))
    numbers = st.lists(st.floats(-12, 12), min_size=size, max_size=size)
    return f64(draw(numbers)), f64(draw(numbers))


def test_a1_k1_and_k3_have_the_kl_as_their_mean_and_k2_has_not(bandit):
    assert bandit.expected("k1").item() == pytest.approx(bandit.rkl, abs=1e-12)
    assert bandit.expected("k3").item() == pytest.approx(bandit.rkl, abs=1e-12)
    assert bandit.expected("k3_plus").item() == pytest.approx(bandit.rkl, abs=1e-12)
    assert abs(bandit.expected("k2").item() - bandit.rkl) > 1e-3


@PROPERTY
@given(st.floats(-60, 60))
def test_a1_k3_is_never_negative_and_k1_may_be(d):
    logprobs, reference = f64(d), torch.zeros(()).double()
    assert kl_estimator("k3", logprobs, reference) >= 0
    assert kl_estimator("k3_plus", logprobs, reference) >= 0
    assert kl_estimator("k1", logprobs, reference) == d


def test_estimators_by_hand():
    """d = log 2: k1 = 0.693147, k2 = 0.240227, k3 = ½ - 1 + log 2 = 0.193147; at r = 3, r k3 = 0.579442."""
    logprobs, reference = f64([math.log(0.5)]), f64([math.log(0.25)])
    expected: dict[Estimator, float] = {
        "k1": 0.693147,
        "k2": 0.240227,
        "k3": 0.193147,
        "k3_plus": 0.193147,
        "ratio_k3": 0.193147,
    }
    for kind, value in expected.items():
        close(kl_estimator(kind, logprobs, reference), [value], 1e-6)
    close(kl_estimator("ratio_k3", logprobs, reference, f64([3.0]).log()), [0.579442], 1e-6)


def test_a2_each_estimator_has_the_expected_gradient_its_table_says(bandit):
    close(bandit.gradient(bandit.expected("k1")), torch.zeros(V))
    close(bandit.gradient(bandit.expected("k2")), bandit.rkl_gradient)
    close(bandit.gradient(bandit.expected("k3")), bandit.fkl_gradient)


def test_a3_the_score_function_form_has_the_gradient_of_the_reverse_kl(bandit):
    k1 = kl_estimator("k1", bandit.logp, bandit.logq).detach()
    close(bandit.gradient((bandit.p * reinforce(bandit.logp, -k1)).sum()), bandit.rkl_gradient)


def test_a4_the_ratio_corrects_k3_for_tokens_of_an_older_policy(bandit):
    estimate = kl_estimator("ratio_k3", bandit.logp, bandit.logq, bandit.logp - bandit.logold)
    close((bandit.logold.exp() * estimate).sum(), bandit.rkl)
    close(bandit.gradient((bandit.logold.exp() * estimate).sum()), bandit.rkl_gradient)
    close(bandit.gradient(bandit.expected("ratio_k3")), bandit.rkl_gradient)


def test_a5_logit_gradients_of_both_kls(bandit):
    close(reverse_kl(bandit.logp, bandit.logq), bandit.rkl)
    close(forward_kl(bandit.logp, bandit.logq), bandit.fkl)
    close(bandit.gradient(reverse_kl(bandit.logp, bandit.logq)), bandit.rkl_gradient)
    close(bandit.gradient(forward_kl(bandit.logp, bandit.logq)), bandit.fkl_gradient)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_closed_logit_gradient_is_the_one_of_the_value_and_for_kls_of_any_part(kind, beta, bandit):
    value = divergence(kind, bandit.logp, bandit.logq, beta)
    found = logit_gradient(kind, bandit.logp.detach(), bandit.logq, beta, value.detach())
    close(found, bandit.gradient(value))
    if kind != "jsd":
        part = logit_gradient(kind, bandit.logp.detach()[1:3], bandit.logq[1:3], beta, value.detach())
        close(part, found[1:3])


def test_a6_k3_plus_has_the_value_of_k3_and_the_gradient_of_k2(bandit):
    plus, k3 = (kl_estimator(kind, bandit.logp, bandit.logq) for kind in ("k3_plus", "k3"))
    close(plus, k3)
    close(bandit.gradient(bandit.expected("k3_plus")), bandit.gradient(bandit.expected("k2")))


def test_br04_a_value_check_cannot_see_the_wrong_gradient_of_k3():
    """z = 0, q = (0.5, 0.3, 0.2): dKL/dz_i = (log(1/3) - log q_i - KL)/3, and k3 has 1/3 - q instead."""
    z = torch.zeros(3).double().requires_grad_()
    logp, logq = torch.log_softmax(z, 0), f64([0.5, 0.3, 0.2]).log()
    true = [-0.158568, 0.011707, 0.146862]
    gradients: dict[Estimator, list[float]] = {
        "k1": [0.0, 0.0, 0.0],
        "k2": true,
        "k3": [-0.166667, 0.033333, 0.133333],
        "k3_plus": true,
        "ratio_k3": true,
    }
    for kind, expected in gradients.items():
        mean = (logp.detach().exp() * kl_estimator(kind, logp, logq)).sum()
        close(torch.autograd.grad(mean, z, retain_graph=True)[0], expected, 1e-6)
        if kind != "k2":
            assert mean.item() == pytest.approx(0.0702403, abs=1e-7)
    close(torch.autograd.grad(reverse_kl(logp, logq), z)[0], true, 1e-6)


@pytest.mark.parametrize(("kind", "rests"), [("k2", True), ("k3_plus", True), ("ratio_k3", True), ("k3", False)])
def test_h12_every_estimator_but_k3_rests_at_the_regularised_optimum(kind, rests):
    """At π* ∝ π_ref exp(R/β): the reward's gradient and β times the KL term's cancel, except for plain k3."""
    torch.manual_seed(3)
    reference, rewards, beta = torch.log_softmax(torch.randn(V).double(), 0), torch.randn(V).double(), 0.7
    theta = (reference + rewards / beta).requires_grad_()
    logp = torch.log_softmax(theta, 0)
    p = logp.detach().exp()
    loss = (p * (reinforce(logp, rewards) + beta * kl_estimator(kind, logp, reference))).sum()
    found = torch.autograd.grad(loss, theta, retain_graph=True)[0]
    assert (found.abs().max() < 1e-9) == rests
    if not rests:
        difference = forward_kl(logp, reference) - reverse_kl(logp, reference)
        close(found, beta * torch.autograd.grad(difference, theta)[0])


def test_h12_k1_in_the_reward_rests_there_too():
    torch.manual_seed(3)
    reference, rewards, beta = torch.log_softmax(torch.randn(V).double(), 0), torch.randn(V).double(), 0.7
    theta = (reference + rewards / beta).requires_grad_()
    logp = torch.log_softmax(theta, 0)
    shaped = rewards - beta * kl_estimator("k1", logp, reference)
    close(torch.autograd.grad((logp.detach().exp() * reinforce(logp, shaped)).sum(), theta)[0], torch.zeros(V))


def test_f18_k1_summed_over_tokens_is_the_sequence_log_ratio():
    logprobs, reference = -torch.rand(2, 5).double(), -torch.rand(2, 5).double()
    close(kl_estimator("k1", logprobs, reference).sum(1), logprobs.sum(1) - reference.sum(1))


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_reference_of_an_estimator_is_a_constant_and_equality_costs_nothing(kind):
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    reference = logprobs.detach().clone().requires_grad_()
    found = kl_estimator(kind, logprobs, reference)
    found.sum().backward()
    assert found.tolist() == [0.0, 0.0]
    assert reference.grad is None


def test_c1_the_ends_of_the_jsd_are_the_kls_and_its_scaled_limits(bandit):
    small = 1e-6
    for beta, kl in ((small, forward_kl), (1 - small, reverse_kl)):
        scaled = jsd(bandit.logp, bandit.logq, beta) / small
        close(scaled, kl(bandit.logp, bandit.logq), 1e-4)
        close(bandit.gradient(scaled), bandit.gradient(kl(bandit.logp, bandit.logq)), 1e-4)
    assert torch.equal(jsd(bandit.logp, bandit.logq, 0.0), forward_kl(bandit.logp, bandit.logq))
    assert torch.equal(jsd(bandit.logp, bandit.logq, 1.0), reverse_kl(bandit.logp, bandit.logq))


def test_c1_the_jsd_is_discontinuous_in_beta_at_both_ends(bandit):
    for end, near in ((0.0, 1e-9), (1.0, 1 - 1e-9)):
        assert jsd(bandit.logp, bandit.logq, near) < 1e-6 < 0.1 < jsd(bandit.logp, bandit.logq, end)


def test_c2_beta_weighs_the_teacher(bandit):
    mixture = 0.3 * bandit.q + 0.7 * bandit.p
    expected = (0.3 * bandit.q * (bandit.q / mixture).log() + 0.7 * bandit.p * (bandit.p / mixture).log()).sum()
    close(jsd(bandit.logp, bandit.logq, 0.3), expected)
    assert abs(jsd(bandit.logp, bandit.logq, 0.7) - expected) > 1e-3


@PROPERTY
@given(two_logits(), st.floats(0.01, 0.99))
def test_c2_the_jsd_is_symmetric_at_one_half_and_bounded_by_the_binary_entropy(logits, beta):
    student, teacher = (log_softmax(x) for x in logits)
    close(jsd(student, teacher, 0.5), jsd(teacher, student, 0.5))
    assert -1e-12 <= jsd(student, teacher, beta) <= -(beta * math.log(beta) + (1 - beta) * math.log1p(-beta)) + 1e-12


@pytest.mark.parametrize("kind", KINDS)
@PROPERTY
@given(two_logits(), st.integers(1, 9))
def test_d1_bucketing_never_raises_a_divergence_and_none_is_negative(kind, logits, support):
    student, teacher = (log_softmax(x) for x in logits)
    kept = teacher.topk(min(support, len(teacher))).indices
    full = divergence(kind, student, teacher, 0.3)
    bucket = divergence(kind, with_tail(student[kept]), with_tail(teacher[kept]), 0.3)
    assert -1e-9 <= bucket <= full + 1e-9
    if support >= len(teacher):
        assert abs(bucket - full) <= 1e-12


@pytest.mark.parametrize("kind", KINDS)
@PROPERTY
@given(two_logits(), st.floats(-50, 50))
def test_a_divergence_does_not_see_a_shift_of_the_logits(kind, logits, shift):
    student, teacher = logits
    expected = divergence(kind, log_softmax(student), log_softmax(teacher), 0.3)
    close(divergence(kind, log_softmax(student + shift), log_softmax(teacher - shift), 0.3), expected)


def bucket_by_hand(p, kept):
    return torch.cat([p[kept], 1 - p[kept].sum(-1, keepdim=True)])


def test_d1_the_full_kl_is_the_bucket_kl_plus_what_the_tail_hides(bandit):
    kept, rest = [0, 2, 5], [1, 3, 4, 6]
    p, q = bandit.p[rest], bandit.q[rest]
    hidden = (p * ((p / p.sum()) / (q / q.sum())).log()).sum()
    bucket = reverse_kl(with_tail(bandit.logp[kept]), with_tail(bandit.logq[kept]))
    a, b = bucket_by_hand(bandit.p, kept), bucket_by_hand(bandit.q, kept)
    close(bucket, (a * (a / b).log()).sum())
    close(bucket + hidden, bandit.rkl)


def test_d2_the_bucket_kl_is_a_binary_kl_plus_the_renormalised_one(bandit):
    kept = [0, 2, 5]
    p, q = bandit.p[kept], bandit.q[kept]
    binary = p.sum() * (p.sum() / q.sum()).log() + (1 - p.sum()) * ((1 - p.sum()) / (1 - q.sum())).log()
    renormalised = p.sum() * ((p / p.sum()) * ((p / p.sum()) / (q / q.sum())).log()).sum()
    close(reverse_kl(with_tail(bandit.logp[kept]), with_tail(bandit.logq[kept])), binary + renormalised)


@pytest.mark.parametrize("kind", KINDS)
def test_d3_a_perfect_student_is_at_rest_with_a_tail_and_pushed_without_one(kind, bandit):
    """Without the tail the forward KL pulls by p Q_S - q 1_S and the reverse one by p (1_S - P_S); the JSD rests."""
    theta = bandit.logq.clone().requires_grad_()
    kept = [0, 2, 5]
    student, teacher = torch.log_softmax(theta, 0)[kept], bandit.logq[kept]
    bucket = divergence(kind, with_tail(student), with_tail(teacher), 0.3)
    close(torch.autograd.grad(bucket, theta, retain_graph=True)[0], torch.zeros(V))
    inside = torch.zeros(V).double()
    inside[kept] = 1
    raw = torch.autograd.grad(divergence(kind, student, teacher, 0.3), theta)[0]
    pull = bandit.q * (inside - bandit.q[kept].sum())
    close(raw, {"forward_kl": -pull, "reverse_kl": pull, "jsd": 0 * pull}[kind])
    assert pull.abs().max() > 1e-2


def test_br17_teacher_top_two_of_four():
    """Full 0.143935; the sum over the top 2 alone is negative; with the tail 0.139853; K = V is the full KL."""
    teacher = f64([0.5, 0.3, 0.1, 0.1]).log()
    student = f64([0.6, 0.35, 0.03, 0.02]).log()
    close(forward_kl(student, teacher), 0.143935, 1e-6)
    close((teacher[:2].exp() * (teacher[:2] - student[:2])).sum(), -0.137406, 1e-6)
    close(forward_kl(with_tail(student[:2]), with_tail(teacher[:2])), 0.139853, 1e-6)
    close(forward_kl(with_tail(student), with_tail(teacher)), forward_kl(student, teacher), 1e-12)
    close(with_tail(teacher[:2])[2].exp(), 0.2, 1e-12)
    blind = f64([0.5, 0.3, 0.19, 0.01]).log()
    close(forward_kl(with_tail(blind[:2]), with_tail(teacher[:2])), 0.0, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exhausted_mass_leaves_the_full_divergence_and_gradient(kind, dtype, tolerance):
    torch.manual_seed(4)
    theta = (torch.randn(64, 50) * 6).to(dtype).requires_grad_()
    student, teacher = log_softmax(theta), log_softmax((torch.randn(64, 50) * 6).to(dtype))
    full, bucket = (
        divergence(kind, student, teacher, 0.3),
        divergence(kind, with_tail(student), with_tail(teacher), 0.3),
    )
    close(bucket, full.detach(), tolerance)
    found, expected = (torch.autograd.grad(x.sum(), theta, retain_graph=True)[0] for x in (bucket, full))
    close(found, expected, tolerance)


def test_the_tail_of_an_empty_or_certain_support_is_finite():
    support = f64([[-INF, -INF], [0.0, -INF], [math.log(0.25), math.log(0.25)]]).requires_grad_()
    found = with_tail(support)
    close(found[:, 2].detach(), [0.0, math.log(2**-52), math.log(0.5)])
    assert torch.autograd.grad(found[:, 2].sum(), support)[0].isfinite().all()


def test_h1_the_reverse_kl_is_the_cross_entropy_minus_the_entropy(bandit):
    close(reverse_kl(bandit.logp, bandit.logq), -(bandit.p * bandit.logq).sum() - entropy(bandit.logp))


def test_h2_at_temperature_t_the_logit_gradient_has_a_factor_one_over_t(bandit):
    t = 1.7
    student, teacher = torch.log_softmax(bandit.theta / t, 0), torch.log_softmax(bandit.logq / t, 0)
    p = student.detach().exp()
    gap = student.detach() - teacher
    close(bandit.gradient(reverse_kl(student, teacher)), p * (gap - (p * gap).sum()) / t)


def test_h15_imitation_is_the_forward_kl_to_a_certain_teacher(bandit):
    certain = torch.full((V,), -INF).double()
    certain[3] = 0.0
    close(forward_kl(bandit.logp, certain), -bandit.logp[3].detach())
    close(bandit.gradient(forward_kl(bandit.logp, certain)), bandit.gradient(-bandit.logp[3]))


def test_entropy_by_hand():
    """(½, ¼, ¼): 1.5 log 2. Uniform over 4 of 5: log 4. Certain: 0."""
    rows = f64([[0.5, 0.25, 0.25, 0, 0], [0.25, 0.25, 0.25, 0.25, 0], [1, 0, 0, 0, 0]]).log()
    close(entropy(rows), [1.5 * math.log(2), math.log(4), 0.0])


@pytest.mark.parametrize("kind", [*KINDS, "entropy"])
def test_banned_tokens_change_neither_value_nor_gradient(kind, bandit):
    """Two more candidates with logit -inf on both sides: 0 log 0 = 0 and an exactly zero gradient."""
    banned = torch.full((2,), -INF).double()
    theta = torch.cat([bandit.theta.detach(), banned]).requires_grad_()
    student, teacher = torch.log_softmax(theta, 0), torch.cat([bandit.logq, banned])
    found, expected = (
        entropy(a) if kind == "entropy" else divergence(kind, a, b, 0.3)
        for a, b in ((student, teacher), (bandit.logp, bandit.logq))
    )
    close(found, expected.detach())
    gradient = torch.autograd.grad(found, theta)[0]
    close(gradient[:V], bandit.gradient(expected))
    assert torch.equal(gradient[V:], torch.zeros(2).double())


def test_mass_where_the_other_side_has_none_is_infinite_for_a_kl_and_log_two_for_the_jsd():
    one, other = f64([0.0, -INF]).requires_grad_(), f64([-INF, 0.0])
    assert forward_kl(one, other) == INF
    assert reverse_kl(one, other) == INF
    found = jsd(one, other, 0.5)
    close(found.detach(), math.log(2))
    assert torch.autograd.grad(found, one)[0].isfinite().all()
    close(forward_kl(f64([0.5, 0.5]).log(), other), math.log(2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_of_zero_gives_exactly_zero_gradient_beside_banned_tokens(kind):
    logits = torch.randn(2, 3, 5).double()
    logits[..., 1] = -INF
    theta = logits.clone().requires_grad_()
    loss = divergence(kind, log_softmax(theta), log_softmax(logits.flip(0)), 0.3)
    weight = f64([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    gradient = torch.autograd.grad((weight * loss).sum(), theta)[0]
    assert gradient.isfinite().all()
    assert torch.equal(gradient[weight == 0], torch.zeros(5, 5).double())
    assert gradient[0, 0].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_raised_and_float64_stays(dtype):
    assert log_softmax(torch.randn(2, 5).to(dtype)).dtype == torch.float32
    logits = torch.randn(2, 5).double()
    assert log_softmax(logits).dtype == torch.float64
    student = log_softmax(logits)
    for found in (entropy(student), with_tail(student), *(divergence(k, student, student, 0.3) for k in KINDS)):
        assert found.dtype == torch.float64
    half = student.to(dtype)
    for found in (entropy(half), with_tail(half), *(divergence(k, half, half, 0.3) for k in KINDS)):
        assert found.dtype == torch.float32


def test_br10_equal_bfloat16_logits_have_the_log_prob_of_a_uniform():
    """-log 32768 = -10.397208; a bfloat16 softmax says -10.375."""
    found = log_softmax(torch.zeros(32768, dtype=torch.bfloat16))
    assert found[0].item() == pytest.approx(-10.397208, abs=1e-6)


def test_br10_bfloat16_logits_agree_with_float64_to_1e_5_and_never_exceed_zero():
    torch.manual_seed(5)
    logits = (torch.rand(1000, 64) * 40 - 20).bfloat16()
    found, expected = log_softmax(logits), torch.log_softmax(logits.double(), -1)
    assert (found.double() - expected).abs().max() <= 1e-5
    assert (found <= 0).all()
    deep = expected > -30
    assert ((found.double() - expected)[deep].abs() <= 1e-3 * expected[deep].abs() + 1e-7).all()


def test_log_softmax_of_banned_tokens_is_minus_infinity_with_zero_gradient():
    logits = torch.tensor([1.0, -INF, 2.0], requires_grad=True)
    found = log_softmax(logits)
    assert found[1] == -INF
    gradient = torch.autograd.grad(found[0], logits)[0]
    assert gradient[1] == 0
    assert gradient.isfinite().all()


def test_leading_axes_are_kept_and_nothing_is_reduced_over_them():
    student, teacher = (log_softmax(torch.randn(2, 3, V).double()) for _ in range(2))
    for kind in KINDS:
        found = divergence(kind, student, teacher, 0.3)
        assert found.shape == (2, 3)
        close(found[1, 2], divergence(kind, student[1, 2], teacher[1, 2], 0.3))


def test_unknown_names_and_betas_are_refused_with_what_is_expected():
    x = torch.zeros(2)
    with pytest.raises(ValueError, match=r"divergence: found 'kl', expected 'forward_kl'"):
        divergence("kl", x, x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"kl estimator: found 'k4', expected 'k1'"):
        kl_estimator("k4", x, x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"beta: found 1.5, expected"):
        jsd(x, x, 1.5)
