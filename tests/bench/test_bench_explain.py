"""What is said without a run: tracks explained, folders refused, few seeds, reports of runs that are no trainings."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from bench_shared import PLANTED
from test_bench_fairness import IDEA, SMALL

from posttrain.artifacts.bench_statistics import judge
from posttrain.artifacts.statistics import seeds_needed
from posttrain.bench import conduct as conduct_module
from posttrain.bench.conduct import conduct
from posttrain.bench.display import listed, sentence, visible
from posttrain.bench.explain import explain
from posttrain.bench.options import load
from posttrain.bench.track import tracks
from posttrain.cli import main
from posttrain.registry import ConfigError
from posttrain.reporting import bench_figures, figures

FEW = ["evaluation_seeds=0-5", "tuning_seeds=100"]


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.usefixtures("hardly_trained")
def test_explain_says_everything_that_a_track_is_and_runs_nothing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*_: Any) -> None:
        raise AssertionError("explain trains")

    monkeypatch.setattr(conduct_module, "perform", run)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "explain", name, *SMALL[name]]) == 0
    said = " ".join(capsys.readouterr().out.split())
    track = load(name, overrides=SMALL[name]).track
    assert list(tmp_path.iterdir()) == []
    for words in (track.metric, track.direction, track.model, track.rationale, f"`{track.idea.name}`"):
        assert " ".join(words.split()) in said
    for settings in (track.budget, track.base, track.data, *track.sweep, *track.idea.sweep, track.idea.settings):
        assert all(f"{key}={value}" in said for key, value in settings.items())
    for claim in track.idea.claims:
        assert f"{claim.id}: {claim.claim}. Predicted: {claim.prediction}." in said
        assert claim.rule.replace("threshold", f"{claim.threshold:g}") in said
    assert "tuning on seeds 100-103" in said
    assert "comparison on seeds 0-7" in said
    assert "5 % of the baseline's absolute mean" in said
    assert f"posttrain/bench/tracks/{name}.py" in said
    assert f"posttrain bench run {name}" in said
    assert "posttrain bench new idea mine" in said


def test_explain_counts_the_trainings_that_a_run_does(tmp_path: Path) -> None:
    bench = load(PLANTED, overrides=FEW)
    assert "6 trainings to tune, 12 to compare" in explain(bench)
    conduct(bench, tmp_path / "run")
    cells = {path.name for path in (tmp_path / "run" / "cells").iterdir()}
    assert len(cells) == 6 + 12


def test_explain_says_when_so_few_seeds_can_decide_nothing() -> None:
    few, enough = (
        " ".join(explain(load(PLANTED, overrides=words)).split()) for words in (["evaluation_seeds=0-2"], [])
    )
    assert "the smallest p that 3 seeds can reach is 0.25: no effect can be significant; it takes 6 seeds" in few
    assert "can be significant" not in enough


def test_explain_of_code_from_outside_tries_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    body = 'def f(base, settings):\n    """Gives the model back."""\n    return base'
    path.write_text(IDEA.format(body=body, arguments="model=f"))
    assert main(["bench", "explain", "sequence", "--idea", str(path), *SMALL["sequence"]]) == 0
    said = capsys.readouterr().out
    assert "idea `mine`: replaces model" in said
    assert "Gives the model back." in said
    assert f"posttrain bench run sequence --idea {path}" in " ".join(said.split())
    path.write_text(IDEA.format(body="", arguments="model=lambda base, settings: 1 / 0"))
    assert main(["bench", "explain", "sequence", "--idea", str(path), *SMALL["sequence"]]) == 2
    assert "idea.model: raised ZeroDivisionError" in capsys.readouterr().err


# -- folders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["alpha=0.01"], "alpha 0.05 -> 0.01"),
        (["settings.epochs=3"], "settings.epochs 1 -> 3"),
        (["settings.noise=0.2"], "settings.noise 0.1 -> 0.2"),
        (["data.scale=2.0"], "data.scale 1.0 -> 2.0"),
        (["evaluation_seeds=0-6"], "evaluation seeds 0-5 -> seeds 0-6"),
        (["tuning_seeds=100,105"], "tuning seed 100 -> seeds 100, 105"),
        (["family_size=3"], "family_size 1 -> 3"),
        (["failure_value=9.0"], "failure_value None -> 9.0"),
        (["sesoi_rel_pct=1.0", "alpha=0.1"], "sesoi_rel_pct 5.0 -> 1.0; alpha 0.05 -> 0.1"),
    ],
)
def test_a_folder_of_another_plan_is_refused_with_each_difference_and_no_other(
    complete: bool, words: list[str], said: str, tmp_path: Path
) -> None:
    conduct(load(PLANTED, overrides=FEW), tmp_path / "run")
    if not complete:
        (tmp_path / "run" / "execution.json").unlink()
    keys = {word.split("=")[0] for word in words}
    asked = [*(word for word in FEW if word.split("=")[0] not in keys), *words]
    with pytest.raises(ConfigError) as caught:
        conduct(load(PLANTED, overrides=asked), tmp_path / "run")
    assert f": {said}. Choose another --output, or remove the folder." in str(caught.value)


def test_a_mended_idea_is_told_by_its_digest_and_by_what_it_sets(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    digests = []
    for effect in ("0.5", "0.7"):
        path.write_text(IDEA.format(body="", arguments=f"settings={{'effect': {effect}}}"))
        bench = load(PLANTED, str(path), FEW)
        digests.append(bench.sources[-1].sha256[:15])
        if effect == "0.5":
            conduct(bench, tmp_path / "run")
    with pytest.raises(ConfigError) as caught:
        conduct(bench, tmp_path / "run")
    first, second = digests
    assert f"idea file mine.py ({first}) -> mine.py ({second}); idea's effect 0.5 -> 0.7. Choose" in str(caught.value)
    with pytest.raises(ConfigError, match=r"idea file mine.py \(sha256:\w{8}\) -> the shipped one"):
        conduct(load(PLANTED, overrides=FEW), tmp_path / "run")


def test_a_complete_run_of_this_very_plan_is_told_how_it_is_shown(tmp_path: Path) -> None:
    conduct(load(PLANTED, overrides=FEW), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"complete run, of this very plan: `posttrain bench report` shows it"):
        conduct(load(PLANTED, overrides=FEW), tmp_path / "run")


@pytest.mark.parametrize("plan", ["{", "[]", '{"plan": {}}', '{"plan": 3}', '{"other": 1}'])
def test_a_folder_whose_plan_is_none_is_refused_all_the_same(plan: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan)
    with pytest.raises(ConfigError, match="Choose another --output, or remove the folder"):
        conduct(load(PLANTED, overrides=FEW), tmp_path)
    assert (tmp_path / "plan.json").read_text() == plan


# -- few seeds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [1, 4])
@pytest.mark.parametrize("count", range(1, 12))
def test_what_could_be_seen_is_a_number_or_a_reason_and_never_a_dash(count: int, family: int) -> None:
    baseline = [10.0 + 0.1 * i for i in range(count)]
    c = judge(baseline, [9.0 + 0.3 * (i % 3) for i in range(count)], direction="lower is better", family_size=family)
    said, needed = visible(c), seeds_needed(0.05, family)
    assert "–" not in said
    if count < needed:
        assert "can show no effect, however large: at alpha 0.05" in said
        assert said.endswith(f"it takes {needed}")
    else:
        assert said == f"an effect of {c.mde_80:.3g} would be seen with 80 % power"


def test_one_seed_is_called_one_seed() -> None:
    one = judge([10.0], [9.0], direction="lower is better")
    assert "1 paired seed: " in sentence({"track": "t", "model": "m", "n_seeds": 1}, one)
    assert visible(one).startswith("one seed can show no effect")
    assert (listed([3]), listed([0, 1, 2]), listed([1, 4])) == ("seed 3", "seeds 0-2", "seeds 1, 4")


# -- posttrain report -------------------------------------------------------------------------------------------------


def test_report_of_a_bench_is_the_bench_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    conduct(load(PLANTED, overrides=FEW), tmp_path / "run")
    for path in ("run", "run/artifact.json"):
        assert main(["bench", "report", path]) == 0
        expected = capsys.readouterr().out
        assert main(["report", path]) == 0
        assert capsys.readouterr().out == expected + "verified at V0, V1, V2\n"
    assert main(["report", "run", "--output", "run.html"]) == 2
    assert "Write FILE.svg" in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()


@pytest.mark.parametrize("content", ['{"bench_version": 1, "track"', "", "no json", '{"a": 1}', "[1]"])
def test_report_of_a_file_that_is_no_run_is_refused_in_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some.json"
    path.write_text(content)
    assert main(["report", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("posttrain: report: ")
    assert len(said.splitlines()) == 1
    assert "Errno" not in said
    assert "some.json" in said
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "there is no" in capsys.readouterr().err


def test_report_of_an_artifact_that_breaks_its_schema_names_the_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for key in ("bench_version", "eval_version"):
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps({key: 1}))
        assert main(["report", str(path)]) == 2
        assert f"{key}.json is no " in capsys.readouterr().err


# -- the figure of several --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "words"), [(0.05, "baseline's mean)"), (0.5, "mean, linear up to 10)")])
def test_the_axis_of_several_is_linear_where_every_effect_is_small(gain: float, words: str) -> None:
    artifact = {
        "track": "t", "metric_direction": "higher is better", "baseline": {"full": {"mean": 1.0}},
        "comparison": {"per_seed_diffs": [gain, gain / 2], "delta_mean": 0.75 * gain},
    }  # fmt: skip
    drawn = figures.draw(bench_figures.family([artifact, artifact], [None, (0.0, gain)])).decode()
    assert words in drawn
    assert "95 % interval of the mean" in drawn, "also where the first has none"


def test_report_of_what_does_not_verify_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conduct(load(PLANTED, overrides=FEW), tmp_path / "run")
    path = tmp_path / "run" / "artifact.json"
    value = json.loads(path.read_text())
    value["idea"]["per_seed"] = [number / 2 for number in value["idea"]["per_seed"]]
    path.write_text(json.dumps(value))
    assert main(["report", str(path), "--output", str(tmp_path / "x.svg")]) == 0
    assert "NOT VERIFIED: " in capsys.readouterr().out.strip().splitlines()[-1]


def test_explain_gives_the_whole_command_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my dir"
    folder.mkdir()
    (folder / "s.yaml").write_text("alpha: 0.1\n")
    (folder / "more.py").write_text("")
    words = ["--config", str(folder / "s.yaml"), "--plugin", str(folder / "more.py")]
    assert main(["bench", "explain", "sequence", *words, "evaluation_seeds=0-5"]) == 0
    said = "".join(capsys.readouterr().out.split())
    assert "".join(f"posttrain bench run sequence {shlex.join(words)} evaluation_seeds=0-5".split()) in said


def test_explain_of_a_track_that_a_plugin_registers_names_the_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "registers.py"
    text = Path(PLANTED).read_text().replace('name="planted"', 'name="by-plugin"')
    plugin.write_text(text + "\nfrom posttrain.bench.track import tracks\nif track.name not in tracks:\n"
                      "    tracks.register(track.name)(track)\n")  # fmt: skip
    try:
        assert main(["bench", "explain", "by-plugin", "--plugin", str(plugin)]) == 0
        assert f"track: registered by {plugin}" in capsys.readouterr().out.replace("\n", " ")
    finally:
        tracks._entries.pop("by-plugin", None)
