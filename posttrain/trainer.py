"""The only training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.algorithms.base import Algorithm
from posttrain.batch import Batch, Problem, Rewards, Rollouts, Scores, Signals, concatenate, concatenate_rewards
from posttrain.functional.selection import keyed_uniforms
from posttrain.judging import FailureWatch, count_outcomes, judge
from posttrain.microscope import answer_rows, token_rows
from posttrain.optimization import Optimization, optimizer_of, restore, state_of
from posttrain.phases import Phases
from posttrain.policies.base import Policy, States
from posttrain.ranks import Ranks
from posttrain.registry import ConfigError
from posttrain.rewards.base import Grader
from posttrain.shares import Shares, drawn, shares
from posttrain.teachers.base import Events, Teacher
from posttrain.tracking import Averages, Evaluator, Point, require_finite, track_step, track_update

SHOWN = 4  # held-out problems whose answers are kept as text
SAMPLE_STREAM = 4  # `default_rng([seed, SAMPLE_STREAM])`: completions that are only shown
SOURCE_STREAM = 3  # the coins that choose between the student's completions and data rows


@dataclass
class Outcome:
    """What one seed's training leaves behind."""

    baseline: Point
    final: Point
    history: list[dict[str, float]]
    last_diagnostics: dict[str, float]
    events: Events
    critic_updates: int
    refills: int
    phases: Phases


@dataclass
class Trainer:
    """One seed: a policy, what teaches it, and the loop that moves it. Nothing is global, nothing is shared."""

    algorithm: Algorithm
    policy: Policy
    reference: Policy
    teacher: Teacher | None
    problems: Sequence[Problem]
    grader: Grader
    evaluator: Evaluator
    options: Optimization
    seed: int
    ranks: Ranks = Ranks()
    report: Callable[[dict[str, Any]], None] = lambda row: None  # one row of metrics per step
    phases: Phases = field(default_factory=Phases)

    def __post_init__(self) -> None:
        self.stream = np.random.default_rng(self.seed)
        self.completed = 0  # steps
        self.baseline: Point | None = None
        self.history: list[dict[str, float]] = []
        self.answers: list[dict[str, Any]] = []  # greedy ones to the first held-out problems, of every evaluation
        self.diagnostics: dict[str, float] = {}
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.optimizer, self.scheduler = optimizer_of(self.parameters, self.options)
        self.critic_updates = self.refills = 0
        self.stored: list[Rollouts] | None = None
        self.watch = FailureWatch()
        self.counted: dict[str, int] = {}  # the step's outcomes, for its row alone

    def run(self) -> Outcome:
        """Trains to the end, from where it stands; raises NonFinite where a number is lost."""
        if self.baseline is None:
            self.baseline = self._evaluate(0)
            if self.algorithm.rollouts == "once":
                self._sample_once()
        for step in range(self.completed + 1, self.options.steps + 1):
            self.diagnostics = self.step(step)
            row = {"step": float(step), "loss": self.diagnostics["loss"]}
            due = step == 1 or step % self.options.evaluation_period == 0 or step == self.options.steps
            if due:
                self.history.append({**row, **self._evaluate(step)})
            self.completed = step
            measured = {**self.diagnostics, **self.counted, **(self.history[-1] if due else {})}
            self.report({"seed": self.seed, **row, **measured})
        final = {name: value for name, value in self.history[-1].items() if name not in ("step", "loss")}
        events = self.teacher.events(self.ranks.gather) if self.teacher else Events()
        counted = (events, self.critic_updates, self.refills)
        return Outcome(self.baseline, final, self.history, self.diagnostics, *counted, self.phases)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on and that `assemble` does not build again; asked for on all ranks."""
        stored = None if self.stored is None else concatenate(self.stored, range(len(self.stored)))
        taught = self.teacher.state_dict() if self.teacher else {}
        # Weights are the same on every rank; what was drawn (by dropout), counted and seen is each rank's own.
        own = {
            "torch_stream": torch.get_rng_state(),
            "cuda_streams": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "teacher": {name: value for name, value in taught.items() if name != "weights"},
        }
        return {
            "completed": self.completed,
            "baseline": self.baseline,
            "history": self.history,
            "answers": self.answers,
            "diagnostics": self.diagnostics,
            "counters": [self.critic_updates, self.refills],
            "failures": [list(step) for step in self.watch.steps],
            "phases": self.phases.state_dict(),
            **state_of(self.parameters, self.optimizer, self.scheduler),
            "stream": self.stream.bit_generator.state,
            "teacher_weights": taught.get("weights"),
            "own": self.ranks.gather(own),
            "stored": None if stored is None else {f.name: getattr(stored, f.name) for f in fields(stored)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from `state_dict` of a trainer that was assembled alike."""
        self.completed, self.baseline = state["completed"], state["baseline"]
        self.history, self.diagnostics = list(state["history"]), state["diagnostics"]
        self.answers = list(state["answers"])
        self.critic_updates, self.refills = state["counters"]
        self.watch.load(state["failures"])
        self.phases.load_state_dict(state["phases"])
        restore(state, self.parameters, self.optimizer, self.scheduler)
        self.stream.bit_generator.state = state["stream"]
        own = state["own"][self.ranks.rank]
        torch.set_rng_state(own["torch_stream"])
        if own["cuda_streams"]:
            torch.cuda.set_rng_state_all(own["cuda_streams"])
        if self.teacher:
            moved = {} if state["teacher_weights"] is None else {"weights": state["teacher_weights"]}
            self.teacher.load_state_dict({**own["teacher"], **moved})
        if state["stored"] is not None:
            texts = {name: tuple(state["stored"][name]) for name in ("texts", "problem_ids")}
            self._store(Rollouts(**{**state["stored"], **texts}))

    def step(self, step: int) -> dict[str, float]:
        """Rollouts, signals, one or more optimizer steps; gives the step's diagnostics."""
        with self.phases.measure("sample"):
            problems, rollouts, rewards = self._collect(step)
        self.phases.count("sample", int(rollouts.mask.sum()))
        signals, states = self._signals(problems, rollouts, rewards)
        self.counted = {} if signals.rewards is None else count_outcomes(signals.rewards)
        batch = self._prepared(rollouts, signals)
        whole, shared = Averages(), Averages()  # the step as every rank sees it; what each rank adds from its rows
        track_step(whole, rollouts, batch, signals, own=self.algorithm.rollouts == "sample")
        losses = []
        with self.phases.measure("update"):
            for _ in range(self.options.num_iterations):
                start = 0
                for minibatch in batch.minibatches(self.options.minibatch_problems):
                    losses.append(self._update(minibatch, start, states, shared))
                    require_finite(step, dict(zip(("loss", "gradient_norm"), losses[-1], strict=True)))
                    start += len(minibatch.shard(self.ranks.rank, self.ranks.size).rollouts.texts)
            self.scheduler.step()
            if self.teacher:
                self.teacher.after_update(step, self.policy)
        supervised, sampled = int(batch.where.sum()), int(rollouts.mask.sum())
        self.phases.count("update", supervised * self.options.num_iterations)
        measured = whole.means(Ranks())
        diagnostics = {  # the first ones in the order of the recorded artifacts
            "supervised_positions": float(supervised),
            "sampled_positions": float(sampled),
            "supervision_fraction": supervised / max(1, sampled),
            **{name: value for name, value in measured.items() if name == "selected_discrepancy"},
            "loss": -sum(-loss for loss, _ in losses) / len(losses),  # keeps the sign of a zero
            **measured,
            **shared.means(self.ranks),
            "gradient_norm": losses[-1][1],
        }
        require_finite(step, diagnostics)
        return diagnostics

    def gradient(self, problems: list[Problem], rollouts: Rollouts) -> Tensor:
        """The flat gradient of the loss of one step on these completions, without an update."""
        signals, states = self._signals(problems, rollouts)
        self.optimizer.zero_grad()
        self.accumulate(self._prepared(rollouts, signals), 0, states, Averages())
        self.ranks.sum_gradients(self.parameters)
        flat = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        return torch.cat([gradient.flatten() for gradient in flat]).clone()

    def samples(self, count: int = SHOWN) -> list[dict[str, Any]]:
        """Completions of the first held-out problems, drawn apart from the training stream."""
        problems = self.evaluator.problems[:count]
        drawn = self.policy.sample(
            problems, 1, np.random.default_rng([self.seed, SAMPLE_STREAM]), self.seed, self.options.steps
        )
        rows = token_rows(self.algorithm, self.policy, self.teacher, problems, drawn)
        return [{"seed": self.seed, "step": self.options.steps, "decoding": "sampled", **row} for row in rows]

    # -- one step ---------------------------------------------------------------------------------------------

    def _rollouts(self, step: int) -> tuple[list[Problem], Rollouts]:
        chosen = self.stream.integers(0, len(self.problems), size=self.options.problems_per_step).tolist()
        problems = [self.problems[i] for i in chosen]
        if self.stored is not None:
            return problems, concatenate([self.stored[i] for i in chosen], range(len(chosen)))
        return problems, self._draw(problems, step)

    def _collect(self, step: int) -> tuple[list[Problem], Rollouts, Rewards | None]:
        """A step's completions. Where the algorithm turns groups down by their rewards, up to `max_refills` others."""
        problems, rollouts = self._rollouts(step)
        if not self.algorithm.refills:
            return problems, rollouts, None
        rewards: Rewards | None = None
        kept: list[tuple[Rollouts, Rewards]] = []
        chosen: list[Problem] = []
        for refill in range(self.options.max_refills + 1):
            if refill:
                # A step number of its own, so that the new completions have keys of their own.
                problems, rollouts = self._rollouts(step + refill * self.options.steps)
                self.refills += 1
            rewards = self._judged(problems, rollouts)
            for group, good in enumerate(self.algorithm.accept(rollouts, rewards).tolist()):
                if good and len(chosen) < self.options.problems_per_step:
                    chosen.append(problems[group])
                    rows = slice(group * rollouts.group_size, (group + 1) * rollouts.group_size)
                    kept.append((rollouts.rows(rows), rewards.take([group])))
            if len(chosen) == self.options.problems_per_step:
                break
        # Where too few groups teach anything, the step trains on those there are, or on the last ones drawn.
        if not chosen:
            return problems, rollouts, rewards
        parts, judged = zip(*kept, strict=True)
        return chosen, concatenate(parts, range(len(parts))), concatenate_rewards(judged)

    def _draw(self, problems: list[Problem], step: int) -> Rollouts:
        """The student's completions, data rows, or a mixture by one coin per problem."""
        share = 0.0 if self.algorithm.rollouts == "data" else self.algorithm.on_policy
        if share == 1.0:
            return self._sample(problems, step)
        if share == 0.0:
            return self.policy.respond(problems, self.seed, step)
        keys = torch.tensor([[self.seed, step, place, 0] for place in range(len(problems))])
        own = torch.as_tensor(keyed_uniforms(keys, 1, stream=SOURCE_STREAM)).flatten() < share
        parts, order = [], []
        for student in (True, False):
            places = [place for place, coin in enumerate(own.tolist()) if coin == student]
            some = [problems[place] for place in places]
            if some:
                parts.append(self._sample(some, step) if student else self.policy.respond(some, self.seed, step))
                order += places
        return concatenate(parts, order)

    def _sample(self, problems: list[Problem], step: int) -> Rollouts:
        """The student's completions; ranks share the drawing where none needs the stream that all of them have."""

        def draw(some: list[Problem]) -> Rollouts:
            return self.policy.sample(some, self.options.group_size, self.stream, self.seed, step)

        return drawn(problems, self.ranks, draw) if self.ranks.size > 1 and self.policy.keyed else draw(problems)

    def _shares(self, rollouts: Rollouts) -> Shares:
        return shares(rollouts.groups, self.options.minibatch_problems, self.ranks)

    def _judged(self, problems: list[Problem], rollouts: Rollouts) -> Rewards:
        """Rewards of the whole step, each rank having graded its groups; stops a run whose judging breaks down."""
        held = self._shares(rollouts)
        mine = [problems[group] for group in held.mine]
        name = f"the reward function {getattr(self.grader, '__name__', type(self.grader).__name__)}"
        with self.phases.measure("reward"):
            rewards = held.gathered(name, 1, lambda: judge(self.grader, mine, held.own(rollouts)))
        self.watch.add(rewards)
        return rewards

    @torch.no_grad()
    def _signals(
        self, problems: list[Problem], rollouts: Rollouts, rewards: Rewards | None = None
    ) -> tuple[Signals, States | None]:
        """Everything `needs` asks for, of the whole step; and the teacher's hidden states of this rank's rows, where
        the loss is a full divergence."""
        needs, algorithm, teacher, size = self.algorithm.needs, self.algorithm, self.teacher, rollouts.group_size
        held = self._shares(rollouts)
        own, states, targets = held.own(rollouts), None, None
        everywhere, sampled = algorithm.positions(rollouts), int(rollouts.mask.sum())
        asked = everywhere if self.ranks.size == 1 else everywhere[rollouts.rows_of(held.mine)]
        with self.phases.measure("teacher", int(everywhere.sum()) if teacher else 0):
            if teacher is not None and "teacher" in needs:
                given = held.gathered("the teacher", size, lambda: teacher.targets(own, asked, algorithm.top_k))
                targets = teacher.heard(given, rollouts)
            if "divergence" in needs:
                assert teacher is not None
                states = teacher.states(own)
        student = reference = None
        with self.phases.measure("score"):
            if "student" in needs or (teacher is not None and teacher.watches_student):
                here = targets if targets is None or self.ranks.size == 1 else targets.rows(rollouts.rows_of(held.mine))
                student = held.gathered("scoring", size, lambda: self._score(own, own.mask, here, states))
                self.phases.count("score", sampled)
                if teacher is not None:
                    teacher.watch(rollouts, student)
            if "reference" in needs:
                reference = held.gathered("the reference", size, lambda: self.reference.targets(own, own.mask))
                self.phases.count("score", sampled)
        if rewards is None and "rewards" in needs:
            rewards = self._judged(problems, rollouts)
        return Signals(rewards, targets, reference, student if "student" in needs else None), states

    def _prepared(self, rollouts: Rollouts, signals: Signals) -> Batch:
        """The algorithm's batch. A completion that teaches nothing has no tokens in its eyes, so it divides nothing."""
        if self.options.mask_truncated:
            rollouts = replace(rollouts, mask=rollouts.mask & ~rollouts.truncated.unsqueeze(1))
        return self.algorithm.prepare(rollouts, signals)

    def _score(self, rollouts: Rollouts, where: Tensor, targets: Any, states: States | None) -> Scores:
        return self.policy.score(
            rollouts,
            where,
            support_ids=targets.support_ids if targets is not None else None,
            divergence=self.algorithm.divergence,
            against=states,
            values="values" in self.algorithm.needs,
        )

    def _update(self, minibatch: Batch, start: int, states: States | None, averages: Averages) -> tuple[float, float]:
        """One optimizer step. `start` is the minibatch's first row in the step. Gives loss and gradient norm."""
        self.optimizer.zero_grad()
        loss = self.accumulate(minibatch, start, states, averages)
        self.ranks.sum_gradients(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.options.max_grad_norm or float("inf"))
        if self.options.max_grad_value is not None:
            torch.nn.utils.clip_grad_value_(self.parameters, self.options.max_grad_value)
        # A lost number must not reach the weights: when the error names the step, they are still those before it.
        if np.isfinite((loss, float(norm))).all():
            self.optimizer.step()
        self.critic_updates += "values" in self.algorithm.needs
        return loss, float(norm)

    def accumulate(self, minibatch: Batch, start: int, states: States | None, averages: Averages) -> float:
        """Adds this rank's share of the gradient and gives the loss over all ranks.

        loss = sum(weight * loss_of_unit) / sum(normaliser), both sums over every micro-batch and rank. `states` are
        those of this rank's rows of the step, of which `start` came before.
        """
        total = float(minibatch.normaliser.sum()) or 1.0
        row, objective = start, torch.zeros((), dtype=torch.float64)
        for micro in minibatch.turns(self.options.micro_batch_size, self.ranks.rank, self.ranks.size):
            here, row = _states_at(states, row, len(micro.rollouts.texts)), row + len(micro.rollouts.texts)
            scores = self._score(micro.rollouts, micro.where, micro.teacher, here)
            priced = self.algorithm.loss(scores, micro)
            if priced.shape != micro.weight.shape:
                raise ConfigError(
                    f"algorithm: `loss` gave shape {tuple(priced.shape)}, `weight` has {tuple(micro.weight.shape)}. "
                    "Give one number per entry of `weight`: the trainer alone reduces."
                )
            weighed = torch.where(micro.weight != 0, priced, torch.zeros_like(priced)) * micro.weight
            (weighed.sum() / total).backward()
            objective -= weighed.detach().sum()
            track_update(averages, micro, scores)
            for name, value in self.algorithm.diagnostics(scores, micro).items():
                averages.add(name, value, (micro.weight != 0).to(value))
        # Minus the summed objective: a step in which nothing counts has the loss -0.0, as it was recorded.
        return -float(self.ranks.sum(objective)) / total

    # -- before and beside ------------------------------------------------------------------------------------

    def _sample_once(self) -> None:
        """Completions of every training problem from the starting policy, and the teacher's view of them."""
        with self.phases.measure("sample"):
            found = self._sample(list(self.problems), 0)
        self._store(found)
        if (teacher := self.teacher) is not None:
            own = shares(found.groups, None, self.ranks).own(found)
            with self.phases.measure("teacher", int(found.mask.sum())):
                self.ranks.together("the teacher", lambda: teacher.prefill(own, self.algorithm.top_k))

    def _store(self, drawn: Rollouts) -> None:
        size = self.options.group_size
        self.stored = [drawn.rows(slice(start, start + size)) for start in range(0, len(drawn.texts), size)]

    def _evaluate(self, step: int) -> Point:
        with self.phases.measure("evaluate"):
            teacher = self.teacher.distribution() if self.teacher else None
            measure = partial(self.evaluator, self.policy, self.reference, teacher, partial(self._keep_answers, step))
            point = self.ranks.together("the evaluation", measure)[0]
        require_finite(step, point)
        return point

    def _keep_answers(self, step: int, problems: Sequence[Problem], answers: Rollouts, accuracy: Rewards) -> None:
        self.answers += answer_rows(self.seed, step, problems[:SHOWN], answers, accuracy)


def _states_at(states: States | None, row: int, rows: int) -> States | None:
    """`rows` rows of states from `row` on; the first ones for a rank out of groups, where they weigh nothing."""
    if states is None:
        return None
    start = row if row < len(states.hidden) else 0
    return States(states.hidden[start : start + rows], states.project)
