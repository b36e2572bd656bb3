"""Completions as HTML: greedy answers over the steps, and sampled ones token by token.

Tokens are coloured by the teacher's log-ratio, the supervised ones framed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from posttrain.reporting.formatting import number

LEGEND = (
    "Blue: the teacher finds the token likelier than the student does; orange: less likely. The deeper, the larger the "
    "log-ratio. Framed: supervised. Point at a token for its numbers."
)


GRADES = {1.0: "✓", 0.0: "✗", None: "not readable"}
BLANKS = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥"})  # so that a token's blanks are seen


def sample_blocks(samples: Sequence[Mapping[str, Any]]) -> str:
    """The answers of every evaluation and every sampled completion, with a chooser of seeds for both."""
    answers = [row for row in samples if row.get("decoding") == "greedy"]
    samples = [row for row in samples if row.get("decoding") != "greedy"]
    return _sampled(samples) + ("\n" + _answers(answers) if answers else "")


def _answers(rows: Sequence[Mapping[str, Any]]) -> str:
    """One table per problem and seed: what the policy answered at each evaluation."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((int(row["seed"]), str(row["problem"])), []).append(row)
    tables = []
    for (seed, problem), answered in groups.items():
        first = answered[0]
        lines = "".join(
            f"<tr><td class=n>{int(row['step'])}</td><td class=tokens>{escape(str(row['completion']))}</td>"
            f"<td>{_grade(row['accuracy'])}</td></tr>"
            for row in answered
        )
        tables.append(
            f'<details class=sample data-seed="{seed}"><summary>seed {seed}, {escape(problem)}: '
            f"{escape(str(first['prompt']))} (answer: {escape(str(first['answer']))})</summary>\n"
            f"<table><tr><th class=n>step</th><th>greedy answer</th><th>accuracy</th></tr>{lines}</table></details>"
        )
    return (
        "<h2>Answers over the steps</h2>\n<p class=muted>Greedy answers to the first held-out problems, as they were "
        "graded at each evaluation.</p>\n" + "\n".join(tables)
    )


def _grade(grade: float | None) -> str:
    return GRADES[grade] if grade in GRADES else number(grade)


def _sampled(samples: Sequence[Mapping[str, Any]]) -> str:
    if not samples:
        return "<h2>Sampled completions</h2>\n<p>None was kept.</p>"
    seeds = sorted({int(row["seed"]) for row in samples})
    options = "".join(f"<option>{seed}</option>" for seed in (*seeds, "all"))
    coloured = any(row.get("teacher_logprobs") for row in samples)
    legend = LEGEND if coloured else "No fixed teacher was at hand, so tokens have no colour."
    blocks = "\n".join(_block(row) for row in samples)
    chooser = f'<label>seed <select id="seed">{options}</select></label>'
    return f"<h2>Sampled completions</h2>\n<p class=muted>{legend}</p>\n<p>{chooser}</p>\n{blocks}"


def _block(row: Mapping[str, Any]) -> str:
    right = row["completion"].strip() == str(row["answer"]).strip()
    mark = (
        "<span class=right>✓ equals the answer</span>"
        if right
        else "<span class=wrong>✗ differs from the answer</span>"
    )
    return (
        f'<div class=sample data-seed="{int(row["seed"])}"><div class=muted>seed {int(row["seed"])}, step '
        f"{int(row['step'])}, {escape(str(row['problem']))} · {mark}</div>\n<div>{escape(str(row['prompt']))}</div>\n"
        f"<div class=tokens>{_tokens(row)}</div>\n<div class=muted>answer: {escape(str(row['answer']))}</div></div>"
    )


def _tokens(row: Mapping[str, Any]) -> str:
    tokens = row.get("tokens")
    if not tokens:
        return escape(str(row["completion"]))
    count = len(tokens)
    own = row.get("logprobs") or [None] * count
    teacher = row.get("teacher_logprobs") or [None] * count
    kept = row.get("supervised") or [None] * count
    ratios = [None if a is None or b is None else b - a for a, b in zip(own, teacher, strict=True)]
    deepest = max((abs(ratio) for ratio in ratios if ratio is not None), default=0.0) or 1.0
    parts = zip(tokens, own, teacher, ratios, kept, strict=True)
    return "".join(_token(str(text), *numbers, deepest=deepest) for text, *numbers in parts)


def _token(
    text: str, own: float | None, teacher: float | None, ratio: float | None, kept: bool | None, deepest: float
) -> str:
    title = f"student {number(own, 3)}, teacher {number(teacher, 3)}, log-ratio {number(ratio, 3, signed=True)}"
    if kept is not None:
        title += ", supervised" if kept else ", not supervised"
    colour = ""
    if ratio is not None:
        side = "teacher" if ratio > 0 else "student"
        colour = f' style="background:rgba(var(--{side}),{min(1.0, abs(ratio) / deepest) * 0.75:.2f})"'
    return f'<span{" class=kept" if kept else ""}{colour} title="{escape(title)}">{escape(_visible(text))}</span>'


def _visible(token: str) -> str:
    """The token with blanks that can be seen; an empty one as a sign."""
    return token.translate(BLANKS) or "∅"
