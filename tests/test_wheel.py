"""The wheel: everything a user needs is in it, and it runs without the clone."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS = ["train", "sparse-opd", "steps=2", "seeds=42"]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The contents of a wheel built from a copy of the sources, so that the clone stays clean."""
    clone, wheels, place = (tmp_path_factory.mktemp(name) for name in ("clone", "wheels", "site"))
    for name in ("posttrain", "configs"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, clone)
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir"]
    built = subprocess.run([sys.executable, *command, str(wheels), "."], cwd=clone, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def files(folder: Path, pattern: str = "*") -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob(pattern) if path.is_file()}


def test_every_module_schema_template_and_configuration_is_in_the_wheel(unpacked):
    """An empty package list or a forgotten data file shows here and nowhere in a clone."""
    source = {name for name in files(ROOT / "posttrain") if "__pycache__" not in name}
    assert files(unpacked / "posttrain") - {f"configs/{name}" for name in files(ROOT / "configs")} == source
    assert files(unpacked / "posttrain" / "configs") == files(ROOT / "configs")
    assert "artifacts/schemas/artifact-v2.json" in source
    assert "py.typed" in source


def test_the_list_of_packages_names_every_folder_with_modules():
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(data["tool"]["setuptools"]["packages"])
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "posttrain").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert found <= listed
    assert listed - found <= {"posttrain.artifacts.schemas", "posttrain.configs"}


def test_nothing_else_is_installed_beside_the_package(unpacked):
    assert {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")} == {"posttrain"}


def test_the_metadata_name_the_licence_the_command_and_the_runtime_dependencies(unpacked):
    (info,) = unpacked.glob("*.dist-info")
    metadata = (info / "METADATA").read_text()
    assert "License-Expression: Apache-2.0" in metadata
    assert (info / "entry_points.txt").read_text() == "[console_scripts]\nposttrain = posttrain.cli:main\n"
    required = {
        line.removeprefix("Requires-Dist: ").split(">")[0].split("<")[0].strip()
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra ==" not in line
    }
    promised = "torch transformers datasets accelerate numpy scipy omegaconf safetensors rich"
    assert required == set(promised.split())


def test_the_command_runs_from_the_wheel_in_a_folder_without_the_clone(unpacked, tmp_path):
    """The same bytes as from the clone: configurations, schemas and templates are found inside the package."""
    from posttrain.cli import main

    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    code = "import sys; from posttrain.cli import main; sys.exit(main(sys.argv[1:]))"  # what the console script does

    def command(*words: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    where = "import posttrain; print(posttrain.__file__)"
    shown = subprocess.run([sys.executable, "-c", where], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert Path(shown.stdout.strip()).is_relative_to(unpacked)
    assert command(*WORDS, "--output", "wheel").splitlines()[-1] == "wheel/artifact.json"
    assert "verified at V0, V1, V2" in command("verify", "wheel")
    command("new", "algorithm", "my-opd")
    assert (tmp_path / "configs" / "my-opd" / "l1.yaml").is_file()
    assert main([*WORDS, "--output", str(tmp_path / "clone")]) == 0
    assert (tmp_path / "wheel" / "artifact.json").read_bytes() == (tmp_path / "clone" / "artifact.json").read_bytes()
