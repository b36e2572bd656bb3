"""What the tests of bench share."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_shared import PLANTED

from posttrain import tiny
from posttrain.bench.options import Bench, load
from posttrain.bench.track import Idea


@pytest.fixture
def planted() -> Any:
    """`planted(effect=1.0, ...)`: a bench on the planted track whose idea has these settings."""

    def build(overrides: Any = (), **settings: Any) -> Bench:
        bench = load(PLANTED, overrides=overrides)
        return replace(bench, idea=Idea(name="planted", settings=settings or {}), own_idea=False)

    return build


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's tiny models lie."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def hardly_trained(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tiny:` models after an update or two: laws do not depend on how long one trains."""
    monkeypatch.setenv("POSTTRAIN_CACHE", str(cache))
    for name, updates in (("teacher", 2), ("student", 1)):
        monkeypatch.setitem(tiny.RECIPES, name, tiny.Recipe(updates=updates, examples=64, batch_size=8))
