"""`verify --rerun`: a number that was made up is found by training again, however well its digests fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_shared import HISTORICAL, PLANTED

from posttrain.artifacts.verify import verify
from posttrain.bench import rerun as rerun_module
from posttrain.bench.conduct import conduct
from posttrain.bench.options import load
from posttrain.bench.rerun import handles, rerun
from posttrain.cli import main

SMALL = [
    "data.train_examples=32",
    "data.test_examples=8",
    "settings.epochs=1",
    "evaluation_seeds=0-5",
    "tuning_seeds=100",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerun") / "run"
    conduct(load("multiscale_diffusion_pde", overrides=SMALL), folder)
    return folder


def again(path: Path, budget: float = 60.0) -> Any:
    return rerun(verify(path), path, budget)


def third(report: Any) -> dict[str, Any]:
    return {check.name: check for check in report.checks if check.level == "V3"}


def test_what_was_trained_is_trained_again_to_the_bit(run: Path) -> None:
    assert handles(run)
    assert handles(run / "artifact.json")
    report = again(run)
    checks = third(report)
    assert {name: check.status for name, check in checks.items()} == {"rerun": "passed", "signature again": "passed"}
    assert checks["rerun"].message.startswith("18 of 18 trainings give what is recorded (the same environment class")
    assert not [item for item in report.not_checked if item.startswith("V3")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sequence", ["data.train_examples=24", "data.test_examples=8", "data.length=12", "settings.epochs=1"]),
        (
            "semantic_pushforward_classification",
            ["data.train_examples=32", "data.test_examples=20", "settings.epochs=1"],
        ),
        ("bandit_policy_gradient", ["data.train_examples=8", "data.validation_examples=8", "settings.steps=2"]),
    ],
)
def test_so_it_is_on_every_other_track_and_whatever_the_number_of_processes(
    name: str, words: list[str], tmp_path: Path
) -> None:
    conduct(load(name, overrides=[*words, *SMALL[-2:]]), tmp_path / "run", jobs=2)
    checks = third(again(tmp_path / "run"))
    assert {name: check.status for name, check in checks.items()} == {"rerun": "passed", "signature again": "passed"}
    assert "(the same environment class, every bit)" in checks["rerun"].message


def test_without_a_budget_the_first_seed_of_both_arms_runs_and_the_rest_is_named(run: Path) -> None:
    report = again(run, 0.0)
    assert third(report)["rerun"].message.startswith("2 of 18")
    assert [item for item in report.not_checked if item.startswith("V3")] == [
        "V3: 16 of 18 trainings were not run again: the budget of 0 s is spent",
        "V3: the signature was not measured again: it needs every evaluation seed",
    ]


@pytest.mark.parametrize("place", ["evaluation", "tuning", "measure"])
def test_a_number_that_was_made_up_is_found(run: Path, place: str, monkeypatch) -> None:
    value = json.loads((run / "artifact.json").read_text())
    if place == "evaluation":
        value["idea"]["per_seed"][3] *= 1 + 1e-15
    elif place == "tuning":
        value["protocol"]["idea_sweep"][2]["per_seed"][0] += 1e-9
    else:
        value["mechanism_signature"]["mechanism_signature"]["claims"][0]["measured"]["value"] += 1e-9
    artifact, _ = rerun_module.read_document(run / "artifact.json", "bench-v1", "artifact")
    assert artifact is not None
    evidence = rerun_module.gather(rerun_module.as_artifact(artifact))
    made_up = replace(evidence, artifact=replace(evidence.artifact, value={**evidence.artifact.value, **value}))
    monkeypatch.setattr(rerun_module, "gather", lambda artifact: made_up)
    checks = third(again(run))
    name = "signature again" if place == "measure" else "rerun"
    assert checks[name].status == "failed"
    assert "when run again" in checks[name].message


def test_on_another_kind_of_machine_small_differences_warn_and_large_ones_fail(run: Path, monkeypatch) -> None:
    real = rerun_module.perform
    monkeypatch.setattr(rerun_module, "environment_class", lambda *given: {"cpu": len(given)})
    for factor, status in ((1.0, "passed"), (1 + 1e-6, "warned"), (9.0, "failed")):
        monkeypatch.setattr(
            rerun_module, "perform", lambda b, u, f=factor: replace(real(b, u), metric=real(b, u).metric * f)
        )
        check = third(again(run, 0.0))["rerun"]
        assert check.status == status
        assert status != "warned" or "standard deviations over seeds apart" in check.message


def test_what_cannot_be_run_here_is_named_and_not_run(tmp_path: Path, monkeypatch) -> None:
    conduct(load(PLANTED, overrides=["evaluation_seeds=0-5", "tuning_seeds=100"]), tmp_path / "custom")
    (said,) = [item for item in again(tmp_path / "custom").not_checked if item.startswith("V3")]
    assert said.startswith("V3: custom track: bench_planted.py is code from outside. Where you have read and trust it")
    assert "V3: no plan was recorded, so nothing says what to run" in again(HISTORICAL[0]).not_checked


@pytest.mark.parametrize("kind", ["track", "idea"])
def test_code_from_outside_runs_again_where_the_caller_names_a_file_with_its_bytes(kind, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    if kind == "track":
        code.write_bytes(Path(PLANTED).read_bytes())
        made = load(str(code), overrides=["evaluation_seeds=0-5", "tuning_seeds=100"])
    else:
        code.write_text(
            "from posttrain.bench.track import Idea\n\n\n"
            "def order(base, data, settings):\n    return base.flip(0)\n\n\n"
            'idea = Idea(name="flipped", order=order)\n'
        )
        made = load("multiscale_diffusion_pde", str(code), SMALL)
    conduct(made, tmp_path / "run")

    def judged(*plugins: str) -> Any:
        return rerun(verify(tmp_path / "run"), tmp_path / "run", 60.0, plugins)

    assert third(judged(str(code)))["rerun"].status == "passed"
    code.write_text(code.read_text() + "\n")
    assert any("has other bytes than the mine.py that ran" in item for item in judged(str(code)).not_checked)
    assert any("write --plugin FILE" in item for item in judged().not_checked)


def test_a_track_that_has_changed_is_named(run: Path, monkeypatch) -> None:
    real = rerun_module.tracks.get("multiscale_diffusion_pde")
    monkeypatch.setattr(rerun_module.tracks, "get", lambda name: replace(real, sweep=({"lr": 0.5},) * 3))
    (said,) = [item for item in again(run).not_checked if item.startswith("V3")]
    assert "its plan differs in common_config" in said


def test_the_command_line_reruns_a_bench_artifact(run: Path, capsys) -> None:
    assert main(["verify", str(run), "--rerun", "--budget", "0"]) == 0
    assert "2 of 18 trainings give what is recorded" in capsys.readouterr().out
