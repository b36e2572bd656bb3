"""What a broken copy of a model's folder lacks is named by file, with what to do about it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import tiny
from posttrain.cli import main
from posttrain.policies.causal_lm import CausalLM
from posttrain.registry import ConfigError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "whole"
    tiny.tokenizer_of(folder)
    tiny.untrained(tiny.RECIPES["student"]).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "model"))


def test_a_folder_without_a_tokenizer_says_so(folder):
    for file in folder.glob("token*"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"model` has no tokenizer \(tokenizer\.json or the like\)\. Save it there"):
        CausalLM(model=str(folder)).build([], {}, False)


@pytest.mark.parametrize("kept", [0, 5, 100, 0.5, 0.999, -1])
def test_a_weights_file_that_was_cut_short_is_named_with_what_to_do(folder, kept):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(kept * len(data)) if isinstance(kept, float) else kept])
    with pytest.raises(ConfigError) as found:
        CausalLM(model=str(folder)).build([], {}, False)
    message = str(found.value)
    assert f"`{file}` is damaged or cut short ({file.stat().st_size} bytes" in message
    assert message.endswith("Copy it again.")
    assert "\n" not in message


def test_a_damaged_model_is_one_line_on_the_command_line_and_no_message_ends_in_a_colon(folder, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i)}) for i in range(4)))
    (folder / "tokenizer.json").write_text("{}")
    assert main(["eval", str(folder), "--dataset", str(rows)]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1
    assert not said.endswith(":")


def test_making_and_saving_a_model_shows_no_bar_of_another_library(tmp_path):
    code = (
        "import sys; from pathlib import Path; from posttrain import tiny;"
        "tiny._make(tiny.Recipe(updates=1, examples=32), 'one', Path(sys.argv[1]))"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], capture_output=True, text=True, check=True)
    assert ran.stderr.splitlines() == ["pretraining the tiny one, 1 updates, once"]
    assert ran.stdout == ""
