"""Rows as problems: which column is what, TRL's forms of rows, and which rows are held out.

Standard rows have text (prompt; prompt and completion; prompt, chosen and rejected; text). Conversational rows have
lists of messages in the same places, or the whole conversation under `messages`. Every other column goes to `meta`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date, time
from decimal import Decimal
from typing import Any

from posttrain.batch import Problem
from posttrain.data.reading import Table
from posttrain.registry import ConfigError

Messages = list[dict[str, Any]]

# What a column is called where `dataset.columns` does not say: the first of these names that the rows have.
USUAL = {
    "prompt": ("prompt", "question", "problem"),
    "answer": ("answer", "solution", "ground_truth"),
    "response": ("completion", "response"),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "messages": ("messages",),
    "text": ("text",),
}
LARGEST = 2**53 - 1  # the largest whole number that every reader of JSON keeps


@dataclass(frozen=True)
class Columns:
    """Names of columns. Null: the usual ones (prompt, question or problem; answer, solution or ground_truth; ...)."""

    prompt: str | None = None
    answer: str | None = None
    response: str | None = None  # the completion to imitate
    chosen: str | None = None
    rejected: str | None = None
    messages: str | None = None  # a whole conversation; its last turn is the completion if the assistant speaks it
    text: str | None = None  # text without a prompt

    def within(self, table: Table) -> Columns:
        """The columns of a table that will be read; one that was asked for has to be there."""
        known = table.columns
        found: dict[str, str | None] = {}
        for f in fields(self):
            asked = getattr(self, f.name)
            if asked is not None and asked not in known:
                number, _ = table.rows[0]
                raise table.error(
                    number,
                    f"has no `{asked}` (dataset.columns.{f.name}); its columns are {_listed(known)}",
                )
            found[f.name] = asked or next((name for name in USUAL[f.name] if name in known), None)
        return Columns(**found)._settled(self, table)

    def _settled(self, asked: Columns, table: Table) -> Columns:
        """One form: pairs before a completion, both before the last turn of a conversation; a prompt before a text."""
        kept = {f.name: getattr(self, f.name) for f in fields(self)}
        if (self.chosen is None) != (self.rejected is None):
            lacking = "chosen" if self.chosen is None else "rejected"
            raise ConfigError(
                f"dataset.columns.{lacking}: {table.name} has no such column, but pairs need chosen and rejected; its "
                f"columns are {_listed(table.columns)}"
            )
        if self.chosen and asked.response is None:
            kept["response"] = None
        # What was asked for goes before what merely bears a usual name.
        forms = ("prompt", "messages", "text")
        chosen = [name for name in forms if getattr(asked, name)] or [name for name in forms if kept[name]]
        chosen = chosen[:1] or ["chosen"]
        kept |= {name: None for name in forms if name not in chosen}
        if not kept[chosen[0]]:
            raise ConfigError(
                f"dataset.columns.prompt: {table.name} has no column of a usual name ({', '.join(USUAL['prompt'])}); "
                f"its columns are {_listed(table.columns)}. Write dataset.columns.prompt=NAME."
            )
        return Columns(**kept)


def problem_of(
    table: Table, number: int, row: Mapping[str, Any], columns: Columns, answer_after: str | None
) -> Problem:
    """The problem of one row; a field that is missing or of another kind is a ConfigError with the row's number."""
    given = {f.name: _value(table, number, row, getattr(columns, f.name)) for f in fields(columns)}
    try:
        if isinstance(given["answer"], str) and given["answer"] in table.missing:
            raise _Wrong(f"its answer is `{given['answer']}`, a missing value. Fill it in, or take the row out")
        prompt, messages, responses = _form(given)
        answer = _answer(given["answer"], responses, answer_after)
    except _Wrong as error:
        raise table.error(number, str(error)) from None
    meta = {key: value for key, value in row.items() if key != "messages"}
    if messages is not None:
        meta["messages"] = messages
    drawn = {str(key): plain(value) for key, value in row.items()}
    return Problem(f"{table.name}:{number}", prompt, answer, responses=responses, drawn=drawn, meta=meta)


def question_of(problem: Problem) -> str:
    """What two problems share if they are the same question: the messages, or the prompt (or the text alone)."""
    if "messages" in problem.meta:
        return json.dumps(problem.meta["messages"], sort_keys=True, default=str)
    return json.dumps([problem.prompt, *(problem.responses if not problem.prompt else ())])


def same_question(problem: Problem) -> str:
    """What rows share that ask the same, by their text: letter case and the amount of white space make no difference.

    A plain prompt is the same as a conversation of that one turn. Nothing else is seen through: other words, other
    punctuation, another instruction around the question or another turn before it make another question.
    """
    asked: Any = problem.meta.get("messages") or [{"role": "user", "content": problem.prompt}]
    if "messages" not in problem.meta and not problem.prompt:
        asked = [{"role": "text", "content": text} for text in problem.responses]
    return json.dumps([[turn["role"], " ".join(turn["content"].split()).casefold()] for turn in asked])


class _Wrong(ValueError):
    """What is wrong with a row, without its number."""


def _value(table: Table, number: int, row: Mapping[str, Any], name: str | None) -> Any:
    if name is None:
        return None
    if _missing(row.get(name)):
        there = [key for key, value in row.items() if not _missing(value)]
        raise table.error(number, f"has no `{name}`; its columns are {_listed(there)}")
    return row[name]


def _missing(value: Any) -> bool:
    """Null, or NaN, which is what columns of numbers have in its place."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _form(given: Mapping[str, Any]) -> tuple[str, Messages | None, tuple[str, ...]]:
    """Prompt as text, prompt as messages where the row is a conversation, and the row's responses."""
    if given["text"] is not None:
        return "", None, (_text("text", given["text"]),)
    named = ("chosen", "rejected") if given["chosen"] is not None else ("response",)
    turns = {name: given[name] for name in named if given[name] is not None}
    if given["messages"] is not None:
        messages = _messages("messages", given["messages"])
        if not turns and messages[-1]["role"] == "assistant":
            turns = {"messages": messages}
            return _conversation(None, turns)
        return _conversation(messages, turns)
    prompt = given["prompt"]
    if isinstance(prompt, list) or any(isinstance(value, list) for value in turns.values()):
        if isinstance(prompt, list):
            return _conversation(_messages("prompt", prompt), turns)
        start = None if prompt is None else [{"role": "user", "content": _text("prompt", prompt)}]
        return _conversation(start, turns)
    if prompt is None:
        raise _Wrong("has chosen and rejected as text, but no prompt. Write dataset.columns.prompt=NAME.")
    if not _text("prompt", prompt):
        raise _Wrong("its prompt is empty")
    return prompt, None, tuple(_text(name, value) for name, value in turns.items())


def _conversation(start: Messages | None, turns: Mapping[str, Any]) -> tuple[str, Messages, tuple[str, ...]]:
    """Completions may repeat the prompt before their one turn, as long as all agree about it."""
    responses = []
    for name, value in turns.items():
        if isinstance(value, str):
            responses.append(value)
            continue
        messages = _messages(name, value)
        before, last = messages[:-1], messages[-1]
        if last["role"] != "assistant":
            raise _Wrong(f"its {name} ends with the {last['role']}, expected the assistant's turn")
        if before:
            if start is not None and before != start:
                raise _Wrong(f"its {name} has more turns than one, and those before the last are not the prompt")
            start = before
        responses.append(last["content"])
    if not start:
        raise _Wrong("has an answer without a prompt before it")
    if start[-1]["role"] == "assistant":
        raise _Wrong("its prompt ends with the assistant's turn, expected the user's")
    asked = [message["content"] for message in start if message["role"] == "user"]
    return (asked or [start[-1]["content"]])[-1], start, tuple(responses)


def _messages(name: str, value: Any) -> Messages:
    """Messages of role and text; what columnar files fill up with null is taken out."""
    if not isinstance(value, list) or not value:
        raise _Wrong(f"its {name} is {_shown(value)}, expected messages: [{{role: user, content: ...}}, ...]")
    found = []
    for place, message in enumerate(value, 1):
        kept = {k: v for k, v in message.items() if v is not None} if isinstance(message, Mapping) else {}
        if not isinstance(kept.get("role"), str) or not isinstance(kept.get("content"), str):
            raise _Wrong(f"message {place} of its {name} is {_shown(message)}, expected role and content as text")
        found.append(kept)
    return found


def _answer(value: Any, responses: Sequence[str], after: str | None) -> str:
    """The answer as text, cut out where `after` says so; without such a column, the row's own completion."""
    if value is None:
        return responses[0] if responses else ""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise _Wrong(f"its answer is {_shown(value)}, expected text or a number")
    text = str(value)
    if after is not None and after not in text:
        raise _Wrong(f"its answer has no {after!r} (dataset.answer_after), found {_shown(text[-60:])} at its end")
    found = text if after is None else text.rpartition(after)[2].strip()
    if not found.strip():
        raise _Wrong("its answer is empty")
    return found


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"its {name} is {_shown(value)}, expected text")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def plain(value: Any) -> Any:
    """A value as strict JSON holds it, for fingerprints: what JSON lacks becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float):
        return value if abs(value) < float("inf") else repr(value)
    if value is None or isinstance(value, str | bool) or (isinstance(value, int) and abs(value) <= LARGEST):
        return value
    return repr(value)
