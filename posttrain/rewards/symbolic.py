"""Whether two expressions are equal: math-verify's judgement, where nothing exact contradicts it.

math-verify rounds small numbers, reads what it can of a text, and judges some pairs differently in the other order.
Here an expression is read whole or not at all, both orders have to agree, and numbers are compared to 50 digits.

Run as a program it answers one question a line, `["gold", "found", tolerance]` in, `true`, `false` or `"error"` out, so
that whoever asks can end it when an answer takes too long.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

DIGITS = 50  # of a number that is compared by its decimals
READY = "ready"
MEMORY = 4 << 30  # bytes of address space
_NAMES = (
    "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|exp|lim|max|min|gcd|lcm|mod|det|sqrt|pi|inf|"
    "and|or|in"
)
_WORD = re.compile(rf"(?<![\\A-Za-z])(?!(?:{_NAMES})(?![A-Za-z]))[A-Za-z]{{3,}}")
_UNREADABLE = (
    re.compile(r"\d\s+[\d.]"),  # two numbers beside each other
    re.compile(r"\d\s*\\[dt]?frac\s*(?:\{\s*\d+\s*\}|\d)"),  # a mixed number that `read_number` did not read
    re.compile(r"\d:\d"),
    re.compile(r"\^\s*(?:\{[^{}]*\}|\w+)\s*\^"),  # powers of powers are read from the wrong side
    re.compile(r"\^\s*\{\s*\d+\s*\^"),  # towers of numbers, which nobody works out
)


def equal(gold: str, found: str, tolerance: float = 0.0) -> bool:
    """Whether two texts are the same expression; what cannot be read equals nothing."""
    if _two_cases(gold + " " + found):
        return _plain(gold) == _plain(found)
    a, b = parsed(gold), parsed(found)
    if a is None or b is None:
        return False
    from math_verify import verify

    settings: dict[str, Any] = {"timeout_seconds": 0, "raise_on_error": False}
    # Beyond a stated tolerance numbers are this module's alone: math-verify would round them its own way.
    accepted = (_numbers(a, b) and tolerance > 0) or (verify(a, b, **settings) and verify(b, a, **settings))
    return bool(accepted) and not _contradicted(a, b, tolerance)


def _two_cases(texts: str) -> bool:
    """Whether a letter stands in both cases as a symbol: the parser reads A and a as one."""
    words = re.sub(r"\\[A-Za-z]+|\$", " ", texts)
    letters = {found for word in re.findall(r"[A-Za-z]+", words) if not re.fullmatch(_NAMES, word) for found in word}
    single = re.fullmatch(r"\s*\(?[A-Za-z]\)?\s+\(?[A-Za-z]\)?\s*", words)  # two choices: A and a are the same one
    return not single and any(letter.swapcase() in letters for letter in letters)


def _plain(text: str) -> str:
    return re.sub(r"[\s$]", "", text)


@lru_cache(maxsize=1024)
def parsed(text: str) -> Any:
    """The sympy object of a text, read whole; None where that cannot be done."""
    latex = _latex(text)
    if latex is None:
        return None
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic, MatrixBase

    found = parse(f"${latex}$", extraction_config=[LatexExtractionConfig()], parsing_timeout=0)
    return found[0] if found and isinstance(found[0], Basic | MatrixBase) else None


def _latex(text: str) -> str | None:
    """The text with every product and root written out; None for words and for what would be read in pieces."""
    text = re.sub(r"[$`]|\\[()\[\]]", "", text.replace("\u2212", "-")).strip().rstrip(".,;")
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)|(?<![\\a-z])sqrt\s*\(([^()]*)\)", r"\\sqrt{\1\2}", text)
    text = re.sub(r"(?<![\\A-Za-z])(pi|sin|cos|tan|log|ln|exp)(?![A-Za-z])", r"\\\1", text)
    text = re.sub(r"(?<=\d)\s*\(", r"\\cdot(", text).replace("**", "^").replace("*", r"\cdot ")
    text = re.sub(r"(\d(?:\.\d+)?)[eE]([-+]?\d+)(?![A-Za-z])", r"\1\\cdot 10^{\2}", text)
    plain = re.sub(r"\\(?:text|mathrm|operatorname|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+", " ", text)
    readable = not _WORD.search(plain) and not any(pattern.search(text) for pattern in _UNREADABLE)
    return text if readable and text else None


def _contradicted(a: Any, b: Any, tolerance: float) -> bool:
    """Whether something exact says that two objects differ; False also where nothing exact can be said."""
    from sympy import Eq, FiniteSet, Interval, MatrixBase, Tuple, Union

    if _numbers(a, b):
        return not _same_number(a, b, tolerance)
    for kind in (FiniteSet, Union):
        if isinstance(a, kind) and isinstance(b, kind):
            return not _matched(list(a.args), list(b.args), tolerance)
    if isinstance(a, Interval) and isinstance(b, Interval):
        return _contradicted(a.start, b.start, tolerance) or _contradicted(a.end, b.end, tolerance)
    if isinstance(a, Tuple | MatrixBase) and isinstance(b, Tuple | MatrixBase):
        pairs = zip(list(a), list(b), strict=False)  # type: ignore[arg-type]
        return len(a) != len(b) or any(_contradicted(x, y, tolerance) for x, y in pairs)
    if isinstance(a, Eq) and isinstance(b, Eq):
        return _differ(_difference(a), _difference(b), proportional=True)
    if isinstance(a, Eq) != isinstance(b, Eq):  # x = 5 and 5
        return _contradicted(a.rhs if isinstance(a, Eq) else a, b.rhs if isinstance(b, Eq) else b, tolerance)
    return _differ(a, b)


def _difference(equation: Any) -> Any:
    return equation.lhs - equation.rhs


def _matched(a: list[Any], b: list[Any], tolerance: float) -> bool:
    """Whether every part of one has its own like in the other."""
    for part in a:
        like = next((i for i, other in enumerate(b) if not _contradicted(part, other, tolerance)), None)
        if like is None:
            return False
        b = b[:like] + b[like + 1 :]
    return not b


def _numbers(a: Any, b: Any) -> bool:
    from sympy import Expr

    return all(isinstance(x, Expr) and not x.free_symbols and x.is_number for x in (a, b))


def _same_number(a: Any, b: Any, tolerance: float) -> bool:
    """|a - b| <= tolerance * max(|a|, |b|): rational numbers exactly, others by their first DIGITS digits."""
    from sympy import N, Rational, nsimplify

    a, b = (nsimplify(x.doit(), rational=True) for x in (a, b))
    if not (a.is_finite and b.is_finite):
        return bool(a == b and a.is_infinite)
    allowed = Rational(tolerance)
    if not (a.is_Rational and b.is_Rational):
        a, b = N(a, DIGITS + 10), N(b, DIGITS + 10)
        allowed += Rational(10) ** -DIGITS
    return bool(abs(a - b) <= allowed * max(abs(a), abs(b)))


def _differ(a: Any, b: Any, proportional: bool = False) -> bool:
    """Whether the difference of two expressions is an expression other than 0, decimals taken exactly."""
    from sympy import Expr, nsimplify, simplify

    if not (isinstance(a, Expr) and isinstance(b, Expr)):
        return False
    a, b = nsimplify(a, rational=True), nsimplify(b, rational=True)
    if proportional:
        return bool(simplify(a / b).free_symbols) if b != 0 else a != 0
    return simplify(a - b) != 0


def main() -> None:
    """Answers until there is no more to read."""
    import resource

    logging.disable(logging.CRITICAL)
    seconds = int(sys.argv[1])
    with suppress(ValueError, OSError):  # where the limit is lower already
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answers, sys.stdout = sys.stdout, sys.stderr  # nobody else's words among the answers
    parsed("1+x")  # the first one loads the grammar
    print(json.dumps(READY), file=answers, flush=True)
    for line in sys.stdin:
        _limit_time(seconds)
        try:
            answer: Any = equal(*json.loads(line))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, NotImplementedError) as error:
            answer = f"{type(error).__name__}: {error}"
        except (RecursionError, MemoryError) as error:
            answer = f"{type(error).__name__}: the expression is too large"
        print(json.dumps(answer), file=answers, flush=True)


def _limit_time(seconds: int) -> None:
    """The kernel ends this process after so much more work, also when nobody is left who waits for it."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds + 1, most))


if __name__ == "__main__":
    main()
