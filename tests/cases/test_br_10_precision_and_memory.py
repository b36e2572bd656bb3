"""Case BR-10: log-probs in half precision, and the memory of full logits."""

from dataclasses import replace

import pytest
import tiny_lm
import torch

from posttrain.batch import Problem
from posttrain.policies.causal_lm import CausalLM, CausalLMPolicy
from posttrain.policies.lm_head import Head, Question, answer
from posttrain.policies.lm_projection import distribution
from posttrain.samplers.in_process import _next

V = 32768
COPY = 2 * 256 * V * 4  # bytes of one float32 copy of the logits of two rows of 256 tokens
SAMPLED = torch.tensor([0, 5, V - 1])


def test_br_10_a_equal_bf16_logits_give_minus_log_v():
    """BR-10 (a): -10.397208 from the trainer and from the sampler; a bf16 softmax gives -10.375."""
    head, hidden = Head(torch.zeros(V, 4, dtype=torch.bfloat16)), torch.zeros(3, 4, dtype=torch.bfloat16)
    found = answer(head, hidden, Question(SAMPLED)).logprobs
    assert found.tolist() == pytest.approx([-10.397208] * 3, abs=1e-6)
    _, recorded, _ = _next(distribution(head, hidden), torch.rand(3, dtype=torch.float64))
    assert recorded.tolist() == pytest.approx([-10.397208] * 3, abs=1e-6)
    assert torch.log_softmax(torch.zeros(V, dtype=torch.bfloat16), 0)[0].item() == -10.375


def test_br_10_b_bf16_logits_are_as_good_as_their_own_float64_softmax():
    """BR-10 (b): 1000 rows in [-20, 20], 1e-5 at most, and no log-prob above zero."""
    generator = torch.Generator().manual_seed(0)
    for rows in range(0, 1000, 250):
        # One hidden unit a row: the projection hands the row's own bf16 values on.
        logits = (40 * torch.rand(250, 2048, generator=generator) - 20).bfloat16()
        ids = torch.randint(0, 2048, (250,), generator=generator)
        weight, hidden = logits.T.contiguous(), torch.eye(250, dtype=torch.bfloat16)
        found = answer(Head(weight), hidden, Question(ids)).logprobs
        exact = torch.log_softmax(logits.double(), 1).gather(1, ids.unsqueeze(1)).squeeze(1)
        assert float((found - exact).abs().max()) <= 1e-5, rows
        assert float(found.max()) <= 0


def peak(work):
    """Peak bytes that the CPU allocator held above the start while `work` ran, and what `work` gave."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        given = work()
    most = held = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most, given


@pytest.fixture(scope="module")
def large():
    """A model over 32768 ids, and two completions of 56 tokens behind prompts of 200."""
    words = (*tiny_lm.WORDS, *(f"x{i}" for i in range(V - len(tiny_lm.WORDS))))
    problems = [Problem(f"p{i}", " ".join(["w1"] * 200), "", responses=(" ".join(["w3"] * 55),)) for i in range(2)]
    config = replace(CausalLM(), max_completion_tokens=56, max_prompt_tokens=256)
    model = tiny_lm.model("llama", torch.float32, vocabulary=V, max_position_embeddings=512)
    policy = CausalLMPolicy(config, model, tiny_lm.tokenizer(words=words), problems, False)
    rollouts = policy.respond(problems, 0, 0)
    assert rollouts.mask.sum(1).tolist() == [56, 56]
    assert rollouts.prompt_mask.sum(1).tolist() == [200, 200]
    return policy, rollouts


def test_br_10_c_the_chosen_log_probs_are_made_without_a_copy_of_all_logits(large):
    """BR-10 (c), B=2, T=256, V=32768: less than one float32 copy (67.1 MB); logits at 56 positions a row alone.

    The chunked loop over those 112 positions, 4 * 112 * V bytes a tensor, is the reference; its values are the oracle.
    """
    policy, rollouts = large
    assert pytest.approx(67.1e6, rel=1e-3) == COPY
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)

    def dense():
        with torch.no_grad():
            return torch.log_softmax(policy.model(ids).logits.float(), -1)[:, 199:-1]

    def ours():
        with torch.no_grad():
            return policy.score(rollouts, rollouts.mask).logprobs

    full, everything = peak(dense)
    found, logprobs = peak(ours)
    exact = everything.double().gather(2, rollouts.completion_ids.unsqueeze(2)).squeeze(2)
    assert float((logprobs.double() - exact).abs().max()) <= 1e-5
    assert full >= 2 * COPY  # the measure sees what it should
    assert found < 0.75 * COPY  # logits and their exponentials at 112 of 512 positions: 0.44 of a copy
    assert found >= 4 * 112 * V


def test_br_10_c_smaller_chunks_need_less_forward_and_backward(large):
    """BR-10 (c): with 8 positions a chunk, the whole update stays below a fifth of one copy beside the gradient."""
    policy, rollouts = large
    usual = policy.config
    policy.config = replace(usual, chunk=8)

    def update():
        policy.score(rollouts, rollouts.mask).logprobs.sum().backward()

    update()  # the gradients' own memory is there from now on
    found, _ = peak(update)
    policy.config = usual
    weights = sum(parameter.numel() * 4 for parameter in policy.parameters())
    assert found < COPY / 5 + weights
