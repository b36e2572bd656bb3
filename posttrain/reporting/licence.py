"""What the published artifacts license: the numbers and the words that a page may print (specs/evidence.md, section 1).

The vocabulary is closed. A word that claims something needs an outcome that says it; a result needs an artifact that
holds it, to as many places as are printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from posttrain.artifacts import statistics
from posttrain.artifacts.gap import gap_closed
from posttrain.artifacts.verdicts import BELOW_SESOI, BETTER, NO_EFFECT, NO_WIN, WORSE
from posttrain.reporting.reading import Entry
from posttrain.reporting.summary import changes, completed

_BULK = {"history", "last_diagnostics", "packages", "splits", "outputs", "inputs", "kernel", "python", "libc"}


@dataclass(frozen=True)
class Word:
    """A family of claim words, what licenses it, and the run that would."""

    pattern: str  # a regular expression over whole words, lower case
    needs: frozenset[str]  # any of these marks
    run: str


_COMPARE = (
    "posttrain compare {method} RIVAL --seeds 12 (a declared rival, six or more paired seeds), then posttrain publish"
)
_STUDY = "posttrain reproduce {method}, then posttrain publish"
_L3 = "a formal comparison on real checkpoints (tier L3, three or more trainings per arm), published"

# Marks are given by `marks_of`. The order is that of the messages.
WORDS = (
    Word(
        r"outperform\w*|state[- ]of[- ]the[- ]art|sota|superior\w*|best[- ]in[- ]class", frozenset({"l3 better"}), _L3
    ),
    Word(r"llms?|large language models?|language models?", frozenset({"language model"}), "a run at tier L2 or L3"),
    Word(r"insignifican\w*|(?:no|not|without a?) ?(?:statistically )?significan\w*", frozenset({"tested"}), _COMPARE),
    Word(r"significan\w*", frozenset({"better", "worse"}), _COMPARE),
    Word(r"exceed\w*", frozenset({"better"}), _COMPARE),
    Word(
        r"beats?|beaten|better than|wins? against|improves? on|ahead of",
        frozenset({"worked"}),
        _COMPARE + ", with a difference that is not below the smallest effect of interest",
    ),
    Word(r"worse than|inferior\w*|loses? to|falls? behind", frozenset({"worse"}), _COMPARE),
    Word(
        r"match(?:es|ed)|on par|equivalent to|as good as|indistinguishable|no (?:measurable )?difference",
        frozenset({"equal"}),
        _COMPARE + ", with an interval inside the smallest effect of interest",
    ),
    Word(r"confirm(?:s|ed)|proves?|proven|demonstrates?|reproduces", frozenset({"claim confirmed"}), _STUDY),
    Word(r"refut(?:es|ed)|disproves?|disproven", frozenset({"claim refuted"}), _STUDY),
    Word(r"inconclusive", frozenset({"claim inconclusive"}), _STUDY),
    Word(r"verified|certified", frozenset({"never"}), "no run: a level of verification belongs beside the word"),
)


@dataclass(frozen=True)
class Licence:
    """Everything that some artifacts license."""

    numbers: frozenset[Decimal] = frozenset()
    marks: frozenset[str] = frozenset()
    quotes: tuple[str, ...] = ()  # text written before the run, which may be quoted word for word
    counts: frozenset[tuple[int, int]] = frozenset()  # "so many of so many seeds"

    def holds(self, printed: str, percent: bool = False) -> bool:
        """Whether a licensed number rounds to the printed one at its own places."""
        wanted = Decimal(printed)
        exponent = wanted.as_tuple().exponent
        assert isinstance(exponent, int)
        unit = Decimal(1).scaleb(exponent)
        factor = Decimal(100) if percent else Decimal(1)
        return any(_rounds(value * factor, wanted, unit) for value in self.numbers)


def _rounds(value: Decimal, wanted: Decimal, unit: Decimal) -> bool:
    # Sizes count: a table prints +0.1 where a sentence says "by 0.1".
    if abs(abs(value) - abs(wanted)) > unit:
        return False
    return abs(value).quantize(unit, rounding=ROUND_HALF_EVEN) == abs(wanted)


def licence_of(entries: Iterable[Entry], extra: Iterable[Any] = ()) -> Licence:
    """The licence that entries give together; `extra` holds further plain data, such as a method's defaults."""
    listed = list(entries)
    numbers = {number for entry in listed for number in _numbers_of(entry)}
    numbers |= {_decimal(leaf) for part in extra for leaf in _leaves(part)}
    marks = {mark for entry in listed if not entry.historical for mark in marks_of(entry.value)}
    quotes = [text for entry in listed for text in _quotes(entry)]
    # The longest first, so that one quotation inside another is found too.
    return Licence(
        frozenset(numbers),
        frozenset(marks),
        tuple(sorted(set(quotes), key=lambda text: (-len(text), text))),
        frozenset(count for entry in listed if not entry.bench for count in _counts(entry.value)),
    )


def marks_of(artifact: Mapping[str, Any]) -> Iterator[str]:
    """What an artifact's outcomes say, as marks that license words."""
    tier = artifact.get("evaluation_protocol", {}).get("tier", "bench")
    if tier in ("l2_tiny_lm", "l3_real_model"):
        yield "language model"
    comparison = artifact.get("comparison", [])
    for entry in comparison if isinstance(comparison, list) else [comparison]:
        verdict = entry.get("verdict") or ""
        if verdict.startswith((BETTER, WORSE)) or verdict == NO_WIN:
            yield "tested"
        if verdict.startswith(BETTER):
            yield "better"
            if not verdict.endswith(BELOW_SESOI):
                yield "worked"
            if tier == "l3_real_model":
                yield "l3 better"
        if verdict == WORSE:
            yield "worse"
        if verdict == NO_EFFECT:
            yield "equal"
    for claim in artifact.get("mechanism", {}).get("claims", []):
        yield f"claim {claim['outcome']}"
    signature = artifact.get("mechanism_signature")
    if isinstance(signature, Mapping):
        inner = signature.get("mechanism_signature", signature)
        if isinstance(inner, Mapping) and isinstance(inner.get("confirmed"), bool):
            yield "claim confirmed" if inner["confirmed"] else "claim refuted"


def _numbers_of(entry: Entry) -> Iterator[Decimal]:
    """Every number of the artifact and its manifest but the bulk, and what a page derives from them."""
    for file in entry.files:
        yield from map(_decimal, _leaves(file.value))
    if entry.bench:
        return
    for change in changes(entry.value["runs"]):
        values = (change.before, change.after, change.change, *(change.ci95 or ()))
        yield from map(_decimal, values)
    runs = entry.value["runs"]
    gap = gap_closed(entry.value)
    if gap is not None:
        shares = (*gap.shares.values(), gap.mean, *(gap.ci95 or ()))
        yield from (_decimal(value) for value in shares if value is not None)
    for name in sorted({name for run in runs for name in run["training"]["last_diagnostics"]}):
        yield _decimal(statistics.mean([run["training"]["last_diagnostics"].get(name, 0.0) for run in runs]))
    if runs:
        yield _decimal(statistics.min_attainable_p(len(runs)))
    yield from map(Decimal, (len(runs), len(completed(runs))))
    execution = {} if entry.execution is None else entry.execution.value["execution"]
    phases = execution.get("phases", {})
    if phases:
        total = sum(phases.values())
        yield from map(_decimal, (total, total / len(runs), *(seconds / len(runs) for seconds in phases.values())))


def _counts(artifact: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Seeds that rose or fell in a metric, that completed, and that won or tied against a rival."""
    runs, done = artifact["runs"], completed(artifact["runs"])
    yield len(done), len(runs)
    yield len(runs) - len(done), len(runs)
    for change in changes(runs):
        moves = [run["final"][change.metric] - run["baseline"][change.metric] for run in done]
        yield sum(move > 0 for move in moves), len(done)
        yield sum(move < 0 for move in moves), len(done)
    gap = gap_closed(artifact)
    if gap is not None:
        yield len(gap.missing), len(gap.shares)
    for entry in artifact.get("comparison", []):
        if entry["wins"] is not None:
            n, wins, ties = entry["n_pairs"], entry["wins"], entry["ties"] or 0
            yield from ((wins, n), (n - wins - ties, n), (ties, n))


def _leaves(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in _BULK:
                yield from _leaves(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _quotes(entry: Entry) -> Iterator[str]:
    """What the plan wrote down, and the artifact's own notes and verdicts."""
    body = {} if entry.plan is None else entry.plan.value["plan"]
    claims: Sequence[Mapping[str, Any]] = [
        *body.get("claims", []),
        *entry.value.get("mechanism", {}).get("claims", []),
    ]
    for claim in claims:
        yield from (str(claim[key]) for key in ("claim", "prediction", "metric", "rule"))
    yield from (str(note) for note in entry.value.get("notes", []))
    if entry.historical and entry.bench:
        yield str(entry.value["comparison"]["verdict"])
