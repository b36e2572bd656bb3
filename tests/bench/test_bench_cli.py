"""The command line: `posttrain bench list|run|new|report`."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_shared import HISTORICAL, PLANTED, REPOSITORY

from posttrain.artifacts.bench_statistics import judge
from posttrain.artifacts.documents import read
from posttrain.bench.conduct import Unit, perform
from posttrain.bench.display import figure, sentence
from posttrain.bench.foreign import HOOKS
from posttrain.bench.options import load
from posttrain.bench.report import family
from posttrain.bench.track import Idea, tracks
from posttrain.cli import main
from posttrain.reporting import figures
from posttrain.templates import __file__ as templates


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom posttrain.cli import main\n"
        "try:\n    main(['bench', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'numpy', 'scipy', 'omegaconf', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "posttrain bench run sequence" in done.stdout


def test_list_names_the_tracks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    said = capsys.readouterr().out
    for name in tracks.names():
        assert f"{name}  (" in said
    assert "distillation_gap  (tiny_lm)" in said
    assert "not built yet" not in said


def test_run_verify_and_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path / "run")
    assert main(["bench", "run", PLANTED, "--output", folder, "evaluation_seeds=0-5"]) == 0
    said = capsys.readouterr().out
    assert "idea better (significant)" in said
    assert "exact p = 2/64" in said
    assert said.splitlines()[-1] == f"{folder}/artifact.json"
    assert main(["verify", folder]) == 0
    assert main(["bench", "report", folder]) == 0
    assert "idea better (significant)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "sequnce"], "Did you mean `sequence`"),
        (["run", "sequence", "--jobs", "0"], "--jobs"),
        (["run", "sequence", "--idea", "nowhere.py"], "there is no file nowhere.py"),
        (["run", "sequence", "tuning_seeds=0-3"], "also evaluation seeds"),
        (["run", "sequence", "--config", "nowhere.yaml"], "there is no file"),
        (["new", "idea", "No Name"], "expected lower-case words"),
        (["new", "track", "sequence"], "is a shipped track"),
        (["report", "nowhere.json"], "nowhere.json"),
    ],
)
def test_mistakes_are_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) in (1, 2)
    assert message in capsys.readouterr().err


def test_new_idea_and_track_run_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "new", "idea", "mine", "--directory", str(tmp_path)]) == 0
    assert main(["bench", "new", "track", "my-track", "--directory", str(tmp_path)]) == 0
    assert main(["bench", "new", "track", "my-track", "--directory", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    words = ["settings.epochs=1", "data.train_examples=32", "evaluation_seeds=0-5", "tuning_seeds=10"]
    track = str(tmp_path / "my_track.py")
    idea = str(tmp_path / "mine.py")
    assert main(["bench", "run", track, "--output", str(tmp_path / "a"), *words]) == 0
    assert main(["bench", "run", track, "--idea", idea, "--output", str(tmp_path / "b"), *words]) == 0
    assert main(["verify", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    found = read(tmp_path / "b" / "artifact.json")
    assert found["mechanism_signature"]["custom_idea"]["changes"] == ["loss", "strength"]
    assert found["mechanism_signature"]["custom_track"]["file"] == "my_track.py"
    small = ["data.train_examples=16", "data.test_examples=8", "data.length=10", "settings.epochs=1", *words[2:]]
    assert main(["bench", "run", "sequence", "--idea", idea, "--output", str(tmp_path / "c"), *small]) == 0


def commented_in(text: str) -> str:
    """The idea template with its further hooks."""
    lines, inside = [], False
    for line in text.splitlines():
        inside = line.startswith("# def ") or (inside and line.startswith("#"))
        lines.append(line.removeprefix("# ").removeprefix("#") if inside else line)
    hooks = "loss=loss, model=model, order=order, optimizer=optimizer,"
    return "import torch\n" + "\n".join(lines).replace(
        "loss=loss,  # model=model, order=order, optimizer=optimizer", hooks
    )


def test_every_function_of_the_templates_says_what_it_gets_and_gives_and_the_commented_ones_run(tmp_path: Path) -> None:
    assert main(["bench", "new", "idea", "mine", "--directory", str(tmp_path)]) == 0
    assert main(["bench", "new", "track", "my-track", "--directory", str(tmp_path)]) == 0
    mine, track = tmp_path / "mine.py", tmp_path / "my_track.py"
    mine.write_text(commented_in(mine.read_text()))
    for path, names in ((mine, set(HOOKS)), (track, {"data", "model", "loss", "evaluate", "absolute"})):
        tree = ast.parse(path.read_text())
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert set(functions) == names
        for name, function in functions.items():
            text = ast.get_docstring(function) or ""
            kinds = ("tensor", "Module", "Optimizer", "float", "int", "Batch")
            assert any(kind in text for kind in kinds), f"{path.name}: {name} states no type"
    words = ["settings.epochs=1", "data.train_examples=32", "evaluation_seeds=0-5", "tuning_seeds=10"]
    assert main(["bench", "run", str(track), "--idea", str(mine), "--output", str(tmp_path / "run"), *words]) == 0
    found = read(tmp_path / "run" / "artifact.json")
    assert found["mechanism_signature"]["custom_idea"]["changes"] == ["model", "loss", "order", "optimizer", "strength"]


def test_the_order_that_the_template_promises_is_the_one_that_hooks_get(tmp_path: Path) -> None:
    seen: list[Any] = []

    def order(base: Any, data: Any, settings: Any) -> Any:
        seen.append((base, data, settings))
        return base

    bench = load("sequence", overrides=["data.train_examples=24", "settings.epochs=3"])
    perform(replace(bench, idea=Idea(name="mine", order=order), own_idea=False), Unit("idea", 0, 0))
    ((base, data, settings),) = seen
    assert (str(base.dtype), tuple(base.shape)) == ("torch.int64", (3, len(data.train)))
    assert all(sorted(row.tolist()) == list(range(24)) for row in base)
    assert (data.train.inputs.shape[1:], data.train.targets.shape[1:]) == ((32, 1), (16,)), "as the template says"
    assert isinstance(settings, dict)
    template = Path(templates).with_name("bench_idea.py.txt").read_text()
    assert "int64 tensor [epochs, len(data.train)]" in template
    assert "float32 [N, 32, 1] and [N, 16]" in template


def test_a_figure_lies_in_the_run_folder_and_is_drawn_again_by_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "run", PLANTED, "--output", "run", "evaluation_seeds=0-5"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["run/figure.svg", "run/artifact.json"]
    drawn = (tmp_path / "run" / "figure.svg").read_bytes()
    assert b"a planted number" in drawn, "the axis says what is measured"
    assert main(["bench", "report", "run", "--output", "again.svg"]) == 0
    assert (tmp_path / "again.svg").read_bytes() == drawn
    assert main(["bench", "report", "run", *map(str, HISTORICAL)]) == 0
    (family,) = (tmp_path / "runs").glob("bench-report-*.svg")
    assert capsys.readouterr().out.splitlines()[-1] == str(family.relative_to(tmp_path))
    assert b"4 sequence" in family.read_bytes()


def test_without_matplotlib_a_run_is_complete_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "available", lambda: None)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "run", PLANTED, "--output", "run", "evaluation_seeds=0-5"]) == 0
    assert "note: no figure: figures need matplotlib: pip install 'posttrain[docs]'" in capsys.readouterr().out
    assert not (tmp_path / "run" / "figure.svg").exists()
    assert main(["verify", "run"]) == 0
    assert main(["bench", "report", "run"]) == 0
    assert "pip install 'posttrain[docs]'" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_verify_passes_over_what_only_lies_beside_artifacts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "run", PLANTED, "--output", "run", "evaluation_seeds=0-5"]) == 0
    for name in ("run-report.html", "bench-report.svg", "part.json", "notes.jsonl"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "compared").mkdir()
    (tmp_path / "compared" / "comparison.json").write_text("{}")
    capsys.readouterr()
    assert main(["verify", *sorted(path.name for path in tmp_path.iterdir())]) == 0
    said = capsys.readouterr()
    assert said.err.count("skipped ") == 5
    assert "skipped run-report.html: a report\n" in said.err
    assert "verified at V0, V1, V2" in said.out
    (tmp_path / "other.json").write_text("{}")
    assert main(["verify", "run", "other.json"]) == 1, "what may be an artifact is not passed over"
    assert main(["verify", "run-report.html"]) == 1, "nor what is asked for alone"


def test_report_of_several_holds_holm_over_the_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "report", *map(str, HISTORICAL)]) == 0
    said = capsys.readouterr().out
    assert "0.0234" in said  # 3 * 2/256
    assert "Holm over a family of 3" in said
    assert "historical, not verified" in said
    assert main(["bench", "report", str(HISTORICAL[0]), str(HISTORICAL[0])]) == 2
    assert "given twice" in capsys.readouterr().err


def test_a_declared_family_is_not_made_smaller_by_reporting_part_of_it() -> None:
    record = read(HISTORICAL[0])
    _, compared = family([record, {**record, "protocol": {"family_size": 10}}])
    assert {c.family_size for c in compared} == {10}


def test_the_figure_places_points_on_one_scale() -> None:
    c = judge([10.0] * 6, [9.0, 9.5, 10.0, 10.5, 11.0, 9.0], direction="lower is better")
    lines = figure(c)
    assert lines == figure(c)
    columns = [line.index("o") for line in lines if "  seed" in line]
    assert columns[0] < columns[1] < columns[2] < columns[3] < columns[4]
    assert columns[0] == columns[5]


def test_sentences_come_from_the_closed_list() -> None:
    artifact = {"track": "t", "model": "m", "n_seeds": 6}
    cases = {
        "idea better (significant)": [9.0, 9.1, 9.2, 9.3, 9.0, 9.0],
        "idea worse (significant)": [11.0, 11.1, 11.2, 11.3, 11.0, 11.1],
        "no measurable effect": [10.0, 10.01, 9.99, 10.0, 10.02, 9.98],
        "no significant win": [9.0, 11.0, 9.5, 10.5, 9.2, 11.3],
    }
    for verdict, values in cases.items():
        c = judge([10.0] * 6, values, direction="lower is better")
        assert c.verdict == verdict
        assert f": {verdict}: " in sentence(artifact, c)
    few = judge([10.0] * 3, [9.0] * 3, direction="lower is better")
    assert "insufficient seeds (min p = 0.25): even if all seeds agreed, p would be above 0.05; 6 seeds" in sentence(
        artifact, few
    )
    several = judge([10.0] * 6, [9.0] * 6, direction="lower is better", family_size=4)
    assert (
        "Holm over a family of 4 makes it 0.125, above 0.05; 8 seeds are the least. The idea won 6 of 6."
        in sentence(artifact, several)
    )
    same = judge([10.0] * 6, [10.0] * 6, direction="lower is better")
    assert "may share their code" in sentence(artifact, same)
    small = judge([10.0] * 6, [9.99] * 6, direction="lower is better")
    assert "by less than the smallest effect of interest" in sentence(artifact, small)


def test_unpaired_arms_are_refused() -> None:
    with pytest.raises(ValueError, match="pairs need one value of each arm"):
        judge([1.0, 2.0], [1.0], direction="lower is better")
    with pytest.raises(ValueError, match="distinct seeds"):
        judge([1.0, 2.0], [1.0, 2.0], direction="lower is better", seeds=[3, 3])
    with pytest.raises(ValueError, match="direction"):
        judge([1.0], [1.0], direction="down")  # type: ignore[arg-type]
    lost = judge([1.0, float("nan")], [1.0, 2.0], direction="lower is better")
    assert lost.verdict == "invalid: non-finite in seeds [1]"
    assert lost.p_value is None
