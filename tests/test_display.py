"""What a person sees: what is being done before there is a bar, and the share of the gap to the teacher."""

import io
import sys
from pathlib import Path

import pytest

from posttrain import settings
from posttrain.artifacts.gap import LABEL, TEACHER
from posttrain.cli import main
from posttrain.evaluation import api, display
from posttrain.evaluation.card import model_card
from posttrain.evaluation.conduct import Watch, conduct
from posttrain.evaluation.experiment import solo
from posttrain.evaluation.folders import Finished
from posttrain.registry import ConfigError
from posttrain.reporting.sentences import said

SMALL = {"dataset.train_examples": 4, "dataset.validation_examples": 4, "steps": 2, "tune": None, "seeds": "3-4"}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def experiment(**more):
    return solo(settings.load("grpo", overrides={**SMALL, **more}), None, [])


# -- progress ---------------------------------------------------------------------------------------------------------


def test_a_terminal_is_told_what_is_done_from_before_the_first_bar_to_the_last_seed(tmp_path, monkeypatch):
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stderr", Terminal())
    words = [f"{key}={'null' if value is None else value}" for key, value in SMALL.items()]
    assert main(["train", "grpo", *words, "--output", str(tmp_path / "run")]) == 0
    written = sys.stderr.getvalue()
    assert written.startswith("preparing\r")
    assert written.count("measuring the start") >= 2  # of each seed
    assert written.index("preparing") < written.index("measuring the start") < written.rindex("seeds")


def test_elsewhere_nothing_is_written(tmp_path, capsys):
    with display.progress(True) as watch:
        conduct(experiment(), tmp_path / "run", watch=watch)
    assert capsys.readouterr() == ("", "")


def test_the_stages_come_in_their_order_and_not_from_other_processes(tmp_path):
    for jobs, expected in ((1, ["preparing", "measuring the start"]), (2, ["preparing"])):
        seen = []
        watch = Watch(stage=seen.append, start=lambda units, steps: None)
        conduct(experiment(), tmp_path / f"run-{jobs}", watch=watch, jobs=jobs)
        assert seen == expected


def test_a_run_that_is_complete_already_says_so_and_prints_what_it_found(tmp_path, capsys):
    words = ["train", "grpo", "steps=1", "seeds=3", "--output", str(tmp_path / "run"), "--resume", "auto"]
    assert main(words) == 0
    first = capsys.readouterr()
    assert "complete already" not in first.err
    assert main(words) == 0
    again = capsys.readouterr()
    assert again.out == first.out
    assert again.err == f"posttrain: {tmp_path / 'run'} is complete already; nothing was run again\n"


# -- as functions -----------------------------------------------------------------------------------------------------


def test_the_functions_go_on_with_a_run_as_the_command_does(tmp_path, capsys):
    options = {**SMALL, "output": tmp_path / "run", "save_steps": 1, "resume": True}
    first = api.train("grpo", **options)
    assert api.train("grpo", **options) == first
    assert "complete already" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="go on with what lies in it"):
        api.train("grpo", **{**options, "resume": False})
    pair = {**options, "output": tmp_path / "pair"}
    assert api.compare("grpo", "rloo", **pair) == api.compare("grpo", "rloo", **pair)


@pytest.mark.parametrize(
    ("verb", "names"), [("train", ["grpo"]), ("compare", ["grpo", "rloo"]), ("reproduce", ["dpo"])]
)
def test_every_function_hands_both_on(verb, names, tmp_path, monkeypatch):
    seen = {}

    def watched(made, folder, **given):
        seen.update(given)
        return Finished(folder, {})

    monkeypatch.setattr(api, "conduct", watched)
    options = {} if verb == "reproduce" else SMALL
    getattr(api, verb)(*names, output=tmp_path, resume=True, save_steps=7, **options)
    assert (seen["resume"], seen["save_steps"]) == (True, 7)
    with pytest.raises(ConfigError, match="save_steps: found 0, expected at least 1"):
        getattr(api, verb)(*names, output=tmp_path, save_steps=0, **options)


# -- the gap to the teacher -------------------------------------------------------------------------------------------


def artifact(*teachers: float, tier: str = "l2_tiny_lm"):
    """Seeds that start at 0.25 and end at 0.5."""

    def point(accuracy):
        return {"accuracy": accuracy, "mean_reward": accuracy, "entropy": 1.0, "kl_from_reference": 0.0}

    runs = [
        {"seed": 3 + i, "dataset": "d", "baseline": point(0.25), "final": point(0.5), "training": {"steps": 2},
         "measures": {TEACHER: teacher}}
        for i, teacher in enumerate(teachers)
    ]  # fmt: skip
    return {
        "method": "sparse-opd",
        "runs": runs,
        "evaluation_protocol": {"tier": tier, "alpha": 0.05},
        "provenance": {"artifact_path": "docs/x.json"},
    }


@pytest.fixture
def language_model():
    return settings.load("sparse-opd", "l2", overrides={"seeds": "3-4"})


def shown(found, config, capsys, monkeypatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    display.show(solo(config, None, []), Finished(Path("run"), found))
    return capsys.readouterr().out


def test_the_tables_and_the_sentence_say_how_much_of_the_gap_was_closed(language_model, capsys, monkeypatch):
    """Shares 0.5 and 0.25: mean 0.375, half-width 12.7062 * 0.125 = 1.5883."""
    said = shown(artifact(0.75, 1.25), language_model, capsys, monkeypatch)
    seeds, row = [line.strip() for line in said.splitlines() if line.strip().startswith(LABEL)]
    assert seeds == f"{LABEL}, by seed  3: 0.500, 4: 0.250"
    assert row.split()[-5:] == ["0.0000", "0.3750", "+0.3750", "[-1.2133,", "+1.9633]"]
    assert "…" not in said  # nothing is cut in a terminal of the usual width
    assert "0.3750 was closed on average (95 % t interval [-1.213, 1.963])." in said


def test_without_a_gap_no_number_is_given(language_model, capsys, monkeypatch):
    said = shown(artifact(0.75, 0.25), language_model, capsys, monkeypatch)
    seeds, row = [line.strip() for line in said.splitlines() if line.strip().startswith(LABEL)]
    assert seeds == f"{LABEL}, by seed  3: 0.500, 4: undefined"
    assert row.split()[-4:] == ["–", "undefined", "–", "–"]
    assert "is undefined: in 1 of 2 seeds the teacher is not more accurate than the start." in said


def test_mechanism_tiers_and_runs_without_a_teacher_show_none_of_it(language_model, capsys, monkeypatch):
    without = artifact(0.75, 0.75)
    for run in without["runs"]:
        del run["measures"]
    for found in (artifact(0.75, 0.75, tier="l1_mechanism"), without):
        assert "gap" not in shown(found, language_model, capsys, monkeypatch)
        assert not [line for line in said(found) if "gap" in line]


def test_the_card_of_a_model_has_its_own_seeds_share(language_model):
    found = artifact(0.75, 0.25)
    assert f"| {LABEL} | 0.0000 | 0.5000 |" in model_card(found, language_model, 3)
    card = model_card(found, language_model, 4)
    assert f"| {LABEL} | – | undefined |" in card
    assert "is undefined: in 1 of 2 seeds" in card
