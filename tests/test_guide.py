"""The guide's files are what the program reads, its code runs, and every command in it does what it is there for."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import cli, tiny
from posttrain.data.rows import USUAL
from posttrain.evaluation import facts
from posttrain.registry import rewards
from posttrain.reporting import manual
from posttrain.reporting.claims import check_text
from posttrain.reporting.licence import licence_of
from posttrain.reporting.reading import read_suite

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs/guide/rows-and-rewards.md").read_text()
PUBLISHING = (ROOT / "docs/guide/publishing.md").read_text()
FILES = dict(re.findall(r"^`([\w.]+)`:\n\n```\w*\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL))
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("   #")[0].strip()
    for _, block in BLOCKS
    for line in block.splitlines()
    if line.startswith("posttrain ")
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny student with a chat template, as a folder of one's own."""
    folder = tmp_path_factory.mktemp("models") / "student"
    shutil.copytree(tiny.located("tiny:student"), folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the guide's files."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


def test_the_guide_has_files_and_commands():
    assert set(FILES) == {"rows.jsonl", "conversations.jsonl", "pairs.jsonl", "worked.csv", "my.py"}
    assert len(COMMANDS) == 11


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_guide_works_with_its_files(here, model, capsys, command):
    """Evaluations run; what would train is explained, which builds, draws and judges as training does."""
    _, verb, *words = shlex.split(command)
    words = [word.replace("FOLDER", str(model)) for word in words]
    if verb == "train":
        verb = "explain"
    assert cli.main([verb, *words]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def test_the_code_of_the_guide_says_what_the_guide_says(here):
    (code,) = [block for kind, block in BLOCKS if kind == "python" and "load_plugins" in block]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    own, nonsense = ran.stdout.splitlines()
    assert set(re.findall(r"[\d.]+", own)) == {"1.0"}
    assert set(re.findall(r"[\d.]+", nonsense)) == {"0.0"}


def test_every_reward_and_every_usual_name_of_a_column_is_in_the_guide():
    """`axes` belongs to the candidates of one dataset, and `function` is written as what it runs."""
    table = GUIDE.partition("## Rewards")[2]
    missing = [name for name in rewards.names() if f"`{name}`" not in table]
    assert [name for name in missing if rewards.get(name).__module__.startswith("posttrain.")] == ["axes", "function"]
    names = GUIDE.partition("### Names of your own")[2].partition("`worked.csv`")[0]
    for field, usual in USUAL.items():
        assert f"dataset.columns.{field}" in names
        assert all(f"`{name}`" in names for name in usual)


def test_the_guide_is_found_from_the_overview_of_the_documentation():
    assert "(guide/rows-and-rewards.md)" in (ROOT / "docs/README.md").read_text()


# -- from a run to a page ----------------------------------------------------------------------------------------------


def sentences(kind: str) -> list[str]:
    (block,) = re.findall(rf"^```{kind}\n(.*?)^```$", PUBLISHING, re.MULTILINE | re.DOTALL)
    return block.splitlines()


@pytest.fixture(scope="module")
def gate():
    """The gate of hand-written text on the published page of grpo."""
    entries = read_suite(ROOT).of("grpo")
    registered = [method.name for method in facts.methods()]
    return lambda text: check_text("page.md", text, licence_of(entries), (), "grpo", registered)


@pytest.mark.parametrize("sentence", sentences("pass"))
def test_the_guide_s_sentences_that_pass_do_pass(sentence, gate):
    assert gate(sentence) == []


@pytest.mark.parametrize("sentence", sentences("refuse"))
def test_the_guide_s_sentences_that_are_refused_are_refused(sentence, gate):
    assert gate(sentence) != []


@pytest.mark.parametrize("line", [line for line in PUBLISHING.splitlines() if line.startswith("posttrain ")])
def test_the_guide_s_commands_of_publishing_are_commands(line):
    words = shlex.split(line.partition("   #")[0])[1:]
    options, settings = cli.command_line().parse_known_args(words)
    assert callable(options.run)
    assert all("=" in word for word in settings)


def test_the_guide_names_the_markers_as_they_are():
    assert f"{manual.BEGIN}\n{manual.END}\n" in PUBLISHING
