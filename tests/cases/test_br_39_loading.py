"""Case BR-39: what is loaded runs code. The checkpoints of a run have their own tests."""

import json
import os
import pickle
import sys

import numpy as np
import pytest
import tiny_lm
import torch

from posttrain.evaluation.records import biases
from posttrain.policies.causal_lm import CausalLM
from posttrain.registry import ConfigError
from posttrain.settings import load
from posttrain.teachers.store import CorruptEntry, Store

MODEL = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path({marker!r}).touch()

class Own(LlamaForCausalLM):
    config_class = LlamaConfig
"""
TOKENIZER = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast
Path({marker!r}).touch()

class Own(PreTrainedTokenizerFast):
    pass
"""


class Creates:
    """A pickle of this makes a file when it is read."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "marker"


def test_br_39_the_reducer_works_where_it_is_let(marker):
    """BR-39: the marker of these tests appears when something is unpickled."""
    pickle.loads(pickle.dumps(Creates(marker)))
    assert marker.exists()


@pytest.mark.parametrize("signed", [False, True], ids=["bare", "with a digest"])
def test_br_39_a_pickle_in_a_teacher_cache_is_named_and_not_run(tmp_path, marker, signed):
    """BR-39 (a), teacher cache: also where the digest in front is right."""
    import hashlib

    store = Store(tmp_path / "store")
    store.put("ab" * 32, {"logprobs": np.zeros(3)})
    (entry,) = (path for path in store.root.rglob("*") if path.is_file())
    data = pickle.dumps(Creates(marker))
    entry.write_bytes(hashlib.sha256(data).digest() + data if signed else data)
    with pytest.raises(CorruptEntry, match=str(entry)):
        store.get("ab" * 32)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_br_39_a_model_of_pickles_is_named_and_not_run(tmp_path, marker, name):
    """BR-39 (a), weights."""
    folder = model_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    torch.save(Creates(marker), folder / name)
    with pytest.raises(ConfigError, match=f"only {name}, a pickle"):
        CausalLM(model=str(folder)).build(tiny_lm.problems(), {}, False)
    assert not marker.exists()


def model_folder(tmp_path):
    folder = tmp_path / "model"
    tiny_lm.policy("llama", "float32").save(folder)
    return folder


def with_code(folder, marker, part):
    """The folder with a Python file that makes the marker, asked for by its auto_map."""
    code, file, auto = {
        "model": (MODEL, "config.json", {"AutoModelForCausalLM": "own_code.Own"}),
        "tokenizer": (TOKENIZER, "tokenizer_config.json", {"AutoTokenizer": [None, "own_code.Own"]}),
    }[part]
    (folder / "own_code.py").write_text(code.format(marker=str(marker)))
    settings = json.loads((folder / file).read_text())
    if part == "tokenizer":
        settings["tokenizer_class"] = "Own"
    else:
        settings["model_type"] = "llama"
    (folder / file).write_text(json.dumps({**settings, "auto_map": auto}))


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """transformers copies a folder's code before it runs it: here, and forgotten afterwards."""
    import transformers.dynamic_module_utils as dynamic

    before, paths = set(sys.modules), list(sys.path)
    monkeypatch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    yield
    sys.path[:] = paths
    for name in set(sys.modules) - before:
        if name.startswith("transformers_modules"):
            del sys.modules[name]


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(("part", "file"), [("model", "config.json"), ("tokenizer", "tokenizer_config.json")])
def test_br_39_b_code_of_a_folder_is_refused_by_the_name_of_the_file_and_runs_only_when_it_is_asked_for(
    tmp_path, marker, part, file
):
    """BR-39 (b), model and tokenizer: the marker never appears without policy.trust_remote_code=true."""
    folder = model_folder(tmp_path)
    with_code(folder, marker, part)
    with pytest.raises(ConfigError, match=rf"{file}` asks to run code .*policy\.trust_remote_code=true"):
        CausalLM(model=str(folder)).build(tiny_lm.problems(), {}, False)
    assert not marker.exists()
    made = CausalLM(model=str(folder), trust_remote_code=True, max_completion_tokens=8).build(
        tiny_lm.problems(), {}, False
    )
    assert marker.exists()
    assert made.sample(tiny_lm.problems(1), 2, None, 0, 1).mask.any()


def test_br_39_b_trust_is_off_unless_it_is_written_and_then_the_artifact_says_so():
    """BR-39 (b): off by default, a real bool, and a note of the artifact."""
    usual = load("grpo", "l2")
    asked = load("grpo", "l2", overrides=["policy.trust_remote_code=true"])
    assert usual.policy.trust_remote_code is False
    assert not any("trust_remote_code" in note for note in biases(usual))
    assert "Code that came with the model was run (policy.trust_remote_code=true)." in biases(asked)
    assert asked.resolved["policy"]["trust_remote_code"] is True
    with pytest.raises(ConfigError, match=r"policy\.trust_remote_code: found 'sure'"):
        load("grpo", "l2", overrides=["policy.trust_remote_code=sure"])


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir", "!!python/object/new:os.mkdir", "!!python/name:os"])
@pytest.mark.parametrize("place", ["note: {tag} ['{marker}']", "dataset: {tag} ['{marker}']", "{tag} ['{marker}']"])
def test_br_39_c_a_python_object_in_a_configuration_is_refused_by_the_name_of_the_file(tmp_path, marker, tag, place):
    """BR-39 (c)."""
    file = tmp_path / "mine.yaml"
    file.write_text(place.format(tag=tag, marker=marker))
    with pytest.raises(ConfigError, match=r"^mine\.yaml: is not valid YAML"):
        load("grpo", config=str(file))
    assert not marker.exists()


def test_br_39_c_so_is_one_in_a_word(marker):
    """BR-39 (c)."""
    with pytest.raises(ConfigError, match=r"^note: cannot read the value"):
        load("grpo", overrides=[f"note=!!python/object/apply:os.mkdir ['{marker}']"])
    assert not marker.exists()
