"""The three recorded artifacts: every field of `comparison` again, and what `verify` says of them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from bench_shared import HISTORICAL

from posttrain.artifacts import bench_statistics
from posttrain.artifacts.bench_verify import BENCH_HISTORICAL
from posttrain.artifacts.digests import file_digest
from posttrain.artifacts.statistics import holm, sign_flip
from posttrain.artifacts.verify import verify
from posttrain.bench.tracks import semantic_pushforward_classification, sequence

RECORDS = {path.stem: json.loads(path.read_text()) for path in HISTORICAL}
NAMES = sorted(RECORDS)
# track: exact count of 256, Monte Carlo count of 20000, t interval, d_z, g_z, mde_80 (evidence.md 3.7)
ORACLES = {
    "semantic-pushforward-classification": (256, 20000, (-0.0029557775, 0.0029557775), 0.0, 0.0, 0.0040871959),
    "multiscale-diffusion-pde": (2, 162, (0.0515067526, 0.0650344383), 7.2023, 6.3971, 0.0093529201),
    "sequence": (160, 12562, (-0.0306513325, 0.0453683824), 0.1618, None, 0.0525593465),
}


def arms(record: dict[str, Any]) -> tuple[list[float], list[float]]:
    return record["baseline"]["full"]["per_seed"], record["idea"]["per_seed"]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all numbers in a document."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, inner in items for found in leaves(inner, (*path, key))]
    return [path]


def changed(document: Any, path: tuple[Any, ...], by: float = 0.25) -> Any:
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] += 1 if isinstance(place[path[-1]], int) else by
    return copy


def test_the_three_records_are_there() -> None:
    assert sorted(ORACLES) == NAMES
    assert {file_digest(path) for path in HISTORICAL} == BENCH_HISTORICAL


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_the_comparison_is_recomputed_with_difference_zero(name: str) -> None:
    record = RECORDS[name]
    found = bench_statistics.recorded_comparison(*arms(record), record["metric_direction"])
    assert list(found) == list(record["comparison"])
    assert found == record["comparison"]


@pytest.mark.parametrize("name", NAMES)
def test_means_and_deviations_of_both_arms_are_recomputed_with_difference_zero(name: str) -> None:
    record = RECORDS[name]
    for values, found in zip(arms(record), (record["baseline"]["full"], record["idea"]), strict=True):
        assert bench_statistics.summary(values) == {key: found[key] for key in ("mean", "std", "per_seed", "n")}


@pytest.mark.parametrize("name", NAMES)
def test_new_statistics_of_the_records_are_those_worked_out_by_hand(name: str) -> None:
    record = RECORDS[name]
    count, draws, ends, dz, gz, mde = ORACLES[name]
    differences = record["comparison"]["per_seed_diffs"]
    assert bench_statistics.recorded_p(differences)[1] == draws
    assert (sign_flip(differences).count, sign_flip(differences).total) == (count, 256)
    c = bench_statistics.judge(*arms(record), direction=record["metric_direction"])
    assert c.ci95 == pytest.approx(ends, abs=5e-11)
    assert c.effect is not None
    assert c.effect.dz == pytest.approx(dz, abs=5e-5)
    assert gz is None or c.effect.g_z == pytest.approx(gz, abs=5e-5)
    assert c.mde_80 == pytest.approx(mde, abs=5e-11)
    assert c.verdict == record["comparison"]["verdict"]
    assert c.system_worked is record["comparison"]["system_worked"]


def test_holm_over_the_three_records() -> None:
    p = [ORACLES[name][0] / 256 for name in ("semantic-pushforward-classification", "multiscale-diffusion-pde")]
    assert holm([*p, 160 / 256]) == (1.0, 0.0234375, 1.0)


QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
QUANTILES |= {12: 2.201, 16: 2.131, 20: 2.093, 30: 2.045}


@pytest.mark.parametrize(("n", "quantile"), QUANTILES.items())
def test_the_half_width_uses_the_three_decimal_quantile(n: int, quantile: float) -> None:
    """Differences 0, 1, 0, 1, ...: sd1 = sqrt(n p (1-p) / (n-1)) with p the share of ones."""
    differences = [float(i % 2) for i in range(n)]
    ones = sum(differences)
    sd = math.sqrt((ones - ones * ones / n) / (n - 1))
    assert bench_statistics.half_width(differences) == pytest.approx(quantile * sd / math.sqrt(n), rel=1e-14)


def test_one_seed_has_no_half_width_and_a_mean_of_zero_no_percentage() -> None:
    assert bench_statistics.half_width([1.0]) is None
    assert bench_statistics.relative_percent(0.5, [1.0, -1.0]) is None


def test_the_best_cell_is_the_first_of_equals_in_either_direction() -> None:
    assert bench_statistics.best_cell([3.0, 1.0, 1.0], "lower is better") == 1
    assert bench_statistics.best_cell([1.0, 3.0, 3.0], "higher is better") == 1


def test_the_recorded_analytic_checks_are_reproduced_exactly() -> None:
    assert sequence.math_check()["rows"] == RECORDS["sequence"]["mechanism_signature"]["math_check"]["rows"]
    recorded = RECORDS["semantic-pushforward-classification"]["mechanism_signature"]["math_check"]
    found = semantic_pushforward_classification.math_check()
    assert {key: found[key] for key in recorded} == recorded


@pytest.mark.parametrize("path", HISTORICAL, ids=lambda path: path.stem)
def test_a_record_is_historical_to_verify(path: Path) -> None:
    report = verify(path)
    assert report.exit_code == 3
    assert "historical" in report.unverifiable[0]
    assert not [check for check in report.checks if check.status in ("failed", "warned")]


@pytest.mark.parametrize("name", NAMES)
def test_any_changed_number_of_a_record_fails(name: str, tmp_path: Path) -> None:
    places = leaves(RECORDS[name])
    assert len(places) > 60
    for place in places:
        (tmp_path / "changed.json").write_text(json.dumps(changed(RECORDS[name], place), indent=2) + "\n")
        assert verify(tmp_path / "changed.json").exit_code == 1, place


def test_line_numbers_before_every_line_are_refused(tmp_path: Path) -> None:
    lines = HISTORICAL[2].read_text().splitlines()
    received = "\n".join(f"{i:>3}{line}" for i, line in enumerate(lines, start=1))
    (tmp_path / "as-received.txt").write_text(received)
    report = verify(tmp_path / "as-received.txt")
    assert report.exit_code == 1
    assert "not one JSON value" in report.checks[0].message
