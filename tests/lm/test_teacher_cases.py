"""Faults that users of similar tools met with teachers and references, with the right values."""

import math
from dataclasses import replace

import pytest
import tiny_lm
import torch

from posttrain.algorithms.gkd import GKD
from posttrain.batch import Problem, Signals
from posttrain.policies.base import Divergence
from posttrain.policies.causal_lm import CausalLM, CausalLMPolicy
from posttrain.policies.lm_loading import Lora
from posttrain.policies.vocabulary import same_vocabulary
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError
from posttrain.tracking import Averages, track_step

WORDS = (*tiny_lm.WORDS[:6], "w0", "w1", "w2", "w3")  # ten real ids, of which the last four are ordinary words
FIRST = 6
NEVER = -1e4  # a logit whose probability is exactly zero
ASKED = [Problem("p", "w0 w1", "w0", responses=("w0 w0 w0",))]


def flat(logits: list[float], rows: int | None = None, **options) -> CausalLMPolicy:
    """A policy whose next-token logits are the same everywhere: its hidden states are all ones."""
    rows = rows or len(logits)
    made = tiny_lm.model("llama", vocabulary=rows)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.fill_(0.0 if "_proj" in name else 1.0)
        made.lm_head.weight.zero_()
        made.lm_head.weight[:, 0] = torch.tensor(logits, dtype=torch.float64)
    config = CausalLM(dtype="float64", max_completion_tokens=6, **options)
    policy = CausalLMPolicy(config, made, tiny_lm.tokenizer(words=WORDS), ASKED, False)
    return policy


def over_words(probabilities: list[float]) -> list[float]:
    """Logits over ten ids that put everything on the last four."""
    return [NEVER] * FIRST + [math.log(p) for p in probabilities]


def rows(policy):
    """The three words of the data row, without its end: that has no probability here."""
    found = policy.respond(ASKED, 0, 1)
    return replace(found, mask=found.mask & (found.completion_ids == FIRST))


def kl(student, teacher) -> float:
    """Reverse KL per token, full vocabulary."""
    found = student.score(rows(student), rows(student).mask, divergence=Divergence("reverse_kl"),
                          against=teacher.states(rows(student)))  # fmt: skip
    assert found.divergence is not None
    return float(found.divergence.detach()[rows(student).mask].mean())


# -- BR-15: vocabulary sizes ------------------------------------------------------------------------------------------


def test_br_15_rows_without_a_token_are_cut_before_the_softmax_and_the_divergence_is_zero():
    """Ten ids, twelve rows, the two phantoms at logit 5: 96.7 % of a softmax over all rows would be theirs."""
    student, teacher = flat([0.0] * 10), flat([0.0] * 10 + [5.0] * 2)
    same_vocabulary(student.vocabulary, teacher.vocabulary)
    assert kl(student, teacher) == 0.0
    targets = teacher.targets(rows(student), rows(student).mask, 12)
    assert targets.support_ids.shape[-1] == 10
    assert torch.allclose(targets.support_logprobs.exp().sum(-1)[targets.mask], torch.ones(1).double(), atol=1e-12)
    assert torch.allclose(targets.logprobs[targets.mask], torch.tensor(math.log(0.1)).double(), atol=1e-12)
    sliced = torch.log_softmax(torch.tensor([0.0] * 10 + [5.0] * 2, dtype=torch.float64), 0)[:10]
    assert float(sliced.exp().sum()) == pytest.approx(0.0326, abs=1e-4)


def test_br_15_another_vocabulary_is_refused_before_training_with_both_sizes():
    student, other = flat([0.0] * 10), tiny_lm.policy()
    with pytest.raises(ConfigError, match=r"first id that differs is 10: .*\(10 ids\).*\(60 ids\)"):
        same_vocabulary(student.vocabulary, other.vocabulary)


@pytest.mark.parametrize("target", ["all-linear", "q_proj,v_proj"])
def test_br_15_an_added_token_and_its_new_row_come_back_with_the_adapter(tmp_path, target):
    words = (*tiny_lm.WORDS, "w54")
    made = tiny_lm.model("llama", torch.float32)
    made.resize_token_embeddings(len(words))
    with torch.no_grad():
        made.get_input_embeddings().weight[-1].fill_(0.31)
        made.get_output_embeddings().weight[-1].fill_(-0.17)
    given = [Problem("p", "w54 w1", "w54", responses=("w54 w2 w54",))]
    config = CausalLM(max_completion_tokens=6, lora=Lora(4, target_modules=target))
    policy = CausalLMPolicy(config, made, tiny_lm.tokenizer(words=words), given, False)
    optimizer = torch.optim.SGD([p for p in policy.parameters() if p.requires_grad], lr=0.5)
    shown = policy.respond(given, 0, 1)
    for _ in range(3):
        optimizer.zero_grad()
        (-policy.score(shown, shown.mask).logprobs.sum()).backward()
        optimizer.step()
    policy.save(tmp_path)
    again = CausalLM(model=str(tmp_path), max_completion_tokens=6).build(given, {}, False)
    ids = torch.tensor([[60, 7, 60, 8]])
    with torch.no_grad():
        assert torch.allclose(again.model(ids).logits, policy.model(ids).logits, atol=1e-5)
    assert again.vocabulary.size == 61
    assert torch.equal(again.model.get_input_embeddings().weight[-1], torch.full((32,), 0.31))


# -- BR-17: the teacher's top k ---------------------------------------------------------------------------------------

TEACHER, STUDENT = [0.5, 0.3, 0.1, 0.1], [0.6, 0.35, 0.03, 0.02]


def truncated(k: int, student: list[float], kind="forward_kl") -> tuple[float, float]:
    """The loss of GKD on the teacher's k best ids, per token, and the share of its mass that they hold."""
    policy, teacher = flat(over_words(student)), flat(over_words(TEACHER))
    made, shown = GKD(kind, student_share=0.0, support=k), rows(policy)
    targets = teacher.targets(shown, shown.mask, k)
    scores = policy.score(shown, shown.mask, support_ids=targets.support_ids)
    signals = Signals(teacher=targets)
    batch = made.prepare(shown, signals)
    averages = Averages()
    track_step(averages, shown, batch, signals)
    held = averages.means(Ranks())["teacher_support_mass"]
    return float(made.loss(scores, batch).detach()[shown.mask].mean()), held


def test_br_17_the_loss_on_a_support_is_the_bucket_divergence_and_says_what_it_leaves_out():
    """Full 0.143935, with one bucket for the tail 0.139853; the truncated sum, -0.137406, is offered nowhere."""
    two, held = truncated(2, STUDENT)
    assert two == pytest.approx(0.139853, abs=1e-6)
    assert held == pytest.approx(0.8, abs=1e-6)
    every, held = truncated(10, STUDENT)
    assert every == pytest.approx(0.143935, abs=1e-6)
    assert held == pytest.approx(1.0, abs=1e-12)


def test_br_17_a_bucket_does_not_see_what_happens_inside_the_tail():
    """Equal on the best two and different behind them: 0, which the algorithm names as its bias."""
    assert truncated(2, [0.5, 0.3, 0.19, 0.01])[0] == pytest.approx(0.0, abs=1e-12)
    assert "lower bound" in GKD(support=2).biases[0]


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
def test_br_17_the_bucket_form_lies_between_zero_and_the_full_divergence(kind):
    drawn = torch.distributions.Dirichlet(torch.full((4,), 0.7, dtype=torch.float64))
    torch.manual_seed(1)
    for _ in range(5):
        student = drawn.sample().clamp(min=1e-3).tolist()
        total = sum(student)
        student = [p / total for p in student]
        some, whole = (truncated(k, student, kind)[0] for k in (2, 10))
        assert -1e-12 <= some <= whole + 1e-12


# -- BR-38: the reference under adapters ------------------------------------------------------------------------------


def adapted(shift: float) -> CausalLMPolicy:
    """Base logits [0, 0] on two words; the adapter on the head adds `shift` to the first."""
    base = [NEVER] * FIRST + [0.0, 0.0, NEVER, NEVER]
    policy = flat(base, lora=Lora(1, target_modules="lm_head"))
    head = policy.model.lm_head
    with torch.no_grad():
        head.lora_A["default"].weight.fill_(1 / 32)  # of 32 ones: 1
        head.lora_B["default"].weight.zero_()
        head.lora_B["default"].weight[FIRST] = shift / head.scaling["default"]
    return policy


def test_br_38_the_reference_is_the_start_of_rl_and_not_the_adapter_switched_off():
    """Policy [0.731059, 0.268941]: 0.0 nats from its start, 0.110944 from the base."""
    policy = adapted(1.0)
    start, base = policy.snapshot(), flat([NEVER] * FIRST + [0.0, 0.0, NEVER, NEVER])
    assert float(policy.targets(rows(policy), rows(policy).mask).logprobs[0, 0].exp()) == pytest.approx(
        0.731059, abs=1e-6
    )
    assert kl(policy, start) == pytest.approx(0.0, abs=1e-12)
    assert kl(policy, base) == pytest.approx(0.110944, abs=1e-6)
    with torch.no_grad():
        policy.model.lm_head.lora_B["default"].weight[FIRST] = 0.0
    moved_back = 0.5 * math.log(0.5 / 0.731059) + 0.5 * math.log(0.5 / 0.268941)
    assert kl(policy, start) == pytest.approx(moved_back, abs=1e-6)  # from the start still, wherever the policy goes


def test_br_38_a_fresh_adapter_starts_at_its_base():
    policy = adapted(0.0)
    assert kl(policy, policy.snapshot()) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("fails", [False, True])
def test_br_38_asking_the_reference_leaves_modes_gradients_and_adapters_as_they_were(fails, monkeypatch):
    """Nothing is ever switched off to get at it, so nothing has to be switched on again, also after an error."""
    policy = adapted(1.0)
    reference, shown = policy.snapshot(), rows(policy)
    policy.score(shown, shown.mask).logprobs.sum().backward()

    def state():
        gradients = {n: None if p.grad is None else p.grad.clone() for n, p in policy.named_parameters()}
        modes = {name: module.training for name, module in policy.model.named_modules()}
        return (
            gradients,
            modes,
            list(policy.model.lm_head.active_adapters),
            [p.requires_grad for p in policy.parameters()],
        )

    before = state()
    if fails:
        monkeypatch.setattr(reference.model.base_model, "forward", lambda **_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reference.targets(shown, shown.mask)
    else:
        reference.targets(shown, shown.mask)
    after = state()
    assert before[1:] == after[1:]
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(before[0].values(), after[0].values(), strict=True))


def test_models_that_share_every_weight_and_compute_otherwise_are_told_apart():
    """A store of answers under one identity would serve one model the other's."""
    made, other = tiny_lm.policy(), tiny_lm.policy()
    assert made.identity() == other.identity()
    assert made.identity()["weights"] == other.identity()["weights"]
    other.model.config.rms_norm_eps = 0.5
    other.known_identity = None
    assert made.identity() != other.identity()
