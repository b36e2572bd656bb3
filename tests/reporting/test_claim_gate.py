"""The claim gate: what has no licence fails with its line, and the message says what would license it."""

import cProfile
import pstats
from decimal import Decimal

import pytest

from posttrain.reporting.claims import check_text
from posttrain.reporting.findings import GAP, OTHER, SETTING, Count, Finding, Source
from posttrain.reporting.gate import SPOKEN
from posttrain.reporting.licence import Licence, licence_of
from posttrain.reporting.outcomes import Outcome, outcomes_of
from posttrain.reporting.reading import Entry, File, read_suite
from posttrain.reporting.rendered import rendered
from posttrain.reporting.summary import METRICS

NUMBERS = {"0.609375": "accuracy", "0.1171875": "accuracy", "0.0004883": OTHER, "-0.25": "entropy", "12": OTHER}
VERDICTS = {
    "better": "idea better (significant), below smallest effect of interest",
    "worked": "idea better (significant)",
    "worse": "idea worse (significant)",
    "equal": "no measurable effect",
    "open": "no significant win",
}


def compared(rival, verdict, p=0.01, method="grpo", tier="l1_mechanism", plan="study"):
    """The outcome of one comparison, by the name of its verdict."""
    value = {
        "method": method,
        "evaluation_protocol": {"tier": tier},
        "manifest_ref": f"post-training:{plan}",
        "comparison": [
            {
                "against": {"method": f"{method}.{rival}"},
                "verdict": VERDICTS[verdict],
                "p_adjusted": p,
                "direction": "higher is better",
            }
        ],
    }
    return next(outcomes_of(Entry(File("docs/post-training/x/metrics/y.json", "", value))))


def claimed(name, outcome, method="grpo", plan="study"):
    """The outcome of one claim."""
    return Outcome("claim", method, name, frozenset({outcome}), outcome, "l1_mechanism", plan)


def found(value, of, tier="l1_mechanism", plan="study", page="grpo", seed=None, arm=None):
    """A finding of one published run."""
    return Finding(Decimal(value), of, Source(page, tier, plan, arm), seed)


def counted(some, every, of, says, rival=None, page="grpo", arm=None, tier="l1_mechanism"):
    """A count of one published run."""
    return Count(some, every, of, frozenset({says}), Source(page, tier, "study", arm), rival)


FINDINGS = tuple(found(value, of) for value, of in NUMBERS.items())


def said(text, outcomes=(), counts=(), quotes=(), names=(), method="grpo", tiers=(), findings=FINDINGS):
    licence = Licence(
        frozenset(map(Decimal, NUMBERS)), tuple(outcomes), frozenset(tiers), tuple(quotes), frozenset(counts), findings
    )
    registered = ("grpo", "rloo", "ppo", "dr-grpo", "sparse-opd")
    found = check_text("page.md", text, licence, names, method, registered)
    return [(problem.line, problem.message) for problem in found]


@pytest.mark.parametrize(
    "text",
    [
        "Accuracy is 0.609.", "Accuracy is 0.61, or 61 %.", "It fell by 0.25.", "by 4.883e-4", "up 11.72 points",
        "up 11.72 percentage points",
        "Two tokens of 64, with 12 seeds.", "See arXiv 2609.04565, section 3.6 and eq. 4.1, of 2026-09-03.",
        "In 2024 and 2025.", "Version 1.2.3 and v2.0.", "`0.777` and ``` are code", "```\n0.777 outperforms\n```",
        "[a link](https://example.org/0.777)", "<!-- 0.777 -->", "the 95 % interval; 80 % power", "seeds 42-53",
        "sha256:0.777e5a is not looked at in `sha256:0777e5a`", "No claim here at all.",
    ],
)  # fmt: skip
def test_licensed_numbers_names_dates_and_code_pass(text):
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Accuracy is 0.777.", "0.777"), ("up 77 %", "77 %"), ("3.7x faster", "3.7x"), ("5 times as fast", "5 times"),
        ("by 4.8e-4", "4.8e-4"),
        ("up 12.5 percentage points", "12.5"),
        ("**0.62**", "0.62"), ("| 0.62 |", "0.62"), ("(0.62)", "0.62"), ("−0.62", "0.62"),
        ("up 12.5 points", "12.5 points"), ("it rose in 3 of 3 seeds", "3 of 3 seeds"), ("0.6093", "0.6093"),
    ],
)  # fmt: skip
def test_a_number_that_no_artifact_holds_fails(text, found):
    problems = said("# title\n\n" + text)
    assert [line for line, _ in problems] == [3]
    assert found in problems[0][1]
    assert "posttrain train grpo" in problems[0][1]


@pytest.mark.parametrize(
    ("word", "verdict"),
    [
        ("is significantly better than", "worked"), ("shows a significant gain over", "better"),
        ("is significantly worse than", "worse"), ("shows no significant difference from", "open"),
        ("shows no significant win over", "open"), ("is not significantly better", "equal"), ("exceeds", "better"),
        ("beats", "worked"), ("is better than", "worked"), ("improves on", "worked"), ("is a clear win over", "worked"),
        ("wins against", "worked"), ("won over", "worked"), ("surpasses", "worked"), ("is worse than", "worse"),
        ("matches", "equal"), ("is on par with", "equal"), ("shows no measurable effect over", "equal"),
    ],
)  # fmt: skip
def test_a_word_of_comparison_needs_the_verdict_that_says_it_against_the_rival_it_names(word, verdict):
    text = f"GRPO {word} PPO."
    assert said(text, [compared("ppo", verdict)]) == []
    assert said(text) != [] and "no published" in said(text)[0][1]
    assert said(text, [compared("rloo", verdict)]) != []
    opposite = "open" if verdict in ("better", "worked") else "worked"
    assert "of ppo (study): " + VERDICTS[opposite] in said(text, [compared("ppo", opposite)])[0][1]


def test_a_clause_that_names_no_rival_speaks_of_all_of_them():
    outcomes = [compared("ppo", "worked"), compared("rloo", "worked")]
    assert said("It is significantly better.", outcomes) == []
    problems = said("It is significantly better.", [*outcomes, compared("random", "open")])
    assert "speaks of all" in problems[0][1] and "random (study): no significant win" in problems[0][1]


@pytest.mark.parametrize("name", ["RLOO", "rloo", "`rloo`", "the `rloo`", "`grpo.rloo`", "RLOO and the `random` arm"])
def test_a_rival_that_nobody_was_compared_with_is_named_in_the_message(name):
    problems = said(f"It is significantly better than {name}.", [compared("ppo", "worked")])
    assert "compares grpo with rloo" in problems[0][1] or "random" in problems[0][1]


@pytest.mark.parametrize("name", ["Dr. GRPO", "dr-grpo", "Dr GRPO", "`dr-grpo`"])
def test_a_longer_name_is_not_the_shorter_one_inside_it(name):
    assert said(f"GRPO beats {name}.", [compared("dr-grpo", "worked")]) == []
    assert said(f"{name} beats GRPO.", [compared("dr-grpo", "worked")]) != []


def test_a_sentence_turned_round_needs_the_verdict_turned_round():
    outcomes = [compared("ppo", "worse"), compared("random", "worked")]
    assert said("PPO exceeds GRPO; it is significantly better.", outcomes[:1])[0][1].startswith("'significantly'")
    assert said("PPO exceeds GRPO.", outcomes) == [] == said("Unlike GRPO, PPO shows a significant gain.", outcomes)
    assert said("PPO is worse than GRPO.", outcomes) != []
    assert said("`random` is significantly worse than GRPO.", outcomes) == []
    assert said("`random` beats GRPO.", outcomes) != []


def test_arms_bear_ordinary_words_and_are_named_in_backticks_or_after_their_method():
    outcomes = [compared("first", "worked"), compared("last", "open")]
    assert said("It beats `first`.", outcomes) == [] == said("GRPO beats `grpo.first`.", outcomes)
    assert said("At first it beats everything.", outcomes) != []


def test_tiers_and_plans_that_a_clause_or_its_headings_name_narrow_what_it_speaks_of():
    outcomes = [compared("ppo", "worse"), compared("ppo", "worked", tier="l2_tiny_lm", plan="run-seeds0-7")]
    assert said("GRPO beats PPO.", outcomes) != []
    for text in ("GRPO beats PPO at tier L2.", "## run-seeds0-7\n\nGRPO beats PPO.", "### L2, small\n\nIt beats PPO."):
        assert said(text, outcomes, tiers=("l2_tiny_lm",)) == [], text
    assert said("## run-seeds0-7\n\n## Else\n\nGRPO beats PPO.", outcomes) != []


def test_each_clause_speaks_for_itself():
    outcomes = [compared("ppo", "worse"), compared("rloo", "worked")]
    assert said("It is worse than PPO; it beats RLOO. It exceeds RLOO.", outcomes) == []
    assert [line for line, _ in said("It beats RLOO.\nIt beats PPO.\n", outcomes)] == [2]


def test_names_in_settings_links_and_quotations_name_nobody():
    outcomes = [compared("online", "worse")]
    row = "| `grpo.online` | `algorithm ppo` | [runs](../ppo/x.json) | **idea worse (significant)** |"
    assert said(row, outcomes) == []


@pytest.mark.parametrize(
    ("text", "licensed"),
    [
        ("p < 0.05 against `random`.", True), ("p (Holm) = 0.0078 against `random`", True), ("p <= 0.008", False),
        ("p < 0.001 for all", False), ("p < 0.001 against `random`", False), ("p > 0.5 against PPO", True),
        ("p below 0.05 against RLOO", False), ("a p-value of = 0.02 against `random`", False), ("p < 0.9", True),
    ],
)  # fmt: skip
def test_a_bound_on_p_holds_for_every_comparison_that_its_clause_speaks_of(text, licensed):
    outcomes = [compared("ppo", "open", p=0.7188), compared("random", "worked", p=0.0078125)]
    assert (said(text, outcomes) == []) == licensed


def test_a_claim_is_confirmed_or_refuted_by_its_own_outcome():
    outcomes = [claimed("S1", "confirmed"), claimed("S4", "refuted"), claimed("Y1", "inconclusive")]
    assert said("S1 is confirmed; S4 was refuted; Y1 stays inconclusive.", outcomes) == []
    assert said("S4 is confirmed.", outcomes) != [] == said("S1 proves it.", outcomes)
    assert "speaks of all" in said("It is proven.", outcomes)[0][1]
    assert said("It is proven.", outcomes[:1]) == []
    assert "no published claim" in said("The claim is confirmed.")[0][1]


def test_claims_are_counted_by_their_outcomes():
    outcomes = [claimed("S1", "confirmed"), claimed("S2", "confirmed"), claimed("S4", "refuted")]
    assert said("2 confirmed, 1 refuted, 0 inconclusive.", outcomes) == []
    assert "2 are confirmed" in said("3 claims are confirmed.", outcomes)[0][1]


def test_a_page_of_several_methods_is_read_by_the_names_in_each_clause():
    outcomes = [compared("ppo", "worse"), compared("dense", "worked", method="sparse-opd"), claimed("S1", "confirmed")]
    assert (
        said("sparse-opd beats `dense`; GRPO is worse than PPO; S1 of GRPO is confirmed.", outcomes, method=None) == []
    )
    assert said("It beats all.", outcomes, method=None) != []


def test_no_run_of_a_mechanism_tier_licenses_the_words_of_a_ranking():
    text = "It outperforms PPO.\nIt is SOTA."
    assert [line for line, _ in said(text, [compared("ppo", "worked")])] == [1, 2]
    assert said(text, [compared("ppo", "worked", tier="l3_real_model")]) == []


def test_language_models_are_named_where_one_was_trained():
    assert "trained one" in said("For LLMs.")[0][1]
    assert said("For language models.", tiers=("l2_tiny_lm",)) == []


def test_nothing_licenses_a_level_of_verification_by_itself():
    assert said("It is verified.", [claimed("S1", "confirmed")]) != []


def test_the_message_says_which_run_would_license_the_word():
    assert "posttrain compare grpo RIVAL --seeds 12" in said("grpo beats rloo")[0][1]
    assert "posttrain reproduce grpo" in said("the claim is confirmed")[0][1]
    assert "L3" in said("it outperforms")[0][1]
    track = Outcome("rival", "sequence", "baseline", frozenset(), "no significant win", "bench", "sequence-seeds0-7")
    assert "posttrain bench run sequence" in said("The idea beats the baseline.", [track], method="sequence")[0][1]


def test_what_the_plan_wrote_may_be_quoted_and_nothing_like_it():
    claim = "extremes beat two random tokens by 0.02"
    assert said(f'| S2 | "{claim}" |', quotes=[claim]) == []
    assert said('| S2 | "extremes beat two random tokens by 0.03" |', quotes=[claim]) != []


def test_lines_are_counted_through_code_comments_and_quotations():
    text = "```\na\nb\n```\n<!--\n\n-->\none\nquotation\nit beats all"
    assert [line for line, _ in said(text, names=["one quotation"])] == [10]


def test_a_title_is_a_name():
    title = "Your Language Model Beats 0.777"
    assert said(f"*{title}*", names=[title]) == []


def test_counts_of_seeds_are_licensed_as_pairs():
    counts = [
        counted(5, 6, "accuracy", "higher"), counted(1, 6, "accuracy", "lower"), counted(7, 7, "entropy", "lower"),
        counted(6, 6, "accuracy", "higher", page="rloo"), counted(6, 6, "accuracy", "higher", arm="dense"),
        counted(3, 6, OTHER, "won", "ppo"), counted(2, 6, OTHER, "won", "rloo"),
        counted(4, 8, "accuracy", "higher", tier="l2_tiny_lm"), counted(0, 6, "accuracy", "tied"),
    ]  # fmt: skip
    for text in (
        "rose in 5 of 6 seeds", "5/6 seeds", "5 out of 6 runs", "five of its six seeds", "Accuracy fell in 1/6 seeds.",
        "| 5 of 6 |", "Entropy is not looked at in 42-47.", "Every seed has its file.", "for all six seeds",
        "Accuracy rose in 5 of 6 independent seeds while entropy fell.", "Entropy fell in every single seed.",
        "Accuracy rose in 5/6.", "It rose in 4 of 8 seeds at tier L2.",
    ):  # fmt: skip
        assert said(text, counts=counts) == [], text
    for text in (
        "rose in 6 of 6 seeds", "6/6 seeds", "6 out of 6 runs", "six of the six seeds", "| 6 of 6 |",
        "fell in 5 of 6 seeds", "Entropy rose in 5 of 6 seeds.", "It rose in all six seeds.", "It rose in every seed.",
        "Accuracy rose in 6 of 6 seeds while entropy fell.", "Accuracy rose in 6 of 6 random seeds.",
        "It rose in both seeds.",
        "Accuracy rose in 6/6.", "Accuracy rose in every single seed.", "Entropy fell in no seed.",
        "It rose in 4/8 at tier L1.",
    ):  # fmt: skip
        assert len(said(text, counts=counts)) == 1, text
    outcomes = [compared("ppo", "worked"), compared("rloo", "worked"), compared("dense", "worked")]
    assert said("The accuracy of `dense` rose in 6 of 6 seeds.", outcomes, counts) == []
    assert said("It won against PPO in 3 of 6 seeds.", outcomes, counts) == []
    assert "'2 of 6 seeds'" in said("It won against PPO in 2 of 6 seeds.", outcomes, counts)[0][1]


def test_artifacts_license_what_they_say(published):
    suite = read_suite(published)
    controlled = next(entry for entry in suite.entries if entry.value.get("comparison") and not entry.bench)
    licence = licence_of([controlled])
    verdicts = {entry["verdict"] for entry in controlled.value["comparison"]}
    assert {outcome.verdict for outcome in licence.outcomes if outcome.kind == "rival"} == verdicts
    assert licence.tiers == {"l1_mechanism"}
    assert {finding.of for finding in licence.findings} >= {"accuracy", "entropy", "p", OTHER}
    assert {count.all for count in licence.counts} == {len(controlled.value["runs"])}
    accuracy = controlled.value["runs"][0]["final"]["accuracy"]
    assert licence.holds(f"{accuracy:.3f}")
    assert licence.holds(f"{100 * accuracy:.1f}", percent=True)
    assert not licence.holds("0.123456789")


def test_a_historical_artifact_licenses_numbers_and_no_words(published):
    historical = [entry for entry in read_suite(published).entries if entry.historical]
    assert len(historical) == 2
    assert licence_of(historical).outcomes == ()


def test_every_metric_of_a_page_can_be_spoken_of():
    assert set(SPOKEN) == {*METRICS, GAP}


@pytest.mark.parametrize(
    ("text", "licensed"),
    [
        ("Accuracy is .609", True), ("Accuracy is 0,609", True), ("Accuracy is 61 per cent", True),
        ("Accuracy is 61 percent", True), ("Accuracy is 61&#37;", True), ("Accuracy is $61\\%$", True),
        ("Accuracy rose from 0.5-0.609", False), ("Accuracy is 0.25", False), ("Entropy fell by 0.25", True),
        ("Its entropy is 0.609", False), ("Accuracy is .777", False), ("Accuracy is 0,777", False),
        ("Accuracy is 77 per cent", False), ("Accuracy is 77&#37;", False), ("Table 0.777 accuracy", False),
        ("See table 3.2 and version 1.25", True), ("version 0.7771", False), ("KL is 0.25", False),
    ],
)  # fmt: skip
def test_a_number_is_of_the_metric_that_its_clause_names_however_it_is_written(text, licensed):
    assert (said(text) == []) == licensed


def test_a_number_is_of_the_tier_the_plan_and_the_seed_that_its_clause_names():
    both = (found("0.61", "accuracy"), found("0.83", "accuracy", "l2_tiny_lm", "run-seeds0-7"))
    both = (*both, found("0.97", "accuracy", seed=43))
    assert said("Accuracy is 0.61 here; 0.83 there.", findings=both) == []
    assert said("At tier L2 accuracy is 0.83.", findings=both, tiers=("l2_tiny_lm",)) == []
    assert said("At tier L2 accuracy is 0.61.", findings=both, tiers=("l2_tiny_lm",)) != []
    assert said("### run-seeds0-7\n\nIt is 0.61.", findings=both) != []
    assert said("Seed 43 ended at 0.97.", findings=both) == []
    assert said("Seed 44 ended at 0.97.", findings=both) != [] != said("It ended at 0.97.", findings=both)


def test_what_a_template_wrote_needs_an_artifact_that_holds_the_number():
    text = "Entropy is 0.609. By hand: 0.609; entropy 0.609."
    licence = Licence(frozenset(map(Decimal, NUMBERS)), findings=FINDINGS)
    cut = text.index("By hand")
    assert len(check_text("page.md", text, licence, (), "grpo", ("grpo",), (cut, len(text)))) == 1
    assert len(check_text("page.md", text, licence, (), "grpo", ("grpo",))) == 2
    assert check_text("page.md", text, licence, (), "grpo", ("grpo",), (0, 0)) == []


def test_in_a_text_that_is_no_page_results_are_of_those_it_names():
    for text in (
        "Python 3.11 or newer, for $5.50, at 12.30 o'clock.", "Five seeds never reach p < 0.05.", "At least 50 %.",
        "The file must exceed 1 MB; a pattern matches the whole answer, which won't do.", "It is better than nothing.",
        "To demonstrate the idea, run the demo; verified files are worse than others.", "GRPO: accuracy 0.609.",
    ):  # fmt: skip
        assert said(text, method=None) == [], text
    for text in (
        "GRPO reached 0.777.", "## GRPO\n\nIt reached 0.777.", "Accuracy is 0.609.", "GRPO is fine. It exceeds all.",
        "It outperforms all.", "It is 3x as good.", "RLOO: accuracy 0.609.", "GRPO has p < 0.05.",
    ):  # fmt: skip
        assert len(said(text, method=None)) == 1, text


@pytest.mark.parametrize(
    "text",
    [
        "GRPO is better\nthan PPO.", "It is  better   than PPO.", "It is better *than* PPO.", "It **out**performs it.",
        "It is signi*fic*antly better than PPO.", "It out&shy;performs PPO.", "It is better&nbsp;than PPO.",
        "It outper<b></b>forms it.", "It \u043eutperforms it.", "It \uff4futperforms it.", "It out\u00adperforms it.",
        "It is state of\nthe art.", "It out-performs it.", "It out\u2010performs it.", "It _beats_ it.", "~~It beats~~",
    ],
)  # fmt: skip
def test_a_claim_word_is_the_same_however_it_is_marked_up(text):
    assert said(text, [compared("ppo", "equal")]) != []


def test_what_is_read_keeps_its_place():
    text = "a &lt; *b*  c\n\u00ad`x_y*z`<br>d\n* e 2*3 f_g"
    shown = rendered(text)
    assert shown.text == "a < b c\n`x_y*z` d\n* e 2*3 f_g"
    assert [text[shown.place(i)] for i in (4, 6, shown.text.index("d"), len(shown.text) - 1)] == ["b", "c", "d", "g"]
    assert shown.place(len(shown.text)) == len(text)


@pytest.mark.parametrize(
    "bound",
    [
        "p<.001", "p < .001", "P<.001", "*p* < 0.001", "p &lt; 0.001", "p less than 0.001", "p-value: 0.0001",
        "p-value of 0.0001", "p was 0.0001", "p \u2248 0.0001", "$p < 10^{-5}$", "p < 10\u207b\u2075", "p 0.0001",
        "$p \\leq 2 \\times 10^{-4}$",
    ],
)  # fmt: skip
def test_p_is_read_in_every_typography(bound):
    held, open_ = compared("ppo", "worked", p=1e-6), compared("ppo", "open", p=0.7188)
    assert said(f"With {bound} against PPO.", [open_]) != []
    if not any(exact in bound for exact in (":", "of", "was", "\u2248", "p 0")):
        assert said(f"With {bound} against PPO.", [held]) == []


def test_p_of_other_things_is_no_probability():
    assert said("Sampling has top-p 0.9; `p < 0.001` is code.", findings=(found("0.9", OTHER),)) == []


@pytest.mark.parametrize(
    "text",
    [
        "GRPO is twice as good as PPO.", "GRPO is ten times as good as PPO.", "It halves the error of PPO.",
        "GRPO is better on all twelve seeds.", "Compared with PPO, GRPO is better.", "It has higher accuracy than PPO.",
        "It is stronger than PPO.", "It learns faster than PPO.", "It improves over PPO.", "An advantage over PPO.",
        "GRPO is the best.", "It is the best method.", "It crushes PPO.", "It is 7x faster.", "It suits real models.",
    ],
)  # fmt: skip
def test_equality_licenses_no_word_of_order(text):
    assert said(text, [compared("ppo", "equal")]) != []


@pytest.mark.parametrize(
    "text",
    [
        "GRPO beats all others.", "It wins everywhere.", "It is better than any method.", "It exceeds every rival.",
        "GRPO beats PPO-like methods.", "None of its claims was refuted.", "No claim was refuted.",
        "All claims of GRPO hold.", "The claim holds.", "It falls, as predicted.", "It is worse than PPO on every seed",
    ],
)  # fmt: skip
def test_nothing_is_said_of_all_that_is_not_so_of_each(text):
    outcomes = [compared("random", "worked", plan="run"), compared("ppo", "worse"), claimed("P1", "refuted")]
    counts = [counted(3, 6, "accuracy", "lost", "ppo")]
    assert said(f"### Of run\n\n{text}", outcomes, counts) != []


def test_a_page_may_speak_of_other_methods_by_what_is_published_of_them():
    outcomes = [
        compared("ppo", "worked"),
        compared("random", "worked", method="rloo"),
        claimed("R1", "confirmed", "rloo"),
    ]
    numbers = (found("0.61", "accuracy"), found("0.83", "accuracy", page="rloo"))
    assert said("RLOO exceeds `rloo.random`; R1 of RLOO is confirmed.", outcomes) == []
    assert said("GRPO reached 0.61, RLOO 0.83.", findings=numbers) == []
    assert said("It reached 0.83.", findings=numbers) != []


@pytest.mark.parametrize(
    "text",
    [
        "GRPO is beaten by PPO.", "GRPO was exceeded by PPO.", "GRPO is no better than PPO.",
        "Nothing is better than PPO.",
        "No setting of GRPO is better than PPO.", "GRPO is not, in these runs, better than PPO.",
        "GRPO's accuracy is lower than PPO's.", "GRPO is less accurate than PPO.", "GRPO is significantly below PPO.",
        "Its entropy is higher than PPO's.", "GRPO has significantly lower accuracy than PPO.",
    ],
)  # fmt: skip
def test_the_opposite_of_what_is_published_has_no_licence(text):
    assert said(text, [compared("ppo", "worked")]) != []


@pytest.mark.parametrize(
    "text",
    [
        "GRPO is not only better than PPO but simpler.", "GRPO does not just beat PPO.",
        "GRPO never fails to beat PPO.",
        "GRPO does not merely outperform PPO.", "Not surprisingly GRPO beats PPO.", "Without clipping it beats PPO.",
    ],
)  # fmt: skip
def test_a_word_that_is_denied_in_appearance_only_needs_its_licence(text):
    assert said(text, [compared("ppo", "open")]) != []


def test_comparatives_go_by_the_direction_of_the_metric():
    better, worse = [compared("ppo", "worked")], [compared("ppo", "worse")]
    assert said("GRPO has higher accuracy than PPO.", better) == [] == said("It is more accurate than PPO.", better)
    assert said("GRPO has significantly lower accuracy than PPO.", worse) == [] == said("It is lower than PPO.", worse)
    assert said("PPO is beaten by GRPO.", better) == [] == said("GRPO is beaten by PPO.", worse)


@pytest.mark.parametrize(
    "text",
    [
        "Entropy changed by +0.25.", "Entropy rose by 0.25.", "Accuracy fell by 0.1171875.",
        "Accuracy: 780 basis points",
        "Accuracy is 77.7pct.", "Accuracy lies in [0.777,0.888].", "8x faster.", "It is 8 times as accurate.",
        "````\n```\n````\n\nIt outperforms PPO.\n", "``` a ```\n\nIt outperforms PPO.", "Accuracy: 1999 %",
        "`<!--` it outperforms PPO `-->`.", "[a](it outperforms PPO)", "if x <a, it outperforms PPO or y > b",
    ],
)  # fmt: skip
def test_what_is_shown_is_read(text):
    assert said(text, findings=(*FINDINGS, found("8", SETTING))) != []


def test_settings_may_be_spoken_of():
    assert said("With 8.5 as its setting; entropy fell by 0.25.", findings=(*FINDINGS, found("8.5", SETTING))) == []


def test_p_is_read_through_adverbs():
    for text in (
        "p is well below 0.05 against PPO.",
        "All p-values are far below 0.05.",
        "p-values are all below 0.05.",
    ):
        assert said(text, [compared("ppo", "open", p=0.4)], findings=(found("0.05", SETTING),)) != [], text


def test_a_person_quotes_in_quotation_marks():
    claim = "the soft OR beats a random choice"
    assert said(f"At a tenth {claim}.", quotes=[claim]) != []
    assert said(f'It was to be tried whether "{claim}".', quotes=[claim]) == []
    licence = Licence(quotes=(claim,))
    assert check_text("page.md", f"| T2 | {claim} |", licence, written=(0, 0)) == []


def test_ordinary_comparatives_name_no_rival():
    assert said("It costs more than one would think, and higher is better.", [compared("ppo", "open")]) == []


def test_a_word_that_is_denied_needs_that_no_outcome_says_it():
    outcomes = [
        compared("ppo", "equal"),
        compared("rloo", "worked"),
        compared("random", "better"),
        claimed("C1", "confirmed"),
    ]
    for text in (
        "It does not beat PPO.",
        "It never exceeds PPO.",
        "It is not verified.",
        "It isn't twice as good as PPO.",
    ):
        assert said(text, outcomes) == [], text
    for text in (
        "It does not beat RLOO.", "It never beats RLOO.", "It is not on par with PPO.", "C1 is not confirmed.",
        "It doesn't beat `random`.", "It fails to beat RLOO.",
    ):  # fmt: skip
        assert "denied" in said(text, outcomes)[0][1], text


def test_a_claim_that_is_not_published_is_no_claim():
    outcomes = [claimed("C1", "confirmed")]
    assert said("C1 is confirmed at tier L1.", outcomes) == []
    assert "no published claim of grpo is called C9" in said("Claim C9 is confirmed.", outcomes)[0][1]
    assert "C2" in said("C1 and C2 are confirmed.", outcomes)[0][1]


def test_the_message_says_what_is_published_before_it_asks_for_a_run():
    assert "Say what is published" in said("GRPO beats PPO.", [compared("ppo", "equal")])[0][1]
    assert "It would take posttrain compare rloo" in said("RLOO beats PPO.", method=None)[0][1]
    other = [compared("random_reward", "worked"), compared("ppo", "equal")]
    assert "`random_reward` is a name in backticks only" in said("GRPO beats random_reward.", other)[0][1]


def test_a_tier_is_named_by_its_letter_too():
    outcomes = [compared("random", "worked", tier="l2_tiny_lm")]
    assert said("At L2 it beats `random`.", outcomes) == []
    assert said("At L1 it beats `random`.", outcomes) != [] != said("Under L3 it beats `random`.", outcomes)


def test_a_number_is_of_the_metric_that_stands_nearest_before_it():
    assert said("Its accuracy is 0.609 and its entropy fell by 0.25.") == []
    assert said("Its accuracy is 0.25.") != [] != said("Its accuracy is 0.609 and its entropy 0.609.")
    gap = (found("0.7802", GAP), found("0.9", "accuracy"))
    assert said("It closed 0.7802 of the accuracy gap.", findings=gap) == []
    assert said("It closed 0.9 of the accuracy gap.", findings=gap) != []


def test_a_signature_is_no_claim_to_be_counted():
    outcomes = [claimed("S1", "confirmed"), claimed("signature", "confirmed")]
    assert said("1 confirmed.", outcomes) == []
    assert said("2 confirmed.", outcomes) != []


def test_points_of_curves_license_nothing(published):
    entry = next(entry for entry in read_suite(published).entries if not entry.bench and not entry.historical)
    rows = [row["loss"] for run in entry.value["runs"] for row in run["history"] if row.get("loss")]
    assert rows and not all(licence_of([entry]).holds(repr(value)) for value in rows)


def test_a_long_text_is_read_in_time_that_grows_with_it():
    """Twice the text takes about twice the calls, not four times."""

    def calls(count):
        profile = cProfile.Profile()
        profile.runcall(said, "It exceeds PPO by 0.609. " * count, [compared("ppo", "worked")])
        return pstats.Stats(profile).total_calls

    assert calls(400) < 2.5 * calls(200)
