"""The default run of each track: baselines of the recorded order of magnitude, and a verdict, whatever it is."""

import json
from pathlib import Path

import pytest
from bench_shared import REPOSITORY

from posttrain.artifacts.verify import verify
from posttrain.bench.conduct import conduct
from posttrain.bench.options import load
from posttrain.bench.planning import regenerate
from posttrain.bench.track import tracks

RECORDED = {  # baseline means of the recorded artifacts; the fourth track has none
    "sequence": 0.5321,
    "multiscale_diffusion_pde": 0.000624,
    "semantic_pushforward_classification": 0.2784,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", tracks.names())
def test_a_default_run_has_a_baseline_of_the_recorded_order_and_verifies(name: str, tmp_path: Path) -> None:
    found = conduct(load(name), tmp_path / "run", jobs=2).artifact
    assert verify(tmp_path / "run", fingerprints=regenerate, package_root=REPOSITORY / "posttrain").exit_code == 0
    if name in RECORDED:
        assert RECORDED[name] / 2 < found["baseline"]["full"]["mean"] < RECORDED[name] * 2
    assert found["mechanism_signature"]["math_check"]["confirmed"] is True
    claims = found["mechanism_signature"]["mechanism_signature"]["claims"]
    planned = json.loads((tmp_path / "run" / "plan.json").read_text())["plan"]["claims"]
    assert [claim["threshold"] for claim in claims] == [claim["threshold"] for claim in planned]
    assert all(claim["outcome"] in ("confirmed", "refuted", "inconclusive") for claim in claims)
