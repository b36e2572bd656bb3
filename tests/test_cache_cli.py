"""`posttrain cache`: a store filled before a run is the run's own, is described as it is, and is checked to the bit."""

import json
from pathlib import Path

import pytest

from posttrain.cli import main
from posttrain.registry import ConfigError

SMALL = [
    "dataset.train_examples=8", "dataset.validation_examples=4", "dataset.positions=6", "dataset.candidates=4",
    "dataset.known=2", "dataset.new=3", "seeds=1,2", "steps=3", "problems_per_step=4",
]  # fmt: skip


def run(*words: str) -> int:
    return main(list(words))


def read(folder: Path, name: str):
    return json.loads((folder / name).read_text())


def built(capsys, store: Path, *words: str) -> list[dict]:
    assert run("cache", "build", "lightning-opd", *SMALL, *words, "--store", str(store), "--json") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def entries_in(store: Path) -> list[Path]:
    return sorted(path for path in store.glob("*/??/*") if path.is_file())


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> Path:
    """An untrained model over the alphabet of `steps`."""
    from posttrain.tiny import Recipe, tokenizer_of, untrained

    folder = tmp_path_factory.mktemp("model")
    tokenizer_of(folder)
    untrained(Recipe(updates=0, hidden_size=16, layers=1, heads=2)).save_pretrained(folder)
    return folder


# -- build ------------------------------------------------------------------------------------------------------------


def test_a_store_that_was_built_is_all_that_the_run_needs(tmp_path, capsys):
    store, folder = tmp_path / "store", tmp_path / "run"
    first = built(capsys, store)
    assert [line["seed"] for line in first] == [1, 2]
    assert all(line["teacher_store_hits"] == 0 for line in first)
    again = built(capsys, store)
    assert [line["teacher_store_scored"] for line in again] == [0, 0]
    assert [line["needed"] for line in again] == [line["needed"] for line in first]
    assert run("train", "lightning-opd", *SMALL, f"teacher.store={store}", "--output", str(folder)) == 0
    counters = read(folder, "execution.json")["execution"]["counters"]
    assert counters["teacher_store_scored"] == counters["teacher_store_corrupt"] == 0
    assert counters["teacher_store_hits"] == sum(line["needed"] for line in first)
    assert len(entries_in(store)) == counters["teacher_store_hits"]


def test_the_artifact_of_a_run_does_not_say_whether_its_store_was_warm(tmp_path):
    """Cold, warm, and filled by other seeds and other runs besides: the same bytes."""
    store, words = tmp_path / "store", ["train", "lightning-opd", *SMALL]
    shared = f"teacher.store={store}"
    for name in ("cold", "warm"):
        assert run(*words, shared, "--output", str(tmp_path / name)) == 0
    assert (
        run("train", "lightning-opd", *SMALL[:-3], "seeds=7", "steps=1", shared, "--output", str(tmp_path / "o")) == 0
    )
    assert run(*words, shared, "--output", str(tmp_path / "crowded")) == 0
    found = [(tmp_path / name / "artifact.json").read_bytes() for name in ("cold", "warm", "crowded")]
    assert found[0] == found[1] == found[2]
    scored = [
        read(tmp_path / name, "execution.json")["execution"]["counters"]["teacher_store_scored"]
        for name in ("cold", "warm", "crowded")
    ]
    assert scored[0] > 0
    assert scored[1:] == [0, 0]
    assert run(*words, "--output", str(tmp_path / "own")) == 0
    assert read(tmp_path / "own", "artifact.json")["runs"] == read(tmp_path / "cold", "artifact.json")["runs"]


@pytest.mark.parametrize("words", [[], ["teacher.prompt={solution};{prompt}"]], ids=["a model", "privileged"])
def test_so_it_is_for_a_language_model(tmp_path, tiny_folder, words, capsys):
    store, model = tmp_path / "store", str(tiny_folder)
    asked = [
        "lightning-opd", f"policy.model={model}", "teacher=cached", "teacher.on_miss=error",
        *(words or [f"teacher.model={model}"]), "dataset.train_examples=6", "dataset.validation_examples=2", "seeds=1",
        "steps=2", "problems_per_step=3", "policy.max_completion_tokens=8",
    ]  # fmt: skip
    assert run("cache", "build", *asked, "--store", str(store)) == 0
    said = capsys.readouterr().out
    assert "seed 1: 6 different completions, 0 were there, 6 made now" in said
    assert "sampled token: 6 entries" in said
    assert "bytes per token" in said
    assert ("behind the prompt '{solution};{prompt}'" in said) == bool(words)
    for name in ("warm", "warm again"):
        assert run("train", *asked, f"teacher.store={store}", "--output", str(tmp_path / name)) == 0
        counters = read(tmp_path / name, "execution.json")["execution"]["counters"]
        assert (counters["teacher_store_hits"], counters["teacher_store_scored"]) == (6, 0)
    assert run("train", *asked, "--output", str(tmp_path / "own")) == 0
    capsys.readouterr()
    runs = [read(tmp_path / name, "artifact.json")["runs"] for name in ("warm", "warm again", "own")]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0][0]["training"]["teacher_prefill_calls"] == runs[0][0]["training"]["teacher_cache_entries"] == 6


def test_damage_of_a_store_is_one_number_in_one_place_and_a_line_of_the_run(tmp_path, capsys):
    store = tmp_path / "store"
    built(capsys, store)
    words = ["train", "lightning-opd", *SMALL, f"teacher.store={store}"]
    assert run(*words, "--output", str(tmp_path / "sound")) == 0
    assert "damaged" not in capsys.readouterr().err
    for path in entries_in(store)[:4]:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert run(*words, "--output", str(tmp_path / "damaged")) == 0
    assert "4 damaged entries found in the teacher's store; none was used" in capsys.readouterr().err
    counters = read(tmp_path / "damaged", "execution.json")["execution"]["counters"]
    assert {name: value for name, value in counters.items() if "corrupt" in name} == {"teacher_store_corrupt": 4}
    assert (tmp_path / "damaged/artifact.json").read_bytes() == (tmp_path / "sound/artifact.json").read_bytes()


def test_data_rows_are_known_before(tmp_path, capsys):
    """GKD on data rows and the teacher's two best ids: the entries have a support, whose mass is said."""
    store = tmp_path / "store"
    words = ["gkd", *SMALL, "dataset.prefix=0.5", "policy.start=student", "teacher=cached",
             "algorithm.support=2", "algorithm.student_share=0.0"]  # fmt: skip
    assert run("cache", "build", *words, "--store", str(store)) == 0
    said = capsys.readouterr().out
    assert "seed 1: 8 different completions" in said
    assert "sampled token and 2 ids with tail: 8 entries" in said
    assert "of the teacher's mass" in said
    assert (
        run("train", *words, f"teacher.store={store}", "teacher.on_miss=error", "--output", str(tmp_path / "run")) == 0
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["opd"], "teacher.name: found frozen, but a store belongs to teacher=cached"),
        (["grpo", "dataset=arithmetic-smoke"], "teacher.name: found None"),
        (["lightning-opd"], "teacher.store: nothing is chosen"),
        (["opd", "teacher=cached", "--store", "x"], "drawn from a student that moves"),
        (["lightning-opd", "--store", "x", "teacher.modle=3"], "teacher.modle"),
        (["nothing", "--store", "x"], "unknown algorithm"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused_before_a_store_exists(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("cache", "build", *words) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# -- info and verify --------------------------------------------------------------------------------------------------


def test_info_names_the_teacher_and_counts_entries_tokens_and_bytes(tmp_path, capsys):
    store = tmp_path / "store"
    built(capsys, store)
    assert run("cache", "info", str(store), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    paths = entries_in(store)
    forms = [form for shelf in found for form in shelf["forms"]]
    assert len(found) == 2  # each seed's dataset has a teacher of its own
    assert sum(form["entries"] for form in forms) == len(paths)
    assert sum(form["bytes"] for form in forms) == sum(path.stat().st_size for path in paths)
    for shelf in found:
        assert (shelf["teacher"], shelf["corrupt"], shelf["format"]) == ("teacher", 0, 2)
        assert set(shelf["identity"]) == {"weights", "vocabulary", "settings"}
        for form in shelf["forms"]:
            assert form["bytes_per_token"] == pytest.approx(form["bytes"] / form["tokens"])


def test_verify_names_what_is_corrupt_and_deletes_it_only_when_asked(tmp_path, capsys):
    store = tmp_path / "store"
    built(capsys, store)
    assert run("cache", "verify", str(store)) == 0
    assert "0 faults" in capsys.readouterr().out
    flipped, halved, *others = entries_in(store)
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"?")
    halved.write_bytes(halved.read_bytes()[:40])
    for _ in range(2):
        assert run("cache", "verify", str(store)) == 1
        said = capsys.readouterr().out
        assert str(flipped) in said
        assert str(halved) in said
        assert f"{len(others)} entries are sound, 2 faults, 0 corrupt entries deleted" in said
    assert run("cache", "verify", str(store), "--repair") == 1
    assert "2 corrupt entries deleted" in capsys.readouterr().out
    assert entries_in(store) == others
    assert run("cache", "verify", str(store)) == 0
    capsys.readouterr()
    assert sum(line["teacher_store_scored"] for line in built(capsys, store)) == 2
    assert len(entries_in(store)) == len(others) + 2


def test_br_39_strangers_in_a_store_are_named_and_neither_read_nor_deleted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "store"
    built(capsys, store)
    crime = b"cos\nmkdir\n(S'crime'\ntR."
    beside = entries_in(store)[0].with_name("logprobs.npy")
    for path in (beside, store / "rng.pkl"):
        path.write_bytes(b"\x93NUMPY\x01\0" + crime if path.suffix == ".npy" else crime)
    (store / beside.parts[-3] / "teacher.json").write_bytes(crime)
    assert run("cache", "verify", str(store), "--repair") == 1
    said = capsys.readouterr().out
    assert f"{beside} is no entry" in said
    assert f"{store / 'rng.pkl'} is no teacher's folder" in said
    assert "teacher.json is missing or damaged" in said
    assert beside.exists()
    assert (store / "rng.pkl").exists()
    assert run("cache", "info", str(store)) == 0
    assert "teacher: unknown" in capsys.readouterr().out
    assert [line["teacher_store_scored"] for line in built(capsys, store)] == [0, 0]
    assert not (tmp_path / "crime").exists()


@pytest.mark.parametrize("verb", ["info", "verify"])
def test_a_folder_that_is_no_store_is_refused(verb, tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("hello")
    for place in (tmp_path, tmp_path / "nowhere"):
        assert run("cache", verb, str(place)) == 2
        assert "holds no teacher's answers" in capsys.readouterr().err
    assert (tmp_path / "letter.txt").exists()


def test_cache_alone_says_what_it_can_do(capsys):
    assert run("cache") == 0
    said = capsys.readouterr().out
    assert all(verb in said for verb in ("build", "info", "verify"))
    assert issubclass(ConfigError, ValueError)
