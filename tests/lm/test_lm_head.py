"""The chunked projection against a dense float64 one: value and gradient, half types, banned tokens, memory."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.functional import divergences
from posttrain.policies.base import Divergence
from posttrain.policies.lm_head import Head, Question, answer, top_support

N, H, V, K = 23, 16, 50, 4
HEADS = {
    "plain": {},
    "scale": {"scale": 0.25},
    "cap": {"cap": 1.5},
    "bias": {"bias": True},
    "everything": {"scale": 0.5, "cap": 2.0, "bias": True, "temperature": 0.7},
    "temperature": {"temperature": 0.7},
}
DIVERGENCES = [Divergence("forward_kl"), Divergence("reverse_kl"), Divergence("jsd", 0.3), Divergence("jsd", 0.0)]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def head(kind="plain", dtype=torch.float64, chunk=7):
    options = dict(HEADS[kind])
    bias = normal(V, seed=2, dtype=dtype).requires_grad_() if options.pop("bias", False) else None
    return Head(normal(V, H, seed=1, dtype=dtype).requires_grad_(), bias, chunk=chunk, **options)


def question(divergence=None, support=True, seed=3):
    ids = torch.randint(0, V, (N, 1 + K), generator=torch.Generator().manual_seed(seed))
    other = normal(V, H, seed=4)
    asked = Question(ids[:, 0])
    asked = asked.with_support(ids) if support else asked
    if divergence is None:
        return asked
    return asked.against(divergence, normal(N, H, seed=5), lambda hidden: torch.log_softmax(hidden @ other.T, -1))


def dense(made, hidden, asked):
    """The same four numbers, written out on [N, V] in float64."""
    weight, hidden = made.weight.double(), hidden.double()
    logits = hidden @ weight.T + (0 if made.bias is None else made.bias.double())
    logits = logits * made.scale
    if made.cap is not None:
        logits = made.cap * torch.tanh(logits / made.cap)
    log_probs = logits / made.temperature - torch.logsumexp(logits / made.temperature, -1, keepdim=True)
    apart = None
    if asked.divergence is not None:
        teacher = asked.project(asked.other)
        apart = divergences.divergence(asked.divergence.kind, log_probs, teacher, asked.divergence.beta)
    return (
        log_probs.gather(1, asked.ids[:, None]).squeeze(1),
        -(log_probs.exp() * log_probs).sum(1),
        None if asked.support_ids is None else log_probs.gather(1, asked.support_ids),
        apart,
    )


def numbers(found):
    return found.logprobs, found.entropy, found.support_logprobs, found.divergence


def gradients(made, hidden, values, wanted):
    """Of a weighted sum of the wanted results, in hidden states, weight and bias."""
    total = sum((normal(*values[i].shape, seed=10 + i) * values[i]).sum() for i in wanted)
    leaves = [hidden, made.weight, *([] if made.bias is None else [made.bias])]
    return torch.autograd.grad(total, leaves)


def close(found, expected, tolerance=1e-12):
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            one, other = one.detach(), other.detach()
            assert float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)], ids=str)
def test_values_and_gradients_are_those_of_the_dense_float64_projection(kind, wanted):
    made, hidden = head(kind), normal(N, H, seed=6).requires_grad_()
    asked = question(Divergence("reverse_kl"))
    found, expected = numbers(answer(made, hidden, asked)), dense(made, hidden, asked)
    close(found, expected)
    close(gradients(made, hidden, found, wanted), gradients(made, hidden, expected, wanted))


@pytest.mark.parametrize("kind", DIVERGENCES, ids=str)
def test_so_it_is_for_every_divergence(kind):
    made, hidden, asked = head("everything"), normal(N, H, seed=6).requires_grad_(), question(kind)
    found, expected = numbers(answer(made, hidden, asked)), dense(made, hidden, asked)
    close(found, expected)
    close(gradients(made, hidden, found, (3,)), gradients(made, hidden, expected, (3,)))


def test_the_size_of_the_chunk_changes_nothing():
    hidden, asked = normal(N, H, seed=6).requires_grad_(), question(Divergence("jsd"))
    results = []
    for chunk in (1, 5, N, 1000, None):
        made = head("everything", chunk=chunk)
        found = numbers(answer(made, hidden, asked))
        results.append((*found, *gradients(made, hidden, found, (0, 1, 2, 3))))
    for other in results[1:]:
        close(other, results[0])


def test_the_models_own_projection_of_the_other_side_gives_no_gradient():
    made, hidden = head(), normal(N, H, seed=6).requires_grad_()
    teacher = head("cap")
    other = normal(N, H, seed=5).requires_grad_()
    asked = Question(torch.zeros(N, dtype=torch.int64)).against(Divergence(), other, teacher.log_probs)
    answer(made, hidden, asked).divergence.sum().backward()
    assert other.grad is None
    assert teacher.weight.grad is None


def test_a_model_compared_with_itself_is_at_rest():
    made, hidden = head("everything"), normal(N, H, seed=6).requires_grad_()
    for kind in DIVERGENCES:
        asked = Question(torch.zeros(N, dtype=torch.int64)).against(kind, hidden.detach(), made.log_probs)
        found = answer(made, hidden, asked).divergence
        assert float(found.detach().abs().max()) < 1e-14
        assert float(torch.autograd.grad(found.sum(), hidden)[0].abs().max()) < 1e-14


def test_no_positions_give_no_numbers_and_a_gradient_of_zero():
    made, hidden = head("bias"), normal(0, H).requires_grad_()
    asked = Question(torch.zeros(0, dtype=torch.int64)).with_support(torch.zeros(0, K, dtype=torch.int64))
    found = answer(made, hidden, asked)
    assert found.logprobs.shape == (0,)
    assert found.support_logprobs.shape == (0, K)
    found.logprobs.sum().backward()
    assert not made.weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_raised_to_float32_before_the_softmax(dtype):
    weight = torch.eye(V, dtype=dtype)
    logits = (normal(200, V, seed=8) * 10).clamp(-20, 20).to(dtype)
    ids = torch.randint(0, V, (200,), generator=torch.Generator().manual_seed(0))
    found = answer(Head(weight, chunk=64), logits, Question(ids))
    expected = torch.log_softmax(logits.double(), -1)
    assert found.logprobs.dtype == torch.float32
    assert float((found.logprobs - expected.gather(1, ids[:, None])[:, 0]).abs().max()) <= 1e-5
    assert float((found.entropy + (expected.exp() * expected).sum(1)).abs().max()) <= 1e-5
    assert bool((found.logprobs <= 0).all())
    assert bool((found.entropy >= 0).all())


def test_br_10_equal_bf16_logits_over_32768_ids_give_the_exact_log_prob():
    weight = torch.zeros(32768, 4, dtype=torch.bfloat16)
    found = answer(Head(weight), torch.zeros(3, 4, dtype=torch.bfloat16), Question(torch.tensor([0, 5, 32767])))
    assert found.logprobs.tolist() == pytest.approx([-10.397208] * 3, abs=1e-6)


def test_gradients_of_half_types_are_those_of_float64_up_to_their_rounding():
    exact, half = head("everything"), head("everything", torch.bfloat16)
    hidden = normal(N, H, seed=6)
    asked = question(Divergence("reverse_kl"))
    found = []
    for made, dtype in ((exact, torch.float64), (half, torch.bfloat16)):
        leaf = hidden.to(dtype).requires_grad_()
        found.append(gradients(made, leaf, numbers(answer(made, leaf, asked)), (0, 1, 2, 3)))
    for one, other in zip(*found, strict=True):
        assert float((one - other.double()).abs().max()) <= 0.03 * float(one.abs().max())


def test_a_token_banned_by_its_bias_makes_no_nan():
    made = head("bias")
    with torch.no_grad():
        made.bias[3] = -torch.inf
    hidden = normal(N, H, seed=6).requires_grad_()
    asked = Question(torch.full((N,), 2)).against(Divergence(), hidden.detach(), made.log_probs)
    found = answer(made, hidden, asked)
    assert bool(found.entropy.isfinite().all())
    (found.logprobs.sum() + found.entropy.sum()).backward()
    assert bool(hidden.grad.isfinite().all())
    assert bool(made.weight.grad.isfinite().all())


def test_log_probs_far_down_and_the_entropy_of_a_sure_policy_keep_their_digits():
    logits = torch.tensor([[0.0, -30.0, -31.0, -12.0]])
    found = answer(Head(torch.eye(4)), logits, Question(torch.tensor([1])).with_support(torch.arange(4)[None]))
    expected = torch.log_softmax(logits.double(), -1)
    assert found.support_logprobs[0].tolist() == pytest.approx(expected[0].tolist(), rel=1e-6, abs=1e-6)
    assert float(found.entropy[0]) == pytest.approx(float(-(expected.exp() * expected).sum()), rel=1e-2, abs=1e-7)


def test_rows_of_padding_are_cut_before_the_softmax():
    teacher = Head(torch.tensor([0.0] * 10 + [5.0] * 2)[:, None][:10])
    assert teacher.log_probs(torch.ones(1, 1)).exp().sum().item() == pytest.approx(1)
    student = Head(torch.zeros(10, 1))
    asked = Question(torch.zeros(1, dtype=torch.int64)).against(Divergence(), torch.ones(1, 1), teacher.log_probs)
    assert answer(student, torch.ones(1, 1), asked).divergence.tolist() == [0.0]


def test_another_number_of_ids_on_the_other_side_is_named():
    asked = Question(torch.zeros(1, dtype=torch.int64)).against(
        Divergence(), torch.ones(1, 1), Head(torch.zeros(12, 1)).log_probs
    )
    with pytest.raises(ValueError, match="student has 10 token ids, the other model 12"):
        answer(Head(torch.zeros(10, 1)), torch.ones(1, 1), asked)


@pytest.mark.parametrize("k", [1, 3, V, V + 5])
def test_the_support_is_the_most_probable_ids_with_the_sampled_one_among_them(k):
    made, hidden, ids = head("everything"), normal(N, H, seed=6), question().ids
    found, kept = top_support(made, hidden, ids, k)
    log_probs = made.log_probs(hidden)
    assert kept.shape == (N, min(k, V))
    close([found.support_logprobs], [log_probs.gather(1, kept)])
    for row in range(N):
        assert ids[row] in kept[row]
        assert len(set(kept[row].tolist())) == min(k, V)
        best = log_probs[row].topk(min(k, V)).indices
        assert set(best.tolist()) - {ids[row].item()} >= set(kept[row].tolist()) - {ids[row].item()}


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        made = function(*arguments, **(keywords or {}))
        for value in made if isinstance(made, tuple | list) else [made]:
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return made


def test_no_tensor_is_larger_than_a_chunk_of_logits_forward_or_backward():
    positions, size, chunk = 512, 4096, 8
    made = Head(normal(size, 4, dtype=torch.float32).requires_grad_(), chunk=chunk)
    teacher = replace(made, weight=normal(size, 4, seed=1, dtype=torch.float32))
    hidden = normal(positions, 4, dtype=torch.float32).requires_grad_()
    asked = Question(torch.zeros(positions, dtype=torch.int64)).against(
        Divergence("jsd"), hidden.detach(), teacher.log_probs
    )
    with Largest() as largest:
        found = answer(made, hidden, asked)
        (found.logprobs.sum() + found.entropy.sum() + found.divergence.sum()).backward()
    assert largest.elements <= chunk * size  # the dense way makes 64 times that


def test_the_chunk_that_nobody_chose_holds_about_64_mebibytes_of_logits():
    assert Head(torch.empty(151936, 1)).positions == 110
    assert Head(torch.empty(4096, 1)).positions == 4096
    assert Head(torch.empty(64, 1)).positions == 4096
    assert Head(torch.empty(151936, 1), chunk=5).positions == 5
