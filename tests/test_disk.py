"""A disk that is full ends a run with the folder, what is kept and what to do, whichever library found it."""

import errno
from pathlib import Path

import pytest
from safetensors import SafetensorError

from posttrain.artifacts import documents
from posttrain.cli import main
from posttrain.evaluation import conduct, saving
from posttrain.evaluation.disk import disk_is_full

FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    RuntimeError("rank 1 failed: OSError: [Errno 28] No space left on device"),
]


@pytest.mark.parametrize("error", FULL, ids=str)
@pytest.mark.parametrize("place", ["plan", "checkpoint", "artifact"])
def test_a_full_disk_is_told_with_the_folder_and_what_to_do_and_loses_nothing(
    tmp_path, monkeypatch, capsys, error, place
):
    monkeypatch.chdir(tmp_path)

    def fail(*arguments, **options):
        raise error

    def fail_at_artifact(path, data):
        if path.name == "artifact.json":
            raise error
        write(path, data)

    write = documents.write_atomically
    with monkeypatch.context() as broken:
        if place == "plan":
            broken.setattr(conduct, "write_sealed", fail)
        elif place == "checkpoint":
            broken.setattr(saving, "finish", fail)
        else:
            broken.setattr(documents, "write_atomically", fail_at_artifact)
        assert main(["train", "grpo", "steps=2", "seeds=1", "--output", "run"]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"posttrain: the disk is full: {Path('run').absolute()} cannot be written (")
    assert said.endswith("and go on with the same command and --resume auto.")
    assert main(["train", "grpo", "steps=2", "seeds=1", "--output", "run", "--resume", "auto"]) == 0
    assert main(["verify", "run"]) == 0


def test_other_errors_are_told_as_they_are_and_causes_count():
    assert not disk_is_full(OSError(errno.EIO, "Input/output error"))
    caused = RuntimeError("saving failed")
    caused.__cause__ = FULL[0]
    assert disk_is_full(caused)
