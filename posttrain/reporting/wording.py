"""Words at the claim gate: each of the first family of the vocabulary that takes it."""

from __future__ import annotations

import re

from posttrain.reporting.counting import SUMS
from posttrain.reporting.gate import Found, Gate, compared_with_none, inside, listed, speaks_of
from posttrain.reporting.quantities import bound_spans
from posttrain.reporting.scope import Scope
from posttrain.reporting.vocabulary import WORDS, Word

_NEGATION = re.compile(
    r"\b(?:not|never|cannot|hardly|no|none|nothing|nobody|nowhere|neither|nor|without|rarely|fail(?:s|ed)?\s+to)\b"
    r"|n['’]t\b",
    re.IGNORECASE,
)
_ADVERBS = re.compile(
    r"\s+(?:(?:be|been|significantly|statistically|measurably|clearly|longer)\s+){0,2}", re.IGNORECASE
)
_CLEAR = re.compile(r"not|never|cannot|hardly|no|fail(?:s|ed)?\s+to|n['’]t", re.IGNORECASE)
PRIMARY = "accuracy"  # what comparisons are of
# What else has to be absent where a word is denied: who is better by little does not fail to be better.
_WEAKER = {"worked": "better", "l3-better": "better"}


def words(gate: Gate) -> Found:
    """Claim words without a licence."""
    taken = [*(match.span() for match in SUMS.finditer(gate.text)), *bound_spans(gate)]
    for word in WORDS:
        for match in word.regex.finditer(gate.flat):
            place = match.start()
            if inside(place, taken):
                continue
            if word.named and not gate.rivals(place).named:
                continue
            taken.append(match.span())
            if word.daily and not gate.concerns(place):
                continue
            why = _unlicensed(gate, word, place)
            if why:
                yield place, f"{match[0]!r} has no licence: {why}. {_advice(gate, word, place)}"


def _denied(gate: Gate, place: int) -> bool | None:
    """Whether a word is denied, by one word right before it; None where its clause denies something less plainly."""
    start, _ = gate.reader.span(place)
    found = list(_NEGATION.finditer(gate.flat, start, place))
    if not found:
        return False
    near = _ADVERBS.fullmatch(gate.flat, found[-1].end(), place) is not None
    return True if len(found) == 1 and near and _CLEAR.fullmatch(found[-1][0]) else None


def _unlicensed(gate: Gate, word: Word, place: int) -> str | None:
    """Why a word at a place has no licence, or None."""
    denied = _denied(gate, place)
    if word.of == "nothing":
        return None if denied else "no outcome says so"
    if word.of == "tier":
        return None if denied or word.says & gate.licence.tiers else "no published run trained one"
    if denied is None:
        return "its clause denies something before it, and of what cannot be read; write `not` right before the word"
    if word.named and gate.metrics(place) - {PRIMARY}:
        return "no published comparison is of that metric"
    scope = gate.claims(place) if word.of == "claim" else gate.rivals(place)
    if scope.missing or not scope.outcomes:
        return compared_with_none(scope) if word.of == "rival" else _no_claim(scope)
    says = word.says | {_WEAKER[mark] for mark in word.says & _WEAKER.keys()} if denied else word.says
    other = [outcome for outcome in scope.outcomes if bool(says & outcome.says) == denied]
    if not other:
        return None
    shown = listed([f"{outcome.about} ({outcome.plan}): {outcome.verdict}" for outcome in other])
    if denied:
        return f"{speaks_of(scope)}it is denied, but published is {shown}"
    return f"{speaks_of(scope)}no published outcome says so of {shown}"


def _no_claim(scope: Scope) -> str:
    if scope.missing:
        whose = f" of {scope.subject}" if scope.subject else ""
        return f"no published claim{whose} is called {', '.join(scope.missing)}"
    return "no published claim has an outcome"


def _advice(gate: Gate, word: Word, place: int) -> str:
    """The run that would license a word; where runs are published, first what they say."""
    if word.of == "nothing":
        return word.run
    name, outcomes = gate.run_name(place), gate.licence.outcomes
    on_track = any(outcome.tier == "bench" and outcome.method == name for outcome in outcomes)
    run = f"posttrain bench run {name}, then posttrain publish" if on_track else word.run.format(method=name)
    scope = gate.claims(place) if word.of == "claim" else gate.rivals(place)
    if word.of in ("rival", "claim") and scope.outcomes and not scope.missing:
        return f"Say what is published; another plan would take {run}"
    return f"It would take {run}"
