"""A fresh artifact verifies, and no number of it can be changed unnoticed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bench_shared import PLANTED, REPOSITORY
from test_bench_historical import changed, leaves

from posttrain.artifacts.digests import sealed
from posttrain.artifacts.documents import dumps
from posttrain.artifacts.schema import violations
from posttrain.artifacts.verify import verify
from posttrain.bench.conduct import conduct
from posttrain.bench.options import load
from posttrain.bench.planning import regenerate

SMALL = ["data.train_examples=32", "data.test_examples=8", "settings.epochs=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "run"
    conduct(load("multiscale_diffusion_pde", overrides=SMALL), folder)
    return folder


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "artifact.json").read_text())


def failed(folder: Path) -> list[str]:
    report = verify(folder, fingerprints=regenerate, package_root=REPOSITORY / "posttrain")
    return [check.name for check in report.checks if check.status == "failed"]


def test_a_fresh_artifact_passes_and_its_data_are_drawn_again(run: Path) -> None:
    report = verify(run, fingerprints=regenerate, package_root=REPOSITORY / "posttrain")
    assert report.exit_code == 0, [check for check in report.checks if check.status == "failed"]
    assert {"plan", "data set", "execution", "output files"} <= {c.name for c in report.checks if c.status == "passed"}


def test_it_holds_every_field_of_the_record_and_keeps_the_schema(run: Path) -> None:
    fresh = document(run)
    record = json.loads((REPOSITORY / "docs/bench/historical/multiscale-diffusion-pde.json").read_text())

    def keys(value: Any) -> Any:
        return {key: keys(inner) for key, inner in value.items()} if isinstance(value, dict) else None

    def missing(old: Any, new: Any, at: str = "") -> list[str]:
        if old is None:
            return []
        lacking = [f"{at}/{key}" for key in old if key not in new]
        return lacking + [m for key in old if key in new for m in missing(old[key], new[key], f"{at}/{key}")]

    # The track ships with posttrain, so it has no custom_track.
    assert missing(keys(record), keys(fresh)) == ["/mechanism_signature/custom_track"]
    assert list(fresh)[: len(record)] == list(record)
    assert violations(fresh, "bench-v1") == []


def test_any_changed_number_of_a_fresh_artifact_fails(copy: Path) -> None:
    fresh = document(copy)
    places = leaves(fresh)
    assert len(places) > 120
    for place in places:
        (copy / "artifact.json").write_bytes(dumps(changed(fresh, place)))
        assert verify(copy).exit_code == 1, place


@pytest.mark.parametrize(
    "place",
    [
        ("baseline", "full", "per_seed", 2),
        ("baseline", "full", "std_ddof1"),
        ("baseline", "sweep", 0, "mean"),
        ("idea", "per_seed", 0),
        ("idea", "mean"),
        ("comparison", "p_count"),
        ("comparison", "mde_80"),
        ("comparison", "mde"),
        ("comparison", "ci95", 0),
        ("comparison", "effect", "dz"),
        ("mechanism_signature", "mechanism_signature", "mean_detail_to_pixel_ratio"),
        ("mechanism_signature", "mechanism_signature", "claims", 0, "threshold"),
        ("mechanism_signature", "math_check", "checks", 0, "error"),
        ("protocol", "alpha"),
        ("protocol", "budget", "epochs"),
    ],
)
def test_a_derived_number_is_caught_by_recomputation_even_if_every_digest_is_made_anew(place: Any, copy: Path) -> None:
    (copy / "artifact.json").write_bytes(dumps(sealed(changed(document(copy), place))))
    names = set(failed(copy))
    assert names & {"arms", "sweeps", "comparison", "signature", "analytic checks", "protocol", "plan"}, names


@pytest.mark.parametrize(
    ("key", "value"),
    [("verdict", "idea better (significant)"), ("system_worked", True), ("degenerate", "zero_variance")],
)
def test_a_verdict_that_its_numbers_do_not_give_fails(key: str, value: Any, copy: Path) -> None:
    fresh = document(copy)
    assert fresh["comparison"][key] != value
    fresh["comparison"][key] = value
    (copy / "artifact.json").write_bytes(dumps(sealed(fresh)))
    assert "comparison" in failed(copy)


def test_a_turned_outcome_or_confirmed_flag_fails(copy: Path) -> None:
    fresh = document(copy)
    inner = fresh["mechanism_signature"]["mechanism_signature"]
    for edit in (
        {"confirmed": not inner["confirmed"]},
        {"claims": [{**inner["claims"][0], "outcome": "inconclusive"}]},
    ):
        fresh["mechanism_signature"]["mechanism_signature"] = {**inner, **edit}
        (copy / "artifact.json").write_bytes(dumps(sealed(fresh)))
        assert "signature" in failed(copy)


def test_seeds_that_were_moved_into_tuning_fail(copy: Path) -> None:
    fresh = document(copy)
    fresh["protocol"]["sweep_seeds"] = [0, 101, 102, 103]
    (copy / "artifact.json").write_bytes(dumps(sealed(fresh)))
    assert {"protocol", "plan"} <= set(failed(copy))


def test_a_smaller_sweep_of_the_baseline_fails(copy: Path) -> None:
    fresh = document(copy)
    fresh["baseline"]["sweep"] = fresh["baseline"]["sweep"][1:]
    (copy / "artifact.json").write_bytes(dumps(sealed(fresh)))
    assert "protocol" in failed(copy)


def test_an_artifact_without_provenance_is_not_taken_for_a_record(copy: Path) -> None:
    fresh = document(copy)
    for key in ("provenance", "protocol", "manifest_ref"):
        del fresh[key]
    (copy / "artifact.json").write_bytes(dumps(fresh))
    assert "provenance" in failed(copy)


def test_a_changed_cell_file_fails_and_an_incomplete_run_is_not_verified(copy: Path) -> None:
    cell = next((copy / "cells").iterdir())
    cell.write_bytes(cell.read_bytes() + b" ")
    assert failed(copy) == ["output files"]
    (copy / "execution.json").unlink()
    assert verify(copy).exit_code == 3


def test_other_data_fail(copy: Path) -> None:
    report = verify(copy, fingerprints=lambda dataset: "sha256:" + "0" * 64)
    assert [check.name for check in report.checks if check.status == "failed"] == ["data set"]


def test_a_track_from_outside_carries_its_file_and_digest(tmp_path: Path) -> None:
    found = conduct(load(PLANTED), tmp_path / "run").artifact
    custom = found["mechanism_signature"]["custom_track"]
    assert (custom["name"], custom["file"], custom["domain"]) == ("planted", "bench_planted.py", "tests")
    assert custom["sha256"].startswith("sha256:")
    assert str(tmp_path) not in (tmp_path / "run" / "artifact.json").read_text()
    assert verify(tmp_path / "run").exit_code == 0
