"""`privileged`: the student's own weights behind a prompt that holds what the student does not see."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from posttrain.batch import Problem, Rollouts, Scores, Targets
from posttrain.policies.base import Divergence, Expectations, Policy, States
from posttrain.policies.causal_lm import CausalLMPolicy
from posttrain.policies.lm_encoding import Encoder
from posttrain.policies.lm_loading import completion_limit
from posttrain.policies.lm_rows import prompts_of
from posttrain.ranges import at_least, check, or_null
from posttrain.registry import ConfigError, did_you_mean, teachers
from posttrain.teachers.base import Surroundings
from posttrain.teachers.frozen import FrozenTeacher
from posttrain.teachers.snapshot import SnapshotTeacher, snapshot_teacher

PROMPT = """\
{prompt}

A correct solution, for you alone:
{solution}

Answer the question now, in your own words and without a mention of the solution."""
FIELDS = ("prompt", "answer", "solution", "feedback")


@teachers.register("privileged")
@dataclass(frozen=True)
class Privileged:
    """The student's own weights, which have seen more: on-policy self-distillation (arXiv 2601.18734).

    `prompt` may hold {prompt}, {answer}, {solution} (the first data row) and {feedback} (`meta["feedback"]`); braces of
    its own are doubled. In a conversation it takes the place of the last message of the user.
    """

    prompt: str = PROMPT
    refresh_every: int | None = None  # updates; null: the student's start for good, 1: the student as it is now
    max_prompt_tokens: int | None = None  # of the privileged prompt; null: the policy's two limits together

    def __post_init__(self) -> None:
        number = or_null(at_least(1))
        check("teacher", self, refresh_every=number, max_prompt_tokens=number)
        check_template(self.prompt)

    def build(self, surroundings: Surroundings) -> FrozenTeacher | SnapshotTeacher:
        """Asked and counted as a frozen teacher, or, where it is refreshed, as a snapshot."""
        seen = insight(surroundings, self.prompt, self.max_prompt_tokens)
        if self.refresh_every is None:
            return FrozenTeacher(seen(surroundings.student.snapshot()))
        return snapshot_teacher(surroundings.student, self.refresh_every, seen)


def insight(surroundings: Surroundings, template: str, limit: int | None) -> Callable[[Policy], Informed]:
    """What puts a frozen copy of the student behind privileged prompts; one that cannot be made is named here."""
    student = surroundings.student
    if not isinstance(student, CausalLMPolicy):
        raise ConfigError(
            "teacher.name: `privileged` writes prompts for language models. Write policy=causal_lm, or teacher=frozen "
            "with a dataset whose teacher sees what the student does not (dataset=decisions)."
        )
    limit = limit or student.encoder.max_prompt_tokens + student.encoder.max_completion_tokens
    encoder = replace(student.encoder, max_prompt_tokens=limit)
    told = {problem.id: problem for problem in _privileged(surroundings.problems, template, encoder)}
    longest = max(len(encoder.prompt(problem)) for problem in told.values())
    completion_limit(student.model, longest, student.encoder.max_completion_tokens)

    def seen(policy: Policy) -> Informed:
        assert isinstance(policy, CausalLMPolicy)
        policy.encoder = encoder
        return Informed(policy, told)

    return seen


def _privileged(problems: Sequence[Problem], template: str, encoder: Encoder) -> Iterator[Problem]:
    """The problems under the template; two of one name, or a prompt over the limit, are a ConfigError."""
    known: dict[str, Problem] = {}
    unlimited = replace(encoder, max_prompt_tokens=sys.maxsize)
    for problem in problems:
        made = privileged_problem(problem, template)
        if known.setdefault(problem.id, made).prompt != made.prompt:
            raise ConfigError(f"dataset: two problems are called `{problem.id}`. A teacher's prompt goes by the id.")
        length = len(unlimited.prompt(made))
        if length > encoder.max_prompt_tokens:
            raise ConfigError(
                f"teacher.max_prompt_tokens: the privileged prompt of problem `{problem.id}` has {length} tokens, but "
                f"the limit is {encoder.max_prompt_tokens}. Prompts are never cut: raise it or leave the problem out."
            )
        yield made


def check_template(template: str) -> None:
    """Refuses fields that are not known and a template without the question."""
    named = [name for name, _ in _pieces(template) if name is not None]
    for name in named:
        if name not in FIELDS:
            raise ConfigError(
                f"teacher.prompt: there is no field {{{name}}}.{did_you_mean(name, FIELDS)} Braces of the text itself "
                "are doubled: {{ and }}."
            )
    if "prompt" not in named:
        raise ConfigError("teacher.prompt: it holds no {prompt}, so the teacher would not see the question.")


def privileged_problem(problem: Problem, template: str) -> Problem:
    """The problem with the template in place of its prompt, or of the user's last message."""
    messages = [dict(message) for message in problem.meta.get("messages", ())]
    asked = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not messages:
        return replace(problem, prompt=_filled(template, problem, problem.prompt))
    if not asked:
        raise ConfigError(f"teacher.prompt: the messages of problem `{problem.id}` hold none of the user to stand in.")
    last = messages[asked[-1]]
    last["content"] = _filled(template, problem, last["content"])
    return replace(problem, prompt=last["content"], meta={**problem.meta, "messages": messages})


def _filled(template: str, problem: Problem, prompt: str) -> str:
    """The template with its fields, each put in once: what they hold is never looked into."""
    written = []
    for name, literal in _pieces(template):
        written.append(literal)
        if name is not None:
            written.append(prompt if name == "prompt" else _told(problem, name))
    return "".join(written)


def _told(problem: Problem, name: str) -> str:
    known: dict[str, object] = {
        "answer": problem.answer,
        "solution": problem.responses[0] if problem.responses else "",
        "feedback": problem.meta.get("feedback") or "",
    }
    value = str(known[name])
    if not value:
        where = {"answer": "an answer", "solution": "a data row", "feedback": "meta['feedback']"}[name]
        raise ConfigError(
            f"teacher.prompt: it holds {{{name}}}, but problem `{problem.id}` has none. Give it {where}, or leave the "
            "field out."
        )
    return value


def _pieces(template: str) -> Iterator[tuple[str | None, str]]:
    """A field, or None at the end, and the literal text before it."""
    try:
        for literal, name, spec, conversion in string.Formatter().parse(template):
            if spec or conversion:
                raise ValueError(f"{{{name}}} takes no options")
            yield name, literal
    except ValueError as error:
        raise ConfigError(
            f"teacher.prompt: {error}. Fields are written {{prompt}}, {{solution}}, {{answer}} or {{feedback}}; braces "
            "of the text itself are doubled."
        ) from error


@dataclass
class Informed:
    """A policy that reads every completion behind another prompt: a view with weights of a policy's own.

    The ids of a completion are those that were sampled; only the prompt's are made here.
    """

    policy: CausalLMPolicy
    told: Mapping[str, Problem]  # by id, under the privileged prompt
    keyed: bool = True  # completions are drawn from their keys alone

    def behind(self, rollouts: Rollouts) -> Rollouts:
        """The same completions behind the privileged prompts."""
        known = [self._problem(name) for name in rollouts.problem_ids]
        ids, mask = prompts_of(self.policy.encoder, known, 1, 1)
        return replace(rollouts, prompt_ids=ids, prompt_mask=mask)

    def _problem(self, name: str) -> Problem:
        if name not in self.told:
            raise ConfigError(f"teacher.prompt: problem `{name}` is none of the dataset's, so its solution is unknown.")
        return self.told[name]

    def _problems(self, problems: Sequence[Problem]) -> list[Problem]:
        return [self._problem(problem.id) for problem in problems]

    def sample(
        self, problems: Sequence[Problem], group_size: int, stream: np.random.Generator, seed: int, step: int
    ) -> Rollouts:
        """Completions of the privileged prompts (see `Policy.sample`)."""
        return self.policy.sample(self._problems(problems), group_size, stream, seed, step)

    def respond(self, problems: Sequence[Problem], seed: int, step: int) -> Rollouts:
        """Data rows behind the privileged prompts (see `Policy.respond`)."""
        return self.policy.respond(self._problems(problems), seed, step)

    def greedy(self, problems: Sequence[Problem]) -> Rollouts:
        """The most probable answers to the privileged prompts (see `Policy.greedy`)."""
        return self.policy.greedy(self._problems(problems))

    def token_texts(self, problem: Problem, ids: Sequence[int]) -> list[str]:
        """How tokens read, whatever stands before them (see `Policy.token_texts`)."""
        return self.policy.token_texts(problem, ids)

    def states(self, rollouts: Rollouts) -> States:
        """Hidden states of the same completions (see `Policy.states`)."""
        return self.policy.states(self.behind(rollouts))

    def score(
        self,
        rollouts: Rollouts,
        where: Tensor,
        *,
        support_ids: Tensor | None = None,
        divergence: Divergence | None = None,
        against: States | None = None,
        values: bool = False,
    ) -> Scores:
        """Scores of the same completions (see `Policy.score`)."""
        return self.policy.score(
            self.behind(rollouts),
            where,
            support_ids=support_ids,
            divergence=divergence,
            against=against,
            values=values,
        )

    def targets(self, rollouts: Rollouts, where: Tensor, top_k: int | None = None) -> Targets:
        """What it says of the same completions (see `Policy.targets`)."""
        return self.policy.targets(self.behind(rollouts), where, top_k)

    def expectations(self, problems: Sequence[Problem], others: Mapping[str, Policy]) -> Expectations:
        """Over its own completions of the privileged prompts (see `Policy.expectations`)."""
        return self.policy.expectations(self._problems(problems), others)

    def snapshot(self) -> Informed:
        """A frozen copy."""
        return Informed(self.policy.snapshot(), self.told)

    def identity(self) -> Mapping[str, str]:
        """The weights' own: the prompts are part of a completion's ids."""
        return self.policy.identity()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Those of the policy."""
        return self.policy.parameters()
