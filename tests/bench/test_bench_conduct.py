"""Runs: the same bytes whatever happens on the way, and no number without its evidence."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_shared import PLANTED, REPOSITORY

from posttrain.artifacts.verify import verify
from posttrain.bench import conduct as conduct_module
from posttrain.bench import display
from posttrain.bench.conduct import conduct
from posttrain.bench.options import load
from posttrain.cli import main
from posttrain.evaluation.study import Claim
from posttrain.registry import ConfigError, digests

PACKAGE = REPOSITORY / "posttrain"


@pytest.fixture(autouse=True)
def same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package counts as unchanged, even where someone edits it while the tests run."""
    monkeypatch.setattr(conduct_module, "code_digest", lambda root: "sha256:" + "0" * 64)


def artifact(folder: Path) -> bytes:
    return (folder / "artifact.json").read_bytes()


def test_two_runs_are_the_same_bytes_and_so_are_two_processes(tmp_path: Path) -> None:
    for name, jobs in (("a", 1), ("b", 1), ("c", 2)):
        conduct(load(PLANTED), tmp_path / name, jobs=jobs)
    assert artifact(tmp_path / "a") == artifact(tmp_path / "b") == artifact(tmp_path / "c")
    cells = [sorted((tmp_path / name / "cells").iterdir()) for name in ("a", "c")]
    assert [p.name for p in cells[0]] == [p.name for p in cells[1]]
    assert all(p.read_bytes() == q.read_bytes() for p, q in zip(*cells, strict=True))


@pytest.mark.parametrize("kept", [0, 5])
def test_claims_pair_seeds_whatever_order_trainings_end_in(
    planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Other processes end in any order, and a run that goes on reads some results before it makes the others."""

    def values(results: Any) -> dict[str, list[float]]:
        return {
            "level": [
                a + b
                for a, b in zip(results.measure("idea", "level"), results.measure("baseline", "level"), strict=True)
            ]
        }

    claim = Claim("L", "a claim", "a prediction", "sum of levels", "interval above threshold", 0.0, values)

    def bench() -> Any:
        made = planted(effect=1.0, salt=1)
        return replace(made, idea=replace(made.idea, claims=(claim,)))

    whole = conduct(bench(), tmp_path / "in-order").artifact
    real = conduct_module._Cells._perform
    monkeypatch.setattr(
        conduct_module._Cells,
        "_perform",
        lambda self, units: iter(random.Random(0).sample(found := list(real(self, units)), len(found))),
    )
    if kept:
        conduct(bench(), tmp_path / "run")
        for name in ("execution.json", "artifact.json"):
            (tmp_path / "run" / name).unlink()
        for path in sorted((tmp_path / "run" / "cells").glob("*-seed-[0-7].json"))[kept::2]:
            path.unlink()
    assert conduct(bench(), tmp_path / "run").artifact == whole


def test_a_run_stopped_after_any_number_of_cells_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conduct(load(PLANTED), tmp_path / "whole")
    total = len(list((tmp_path / "whole" / "cells").iterdir()))
    assert total == 2 * 3 * 4 + 2 * 8
    real = conduct_module.perform
    for stop in range(0, total, 3):
        done: list[Any] = []

        def stopping(bench: Any, unit: Any, done: list[Any] = done, stop: int = stop) -> Any:
            if len(done) == stop:
                raise KeyboardInterrupt
            done.append(unit)
            return real(bench, unit)

        folder = tmp_path / f"stopped-{stop}"
        monkeypatch.setattr(conduct_module, "perform", stopping)
        with pytest.raises(KeyboardInterrupt):
            conduct(load(PLANTED), folder)
        assert not (folder / "execution.json").exists()
        again: list[Any] = []
        monkeypatch.setattr(conduct_module, "perform", lambda b, u, again=again: (again.append(u), real(b, u))[1])
        conduct(load(PLANTED), folder)
        assert artifact(folder) == artifact(tmp_path / "whole")
        assert not {unit.name for unit in again} & {unit.name for unit in done}, "a finished cell ran twice"


@pytest.mark.slow
def test_a_killed_process_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """A real SIGKILL, on a track whose cells take a while."""
    slow = tmp_path / "slow.py"
    text = Path(PLANTED).read_text().replace("import math\n", "import math\nimport time\n")
    slow.write_text(
        text.replace("        own = cell.settings\n", "        own = cell.settings\n        time.sleep(0.02)\n")
    )
    command = [sys.executable, "-m", "posttrain", "bench", "run", str(slow), "--output"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [*command, str(tmp_path / "killed")],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    cells = tmp_path / "killed" / "cells"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (not cells.is_dir() or len(list(cells.glob("[!.]*.json"))) < 5):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    begun = len(list(cells.glob("[!.]*.json")))
    assert 5 <= begun < 40
    for name in ("killed", "whole"):
        done = subprocess.run([*command, str(tmp_path / name)], env=environment, cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    assert artifact(tmp_path / "killed") == artifact(tmp_path / "whole")
    record = json.loads((tmp_path / "killed" / "execution.json").read_text())["execution"]
    assert record["resumed_from"] == ["cells"]
    assert verify(tmp_path / "killed", package_root=PACKAGE).exit_code == 0


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_cell_is_run_again_and_counted(tmp_path: Path, damage: str) -> None:
    conduct(load(PLANTED), tmp_path / "run")
    whole = artifact(tmp_path / "run")
    (tmp_path / "run" / "execution.json").unlink()
    path = tmp_path / "run" / "cells" / "idea-1-seed-3.json"
    data = path.read_bytes()
    other = (tmp_path / "run" / "cells" / "idea-1-seed-4.json").read_bytes()
    digit = data.index(b",", data.index(b'"metric": ')) - 1  # still a number, and another one
    flipped = data[:digit] + bytes([data[digit] ^ 1]) + data[digit + 1 :]
    path.write_bytes({"flip": flipped, "cut": data[:-20], "empty": b"", "swap": other}[damage])
    conduct(load(PLANTED), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "execution.json").read_text())["execution"]
    assert record["counters"]["cells_refused"] == 1
    assert path.read_bytes() == data
    assert artifact(tmp_path / "run") == whole


def test_cells_of_other_code_are_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conduct(load(PLANTED), tmp_path / "run")
    whole = artifact(tmp_path / "run")
    (tmp_path / "run" / "execution.json").unlink()
    monkeypatch.setattr(conduct_module, "code_digest", lambda root: "sha256:" + "1" * 64)
    conduct(load(PLANTED), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "execution.json").read_text())["execution"]
    assert record["counters"] == {"cells_read": 0, "cells_refused": 40}
    assert artifact(tmp_path / "run") == whole


def test_folders_that_are_complete_or_of_another_plan_are_refused(tmp_path: Path) -> None:
    conduct(load(PLANTED), tmp_path / "run")
    with pytest.raises(ConfigError, match="complete run"):
        conduct(load(PLANTED), tmp_path / "run")
    (tmp_path / "run" / "execution.json").unlink()
    with pytest.raises(ConfigError, match=r"what another plan began: alpha 0\.05 -> 0\.01"):
        conduct(load(PLANTED, overrides=["alpha=0.01"]), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="something else"):
        conduct(load(PLANTED), tmp_path / "other")


def test_the_plan_with_predictions_and_thresholds_is_written_before_the_first_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def looking(bench: Any, unit: Any) -> Any:
        seen.append(json.loads((tmp_path / "run" / "plan.json").read_text())["plan"]["claims"])
        raise KeyboardInterrupt

    monkeypatch.setattr(conduct_module, "perform", looking)
    with pytest.raises(KeyboardInterrupt):
        conduct(load("sequence", overrides=["data.train_examples=16"]), tmp_path / "run")
    assert [claim["id"] for claim in seen[0]] == ["S1", "S2"]
    assert all(claim["threshold"] > 0 for claim in seen[0])


def test_an_idea_that_does_nothing_is_called_identical(planted: Any, tmp_path: Path) -> None:
    found = conduct(planted(), tmp_path / "run").artifact
    assert found["comparison"]["degenerate"] == "identical"
    assert found["comparison"]["verdict"] == "no measurable effect"
    assert found["comparison"]["p_count"] == found["comparison"]["p_total"] == 256
    assert found["idea"]["per_seed"] == found["baseline"]["full"]["per_seed"]


def test_a_planted_effect_is_found_and_paired_seeds_take_the_level_out(planted: Any, tmp_path: Path) -> None:
    """Levels vary ten times as much between seeds as the effect; paired by seed it is seen all the same."""
    found = conduct(planted(["data.scale=10.0"], effect=1.0, salt=1), tmp_path / "run").artifact
    assert found["comparison"]["verdict"] == "idea better (significant)"
    assert found["comparison"]["system_worked"] is True
    assert found["comparison"]["p_value"] == 2 / 256
    assert found["comparison"]["delta_mean"] == pytest.approx(-1.0, abs=0.2)


def test_the_other_direction_turns_the_verdict_round(planted: Any, tmp_path: Path) -> None:
    found = conduct(planted(effect=-1.0, salt=1), tmp_path / "run").artifact
    assert found["comparison"]["verdict"] == "idea worse (significant)"
    assert found["comparison"]["idea_wins"] == 0


def test_a_lost_seed_is_refused_unless_its_value_was_declared(
    planted: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ArithmeticError, match=r"idea-1-seed-3.*failure_value=NUMBER"):
        conduct(planted(effect=1.0, fails=3), tmp_path / "run")
    assert not (tmp_path / "run" / "artifact.json").exists()
    found = conduct(planted(["failure_value=99"], effect=1.0, fails=3), tmp_path / "declared").artifact
    assert found["idea"]["per_seed"][3] == 99.0
    assert found["comparison"]["failed_seeds"] == [3]
    display.show(found, tmp_path / "declared" / "artifact.json")
    said = "At 1 seed (3) the metric of an arm was not finite and counts as 99.00, as declared before the run."
    assert said in capsys.readouterr().out
    assert verify(tmp_path / "declared").exit_code == 0
    stored = json.loads((tmp_path / "declared" / "cells" / "idea-1-seed-3.json").read_text())
    assert (stored["status"], stored["metric"]) == ("non_finite", None)


def test_a_seed_lost_while_tuning_is_refused_too(planted: Any, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError, match="idea-0-seed-101"):
        conduct(planted(effect=1.0, fails=101), tmp_path / "run")


def test_seeds_whose_arms_do_not_start_alike_are_no_pairs(planted: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no pairs"):
        conduct(planted(effect=1.0, unpaired=True), tmp_path / "run")


def test_five_seeds_are_too_few_and_the_family_counts(planted: Any, tmp_path: Path) -> None:
    few = conduct(planted(["evaluation_seeds=0-4"], effect=1.0), tmp_path / "few").artifact
    assert few["comparison"]["verdict"] == "insufficient seeds (min p = 0.0625)"
    assert few["comparison"]["mde_80"] is None
    family = conduct(planted(["family_size=10"], effect=1.0), tmp_path / "family").artifact
    assert family["comparison"]["verdict"].startswith("insufficient seeds")
    two = conduct(planted(["family_size=2"], effect=1.0, salt=1), tmp_path / "two").artifact
    assert two["comparison"]["p_adjusted"] == 4 / 256


def test_the_recorded_protocol_tunes_on_evaluation_seeds_and_says_so(tmp_path: Path) -> None:
    found = conduct(load(PLANTED, overrides=["protocol=recorded"]), tmp_path / "run").artifact
    assert found["protocol"]["sweep_seeds"] == [0, 1, 2, 3]
    assert "optimistic bias" in found["protocol"]["note"]
    assert found["baseline"]["sweep"][1]["per_seed"] == found["baseline"]["full"]["per_seed"][:4]
    assert verify(tmp_path / "run").exit_code == 0


def test_more_than_twenty_seeds_use_monte_carlo_signs_that_verify_can_draw_again(tmp_path: Path) -> None:
    overrides = ["evaluation_seeds=0-21", "tuning_seeds=100"]
    found = conduct(load(PLANTED, overrides=overrides), tmp_path / "run").artifact
    assert found["comparison"]["p_method"] == "mc_signflip"
    assert verify(tmp_path / "run").exit_code == 0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, None, 2.5])
def test_a_measure_is_the_same_whether_its_cell_was_trained_or_read(
    value: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON has no infinity: what a later process reads is what the first one has to go by."""
    plain = conduct_module.perform

    def performed(bench: Any, unit: Any) -> Any:
        return replace(plain(bench, unit), measures={"odd": value})

    monkeypatch.setattr(conduct_module, "perform", performed)
    claim = Claim("O", "c", "p", "m", "value at most threshold", 3.0, lambda r: {"odd": r.measure("idea", "odd")})
    bench = load(PLANTED)
    bench = replace(bench, idea=replace(bench.idea, claims=(claim,)))
    first = conduct(bench, tmp_path / "run").artifact
    for name in ("artifact.json", "execution.json"):
        (tmp_path / "run" / name).unlink()
    monkeypatch.delattr(conduct_module, "perform")
    assert conduct(bench, tmp_path / "run").artifact == first
    (found,) = first["mechanism_signature"]["mechanism_signature"]["claims"]
    assert found["outcome"] == ("confirmed" if value == 2.5 else "inconclusive")


def test_a_measure_of_a_task_of_one_s_own_that_json_cannot_hold_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = conduct_module.perform
    monkeypatch.setattr(conduct_module, "perform", lambda *given: replace(plain(*given), measures={"odd": [1.0, 2.0]}))
    with pytest.raises(ConfigError, match=r"its measure `odd` is list of 2"):
        conduct(load(PLANTED), tmp_path / "run")


def test_cells_of_another_plugin_are_trained_again(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("FACTOR = 1\n")
    conduct(load(PLANTED, plugins=[str(plugin)]), tmp_path / "run")
    count = len(list((tmp_path / "run" / "cells").iterdir()))
    for name in ("artifact.json", "execution.json"):
        (tmp_path / "run" / name).unlink()
    plugin.write_text("FACTOR = 2\n")
    conduct(load(PLANTED, plugins=[str(plugin)]), tmp_path / "run")
    counters = json.loads((tmp_path / "run" / "execution.json").read_text())["execution"]["counters"]
    assert counters == {"cells_read": 0, "cells_refused": count}


def test_a_worker_that_loaded_other_bytes_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct_module, "end_with_parent", lambda: None)
    monkeypatch.setattr(conduct_module, "_expected", {})
    request, unit = load(PLANTED).request, conduct_module.Unit("baseline", 0, 0)
    conduct_module._prepare(request, digests([PLANTED]))
    conduct_module._perform_here(unit)
    conduct_module._prepare(request, {PLANTED: "sha256:" + "0" * 64})
    with pytest.raises(ConfigError, match=r"bench_planted.py` has changed since the run began"):
        conduct_module._perform_here(unit)


def test_a_worker_that_is_killed_is_told_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        Path(PLANTED).read_text().replace("        own = cell.settings\n", "        import os\n        os._exit(9)\n")
    )
    (tmp_path / "dies.py").write_text(text.replace('name="planted"', 'name="dies"'))
    run = tmp_path / "run"
    assert main(["bench", "run", str(tmp_path / "dies.py"), "--jobs", "2", "--output", str(run)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "One of the processes was killed" in said and f"{run} is kept: the same command goes on." in said


def test_a_published_copy_verifies_without_its_cells(tmp_path: Path) -> None:
    conduct(load(PLANTED), tmp_path / "run")
    place = tmp_path / "docs" / "bench" / "planted" / "metrics" / "planted-seeds0-7.json"
    plans = tmp_path / "docs" / "bench" / "manifests"
    (plans / "planted-seeds0-7").mkdir(parents=True)
    place.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "run" / "artifact.json", place)
    shutil.copy(tmp_path / "run" / "plan.json", plans / "planted-seeds0-7.json")
    shutil.copy(tmp_path / "run" / "execution.json", plans / "planted-seeds0-7" / "planted.json")
    report = verify(place)
    assert report.exit_code == 0, [check for check in report.checks if check.status == "failed"]
    assert any(check.name == "place" and check.status == "passed" for check in report.checks)
