"""`docs build --rerun`: what is published is data, and no record of it has code run that the caller did not name."""

import sys
from pathlib import Path

import pytest
from small_runs import command, methods, snapshot

from posttrain import cli
from posttrain.artifacts.documents import dumps, read
from posttrain.artifacts.manifest import execution_document
from posttrain.reporting.actions import _not_to_be_run, rerun_published
from posttrain.reporting.reading import SuiteError

TRAIN = ["train", "grpo"]
CODE = {
    "a plugin": [*TRAIN, "--plugin", "mine.py"],
    "a plugin in one word": [*TRAIN, "--plugin=mine.py"],
    "a plugin that is a module": [*TRAIN, "--plugin", "mine"],
    "a reward": [*TRAIN, "reward=mine.py:score"],
    "a reward by its whole name": [*TRAIN, "reward.name=function", "reward.source=mine.py:score"],
    "a measure": [*TRAIN, "evaluation.accuracy=mine:score"],
    "an idea": ["bench", "run", "sequence", "--idea", "mine.py"],
    "a track": ["bench", "run", "mine.py"],
    "a file of settings": [*TRAIN, "--config", "asks.yaml"],
}
TRUSTED = {
    "a model's code": [*TRAIN, "policy.trust_remote_code=true"],
    "a model's code among others": [*TRAIN, "policy={name: causal_lm, trust_remote_code: true}"],
    "code of data": [*TRAIN, "dataset.allow_eval=True"],
    "a file of settings": [*TRAIN, "--config", "./trusts.yml"],
}
HARMLESS = {
    "plain": [*TRAIN, "seeds=42-44", "--output", "runs/a", "--jobs", "2"],
    "a shipped configuration": ["train", "sparse-opd", "--config", "l1-paper", "controls=dense,random"],
    "a file of settings": [*TRAIN, "--config", "plain.yaml"],
    "a track": ["bench", "run", "sequence", "evaluation_seeds=0-3"],
    "no trust": [*TRAIN, "policy.trust_remote_code=false"],
}


@pytest.fixture(autouse=True)
def _settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("asks.yaml").write_text("reward: {name: function, source: 'mine.py:score'}\n")
    Path("trusts.yml").write_text("policy: {name: causal_lm, trust_remote_code: true}\n")
    Path("plain.yaml").write_text("steps: 3\nreward: exact\n")


@pytest.mark.parametrize("kind", CODE)
def test_code_that_a_recorded_command_names_runs_only_where_the_caller_names_it_too(kind):
    words = CODE[kind]
    name = "mine" if "mine.py" not in " ".join(words) and kind != "a file of settings" else "mine.py"
    assert f"its command has {name} run" in _not_to_be_run(words, [])
    assert f"write --plugin {name}" in _not_to_be_run(words, ["other.py"])
    assert _not_to_be_run(words, ["other.py", name]) is None


@pytest.mark.parametrize("kind", TRUSTED)
def test_trust_that_a_recorded_command_asks_for_is_not_given(kind):
    assert "which has code of a model or of data run" in _not_to_be_run(TRUSTED[kind], ["mine.py"])


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_command_of_shipped_parts_is_run_again(kind):
    assert _not_to_be_run(HARMLESS[kind], []) is None


@pytest.mark.parametrize("words", [[], ["publish", "runs/a"], ["new", "algorithm", "x"], ["bench", "new", "idea", "x"]])
def test_a_command_that_makes_no_artifact_is_none_to_run_again(words):
    assert "makes no artifact" in _not_to_be_run(words, [])


def test_a_record_with_a_plugin_is_named_before_anything_of_the_suite_runs(root, capsys):
    """The plugin makes a file when it is imported; neither that nor anything published changes."""
    marker = Path("marker").resolve()
    plugin = Path("mine.py").resolve()
    plugin.write_text(f"open({str(marker)!r}, 'w')\n")
    for path in (root / "docs/post-training/manifests").glob("*/dpo.json"):
        record = read(path)["execution"]
        record["argv"] = [*record["argv"], "--plugin", str(plugin)]
        path.write_bytes(dumps(execution_document(record)))
    before = snapshot(root)
    code, _ = command("docs", "build", "--root", str(root), "--rerun", "dpo")
    said = capsys.readouterr().err
    assert code == 3
    assert "is not run again: its command has" in said
    assert f"write --plugin {plugin}" in said
    assert "Nothing was run." in said
    assert not marker.exists()
    assert snapshot(root) == before


def test_a_run_made_again_has_the_command_of_the_run(root, monkeypatch):
    typed, seen = list(sys.argv), []

    def run(words):
        seen.append((list(words), list(sys.argv[1:])))
        return 1

    monkeypatch.setattr(cli, "main", run)
    with pytest.raises(SuiteError, match=r"ended with exit code 1\. Nothing was replaced"):
        rerun_published(root, "dpo", list(methods()), [])
    ((words, recorded),) = seen
    assert words == recorded and words[:2] == ["reproduce", "dpo"]
    assert sys.argv == typed
