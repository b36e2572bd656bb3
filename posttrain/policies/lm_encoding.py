"""Problems to token ids and back. An id that was sampled is never decoded and encoded again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from posttrain.batch import Problem
from posttrain.registry import ConfigError

Messages = Sequence[Mapping[str, str]]

# Words of `apply_chat_template` that are no options of a template.
TAKEN = {
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "enable_thinking",
    "max_length", "messages", "padding", "reasoning_effort", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "tokenize", "tokenizer_kwargs", "tools", "truncation",
}  # fmt: skip


@dataclass(frozen=True)
class Template:
    """Options of the tokenizer's chat template. A null option is not passed to it."""

    wrap: bool = False  # a plain prompt becomes one message of the user; False: it is continued as it stands
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # any other, such as options.date_string="1 May 2026"
    # A row's text that spells a special token, such as </s>: an error, or that token, as in prompts rendered elsewhere.
    special_text: Literal["refuse", "tokens"] = "refuse"

    def __post_init__(self) -> None:
        for name in self.options:
            if name in TAKEN:
                raise ConfigError(f"policy.template.options.{name}: the program itself decides about it. Leave it out.")

    def keywords(self) -> dict[str, Any]:
        """What the template is given beside the messages."""
        given = {"enable_thinking": self.enable_thinking, "reasoning_effort": self.reasoning_effort, **self.options}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Encoder:
    """A tokenizer with the rules that make prompts and data rows of problems.

    A problem with `meta["messages"]` is rendered by the chat template, which alone decides about special tokens. A
    plain prompt gets the tokenizer's beginning token, once. Ends are told by `eos`, never by a pad id. What a row says
    is text: where it spells a special token it is refused, or read as that token if the template's options ask for it.
    """

    tokenizer: Any
    template: Template
    eos: frozenset[int]  # ids that end a completion
    max_prompt_tokens: int
    max_completion_tokens: int

    def prompt(self, problem: Problem) -> list[int]:
        """The prompt's ids; empty or over the limit is a ConfigError, nothing is cut."""
        messages = self._messages(problem)
        texts = [problem.prompt] if messages is None else [message["content"] for message in messages]
        self._refuse_special("the prompt", problem, texts, begins=messages is None)
        ids = self._plain(problem.prompt) if messages is None else self._ids(self._render(problem, messages, True))
        if not ids:
            raise ConfigError(f"dataset: the prompt of problem `{problem.id}` has no tokens. Give it some text.")
        if len(ids) > self.max_prompt_tokens:
            raise ConfigError(
                f"policy.max_prompt_tokens: the prompt of problem `{problem.id}` has {len(ids)} tokens, the limit is "
                f"{self.max_prompt_tokens}. Prompts are never cut: raise the limit or leave the problem out."
            )
        return ids

    def response(self, problem: Problem, row: int) -> tuple[list[int], bool]:
        """Ids of the problem's data row `row` with its end token, and whether the limit cut it short."""
        text, messages = problem.responses[row], self._messages(problem)
        self._refuse_special(f"response {row}", problem, [text])
        ids = [*self._ids(text), *self._end] if messages is None else self._answer(problem, row, messages, text)
        return ids[: self.max_completion_tokens], len(ids) > self.max_completion_tokens

    def text(self, ids: Sequence[int]) -> str:
        """What a grader reads: without special tokens, with every space as it was written."""
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the chat template, its options and the end tokens."""
        parts = [self.tokenizer.chat_template, self.template.wrap, self.template.keywords(), sorted(self.eos)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @cached_property
    def tokenizer_digest(self) -> str:
        """SHA-256 of everything that turns text into ids: vocabulary, merges, normalisation, added tokens."""
        parts: dict[str, Any] = {"vocabulary": self.tokenizer.get_vocab()}
        if self.tokenizer.is_fast:
            parts = json.loads(self.tokenizer.backend_tokenizer.to_str())
            parts |= {"padding": None, "truncation": None}  # what the last caller asked for
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _messages(self, problem: Problem) -> Messages | None:
        if "messages" in problem.meta:
            return problem.meta["messages"]
        return [{"role": "user", "content": problem.prompt}] if self.template.wrap else None

    @property
    def _end(self) -> list[int]:
        """What ends a data row: the tokenizer's end token or, where it has none, the lowest of `eos`."""
        own = self.tokenizer.eos_token_id
        return sorted(self.eos)[:1] if own is None else [own]

    @cached_property
    def _special(self) -> re.Pattern[str]:
        """Every text that the tokenizer reads as a special token; none where there is no such token."""
        added = self.tokenizer.added_tokens_decoder.values()
        known = {*self.tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        return re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True))) or "(?!)")

    def _refuse_special(self, what: str, problem: Problem, texts: Sequence[str], begins: bool = False) -> None:
        """Refuses texts that spell a special token; the beginning token may stand where a plain prompt begins."""
        start = self.tokenizer.bos_token
        for text in texts if self.template.special_text == "refuse" else ():
            found = self._special.search(text.removeprefix(start) if begins and start else text)
            if found:
                raise ConfigError(
                    f"dataset: {what} of problem `{problem.id}` holds the text {found[0]!r}, which the tokenizer of "
                    "policy.model reads as a special token and not as text. Take it out of the row, or write "
                    "policy.template.special_text=tokens if these tokens are meant (a prompt rendered elsewhere)."
                )

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _plain(self, text: str) -> list[int]:
        """Ids with the beginning token where the tokenizer has the habit of writing one, also if the text holds it."""
        ids, start = self._ids(text), self.tokenizer.bos_token_id
        begins = self.tokenizer("", add_special_tokens=True)["input_ids"][:1] == [start]
        return [start, *ids] if begins and ids[:1] != [start] else ids

    def _answer(self, problem: Problem, row: int, messages: Messages, text: str) -> list[int]:
        """The ids that an answer adds to the rendered prompt, up to its last end token."""
        prompt = self.prompt(problem)
        full = self._ids(self._render(problem, [*messages, {"role": "assistant", "content": text}], False))
        if full[: len(prompt)] != prompt:
            first = next(i for i, token in enumerate(prompt) if full[i : i + 1] != [token])
            raise ConfigError(
                f"dataset: row {row} of problem `{problem.id}`: the chat template renders the prompt differently once "
                f"an answer follows (first at token {first}), so the answer's tokens cannot be told apart. Set the "
                "template's options so that both agree (such as policy.template.enable_thinking=false), or give text."
            )
        ids = full[len(prompt) :]
        ends = [place for place, token in enumerate(ids) if token in self.eos]
        return ids[: ends[-1] + 1] if ends else ids  # templates like to write a line break behind the end

    @cached_property
    def _keywords(self) -> dict[str, Any]:
        """The template's options; one that it never reads would be without effect and is refused."""
        given = self.template.keywords()
        for name in given:
            if not re.search(rf"\b{re.escape(name)}\b", str(self.tokenizer.chat_template)):
                ours = name in ("enable_thinking", "reasoning_effort")
                raise ConfigError(
                    f"policy.template.{name if ours else f'options.{name}'}: the chat template of policy.model never "
                    "mentions it, so it would change nothing. Leave it out."
                )
        return given

    def _render(self, problem: Problem, messages: Messages, generation: bool) -> str:
        from jinja2.exceptions import TemplateError

        if not self.tokenizer.chat_template:
            raise ConfigError(
                "policy.model: its tokenizer has no chat template, but the problems are messages. Use an instruct "
                "model, or plain prompts (policy.template.wrap=false and no meta['messages'])."
            )
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generation, **self._keywords
            )
        except TemplateError as error:
            raise ConfigError(
                f"dataset: the chat template refuses the messages of problem `{problem.id}`: {error}"
            ) from error
