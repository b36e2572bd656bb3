"""Laws of evaluations: items are paired by id, every number follows from them, and nothing is more certain than n."""

import json
import random
from dataclasses import replace

import pytest

from posttrain.artifacts.documents import DocumentError
from posttrain.artifacts.evaluations import (
    Completion,
    Item,
    PairingError,
    compared,
    decided,
    item_from,
    measured,
    overall,
    paired,
    read_items,
)
from posttrain.artifacts.schema import violations
from posttrain.reporting.formatting import interval


def ended(score, length=5, truncated=False) -> Completion:
    return Completion(score, length, truncated)


def item(name, right, samples=(), seed=0, **more) -> Item:
    greedy = right if isinstance(right, Completion) else ended(float(right))
    digest = "sha256:" + name.encode().hex().ljust(64, "0")[:64]
    return Item(seed, name, digest, "an answer", greedy, tuple(ended(float(s)) for s in samples), **more)


def pair_of_runs() -> tuple[list[Item], list[Item]]:
    """220 items: both right 150, only A 20, only B 6, both wrong 44."""
    table = [(True, True)] * 150 + [(True, False)] * 20 + [(False, True)] * 6 + [(False, False)] * 44
    return tuple([item(f"q{i:03}", row[side]) for i, row in enumerate(table)] for side in (0, 1))


def test_two_runs_on_the_same_items_are_compared_in_pairs():
    """An unpaired z test of 0.7727 against 0.7091 gives p = 0.1267; the pairs decide otherwise."""
    found = compared(paired(*pair_of_runs()))["greedy"]
    assert (found["accuracy"], found["rival_accuracy"]) == (170 / 220, 156 / 220)
    assert [found[key] for key in ("both_right", "only_this_right", "only_rival_right", "both_wrong")] == [
        *(150, 20, 6, 44)
    ]
    assert found["p_value"] == pytest.approx(0.009355, abs=5e-7)
    assert decided([{"greedy": found}], 0.05)[0]["greedy"]["verdict"] == "higher (significant)"


def test_pairs_are_formed_by_id_whatever_the_order_of_the_rows():
    ours, theirs = pair_of_runs()
    shuffled = random.Random(0).sample(theirs, len(theirs))
    assert shuffled != theirs
    assert compared(paired(ours, shuffled)) == compared(paired(ours, theirs))


def test_missing_and_double_ids_are_named_and_never_left_out():
    ours, theirs = pair_of_runs()
    with pytest.raises(PairingError, match=r"1 item missing in the other evaluation: q007\."):
        paired(ours, theirs[:7] + theirs[8:])
    with pytest.raises(PairingError, match=r"2 items missing in this evaluation: q000, q001\."):
        paired(ours[2:], theirs)
    with pytest.raises(PairingError, match=r"same id in the other evaluation: q003\."):
        paired(ours, [*theirs, theirs[3]])
    with pytest.raises(PairingError, match=r"same id in this evaluation: q003\."):
        paired([*ours, ours[3]], theirs)
    with pytest.raises(ValueError, match="same id: q003"):
        measured([*ours, ours[3]], ())


def test_other_prompts_under_the_same_id_are_no_pair():
    ours, theirs = pair_of_runs()
    theirs[5] = replace(theirs[5], prompt_sha256="sha256:" + "f" * 64)
    with pytest.raises(PairingError, match="other prompts under the same id: q005"):
        paired(ours, theirs)


@pytest.mark.parametrize(
    ("right", "n", "end", "expected"), [(0, 25, 1, 0.133192), (0, 5000, 1, 0.000768), (307, 307, 0, 0.987642)]
)
def test_none_and_all_right_are_never_shown_as_certain(right, n, end, expected):
    found = measured([item(f"q{i}", i < right, [i < right] * 2) for i in range(n)], [1, 2])
    assert found["greedy"]["ci95"][end] == pytest.approx(expected, abs=5e-7)
    for ends in (found["greedy"]["ci95"], *(rate["ci95"] for rate in found["samples"]["pass_at_k"])):
        assert ends[0] < ends[1]
        low, high = interval(ends, signed=False).strip("[]").split(", ")
        assert low != high


def test_an_interval_of_very_many_items_is_still_printed_with_a_width():
    found = measured([item(f"q{i}", False) for i in range(100_000)], ())["greedy"]["ci95"]
    assert interval(found, signed=False) == "[0, 3.841e-5]"


def test_pass_at_k_is_the_mean_over_items_with_the_error_over_prompts():
    """Two of four, none of four: pass@1 = 1/4, pass@2 = (5/6 + 0) / 2; the error of two values d apart is d / 2."""
    found = measured([item("a", True, [1, 0, 1, 0]), item("b", False, [0, 0, 0, 0])], [1, 2])["samples"]
    rates = {rate["k"]: rate for rate in found["pass_at_k"]}
    assert rates[1]["value"] == pytest.approx(0.25)
    assert rates[2]["value"] == pytest.approx(5 / 12)
    assert rates[1]["standard_error"] == pytest.approx(0.25)
    assert rates[2]["standard_error"] == pytest.approx(5 / 12)


def test_pass_at_1_has_the_cluster_robust_error_of_its_single_samples():
    """Scores [1,1,0,0,1,0] of three prompts: .288675, where a naive error would be .223607."""
    items = [item("a", True, [1, 1]), item("b", True, [0, 0]), item("c", True, [1, 0])]
    assert measured(items, [1])["samples"]["pass_at_k"][0]["standard_error"] == pytest.approx(0.288675, abs=5e-7)


def test_one_item_has_no_error_over_prompts():
    rate = measured([item("a", True, [1, 0])], [1])["samples"]["pass_at_k"][0]
    assert (rate["value"], rate["standard_error"], rate["ci95"]) == (0.5, None, None)


def test_unscored_is_counted_apart_and_is_not_right():
    items = [item("a", True), item("b", ended(None, 8, True)), item("c", ended(0.5, 6)), item("d", False)]
    found = measured(items, ())["greedy"]
    assert (found["accuracy"], found["right"], found["unscored"]) == (0.25, 1, 1)
    assert found["mean_score"] == 0.5  # of the three that were scored
    assert (found["mean_length"], found["truncated"], found["truncated_share"]) == (6.0, 1, 0.25)


def test_where_nothing_can_be_judged_there_is_no_mean_score():
    found = measured([item("a", ended(None)), item("b", ended(None))], ())["greedy"]
    assert (found["mean_score"], found["unscored"], found["accuracy"]) == (None, 2, 0.0)


def test_items_with_different_numbers_of_samples_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 2\] samples"):
        measured([item("a", True, [1]), item("b", True, [1, 0])], [1])


@pytest.mark.parametrize(
    ("table", "verdict"),
    [
        ((10, 0, 0, 5), "identical outcomes"),
        ((10, 5, 0, 5), "too few differing items"),  # p can only be 2 / 32
        ((10, 6, 0, 5), "higher (significant)"),  # 2 / 64
        ((10, 0, 6, 5), "lower (significant)"),
        ((10, 5, 2, 5), "no significant difference"),
    ],
)
def test_the_verdict_follows_the_exact_test(table, verdict):
    rows = [(True, True), (True, False), (False, True), (False, False)]
    rows = [row for row, count in zip(rows, table, strict=True) for _ in range(count)]
    pairs = [(item(f"q{i}", a), item(f"q{i}", b)) for i, (a, b) in enumerate(rows)]
    assert decided([compared(pairs)], 0.05)[0]["greedy"]["verdict"] == verdict


def test_p_values_of_several_trainings_are_adjusted_together():
    entry = compared([(item(f"q{i}", True), item(f"q{i}", False)) for i in range(7)])  # 2 / 128
    one, three = decided([entry], 0.05), decided([entry] * 3, 0.05)
    assert one[0]["greedy"]["p_adjusted"] == 0.015625
    assert {e["greedy"]["p_adjusted"] for e in three} == {0.046875}
    assert decided([entry] * 4, 0.05)[0]["greedy"]["verdict"] == "too few differing items"


def test_pass_at_1_is_compared_item_by_item():
    """Differences 1, 0, 0 and 0.5: mean 0.375, standard deviation 0.4787."""
    ours = [item("a", True, [1, 1]), item("b", True, [1, 1]), item("c", True, [0, 0]), item("d", True, [1, 0])]
    theirs = [item("d", True, [0, 0]), item("c", True, [0, 0]), item("b", True, [1, 1]), item("a", True, [0, 0])]
    found = compared(paired(ours, theirs))["pass_at_1"]
    assert (found["difference"], found["wins"], found["ties"]) == (0.375, 2, 2)
    assert found["standard_error"] == pytest.approx(0.47871355 / 2)
    assert found["ci95"] == pytest.approx([0.375 - 3.18244631 * 0.23935678, 0.375 + 3.18244631 * 0.23935678])
    same = compared(paired(ours, ours))["pass_at_1"]
    assert (same["difference"], same["ci95"], same["standard_error"]) == (0.0, None, None)
    assert "pass_at_1" not in compared([(ours[0], item("a", True))])


def test_several_trainings_have_an_interval_over_trainings_and_several_seeds_of_one_model_have_not():
    entries = [
        {"seed": seed, "model": {"run": {"seed": seed}}, "greedy": {"accuracy": a}}
        for seed, a in enumerate((0.4, 0.5, 0.6))
    ]
    found = overall(entries)
    assert found is not None
    assert (found["n_trainings"], found["mean_accuracy"]) == (3, 0.5)
    assert found["ci95"] == pytest.approx([0.5 - 4.30265273 * 0.1 / 3**0.5, 0.5 + 4.30265273 * 0.1 / 3**0.5])
    assert overall(entries[:1]) is None
    assert overall([{**entry, "model": {}} for entry in entries]) is None


# -- lines ------------------------------------------------------------------------------------------------------------


def test_an_item_is_read_back_from_its_line():
    for made in (item("a", True, [1, 0]), item("b", ended(None, 9, True)), item("ü\u2028", False)):
        value = json.loads(json.dumps(made.as_json()))
        assert violations(value, "eval-item-v1") == []
        assert item_from(value) == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: line.replace('"right": true', '"right": false'), "right is False, its score is 1.0"),
        (lambda line: line.replace('"scores": [1.0, 0.0]', '"scores": [1.0]'), "lists are of different lengths"),
        (lambda line: line.replace('"length": 5', '"length": 5.5'), "is no item: /greedy/length"),
        (lambda line: line.replace('"score": 1.0', '"score": NaN'), "NaN is not JSON"),
        (lambda line: line[:-3], "is not one JSON value"),
        (lambda line: line.replace('"seed": 0', '"seed": 0, "seed": 1'), "stands twice"),
    ],
)
def test_a_line_that_is_no_item_is_named(tmp_path, change, message):
    path, line = tmp_path / "items.jsonl", json.dumps(item("a", True, [1, 0]).as_json())
    broken = change(line)
    assert broken != line
    path.write_text(f"{line}\n{broken}\n")
    with pytest.raises(DocumentError, match=message) as raised:
        list(read_items(path))
    assert "items.jsonl:2" in str(raised.value)


def test_a_verdict_never_contradicts_its_adjusted_p():
    """Holm's later steps are milder than alpha / family: 6 against 0 is significant behind 40 against 2."""
    from posttrain.artifacts.evaluations import _verdict

    table = {"only_this_right": 6, "only_rival_right": 0, "min_attainable_p": 0.03125, "difference": 0.1}
    assert _verdict(table, 0.03125, 2, 0.05) == "higher (significant)"
    assert _verdict(table, 0.0625, 2, 0.05) == "too few differing items"
