"""Publishing: verified, complete, clean runs only, in the place that they name, without a trace of the machine."""

import json
import shutil
import socket
from contextlib import nullcontext

import pytest
from small_runs import (
    CONTROLLED_PLAN,
    REPOSITORY,
    SMALL,
    command,
    edit_execution,
    edit_json,
    make,
    publish,
    snapshot,
    verify,
)

from posttrain import settings
from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import read
from posttrain.artifacts.schema import violations
from posttrain.evaluation import experiment, records
from posttrain.reporting import publishing
from posttrain.reporting.publishing import Refused


@pytest.fixture
def empty(tmp_path):
    """A root in which nothing of ours is published."""
    publish(tmp_path / "empty")
    return tmp_path / "empty"


def test_a_run_is_published_with_its_arms_and_its_page(run, empty, monkeypatch):
    monkeypatch.setattr("posttrain.reporting.cli.verifier", lambda plugins: verify)
    code, said = command("publish", str(run), "--root", str(empty))
    assert code == 0, said
    docs = empty / "docs/post-training"
    for arm in ("sparse-opd", "sparse-opd.dense", "sparse-opd.random"):
        assert (docs / f"manifests/{CONTROLLED_PLAN}/{arm}.json").is_file()
    published = docs / f"2609.04565-sparse-opd/metrics/{CONTROLLED_PLAN}.json"
    assert published.read_bytes() == (run / "artifact.json").read_bytes()
    assert verify(published).exit_code == 0
    assert (docs / "2609.04565-sparse-opd/README.md").is_file()
    assert command("docs", "check", "--root", str(empty))[0] == 0
    assert command("publish", str(run), "--root", str(empty))[0] == 0  # the same again changes nothing


def test_nothing_published_names_a_machine(run):
    made = publishing.publication(run, verify)
    for path, data in made.files.items():
        text = data.decode()
        assert str(run.parent) not in text, path
        assert socket.gethostname() not in text
        assert "--output" not in text
        assert "--jobs" not in text
    record = next(json.loads(data) for path, data in made.files.items() if path.endswith("/sparse-opd.json"))
    assert record["execution"]["argv"][:3] == ["posttrain", "train", "sparse-opd"]


@pytest.mark.parametrize("key", ["kernel", "os"])
def test_a_machine_path_anywhere_in_the_record_refuses(run, key):
    edit_execution(run, lambda record: record["environment"].update({key: "/home/somebody/kernel"}))
    with pytest.raises(Refused, match=f"/environment/{key} is '/home/somebody/kernel'"):
        publishing.publication(run, verify)


def test_a_host_name_in_the_record_refuses(run):
    edit_execution(run, lambda record: record["hardware"].update(cpu_model=socket.gethostname()))
    with pytest.raises(Refused, match="belongs to one machine"):
        publishing.publication(run, verify)


CODE = b"def score(completion, problem):\n    return 1.0\n"


def with_code(run, path, data=CODE, words=None):
    """The run as one that had a file of code from outside."""

    def change(record):
        record["argv"] += words or ["--plugin", str(path)]
        record["plugins"] = [{"name": str(path), "sha256": bytes_digest(data)}]

    edit_execution(run, change)


def test_code_from_outside_is_published_with_its_run_and_linked_from_the_page(run, empty, tmp_path, monkeypatch):
    monkeypatch.setattr("posttrain.reporting.cli.verifier", lambda plugins: verify)
    (tmp_path / "mine.py").write_bytes(CODE)
    with_code(run, tmp_path / "mine.py")
    assert command("publish", str(run), "--root", str(empty))[0] == 0
    copy = f"docs/post-training/manifests/{CONTROLLED_PLAN}/code/mine.py"
    assert (empty / copy).read_bytes() == CODE
    record = read(empty / f"docs/post-training/manifests/{CONTROLLED_PLAN}/sparse-opd.json")["execution"]
    assert record["argv"][-2:] == ["--plugin", copy] and record["plugins"][0]["name"] == "mine.py"
    page = (empty / "docs/post-training/2609.04565-sparse-opd/README.md").read_text()
    assert f"code from outside this project: [`mine.py`](../manifests/{CONTROLLED_PLAN}/code/mine.py)" in page
    assert f"| `{copy}` | `{bytes_digest(CODE)}` |" in page
    assert command("docs", "check", "--root", str(empty))[0] == 0
    (empty / copy).write_bytes(CODE.replace(b"1.0", b"0.0"))
    assert command("docs", "check", "--root", str(empty))[0] == 3


def test_code_is_found_by_the_word_of_the_command_that_names_it(run, tmp_path):
    (tmp_path / "mine.py").write_bytes(CODE)
    with_code(run, "mine.py", words=[f"reward={tmp_path}/mine.py:score"])
    assert any(path.endswith("/code/mine.py") for path in publishing.publication(run, verify).files)


@pytest.mark.parametrize("found", [None, CODE + b"#"], ids=["gone", "changed"])
def test_code_that_is_not_there_as_it_ran_is_asked_for(run, tmp_path, found):
    if found:
        (tmp_path / "mine.py").write_bytes(found)
    with_code(run, tmp_path / "mine.py")
    refused(run, "no file with these bytes is where the command says")


def test_code_that_names_a_machine_is_refused(run, tmp_path):
    data = b"DATA = '/home/somebody/data'\n"
    (tmp_path / "mine.py").write_bytes(data)
    with_code(run, tmp_path / "mine.py", data)
    refused(run, "belongs to one machine")


def test_an_installed_package_of_code_is_named_by_its_digest(run, empty, monkeypatch):
    monkeypatch.setattr("posttrain.reporting.cli.verifier", lambda plugins: verify)
    with_code(run, "lab_plugin")
    assert command("publish", str(run), "--root", str(empty))[0] == 0
    page = (empty / "docs/post-training/2609.04565-sparse-opd/README.md").read_text()
    assert f"code from outside this project: `lab_plugin` (`{bytes_digest(CODE)}`, not here)" in page


def refused(run, reason):
    with pytest.raises(Refused, match=reason):
        publishing.publication(run, verify)


def test_an_incomplete_run_is_refused(run):
    (run / "execution.json").unlink()
    refused(run, "not verified: the run is incomplete")


def test_an_edited_run_is_refused(run):
    edit_json(run / "artifact.json", lambda value: value["runs"][0]["final"].update(accuracy=1.0))
    refused(run, "is not verified: V")


def test_an_arm_that_does_not_verify_is_refused(run):
    edit_json(run / "arms/sparse-opd.dense/artifact.json", lambda value: value["runs"][0]["final"].update(accuracy=1.0))
    refused(run, "is not verified: V")


def test_a_dirty_run_is_refused_whatever_the_tree_is_now(run):
    edit_execution(run, lambda record: record["code"].update(git_dirty=True))
    refused(run, "is dirty: posttrain/ or configs/ differed")


def test_a_run_whose_code_cannot_be_named_is_refused(run):
    edit_execution(run, lambda record: record["code"].update(git_commit=None, unknown={"git_commit": "no history"}))
    refused(run, "its code cannot be named: no history")


def test_a_run_from_python_is_refused_because_no_command_makes_it_again(run):
    edit_execution(run, lambda record: record.update(argv=[]))
    refused(run, "came from Python")


def test_one_seed_of_a_plan_is_refused_until_it_is_merged(tmp_path):
    seed = make(tmp_path / "seed", "train", "grpo", *SMALL, "seeds=1-3", "--only-seed", "2")
    refused(seed, "is one seed of a plan; put the seeds together with posttrain merge")
    (seed / "part.json").unlink()
    refused(seed, "is one seed of a plan")


def test_a_second_run_with_the_same_bytes_leaves_the_first_one_s_record(run, empty, monkeypatch):
    monkeypatch.setattr("posttrain.reporting.cli.verifier", lambda plugins: verify)
    assert command("publish", str(run), "--root", str(empty))[0] == 0
    before = snapshot(empty)
    edit_execution(
        run, lambda record: record.update(started_at="2030-01-01T00:00:00Z", ended_at="2030-01-01T00:00:01Z")
    )
    code, said = command("publish", str(run), "--root", str(empty))
    assert code == 0 and "published already, bit for bit" in said
    assert snapshot(empty) == before
    assert command("publish", str(run), "--root", str(empty), "--replace")[0] == 0
    assert snapshot(empty) != before
    assert command("docs", "check", "--root", str(empty))[0] == 0


def test_a_refusal_is_one_line_and_writes_nothing(run, empty, capsys):
    (run / "execution.json").unlink()
    before = snapshot(empty)
    assert command("publish", str(run), "--root", str(empty))[0] == 1
    said = capsys.readouterr().err
    assert said.startswith("posttrain: publish: refused: ")
    assert said.count("\n") == 1
    assert snapshot(empty) == before


def test_another_run_in_the_same_place_is_refused_unless_it_is_superseded(runs, empty):
    made = publishing.publication(runs.solo, verify)
    publishing.put(empty, made)
    files = dict(made.files)
    artifact = json.loads(files[made.artifact])
    artifact["notes"] = ["another"]
    other = publishing.Publication({**files, made.artifact: json.dumps(artifact).encode()}, made.artifact)
    before = snapshot(empty)
    with pytest.raises(Refused, match=r"holds another run, .* in its place one with supersedes=sha256:"):
        publishing.put(empty, other)
    assert snapshot(empty) == before
    publishing.put(empty, other, replace=True)  # of the same runs, whose record is another
    artifact["runs"][0]["final"]["accuracy"] += 0.5
    better = publishing.Publication({**files, made.artifact: json.dumps(artifact).encode()}, made.artifact)
    with pytest.raises(Refused, match=r"holds a run with other numbers\. .* supersedes=sha256:"):
        publishing.refuse_other_results(empty, better)
    publishing.refuse_other_results(empty, other)
    publishing.refuse_other_results(empty, made)


@pytest.mark.parametrize(
    ("word", "published"),
    [
        ("work/mine.py", "docs/x/code/mine.py"), ("reward=../mine.py:score", "reward=docs/x/code/mine.py:score"),
        ("--plugin=mine.py", "--plugin=docs/x/code/mine.py"), ("other.py", "other.py"), ("steps=3", "steps=3"),
    ],
)  # fmt: skip
def test_a_published_command_names_code_where_it_is_published(word, published):
    record = {"argv": ["posttrain", "train", word], "overrides": []}
    assert publishing.command({"argv": [publishing._published(word, ["docs/x/code/mine.py"])]}) == published
    assert record["argv"][2] == word


def test_an_artifact_means_its_run(run, empty, monkeypatch, capsys):
    monkeypatch.setattr("posttrain.reporting.cli.verifier", lambda plugins: verify)
    assert command("publish", str(run / "plan.json"), "--root", str(empty))[0] == 1
    assert "plan.json is a file. Write the folder of a run" in capsys.readouterr().err
    assert command("publish", str(run / "artifact.json"), "--root", str(empty))[0] == 0


def test_another_plan_under_the_same_name_is_refused(runs, empty):
    made = publishing.publication(runs.solo, verify)
    publishing.put(empty, made)
    plan = "docs/post-training/manifests/arithmetic-smoke-seeds42-44.json"
    value = read(empty / plan)
    value["plan"]["alpha"] = 0.01
    with pytest.raises(Refused, match="holds another plan under the same name"):
        publishing.put(empty, publishing.Publication({**made.files, plan: json.dumps(value).encode()}, made.artifact))


def test_a_place_behind_a_symbolic_link_is_refused(runs, empty, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (empty / "docs/post-training/2609.04565-sparse-opd").symlink_to(outside)
    with pytest.raises(ValueError, match="symbolic link"):
        publishing.put(empty, publishing.publication(runs.solo, verify))
    assert list(outside.iterdir()) == []


def test_an_artifact_that_wants_to_leave_docs_is_refused(run, empty):
    edit_json(run / "artifact.json", lambda value: value["provenance"].update(artifact_path="docs/../../evil.json"))
    refused(run, "is not verified: V0")


def test_publishing_one_run_does_not_make_the_next_one_dirty(run, runs, empty):
    for folder in (runs.solo, run):
        publishing.put(empty, publishing.publication(folder, verify))
    shutil.rmtree(run)
    assert len(list((empty / "docs/post-training").glob("*/metrics/*.json"))) == 4


def test_data_of_other_options_have_a_plan_and_a_place_of_their_own(empty, tmp_path, monkeypatch):
    """Two runs on `decisions` with other options would otherwise want one plan."""
    monkeypatch.setattr("posttrain.reporting.cli.verifier", lambda plugins: verify)
    places = []
    for known in (6, 7):
        words = ("train", "grpo", *SMALL, "seeds=1-3", "group_size=4", f"dataset.known={known}")
        run = make(tmp_path / f"run{known}", *words)
        assert command("publish", str(run), "--root", str(empty))[0] == 0
        places.append(read(run / "artifact.json")["provenance"]["artifact_path"])
    assert len(set(places)) == 2
    assert all((empty / place).is_file() for place in places)


def test_comparisons_with_other_rivals_have_places_of_their_own():
    """Their artifacts would otherwise overwrite each other in the folder of the method they share."""
    config = settings.load("grpo", overrides=["seeds=1-6"])
    other = {name: settings.load(name, path=settings.config_path("grpo", "l1", None), overrides=["seeds=1-6"])
             for name in ("rloo", "dr-grpo")}  # fmt: skip
    plans = [experiment.versus([config, rival], ()) for rival in other.values()]
    assert len({records.artifact_path(plan, plan.main) for plan in plans}) == 2
    assert all(plan.name in records.artifact_path(plan, arm) for plan in plans for arm in plan.arms)


def test_where_a_file_lies_is_no_part_of_the_name(tmp_path, monkeypatch):
    """A plan's name is the same on every machine, whatever folder the data lie in."""
    names = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "sums.jsonl"
        path.write_text("".join(f'{{"prompt": "{i}+1=", "answer": "{i + 1}"}}\n' for i in range(8)))
        words = ["policy.model=tiny:student", f"dataset={path}"]
        names.append(experiment.solo(settings.load("grpo", tier="l2", overrides=words), None, ()).name)
    assert names == ["files-sums-seeds0-0"] * 2


@pytest.mark.parametrize("place", ["docs/bench/x/metrics/../../../../evil.json", "../evil.json"])
def test_nothing_is_written_outside_the_scratch_copy_before_it_is_refused(place, tmp_path, monkeypatch):
    scratch = tmp_path / "a" / "b" / "c"
    scratch.mkdir(parents=True)
    monkeypatch.setattr(publishing.tempfile, "TemporaryDirectory", lambda: nullcontext(str(scratch)))
    with pytest.raises(Refused, match="leads out of"):
        publishing._verify_in_place({place: b"{}"}, verify)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_bench_artifact_has_its_place_below_docs_bench():
    path = next(REPOSITORY.glob("docs/bench/sequence/metrics/*.json"))
    value = read(path)
    assert violations(value, "bench-v1") == []
    for place in ("docs/bench/x/metrics/../../../evil.json", "docs/bench/../evil.json", "docs/bench/.x/metrics/e.json"):
        value["provenance"]["artifact_path"] = place
        assert violations(value, "bench-v1") != [], place


def test_what_verifies_here_and_not_in_its_place_is_refused(run, monkeypatch):
    seen = []

    def checked(path):
        seen.append(path)
        return verify(path) if "/metrics/" not in str(path) else verify(path.parent)

    with pytest.raises(Refused, match="is not verified"):
        publishing.publication(run, checked)
    assert any("/metrics/" in str(path) for path in seen)


def test_two_arms_that_want_one_place_are_refused(run):
    arm = next(run.glob("arms/*"))
    shutil.copytree(arm, arm.with_name("again"))
    edit_execution(arm.with_name("again"), lambda record: record["argv"].append("other=1"))
    with pytest.raises(Refused, match="two arms want the place"):
        publishing.publication(run, verify)
