"""Laws of provenance: what is recorded keeps its schema, tells no secret, and says dirty only of what was run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from complete_run import execution_body
from hypothesis import given
from hypothesis import strategies as st

from posttrain.artifacts.digests import code_digest
from posttrain.artifacts.manifest import execution_document
from posttrain.artifacts.provenance import (
    RECORDED_VARIABLES,
    code_state,
    environment,
    environment_class,
    hardware,
    redact,
)
from posttrain.artifacts.redaction import redact_config

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def test_the_records_of_this_machine_keep_the_schema(complete):
    record = execution_body([], "sha256:" + "0" * 64)
    record |= {"environment": environment(), "hardware": hardware(1), "code": code_state(complete.package)}
    document = execution_document(record)
    assert document["execution"]["hardware"]["blas"]["threads"] == 1


def test_every_null_has_a_reason(complete):
    for record in (environment(), hardware(), code_state(complete.package)):
        blas = record.get("blas", {})
        empty = {key for key, value in record.items() if value is None} | {
            f"blas.{k}" for k, v in blas.items() if v is None
        }
        assert empty <= set(record["unknown"])
        assert all(record["unknown"].values())


def test_of_the_environment_only_listed_variables_are_recorded(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "very-secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    recorded = environment()["env"]
    assert recorded["OMP_NUM_THREADS"] == "1"
    assert set(recorded) <= set(RECORDED_VARIABLES)
    assert "very-secret" not in str(environment())


def test_a_lock_file_is_recorded_by_its_digest(tmp_path):
    (tmp_path / "lock").write_bytes(b"")
    assert environment(tmp_path / "lock")["lock_sha256"].startswith("sha256:e3b0c442")


def test_packages_are_named_alike_however_they_spell_themselves():
    packages = environment()["packages"]
    assert list(packages) == sorted(packages)
    assert "numpy" in packages
    assert all(name == name.lower() and "_" not in name for name in packages)


def test_describing_a_machine_imports_neither_torch_nor_scipy():
    code = "import sys; from posttrain.artifacts import provenance as p, verify; p.hardware(1); p.environment_class()"
    code += "; print(sorted({'torch', 'scipy', 'transformers'} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_environment_class_is_the_same_twice_and_follows_its_records():
    env, machine = environment(), hardware(1)
    here = environment_class(env, machine)
    assert here == environment_class(environment(), hardware(1))
    assert set(here) == {
        *("platform", "python", "numpy", "scipy", "torch", "flags_sha256", "blas", "torch_threads", "deterministic"),
    }
    assert environment_class(env, hardware(2)) != here
    assert environment_class({**env, "packages": {**env["packages"], "numpy": "0"}}, machine) != here
    assert environment_class({**env, "kernel": "another"}, machine) == here


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A committed repository with a package, configs and documentation."""
    for key, value in (("GIT_CONFIG_GLOBAL", os.devnull), ("GIT_CONFIG_SYSTEM", os.devnull)):
        monkeypatch.setenv(key, value)
    for name, text in (
        ("posttrain/__init__.py", '__version__ = "1.2.3"\n'),
        ("posttrain/a.py", "x = 1\n"),
        ("configs/a.yaml", "steps: 1\n"),
        ("docs/a.md", "text\n"),
        (".gitignore", "__pycache__/\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message=a")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@needs_git
def test_a_clean_checkout_has_a_full_commit_and_no_difference(checkout):
    state = code_state(checkout / "posttrain")
    assert state["git_commit"] == git(checkout, "rev-parse", "HEAD")
    assert (state["git_dirty"], state["diff_sha256"], state["package_version"]) == (False, None, "1.2.3")
    assert state["dirhash"] == code_digest(checkout / "posttrain")


@needs_git
def test_only_the_package_and_its_configs_can_be_dirty(checkout):
    (checkout / "docs/a.md").write_text("other\n")
    (checkout / "new.py").write_text("")
    (checkout / "posttrain/__pycache__").mkdir()
    (checkout / "posttrain/__pycache__/a.pyc").write_text("")
    assert code_state(checkout / "posttrain")["git_dirty"] is False
    digests = []
    for name, text in (("posttrain/a.py", "x = 2\n"), ("configs/a.yaml", "steps: 2\n"), ("configs/new.yaml", "")):
        (checkout / name).write_text(text)
        state = code_state(checkout / "posttrain")
        assert state["git_dirty"] is True
        digests.append(state["diff_sha256"])
    (checkout / "configs/new.yaml").write_text("steps: 3\n")
    digests.append(code_state(checkout / "posttrain")["diff_sha256"])
    assert len(set(digests)) == 4


@needs_git
def test_staged_changes_are_dirty_too(checkout):
    (checkout / "posttrain/a.py").write_text("x = 2\n")
    git(checkout, "add", ".")
    assert code_state(checkout / "posttrain")["git_dirty"] is True


@needs_git
def test_a_difference_that_git_cannot_form_is_unknown_and_not_clean(checkout):
    tree = git(checkout, "rev-parse", "HEAD^{tree}")
    (checkout / ".git/objects" / tree[:2] / tree[2:]).unlink()
    state = code_state(checkout / "posttrain")
    assert len(state["git_commit"]) == 40
    assert state["git_dirty"] is None
    assert set(state["unknown"]) == {"git_dirty", "diff_sha256"}


@needs_git
def test_an_installed_package_does_not_take_the_commit_of_a_checkout_around_it(checkout):
    installed = checkout / "environment/posttrain"
    shutil.copytree(checkout / "posttrain", installed)
    state = code_state(installed)
    assert state["git_commit"] is None
    assert state["git_dirty"] is None
    assert set(state["unknown"]) == {"git_commit", "git_dirty", "diff_sha256"}


def test_without_git_the_code_is_still_known_by_its_digest(complete, monkeypatch):
    monkeypatch.setenv("PATH", "")
    state = code_state(complete.package)
    assert state["git_commit"] is None
    assert state["dirhash"] == code_digest(complete.package)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--token=abc"], ["--token=<redacted>"]),
        (["--hf-token", "abc", "steps=2"], ["--hf-token", "<redacted>", "steps=2"]),
        (["hub.token=abc"], ["hub.token=<redacted>"]),
        (["teacher.apiKey=abc"], ["teacher.apiKey=<redacted>"]),
        (["--api_key", "abc"], ["--api_key", "<redacted>"]),
        (["WANDB_API_KEY=abc"], ["WANDB_API_KEY=<redacted>"]),
        (["+db.PASSWORD=a=b=c"], ["+db.PASSWORD=<redacted>"]),
        (["--client-secret", "abc"], ["--client-secret", "<redacted>"]),
        (["--password", "--verbose"], ["--password", "--verbose"]),
        (["server.url=https://me:pw@example.com/v1"], ["server.url=https://<redacted>@example.com/v1"]),
        (["-H", "Authorization: Bearer abc.def"], ["-H", "Authorization: Bearer <redacted>"]),
        (["x=hf_abcdefghijkl"], ["x=<redacted>"]),
        (["max_new_tokens=8", "--tokenizer", "t", "keys=1", "monkey=2"],) * 2,
        (["pad_token=<pad>", "sort_key=id", "group_size=4"],) * 2,
        ([],) * 2,
    ],
)
def test_a_command_line_is_recorded_without_its_secrets_and_with_everything_else(argv, shown):
    assert redact(argv) == shown
    assert redact(shown) == shown


@given(st.text(st.characters(min_codepoint=48, max_codepoint=122), min_size=6), st.sampled_from(["", "hub.", "--x-"]))
def test_no_value_of_a_flag_named_like_a_secret_survives(value, prefix):
    value = "Zq" + value
    for name in ("token", "key", "password", "secret"):
        assert value not in " ".join(redact([f"{prefix}{name}={value}", f"--{name}", value]))


def test_a_config_is_recorded_without_its_secrets_and_with_everything_else():
    config = {
        "server": {"api_key": "abc", "url": "https://a:b@c"},
        "tokens": ["hf_abcdefghijkl", 3],
        "key": None,
        "n": 1.5,
    }
    assert redact_config(config) == {
        "server": {"api_key": "<redacted>", "url": "https://<redacted>@c"},
        "tokens": ["<redacted>", 3],
        "key": None,
        "n": 1.5,
    }
