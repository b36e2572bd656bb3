"""`examples/plugin`, installed as a stranger would install it, and used without the repository's help."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "examples" / "plugin"
SMALL = ("steps=3", "dataset.train_examples=8", "dataset.validation_examples=8", "dataset.positions=8")

LAWS = """
import math

import torch
from posttrain_example import ForkingTokens

from posttrain.functional.selection import keyed_uniforms
from posttrain.testing import check_algorithm


def reference(made):
    def loss(d):
        judged = d.mask & d.valid.flatten().unsqueeze(1)
        entropy = -(d.start.exp() * d.start).sum(-1)
        draws = torch.as_tensor(keyed_uniforms(d.rollouts.keys, d.mask.shape[1], stream=23))
        score = {"highest": entropy + 1e-9 * draws, "lowest": -entropy + 1e-9 * draws, "random": draws}[made.score]
        count = math.ceil(made.keep * int(judged.sum()))
        kept = score.masked_fill(~judged, -torch.inf).flatten().argsort(descending=True)[:count]
        rewards, total = [], 0.0
        for row, valid in zip(d.rewards, d.valid):
            deviation = row[valid].std() if valid.sum() > 1 else torch.tensor(0.0)
            level = bool(deviation == 0) or not valid.any()
            rewards += [0.0] * len(row) if level else ((row - row[valid].mean()) / (deviation + 1e-4)).tolist()
        ratio = (d.of(d.log_probs) - d.of(d.start)).exp()
        for place in kept.tolist():
            row, t = divmod(place, d.mask.shape[1])
            r, a = ratio[row, t], rewards[row]
            total = total - torch.minimum(r * a, r.clamp(1 - made.clip_low, 1 + made.clip_high) * a)
        return total / count

    return loss


for made in (ForkingTokens(), ForkingTokens(keep=1.0), ForkingTokens(0.8, "lowest"), ForkingTokens(score="random")):
    print(check_algorithm(made, reference=reference(made)))
"""


def run(place, *arguments, path=()):
    """A fresh interpreter in `place` that finds the repository and the folders of `path`, and nothing else."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))}
    return subprocess.run([sys.executable, *map(str, arguments)], cwd=place, env=env, capture_output=True, text=True)


def posttrain(place, *arguments, path=()):
    return run(place, "-m", "posttrain", *arguments, path=path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder the plugin is installed into; it is built from a copy, so that nothing appears in the repository."""
    place = tmp_path_factory.mktemp("plugin")
    copy, target = place / "copy", place / "installed"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    options = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    done = run(place, "-m", "pip", "install", *options, "--target", target, copy)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def runs(installed, tmp_path_factory):
    """A run on the plugin's reward, and its study with few seeds (rates not tuned) on two processes: the artifacts."""
    place = tmp_path_factory.mktemp("runs")
    reward = ("reward=first-half", "evaluation.reward=first-half", "seeds=0,1")
    verbs = {
        "train": ("train", "forking-tokens", *reward),
        "study": ("reproduce", "forking-tokens", "seeds=42-43", "tune=null", "--jobs", 2),
    }
    for name, words in verbs.items():
        done = posttrain(place, *words, *SMALL, "--output", name, path=[installed])
        assert done.returncode == 0, done.stderr
    return {name: place / name for name in verbs}


def read(folder, name="artifact"):
    return json.loads((folder / f"{name}.json").read_text())


def test_an_installed_plugin_is_listed_with_its_options_and_claims(installed, tmp_path):
    found = json.loads(posttrain(tmp_path, "list", "--json", path=[installed]).stdout)
    algorithm = found["algorithms"]["forking-tokens"]
    assert algorithm["options"] == ["keep", "score", "clip_low", "clip_high"]
    assert algorithm["claims"] == ["F1", "F2", "F3"]
    assert "first-half" in found["rewards"]


def test_its_algorithm_trains_on_its_reward_from_the_configuration_it_ships(runs):
    artifact = read(runs["train"])
    assert artifact["method"] == "forking-tokens"
    assert artifact["provenance"]["artifact_path"].startswith("docs/post-training/2506.01939-forking-tokens/")
    assert artifact["runs"][0]["training"]["group_size"] == 8  # from the shipped YAML
    assert any("not kept" in note for note in artifact["notes"])
    assert "first-half" in (runs["train"] / "config.yaml").read_text()


def test_its_study_decides_every_claim_against_every_rival(runs):
    artifact = read(runs["study"])
    outcomes = {claim["id"]: claim["outcome"] for claim in artifact["mechanism"]["claims"]}
    assert set(outcomes) == {"F1", "F2", "F3"}
    assert set(outcomes.values()) <= {"confirmed", "refuted", "inconclusive"}
    assert {block["against"]["method"] for block in artifact["comparison"]} == {
        f"forking-tokens.{arm}" for arm in ("all", "rest", "random")
    }


def test_its_artifacts_verify_and_their_records_name_the_plugin(installed, runs):
    done = posttrain(installed, "verify", *runs.values(), path=[installed])
    assert done.returncode == 0, done.stdout + done.stderr
    for folder in runs.values():
        plugins = read(folder, "execution")["execution"]["plugins"]
        assert [plugin["name"] for plugin in plugins] == ["posttrain_example"]


def test_its_algorithm_obeys_the_laws_and_equals_a_dense_reference(installed, tmp_path):
    (tmp_path / "laws.py").write_text(LAWS)
    done = run(tmp_path, "laws.py", path=[installed])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("law 5") == 8  # four settings, on a factored and on a tree policy
    assert "give a dense loss" not in done.stdout


def test_its_files_work_as_plain_plugins_without_an_installation(tmp_path):
    folder = SOURCE / "src" / "posttrain_example"
    plugins = [word for name in ("forking_tokens", "first_half") for word in ("--plugin", folder / f"{name}.py")]
    words = ("reward=first-half", "seeds=0", *SMALL, "--output", "run")
    done = posttrain(tmp_path, "train", "forking-tokens", *words, *plugins)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "artifact.json").read_text())["method"] == "forking-tokens"


def test_a_broken_entry_point_is_an_error_that_names_the_plugin_and_leaves_nothing(tmp_path):
    installed, place = tmp_path / "installed", tmp_path / "place"
    info = installed / "broken_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    place.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[posttrain.plugins]\nhalf-done = broken_plugin\n")
    (installed / "broken_plugin.py").write_text("raise RuntimeError('no such sensor')\n")
    done = posttrain(place, "train", "grpo", "--output", "run", path=[installed])
    assert done.returncode == 2
    assert "plugin `half-done` does not import: RuntimeError: no such sensor" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(place.iterdir())
