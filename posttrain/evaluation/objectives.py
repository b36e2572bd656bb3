"""Objectives as formulas in the code's own names, for the pages of methods.

`ratio = exp(scores.logprobs - rollouts.logprobs)`, `L` is the length of a completion, names after `algorithm.` are the
method's options. A method that has none here is described by its docstring alone.
"""

from __future__ import annotations

_CLIPPED = "loss[b, t]   = -min(ratio * advantage, clip(ratio, 1 - clip, 1 + clip) * advantage)"

OBJECTIVES = {
    "sparse-opd": f"""\
advantage    = teacher.logprobs - rollouts.logprobs          (credit: teacher)
kept         = select(score, rule, low, high)                the extremes of the advantage in each completion
{_CLIPPED}
weight       = kept / L, normaliser = 1                      (normaliser: response_length)
weight       = kept,     normaliser = kept tokens            (normaliser: kept)""",
    "opd": """\
advantage    = teacher.logprobs - rollouts.logprobs
loss[b, t]   = priced by the surrogate with this advantage, every sampled token""",
    "lightning-opd": """\
rollouts     drawn once before training; teacher log-probs from the cache
advantage    = teacher.logprobs - student.logprobs at the start of the step
loss[b, t]   = priced as in opd""",
    "gkd": """\
loss[b, t]   = divergence(teacher, student) over the whole vocabulary
rollouts     = the student's own with probability student_share per problem, else data rows""",
    "tip": """\
loss[b, t]   = divergence(teacher, student) over the whole vocabulary
kept         = the share `keep` of the tokens with the highest score""",
    "reinforce": """\
advantage    = reward - baseline
loss[b, t]   = -advantage * scores.logprobs""",
    "rloo": """\
advantage[g] = reward[g] - mean of the other completions' rewards
loss[b, t]   = -advantage * scores.logprobs, or clipped by the ratio""",
    "grpo": f"""\
advantage    = (reward - mean of the group) / standard deviation of the group
{_CLIPPED}
             + kl_coef * estimate of KL(pi || pi_ref)
weight       = mask / L, normaliser = 1""",
    "gspo": """\
ratio[b]     = exp(mean over t of scores.logprobs - rollouts.logprobs), one per completion
advantage    = (reward - mean of the group) / standard deviation of the group
loss[b]      = -min(ratio * advantage, clip(ratio) * advantage)""",
    "ppo": f"""\
advantage    = generalised advantage estimate of reward at the last token and the critic's values
{_CLIPPED}
             + value loss of the critic""",
    "dpo": """\
margin       = (log pi - log pi_ref)(chosen) - (log pi - log pi_ref)(rejected)
loss[p]      = -(1 - smoothing) * log sigmoid(beta * margin) - smoothing * log sigmoid(-beta * margin)""",
}
