"""`function`: the contract of a reward function of one's own, and that nobody else's code is ever run."""

import hashlib
import json
from pathlib import Path

import pytest

from posttrain import settings
from posttrain.batch import Failure, Problem
from posttrain.cli import main
from posttrain.overrides import code_named
from posttrain.registry import ConfigError, load_plugins
from posttrain.rewards.base import RewardError, Verdict
from posttrain.rewards.function import Function

PROBLEM = Problem("17", "What is 1 + 1?", "2", meta={"level": 3, "tags": ["easy"]})
WORDS = ["dataset.train_examples=8", "dataset.validation_examples=4", "steps=2", "seeds=1-2"]


def reward(folder: Path, code: str, on_error: str = "stop") -> Function:
    """The function `score` of a file with this code."""
    path = folder / "my.py"
    path.write_text(f"import torch, numpy as np\nfrom posttrain.batch import Failure\n{code}\n")
    load_plugins([str(path)])
    return Function(f"{path}:score", on_error)


def returning(folder: Path, expression: str, on_error: str = "stop") -> Function:
    return reward(folder, f"def score(completions):\n    return {expression}", on_error)


def judged(function: Function, texts=("a", "b", "c", "d")):
    return function.judge([PROBLEM] * len(texts), texts)


# -- what it is given -------------------------------------------------------------------------------------------------


def test_a_function_of_one_completion_gets_what_its_parameters_name(tmp_path):
    names = "completion, prompt, answer, level, id"
    code = f"def score({names}): return Failure(repr(({names})))"
    found = judged(reward(tmp_path, code), ["a", "b"])
    expected = [repr((text, "What is 1 + 1?", "2", 3, "17")) for text in ("a", "b")]
    assert [failure.reason for failure in found] == expected


def test_a_function_of_all_completions_gets_lists_and_every_column_it_has_room_for(tmp_path):
    """The form of TRL: prompts, completions and the columns of the dataset by name."""
    code = (
        "def score(prompts, completions, **columns):\n"
        "    assert prompts == ['What is 1 + 1?'] * 2\n"
        "    assert columns.pop('tags') == [['easy'], ['easy']]\n"
        "    assert columns == {'answer': ['2', '2'], 'id': ['17', '17'], 'level': [3, 3]}\n"
        "    return [len(c) for c in completions]"
    )
    assert judged(reward(tmp_path, code), ["a", "bcd"]) == [1.0, 3.0]


def test_a_column_the_dataset_lacks_is_missed_before_the_function_is_called(tmp_path):
    function = reward(tmp_path, "def score(completion, solution):\n    raise AssertionError")
    with pytest.raises(ConfigError, match=r"asks for `solution`.*answer, completion, id, level, prompt, tags"):
        judged(function)


def test_a_function_without_a_completion_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no parameter `completion` or `completions`"):
        judged(reward(tmp_path, "def score(text):\n    return 1.0"))


def test_a_function_that_changes_what_it_was_given_changes_nothing(tmp_path):
    """BR-22 (d): mutated lists."""
    code = (
        "def score(prompts, completions, answer, id, tags):\n    result = [float(c == 'a') for c in completions]\n"
        "    for given in (prompts, completions, answer, id): given.clear()\n    tags[0].append('hard')\n"
        "    return result"
    )
    function, texts = reward(tmp_path, code), ["a", "b"]
    assert judged(function, texts) == judged(function, texts) == [1.0, 0.0]
    assert texts == ["a", "b"]
    assert PROBLEM.meta["tags"] == ["easy"]


# -- what it returns --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "got"),
    [
        ("[1.0]", "1$"),
        ("[1.0, 0.0, 1.0]", "3$"),
        ("1.0", "1.0"),
        ("'good'", "'good'"),
        ("None", "None"),
        ("torch.ones(3)", "3$"),
        ("torch.ones(4, 1)", "tensor"),
    ],
)
def test_br_22_a_the_wrong_number_of_values_names_the_function_and_both_numbers(tmp_path, expression, got):
    """BR-22 (a): [1.0], three values, a scalar for four completions; under every policy."""
    for on_error in ("stop", "exclude"):
        with pytest.raises(RewardError, match=rf"my\.py:score`: expected 4 values, one per completion, got {got}"):
            judged(returning(tmp_path, expression, on_error))


@pytest.mark.parametrize(
    "expression",
    ["[True, False, 0, 1]", "[np.float32(1), np.int64(0), np.bool_(False), 1.0]", "np.array([1, 0, 0, 1])",
     "torch.tensor([1., 0., 0., 1.])", "[torch.tensor(1), torch.tensor(False), np.array(0), 1]", "(1, 0, 0, 1)"],
)  # fmt: skip
def test_br_22_d_numbers_of_every_library_are_numbers(tmp_path, expression):
    """BR-22 (d): numpy, torch and bool scalars."""
    found = judged(returning(tmp_path, expression))
    assert [found[0], found[-1]] in ([1.0, 1.0], [1.0, 0.0], [1.0, 1])
    assert all(type(value) is float for value in found)


@pytest.mark.parametrize("value", ["'yes'", "float('inf')", "float('nan')", "[1.0]", "torch.ones(2)", "1j", "10**400"])
def test_br_22_d_what_is_no_number_stops_or_is_left_out_and_names_function_and_sample(tmp_path, value):
    """BR-22 (d): a string, inf and the like, under both policies."""
    with pytest.raises(RewardError, match=r"my\.py:score`, sample 2 \(problem 17\): .*reward\.on_error=exclude"):
        judged(returning(tmp_path, f"[1.0, 0.0, {value}, 1.0]"))
    found = judged(returning(tmp_path, f"[1.0, 0.0, {value}, 1.0]", "exclude"))
    assert found[:2] + found[3:] == [1.0, 0.0, 1.0]
    assert found[2].kind == "error"
    assert "sample 2 (problem 17)" in found[2].reason


def test_br_22_d_an_exception_stops_or_is_left_out_and_names_function_and_sample(tmp_path):
    """BR-22 (d): raises on the third."""
    code = "def score(completion):\n    if completion == 'c': raise KeyError('no c')\n    return 1.0"
    with pytest.raises(RewardError, match=r"my\.py:score`, sample 2 \(problem 17\): raised KeyError: 'no c'"):
        judged(reward(tmp_path, code))
    found = judged(reward(tmp_path, code, "exclude"))
    assert [value for value in found if value == 1.0] == [1.0] * 3
    assert found[2].kind == "error"
    together = reward(tmp_path, "def score(completions):\n    raise KeyError('all')", "exclude")
    assert [failure.kind for failure in judged(together)] == ["error"] * 4


def test_none_is_not_judged_and_a_failure_or_verdict_is_taken_as_it_is(tmp_path):
    values = "[None, Failure('late', 'timeout'), Verdict(1, True), 0]"
    code = f"from posttrain.rewards.base import Verdict\ndef score(completions): return {values}"
    found = judged(reward(tmp_path, code))
    assert found == [Failure("not judged"), Failure("late", "timeout"), Verdict(1.0, True), 0.0]


@pytest.mark.parametrize("source", ["", "my.py", "my.py:", ":score", "my.py:a.b", "http://x.py:score:b", "a b:c"])
def test_a_source_that_names_no_function_is_refused(source):
    with pytest.raises(ConfigError, match=r"reward\.source: found .*FILE\.py:NAME or MODULE:NAME"):
        Function(source)


# -- whose code it is -------------------------------------------------------------------------------------------------


def test_code_that_only_a_configuration_names_is_not_run(tmp_path):
    """A configuration is data: without the file on the command line nothing is imported."""
    (tmp_path / "hostile.py").write_text("raise AssertionError('was run')\ndef score(completion): return 1.0\n")
    config = settings.load("grpo", overrides={"reward": {"name": "function", "source": f"{tmp_path}/hostile.py:score"}})
    with pytest.raises(ConfigError, match=r"reward\.source: .*hostile\.py is named by a configuration.*--plugin"):
        config.reward(PROBLEM, "a")


def test_a_configuration_file_needs_its_code_named_on_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_reward.py").write_text("def score(completion): return float(len(completion) % 2)\n")
    shipped = settings.config_path("grpo", "l1", None).read_text()
    lines = [line for line in shipped.splitlines() if not line.startswith("reward")]
    reward_lines = ["reward:", "  name: function", "  source: own_reward.py:score"]
    Path("mine.yaml").write_text("\n".join([*lines, *reward_lines]))
    command = ["train", "grpo", "--config", "mine.yaml", *WORDS, "--output", "run"]
    assert main(command) == 2
    assert "Add --plugin own_reward.py" in capsys.readouterr().err
    assert not Path("run").exists()
    assert main([*command, "--plugin", "own_reward.py"]) == 0


@pytest.mark.parametrize(
    ("settings_", "named"),
    [
        (["reward=my.py:score"], ["my.py"]),
        (["reward.source=../a/my.py:score", "evaluation.accuracy=pkg.mod:right"], ["../a/my.py", "pkg.mod"]),
        (["reward.of=[numeric,my.py:score,{name: function, source: b.py:f}]"], ["my.py", "b.py"]),
        ({"reward": {"name": "function", "source": "my.py:score"}, "steps": 3}, ["my.py"]),
        (["policy.model=tiny:student", "dataset=a.py:b", "reward=exact"], []),
    ],
)
def test_the_code_that_settings_ask_for_is_what_stands_for_a_reward(settings_, named):
    assert code_named(settings_) == named


def test_the_file_is_found_by_every_process_and_recorded_with_its_digest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = "same.py"
    Path(name).write_text("def score(completion, answer):\n    return float(completion == answer)\n")
    words = [*WORDS, "reward.name=function", f"reward.source={name}:score"]
    assert main(["train", "grpo", *words, "--jobs", "2", "--output", "run"]) == 0
    execution = json.loads(Path("run/execution.json").read_text())["execution"]
    digest = hashlib.sha256(Path(name).read_bytes()).hexdigest()
    assert execution["plugins"] == [{"name": name, "sha256": f"sha256:{digest}"}]
    assert execution["config"]["reward"] == {"name": "function", "source": f"{name}:score", "on_error": "stop"}
    assert main(["train", "grpo", *WORDS, "reward=exact", "--output", "other"]) == 0
    runs = [json.loads(Path(run, "artifact.json").read_text())["runs"] for run in ("run", "other")]
    assert runs[0] == runs[1]  # the same reward, whoever wrote it


def test_a_broken_contract_is_found_before_a_folder_exists(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("short.py").write_text("def score(completions):\n    return [1.0]\n")
    words = ["reward.name=function", "reward.source=short.py:score", "--output", "run"]
    assert main(["train", "grpo", *WORDS, *words]) == 2
    assert "short.py:score`: expected 8 values, one per completion, got 1" in capsys.readouterr().err
    assert not Path("run").exists()


def test_a_file_that_was_changed_is_run_anew_under_its_new_digest(tmp_path):
    """What is recorded is what was run, also in a notebook."""
    path = tmp_path / "changing.py"
    for value in (0.25, 0.75):
        path.write_text(f"def score(completion): return {value}\n")
        plugin = load_plugins([str(path)])[-1]
        assert Function(f"{path}:score")(PROBLEM, "a") == value
        assert plugin.sha256 == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
