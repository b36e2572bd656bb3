"""Seeds that run side by side come together to the same bytes, or not at all."""

import shutil

import pytest
from small_runs import CONTROLLED, as_clean, command, edit_json, snapshot, verify

from posttrain.artifacts import documents
from posttrain.artifacts.digests import content_digest
from posttrain.artifacts.manifest import PART
from posttrain.evaluation import parts
from posttrain.registry import ConfigError

SEEDS = (42, 43, 44)
WORDS = (*CONTROLLED, "seeds=42-44")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """One experiment whole, and its seeds one by one."""
    folder = tmp_path_factory.mktemp("pieces")
    assert command(*WORDS, "--output", str(folder / "whole"))[0] == 0
    for seed in SEEDS:
        assert command(*WORDS, "--only-seed", str(seed), "--output", str(folder / f"seed-{seed}"))[0] == 0
    return folder


def folders(pieces, seeds=SEEDS):
    return [pieces / f"seed-{seed}" for seed in seeds]


@pytest.mark.parametrize("order", [(42, 43, 44), (44, 42, 43)])
def test_merged_seeds_give_the_bytes_of_the_whole_run_in_any_order(pieces, tmp_path, order):
    words = [str(folder) for folder in folders(pieces, order)]
    assert command("merge", *words, "--output", str(tmp_path / "merged"))[0] == 0
    whole, merged = snapshot(pieces / "whole"), snapshot(tmp_path / "merged")
    assert whole.keys() == merged.keys()
    differing = [name for name in whole if whole[name] != merged[name] and not name.endswith("execution.json")]
    assert differing == []
    assert verify(tmp_path / "merged").exit_code == 0
    assert verify(tmp_path / "merged/arms/sparse-opd.dense").exit_code == 0


def test_a_study_with_probes_and_claims_merges_to_the_same_bytes(tmp_path):
    words = ("reproduce", "dpo", "dataset.train_examples=8", "dataset.validation_examples=8", "steps=2", "seeds=42-43")
    assert command(*words, "--output", str(tmp_path / "whole"))[0] == 0
    for seed in (42, 43):
        assert command(*words, "--only-seed", str(seed), "--output", str(tmp_path / f"seed-{seed}"))[0] == 0
    assert command("merge", *(str(tmp_path / f"seed-{s}") for s in (42, 43)), "--output", str(tmp_path / "m"))[0] == 0
    assert (tmp_path / "m/artifact.json").read_bytes() == (tmp_path / "whole/artifact.json").read_bytes()


def test_code_that_a_part_names_is_not_run_unasked(pieces, tmp_path, capsys):
    """R9: a part is data, which may come from anywhere."""
    marker, code, folder = tmp_path / "marker", tmp_path / "code.py", tmp_path / "seed-42"
    code.write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    shutil.copytree(pieces / "seed-42", folder)
    document = documents.read(folder / PART)
    document["part"]["plugins"] = [str(code)]
    document["part_sha256"] = content_digest(document["part"])
    (folder / PART).write_bytes(documents.dumps(document))
    assert command("merge", str(folder), "--output", str(tmp_path / "merged"))[0] == 2
    assert f"Write --plugin {code}" in capsys.readouterr().err
    assert not marker.exists()


def test_every_part_is_a_verified_run_of_its_seed(pieces):
    for folder in folders(pieces):
        report = verify(folder)
        assert report.exit_code == 0
        assert [check.name for check in report.checks if check.status == "warned"] == []
        assert next(check for check in report.checks if check.name == "part").status == "passed"


def test_a_note_of_a_part_that_was_altered_fails(pieces, tmp_path):
    shutil.copytree(pieces / "seed-42", tmp_path / "seed")
    path = tmp_path / "seed" / PART
    path.write_text(path.read_text().replace('"seed": 42', '"seed": 43'))
    assert verify(tmp_path / "seed").exit_code == 1


def test_the_merged_record_names_the_whole_command_and_its_parts(pieces, tmp_path):
    for folder in folders(pieces):
        as_clean(folder, ["posttrain", *WORDS, "--only-seed", folder.name[5:], "--output", str(folder)])
    finished = parts.merge(folders(pieces), tmp_path / "merged", verify)
    from posttrain.artifacts.documents import read

    record = read(finished.folder / "execution.json")["execution"]
    assert record["argv"] == ["posttrain", *WORDS]
    assert [file["path"] for file in record["inputs"]][::2] == [f"seed-{seed}/artifact.json" for seed in SEEDS]
    assert record["code"]["git_commit"] == "c" * 40


def refused(folders, reason, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        parts.merge(folders, tmp_path / "merged", verify)
    assert not (tmp_path / "merged").exists()


def test_missing_and_double_seeds_are_named(pieces, tmp_path):
    refused(folders(pieces, (42, 44)), r"the seeds \[43\] are missing. .* --only-seed 43", tmp_path)
    refused(folders(pieces, (42, 43, 44, 44)), r"found the seeds \[42, 43, 44, 44\], expected each once", tmp_path)


def test_a_folder_that_is_no_part_is_refused(pieces, tmp_path):
    refused([pieces / "whole"], "has no part.json", tmp_path)


def test_a_part_of_another_experiment_is_refused(pieces, tmp_path):
    other = tmp_path / "other"
    words = ["steps=2" if word == "steps=3" else word for word in WORDS]
    assert command(*words, "--only-seed", "43", "--output", str(other))[0] == 0
    refused([*folders(pieces, (42, 44)), other], "is a part of another experiment", tmp_path)


@pytest.mark.parametrize("name", ["artifact.json", "arms/sparse-opd.dense/artifact.json", "part.json", "metrics.jsonl"])
def test_a_damaged_part_is_refused(pieces, tmp_path, name):
    copy = tmp_path / "copy"
    shutil.copytree(pieces / "seed-43", copy)
    if name.endswith(".json"):
        edit_json(
            copy / name, lambda value: value.update(seeds=[1]) if "seeds" in value else value["part"].update(seed=1)
        )
    else:
        (copy / name).write_bytes((copy / name).read_bytes() + b"{}\n")
    refused([*folders(pieces, (42, 44)), copy], "is not verified|does not have the digest", tmp_path)


def test_parts_of_other_machines_are_refused(pieces, tmp_path):
    from small_runs import edit_execution

    copy = tmp_path / "copy"
    shutil.copytree(pieces / "seed-43", copy)
    edit_execution(copy, lambda record: record["hardware"].update(torch_threads=7))
    refused([*folders(pieces, (42, 44)), copy], "another environment class", tmp_path)


def test_a_seed_outside_the_plan_is_refused(capsys):
    assert command(*WORDS, "--only-seed", "7")[0] == 2
    assert "expected one of the plan's seeds 42, 43, 44" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/b", "", "."])
def test_an_arm_whose_name_leads_out_of_the_folder_is_refused(pieces, tmp_path, name):
    document = documents.read(folders(pieces)[0] / "part.json")
    document["part"]["experiment"]["arms"][-1]["name"] = name
    document["part_sha256"] = content_digest(document["part"])
    folder = tmp_path / "forged"
    folder.mkdir()
    (folder / "part.json").write_bytes(documents.dumps(document))
    with pytest.raises(ConfigError, match="names an arm"):
        parts.merge([folder], tmp_path / "out", verify)
    (folder / "part.json").write_bytes(b"[]")
    with pytest.raises(ConfigError, match="does not have the digest"):
        parts.merge([folder], tmp_path / "out", verify)
