"""The smallest policy there is: one weight w that is the log-prob of every token, on completions given beforehand."""

from dataclasses import dataclass, replace

import torch

from posttrain.algorithms.base import Algorithm
from posttrain.batch import Batch, Problem, Rollouts, Scores, Signals
from posttrain.functional import weighting
from posttrain.trainer import Optimization, Trainer


class Scalar(torch.nn.Module):
    """Draws what it was given, row after row, and prices every token at w."""

    keyed = False

    def __init__(self, given: Rollouts, weight: float = 1.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(weight, dtype=torch.float64))
        self.given = given

    def sample(self, problems, group_size, stream, seed, step):
        return self.given

    def score(self, rollouts, where, *, support_ids=None, divergence=None, against=None, values=False):
        return Scores(self.weight * where, torch.zeros(where.shape, dtype=torch.float64))


@dataclass(frozen=True)
class Priced(Algorithm):
    """Each token costs w times what `Rollouts.entropy` says of it."""

    aggregation: str = "token_mean"

    @property
    def needs(self):
        return frozenset()

    def prepare(self, rollouts: Rollouts, signals: Signals) -> Batch:
        weight, normaliser = getattr(weighting, self.aggregation)(rollouts.mask, torch.float64)
        return Batch(rollouts, weight, normaliser, advantages=rollouts.entropy)

    def loss(self, scores: Scores, batch: Batch):
        return scores.logprobs * batch.advantages


def completions(costs: list[list[float]], truncated: list[bool] | None = None) -> Rollouts:
    """One row a completion, with the cost of each of its tokens."""
    rows, length = len(costs), max(map(len, costs))
    cost = torch.zeros(rows, length, dtype=torch.float64)
    for row, values in enumerate(costs):
        cost[row, : len(values)] = torch.tensor(values, dtype=torch.float64)
    mask = torch.arange(length) < torch.tensor([[len(values)] for values in costs])
    number = torch.arange(rows)
    return Rollouts(
        prompt_ids=torch.zeros(rows, 1, dtype=torch.int64),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        completion_ids=torch.zeros(rows, length, dtype=torch.int64),
        mask=mask,
        logprobs=torch.zeros(rows, length, dtype=torch.float64),
        entropy=cost,
        truncated=torch.tensor(truncated or [False] * rows),
        texts=tuple(map(str, range(rows))),
        problem_ids=tuple(map(str, range(rows))),
        group_size=1,
        source=torch.zeros(rows, dtype=torch.int64),
        keys=torch.stack([0 * number, 0 * number, number, 0 * number], 1),
    )


def trainer(costs, truncated=None, algorithm: Algorithm | None = None, **options) -> Trainer:
    """Plain gradient descent at 0.1 from w = 1."""
    policy = Scalar(completions(costs, truncated))
    options = {"optim": "sgd", "learning_rate": 0.1, "problems_per_step": len(costs), **options}
    problems = [Problem(str(row), "", "") for row in range(len(costs))]
    algorithm = algorithm or Priced()
    return Trainer(algorithm, policy, policy, None, problems, None, None, Optimization(**options), seed=0)


def priced(of: Trainer) -> tuple[float, float]:
    """Loss and gradient of the step at w = 1."""
    problems = [replace(problem) for problem in of.problems]
    gradient = of.gradient(problems, of.policy.given)
    return of.step(1)["loss"], float(gradient)
