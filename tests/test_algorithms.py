"""The law suite over the whole registry, the dense references of law 5, and mutants that have to fail."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from posttrain.algorithms.base import per_token
from posttrain.algorithms.cispo import CISPO
from posttrain.algorithms.dapo import DAPO
from posttrain.algorithms.dpo import DPO
from posttrain.algorithms.dr_grpo import DrGRPO
from posttrain.algorithms.gkd import GKD
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.gspo import GSPO
from posttrain.algorithms.lightning_opd import LightningOPD
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.opsd import OPSD
from posttrain.algorithms.ppo import PPO
from posttrain.algorithms.reinforce import Reinforce
from posttrain.algorithms.rloo import RLOO
from posttrain.algorithms.sft import SFT
from posttrain.algorithms.simpo import SimPO
from posttrain.algorithms.sparse_opd import SparseOPD
from posttrain.algorithms.tip import TIP
from posttrain.functional import advantages, divergences, surrogates, weighting
from posttrain.functional.corrections import Correction
from posttrain.functional.selection import Select, keyed_uniforms, select
from posttrain.registry import algorithms
from posttrain.testing import (
    SETTINGS,
    LawBroken,
    Setting,
    check_algorithm,
    draw,
    moved,
    prepare,
    price,
    student_as_teacher,
    trainer_for,
)
from posttrain.testing.edits import cut
from posttrain.testing.references import law_7


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


# -- dense references: each loss written out again, in plain torch, from full distributions -------------------------


def token_mean(loss, mask):
    return (loss * mask).sum() / mask.sum()


def sequence_mean(loss, mask):
    """Every row with a token counts 1 in the denominator; one that was left out or could not be judged does not."""
    rows = [(row * keep).sum() / keep.sum() for row, keep in zip(loss, mask, strict=True) if keep.any()]
    return sum(rows) / len(rows)


def clip_loss(ratio, advantage, low, high):
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def judged(d):
    return d.mask & d.valid.flatten()[:, None]


def per_row(values):
    return values.flatten()[:, None]


def leave_one_out(rewards, valid):
    """Reward minus the mean of the other valid ones in its row of [R, N], one by one."""
    out = torch.zeros_like(rewards)
    for i, row in enumerate(rewards.tolist()):
        for j, reward in enumerate(row):
            others = [r for k, r in enumerate(row) if k != j and valid[i, k]]
            if valid[i, j] and others:
                out[i, j] = reward - sum(others) / len(others)
    return out


def group_mean(rewards, valid):
    out = torch.zeros_like(rewards)
    for i in range(len(rewards)):
        if valid[i].sum() > 1:
            out[i][valid[i]] = rewards[i][valid[i]] - rewards[i][valid[i]].mean()
    return out


def zscore(rewards, valid):
    out = group_mean(rewards, valid)
    for i in range(len(rewards)):
        if out[i].any():
            out[i] /= rewards[i][valid[i]].std(correction=1) + 1e-4
    return out


def reinforce_loss(a):
    def loss(d):
        rewards = d.rewards.view(1, -1)
        credit = leave_one_out(rewards, d.valid.view(1, -1)) if a.baseline == "batch" else d.rewards * d.valid
        return -(per_row(credit) * judged(d) * d.of(d.log_probs)).sum() / judged(d).any(1).sum()

    return loss


def rloo_loss(a):
    def loss(d):
        apart = (d.of(d.start) - d.of(d.reference)).sum(1).view_as(d.rewards)
        credit = leave_one_out(d.rewards - a.kl_coef * apart, d.valid)
        return -(per_row(credit) * judged(d) * d.of(d.log_probs)).sum() / judged(d).any(1).sum()

    return loss


def kl_term(kind, logp, ref, ratio):
    d = logp - ref
    k3 = (-d).exp() - 1 + d
    if kind == "k3_plus":
        return d * d / 2 - (d * d / 2).detach() + k3.detach()
    return {"k1": d, "k2": d * d / 2, "k3": k3, "ratio_k3": ratio * k3}[kind]


def grpo_loss(a):
    def loss(d):
        logp = d.of(d.log_probs)
        ratio = (logp - d.of(d.start)).exp()
        token = clip_loss(ratio, per_row(zscore(d.rewards, d.valid)), a.clip, a.clip)
        return sequence_mean(token + a.kl_coef * kl_term(a.kl, logp, d.of(d.reference), ratio), judged(d))

    return loss


def gspo_loss(a):
    def loss(d):
        log_ratio, total = d.of(d.log_probs) - d.of(d.start), torch.zeros(())
        for i, credit in enumerate(zscore(d.rewards, d.valid).flatten()):
            keep = judged(d)[i]
            if keep.any():
                total = total + clip_loss(log_ratio[i][keep].mean().exp(), credit, a.clip_low, a.clip_high)
        return total / judged(d).any(1).sum()

    return loss


def ppo_loss(a):
    def loss(d):
        mask, credit = judged(d), torch.zeros_like(d.start_values)
        k1 = d.of(d.start) - d.of(d.reference)
        for i, reward in enumerate(d.rewards.flatten()):
            following, carried, last = 0.0, 0.0, True
            for t in reversed(range(mask.shape[1])):
                if mask[i, t]:
                    now = (reward if last else 0.0) - a.kl_coef * k1[i, t]
                    carried = now + a.gamma * following - d.start_values[i, t] + a.gamma * a.lam * carried
                    credit[i, t], following, last = carried, d.start_values[i, t], False
        returns = credit + d.start_values
        white = (credit - credit[mask].mean()) / credit[mask].std(correction=0)
        near = d.start_values + (d.values - d.start_values).clamp(-a.value_clip, a.value_clip)
        value = torch.maximum((d.values - returns) ** 2, (near - returns) ** 2) / 2
        policy = clip_loss((d.of(d.log_probs) - d.of(d.start)).exp(), white, a.clip, a.clip)
        return token_mean(policy + a.value_coef * value, mask)

    return loss


def dpo_loss(a):
    def loss(d):
        ratios = (d.of(d.log_probs) - d.of(d.reference)).sum(1)
        right = torch.sigmoid(a.beta * (ratios[0::2] - ratios[1::2]))
        return -((1 - a.smoothing) * right.log() + a.smoothing * (1 - right).log()).mean()

    return loss


def opd_loss(a):
    def loss(d):
        credit = a.coefficient * (d.of(d.teacher) - d.of(d.start))
        credit = credit + a.reward_weight * per_row(group_mean(d.rewards, d.valid))
        token = -(d.of(d.log_probs) - d.of(d.start)).exp() * credit * d.mask
        return token.sum() / (d.mask.sum() if a.normaliser == "tokens" else d.mask.any(1).sum())

    return loss


def lightning_loss(a):
    def loss(d):
        ratio = (d.of(d.log_probs) - d.of(d.start)).exp()
        return token_mean(clip_loss(ratio, d.of(d.teacher) - d.of(d.start), a.clip, a.clip), d.mask)

    return loss


def kl(p, q):
    return (p * (p / q).log()).sum(-1)


def distance(kind, beta, p, q):
    """Between probabilities [..., V] of student and teacher."""
    if kind == "forward_kl" or (kind == "jsd" and beta == 0):
        return kl(q, p)
    if kind == "reverse_kl" or beta == 1:
        return kl(p, q)
    middle = beta * q + (1 - beta) * p
    return beta * kl(q, middle) + (1 - beta) * kl(p, middle)


def dr_grpo_loss(a):
    def loss(d):
        ratio, keep = (d.of(d.log_probs) - d.of(d.start)).exp(), judged(d)
        token = clip_loss(ratio, per_row(group_mean(d.rewards, d.valid)), a.clip, a.clip)
        return (token * keep).sum() / (a.length * keep.any(1).sum())

    return loss


def dapo_loss(a):
    def loss(d):
        ratio = (d.of(d.log_probs) - d.of(d.start)).exp()
        keep = judged(d) & ~d.rollouts.truncated[:, None] if a.overlong_filter else judged(d)
        return token_mean(clip_loss(ratio, per_row(zscore(d.rewards, d.valid)), a.clip_low, a.clip_high), keep)

    return loss


def cispo_loss(a):
    def loss(d):
        logp = d.of(d.log_probs)
        constant = (logp - d.of(d.start)).exp().detach().clamp(a.cap_low, a.cap_high)
        return token_mean(-constant * per_row(zscore(d.rewards, d.valid)) * logp, judged(d))

    return loss


def sft_loss(a):
    aggregate = token_mean if a.normaliser == "tokens" else sequence_mean
    return lambda d: aggregate(-d.of(d.log_probs), d.mask)


def opsd_loss(a):
    return lambda d: token_mean(distance(a.kind, a.beta, d.log_probs.exp(), d.teacher.exp()), d.mask)


def simpo_loss(a):
    def loss(d):
        mean = (d.of(d.log_probs) * d.mask).sum(1) / d.mask.sum(1).clamp(min=1)
        full = d.mask.any(1).view(-1, 2).any(1)
        return -torch.log(torch.sigmoid(a.beta * (mean[0::2] - mean[1::2]) - a.margin))[full].mean()

    return loss


def gkd_loss(a):
    def loss(d):
        p, q = d.log_probs.exp(), d.teacher.exp()
        if a.support is not None and a.support < p.shape[-1]:
            best = q.argsort(-1, descending=True)[..., : a.support]
            sampled = d.rollouts.completion_ids[..., None]
            best[..., -1:] = torch.where((best == sampled).any(-1, keepdim=True), best[..., -1:], sampled)
            p, q = (torch.cat([x.gather(-1, best), 1 - x.gather(-1, best).sum(-1, keepdim=True)], -1) for x in (p, q))
        return token_mean(distance(a.kind, a.beta, p, q), d.mask)

    return loss


def tip_loss(a):
    def loss(d):
        start = d.start.exp()
        h, apart = -(start * d.start).sum(-1), kl(start, d.teacher.exp())
        low, high = ((x - x[d.mask].min()) / (x[d.mask].max() - x[d.mask].min()) for x in (h, apart))
        draws = keyed_uniforms(d.rollouts.keys, h.shape[1], stream=11)
        both = 1 - (1 - low) * (1 - high)
        score = {"soft_or": both, "entropy": h, "divergence": apart, "random": draws}[a.score]
        places = [(i, t) for i, row in enumerate(d.mask.tolist()) for t, real in enumerate(row) if real]
        kept = torch.zeros_like(d.mask)
        for place in sorted(places, key=lambda place: -float(score[place]))[: math.ceil(a.keep * len(places))]:
            kept[place] = True  # equal states tie; the sort is stable, so the first of them is kept
        return token_mean(kl(d.log_probs.exp(), d.teacher.exp()), kept)

    return loss


def kept_by(rule, score, d, mask):
    """The selection, token by token in plain Python; random rules are the package's own."""
    if rule.rule in ("random", "trajectories"):
        return select(rule, None, mask, d.rollouts.group_size, d.rollouts.keys)
    kept, sizes = torch.zeros_like(mask), {"completion": 1, "group": d.rollouts.group_size, "batch": len(mask)}
    together = sizes[rule.scope] if rule.reads_scores else 1
    for start in range(0, len(mask), together):
        places = [(i, t) for i in range(start, start + together) for t in range(mask.shape[1]) if mask[i, t]]
        rising = sorted(places, key=lambda place: float(score[place]))
        share = max(1, math.ceil(rule.fraction * len(places)))
        chosen = {
            "all": places, "highest": rising[-rule.k :], "lowest": rising[: rule.k],
            "extremes": rising[: rule.low] + rising[len(rising) - min(rule.high, len(rising)) :],
            "tails": rising[:share] + rising[-share:], "top_fraction": rising[-share:],
            "first": places[: rule.k], "last": places[-rule.k :], "interval": places[:: rule.k],
        }[rule.rule]  # fmt: skip
        for place in chosen:
            kept[place] = True
    return kept


def sparse_loss(a):
    def loss(d):
        credit = d.of(d.teacher) - d.of(d.start)
        score = {"log_ratio": credit, "abs_log_ratio": credit.abs(), "logprob": d.of(d.start)}[a.score]
        mask = judged(d) if a.credit == "outcome" else d.mask
        kept = kept_by(a.select, score, d, mask)
        outcome, negative = per_row(group_mean(d.rewards, d.valid)), -torch.ones_like(score)
        credit = {"teacher": credit, "outcome": outcome, "constant_negative": negative}[a.credit]
        logp = d.of(d.log_probs)
        clipped = clip_loss((logp - d.of(d.start)).exp(), credit, a.clip, a.clip)
        token = clipped if a.surrogate == "clip" else -credit * logp
        if a.normaliser == "kept":
            return token_mean(token, kept)
        length = mask.sum(1)
        return ((token * kept).sum(1)[length > 0] / length[length > 0]).mean()

    return loss


# -- every algorithm, in the settings that matter -------------------------------------------------------------------

RULES = [
    Select("all"), Select("highest", k=2), Select("lowest", k=2), Select("extremes", low=1, high=2),
    Select("tails", fraction=0.3), Select("random", k=2), Select("first", k=2), Select("last", k=2),
    Select("interval", k=2), Select("trajectories", k=2), Select("top_fraction", fraction=0.4),
    Select("highest", k=3, scope="group"), Select("extremes", scope="batch", low=4, high=3),
    Select("random", k=3, scope="group"), Select("top_fraction", fraction=0.2, scope="batch"),
]  # fmt: skip
RECORDED = SparseOPD(Select("highest", k=2, scope="group"), "abs_log_ratio", "outcome", "kept", "reinforce")
INSTANCES = {
    "sparse-opd": (
        sparse_loss,
        [
            SparseOPD(),
            *(SparseOPD(select=rule) for rule in RULES),
            *(SparseOPD(normaliser="kept", surrogate=surrogate) for surrogate in ("clip", "reinforce")),
            SparseOPD(surrogate="reinforce"),
            SparseOPD(clip=0.02),
            *(SparseOPD(credit=credit) for credit in ("outcome", "constant_negative")),
            SparseOPD(score="logprob", select=Select("lowest", k=2), credit="constant_negative"),
            RECORDED,
        ],
    ),
    "opd": (opd_loss, [OPD(), OPD(2.0), OPD(reward_weight=0.7), OPD(normaliser="sequence_sum")]),
    "lightning-opd": (lightning_loss, [LightningOPD(), LightningOPD(clip=0.02)]),
    "gkd": (
        gkd_loss,
        [
            GKD(),
            *(GKD(kind, student_share=1.0) for kind in ("forward_kl", "reverse_kl")),
            *(GKD("jsd", beta) for beta in (0.0, 0.1, 1.0)),
            GKD(student_share=0.0),
            *(GKD(kind, 0.3, support=2) for kind in ("forward_kl", "reverse_kl", "jsd")),
            GKD(support=4),
        ],
    ),
    "tip": (tip_loss, [TIP(), TIP(1.0), *(TIP(0.3, score) for score in ("entropy", "divergence", "random"))]),
    "reinforce": (reinforce_loss, [Reinforce(), Reinforce("none")]),
    "rloo": (rloo_loss, [RLOO(), RLOO(0.0), RLOO(0.5)]),
    "grpo": (
        grpo_loss,
        [GRPO(), GRPO(kl_coef=0.0), *(GRPO(0.1, 0.5, kind) for kind in ("k1", "k2", "k3", "k3_plus", "ratio_k3"))],
    ),
    "gspo": (gspo_loss, [GSPO(), GSPO(0.05, 0.1)]),
    "ppo": (ppo_loss, [PPO(), PPO(kl_coef=0.0, lam=1.0), PPO(0.1, 0.05, 2.0, 0.3, 0.9, 0.5), PPO(lam=0.0)]),
    "dpo": (dpo_loss, [DPO(), DPO(2.0, 0.1)]),
    "dr-grpo": (dr_grpo_loss, [DrGRPO(), DrGRPO(0.05, 8), DrGRPO(correction=Correction("tis"))]),
    "dapo": (dapo_loss, [DAPO(), DAPO(0.05, 0.1, False), DAPO(correction=Correction("icepop"))]),
    "cispo": (cispo_loss, [CISPO(), CISPO(0.9, 1.05)]),
    "sft": (sft_loss, [SFT(), SFT("sequence_mean")]),
    "opsd": (opsd_loss, [OPSD(), OPSD("forward_kl"), OPSD("reverse_kl"), OPSD("jsd", 0.1)]),
    "simpo": (simpo_loss, [SimPO(), SimPO(10.0, 0.0)]),
}


def cases():
    """Every registered name, plugins of this process included, with its settings and references where we have them."""
    for name in algorithms.names():
        reference, instances = INSTANCES.get(name, (None, None))
        for made in instances or [algorithms.get(name)()]:
            yield pytest.param(made, reference and reference(made), id=str(made) if reference else name)


def rests(made):
    """Whether a teacher equal to the student leaves nothing to learn."""
    if isinstance(made, SparseOPD):
        return made.credit == "teacher"
    return isinstance(made, GKD | TIP | LightningOPD | OPSD) or (isinstance(made, OPD) and not made.reward_weight)


@pytest.mark.parametrize(("made", "reference"), list(cases()))
def test_an_algorithm_obeys_the_laws_and_equals_its_dense_reference(made, reference):
    check_algorithm(made, reference=reference, at_rest=rests(made))


def test_every_algorithm_of_the_package_has_a_dense_reference():
    own = {name for name in algorithms.names() if algorithms.get(name).__module__.startswith("posttrain.algorithms")}
    assert own == set(INSTANCES)


def test_an_algorithm_that_a_plugin_registers_is_among_the_cases(monkeypatch):
    monkeypatch.setattr(algorithms, "names", lambda: ["from-outside"])
    monkeypatch.setattr(algorithms, "get", {"from-outside": RLOO}.get)
    assert [(case.id, case.values) for case in cases()] == [("from-outside", (RLOO(), None))]


def test_the_report_lists_what_held_and_what_was_not_looked_at():
    report = check_algorithm(DPO)
    assert {line.split(",")[0] for line in report.checked} == {"law 1", "law 2", "law 3", "law 9"}
    missing = " ".join(report.unchecked)
    for law in ("law 4", "law 5", "law 6", "law 7", "law 8", "law 10"):
        assert law in missing
    assert "holds        law 1" in str(report) and "not checked  law 8" in str(report)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_step_the_laws_are_tried_on_is_not_an_easy_one(setting):
    trainer = trainer_for(GRPO(), setting)
    step = prepare(trainer, *draw(trainer))
    lengths, valid = step.rollouts.mask.sum(1).view(-1, 3), step.signals.rewards.valid
    assert 0 in lengths and (lengths.amin(1) < lengths.amax(1)).any(), "ragged groups and an empty completion"
    assert (~valid).any() and (valid.sum(1) >= 2).any(), "failed rewards beside values"
    credit, where = step.batch.advantages, step.batch.where
    with moved(trainer):
        scores = trainer.policy.score(step.rollouts, where)
        log_ratio = scores.logprobs - step.batch.rollouts.logprobs
        clipped = surrogates.clipped(log_ratio, credit, 0.2, 0.2) & where
    assert clipped.any() and (where & ~clipped & (credit != 0)).any(), "a clip that binds for some tokens only"


# -- laws that speak about one algorithm ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "equal"),
    [
        (SparseOPD(Select("all"), normaliser="kept"), LightningOPD()),
        (SparseOPD(Select("tails", fraction=1.0)), SparseOPD(Select("all"))),
        (SparseOPD(Select("top_fraction", fraction=1.0, scope="batch")), SparseOPD(Select("all"))),
        (SparseOPD(Select("random", k=5)), SparseOPD(Select("interval", k=1))),
        (TIP(keep=1.0), GKD("reverse_kl", student_share=1.0)),
        (TIP(keep=1.0, score="random"), TIP(keep=1.0)),
        (GKD("jsd", 0.0), GKD("forward_kl")),
        (GKD("jsd", 1.0), GKD("reverse_kl")),
        (GKD("jsd", 0.3, support=4), GKD("jsd", 0.3)),
        (GKD("forward_kl", support=4, student_share=1.0), GKD("forward_kl", student_share=1.0)),
        (GRPO(kl_coef=0.0), GRPO(kl_coef=0.0, kl="k1")),
    ],
    ids=str,
)
def test_a_setting_at_its_limit_equals_the_algorithm_it_becomes(made, equal):
    assert any(line.startswith("law 7") for line in check_algorithm(made, reference=equal).checked)


def test_f7_with_one_token_a_completion_the_sequence_ratio_is_the_token_ratio():
    bandit = Setting("bandit", positions=1, candidates=5)
    law_7(GSPO(0.1, 0.1), bandit, GRPO(clip=0.1, kl_coef=0.0))
    with pytest.raises(LawBroken, match="law 7"):
        law_7(GSPO(0.1, 0.1), SETTINGS[0], GRPO(clip=0.1, kl_coef=0.0))


def test_with_one_group_the_batch_baseline_is_leave_one_out_in_the_group():
    law_7(RLOO(0.0), Setting("tree", problems=1), Reinforce())


@pytest.mark.parametrize("made", [GRPO(kl_coef=0.0), GSPO(), RLOO(0.0), Reinforce(), RECORDED], ids=str)
def test_groups_without_variance_have_zero_loss_gradient_and_no_nan(made):
    trainer = trainer_for(made)
    problems, rollouts = draw(trainer)
    rewards = prepare(trainer, problems, rollouts).signals.rewards
    level = replace(rewards, values=torch.full_like(rewards.values, 0.1))  # 0.1 has no exact mean in binary
    step = prepare(trainer, problems, rollouts, rewards=level)
    with moved(trainer):
        found = price(trainer, step)
    assert found.loss == 0 and not found.gradient.any()


def test_a_row_that_keeps_nothing_counts_in_the_response_length_denominator_and_one_without_tokens_does_not():
    """Of N rows, `trajectories` keeps some: all N are divided by. With half of the rows empty, N / 2 are."""
    trainer = trainer_for(SparseOPD(select=Select("trajectories")))
    problems, rollouts = draw(trainer, ragged=False)
    half = rollouts.mask.clone()
    half[::2] = False
    sparse, empty = (prepare(trainer, problems, r).batch for r in (rollouts, cut(rollouts, half)))
    assert sparse.where.any(1).sum() < len(half)
    assert sparse.normaliser.sum() == len(half)
    assert empty.normaliser.sum() == len(half) / 2


@pytest.mark.parametrize("made", [GKD(student_share=1.0), TIP(), PPO(), SparseOPD()], ids=str)
def test_minibatches_read_their_own_rows_and_add_up_to_the_step(made):
    """Each minibatch divides by its own total: the gradients, times their totals, add up to that of the whole."""
    trainer = trainer_for(made)
    step = prepare(trainer, *draw(trainer))
    with moved(trainer):
        whole = price(trainer, step)
        parts, start = torch.zeros_like(whole.gradient), 0
        for batch in step.batch.minibatches(1):
            rows = slice(start, start + len(batch.rollouts.texts))
            states = None if step.states is None else replace(step.states, hidden=step.states.hidden[rows])
            part = price(trainer, replace(step, batch=batch, states=states))
            parts, start = parts + part.gradient * batch.normaliser.sum(), rows.stop
    torch.testing.assert_close(parts, whole.gradient * step.batch.normaliser.sum(), rtol=1e-12, atol=1e-14)


# -- mutants: each breaks one law, and the suite says which ---------------------------------------------------------


def with_prepare(made, change):
    """The algorithm with another `prepare`: change(batch, rollouts, signals) -> batch."""

    @dataclass(frozen=True)
    class Mutant(type(made)):
        def prepare(self, rollouts, signals):
            return change(super().prepare(rollouts, signals), rollouts, signals)

    return Mutant(**vars(made))


def with_loss(made, change):
    """The algorithm with another `loss`: change(loss, scores, batch) -> loss."""

    @dataclass(frozen=True)
    class Mutant(type(made)):
        def loss(self, scores, batch):
            return change(super().loss(scores, batch), scores, batch)

    return Mutant(**vars(made))


def batch_mean(batch, rollouts, signals):
    rewards = signals.rewards
    centred = (rewards.values - rewards.values[rewards.valid].mean()) * rewards.valid
    return replace(batch, advantages=per_token(centred, rollouts))


def failures_count_as_their_value(batch, rollouts, signals):
    values = signals.rewards.values
    return replace(batch, advantages=per_token(values - values.mean(1, keepdim=True), rollouts))


def the_row_before_is_the_baseline(batch, rollouts, signals):
    values = signals.rewards.values * signals.rewards.valid
    return replace(batch, advantages=per_token(values - values.roll(1, 1), rollouts))


def weigh_where_the_teacher_is_silent(batch, rollouts, signals):
    weight, normaliser = weighting.token_mean(rollouts.mask, torch.float64)
    return replace(batch, weight=weight, normaliser=normaliser)


def divide_by_the_kept(batch, rollouts, signals):
    kept = batch.weight != 0
    return replace(batch, weight=kept / kept.sum(1, keepdim=True).clamp(min=1))


def divide_by_nothing(batch, rollouts, signals):
    return replace(batch, weight=rollouts.mask / rollouts.mask.sum(1, keepdim=True).to(batch.weight))


def population_deviation(batch, rollouts, signals):
    return replace(batch, advantages=batch.advantages * math.sqrt(3 / 2))


def ratio_to_the_teacher(batch, rollouts, signals):
    return replace(batch, rollouts=replace(rollouts, logprobs=signals.teacher.logprobs))


def direct_k1(loss, scores, batch):
    return scores.logprobs - batch.teacher.logprobs.detach()


def raw_support(loss, scores, batch):
    p, q = scores.support_logprobs, batch.teacher.support_logprobs.detach()
    return (p.exp() * (p - q)).sum(-1)


def detached_kl(loss, scores, batch):
    log_ratio = scores.logprobs - batch.rollouts.logprobs
    apart = divergences.kl_estimator("k2", scores.logprobs.detach(), batch.reference.logprobs)
    return surrogates.ppo_clip(log_ratio, batch.advantages, 0.2, 0.2) + 0.04 * apart


def scaled_by_all_columns(loss, scores, batch):
    return loss * batch.rollouts.entropy.sum(1, keepdim=True)


def no_value_term(loss, scores, batch):
    return surrogates.reinforce(scores.logprobs, batch.advantages)


def own_whitening(loss, scores, batch):
    white = advantages.whiten(batch.advantages, batch.where)
    return surrogates.reinforce(scores.logprobs, white)


def reverse_kl_of_visited_states(d):
    """Law 8 for token distillation: the KL of each state, visits detached, per token of equally long completions."""
    states = d.chances.detach()[:, None] * kl(d.log_probs.exp(), d.teacher.exp())
    return (states * d.mask).sum() / d.mask.shape[1]


MUTANTS = {
    "a loss reduced to a number": (1, with_loss(GRPO(), lambda loss, scores, batch: loss.mean())),
    "a mean over the micro-batch": (1, with_loss(GRPO(), lambda loss, scores, batch: loss.mean().expand(loss.shape))),
    "whitening per micro-batch": (1, with_loss(GRPO(kl_coef=0.0), own_whitening)),
    "a division by the padded length": (1, with_loss(OPD(), lambda loss, scores, batch: loss / loss.shape[1])),
    "a baseline over the step under scope group": (2, with_prepare(GRPO(), batch_mean)),
    "a sum beyond the mask": (2, with_loss(OPD(), scaled_by_all_columns)),
    "a failed reward that counts": (2, with_prepare(RLOO(0.0), failures_count_as_their_value)),
    "a baseline from the row before": (2, with_prepare(RLOO(0.0), the_row_before_is_the_baseline)),
    "weight where the teacher is silent": (3, with_prepare(OPD(), weigh_where_the_teacher_is_silent)),
    "a mean of no tokens": (3, with_prepare(OPD(), divide_by_nothing)),
    "a truncated support without its tail": (4, with_loss(GKD(support=2), raw_support)),
    "a sparse mask that changes the denominator": (5, with_prepare(SparseOPD(), divide_by_the_kept)),
    "the population deviation for the sample deviation": (5, with_prepare(GRPO(), population_deviation)),
    "a ratio to the teacher": (6, with_prepare(OPD(), ratio_to_the_teacher)),
    "back-propagation through k1": (8, with_loss(LightningOPD(), direct_k1)),
    "an advantage with a gradient": (
        9,
        with_loss(OPD(), lambda loss, scores, batch: -batch.advantages * scores.logprobs),
    ),
    "a KL term that reaches no parameter": (9, with_loss(GRPO(), detached_kl)),
    "a critic that is never trained": (9, with_loss(PPO(), no_value_term)),
    "a loss of constants": (9, with_loss(OPD(), lambda loss, scores, batch: loss.detach())),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_breaks_its_law(name):
    law, mutant = MUTANTS[name]
    reference = {SparseOPD: sparse_loss, GRPO: grpo_loss}.get(type(mutant).__base__) if law == 5 else None
    objective = reverse_kl_of_visited_states if law == 8 else None
    with pytest.raises(LawBroken, match=f"law {law} .* is broken on a") as found:
        check_algorithm(mutant, reference and reference(mutant), objective, at_rest=law == 4)
    assert found.value.law == law


@pytest.mark.parametrize(
    ("made", "objective"),
    [
        (OPD(), reverse_kl_of_visited_states),
        (LightningOPD(), reverse_kl_of_visited_states),
        (Reinforce(), lambda d: -(d.chances * d.rewards.flatten()).sum()),
        (
            RLOO(0.3),
            lambda d: -(d.chances * (d.rewards[0] - 0.3 * (d.of(d.log_probs) - d.of(d.reference)).sum(1))).sum(),
        ),
    ],
    ids=["opd", "lightning-opd", "reinforce", "rloo"],
)
def test_an_objective_that_is_given_is_compared_with_the_mean_over_all_groups(made, objective):
    assert any(line.startswith("law 8") for line in check_algorithm(made, objective=objective).checked)


def test_a_point_of_rest_may_be_given_as_a_function():
    check_algorithm(GKD(), at_rest=student_as_teacher)
    with pytest.raises(LawBroken, match="law 4"):
        check_algorithm(GKD(), at_rest=lambda trainer: None)
