"""Small real runs, made once; published suites, copied for each test that changes them."""

import shutil
from pathlib import Path

import pytest
from small_runs import Runs, datasets, make_runs, methods, publish

from posttrain.reporting import build


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Finished runs of a few steps, as from clean code; never changed."""
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def published(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a published suite and its pages; never changed."""
    root = tmp_path_factory.mktemp("published")
    publish(root, runs.solo, runs.controlled, runs.study)
    build.write(root, build.build(root, methods(), datasets()))
    return root


@pytest.fixture
def root(published: Path, tmp_path: Path) -> Path:
    """A copy of the published suite, to be damaged."""
    shutil.copytree(published, tmp_path / "suite")
    return tmp_path / "suite"


@pytest.fixture
def run(runs: Runs, tmp_path: Path) -> Path:
    """A copy of a run folder with a rival arm, to be damaged."""
    shutil.copytree(runs.controlled, tmp_path / "run")
    return tmp_path / "run"
