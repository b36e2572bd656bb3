"""One loss, two models: a candidate policy and a causal LM with the same logits (specs/algorithms.md 6.2, item 1)."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_lm_laws import MADE
from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerFast

from posttrain.algorithms.gspo import GSPO
from posttrain.policies.causal_lm import CausalLM, CausalLMPolicy
from posttrain.testing import Setting, draw, prepare, price, trainer_for
from posttrain.testing.edits import frozen

SETTINGS = [Setting("factored", temperature=0.7), Setting("tree", seed=1)]


class Table(torch.nn.Module):
    """A backbone whose hidden states are a candidate policy's logits: the prompt is the problem's row."""

    def __init__(self, candidate):
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation="sdpa")
        self.features, self.memory = candidate.features, candidate.memory
        self.weight = torch.nn.Parameter(candidate.weight.detach().clone())
        self.transition = torch.nn.Parameter(candidate.transition.detach().clone()) if self.memory else None

    def forward(self, input_ids, **ignored):
        steps = torch.arange(input_ids.shape[1]).clamp(max=self.features.shape[1] - 1)
        hidden = (self.features[input_ids[:, 0] % len(self.features)][:, steps] * self.weight).sum(-1)
        if self.transition is not None:
            before = input_ids.clone()
            before[:, 0] = hidden.shape[-1]  # the start symbol
            hidden = hidden + self.transition[before]
        return SimpleNamespace(last_hidden_state=hidden)


class TableLM(torch.nn.Module):
    """The face of a transformers model over it, with the identity as output layer."""

    def __init__(self, candidate):
        super().__init__()
        self.base_model = Table(candidate)
        size = candidate.features.shape[2]
        self.lm_head = torch.nn.Linear(size, size, bias=False, dtype=torch.float64)
        torch.nn.init.eye_(self.lm_head.weight)
        self.config, self.generation_config, self.device = PretrainedConfig(), GenerationConfig(), "cpu"

    def get_output_embeddings(self):
        return self.lm_head

    def get_input_embeddings(self):
        return self.lm_head

    def forward(self, input_ids, **ignored):
        return SimpleNamespace(logits=self.lm_head(self.base_model(input_ids).last_hidden_state))


def as_language_model(candidate, critic):
    """The candidate policy behind the causal LM's code; one of its words serves as end token."""
    from tokenizers import Tokenizer, models

    words = {word: place for place, word in enumerate(candidate.problems[0].candidates)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token=next(iter(words)))), eos_token=next(iter(words))
    )
    config = CausalLM(dtype="float64", temperature=candidate.config.temperature, chunk=5)
    made = CausalLMPolicy(config, TableLM(candidate), tokenizer, [], critic)
    made.model.lm_head.requires_grad_(False)
    return made


def pair(made, setting):
    """Two trainers for one step; the critics are zero, since theirs are two different functions of the state."""
    candidate = trainer_for(made, setting)
    critic = "values" in made.needs
    if critic:
        torch.nn.init.zeros_(candidate.policy.critic)
    language = replace(
        candidate,
        policy=as_language_model(candidate.policy, critic),
        reference=as_language_model(candidate.reference, False),
        teacher=frozen(as_language_model(candidate.teacher.policy, False)),
    )
    return candidate, language


def move(trainer):
    """The same noise on both, in the order in which both list weight and transition."""
    moved = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainer.parameters[: 1 + (trainer.policy_memory > 0)]:
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=moved, dtype=torch.float64))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("made", MADE, ids=str)
def test_equal_logits_give_an_equal_loss_and_an_equal_gradient(made, setting):
    candidate, language = pair(made, setting)
    problems, rollouts = draw(candidate)
    found = []
    for trainer in (candidate, language):
        trainer.policy_memory = candidate.policy.memory
        step = prepare(trainer, problems, rollouts)
        move(trainer)
        found.append(price(trainer, step, micro=3 * trainer.options.group_size))
    size = sum(parameter.numel() for parameter in candidate.parameters[: 1 + (candidate.policy.memory > 0)])
    expected, other = (priced.gradient[:size] for priced in found)
    assert found[1].loss == pytest.approx(found[0].loss, rel=1e-12, abs=1e-14)
    assert float((expected - other).abs().max()) <= 1e-12 * float(expected.abs().max())
    assert expected.any() or isinstance(made, GSPO)  # its clip is narrow, and the policy has moved
