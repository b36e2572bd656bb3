"""Hub datasets: local folders in every form without a network, and no code of a dataset is ever run."""

import json
import socket

import pyarrow
import pyarrow.parquet
import pytest

from posttrain.data import hub
from posttrain.data.hub import Hub
from posttrain.data.reading import AbsentData
from posttrain.evaluation import records
from posttrain.registry import ConfigError
from posttrain.settings import component

TRAIN = [{"question": f"{i} and 1?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"} for i in range(6)]
TEST = [{"question": "what?", "answer": "so #### 1,234"}]
README = """---
configs:
- config_name: main
  data_files: [{split: train, path: main/train-*}, {split: test, path: main/test-*}]
---
"""


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """Everything that would leave the machine fails the test; the library's cache is a folder of this test."""
    import datasets

    def refuse(*arguments, **options):
        raise AssertionError(f"the network was asked: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub._splits.cache_clear()


def gsm8k(folder):
    made = folder / "gsm8k"
    (made / "main").mkdir(parents=True)
    (made / "README.md").write_text(README)
    for split, table in (("train", TRAIN), ("test", TEST)):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), made / "main" / f"{split}-00000-of-00001.parquet")
    return made


def test_a_folder_of_gsm8k_needs_no_settings_and_they_are_spelled_out(tmp_path):
    made, spelled = component("dataset", str(gsm8k(tmp_path)))
    assert (spelled["name"], spelled["config"], spelled["validation_split"]) == ("hub", "main", "test")
    problems = made.build(0)
    assert [p.answer for p in problems.train] == [str(i + 1) for i in range(6)]
    assert [(p.prompt, p.answer, p.id) for p in problems.validation] == [("what?", "1,234", "gsm8k:test:1")]
    assert problems.train[0].meta["answer"] == TRAIN[0]["answer"]
    assert "read 6, kept 6, left out 0" in problems.source


def test_the_hub_id_gets_the_same_settings_as_the_folder():
    made, _ = component("dataset", "openai/gsm8k")
    assert (made.path, made.config, made.validation_split, made.answer_after) == (
        "openai/gsm8k", "main", "test", "####",
    )  # fmt: skip
    assert Hub(path="openai/gsm8k", config="socratic").config == "socratic"
    assert Hub(path="other/data").answer_after is None


def saved(folder, kind):
    import datasets

    table = datasets.Dataset.from_list([{"prompt": f"q{i}", "answer": i} for i in range(8)])
    path = folder / kind
    if kind == "dict":
        datasets.DatasetDict({"train": table.select(range(6)), "test": table.select([6, 7])}).save_to_disk(str(path))
    elif kind == "one":
        table.save_to_disk(str(path))
    elif kind == "shuffled":
        table.shuffle(seed=1).save_to_disk(str(path))
    elif kind == "parquet":
        path.mkdir()
        table.to_parquet(str(path / "train.parquet"))
    else:
        path.mkdir()
        (path / "train.jsonl").write_text("\n".join(json.dumps(row) for row in table))
    return path


@pytest.mark.parametrize("kind", ["dict", "one", "shuffled", "parquet", "jsonl"])
def test_every_form_of_a_local_folder_works_where_an_id_does(tmp_path, kind, capsys):
    problems = Hub(path=str(saved(tmp_path, kind)), held_out=2).build(0)
    assert (len(problems.train), len(problems.validation)) == (6, 2)
    found = {p.prompt: p.answer for p in (*problems.train, *problems.validation)}
    assert found == {f"q{i}": str(i) for i in range(8)}


def test_what_is_not_there_is_named(tmp_path):
    folder = saved(tmp_path, "one")
    with pytest.raises(ConfigError, match=r"dataset\.split: `one` has no split `trian`\. Did you mean `train`"):
        Hub(path=str(folder), split="trian").build(0)
    with pytest.raises(ConfigError, match=r"dataset\.validation_split: `one` has no split `test`"):
        Hub(path=str(folder), validation_split="test").build(0)
    with pytest.raises(AbsentData, match=r"there is no folder"):
        Hub(path=str(tmp_path / "none")).build(0)
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*nothing-like-it"):
        Hub(path=str(saved(tmp_path, "parquet")), config="nothing-like-it").build(0)


@pytest.mark.parametrize("name", ["scripted.py", "load.py"])
def test_br_39_a_loading_script_is_named_and_never_run(tmp_path, name):
    """BR-39 (b): the marker never appears; loading stops with a message that names the file."""
    folder, marker = tmp_path / "scripted", tmp_path / "marker"
    folder.mkdir()
    (folder / name).write_text(f"open({str(marker)!r}, 'w').close()")
    with pytest.raises(ConfigError, match=rf"{name}` is a loading script\. Code of a dataset is never run"):
        Hub(path=str(folder)).build(0)
    assert not marker.exists()


def test_br_39_a_script_beside_data_is_not_run_either(tmp_path):
    """BR-39 (b): how somebody made the files is no business of whoever reads them."""
    folder, marker = saved(tmp_path, "jsonl"), tmp_path / "marker"
    for name in ("convert.py", "__init__.py", "setup.py"):
        (folder / name).write_text(f"open({str(marker)!r}, 'w').close()")
    assert len(Hub(path=str(folder)).build(0).train) > 0
    assert not marker.exists()


def test_a_folder_is_never_taken_for_an_id_and_has_no_place_in_a_plan(tmp_path, monkeypatch):
    saved(tmp_path, "one")
    monkeypatch.chdir(tmp_path)
    made, spelled = component("dataset", {"name": "hub", "path": "one", "held_out": 2})
    assert spelled["path"] == made.path == "./one"
    assert records.portable({"path": str(tmp_path / "one"), "reward": {"source": "/my.py:f"}, "text": "/x"}) == {
        "path": "./one", "reward": {"source": "./my.py:f"}, "text": "/x",
    }  # fmt: skip
    options = {key: value for key, value in spelled.items() if key != "name"}
    fingerprint = records.dataset_fingerprint(records.drawn_splits("hub", options, [0]))
    plan = {
        "generator": "hub",
        "generator_version": 1,
        "config": options,
        "splits": [{"name": f"0/{s}"} for s in ("train", "validation")],
    }
    assert records.regenerate(plan) == fingerprint
    hub._splits.cache_clear()
    monkeypatch.chdir(tmp_path.parent)
    assert records.regenerate(plan) is None


def test_the_files_of_a_folder_are_inputs_by_name_and_digest(tmp_path):
    folder = saved(tmp_path, "jsonl")
    (found,) = [records._input(path, "dataset", str(folder)) for path in Hub(path=str(folder)).sources()]
    assert (found["path"], found["role"]) == ("jsonl/train.jsonl", "dataset")
    assert found["sha256"].startswith("sha256:")


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "place",
    [
        "../secret.jsonl",
        "data/../../secret.jsonl",
        "/etc/*.jsonl",
        "~/x.jsonl",
        "https://a.example/x.jsonl",
        "file:/etc/x",
        "local:/x",
    ],
)
@pytest.mark.parametrize("form", ["{0}", "[{0}]", "[{{split: train, path: [{0}]}}]", "{{train: {0}}}"])
def test_a_card_leads_neither_out_of_its_folder_nor_into_the_network(tmp_path, name, place, form):
    (tmp_path / "secret.jsonl").write_text('{"prompt": "secret", "answer": "1"}\n' * 9)
    folder = saved(tmp_path, "jsonl")
    yaml = f"configs:\n- config_name: default\n  data_files: {form.format(json.dumps(place))}\n"
    (folder / name).write_text(f"---\n{yaml}---\n" if name == "README.md" else yaml)
    with pytest.raises(ConfigError, match=rf"dataset\.path: `.*{name}` names `.*`, which lies outside its folder"):
        Hub(path=str(folder)).build(0)


def test_a_cards_folder_of_data_is_held_inside_too(tmp_path):
    folder = saved(tmp_path, "jsonl")
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_dir: ../other\n---\n")
    with pytest.raises(ConfigError, match=r"names `\.\./other`"):
        Hub(path=str(folder)).build(0)


@pytest.mark.parametrize("kind", ["one", "dict"])
def test_a_saved_dataset_names_tables_of_its_own_folder_alone(tmp_path, kind):
    folder = saved(tmp_path, kind)
    state = next(folder.rglob("state.json"))
    said = json.loads(state.read_text())
    said["_data_files"] = [{"filename": "../elsewhere.arrow"}]
    state.write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=r"state\.json` names `\.\./elsewhere\.arrow`, which lies outside"):
        Hub(path=str(folder)).build(0)
