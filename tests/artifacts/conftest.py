"""What the tests of artifacts share."""

import shutil
from pathlib import Path

import pytest
from complete_run import CompleteRun, complete_run


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete run and its package, made once and never changed."""
    folder = tmp_path_factory.mktemp("template")
    complete_run(folder)
    return folder


@pytest.fixture
def complete(template: Path, tmp_path: Path) -> CompleteRun:
    """A run folder that verifies, with one rival arm in it."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return CompleteRun(tmp_path / "runs" / "one", tmp_path / "posttrain")
