"""Whole experiments: what a run folder holds, byte for byte, what is compared and decided, what counts as done."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posttrain import settings
from posttrain.artifacts.digests import file_digest
from posttrain.artifacts.documents import read
from posttrain.artifacts.schema import violations
from posttrain.cli import main
from posttrain.evaluation import api, experiment
from posttrain.evaluation.conduct import remarks
from posttrain.evaluation.controls import CONTROLS
from posttrain.evaluation.study import Claim, Results, difference, ratio, studies
from posttrain.evaluation.work import Done
from posttrain.registry import ConfigError, algorithms
from posttrain.reporting.sentences import said

ROOT = Path(__file__).parents[1]
FILES = ["artifact.json", "config.yaml", "execution.json", "metrics.jsonl", "plan.json", "samples.jsonl"]
SMALL = ["dataset.train_examples=8", "dataset.validation_examples=4"]
TINY = [*SMALL, "steps=2"]
PAPER = ["sparse-opd", "--config", "l1-paper", *SMALL, "dataset.positions=8"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*words: str, verb: str = "train", output: str | Path = "out", jobs: int = 1) -> Path:
    folder = Path(output)
    assert main([verb, *words, "--output", str(folder), "--jobs", str(jobs)]) == 0
    return folder


def artifact(folder: Path) -> dict[str, Any]:
    return read(folder / "artifact.json")


def rows(folder: Path, name: str = "metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file a rerun reproduces, by its place."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "execution.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def verified(folder: Path) -> int:
    return main(["verify", str(folder)])


# -- a run folder -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """`posttrain train sparse-opd`, two seeds of twelve steps."""
    return run("sparse-opd", "steps=12", "seeds=42-43", output=tmp_path_factory.mktemp("trained") / "run")


def test_a_run_folder_holds_exactly_the_documented_files(trained):
    assert sorted(path.name for path in trained.iterdir()) == FILES


def test_metrics_have_a_row_per_seed_and_step(trained):
    metrics = rows(trained)
    assert [(row["seed"], row["step"]) for row in metrics] == [(s, t) for s in (42, 43) for t in range(1, 13)]
    assert all({"loss", "gradient_norm", "supervised_positions"} <= row.keys() for row in metrics)
    assert [row["step"] for row in metrics if "accuracy" in row and row["seed"] == 42] == list(range(1, 13))


def test_samples_are_the_graded_answers_of_every_evaluation_and_then_completions_with_tokens(trained):
    samples = rows(trained, "samples")
    for seed, run in zip((42, 43), artifact(trained)["runs"], strict=True):
        own = [row for row in samples if row["seed"] == seed]
        greedy, sampled = own[:-4], own[-4:]
        assert [row["step"] for row in greedy] == [step for step in range(13) for _ in range(4)]
        assert {row["decoding"] for row in greedy} == {"greedy"}
        assert len({row["problem"] for row in greedy}) == 4
        # Four of all held-out problems: their grades are among those that the accuracy is the mean of.
        assert all(row["accuracy"] == float(row["completion"] == row["answer"]) for row in greedy)
        assert run["baseline"]["accuracy"] < 1
        assert [(row["decoding"], row["step"]) for row in sampled] == [("sampled", 12)] * 4
        assert all(len(row["tokens"]) == len(row["logprobs"]) for row in sampled)
    assert [row["seed"] for row in samples] == sorted(row["seed"] for row in samples)


def test_the_artifact_keeps_its_schema_and_has_what_a_new_one_owes(trained):
    found = artifact(trained)
    assert violations(found, "artifact-v2") == []
    assert [run["seed"] for run in found["runs"]] == found["seeds"] == [42, 43]
    assert [run["status"] for run in found["runs"]] == ["completed"] * 2
    assert [len(run["history"]) for run in found["runs"]] == [12, 12]
    assert found["evaluation_protocol"]["plan_sha256"] == read(trained / "plan.json")["plan_sha256"]
    assert found["provenance"]["content_digest"].startswith("sha256:")
    assert found["manifest_ref"] == "post-training:arithmetic-smoke-seeds42-43"
    assert found["provenance"]["artifact_path"] == (
        "docs/post-training/2609.04565-sparse-opd/metrics/arithmetic-smoke-seeds42-43.json"
    )


def test_the_artifact_holds_nothing_that_a_rerun_elsewhere_would_not_reproduce(trained):
    """No time, host, path, commit or version."""
    text = (trained / "artifact.json").read_text()
    machine = (os.uname().nodename, str(trained.parent), str(ROOT), sys.version.split()[0])
    assert not [word for word in (*machine, "started_at", "wall_seconds") if word in text]


def test_the_execution_record_tells_how_the_run_came_about(trained):
    record = read(trained / "execution.json")
    assert violations(record, "execution-v1") == []
    found = record["execution"]
    assert (found["method"], found["status"], found["exit_code"]) == ("sparse-opd", "completed", 0)
    assert found["overrides"] == ["steps=12", "seeds=42-43"]
    assert found["config"] == settings.load("sparse-opd", overrides=["steps=12", "seeds=42-43"]).resolved
    source = settings.config_folder() / "sparse-opd" / "l1.yaml"
    assert found["config_source"] == [{"path": "l1.yaml", "sha256": file_digest(source)}]
    assert {(entry["name"], entry["value"]) for entry in found["seeds"]} == {
        (name, seed) for name in ("data", "training") for seed in (42, 43)
    }
    assert {entry["path"] for entry in found["outputs"]} == set(FILES) - {"execution.json"}
    assert all(file_digest(trained / entry["path"]) == entry["sha256"] for entry in found["outputs"])
    assert found["counters"]["rollout_policy_refreshes"] == 0


def test_the_written_configuration_runs_the_same_again(trained):
    """`config.yaml` spells out every default; given as --config FILE it makes the same artifact."""
    config = trained / "config.yaml"
    again = run("sparse-opd", "--config", str(config))
    assert (again / "artifact.json").read_bytes() == (trained / "artifact.json").read_bytes()
    assert (again / "config.yaml").read_bytes() == config.read_bytes()


def test_one_s_own_fresh_run_verifies(trained, capsys):
    assert verified(trained) == 0
    printed = capsys.readouterr().out
    assert "verified at V0, V1, V2" in printed
    assert "V3: the training was not run again" in printed


def test_a_default_folder_is_new_each_time_and_named_after_method_data_tier_and_configuration(capsys):
    words = ["sparse-opd", "steps=1", "seeds=42"]
    digest = experiment.solo(settings.load(words[0], overrides=words[1:]), None, ()).digest
    for name in (f"sparse-opd-arithmetic-smoke-l1-{digest}", f"sparse-opd-arithmetic-smoke-l1-{digest}-2"):
        assert main(["train", *words]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"runs/{name}/artifact.json"
    assert main(["train", *words, "learning_rate=0.1"]) == 0
    assert len({path.name for path in Path("runs").iterdir()}) == 3


@pytest.mark.parametrize(("seeds", "words"), [("2", "single-seed"), ("1-2", "multi-seed")])
def test_few_seeds_are_described_and_not_compared_and_one_is_not_called_several(seeds, words):
    found = artifact(run("grpo", *TINY, f"seeds={seeds}"))["evaluation_protocol"]
    assert found["formal_comparison"] is False
    assert found["claim_policy"] == f"descriptive {words} mechanism reproduction"
    assert main(["verify", "out"]) == 0


# -- the same bytes ---------------------------------------------------------------------------------------------------


SPREAD = [*PAPER, "seeds=1-2", "tune=null", "controls=dense,random", "steps=3"]
ELSEWHERE = [
    {"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "0", "COLUMNS": "20", "OMP_NUM_THREADS": "2"},
    {"LANG": "tr_TR.UTF-8", "TZ": "America/St_Johns", "PYTHONHASHSEED": "4242", "PYTHONUTF8": "1", "HOME": "/"},
]


def started(*arguments: str, folder: Path, **environment: str) -> subprocess.Popen:
    """`python -m posttrain ...` in another process, folder and environment."""
    folder.mkdir(exist_ok=True)
    variables = {key: value for key, value in os.environ.items() if key not in ("LC_ALL", "LANG", "TZ")}
    return subprocess.Popen(
        [sys.executable, "-m", "posttrain", *arguments],
        cwd=folder,
        env={**variables, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job, and so a suite that runs as one, has Ctrl-C switched off, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finished(process: subprocess.Popen, code: int = 0) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out


def test_another_folder_locale_time_zone_hash_seed_and_thread_setting_make_the_same_bytes(tmp_path):
    processes = [
        started("train", *SPREAD, "--output", f"there-{i}", folder=tmp_path / str(i), **environment)
        for i, environment in enumerate(ELSEWHERE)
    ]
    here = contents(run(*SPREAD))
    assert {"artifact.json", "plan.json", "arms/sparse-opd.dense/artifact.json"} <= here.keys()
    for i, process in enumerate(processes):
        finished(process)
        assert contents(tmp_path / str(i) / f"there-{i}") == here


def test_processes_that_share_the_seeds_change_no_byte():
    words = ["grpo", *TINY, "seeds=1-3"]
    assert contents(run(*words, output="one")) == contents(run(*words, output="two", jobs=2))


def test_a_record_says_how_its_processes_computed_however_many_they_were():
    """Neither is left to the process that only hands out the work: reruns compare within a class of environments."""
    for jobs in (1, 2):
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(2)
        folder = run("grpo", *TINY, "seeds=1-2", output=f"jobs-{jobs}", jobs=jobs)
        hardware = read(folder / "execution.json")["execution"]["hardware"]
        assert (hardware["deterministic"], hardware["torch_threads"]) == (True, 1)


def test_a_run_that_moved_nothing_says_so():
    value = artifact(run("grpo", *TINY, "seeds=1-2"))
    for part in value["runs"]:
        part["final"]["accuracy"] = part["baseline"]["accuracy"] = 0.5
    assert "Accuracy stayed as it was in 2 of 2 seeds, 0.5000 on average" in " ".join(said(value))


def test_python_makes_the_same_bytes_as_the_command_line(tmp_path):
    said = contents(run(*PAPER, "steps=2", "seeds=3,1", "tune=null", output="said"))
    options = {"dataset.train_examples": 8, "dataset.validation_examples": 4, "dataset.positions": 8}
    made = api.train(
        "sparse-opd", config="l1-paper", output=tmp_path / "made", steps=2, seeds=[3, 1], tune=None, **options
    )
    assert contents(made.path.parent) == said
    assert made.data == artifact(Path("said"))
    assert (made.method, made.seeds, list(made.after())) == ("sparse-opd", [3, 1], [3, 1])
    assert made.before("kl_from_reference") == {3: 0.0, 1: 0.0}
    assert "Accuracy rose in" in str(made)


def test_compare_and_reproduce_are_functions_too():
    options = {"dataset.train_examples": 8, "dataset.validation_examples": 4, "steps": 2, "seeds": "1-2"}
    compared = api.compare("grpo", "rloo", output="a", **options)
    assert [entry["against"]["method"] for entry in compared.comparison] == ["rloo"]
    assert contents(Path("a")) == contents(run("grpo", "rloo", *TINY, "seeds=1-2", verb="compare", output="b"))
    decided = api.reproduce("rloo", output="c", **options)
    assert contents(Path("c")) == contents(run("rloo", *TINY, "seeds=1-2", verb="reproduce", output="d"))
    assert decided.claims.keys() == {claim.id for claim in studies.get("rloo").claims}


# -- arms -------------------------------------------------------------------------------------------------------------


def test_arms_run_on_the_same_problems_seeds_and_initial_weights():
    folder = run("grpo", "rloo", "reinforce", *TINY, "seeds=1-2", verb="compare")
    arms = [folder, folder / "arms" / "rloo", folder / "arms" / "reinforce"]
    assert [artifact(place)["method"] for place in arms] == ["grpo", "rloo", "reinforce"]
    assert len({json.dumps([run["baseline"] for run in artifact(place)["runs"]]) for place in arms}) == 1
    assert len({artifact(place)["provenance"]["dataset_fingerprint"] for place in arms}) == 1
    assert len({(place / "plan.json").read_bytes() for place in arms}) == 1
    assert [verified(place) for place in arms] == [0, 0, 0]
    main_artifact = artifact(folder)
    assert [entry["against"]["method"] for entry in main_artifact["comparison"]] == ["rloo", "reinforce"]
    for entry, place in zip(main_artifact["comparison"], arms[1:], strict=True):
        assert entry["against"]["artifact_sha256"] == file_digest(place / "artifact.json")
        runs = zip(main_artifact["runs"], artifact(place)["runs"], strict=True)
        assert entry["per_seed_diffs"] == [a["final"]["accuracy"] - b["final"]["accuracy"] for a, b in runs]


def test_all_eight_controls_of_a_teacher_run_in_the_order_they_are_named():
    names = [name for name in CONTROLS if name != "random_reward"][::-1]
    assert len(names) == 8
    folder = run(*PAPER, "steps=2", "seeds=1-2", "tune=null", f"controls={','.join(names)}")
    plan = read(folder / "plan.json")["plan"]
    full = [f"sparse-opd.{name}" for name in names]
    assert list(plan["arms"]) == ["sparse-opd", *full]
    assert plan["controls"] == [entry["against"]["method"] for entry in artifact(folder)["comparison"]] == full
    assert plan["family"] == [f"sparse-opd vs {name}" for name in full]
    finals = {name: artifact(folder / "arms" / name)["runs"][0]["final"] for name in full}
    assert len({json.dumps(final) for final in finals.values()}) == 8
    assert verified(folder) == 0
    settings_of = {name.partition(".")[2]: arm["overrides"] for name, arm in plan["arms"].items()}
    assert settings_of["random"] == {"algorithm.select.rule": "random", "algorithm.select.k": 2}
    # Two of eight positions are supervised, so all of them at a quarter of the rate move the policy as far.
    assert settings_of["scaled_dense"] == {"algorithm.select.rule": "all", "learning_rate": 0.1 * 2 / 8}


def test_controls_supervise_what_their_names_say():
    folder = run(*PAPER, "seeds=1", "tune=null", "controls=dense,random,first,last,trajectories", "steps=1")

    def supervised(arm: str) -> tuple[float, float]:
        row = rows(folder / "arms" / f"sparse-opd.{arm}")[0]
        return row["supervised_positions"], row["sampled_positions"]

    # Where student and teacher agree throughout, the lowest and the highest are one token.
    assert 16 <= rows(folder)[0]["supervised_positions"] <= 2 * 16
    assert [supervised(arm) for arm in ("dense", "random", "first", "last")] == [(128, 128), *[(32, 128)] * 3]
    assert supervised("trajectories") == (32, 128)  # four of sixteen completions of eight tokens


def test_a_random_reward_teaches_nothing_and_is_judged_by_the_real_one():
    """It moves the policy, and accuracy with it, but either way and by less than the real reward moves it up."""
    folder = run("grpo", "seeds=1-3", "controls=random_reward")
    gains = {
        arm["method"]: [after["final"]["accuracy"] - after["baseline"]["accuracy"] for after in arm["runs"]]
        for arm in (artifact(folder), artifact(folder / "arms" / "grpo.random_reward"))
    }
    assert read(folder / "plan.json")["plan"]["arms"]["grpo.random_reward"]["overrides"] == {"reward": {"name": "coin"}}
    real, random = gains["grpo"], gains["grpo.random_reward"]
    assert all(gain > 0 for gain in real)
    assert all(abs(r) < gain / 2 for r, gain in zip(random, real, strict=True))


@pytest.mark.parametrize(
    ("algorithm", "control", "message"),
    [
        ("opd", "random_reward", "`random_reward` changes the reward, which `opd` does not read"),
        ("grpo", "dense", "`dense` varies which tokens are supervised, but `grpo` has no `select`"),
        ("sparse-opd", "shuffled_teacher", "needs an online teacher. Write teacher=frozen"),
        ("sparse-opd", "denser", "unknown control `denser`. Did you mean `dense`?"),
    ],
)
def test_a_control_that_does_not_apply_is_refused(algorithm, control, message):
    config = settings.load(algorithm, overrides=[f"controls={control}"])
    with pytest.raises(ConfigError, match=f"^controls: .*{message}"):
        experiment.solo(config, None, ())


@pytest.mark.parametrize("key", ["dataset.positions=4", "steps=3", "problems_per_step=2", "evaluation.accuracy=exact"])
def test_arms_that_differ_in_what_makes_them_pairs_are_refused(key):
    configs = [settings.load("grpo", overrides=[key]), settings.load("rloo")]
    with pytest.raises(ConfigError, match=rf"`grpo` and `rloo` differ in {key.partition('=')[0]}.*no pairs"):
        experiment.versus(configs, ())


def test_an_algorithm_is_not_compared_with_itself():
    with pytest.raises(ConfigError, match="names one algorithm twice"):
        experiment.versus([settings.load("grpo"), settings.load("grpo")], ())


# -- tuning -----------------------------------------------------------------------------------------------------------


EASY = ["dataset.train_examples=32", "dataset.validation_examples=16", "dataset.positions=8", "dataset.new=4"]
TUNED = ["sparse-opd", "--config", "l1-paper", *EASY, "dataset.hidden=0", "steps=20", "seeds=11-12", "tune.seeds=1-2"]


def test_the_learning_rate_of_every_arm_is_the_best_of_the_grid_on_seeds_of_their_own():
    """A rate of 1e-9 learns nothing; 0.3 does. The run trains on the evaluation seeds alone."""
    folder = run(*TUNED, "tune.learning_rate=[1e-9,0.3,1e-12]", "controls=dense,scaled_dense")
    plan = read(folder / "plan.json")["plan"]
    assert plan["tuning"] == {"grid": {"learning_rate": [1e-9, 0.3, 1e-12]}, "seeds": [1, 2]}
    assert plan["seeds"] == [11, 12]
    rates = {"": 0.3, "arms/sparse-opd.dense": 0.3, "arms/sparse-opd.scaled_dense": 0.3 * 2 / 8}
    for place, rate in rates.items():
        found = artifact(folder / place)
        assert [part["training"]["learning_rate"] for part in found["runs"]] == pytest.approx([rate] * 2)
        assert {row["seed"] for row in rows(folder / place)} == {11, 12}
    assert verified(folder) == 0


def test_of_equally_good_rates_the_first_is_taken():
    folder = run(*TUNED, "tune.learning_rate=[1e-9,1e-12,1e-10]")
    assert artifact(folder)["runs"][0]["training"]["learning_rate"] == 1e-9


def test_a_study_records_what_every_rate_reached():
    words = ["tune.seeds=1-2", "tune.learning_rate=[1e-9,0.3]", "seeds=11-12"]
    found = artifact(run("opd", *TINY, *words, verb="reproduce"))["mechanism"]
    for sweep in (found["sweep"], *(arm["sweep"] for arm in found["arms"])):
        assert [cell["learning_rate"] for cell in sweep] == [1e-9, 0.3]
        assert all(0 <= cell["mean"] <= 1 for cell in sweep)
    for arm in found["arms"]:
        assert arm["learning_rate"] == max(arm["sweep"], key=lambda cell: cell["mean"])["learning_rate"]


def test_seeds_that_tune_and_evaluate_are_refused():
    with pytest.raises(ConfigError, match=r"tune\.seeds: \[11\] are also evaluation seeds"):
        settings.load("sparse-opd", config="l1-paper", overrides=["seeds=11-12", "tune.seeds=9-11"])


# -- studies and claims -----------------------------------------------------------------------------------------------


def few_problems(name: str) -> list[str]:
    options = settings.load(name, config=studies.get(name).config).resolved["dataset"]
    few = {"maximum_examples": 8, "train_examples": 8, "validation_examples": 4}
    return [f"dataset.{key}={count}" for key, count in few.items() if key in options]


@pytest.mark.parametrize("name", studies.names())
def test_every_study_runs_decides_its_claims_and_verifies(name):
    """One step of one seed: the shape of a study, not its outcome."""
    study = studies.get(name)
    folder = run(name, *few_problems(name), "steps=1", "seeds=1", "tune=null", verb="reproduce")
    found = artifact(folder)
    assert [claim["id"] for claim in found["mechanism"]["claims"]] == [claim.id for claim in study.claims]
    assert all(claim["outcome"] in ("confirmed", "refuted", "inconclusive") for claim in found["mechanism"]["claims"])
    arms = [*study.arms, *study.others]
    assert [arm["name"] for arm in found["mechanism"]["arms"]] == [f"{name}.{arm}" for arm in arms]
    assert found["manifest_ref"].startswith(f"post-training:{name}-study-")
    planned = read(folder / "plan.json")["plan"]["claims"]
    assert planned == [claim.written() for claim in study.claims]
    assert verified(folder) == 0


def test_studies_decide_over_twelve_paired_seeds():
    assert {studies.get(name).seeds for name in studies.names()} == {"42-53"}
    assert all(studies.get(name).claims for name in studies.names())


SIX = [1, 2, 3, 1, 2, 3]


def claim(rule: str, threshold: float = 0.0, values: Any = None) -> Claim:
    return Claim("X", "a claim", "a prediction", "a metric", rule, threshold, lambda results: values)


@pytest.mark.parametrize(
    ("rule", "threshold", "values", "outcome", "measured"),
    [
        # [1, 2, 3, 1, 2, 3]: mean 2, sd sqrt(4 / 5), t(0.975, 5) = 2.5706, half-width 2.5706 sd / sqrt(6) = 0.9386.
        ("interval above threshold", 1.0, {"a": SIX}, "confirmed", {"ci95": [1.0614, 2.9386], "mean": 2, "n": 6}),
        ("interval above threshold", 1.5, {"a": SIX}, "inconclusive", {}),
        ("interval above threshold", 3.0, {"a": SIX}, "refuted", {}),
        ("interval at least threshold", 1.1, {"a": SIX}, "inconclusive", {}),
        ("interval at most threshold", 3.0, {"a": SIX}, "confirmed", {}),
        ("value at most threshold", 3.0, {"a": [1, -3, 2]}, "confirmed", {"value": 3, "n": 3}),
        ("value at most threshold", 2.9, {"a": [1, -3, 2]}, "refuted", {}),
        ("value at least threshold", 3.0, {"a": [1, -3, 2]}, "confirmed", {}),
        ("every interval above threshold", 1.0, {"a": SIX, "b": [2, 3, 4] * 2}, "confirmed", {"a mean": 2}),
        ("every interval above threshold", 1.5, {"a": SIX, "b": [2, 3, 4] * 2}, "inconclusive", {"b mean": 3}),
        ("every interval above threshold", 3.0, {"a": SIX, "b": [2, 3, 4] * 2}, "refuted", {}),
    ],
)
def test_a_claim_is_decided_by_its_rule_and_threshold(rule, threshold, values, outcome, measured):
    found = claim(rule, threshold, values).decide(Results({}))
    assert found["outcome"] == outcome
    for name, value in measured.items():
        assert found["measured"][name] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize(
    "rule", ["interval above threshold", "every interval above threshold", "value at most threshold"]
)
def test_a_quotient_without_meaning_makes_its_claim_inconclusive(rule):
    found = claim(rule, 0.0, {"a": ratio([1, 2], [1, 0])}).decide(Results({}))
    assert (found["measured"], found["outcome"]) == (None, "inconclusive")


@pytest.mark.parametrize("seeds", [1, 5])
def test_fewer_than_six_seeds_decide_nothing_by_an_interval(seeds):
    """With five, the smallest two-sided p is 2 / 32 = 0.0625."""
    found = claim("interval above threshold", 0.0, {"a": [5.0 + i for i in range(seeds)]}).decide(Results({}))
    assert (found["measured"]["ci95"], found["outcome"]) == (None, "inconclusive")


def test_a_rule_outside_the_closed_list_is_refused():
    with pytest.raises(ConfigError, match=r"claim X: unknown rule 'looks good'\. Write one of: value at least"):
        claim("looks good")


def synthetic(**arms: tuple[list[float], list[float]]) -> Results:
    """Runs of six seeds that start at accuracy 0.5 and end at the given accuracies and distances to the teacher."""

    def one(accuracy: float, distance: float) -> dict[str, Any]:
        start = {"accuracy": 0.5, "kl_from_teacher": 1.0}
        return {"baseline": start, "final": {"accuracy": accuracy, "kl_from_teacher": distance}}

    runs = {name: [one(*pair) for pair in zip(*arm, strict=True)] for name, arm in arms.items()}
    return Results({name.replace("_", "-"): found for name, found in runs.items()})


def near(level: float) -> list[float]:
    return [level - 0.001, level, level + 0.001] * 2


def outcome(claim_id: str, results: Results) -> str:
    (found,) = (c for c in studies.get("sparse-opd").claims if c.id == claim_id)
    return found.decide(results)["outcome"]


@pytest.mark.parametrize(
    ("claim_id", "arms", "expected"),
    [
        ("S1", {"main": 0.86, "dense": 0.9}, "refuted"),  # a gain of 0.36 over 0.40
        ("S1", {"main": 0.89, "dense": 0.9}, "confirmed"),  # 0.39 / 0.40 = 0.975 in every seed
        ("S2", {"main": 0.9, "random": 0.8, "first": 0.7, "last": 0.6}, "confirmed"),
        ("S2", {"main": 0.9, "random": 0.8, "first": 0.95, "last": 0.6}, "refuted"),
        ("S2", {"main": 0.9, "random": 0.8, "first": 0.9, "last": 0.6}, "inconclusive"),
        ("S4", {"main": 0.9, "lowest": 0.8, "extremes_far": 0.8, "lowest_far": 0.4}, "confirmed"),
        ("S4", {"main": 0.9, "lowest": 0.8, "extremes_far": 0.8, "lowest_far": 0.6}, "refuted"),  # lowest gains
        ("S4", {"main": 0.9, "lowest": 0.4, "extremes_far": 0.8, "lowest_far": 0.45}, "refuted"),  # the gap shrinks
    ],
)
def test_the_claims_of_sparse_supervision_follow_from_the_accuracies_of_the_arms(claim_id, arms, expected):
    results = synthetic(**{name: (near(level), [0.5] * 6) for name, level in arms.items()})
    assert outcome(claim_id, results) == expected


@pytest.mark.parametrize(
    ("distance", "accuracy", "expected"),
    [(0.6, 0.9, "confirmed"), (0.6, 0.895, "confirmed"), (0.6, 0.88, "refuted"), (0.4, 0.9, "refuted")],
)
def test_accuracy_and_distance_come_apart_if_the_sparse_arm_is_farther_and_within_a_hundredth(
    distance, accuracy, expected
):
    main_arm, dense = ([accuracy] * 6, near(distance)), ([0.9] * 6, [0.5] * 6)
    assert outcome("S3", synthetic(main=main_arm, dense=dense)) == expected


def test_differences_and_quotients_go_seed_by_seed():
    assert difference([3, 5], [1, 7]) == [2, -2]
    assert ratio([3, 5], [2, 4]) == [1.5, 1.25]
    assert math.isnan(ratio([1], [0])[0])
    with pytest.raises(ValueError, match="zip"):
        difference([1], [1, 2])


# -- counters ---------------------------------------------------------------------------------------------------------


def counted(*words: str) -> dict[str, Any]:
    (found,) = artifact(run(*words, "seeds=1"))["runs"]
    return found["training"]


def test_an_online_teacher_is_asked_about_every_completion_of_every_step():
    """Three steps of 16 problems, 2 completions each."""
    found = counted("opd", *SMALL, "steps=3", "group_size=2")
    assert (found["online_teacher_calls"], found["teacher_prefill_calls"], found["teacher_cache_entries"]) == (96, 0, 0)


def test_a_cached_teacher_is_asked_once_per_training_example_and_never_during_training():
    found = counted("lightning-opd", *SMALL, "steps=3")
    assert (found["online_teacher_calls"], found["teacher_prefill_calls"], found["teacher_cache_entries"]) == (0, 8, 8)
    assert found["train_examples"] == 8


def test_a_student_that_runs_away_from_its_cache_is_a_drift_event():
    assert counted("lightning-opd", *SMALL, "steps=20", "learning_rate=0.5")["drift_events"] > 0


def test_critic_updates_are_steps_times_passes():
    assert counted("ppo", *SMALL, "steps=3", "num_iterations=2")["critic_updates"] == 6


@pytest.mark.parametrize(("steps", "refreshes"), [(15, 0), (16, 1), (40, 2)])
def test_a_snapshot_is_counted_when_it_is_taken(steps, refreshes):
    found = counted("sparse-opd", f"steps={steps}")
    assert found["rollout_policy_refreshes"] == refreshes
    assert (found["online_teacher_calls"], found["teacher_prefill_calls"]) == (0, 0)


# -- the smoke tier ---------------------------------------------------------------------------------------------------


def test_the_smoke_tier_emits_an_artifact_with_the_laws_as_checks_and_claims_nothing(capsys):
    folder = run("grpo", "--tier", "l0", *TINY)
    found = artifact(folder)
    assert found["evaluation_protocol"]["tier"] == "l0_smoke"
    assert found["evaluation_protocol"]["claim_policy"] == "smoke only, no performance claim"
    assert found["evaluation_protocol"]["formal_comparison"] is False
    laws = {int(check["name"].split()[1].strip(",")) for check in found["checks"]}
    assert {1, 2, 3, 6, 9} <= laws
    assert all(check["ok"] for check in found["checks"])
    assert "A smoke test says nothing about performance" in capsys.readouterr().out
    assert verified(folder) == 0


BROKEN = '''
from dataclasses import dataclass, replace
from posttrain.algorithms.opd import OPD
from posttrain.registry import algorithms

@algorithms.register("broken")
@dataclass(frozen=True)
class Broken(OPD):
    """Divides by its own rows, so the loss depends on how the batch was cut."""

    def loss(self, scores, batch):
        return super().loss(scores, batch) / len(batch.rollouts.texts)
'''


def test_a_broken_law_ends_the_smoke_run_and_leaves_no_artifact(capsys, monkeypatch):
    assert "broken" not in algorithms.names()
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))  # the name is gone afterwards
    Path("broken.py").write_text(BROKEN)
    config = settings.config_folder() / "opd" / "l1.yaml"
    words = ["--plugin", "broken.py", "--config", str(config), "steps=1", "seeds=1"]
    assert main(["train", "broken", "--tier", "l0", *words, "--output", "out"]) == 1
    assert "law 1" in capsys.readouterr().err
    assert not Path("out/artifact.json").exists()
    assert verified(Path("out")) == 3


# -- runs that do not end ---------------------------------------------------------------------------------------------


def under_way(*folders: Path) -> list[subprocess.Popen]:
    """Runs whose plans are on disk, with more steps than anyone waits for."""
    words = ("train", "sparse-opd", "steps=1000000", "seeds=42", "--output")
    processes = [started(*words, folder.name, folder=folder.parent) for folder in folders]
    for folder, process in zip(folders, processes, strict=True):
        while not (folder / "plan.json").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
    return processes


def test_a_killed_and_an_interrupted_run_leave_nothing_that_looks_complete(tmp_path, capsys):
    processes = under_way(tmp_path / "killed", tmp_path / "interrupted")
    time.sleep(0.3)
    for process, number in zip(processes, (signal.SIGKILL, signal.SIGINT), strict=True):
        process.send_signal(number)
    (_, _), (_, said) = (process.communicate(timeout=30) for process in processes)
    assert [process.returncode for process in processes] == [-signal.SIGKILL, 130]
    assert "interrupted. interrupted is incomplete. Go on with --output interrupted --resume auto." in said
    for name in ("killed", "interrupted"):
        assert {"artifact.json", "execution.json"}.isdisjoint(os.listdir(tmp_path / name))
        assert verified(tmp_path / name) == 3
        assert "the run is incomplete" in capsys.readouterr().out


def test_a_folder_without_its_execution_record_is_not_verified():
    folder = run("sparse-opd", "steps=1", "seeds=42")
    assert verified(folder) == 0
    (folder / "execution.json").unlink()
    assert verified(folder) == 3


def test_the_main_artifact_is_written_after_those_of_its_rivals(monkeypatch):
    """Whoever finds the first arm complete finds the others complete too."""
    from posttrain.artifacts import documents

    written, write = [], documents.write_atomically

    def watched(path, data):
        written.append(str(path))
        write(path, data)

    monkeypatch.setattr(documents, "write_atomically", watched)
    run("grpo", "rloo", *TINY, "seeds=1", verb="compare")
    finals = [path for path in written if path.endswith(("artifact.json", "execution.json"))]
    places = ["out/arms/rloo/artifact.json", "out/arms/rloo/execution.json", "out/artifact.json", "out/execution.json"]
    assert finals == places
    assert written.index("out/plan.json") < written.index("out/metrics.jsonl")


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(capsys):
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    assert main(["train", "sparse-opd", "steps=1", "--output", "out"]) == 2
    assert "--output: out is not an empty folder. Choose a new one" in capsys.readouterr().err
    assert [path.name for path in Path("out").iterdir()] == ["mine.txt"]
    Path("out/mine.txt").unlink()
    assert main(["train", "sparse-opd", "steps=1", "--output", "out"]) == 0


def test_a_number_that_is_lost_ends_the_run_without_an_artifact(capsys):
    words = ["ppo", *SMALL, "optim=sgd", "learning_rate=1e200", "seeds=42"]  # the critic's squared error overflows
    assert main(["train", *words, "--output", "out"]) == 1
    said = capsys.readouterr().err
    assert said.strip().startswith("posttrain: step 1: loss is inf. The run stops here")
    assert {"artifact.json", "execution.json"}.isdisjoint(os.listdir("out"))


# -- data -------------------------------------------------------------------------------------------------------------


def test_an_empty_split_is_refused_before_anything_is_written(monkeypatch):
    from posttrain.data.decisions import Decisions

    build = Decisions.build
    monkeypatch.setattr(Decisions, "build", lambda self, seed: replace(build(self, seed), train=()))
    assert main(["train", "grpo", *TINY, "seeds=77", "--output", "out"]) == 2
    assert not Path("out").exists()


def test_the_plan_of_one_method_is_that_of_every_method_on_the_same_data():
    """Suite-level: no method in it, so that artifacts of several methods can share it."""
    words = [*TINY, "seeds=1-2"]
    plans = [read(run(name, *words, output=name) / "plan.json") for name in ("grpo", "rloo")]
    assert plans[0] == plans[1]
    assert np.unique([plan["plan_sha256"] for plan in plans]).size == 1


def test_a_forged_measurement_of_a_claim_is_found_from_the_runs_of_the_arms(tmp_path):
    """The claim, its rule and its outcome agree with each other, the digests are new: only the runs disagree."""
    import json

    from posttrain.artifacts.digests import sealed
    from posttrain.artifacts.verify import verify
    from posttrain.evaluation import reproduce
    from posttrain.evaluation.records import redecide

    reproduce("rloo", output=tmp_path / "run", seeds="42-47", steps=3, **{"dataset.train_examples": 8})
    path = tmp_path / "run" / "artifact.json"

    def measured(report):
        return next(check for check in report.checks if check.name == "claim measurements")

    assert measured(verify(path, claims=redecide)).status == "passed"
    forged = json.loads(path.read_text())
    forged["mechanism"]["claims"][0]["measured"]["mean"] += 1.0
    path.write_text(json.dumps(sealed(forged), indent=2) + "\n")
    assert measured(verify(path, claims=redecide)).status == "failed"
    assert measured(verify(path)).status == "skipped"


def test_a_plan_binds_the_whole_configuration_of_every_arm(tmp_path):
    from posttrain.evaluation import records
    from posttrain.evaluation.experiment import study
    from posttrain.evaluation.study import Claim, Results

    plans = [records.plan(study("rloo", {"seeds": "42-47", "learning_rate": rate})) for rate in (0.05, 0.06)]
    assert plans[0]["arms"]["rloo"]["config_sha256"] != plans[1]["arms"]["rloo"]["config_sha256"]
    claim = Claim("X", "x", "x", "x", "interval above threshold", 0.0, lambda results: {"x": results.final("main")})
    for seeds, outcome in ((5, "inconclusive"), (6, "confirmed")):
        runs = [{"final": {"accuracy": 0.5 + i / 100}} for i in range(seeds)]
        assert claim.decide(Results({"main": runs}))["outcome"] == outcome


def test_what_tables_would_hide_is_said_at_the_end():
    def done(found, *rows):
        return Done({}, list(rows), [], {}, found)

    assert list(remarks([done({}, {"unscored": 0, "supervised_positions": 8.0}, {"supervised_positions": 1.0})])) == []
    damaged, unscored, idle = remarks(
        [
            done({"teacher_store_corrupt": 2}, {"unscored": 3, "supervised_positions": 4.0}),
            done({"teacher_store_corrupt": 1}, {"unscored": 4, "supervised_positions": 0.0}),
        ]
    )
    assert damaged.startswith("3 damaged entries")
    assert unscored.startswith("7 completions have no reward")
    assert idle.startswith("1 of 2 updates had no token to learn from")
