"""What is drawn: by the right distribution, from keys alone, with what was recorded equal to what is scored."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_lm
import torch
from scipy import stats
from tiny_lm import EOS, policy, problems

from posttrain.batch import concatenate
from posttrain.policies.lm_projection import Head, distribution
from posttrain.samplers.in_process import (
    HALF_TOLERANCE,
    NonFiniteLogits,
    ParityError,
    _batches,
    _finite,
    inverse_cdf,
    parity,
    require_parity,
    tolerance_of,
)
from posttrain.testing.bench import nudge


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def drawn(made, given=None, group_size=3, seed=0, step=1):
    return made.sample(given or problems(), group_size, None, seed, step)


def completions(rollouts):
    return [tuple(ids[mask].tolist()) for ids, mask in zip(rollouts.completion_ids, rollouts.mask, strict=True)]


# -- one token ------------------------------------------------------------------------------------------------


def test_the_inverse_cdf_takes_the_first_id_whose_cumulative_weight_exceeds_the_uniform():
    weights = torch.tensor([[1.0, 0.0, 2.0, 1.0, 0.0]]).repeat(7, 1)
    uniforms = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 0.99, 1 - 2.0**-53], dtype=torch.float64)
    assert inverse_cdf(weights, uniforms).tolist() == [0, 0, 2, 2, 3, 3, 3]


def test_an_id_without_weight_is_never_drawn_at_either_end():
    weights = torch.tensor([[0.0, 3e-5, 0.0], [0.0, 1.7, 0.0]])
    for uniform in (0.0, 1 - 2.0**-53):
        assert inverse_cdf(weights, torch.full((2,), uniform, dtype=torch.float64)).tolist() == [1, 1]


@pytest.mark.parametrize("size", [5, 512, 513, 1500])
def test_the_search_by_blocks_is_the_plain_search(size):
    made = torch.Generator().manual_seed(size)
    weights = torch.rand(400, size, generator=made) ** 8
    weights[:, ::3] = 0
    uniforms = torch.rand(400, generator=made, dtype=torch.float64)
    cumulative = weights.double().cumsum(1)
    expected = (cumulative <= (uniforms * cumulative[:, -1]).unsqueeze(1)).sum(1)
    assert torch.equal(inverse_cdf(weights, uniforms), expected)


def test_a_large_vocabulary_in_float32_keeps_its_tail():
    weights = torch.ones(1, 151_936)
    assert inverse_cdf(weights, torch.tensor([1 - 1e-9], dtype=torch.float64)).tolist() == [151_935]


def test_many_draws_of_the_first_token_follow_the_models_distribution():
    made = policy(max_completion_tokens=1, temperature=0.8, rows=1000)
    prompt = problems()[:1]
    found = made.sample(prompt, 4000, None, 3, 1)
    exact = made.states(found.rows(slice(0, 4000))).project(made.states(found).hidden[:1, 0]).exp()[0].numpy()
    counts = np.bincount(found.completion_ids[:, 0].numpy(), minlength=60)
    likely = exact * 4000 >= 5
    observed = [*counts[likely], counts[~likely].sum()]
    expected = [*exact[likely] * 4000, exact[~likely].sum() * 4000]
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_two_tokens_follow_the_product_of_their_conditionals():
    made = policy(max_completion_tokens=2, rows=2000, temperature=0.3)
    found = made.sample(problems()[:1], 6000, None, 5, 1)
    chance = found.logprobs.sum(1).exp()
    for text in {completions(found)[row] for row in range(6)}:
        rows = torch.tensor([row == text for row in completions(found)])
        exact = float(chance[rows][0])
        deviation = (exact * (1 - exact) / 6000) ** 0.5
        assert abs(float(rows.double().mean()) - exact) < 4.5 * deviation


# -- who shares the batch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2"])
def test_a_row_does_not_depend_on_who_shares_its_batch(kind):
    made = policy(kind, max_completion_tokens=12)
    whole = drawn(made)
    for rows in (1, 2, 5):
        made.config = replace(made.config, rows=rows)
        other = drawn(made)
        assert torch.equal(other.completion_ids, whole.completion_ids)
        assert torch.equal(other.mask, whole.mask)
        assert float((other.logprobs - whole.logprobs).abs().max()) < 1e-6
    for place, problem in enumerate(problems()):
        alone = drawn(made, [problem])
        assert completions(alone) == completions(whole)[3 * place : 3 * place + 3]


def test_seed_and_step_and_completion_decide_what_is_drawn():
    made = policy()
    first = drawn(made)
    assert torch.equal(first.completion_ids, drawn(made).completion_ids)
    assert len(set(completions(first)[:3])) > 1
    for other in (drawn(made, seed=1), drawn(made, step=2)):
        assert completions(other) != completions(first)


def test_a_problem_that_comes_twice_in_a_step_is_answered_twice():
    made = policy()
    problem = problems()[0]
    twice = drawn(made, [problem, problem])
    assert len({tuple(key) for key in twice.keys.tolist()}) == 6
    assert completions(twice) == completions(drawn(made, [problem], group_size=6))


def test_rollouts_of_different_prompts_can_be_put_together():
    made = policy()
    parts = [drawn(made, [problem]) for problem in problems()]
    joined = concatenate(parts, range(4))
    assert completions(joined) == completions(drawn(made))
    assert parity(made, joined) < 1e-6


# -- ends -----------------------------------------------------------------------------------------------------


def test_br_06_the_end_token_is_inside_the_mask_and_what_the_limit_cut_is_marked():
    made = policy(max_completion_tokens=5)
    found = drawn(made, group_size=12)
    assert set(found.truncated.tolist()) == {True, False}
    for ids, mask, cut in zip(found.completion_ids, found.mask, found.truncated, strict=True):
        kept = ids[mask].tolist()
        assert EOS not in kept[:-1]
        assert (kept[-1] == EOS) != bool(cut)
        assert len(kept) == 5 or not cut
        assert not ids[~mask].any()


def test_an_end_token_at_the_very_limit_is_an_end():
    made = policy(max_completion_tokens=1)
    found = drawn(made, group_size=40)
    assert torch.equal(found.truncated, found.completion_ids[:, 0] != EOS)
    assert not found.truncated.all()


def test_br_06_a_pad_id_equal_to_the_end_token_changes_nothing():
    from transformers import PreTrainedTokenizerFast

    plain = policy()
    padded = PreTrainedTokenizerFast(
        tokenizer_object=tiny_lm.tokenizer().backend_tokenizer, eos_token="<eos>", bos_token="<bos>", pad_token="<eos>"
    )
    other = type(plain)(plain.config, tiny_lm.model(), padded, problems(), False)
    mine, theirs = drawn(plain), drawn(other)
    assert torch.equal(mine.mask, theirs.mask)
    assert torch.equal(mine.completion_ids, theirs.completion_ids)
    assert torch.equal(plain.score(mine, mine.mask).logprobs, other.score(theirs, theirs.mask).logprobs)


def test_finished_rows_leave_the_batch():
    made = policy(max_completion_tokens=20)
    sizes = []
    made.model.model.register_forward_pre_hook(
        lambda module, arguments, given: sizes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    found = drawn(made, group_size=12)
    live = [int((found.mask.sum(1) > step).sum()) for step in range(found.mask.shape[1])]
    assert sizes[0] == (4, 5)  # each prompt once
    assert sizes[1:] == [(rows, 1) for rows in live[1:]]
    assert live[-1] < 48


def test_all_rows_may_end_at_once():
    made = policy()
    with torch.no_grad():
        made.model.lm_head.weight.zero_()
    one = policy(given=problems(1))
    one.encoder = replace(one.encoder, eos=frozenset(range(60)))
    found = drawn(one, problems(1))
    assert found.mask.shape == (3, 1)
    assert not found.truncated.any()


def test_greedy_takes_the_most_probable_token_and_the_lowest_id_of_a_tie():
    made = policy("gpt2")
    found = made.greedy(problems())
    hidden = made.states(found)
    best = hidden.project(hidden.hidden).argmax(-1)
    assert torch.equal(best[found.mask], found.completion_ids[found.mask])
    assert parity(made, found) < 1e-12
    with torch.no_grad():
        made.model.transformer.wte.weight.zero_()
    assert completions(made.greedy(problems())) == [(0,) * 6] * 4


def test_what_was_sampled_is_what_is_decoded_without_special_tokens():
    made = policy()
    found = drawn(made)
    for text, ids in zip(found.texts, completions(found), strict=True):
        words = [tiny_lm.WORDS[i] for i in ids]
        assert text.split() == [word for word in words if not word.startswith("<")]


# -- parity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma2", "cohere", "phi", "gpt2"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_sampler_and_the_trainer_agree_to_the_stated_tolerance(kind, dtype):
    made = policy(kind, dtype, temperature=0.7, max_completion_tokens=10)
    found = drawn(made)
    assert found.logprobs.dtype == (torch.float64 if dtype == "float64" else torch.float32)
    require_parity(made, found, tolerance_of(getattr(torch, dtype)))
    assert tolerance_of(torch.bfloat16) == HALF_TOLERANCE


def test_other_weights_or_another_temperature_are_refused_with_both_numbers():
    made = policy()
    found = drawn(made)
    for other in (policy(temperature=0.7), policy(seed=1)):
        with pytest.raises(ParityError, match=r"differ by [\d.]+ nats, more than 0.0001"):
            require_parity(other, found, 1e-4)
    nudge(made, 0.1, 0)
    with pytest.raises(ParityError):
        require_parity(made, found, 1e-4)


def test_data_rows_have_nothing_to_agree_about():
    made = policy()
    assert parity(made, made.respond(problems(), 0, 0)) == 0.0


def test_batches_hold_prompts_of_like_length():
    assert _batches([3, 1, 5, 1, 3], 2, False) == [[1, 3], [0, 4], [2]]
    assert _batches([3, 1, 5, 1, 3], 9, False) == [[1, 3, 0, 4, 2]]
    assert _batches([3, 1, 5, 1, 3], 9, True) == [[1, 3], [0, 4], [2]]


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_logits_that_are_no_numbers_are_an_error_that_names_the_step(value, dtype, greedy):
    """Never an id out of range. Here every token but those of the prompt is broken: the first one is still drawn."""
    made = policy("llama", dtype)
    (prompt,) = problems(1)
    known = made.encoder.prompt(prompt)
    broken = [token for token in range(60) if token not in known]
    with torch.no_grad():
        made.model.get_input_embeddings().weight[broken, 0] = value
        made.model.get_output_embeddings().weight[[EOS, *known]] *= 0
    what = "a greedy completion" if greedy else r"a completion \(seed 4, step 7\)"
    with pytest.raises(
        NonFiniteLogits, match=f"^the model's logits are not finite at token [2-6] of {what}, so"
    ) as caught:
        made._draw([prompt], 2, 4, 7, greedy=greedy)
    assert isinstance(caught.value, ArithmeticError)


def test_a_token_that_can_never_be_drawn_is_no_lost_number():
    """A bias may ban a token with -inf: the others have a distribution."""
    weights = torch.randn(7, 4)
    bias = torch.zeros(7)
    bias[2] = -torch.inf
    found = distribution(Head(weights, bias), torch.randn(3, 4))
    assert _finite(found, 0, None) is found
