"""What the tests of bench share."""

from dataclasses import replace
from typing import Any

import pytest
from bench_shared import PLANTED

from posttrain.bench.options import Bench, load
from posttrain.bench.track import Idea


@pytest.fixture
def planted() -> Any:
    """`planted(effect=1.0, ...)`: a bench on the planted track whose idea has these settings."""

    def build(overrides: Any = (), **settings: Any) -> Bench:
        bench = load(PLANTED, overrides=overrides)
        return replace(bench, idea=Idea(name="planted", settings=settings or {}), own_idea=False)

    return build
