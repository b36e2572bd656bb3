"""Settings: which value wins, what a word means, and that every mistake is said before anything starts."""

import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from posttrain.assembly import assemble
from posttrain.overrides import ELSEWHERE, parse_overrides, parse_seeds
from posttrain.registry import ConfigError, algorithms, policies
from posttrain.settings import KEYS, TrainConfig, config_folder, load, resolve

SHIPPED = sorted(path for path in config_folder().rglob("l1*.yaml") if path.parent.name in algorithms)


def named(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def shipped(path: Path, *words: str) -> TrainConfig:
    return load(path.parent.name, config=str(path), overrides=words)


def refused(*words: str, algorithm: str = "sparse-opd", **options) -> str:
    """The message of the ConfigError that the words meet."""
    with pytest.raises(ConfigError) as caught:
        load(algorithm, overrides=words, **options)
    return str(caught.value)


# -- which value wins -------------------------------------------------------------------------------------------------


def test_a_word_wins_over_the_file_and_the_file_over_the_dataclass(tmp_path):
    """`grpo` says clip 0.2 and kl_coef 0.04, the trainer learning_rate 0.05 and steps 100."""
    file = tmp_path / "mine.yaml"
    file.write_text("dataset: decisions\npolicy: factored\nreward: positions\ngroup_size: 2\n")
    plain = load("grpo", config=str(file))
    assert (plain.algorithm.clip, plain.algorithm.kl_coef, plain.learning_rate, plain.steps) == (0.2, 0.04, 0.05, 100)
    file.write_text(file.read_text() + "algorithm: {clip: 0.3, kl_coef: 0.1}\nlearning_rate: 0.5\nsteps: 7\n")
    filed = load("grpo", config=str(file))
    assert (filed.algorithm.clip, filed.algorithm.kl_coef, filed.learning_rate, filed.steps) == (0.3, 0.1, 0.5, 7)
    said = load("grpo", config=str(file), overrides=["algorithm.clip=0.4", "steps=9"])
    assert (said.algorithm.clip, said.algorithm.kl_coef, said.learning_rate, said.steps) == (0.4, 0.1, 0.5, 9)


def test_words_and_keyword_arguments_are_the_same_settings():
    words = ["steps=3", "learning_rate=0.5", "algorithm.clip=0.1", "seeds=1-2", "policy.temperature=2"]
    data = {"steps": 3, "learning_rate": 0.5, "algorithm.clip": 0.1, "seeds": [1, 2], "policy.temperature": 2}
    assert load("grpo", overrides=words).resolved == load("grpo", overrides=data).resolved


def test_the_order_of_words_does_not_matter():
    """`teacher=snapshot` after `teacher.refresh_every=8` must not put the default back."""
    words = ["teacher.refresh_every=8", "teacher=snapshot", "steps=3"]
    there, back = (load("sparse-opd", overrides=order) for order in (words, words[::-1]))
    assert there.resolved == back.resolved
    assert there.teacher.refresh_every == back.teacher.refresh_every == 8


def test_another_component_by_name_starts_from_its_own_defaults():
    """The shipped file says `replacement: false` and `log_floor: 1e-12`."""
    shipped_policy = load("sparse-opd").policy
    assert (shipped_policy.replacement, shipped_policy.log_floor) == (False, 1e-12)
    policy = load("sparse-opd", overrides=["policy=bandit"]).policy
    assert (policy.replacement, policy.log_floor) == (True, 0.0)


def test_the_smoke_tier_is_the_mechanism_tier_cut_short():
    smoke, full = load("sparse-opd", "l0"), load("sparse-opd")
    assert (smoke.tier, smoke.steps, smoke.seeds) == ("l0", 10, (0, 1))
    same = ("dataset", "policy", "teacher", "algorithm", "reward", "evaluation", "learning_rate", "group_size")
    assert all(smoke.resolved[key] == full.resolved[key] for key in same)
    assert load("sparse-opd", "l0", overrides=["steps=3"]).steps == 3


def test_a_configuration_is_a_shipped_name_or_a_file(tmp_path):
    file = tmp_path / "l1-paper.yaml"
    file.write_text((config_folder() / "sparse-opd" / "l1-paper.yaml").read_text())
    assert load("sparse-opd", config="l1-paper").resolved == load("sparse-opd", config=str(file)).resolved


# -- every shipped file -----------------------------------------------------------------------------------------------


def test_every_algorithm_ships_a_configuration_and_every_configuration_has_its_algorithm():
    others = {"bench"}  # tracks have settings of their own
    assert {path.name for path in config_folder().iterdir() if path.is_dir()} - others <= set(algorithms.names())
    assert set(algorithms.names()) == {path.parent.name for path in SHIPPED}


@pytest.mark.parametrize("path", SHIPPED, ids=named)
def test_every_shipped_configuration_assembles_and_trains(path, tmp_path):
    torch.set_num_threads(1)
    trainer = assemble(shipped(path, "steps=1", "seeds=42", "tune=null"), 42, folder=tmp_path)
    before = [p.detach().clone() for p in trainer.parameters]
    outcome = trainer.run()
    assert outcome.history[0]["step"] == 1
    assert outcome.last_diagnostics["supervised_positions"] > 0
    # The recorded protocol does not move where the right candidate was not drawn; everything else does.
    moved = any(not torch.equal(p, b) for p, b in zip(trainer.parameters, before, strict=True))
    assert moved or path.parent.name == "sparse-opd"


@pytest.mark.parametrize("path", SHIPPED, ids=named)
def test_the_resolved_configuration_spells_out_every_default_and_resolves_to_itself(path):
    config = shipped(path)
    assert list(config.resolved) == list(KEYS)
    for part, name in config.names.items():
        holder = config.resolved
        for key in part.split("."):
            holder = holder[key]
        made = config
        for key in part.split("."):
            made = getattr(made, key)
        assert holder["name"] == name
        assert set(holder) == {"name", *(f.name for f in fields(made))}
    again = resolve(config.resolved, config.method)
    assert again == config


@pytest.mark.parametrize("path", SHIPPED, ids=named)
def test_shipped_configurations_have_the_recorded_seeds_and_separate_tuning_seeds(path):
    config = shipped(path)
    assert config.seeds == (42, 43, 44)
    assert not set(config.tune.seeds) & set(range(42, 54))


def test_the_default_of_sparse_opd_is_the_recorded_protocol_spelled_out():
    config = load("sparse-opd")
    assert (config.steps, config.learning_rate, config.group_size, config.problems_per_step) == (100, 0.08, 4, 1)
    assert (config.optim, config.max_grad_value, config.max_grad_norm) == ("sgd", 5.0, None)
    assert config.resolved["algorithm"] == {
        "name": "sparse-opd",
        "select": {"rule": "highest", "k": 2, "low": 1, "high": 1, "fraction": 0.5, "scope": "group"},
        "score": "abs_log_ratio",
        "credit": "outcome",
        "normaliser": "kept",
        "surrogate": "reinforce",
        "clip": 0.2,
    }
    assert config.resolved["teacher"] == {"name": "snapshot", "refresh_every": 16}
    policy = config.resolved["policy"]
    assert (policy["replacement"], policy["log_floor"], policy["dtype"]) == (False, 1e-12, "float64")
    assert "recorded protocol" in config.note
    assert "posttrain reproduce sparse-opd" in config.note


# -- what a word means ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-5", "'1e-5'", "0.00001", "1E-5", "1.0e-5"])
def test_a_number_in_any_notation_is_that_number(text):
    assert load("grpo", overrides=[f"learning_rate={text}"]).learning_rate == 1e-5


@pytest.mark.parametrize("value", [1, "1", "1.0", 1.0])
def test_a_whole_number_is_also_a_number(value):
    found = load("grpo", overrides={"learning_rate": value}).learning_rate
    assert (found, type(found)) == (1.0, float)


@pytest.mark.parametrize("value", ["2.5", "2.0", "1e2", "true", "False", "two", "[2]", "{a: 1}", "null", ".inf", "0x"])
def test_steps_are_a_whole_number_and_nothing_that_looks_like_one(value):
    assert refused(f"steps={value}").startswith("steps: found ")
    assert "expected a whole number" in refused(f"steps={value}")


@pytest.mark.parametrize("value", [2.0, True, None, [2], {"a": 1}, "2.0"])
def test_steps_from_python_are_held_to_the_same(value):
    with pytest.raises(ConfigError, match=r"steps: found .*, expected a whole number"):
        load("grpo", overrides={"steps": value})


@pytest.mark.parametrize("words", ["learning_rate=true", "weight_decay=false", "max_grad_norm=true", "note=true"])
def test_true_and_false_are_neither_numbers_nor_text(words):
    name, _, found = words.partition("=")
    assert refused(words).startswith(f"{name}: found {found}, expected ")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("True", True), ("FALSE", False)])
def test_true_and_false_are_words_of_their_own(text, value):
    config = load("sparse-opd", overrides=[f"policy.replacement={text}", "group_size=2"])
    assert config.policy.replacement is value


@pytest.mark.parametrize("text", ["maybe", "2", "0.0", "null"])
def test_nothing_else_is_true_or_false(text):
    assert "policy.replacement: found" in refused(f"policy.replacement={text}")


def test_null_is_none_where_there_can_be_none():
    config = load("sparse-opd", overrides=["max_grad_value=null", "policy.start=null", "note=null"])
    assert (config.max_grad_value, config.policy.start, config.note) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("42-53", tuple(range(42, 54))),
        ("42,43,44", (42, 43, 44)),
        ("7", (7,)),
        ("0", (0,)),
        ("44,42", (44, 42)),
        ("1-3,8,10-11", (1, 2, 3, 8, 10, 11)),
        (" 1 - 2 , 4 ", (1, 2, 4)),
        (5, (5,)),
        ([3, 1], (3, 1)),
        (["1-2", 5], (1, 2, 5)),
        ((9,), (9,)),
    ],
)
def test_seeds_are_ranges_and_lists_in_the_given_order(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "seeds: found none. Write seeds=42-44"),
        ([], "seeds: found none"),
        ("42,42", "seeds: [42] given twice"),
        ("42-44,43", "seeds: [43] given twice"),
        ("44-42", "'44-42', expected a rising range"),
        ("0-99999", "expected a rising range"),
        ("-1", "'-1', expected whole numbers from 0 up"),
        ("1.5", "'1.5', expected whole numbers"),
        ("1,,2", "'', expected whole numbers"),
        ("a-b", "'a-b', expected whole numbers"),
        (True, "expected whole numbers"),
        (None, "expected whole numbers"),
        (2.0, "expected whole numbers"),
        ([True], "expected whole numbers"),
        (str(2**53), f"'{2**53}', expected"),
        (f"{2**64}-{2**64 + 1}", "expected"),
    ],
)
def test_seeds_that_mean_nothing_are_refused_with_what_to_write(text, found):
    with pytest.raises(ConfigError) as caught:
        parse_seeds(text)
    assert found in str(caught.value)
    assert str(caught.value).startswith("seeds: ")


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["learning_rat=0.1"], ["learning_rat:", "Did you mean `learning_rate`?"]),
        (["algorithm.clp=0.1"], ["algorithm.clp:", "`sparse-opd`", "Did you mean `clip`?"]),
        (["algorithm.select.rul=all"], ["algorithm.select.rul:", "Did you mean `rule`?"]),
        (["evaluation.acuracy=exact"], ["evaluation.acuracy:", "Did you mean `accuracy`?"]),
        (["policy.modle=X"], ["policy.modle:", "Did you mean `policy.model`? It implies tier l3"]),
        (["policy.temprature=2"], ["policy.temprature:", "Did you mean `policy.temperature`?"]),
        (["policy.max_new_tokens=8"], ["policy.max_new_tokens:", "Write policy.max_completion_tokens=VALUE"]),
        (["policy.max_completion_length=8"], ["Write policy.max_completion_tokens=VALUE"]),
        (["policy.zzz=8"], ["policy.zzz:", "no policy has such a setting", "temperature"]),
        (["policy.top_p=0.9"], ["policy.top_p:", "whole distribution"]),
        (["tune.sed=1"], ["tune.sed:", "Did you mean `seeds`?"]),
        (["nothing=1"], ["nothing:", "no such setting", "learning_rate"]),
        (["steps=2", "steps=3"], ["steps:", "given twice", "2", "3", "Give it once"]),
        (["steps"], ["steps:", "expected key=value"]),
        (["=3"], ["expected key=value"]),
        (["steps="], ["steps:", "empty", "steps=VALUE"]),
        (["steps=2.5"], ["steps:", "2.5", "a whole number"]),
        (["steps=0"], ["steps:", "0", "at least 1"]),
        (["steps=-3"], ["steps:", "-3", "at least 1"]),
        (["learning_rate=-1"], ["learning_rate:", "-1", "a number above 0"]),
        (["learning_rate=.nan"], ["learning_rate:", "nan", "a number above 0"]),
        (["learning_rate=fast"], ["learning_rate:", "'fast'", "a number"]),
        (["max_grad_norm=.inf"], ["max_grad_norm:", "inf", "a number above 0, or null"]),
        (["policy.temperature=.inf"], ["policy.temperature:", "inf", "a number above 0"]),
        (["seeds="], ["seeds:", "found none", "seeds=42-44"]),
        (["seeds=42,42"], ["seeds:", "42", "given twice"]),
        (["dataset.maximum_examples=0"], ["dataset.maximum_examples:", "0", "at least 1"]),
        (["dataset=decisions", "dataset.train_examples=0"], ["dataset.train_examples:", "0", "at least 1"]),
        (["group_size=1"], ["group_size:", "1", "group_size=2 or more"]),
        (["teacher=null"], ["teacher:", "`sparse-opd` needs one", "teacher=frozen"]),
        (["teacher=frosen"], ["teacher.name:", "`frosen`", "Did you mean `frozen`?"]),
        (["teacher.name=frosen"], ["teacher.name:", "`frosen`", "Did you mean `frozen`?"]),
        (["dataset=decision"], ["dataset.name:", "`decision`", "Did you mean `decisions`?"]),
        (["dataset=null"], ["dataset:", "nothing is chosen", "dataset=NAME"]),
        (["policy=null"], ["policy:", "nothing is chosen", "policy=NAME"]),
        (["policy={}"], ["policy.name:", "nothing is chosen"]),
        (["policy=5"], ["policy:", "5", "policy=NAME"]),
        (["reward=null"], ["reward:", "`sparse-opd` needs one", "reward=NAME"]),
        (["evaluation=exact"], ["evaluation:", "'exact'", "evaluation.accuracy="]),
        (["evaluation=5"], ["evaluation:", "5", "evaluation.accuracy="]),
        (["evaluation=[1]"], ["evaluation:", "[1]", "evaluation.accuracy="]),
        (["evaluation.accuracy=exakt"], ["evaluation.accuracy.name:", "Did you mean `exact`?"]),
        (["algorithm=grpo"], ["algorithm.name:", "'grpo'", "`sparse-opd`", "Leave it out"]),
        (["algorithm=5"], ["algorithm:", "5"]),
        (["algorithm.select=highst"], ["algorithm.select.rule:", "'highst'", "highest"]),
        (["algorithm.select.k=0"], ["algorithm.select", "0", "1 up"]),
        (["algorithm.clip=2"], ["algorithm.clip:", "2.0", "between 0 and 1"]),
        (["algorithm.credit=teachr"], ["algorithm.credit:", "'teachr'", "one of teacher, outcome"]),
        (["optim=adam"], ["optim:", "'adam'", "one of adamw_torch, sgd"]),
        (["learning_rate.x=1"], ["learning_rate.x:", "single value"]),
        (["teacher.name.x=1"], ["teacher.name.x:", "single value"]),
        (["dataset={name: decisions, 1: 2}"], ["dataset.1:", "no such setting"]),
        (["tier=l7"], ["tier:", "'l7'"]),
        (["controls=densed"], ["controls:", "`densed`", "Did you mean `dense`?"]),
        (["report_to=wand"], ["report_to:", "`wand`"]),
        (["supersedes=yesterday"], ["supersedes:", "'yesterday'", "sha256:"]),
        (["tune=5"], ["tune:", "5", "tune.learning_rate="]),
        (["tune.learning_rate=0.1"], ["tune:", "needs both"]),
        (["tune.seeds=0-3"], ["tune:", "needs both"]),
        (["tune.learning_rate=[0.1]", "tune.seeds=44-46"], ["tune.seeds:", "[44]", "Tune on other seeds"]),
        (["tune.learning_rate=[0.1,-1]", "tune.seeds=0-3"], ["tune.learning_rate:", "-1", "positive numbers"]),
        (["tune.learning_rate=[true]", "tune.seeds=0-3"], ["tune.learning_rate:", "True", "positive numbers"]),
        (["tune.learning_rate=[.inf]", "tune.seeds=0-3"], ["tune.learning_rate:", "inf", "positive numbers"]),
        (["tune.learning_rate=[a]", "tune.seeds=0-3"], ["tune.learning_rate:", "'a'", "positive numbers"]),
    ],
    ids=" ".join,
)
def test_a_mistake_is_answered_with_the_field_what_was_found_and_what_to_write(words, parts):
    if words[0].startswith("controls"):
        from posttrain.evaluation.experiment import solo

        with pytest.raises(ConfigError) as caught:
            solo(load("sparse-opd", overrides=words), None, words)
        message = str(caught.value)
    else:
        message = refused(*words)
    for part in parts:
        assert part in message, f"{part!r} is not in: {message}"
    assert len(message) < 500
    assert "\n" not in message


@pytest.mark.parametrize(("name", "value"), [("seeds", None), ("seeds", True), ("controls", 5), ("report_to", 5)])
def test_a_value_of_another_kind_from_a_file_is_refused_by_name(tmp_path, name, value):
    file = tmp_path / "mine.yaml"
    text = "null" if value is None else str(value).lower()
    file.write_text(f"dataset: arithmetic-smoke\npolicy: bandit\nreward: exact\ngroup_size: 2\n{name}: {text}\n")
    with pytest.raises(ConfigError, match=rf"^{name}: "):
        load("grpo", config=str(file))


@pytest.mark.parametrize("algorithm", ["grpo", "gspo", "rloo"])
def test_a_baseline_over_the_group_needs_two_completions(algorithm):
    message = refused("group_size=1", algorithm=algorithm)
    assert message.startswith(f"group_size: found 1, but `{algorithm}` compares the completions of a group.")


def test_an_unknown_algorithm_tier_and_configuration_are_refused_with_the_nearest():
    assert refused(algorithm="sparse-op") == "unknown algorithm `sparse-op`. Did you mean `sparse-opd`?"
    assert "--tier: found 'l9'" in refused(tier="l9")
    message = refused(config="l1-papr")
    assert "--config l1-papr: `sparse-opd` has no such configuration. Did you mean `l1-paper`?" in message
    assert refused(config="nowhere.yaml") == "--config: there is no file nowhere.yaml"
    assert refused(config="no/where") == "--config: there is no file no/where"


@pytest.mark.parametrize(
    "text",
    ["- a\n- b\n", "a: [1,", "a: 1\na: 2\n", "a: ${nowhere}\n", "5", "\x00", "a: !!python/object:os.x {}"],
    ids=repr,
)
def test_a_file_that_is_no_configuration_is_refused_by_its_name(tmp_path, text):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert refused(config=str(file)).startswith("mine.yaml: ")


def test_no_value_is_read_from_the_machine(tmp_path, monkeypatch):
    """A note with `${oc.env:TOKEN}` would end up in the artifact, as another value on another machine."""
    monkeypatch.setenv("TOKEN", "secret")
    assert refused("note=${oc.env:TOKEN}") == "note: found '${oc.env:TOKEN}', expected text or null"
    file = tmp_path / "mine.yaml"
    file.write_text("dataset: decisions\npolicy: factored\nreward: positions\ngroup_size: 2\nnote: ${oc.env:TOKEN}\n")
    assert "mine.yaml: cannot be read as a configuration: `${oc...}`" in refused(config=str(file))
    file.write_text(file.read_text().replace("${oc.env:TOKEN}", "${reward}"))
    assert load("grpo", config=str(file)).note == "positions"


def test_a_file_that_is_not_text_is_refused_by_its_name(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    assert refused(config=str(file)).startswith("mine.yaml: ")


def test_an_empty_file_lacks_a_policy_and_says_which_there_are(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("")
    message = refused(config=str(file))
    assert message.startswith("policy: nothing is chosen. Write policy=NAME. Known: bandit, ")


# -- what other tools call things -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
@pytest.mark.parametrize("form", ["{}=3", "--{}=3", "--{}"])
def test_the_word_of_another_tool_is_answered_with_ours(name, form):
    for spelled in {name, name.replace("_", "-")} if form.startswith("--") else {name}:
        message = refused(form.format(spelled))
        assert f"Write {ELSEWHERE[name]}" in message


@pytest.mark.parametrize(("name", "ours"), [item for item in ELSEWHERE.items() if item[1].isidentifier()])
def test_our_word_for_it_exists(name, ours):
    assert ours in KEYS


def test_our_words_for_options_of_algorithms_exist():
    options = {f.name for name in algorithms.names() for f in fields(algorithms.get(name))}
    ours = [word.split(".")[1] for word in ELSEWHERE.values() if word.startswith("algorithm.")]
    assert ours
    assert set(ours) <= options


def test_our_words_for_options_of_a_language_model_exist():
    options = {f.name for f in fields(policies.get("causal_lm"))}
    ours = {word.split(".")[1] for word in ELSEWHERE.values() if word.startswith("policy.")}
    assert ours == {"max_completion_tokens", "max_prompt_tokens"}
    assert ours <= options


def test_a_misspelt_option_of_a_policy_is_found_before_its_tier_is_inferred(capsys):
    from posttrain.cli import main

    assert main(["train", "grpo", "policy.modle=X", "dataset=rows.jsonl"]) == 2
    assert "policy.modle: no policy has such a setting. Did you mean `policy.model`?" in capsys.readouterr().err


def test_a_setting_written_as_a_flag_is_answered_with_the_word():
    message = refused("--learning-rate=0.1")
    assert message == "--learning-rate=0.1: settings are written without dashes. Write learning_rate=VALUE."
    assert refused("--nonsense") == "--nonsense: settings are written without dashes. Write key=value."


# -- whatever is typed ------------------------------------------------------------------------------------------------

PARTS = ["algorithm", "policy", "teacher", "dataset", "reward", "evaluation", "evaluation.accuracy", "tune", "select"]
OPTIONS = ["name", "k", "rule", "clip", "temperature", "seeds", "learning_rate", "maximum_examples", "distance", ""]
keys = st.one_of(
    st.sampled_from(sorted(KEYS)),
    st.builds("{}.{}".format, st.sampled_from(PARTS), st.sampled_from(OPTIONS)),
    st.builds("algorithm.select.{}".format, st.sampled_from(OPTIONS)),
    st.text(max_size=8),
)
NOTHING = ["", "null", "true", "[]", "{}", "???", "${x}", "${oc.env:HOME}", "*a", "&a [*a]", "!!set {1}"]
NUMBERS = ["1", "-1", "0", "1e400", "-.inf", ".nan", "1" * 400, "0o17", "2020-01-01", "42-44", "1,2"]
NESTED = ["[1, [2]]", "{a: {b: c}}", "{1: 2}", "{null: 1}", "{name: frozen, policy: x}"]
NAMES = ["decisions", "frozen", "cached", "tree", "exact", "all"]
values = st.one_of(
    *map(st.sampled_from, (NOTHING, NUMBERS, NESTED, NAMES)),
    st.floats().map(str),
    st.integers().map(str),
    st.text(max_size=12),
)


@hypothesis_settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.builds("{}={}".format, keys, values) | st.text(max_size=6), max_size=4))
def test_whatever_is_typed_is_a_configuration_or_a_config_error(words):
    try:
        config = load("sparse-opd", overrides=words)
    except ConfigError:
        return
    assert resolve(config.resolved, "sparse-opd").resolved == config.resolved
    assert finite(config.resolved)


def finite(value) -> bool:
    """Whether the value can stand in a JSON document, as a resolved configuration has to."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and finite(member) for key, member in value.items())
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@given(st.lists(st.text(max_size=10), max_size=4))
def test_words_are_data_or_a_config_error(words):
    try:
        found = parse_overrides(words)
    except ConfigError:
        return
    assert len(found) == len(words)


@pytest.mark.parametrize("tier", ["l2", "l3"])
def test_a_model_named_as_the_teacher_is_a_frozen_one_unless_another_kind_is_named(tier):
    words = ["teacher.model=elsewhere", "policy.model=here" if tier == "l3" else "policy.model=tiny:student"]
    assert load("opd", tier, overrides=words).names["teacher"] == "frozen"
    named = load("opd", tier, overrides=[*words[1:], "teacher=snapshot"])
    assert named.names["teacher"] == "snapshot"
