"""What the README shows is what the program prints, and every command in it is one that the program knows."""

import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from posttrain import cli, settings

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LINES = [line.partition("  #")[0].strip() for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in LINES if line.startswith("posttrain ")]


def test_the_demo_prints_what_the_readme_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = StringIO()
    with redirect_stdout(output):
        assert cli.main(["train", "sparse-opd"]) == 0
    [shown] = [block for block in BLOCKS if block.startswith("train sparse-opd")]
    assert [line.rstrip() for line in output.getvalue().splitlines()] == [line.rstrip() for line in shown.splitlines()]


def test_the_readme_has_commands():
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_is_spelled_right(command):
    """Verb, flags and, where they name nothing of the reader's own, the settings."""
    options, words = cli.command_line().parse_known_args(shlex.split(command)[1:])
    named = [options.algorithm] if "algorithm" in options else getattr(options, "algorithms", [])
    words += [word for word in named if "=" in word]
    assert words == [] or options.settings
    if options.settings and not re.search(r"[A-Z]{4}|\.json|\.parquet|gsm8k|my-opd|runs/", command):
        for name in named:
            if "=" not in name:
                settings.load(name, getattr(options, "tier", None) or "l1", getattr(options, "config", None), words)
