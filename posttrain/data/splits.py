"""Tables of rows as training and held-out problems: every row is kept or counted, and no question is on both sides."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from posttrain.batch import Problem, ProblemSet
from posttrain.data.reading import Table
from posttrain.data.rows import USUAL, Columns, problem_of, question_of, same_question
from posttrain.ranges import Range, at_least, check, or_null
from posttrain.registry import ConfigError

HELD_OUT = Range(
    "a share between 0 and 1, or a number of rows from 1 up",
    lambda value: 0 < value < 1 or (1 <= value < float("inf") and value == int(value)),
)


@dataclass(frozen=True)
class RowOptions:
    """What all datasets made of rows have in common; the rows are fixed, so a seed changes what is drawn from them."""

    columns: Columns = Columns()
    answer_after: str | None = None  # the answer is what stands behind the last of these, such as ####
    held_out: float = 0.1  # share or number of rows, where no held-out rows are named
    resplit: bool = False  # true: each seed holds out other rows; false: the same for all seeds
    leaks: Literal["refuse", "drop"] = "refuse"  # training rows whose question is held out too
    max_prompt_characters: int | None = None  # longer rows are left out and counted; null: none is
    train_examples: int | None = None  # the first so many; null: all; more than there are is an error
    validation_examples: int | None = None  # the same of the held-out ones

    def __post_init__(self) -> None:
        one = or_null(at_least(1))
        check("dataset", self, held_out=HELD_OUT, max_prompt_characters=one)
        check("dataset", self, train_examples=one, validation_examples=one)
        if self.answer_after == "":
            raise ConfigError("dataset.answer_after: the text is empty. Write null to take the whole answer.")


def problem_set(options: RowOptions, table: Table, held_out: Table | None, seed: int, source: str) -> ProblemSet:
    """The problems of one seed. Too few rows are a ConfigError with what was read, kept and left out, and why."""
    counts = Tally(table.name, len(table.rows))
    problems = _problems(options, table, counts)
    if held_out is None:
        salt = str(seed) if options.resplit else ""
        train, validation = _split(problems, options.held_out, salt)
        tallies = [counts]
    else:
        other = Tally(held_out.name, len(held_out.rows))
        asked = _problems(options, held_out, other)
        validation = _first(asked, options.validation_examples, "validation", f"{held_out.name} has", "", other)
        train = _without(problems, validation, options.leaks, counts)
        tallies = [counts, other]
    train = _first(train, options.train_examples, "train", f"{table.name} leaves", "", counts)
    if held_out is None:
        found = f"dataset.held_out={options.held_out:g} of {len(problems)} rows gives"
        instead = f"Write dataset.held_out={options.validation_examples} to hold out that many"
        validation = _first(validation, options.validation_examples, "validation", found, instead, counts)
    told = "; ".join(map(str, tallies))
    if not train or not validation:
        lacking = "training" if not train else "held-out"
        raise ConfigError(f"dataset: no {lacking} problem is left: {told}; {len(train)} to train on.")
    told += f"; {len(train)} to train on, {len(validation)} held out"
    if chosen_are_answers(options, train):
        told += "; without a column of answers, the chosen texts stand for them"
    return ProblemSet(train, validation, f"{source}: {told}")


def chosen_are_answers(options: RowOptions, problems: Sequence[Problem]) -> bool:
    """Whether the rows are pairs without a column of answers, so that their chosen texts stand for the answers."""
    named = {options.columns.answer} if options.columns.answer else set(USUAL["answer"])
    return any(
        len(problem.responses) == 2 and problem.answer == problem.responses[0] and not named & problem.meta.keys()
        for problem in problems
    )


@dataclass
class Tally:
    """What became of the rows of one table. Kept and left out add up to read."""

    name: str
    read: int

    def __post_init__(self) -> None:
        self.dropped: Counter[str] = Counter()

    def drop(self, why: str, number: int) -> None:
        """Counts rows that are left out."""
        if number:
            self.dropped[why] += number

    def __str__(self) -> str:
        why = "".join(f", {number} {reason}" for reason, number in sorted(self.dropped.items()))
        kept = self.read - sum(self.dropped.values())
        return (
            f"{self.name}: read {self.read}, kept {kept}, left out {sum(self.dropped.values())}{why and ':' + why[1:]}"
        )


def _problems(options: RowOptions, table: Table, counts: Tally) -> tuple[Problem, ...]:
    """Every row that is not too long, in order."""
    if not table.rows:
        raise ConfigError(f"dataset: no problem is left: {counts}. {table.name} is empty.")
    columns = options.columns.within(table)
    found = [problem_of(table, number, row, columns, options.answer_after) for number, row in table.rows]
    limit = options.max_prompt_characters
    kept = tuple(problem for problem in found if limit is None or _characters(problem) <= limit)
    counts.drop(f"with more than {limit} characters (dataset.max_prompt_characters)", len(found) - len(kept))
    return kept


def _characters(problem: Problem) -> int:
    messages = problem.meta.get("messages")
    return len(problem.prompt) if messages is None else sum(len(message["content"]) for message in messages)


def _split(problems: Sequence[Problem], held_out: float, salt: str) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Held out are the questions with the lowest digests, whole, so that neither order nor copies have a say.

    Rows that ask the same question (`same_question`) are on the same side: a share or number may be exceeded by such
    copies. Their digest is the lowest of their texts' as they stand.
    """
    wanted = held_out if held_out >= 1 else max(1, round(held_out * len(problems)))
    questions: dict[str, list[tuple[str, int]]] = {}
    for place, problem in enumerate(problems):
        digest = hashlib.sha256(f"{salt}\n{question_of(problem)}".encode()).hexdigest()
        questions.setdefault(same_question(problem), []).append((digest, place))
    chosen: set[int] = set()
    for copies in sorted(questions.values(), key=min):
        if len(chosen) >= wanted:
            break
        chosen.update(place for _, place in copies)
    sides = [tuple(p for place, p in enumerate(problems) if (place in chosen) is side) for side in (False, True)]
    return sides[0], sides[1]


def _without(
    problems: Sequence[Problem], held_out: Sequence[Problem], leaks: str, counts: Tally
) -> tuple[Problem, ...]:
    """Training problems whose question is not held out, as far as `same_question` sees."""
    known = {same_question(problem): problem for problem in held_out}
    leaked = [problem for problem in problems if same_question(problem) in known]
    if leaked and leaks == "refuse":
        first = leaked[0]
        raise ConfigError(
            f"dataset.leaks: {len(leaked)} of {len(problems)} training rows ask a question that is held out too, "
            f"`{first.id}` the first (held out as `{known[same_question(first)].id}`). Take them out, or write "
            "dataset.leaks=drop to leave them out of training."
        )
    counts.drop("whose question is held out (dataset.leaks)", len(leaked))
    return tuple(problem for problem in problems if same_question(problem) not in known)


def _first(
    problems: tuple[Problem, ...], limit: int | None, split: str, found: str, instead: str, counts: Tally
) -> tuple[Problem, ...]:
    """The first so many. Where there are fewer than were asked for, a ConfigError says what was `found`."""
    if limit is not None and len(problems) < limit:
        raise ConfigError(
            f"dataset.{split}_examples: asked for {limit}, but {found} {len(problems)} ({counts}). "
            f"{instead or 'Give more rows'}, or lower dataset.{split}_examples."
        )
    kept = problems if limit is None else problems[:limit]
    counts.drop(f"beyond dataset.{split}_examples={limit}", len(problems) - len(kept))
    return kept
