"""Shorthands: what a short name stands for, on the command line and in YAML, and what is not there is said at once."""

import pytest

from posttrain import settings
from posttrain.registry import ConfigError, rewards
from posttrain.shorthand import expanded

NUMERIC = "numeric" if "numeric" in rewards else "exact"


def expand(field, part):
    return expanded(settings.COMPONENTS[field].kind, field, part)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("d.jsonl", "d.json", "d.csv", "d.parquet", "my.py", "D.JSONL"):
        (tmp_path / name).write_text('{"prompt": "q", "answer": "1"}\n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "steps").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("field", "name", "found"),
    [
        ("dataset", "d.jsonl", {"name": "files", "path": "d.jsonl"}),
        ("dataset", "./d.json", {"name": "files", "path": "./d.json"}),
        ("dataset", "d.csv", {"name": "files", "path": "d.csv"}),
        ("dataset", "d.parquet", {"name": "files", "path": "d.parquet"}),
        ("dataset", "D.JSONL", {"name": "files", "path": "D.JSONL"}),
        ("dataset", "openai/gsm8k", {"name": "hub", "path": "openai/gsm8k"}),
        ("dataset", "folder", {"name": "hub", "path": "folder"}),
        ("dataset", "reasoning_gym:chain_sum", {"name": "reasoning_gym", "task": "chain_sum"}),
        ("dataset", "step", {"name": "step"}),
        ("reward", "my.py:score", {"name": "function", "source": "my.py:score"}),
        ("evaluation.accuracy", "my.py:score", {"name": "function", "source": "my.py:score"}),
        ("reward", "package.module:score", {"name": "function", "source": "package.module:score"}),
        ("reward", "exact", {"name": "exact"}),
        ("policy", "d.jsonl", {"name": "d.jsonl"}),
    ],
)
def test_a_shorthand_is_spelled_out(here, field, name, found):
    assert expand(field, {"name": name}) == found


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("dataset", "none.jsonl", r"^dataset: there is no file `none\.jsonl`"),
        ("dataset", "my.py", r"^dataset: `my\.py` is no file of rows: these end in \.jsonl, "),
        ("dataset", "./none", r"^dataset: there is no folder `\./none`"),
        ("dataset", "a/b/c", r"^dataset: there is no folder `a/b/c`"),
        ("reward", "my.py", r"^reward: .*expected the function too: reward=my\.py:FUNCTION"),
    ],
)
def test_what_is_not_there_is_an_error_before_anything_else(here, field, name, message):
    with pytest.raises(ConfigError, match=message):
        expand(field, {"name": name})


def test_what_stands_beside_a_shorthand_is_kept_and_nothing_is_given_twice(here):
    assert expand("dataset", {"name": "d.jsonl", "held_out": 2}) == {
        "name": "files", "path": "d.jsonl", "held_out": 2,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"dataset\.path: given twice"):
        expand("dataset", {"name": "d.jsonl", "path": "e.jsonl"})


def load(*words):
    return settings.load("grpo", "l3", overrides=["policy.model=./m", *words])


def test_the_command_line_takes_them_with_options_in_any_order(here):
    config = load("dataset.held_out=3", "dataset=d.jsonl", "dataset.columns.answer=answer", "reward=exact")
    assert config.names["dataset"] == "files"
    assert (config.dataset.path, config.dataset.held_out, config.dataset.columns.answer) == ("d.jsonl", 3.0, "answer")
    assert settings.resolve(config.resolved, "grpo") == config


def test_a_registered_name_goes_before_a_folder_of_that_name(here):
    assert load("dataset=steps").names["dataset"] == "steps"


def test_an_unknown_name_is_still_answered_with_the_nearest_one(here):
    with pytest.raises(ConfigError, match=r"dataset\.name: unknown dataset `step`\. Did you mean `steps`"):
        load("dataset=step")


@pytest.mark.parametrize(
    ("words", "reward", "accuracy"),
    [
        ([], "last_step", "last_step"),
        (["dataset=d.jsonl"], "exact", "exact"),
        (["dataset=d.jsonl", "reward=last_step"], "last_step", "last_step"),
        (["reward=exact", "evaluation.accuracy=last_step"], "exact", "last_step"),
        (["dataset=reasoning_gym:chain_sum"], "reasoning_gym", "reasoning_gym"),
        (["dataset=openai/gsm8k"], NUMERIC, NUMERIC),
    ],
)
def test_a_checkpoint_on_other_data_is_judged_by_its_own_reward_unless_told_otherwise(here, words, reward, accuracy):
    config = load(*words)
    assert (config.names["reward"], config.names["evaluation.accuracy"]) == (reward, accuracy)


def test_an_algorithm_without_rewards_is_given_none(here):
    assert settings.load("sft", "l3", overrides=["policy.model=./m", "dataset=d.jsonl"]).reward is None


@pytest.mark.parametrize(
    ("words", "data"),
    [
        (["dataset=steps"], "steps"),
        (["dataset=d.jsonl"], "files-d"),
        (["dataset=openai/gsm8k"], "hub-openai-gsm8k"),
        (["dataset=folder"], "hub-folder"),
        (["dataset=reasoning_gym:chain_sum"], "reasoning_gym-chain_sum"),
    ],
)
def test_records_call_data_by_what_it_is(here, words, data):
    assert load(*words, "reward=exact").data == data


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dataset=steps", "reward=numeric", "reward.tolerance=0.25"], {"tolerance": 0.25}),
        (["dataset=openai/gsm8k", "reward.tolerance=0.25"], {"tolerance": 0.25}),
        (["reward=sum", "reward.of=[exact,coin]", "reward.weights=[1,0.5]"], {"weights": (1, 0.5)}),
        (["reward=my.py:score", "reward.on_error=exclude"], {"source": "my.py:score", "on_error": "exclude"}),
    ],
)
def test_held_out_answers_are_judged_by_the_reward_with_its_options(words, expected):
    """On a checkpoint's own data evaluation follows the reward, not only its name."""
    config = settings.load("grpo", "l3", overrides=["policy.model=folder", *words])
    for judge in (config.reward, config.evaluation.accuracy, config.evaluation.reward):
        assert {key: getattr(judge, key) for key in expected} == expected
    named = settings.load("grpo", "l3", overrides=["policy.model=folder", *words, "evaluation.accuracy=exact"])
    assert named.names["evaluation.accuracy"] == "exact"
