"""The claim words: a closed list, each with what licenses it (docs/adr/0007)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Of = Literal["rival", "claim", "tier", "nothing"]


@dataclass(frozen=True)
class Word:
    """A family of claim words, what licenses it, and the run that would."""

    of: Of  # what it speaks of
    pattern: str  # a regular expression over whole words, lower case; blanks are single
    says: frozenset[str]  # any of these marks of an outcome, or tiers
    run: str  # for what no run licenses, what to write instead
    daily: bool = False  # a word of daily use: in a text that is no page it counts where a method is named
    named: bool = False  # counts beside a named rival only

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern over whole words: `won` is not in `won't`."""
        return re.compile(rf"\b(?:{self.pattern})\b(?!['’]t\b)", re.IGNORECASE)


_COMPARE = (
    "posttrain compare {method} RIVAL --seeds 12 (a declared rival, six or more paired seeds), then posttrain publish"
)
_STUDY = "posttrain reproduce {method}, then posttrain publish"
_L3 = "a formal comparison on real checkpoints (tier L3, three or more trainings per arm), published"
_LARGE = ", with a difference that is not below the smallest effect of interest"
_THAN = r"(?= (?:[\w`.-]+ ){0,4}than)"
_NO_RUN = "Write the two numbers that are published"


def _word(of: Of, pattern: str, says: str, run: str, *, daily: bool = False, named: bool = False) -> Word:
    return Word(of, pattern, frozenset(says.split()), run, daily, named)


# Marks are given by `outcomes`. A word belongs to the first family that takes it.
WORDS = (
    _word(
        "rival",
        r"(?:beaten|exceeded|surpassed|dominated|out-?performed|outclassed|matched) by|beaten",
        "worse",
        _COMPARE,
    ),
    _word(
        "nothing",
        r"(?:beats?|better than|wins?|wins? (?:against|over)|exceeds?|out-?performs?|surpass(?:es)?|ahead of|"
        r"improves (?:on|over)) (?:all|any|every|everything|everywhere|each|anything)",
        "",
        "No run compares with all there is; name the rivals",
    ),
    _word(
        "rival",
        r"out-?perform\w*|state[- ]of[- ]the[- ]art|sota|superior\w*|best[- ]in[- ]class|"
        r"(?:is|are|was|were) (?:by far )?the (?:best|strongest)|best (?:method|algorithm)|crush\w*|outclass\w*",
        "l3-better",
        _L3,
    ),
    _word("tier", r"real (?:language )?models|real checkpoints|real llms?", "l3_real_model", "a run at tier L3"),
    _word(
        "tier",
        r"llms?|large language models?|language models?",
        "l2_tiny_lm l3_real_model",
        "a run at tier L2 or L3",
        daily=True,
    ),
    _word(
        "rival",
        r"no significant win|insignifican\w*|(?:no|not|without a?) ?(?:statistically )?significan\w*",
        "not-significant",
        _COMPARE,
        daily=True,
    ),
    _word("rival", r"significantly(?= (?:better|above|ahead))|idea better", "better", _COMPARE, daily=True),
    _word("rival", r"significantly(?= (?:worse|below|behind))|idea worse", "worse", _COMPARE, daily=True),
    _word("rival", r"significantly(?= (?:higher|more|greater|larger))", "higher", _COMPARE, daily=True),
    _word("rival", r"significantly(?= (?:lower|less|smaller|fewer))", "lower", _COMPARE, daily=True),
    _word("rival", r"significan\w*", "better worse", _COMPARE, daily=True),
    _word("rival", r"exceed\w*", "better", _COMPARE, daily=True),
    _word(
        "rival",
        r"match(?:es|ed)|on par|equivalent to|(?<!twice )(?<!times )as good as|indistinguishable|no measurable effect|"
        r"no (?:measurable )?difference",
        "equal",
        _COMPARE + ", with an interval inside the smallest effect of interest",
        daily=True,
    ),
    _word(
        "nothing",
        r"twice as \w+|thrice|[a-z]+ times(?= as | more | better| faster| fewer )|"
        r"halv(?:es|ed|ing)|doubl(?:es|ed|ing)|tripl(?:es|ed|ing)|orders? of magnitude",
        "",
        _NO_RUN,
        daily=True,
    ),
    _word(
        "nothing",
        r"(?:faster|slower|cheaper|more (?:efficient|stable|robust)) than",
        "",
        "No published metric measures it",
        named=True,
    ),
    _word(
        "rival",
        r"beats?|stronger than|improv(?:es?|ed|ing|ements?) (?:on|over|upon)|(?:clear )?advantage over|"
        r"surpass\w*|dominat\w*",
        "worked",
        _COMPARE + _LARGE,
    ),
    _word(
        "rival",
        r"(?<!lower is )(?<!higher is )(?<!or )better|an? (?:\w+ ){0,2}win|won|wins(?!\s*\|)|ahead of",
        "worked",
        _COMPARE + _LARGE,
        daily=True,
    ),
    _word(
        "rival",
        r"worse than|weaker than|inferior\w*|loses? to|falls? behind",
        "worse",
        _COMPARE,
        daily=True,
    ),
    _word("rival", rf"(?:higher|greater|larger|more){_THAN}", "higher", _COMPARE, named=True),
    _word("rival", rf"(?:lower|smaller|less|fewer){_THAN}", "lower", _COMPARE, named=True),
    _word(
        "claim",
        r"confirm(?:s|ed)|proves?|proven|demonstrates?|reproduces|as predicted|"
        r"(?<=claim )holds?|(?<=claims )holds?|claims? (?:[\w`.-]+ ){1,3}holds?",
        "confirmed",
        _STUDY,
        daily=True,
    ),
    _word("claim", r"refut(?:es|ed)|disproves?|disproven", "refuted", _STUDY, daily=True),
    _word("claim", r"inconclusive", "inconclusive", _STUDY, daily=True),
    _word(
        "nothing",
        r"verified|certified",
        "",
        "A level of verification belongs beside the word",
        daily=True,
    ),
)
