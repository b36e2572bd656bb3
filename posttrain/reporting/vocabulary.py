"""The claim words: a closed list, each with what licenses it (specs/evidence.md, section 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Of = Literal["rival", "claim", "tier", "nothing"]


@dataclass(frozen=True)
class Word:
    """A family of claim words, what licenses it, and the run that would."""

    of: Of  # what it speaks of
    pattern: str  # a regular expression over whole words, lower case
    says: frozenset[str]  # any of these marks of an outcome
    run: str


_COMPARE = (
    "posttrain compare {method} RIVAL --seeds 12 (a declared rival, six or more paired seeds), then posttrain publish"
)
_STUDY = "posttrain reproduce {method}, then posttrain publish"
_L3 = "a formal comparison on real checkpoints (tier L3, three or more trainings per arm), published"


def _word(of: Of, pattern: str, says: str, run: str) -> Word:
    return Word(of, pattern, frozenset(says.split()), run)


# Marks are given by `outcomes`. A word belongs to the first family that takes it.
WORDS = (
    _word("rival", r"outperform\w*|state[- ]of[- ]the[- ]art|sota|superior\w*|best[- ]in[- ]class", "l3-better", _L3),
    _word("tier", r"llms?|large language models?|language models?", "", "a run at tier L2 or L3"),
    _word(
        "rival",
        r"no significant win|insignifican\w*|(?:no|not|without a?) ?(?:statistically )?significan\w*",
        "not-significant",
        _COMPARE,
    ),
    _word("rival", r"significantly(?= better)|idea better", "better", _COMPARE),
    _word("rival", r"significantly(?= worse)|idea worse", "worse", _COMPARE),
    _word("rival", r"significan\w*", "better worse", _COMPARE),
    _word("rival", r"exceed\w*", "better", _COMPARE),
    _word(
        "rival",
        r"beats?|beaten|better than|an? (?:\w+ ){0,2}win|won|wins(?!\s*\|)|improves? on|ahead of|surpass\w*|dominat\w*",
        "worked",
        _COMPARE + ", with a difference that is not below the smallest effect of interest",
    ),
    _word("rival", r"worse than|inferior\w*|loses? to|falls? behind", "worse", _COMPARE),
    _word(
        "rival",
        r"match(?:es|ed)|on par|equivalent to|as good as|indistinguishable|no measurable effect|"
        r"no (?:measurable )?difference",
        "equal",
        _COMPARE + ", with an interval inside the smallest effect of interest",
    ),
    _word("claim", r"confirm(?:s|ed)|proves?|proven|demonstrates?|reproduces", "confirmed", _STUDY),
    _word("claim", r"refut(?:es|ed)|disproves?|disproven", "refuted", _STUDY),
    _word("claim", r"inconclusive", "inconclusive", _STUDY),
    _word("nothing", r"verified|certified", "", "no run: a level of verification belongs beside the word"),
)
