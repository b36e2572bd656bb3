"""`posttrain eval`: what a person types, what it finds, what it leaves behind, and that every edit of it is noticed."""

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain import tiny
from posttrain.artifacts.digests import bytes_digest, content_digest, sealed
from posttrain.artifacts.documents import dumps, read
from posttrain.artifacts.eval_verify import read_answers
from posttrain.artifacts.evaluations import measured, read_items
from posttrain.artifacts.evidence import read_document
from posttrain.artifacts.verify import verify
from posttrain.cli import main
from posttrain.evaluation.records import regenerate
from posttrain.reporting import publishing

QUICK = ["dataset.validation_examples=12", "dataset.train_examples=8", "policy.max_completion_tokens=28"]
ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _thread_settings_stay_as_they_were():
    before, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(before)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture(scope="module")
def rival(tmp_path_factory) -> Path:
    """The tiny student with disturbed weights: an ordinary model folder that answers worse."""
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("models") / "rival"
    shutil.copytree(tiny.located("tiny:student"), folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory, rival) -> Path:
    """An evaluation with samples, compared with another model."""
    folder = tmp_path_factory.mktemp("evaluations") / "one"
    words = ["--samples", "4", "--k", "1,4", "--against", str(rival), "--output", str(folder)]
    assert main(["eval", "tiny:student", "--dataset", "steps", *QUICK, *words]) == 0
    return folder


@pytest.fixture
def copied(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copied"))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def said(capsys, *words: str, code: int = 0) -> str:
    capsys.readouterr()
    try:
        found = main(list(words))
    except SystemExit as left:
        found = left.code
    out, err = capsys.readouterr()
    assert found == code, err or out
    return out if code == 0 else err


def failures(folder: Path) -> dict[str, str]:
    report = verify(folder, fingerprints=regenerate)
    assert bool(report.exit_code) == any(check.status == "failed" for check in report.checks)
    return {check.name: check.message for check in report.checks if check.status == "failed"}


# -- what it finds ----------------------------------------------------------------------------------------------------


def test_an_evaluation_is_a_complete_folder_that_verifies(finished):
    names = {"config.yaml", "plan.json", "items.jsonl", "artifact.json", "execution.json"}
    for folder in (finished, finished / "against"):
        assert {path.name for path in folder.iterdir() if path.is_file()} == names
        report = verify(folder, fingerprints=regenerate, package_root=ROOT / "posttrain")
        assert (report.exit_code, report.passed_levels) == (0, ("V0", "V1", "V2"))
        # The rival is a folder that may lie anywhere.
        assert {check.name for check in report.checks if check.status != "passed"} <= {"input files"}


def test_it_prints_tables_a_licensed_sentence_and_the_path(capsys):
    out = said(capsys, "eval", "tiny:student", "--dataset", "steps", *QUICK, "--samples", "2", "--output", "a/b")
    for words in ("greedy accuracy", "pass@1 of 2", "truncated", "unscored", "95 % interval"):
        assert words in out
    artifact = read(Path("a/b/artifact.json"))
    greedy = artifact["evaluations"][0]["greedy"]
    assert f"answers {greedy['right']} of 12 items rightly" in out
    assert "a claim about a method needs at least 3 independent trainings" in out
    assert out.splitlines()[-1] == "a/b/artifact.json"
    assert artifact["settings"]["k"] == [1]


def test_a_comparison_says_which_checkpoint_on_which_revision_by_which_test(finished, capsys):
    from posttrain.evaluation.benchmark_display import sentences

    artifact = read(finished / "artifact.json")
    said = " ".join(sentences(artifact))
    rival = read(finished / "against/artifact.json")
    for digest in (
        artifact["evaluations"][0]["model"]["weights"],
        rival["evaluations"][0]["model"]["weights"],
        artifact["provenance"]["dataset_fingerprint"],
    ):
        assert digest.removeprefix("sha256:")[:12] in said
    assert "exact McNemar p" in said
    assert "12 paired items" in said
    assert not {"method exceeds", "outperforms", "significantly"} & set(said.split())


def test_without_samples_there_are_greedy_answers_alone(capsys):
    said(capsys, "eval", "tiny:student", "--dataset", "steps", *QUICK, "--output", "a")
    artifact = read(Path("a/artifact.json"))
    assert "samples" not in artifact["evaluations"][0]
    assert all(not item.samples for item in read_items(Path("a/items.jsonl")))
    assert failures(Path("a")) == {}


def test_the_same_command_gives_the_same_bytes_wherever_it_runs(finished, rival, tmp_path, capsys):
    moved = Path(shutil.copytree(rival, tmp_path / "elsewhere" / "rival"))
    words = ["--samples", "4", "--k", "4,1", "--against", str(moved), "--output", "again"]
    said(capsys, "eval", "tiny:student", "--dataset", "steps", *QUICK, *words)
    for name in ("artifact.json", "items.jsonl", "plan.json", "against/artifact.json", "against/items.jsonl"):
        assert (Path("again") / name).read_bytes() == (finished / name).read_bytes()
    text = (finished / "artifact.json").read_text() + (finished / "plan.json").read_text()
    assert str(rival.parent) not in text


def test_samples_are_drawn_from_the_seed_and_the_item_and_not_from_the_neighbours(finished, capsys):
    """Half as many rows at once, and other items beside it: an item's samples are what they were."""
    words = ["--samples", "4", "policy.rows=5", *QUICK[1:], "dataset.validation_examples=7"]
    said(capsys, "eval", "tiny:student", "--dataset", "steps", *words, "--output", "few")
    said(capsys, "eval", "tiny:student", "--dataset", "steps", *words, "--seed", "1", "--output", "other")
    whole = {item.id: item for item in read_items(finished / "items.jsonl")}
    few = list(read_items(Path("few/items.jsonl")))
    assert few == [whole[item.id] for item in few]
    assert {item.id for item in read_items(Path("other/items.jsonl"))}.isdisjoint(whole)


def test_the_numbers_are_those_of_the_items(finished):
    items = list(read_items(finished / "items.jsonl"))
    found = read(finished / "artifact.json")["evaluations"][0]
    assert {key: found[key] for key in ("n_items", "greedy", "samples")} == measured(items, [1, 4])
    assert 0 < found["greedy"]["right"] < 12  # otherwise this says little
    right = [sum(sample.right for sample in item.samples) for item in items]
    assert found["samples"]["pass_at_k"][0]["value"] == pytest.approx(sum(right) / 48)
    assert found["samples"]["pass_at_k"][1]["value"] == pytest.approx(sum(c > 0 for c in right) / 12)


def test_the_reward_and_the_limits_are_the_users(capsys):
    words = ["reward=exact", *QUICK[:2], "policy.max_completion_tokens=3", "--output", "a"]
    said(capsys, "eval", "tiny:student", "--dataset", "steps", *words)
    artifact = read(Path("a/artifact.json"))
    greedy = artifact["evaluations"][0]["greedy"]
    assert (greedy["accuracy"], greedy["truncated"], greedy["mean_length"]) == (0.0, 12, 3.0)
    assert artifact["settings"]["reward"] == {"name": "exact"}
    assert greedy["ci95"][1] > 0.2  # none of twelve right is not nothing


def test_the_function_makes_the_same_artifact_as_the_command(finished, rival):
    from posttrain.evaluation import evaluate

    options: dict[str, Any] = dict(word.split("=") for word in QUICK)
    found = evaluate("tiny:student", "steps", samples=4, k=(1, 4), against=rival, output="a", **options)
    assert found.path.read_bytes() == (finished / "artifact.json").read_bytes()
    assert found.artifact == read(found.path)


def test_training_problems_and_all_of_them_can_be_asked_for(capsys):
    for split, n in (("train", 8), ("all", 20)):
        said(capsys, "eval", "tiny:student", "--dataset", "steps", *QUICK, "--split", split, "--output", split)
        assert read(Path(split, "artifact.json"))["evaluations"][0]["n_items"] == n
        assert failures(Path(split)) == {}


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "trained"
    words = ["steps=1", "seeds=3-4", "problems_per_step=2", "group_size=2", *QUICK[:2], "--output", str(folder)]
    assert main(["train", "grpo", "--tier", "l2", *words]) == 0
    return folder


def test_a_runs_models_are_asked_about_their_own_held_out_problems_under_its_own_settings(run, capsys):
    out = said(capsys, "eval", str(run), "--output", "a")
    trained, artifact = read(run / "artifact.json"), read(Path("a/artifact.json"))
    assert artifact["seeds"] == [3, 4]
    assert [entry["greedy"]["accuracy"] for entry in artifact["evaluations"]] == [
        part["final"]["accuracy"] for part in trained["runs"]
    ]
    digest = bytes_digest((run / "artifact.json").read_bytes())
    origins = [entry["model"]["run"] for entry in artifact["evaluations"]]
    assert origins == [{"method": "grpo", "seed": seed, "artifact_sha256": digest} for seed in (3, 4)]
    assert artifact["settings"]["reward"] == {"name": "last_step"}
    assert artifact["overall"]["n_trainings"] == 2
    assert "2 checkpoints of trained" in out
    assert failures(Path("a")) == {}


def test_one_seed_of_a_run_is_chosen_by_number_or_by_its_folder(run, capsys):
    said(capsys, "eval", str(run), "--seed", "4", "--output", "a")
    said(capsys, "eval", str(run / "model" / "seed-4"), "--output", "b")
    assert Path("a/artifact.json").read_bytes() == Path("b/artifact.json").read_bytes()
    assert read(Path("a/artifact.json"))["seeds"] == [4]


def test_a_finished_evaluation_can_be_what_is_compared_with(run, capsys):
    said(capsys, "eval", str(run), "--output", "a")
    said(capsys, "eval", "tiny:student", "--dataset", "steps", *QUICK, "--seed", "3", "--output", "other data")
    said(capsys, "eval", str(run), "--samples", "2", "--against", "a", "--output", "b")
    artifact = read(Path("b/artifact.json"))
    assert {entry["against"]["artifact_sha256"] for entry in artifact["comparison"]} == {
        bytes_digest(Path("a/artifact.json").read_bytes())
    }
    assert [entry["greedy"]["verdict"] for entry in artifact["comparison"]] == ["identical outcomes"] * 2
    assert artifact["comparison"][0]["other_settings"] == ["samples"]
    assert failures(Path("b")) == failures(Path("b/against")) == {}
    assert "on other data" in said(capsys, "eval", str(run), "--seed", "3", "--against", "a", code=2)


def test_a_single_model_beside_a_run_is_asked_the_same_at_every_seed(run, capsys):
    said(capsys, "eval", str(run), "--against", "tiny:student", "--output", "a")
    rival = read(Path("a/against/artifact.json"))
    assert rival["seeds"] == [3, 4]
    assert len({entry["model"]["weights"] for entry in rival["evaluations"]}) == 1
    assert "overall" not in rival  # one training, however often it is asked
    assert failures(Path("a")) == failures(Path("a/against")) == {}


# -- what is noticed --------------------------------------------------------------------------------------------------

Where = tuple[str | int, ...]


def leaves(value: Any, path: Where = ()) -> Iterator[Where]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [leaf for key, member in inside for leaf in leaves(member, (*path, key))]
    yield from below or [path]


def at(document: Any, path: Where) -> Any:
    for key in path:
        document = document[key]
    return document


def edited(document: Any, path: Where) -> Any:
    """A copy with another value of the same type at one place."""
    document = copy.deepcopy(document)
    place, old = at(document, path[:-1]), at(document, path)
    if isinstance(old, bool):
        new: Any = not old
    elif isinstance(old, float):
        new = old + 0.01 if old < 0.5 else old - 0.01
    elif isinstance(old, int):
        new = old + 1
    elif isinstance(old, str):
        new = old[:-1] + ("0" if old[-1:] != "0" else "1")
    else:
        new = 0.5
    place[path[-1]] = new
    return document


def reseal(folder: Path, artifact: dict[str, Any]) -> None:
    """Writes an artifact with every digest that depends on it formed again, as a careful forger would."""
    lines = (folder / "items.jsonl").read_bytes()
    artifact["items"] |= {"sha256": bytes_digest(lines), "bytes": len(lines)}
    data = dumps(sealed(artifact))
    (folder / "artifact.json").write_bytes(data)
    execution = read(folder / "execution.json")
    for output in execution["execution"]["outputs"]:
        if output["path"] in ("artifact.json", "items.jsonl"):
            content = data if output["path"] == "artifact.json" else lines
            output |= {"sha256": bytes_digest(content), "bytes": len(content)}
    execution["execution_sha256"] = content_digest(execution["execution"])
    (folder / "execution.json").write_bytes(dumps(execution))


def test_every_edit_of_a_single_leaf_is_noticed(copied):
    artifact = read(copied / "artifact.json")
    places = list(leaves(artifact))
    assert len(places) > 100
    survivors = []
    for place in places:
        (copied / "artifact.json").write_bytes(dumps(edited(artifact, place)))
        if verify(copied).exit_code != 1:
            survivors.append(place)
    assert survivors == []


def test_every_edit_of_an_item_is_noticed(copied):
    lines = (copied / "items.jsonl").read_text().splitlines(keepends=True)
    value = json.loads(lines[3])
    edits = [json.dumps(edited(value, place)) + "\n" for place in leaves(value)]
    assert len(edits) >= 20
    for line in (*edits, "", lines[3] * 2, lines[3].replace(" ", "")):
        (copied / "items.jsonl").write_text("".join([*lines[:3], line, *lines[4:]]))
        assert verify(copied).exit_code == 1, line
    (copied / "items.jsonl").write_text("".join(reversed(lines)))
    assert verify(copied).exit_code == 1


def test_a_resealed_edit_of_any_number_is_worked_out_again(copied):
    artifact = read(copied / "artifact.json")
    reseal(copied, copy.deepcopy(artifact))
    assert failures(copied) == {}
    blocks = ("greedy", "samples", "pass_at_1", "n_items", "n_pairs")
    places = [place for place in leaves(artifact) if set(place) & set(blocks)]
    assert len(places) > 50
    for place in places:
        reseal(copied, edited(artifact, place))
        assert {"results", "comparison", "artifact schema"} & failures(copied).keys(), place


def test_a_resealed_edit_of_what_was_asked_contradicts_the_plan(copied):
    artifact = read(copied / "artifact.json")
    for place in leaves(artifact):
        model = place[0] == "evaluations" and place[2] == "model"
        if place[0] in ("settings", "benchmark", "seeds", "name", "provenance") or model:
            if place[-1] in ("content_digest", "source"):
                continue
            reseal(copied, edited(artifact, place))
            assert failures(copied), place


def test_resealed_outcomes_of_an_item_change_the_numbers(copied):
    artifact = read(copied / "artifact.json")
    lines = (copied / "items.jsonl").read_text().splitlines(keepends=True)
    value = json.loads(lines[0])
    value["greedy"]["score"] = 1.0 - value["greedy"]["score"]
    value["greedy"]["right"] = not value["greedy"]["right"]
    (copied / "items.jsonl").write_text("".join([json.dumps(value) + "\n", *lines[1:]]))
    reseal(copied, artifact)
    assert set(failures(copied)) == {"results", "comparison"}


def test_items_of_another_digest_are_not_believed_even_where_they_give_the_same_numbers(copied):
    """Another text of the same length and another size: neither changes an outcome."""
    document, _ = read_document(copied / "artifact.json", "eval-v1", "artifact")
    assert read_answers(document).problems == ()
    path = copied / "items.jsonl"
    written = path.read_text()
    lines = [json.loads(line) for line in written.splitlines()]
    lines[0]["greedy"]["text"] = lines[0]["greedy"]["text"][::-1] + "#"
    for changed in ("\n".join(map(json.dumps, lines)) + "\n", written.replace('"text": "', '"text":  "', 1)):
        path.write_text(changed)
        assert read_answers(document).problems == ("items.jsonl does not have the recorded digest and size",)
    path.write_text(written)
    assert read_answers(document).problems == ()


def test_the_other_evaluation_may_not_be_exchanged(copied):
    shutil.copy(copied / "items.jsonl", copied / "against" / "items.jsonl")
    assert "comparison" in failures(copied)
    shutil.rmtree(copied / "against")
    report = verify(copied)
    assert report.exit_code == 0
    assert any("against/artifact.json is not at hand" in item for item in report.not_checked)


def test_without_items_nothing_can_be_worked_out_again(copied):
    (copied / "items.jsonl").unlink()
    assert {"items", "results"} <= failures(copied).keys()


@pytest.mark.parametrize(
    ("name", "check"),
    [("items.jsonl", "items"), ("against", "comparison"), ("against/artifact.json", "comparison")],
)
def test_a_link_out_of_the_folder_is_not_followed(copied, tmp_path, name, check):
    """What lies elsewhere is no part of the evidence, and none of a reader's business."""
    outside = tmp_path / "outside"
    (copied / name).rename(outside)
    (copied / name).symlink_to(outside)
    assert f"{name.partition('/')[0]}" in failures(copied)[check]
    assert "leads out of" in failures(copied)[check]


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tiny:studnt", "--dataset", "steps"], "no tiny model `studnt`. Did you mean `student`?"),
        (["./nowhere", "--dataset", "steps"], "there is no folder `./nowhere`"),
        (["runs/nothing", "--dataset", "steps"], "there is no folder `runs/nothing`"),
        (["tiny:student"], "dataset: nothing is chosen. Write --dataset NAME"),
        (["tiny:student", "--dataset", "stepz"], "Did you mean `steps`?"),
        (["tiny:student", "--dataset", "steps", "dataset=steps"], "given twice"),
        (["tiny:student", "--dataset", "steps", "dataset.examples=3"], "dataset.examples: dataset `steps` has no such"),
        (["tiny:student", "--dataset", "steps", "reward=nope"], "unknown reward `nope`"),
        (["tiny:student", "--dataset", "steps", "reward=axes"], "reward: `axes` needs a dataset with reward axes"),
        (["tiny:student", "--dataset", "steps", "evaluation.accuracy=exact"], "Write reward=NAME"),
        (["tiny:student", "--dataset", "steps", "--samples", "2", "--k", "1,4"], "found 4, but --samples is 2"),
        (["tiny:student", "--dataset", "steps", "--k", "1"], "--samples is 0. Write --samples 1 or more"),
        (["tiny:student", "--dataset", "steps", "--samples", "2", "--k", "0"], "expected numbers from 1 up"),
        (["tiny:student", "--dataset", "steps", "--samples", "2", "--k", "1,1"], "expected each number once"),
        (["tiny:student", "--dataset", "steps", "--samples", "2", "--k", "a"], "expected whole numbers"),
        (["tiny:student", "--dataset", "steps", "--samples", "-1"], "--samples: found -1"),
        (["tiny:student", "--dataset", "steps", "--seed", "-1"], "--seed: found -1"),
        (["tiny:student", "--dataset", "steps", "temperature=0.5"], "Write policy.temperature=VALUE"),
        (["tiny:student", "--dataset", "steps", "policy.model=x"], "the model is the word after `eval`"),
        (["tiny:student", "--dataset", "steps", "policy.max_prompt_tokens=2"], "Prompts are never cut"),
        (["tiny:student", "--dataset", "steps", "learning_rate=1"], "there is no such setting"),
        (["tiny:student", "--dataset", "steps", "--against", "tiny:x"], "there is no tiny model `x`"),
    ],
)
def test_bad_input_is_named_before_any_work(capsys, words, message):
    assert message in said(capsys, "eval", *words, code=2)
    assert list(Path().iterdir()) == []


def test_other_items_than_the_other_evaluation_has_are_named(finished, capsys):
    words = ["eval", "tiny:student", "--dataset", "steps", "--against", str(finished)]
    fewer = [*words, *QUICK[1:], "dataset.validation_examples=11"]
    assert "1 item missing in this evaluation: 0/validation/11" in said(capsys, *fewer, code=2)
    assert "other prompts under the same id" in said(capsys, *words, QUICK[0], "dataset.train_examples=9", code=2)
    assert "judged by another reward" in said(capsys, *words, *QUICK, "reward=exact", code=2)
    assert list(Path().iterdir()) == []


def test_an_altered_evaluation_is_not_compared_with(copied, capsys):
    artifact = read(copied / "artifact.json")
    (copied / "artifact.json").write_bytes(dumps({**artifact, "name": "another"}))
    words = ["eval", "tiny:student", "--dataset", "steps", *QUICK, "--against", str(copied)]
    assert "does not verify" in said(capsys, *words, code=2)


def test_what_is_no_model_is_said_to_be_none(finished, run, capsys):
    assert "is a finished evaluation" in said(capsys, "eval", str(finished), code=2)
    assert "has models of seeds [3, 4], not of 7" in said(capsys, "eval", str(run), "--seed", "7", code=2)
    assert "is a file" in said(capsys, "eval", str(finished / "plan.json"), code=2)
    assert "is not an empty folder" in said(
        capsys, "eval", "tiny:student", "--dataset", "steps", "--output", str(finished), code=2
    )
    Path("empty").mkdir()
    assert "`empty` has no config.json" in said(capsys, "eval", "empty", "--dataset", "steps", code=2)
    shutil.copytree(run, "killed")
    Path("killed/execution.json").unlink()
    message = said(capsys, "eval", "killed", code=2)
    assert "the run killed is incomplete" in message
    assert "is done (killed/model/seed-3, killed/model/seed-4), or go on with it" in message
    assert Path("killed/model/seed-3").is_dir()
    shutil.rmtree("killed/model/seed-3")
    assert "is done (killed/model/seed-4), or" in said(capsys, "eval", "killed", code=2)
    shutil.rmtree("killed/model")
    message = said(capsys, "eval", "killed", code=2)
    assert "No seed of it is done yet: go on with it: its own command with --output killed --resume auto." in message
    assert "seed-" not in message
    shutil.copy(run / "execution.json", "killed")
    assert "has no model folder" in said(capsys, "eval", "killed", code=2)


def test_ids_that_stand_for_several_problems_are_refused():
    from posttrain.batch import Problem, ProblemSet
    from posttrain.evaluation import benchmark, checkpoints
    from posttrain.registry import ConfigError

    resolved = benchmark.resolve(checkpoints.locate("tiny:student", None), [], benchmark.Asked("steps"))

    class Doubled:
        def build(self, seed: int) -> ProblemSet:
            one = Problem(id="same", prompt="1+1=", answer="2")
            return ProblemSet((), (one, one), "made up")

    with pytest.raises(ConfigError, match="such as same"):
        benchmark.problems_of(replace(resolved, dataset=Doubled()), 0)


def test_an_evaluation_has_no_page_to_be_published_on(finished):
    with pytest.raises(publishing.Refused, match="is an evaluation of checkpoints"):
        publishing.publication(finished, lambda path: verify(path, fingerprints=regenerate))


def test_report_of_an_evaluation_shows_what_the_evaluation_showed(copied, capsys):
    for path in (copied, copied / "artifact.json"):
        shown = said(capsys, "report", str(path))
        assert "paired items" in shown
        assert shown.splitlines()[-2:] == [str(copied / "artifact.json"), "verified at V0, V1, V2"]
    assert not Path("runs").exists(), "a look writes nothing"
    said(capsys, "report", str(copied), "--output", "eval.html", code=2)
    assert not Path("eval.html").exists()


def test_rows_without_answers_are_refused_before_anything_is_answered(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1+2="}\n{"prompt": "2+2="}\n')
    assert main(["eval", "tiny:student", "--dataset", str(rows), "--output", str(tmp_path / "run")]) == 2
    assert "`exact` compares with the answer, but 2 of 2 problems have none" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
