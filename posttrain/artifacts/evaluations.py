"""Numbers of an evaluation, worked out from its items: once when it is made, and again whenever it is verified.

An item is right where its score is 1 or more. What could not be judged is counted apart and is not right. A training
run's accuracy is the mean score instead, breakdowns left out: the same number where every score is 0 or 1 and no
judging broke down (docs/adr/0008). Items of two evaluations are paired by their id, never by their order.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.artifacts.documents import DocumentError, parse
from posttrain.artifacts.item_statistics import (
    clustered_standard_error,
    clustered_wilson,
    mcnemar,
    newcombe,
    pass_at_k,
    wilson,
)
from posttrain.artifacts.schema import violations
from posttrain.artifacts.statistics import holm, mean, sample_sd, t_interval

RIGHT = 1.0  # the score from which on an answer is right
SHOWN_IDS = 3

Verdict = Literal[
    "higher (significant)",
    "lower (significant)",
    "no significant difference",
    "too few differing items",
    "identical outcomes",
]
Pair = tuple["Item", "Item"]


class PairingError(ValueError):
    """Items of two evaluations that are not the same questions, each there once."""


@dataclass(frozen=True)
class Completion:
    """How one completion ended."""

    score: float | None  # None: nobody could judge it
    length: int  # tokens, its end token included
    truncated: bool

    @property
    def right(self) -> bool:
        """Whether it answers the question."""
        return self.score is not None and self.score >= RIGHT


@dataclass(frozen=True)
class Item:
    """One question with its greedy answer and its sampled ones: a line of `items.jsonl`."""

    seed: int
    id: str
    prompt_sha256: str
    text: str  # the greedy answer
    greedy: Completion
    samples: tuple[Completion, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The line's value."""
        greedy = self.greedy
        found: dict[str, Any] = {
            "seed": self.seed,
            "id": self.id,
            "prompt_sha256": self.prompt_sha256,
            "greedy": {
                "text": self.text,
                "right": greedy.right,
                "score": greedy.score,
                "length": greedy.length,
                "truncated": greedy.truncated,
            },
        }
        if self.samples:
            found["samples"] = {
                "scores": [sample.score for sample in self.samples],
                "lengths": [sample.length for sample in self.samples],
                "truncated": [sample.truncated for sample in self.samples],
            }
        return found


def item_from(value: Mapping[str, Any]) -> Item:
    """The item of a line that keeps its schema; ValueError where its lists are of different lengths."""
    greedy, samples = value["greedy"], value.get("samples", {"scores": [], "lengths": [], "truncated": []})
    rows = zip(samples["scores"], samples["lengths"], samples["truncated"], strict=True)
    return Item(
        value["seed"],
        value["id"],
        value["prompt_sha256"],
        greedy["text"],
        Completion(greedy["score"], greedy["length"], greedy["truncated"]),
        tuple(Completion(*row) for row in rows),
    )


def read_items(path: Path) -> Iterator[Item]:
    """The items of a file, line by line; DocumentError names the first line that is none."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path.name}:{number}"
            value = parse(line, where)
            found = violations(value, "eval-item-v1")
            if found:
                raise DocumentError(f"{where} is no item: {found[0]}")
            try:
                item = item_from(value)
            except ValueError:
                raise DocumentError(f"{where}: its samples' lists are of different lengths") from None
            if value["greedy"]["right"] != item.greedy.right:
                raise DocumentError(f"{where}: right is {value['greedy']['right']}, its score is {item.greedy.score}")
            yield item


# -- one checkpoint -------------------------------------------------------------------------------------------


def measured(items: Sequence[Item], ks: Sequence[int]) -> dict[str, Any]:
    """What the items of one checkpoint say: the greedy answers and, where there are samples, pass@k.

    ValueError where an id stands twice, or items have different numbers of samples.
    """
    _require_once(items, "")
    sizes = sorted({len(item.samples) for item in items})
    if len(sizes) != 1:
        raise ValueError(f"items have {sizes} samples; each needs as many as the others")
    greedy = [item.greedy for item in items]
    right = sum(answer.right for answer in greedy)
    interval = wilson(right, len(items))
    found: dict[str, Any] = {
        "n_items": len(items),
        "greedy": {
            "accuracy": right / len(items),
            "right": right,
            "ci95": [interval.low, interval.high],
            "ci_method": interval.method,
            **_described(greedy),
        },
    }
    if sizes[0]:
        every = [sample for item in items for sample in item.samples]
        rates = [_pass_rate(items, k) for k in ks]
        found["samples"] = {"per_item": sizes[0], "pass_at_k": rates, **_described(every)}
    return found


def _described(completions: Sequence[Completion]) -> dict[str, Any]:
    """Scores, lengths and ends; the mean score is that of what could be judged."""
    scores = [completion.score for completion in completions if completion.score is not None]
    cut = sum(completion.truncated for completion in completions)
    return {
        "mean_score": mean(scores) if scores else None,
        "unscored": len(completions) - len(scores),
        "mean_length": mean([completion.length for completion in completions]),
        "truncated": cut,
        "truncated_share": cut / len(completions),
    }


def _pass_rate(items: Sequence[Item], k: int) -> dict[str, Any]:
    """pass@k with its error over prompts; no interval from a single prompt."""
    rates = [pass_at_k(len(item.samples), _right(item), k) for item in items]
    share = min(1.0, mean(rates))
    found: dict[str, Any] = {"k": k, "value": share, "standard_error": None, "ci95": None, "ci_method": None}
    if len(items) > 1:
        # One value a prompt: each prompt is a cluster of its own, whatever number of samples it has.
        error = clustered_standard_error(rates, range(len(rates)))
        interval = clustered_wilson(share, error, len(rates))
        found |= {"standard_error": error, "ci95": [interval.low, interval.high], "ci_method": interval.method}
    return found


def _right(item: Item) -> int:
    return sum(sample.right for sample in item.samples)


def overall(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Greedy accuracy over several trainings of a run: here the training is the unit. None where there is one."""
    if len(evaluations) < 2 or not all("run" in entry["model"] for entry in evaluations):
        return None
    accuracies = [entry["greedy"]["accuracy"] for entry in evaluations]
    found: dict[str, Any] = {"n_trainings": len(accuracies), "mean_accuracy": mean(accuracies)}
    found |= {"sd": sample_sd(accuracies), "ci95": None, "ci_method": None}
    if found["sd"]:
        interval = t_interval(accuracies)
        found |= {"ci95": [interval.low, interval.high], "ci_method": interval.method}
    return found


# -- two checkpoints ------------------------------------------------------------------------------------------


def paired(ours: Sequence[Item], theirs: Sequence[Item]) -> list[Pair]:
    """Items with the same id, in our order; PairingError names ids that are missing, double or other questions."""
    _require_once(ours, " in this evaluation")
    _require_once(theirs, " in the other evaluation")
    mine, other = {item.id: item for item in ours}, {item.id: item for item in theirs}
    for missing, where in ((mine.keys() - other.keys(), "the other"), (other.keys() - mine.keys(), "this")):
        if missing:
            raise PairingError(
                f"{len(missing)} item{'s' * (len(missing) != 1)} missing in {where} evaluation: {_ids(missing)}. "
                "Evaluate both on the same items."
            )
    changed = [name for name, item in mine.items() if item.prompt_sha256 != other[name].prompt_sha256]
    if changed:
        raise PairingError(f"other prompts under the same id: {_ids(changed)}. Evaluate both on the same items.")
    return [(item, other[item.id]) for item in ours]


def _require_once(items: Sequence[Item], where: str) -> None:
    double = [name for name, count in Counter(item.id for item in items).items() if count > 1]
    if double:
        raise PairingError(f"more than one item under the same id{where}: {_ids(double)}. An id names one item.")


def _ids(names: Any) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN_IDS} more" if len(listed) > SHOWN_IDS else ""
    return ", ".join(listed[:SHOWN_IDS]) + more


def compared(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Greedy answers by the exact McNemar test, pass@1 by differences per item; this minus the other."""
    table = Counter((a.greedy.right, b.greedy.right) for a, b in pairs)
    both, first, second, neither = (table[key] for key in ((True, True), (True, False), (False, True), (False, False)))
    interval, p = newcombe(both, first, second, neither), mcnemar(first, second)
    found: dict[str, Any] = {
        "n_pairs": len(pairs),
        "greedy": {
            "accuracy": (both + first) / len(pairs),
            "rival_accuracy": (both + second) / len(pairs),
            "both_right": both,
            "only_this_right": first,
            "only_rival_right": second,
            "both_wrong": neither,
            "difference": (first - second) / len(pairs),
            "ci95": [interval.low, interval.high],
            "ci_method": interval.method,
            "p_value": p,
            "p_method": "exact_mcnemar",
            "min_attainable_p": mcnemar(first + second, 0),
        },
    }
    if all(a.samples and b.samples for a, b in pairs):
        found["pass_at_1"] = _differences(pairs)
    return found


def _differences(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Of pass@1, item by item; no interval from one item or where no difference differs from another."""
    rates = [(pass_at_k(len(a.samples), _right(a), 1), pass_at_k(len(b.samples), _right(b), 1)) for a, b in pairs]
    found = [ours - theirs for ours, theirs in rates]
    entry: dict[str, Any] = {
        "value": mean([ours for ours, _ in rates]),
        "rival_value": mean([theirs for _, theirs in rates]),
        "difference": mean(found),
        "wins": sum(d > 0 for d in found),
        "ties": found.count(0.0),
        "standard_error": None,
        "ci95": None,
        "ci_method": None,
    }
    if len(found) > 1 and sample_sd(found):
        interval = t_interval(found)
        error = clustered_standard_error(found, range(len(found)))
        entry |= {"standard_error": error, "ci95": [interval.low, interval.high], "ci_method": interval.method}
    return entry


def decided(comparisons: Sequence[Mapping[str, Any]], alpha: float) -> list[dict[str, Any]]:
    """The comparisons with their p adjusted over all of them (Holm), and a verdict each."""
    adjusted = holm([entry["greedy"]["p_value"] for entry in comparisons])
    found = []
    for entry, p in zip(comparisons, adjusted, strict=True):
        verdict = _verdict(entry["greedy"], p, len(comparisons), alpha)
        found.append({**entry, "greedy": {**entry["greedy"], "p_adjusted": p, "verdict": verdict}})
    return found


def _verdict(greedy: Mapping[str, Any], p_adjusted: float, family: int, alpha: float) -> Verdict:
    if greedy["only_this_right"] == greedy["only_rival_right"] == 0:
        return "identical outcomes"
    if p_adjusted > alpha and greedy["min_attainable_p"] > alpha / family:
        return "too few differing items"
    if p_adjusted > alpha:
        return "no significant difference"
    return "higher (significant)" if greedy["difference"] > 0 else "lower (significant)"
