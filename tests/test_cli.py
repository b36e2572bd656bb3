"""The command line: exit codes, where the artifact's path stands, and that bad input leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import __version__
from posttrain.cli import main
from posttrain.evaluation.study import studies
from posttrain.registry import algorithms

ROOT = Path(__file__).parents[1]
QUICK = ["dataset.train_examples=8", "dataset.validation_examples=4", "steps=1", "seeds=1"]
VERBS = ["train", "explain", "reproduce", "compare", "eval", "verify", "list", "new", "env"]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def said(capsys, *words: str, code: int = 0) -> str:
    """What the command prints; on an error, what it says on the error stream."""
    try:
        found = main(list(words))
    except SystemExit as left:
        found = left.code
    out, err = capsys.readouterr()
    assert found == code, err or out
    return out if code == 0 else err


def left_behind() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


# -- help -------------------------------------------------------------------------------------------------------------


def test_without_a_verb_the_help_is_shown(capsys):
    out = said(capsys)
    assert all(verb in out for verb in VERBS)
    assert said(capsys, "--help") == out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_a_line_in_the_overview(capsys, verb):
    out = said(capsys, verb, "--help")
    assert out.startswith(f"usage: posttrain {verb}")
    assert verb in said(capsys, "--help")


def test_the_version_is_that_of_the_package(capsys):
    assert said(capsys, "--version") == f"posttrain {__version__}\n"
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


def imported(*arguments: str, cwd: Path) -> set[str]:
    """Top-level names of all modules that a command has imported when it ends."""
    code = (
        "import sys\nfrom posttrain.cli import main\ncode = 0\n"
        "try: code = main(sys.argv[1:])\nexcept SystemExit as left: code = left.code\n"
        "print('code', code, file=sys.stderr)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    *_, code, names = ended.stderr.splitlines()
    assert code == "code 0", ended.stderr
    return set(names.split())


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"], []])
def test_help_imports_nothing_heavy(tmp_path, words):
    heavy = {"torch", "numpy", "scipy", "rich", "omegaconf", "transformers", "datasets", "accelerate", "safetensors"}
    assert not imported(*words, cwd=tmp_path) & heavy


def test_training_on_a_candidate_policy_never_imports_what_language_models_need(tmp_path):
    found = imported("train", "grpo", *QUICK, cwd=tmp_path)
    assert "torch" in found
    assert not found & {"transformers", "datasets", "accelerate", "tokenizers", "huggingface_hub", "tensorboard"}


def test_one_process_alone_verifies_without_torch(tmp_path, capsys):
    """The check of an artifact belongs to those who have no GPU and no framework: nothing but the standard library."""
    code = "import sys, posttrain.artifacts.verify\nprint('torch' in sys.modules, 'omegaconf' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "False False\n"


# -- exit codes and the last line -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["train", "grpo", *QUICK, "--output", "a"], "a/artifact.json"),
        (["train", "grpo", *QUICK, "--tier", "l0", "--output", "b/c"], "b/c/artifact.json"),
        (["compare", "grpo", "rloo", *QUICK, "--output", "d"], "d/artifact.json"),
        (["reproduce", "grpo", *QUICK, "--output", "e"], "e/artifact.json"),
    ],
    ids=["train", "smoke", "compare", "reproduce"],
)
def test_the_last_line_of_a_run_is_the_path_of_its_artifact(capsys, words, place):
    out = said(capsys, *words)
    assert out.splitlines()[-1] == place
    assert json.loads(Path(place).read_text())["schema_version"] == 2


def test_output_of_a_run_is_a_table_per_seed_one_overall_and_a_sentence(capsys):
    words = ["dataset.train_examples=8", "dataset.validation_examples=4", "steps=2", "seeds=1-2"]
    out = said(capsys, "train", "opd", *words, "--output", "a")
    titles = ["per seed: before→after", "overall: mean of 2 seeds", "Accuracy rose in"]
    places = [out.index(title) for title in titles]
    assert places == sorted(places)
    for metric in ("accuracy", "reward", "entropy", "KL to", "reference", "teacher", "before", "after", "change"):
        assert metric in out
    assert "no statement of a difference: the smallest p that 2 can reach is 0.5000; 6 are the least." in out


def test_no_number_and_no_name_of_a_run_is_shortened_to_fit_the_terminal(capsys):
    """Eighty columns are what a terminal and a log have; a shortened name is no name."""
    words = ["dataset.train_examples=8", "dataset.validation_examples=4", "steps=2", "seeds=1-6"]
    out = said(capsys, "train", "opd", *words, "controls=shuffled_teacher", "--output", "a")
    assert "shuffled_tea" in out
    assert "…" not in out


def test_a_run_without_a_teacher_shows_no_distance_to_one(capsys):
    assert "teacher" not in said(capsys, "train", "reinforce", *QUICK, "--output", "a")


def test_verify_tells_complete_damaged_and_missing_apart_by_its_exit_code(capsys):
    """0 verified, 1 failed, 3 could not be verified; of several the worst counts, and a failure before all."""
    said(capsys, "train", "grpo", *QUICK, "--output", "good")
    shutil.copytree("good", "bad")
    artifact = Path("bad/artifact.json")
    artifact.write_text(artifact.read_text().replace('"learning_rate": 0.05', '"learning_rate": 0.06'))
    shutil.copytree("good", "half")
    Path("half/artifact.json").unlink()
    for folders, code in (
        (["good"], 0),
        (["good/artifact.json"], 0),
        (["bad"], 1),
        (["half"], 3),
        (["nowhere"], 3),
        (["good", "half"], 3),
        (["half", "bad", "good"], 1),
    ):
        assert main(["verify", *folders]) == code, folders
    out = capsys.readouterr().out
    assert "content digest" in out
    assert "there is no artifact.json: the run is incomplete" in out


def test_verify_reports_as_json_one_entry_a_path(capsys):
    said(capsys, "train", "grpo", *QUICK, "--output", "good")
    report = json.loads(said(capsys, "verify", "good", "good/artifact.json", "--json"))
    assert [entry["path"] for entry in report] == ["good", "good/artifact.json"]
    for entry in report:
        statuses = {check["status"] for check in entry["checks"]}
        assert "passed" in statuses
        assert "failed" not in statuses
        assert any("V3" in line for line in entry["not_checked"])


# -- bad input --------------------------------------------------------------------------------------------------------

CLASH = """
from dataclasses import dataclass
from posttrain.registry import algorithms

@algorithms.register("grpo")
@dataclass(frozen=True)
class Mine:
    pass
"""


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trian", "grpo"], ["invalid choice: 'trian'"]),
        (["train"], ["the following arguments are required: ALGO"]),
        (["train", "grpo", "--nonsense"], ["--nonsense: settings are written without dashes"]),
        (["train", "grpo", "--learning-rate=1"], ["Write learning_rate=VALUE"]),
        (["train", "grpo", "--out", "x"], ["--out"]),
        (["train", "grpoo"], ["unknown algorithm `grpoo`. Did you mean `grpo`?"]),
        (["train", "grpo", "learning_rat=1"], ["learning_rat: there is no such setting.", "`learning_rate`?"]),
        (["train", "grpo", "steps=1", "steps=2"], ["steps: given twice"]),
        (["train", "grpo", "steps=2.5"], ["steps: found 2.5, expected a whole number"]),
        (["train", "grpo", "learning_rate=-1"], ["learning_rate: found -1", "a number above 0"]),
        (["train", "grpo", "seeds="], ["seeds: found none. Write seeds=42-44"]),
        (["train", "grpo", "seeds=1,1"], ["seeds: [1] given twice"]),
        (["train", "grpo", "seeds=99999999999999999999"], ["seeds: found '99999999999999999999'"]),
        (["train", "grpo", "dataset.train_examples=0"], ["dataset.train_examples: found 0, expected at least 1"]),
        (["train", "grpo", "group_size=1"], ["group_size: found 1", "Write group_size=2 or more"]),
        (["train", "opd", "teacher=null"], ["teacher: `opd` needs one. Write teacher=frozen"]),
        (["train", "grpo", "--tier", "l9"], ["--tier: found 'l9'"]),
        (["train", "grpo", "--config", "l1-stdy"], ["--config l1-stdy", "Did you mean `l1-study`?"]),
        (["train", "grpo", "--config", "no.yaml"], ["--config: there is no file no.yaml"]),
        (["train", "grpo", "--plugin", "nowhere.py"], ["plugin `nowhere.py`: there is no such file"]),
        (["train", "grpo", "--plugin", "nowhere_at_all"], ["plugin `nowhere_at_all`: there is no module of this name"]),
        (["train", "grpo", "--jobs", "0"], ["--jobs: found 0, expected at least 1"]),
        (["train", "grpo", "controls=dense"], ["controls: `dense`", "`grpo` has no `select`"]),
        # These show only when the parts meet.
        (["train", "grpo", "reward=axes"], ["reward: `axes` needs a dataset with reward axes"]),
        (["train", "grpo", "evaluation.accuracy=axes"], ["reward: `axes` needs a dataset with reward axes"]),
        (["train", "sparse-opd", "group_size=7"], ["group_size: found 7", "policy.replacement=true"]),
        (["train", "gkd", "group_size=2"], ["group_size: `gkd` trains on data rows"]),
        (["train", "gkd", "teacher=cached"], ["teacher.name: `gkd` compares full distributions"]),
        (["train", "dpo", "dataset=decisions"], ["dataset.name: `dpo` needs pairs"]),
        (["train", "grpo", "policy=bandit"], ["policy.name: `bandit` makes one choice"]),
        (["train", "opd", "dataset=arithmetic-smoke"], ["policy.start", "no checkpoint `student`"]),
        (["train", "opd", "dataset=arithmetic-smoke", "policy=bandit"], ["teacher.policy", "no checkpoint `teacher`"]),
        (["train", "grpo", "policy.start=stdent"], ["policy.start", "Did you mean `student`?"]),
        (["reproduce", "grpoo"], ["unknown algorithm `grpoo`. Did you mean `grpo`?"]),
        (["compare", "grpo"], ["compare: found 1 algorithm, expected two or more"]),
        (["compare", "grpo", "rloo", "--seeds", "3", "seeds=1-3"], ["seeds: given twice"]),
        (["compare", "grpo", "rloo", "--seeds", "0"], ["--seeds: found 0, expected at least 1"]),
        (["compare", "grpo", "sparse-opd"], ["compare: `grpo` and `sparse-opd` differ in", "no pairs"]),
        (["explain", "grpo", "steps=x"], ["steps: found 'x', expected a whole number"]),
        (["explain", "gkd", "group_size=2"], ["group_size: `gkd` trains on data rows"]),
        (["list", "steps=2"], ["list takes no steps=2"]),
        (["new", "algorithm", "My OPD"], ["new algorithm: found 'My OPD'", "such as my-opd"]),
        (["new", "algorithm", "grpo"], ["new algorithm: `grpo` exists already"]),
        (["new", "algorithm", "lambda"], ["new algorithm: 'lambda' is a word of Python"]),
        (["new", "reward", "mine"], ["invalid choice: 'reward'"]),
    ],
    ids=" ".join,
)
def test_bad_input_is_a_short_error_with_exit_code_2_and_leaves_nothing_behind(capsys, words, parts):
    err = said(capsys, *words, code=2)
    message = err.splitlines()[-1]
    for part in parts:
        assert part in message, message
    assert "Traceback" not in err
    assert len(message) < 700
    assert left_behind() == []


def test_bad_input_beside_a_given_folder_does_not_make_the_folder(capsys):
    said(capsys, "train", "sparse-opd", "group_size=7", "--output", "out", code=2)
    assert left_behind() == []


def test_a_name_that_a_plugin_takes_from_the_package_is_refused(tmp_path):
    Path("clash.py").write_text(CLASH)
    ended = command("train", "grpo", "--plugin", "clash.py", cwd=tmp_path)
    assert ended.returncode == 2
    assert "algorithm `grpo` is registered twice" in ended.stderr
    assert left_behind() == ["clash.py"]


def test_a_folder_that_cannot_be_made_is_an_error_and_no_traceback(capsys):
    Path("file").write_text("")
    assert "--output: file is not an empty folder" in said(capsys, "train", "grpo", *QUICK, "--output", "file", code=2)
    said(capsys, "train", "grpo", *QUICK, "--output", "file/out", code=1)


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(
        [sys.executable, "-m", "posttrain", *arguments], cwd=cwd, env=variables, capture_output=True, text=True
    )


# -- list, env, explain -----------------------------------------------------------------------------------------------


def test_list_shows_every_kind_of_part_and_as_json_its_options(capsys):
    text, data = said(capsys, "list"), json.loads(said(capsys, "list", "--json"))
    assert {"algorithms", "policies", "teachers", "datasets", "rewards", "controls"} <= data.keys()
    for kind in ("algorithms", "policies", "teachers", "datasets", "rewards"):
        for name, entry in data[kind].items():
            assert name in text
            assert entry["summary"] in text
    sparse = data["algorithms"]["sparse-opd"]
    assert sparse["paper"] == "2609.04565"
    assert {"l1", "l1-paper"} <= set(sparse["configurations"])
    assert sparse["claims"] == ["S1", "S2", "S3", "S4", "S5a", "S5b"]
    assert "select" in sparse["options"]
    assert all(entry["claims"] for entry in data["algorithms"].values())
    assert left_behind() == []


def test_env_shows_versions_and_hardware_and_no_names_of_machine_or_user(capsys, monkeypatch):
    monkeypatch.setenv("USER", "somebody-in-particular")
    text, data = said(capsys, "env"), json.loads(said(capsys, "env", "--json"))
    assert f"posttrain {__version__}" in text
    for package in ("torch", "numpy", "omegaconf"):
        assert f"{package} {data['environment']['packages'][package]}" in text
    assert data["hardware"]["physical_cores"] >= 1
    for out in (text, json.dumps(data)):
        assert "somebody-in-particular" not in out
        assert os.uname().nodename not in out


def test_explain_runs_nothing_and_writes_nothing(capsys, monkeypatch):
    from posttrain.trainer import Trainer

    def run(self):
        raise AssertionError("explain trains")

    monkeypatch.setattr(Trainer, "run", run)
    monkeypatch.setattr(Trainer, "step", run)
    out = said(capsys, "explain", "sparse-opd", "learning_rate=0.5")
    for title in ("configuration", "algorithm", "what runs", "what is written", "seeds", "known biases"):
        assert f"# {title}" in out
    for line in (
        "learning_rate: 0.5",
        "refresh_every: 16",
        "weight_decay: 0.0",
        "3 seeds x 100 steps of 1 problems x 4 completions",
        "6 refreshes a seed",
        "execution.json   written last",
        "docs/post-training/2609.04565-sparse-opd/metrics/arithmetic-smoke-seeds42-44.json",
        "default_rng(seed)",
        "without replacement, which biases the gradient",
        "Words of significance need 6 paired seeds",
    ):
        assert line in out, line
    assert left_behind() == []


def test_explain_names_the_folder_that_a_run_then_makes(capsys):
    words = ["grpo", *QUICK]
    announced = next(line for line in said(capsys, "explain", *words).splitlines() if line.startswith("runs/"))
    assert said(capsys, "train", *words).splitlines()[-1] == f"{announced}artifact.json"


# -- a first own algorithm --------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_stays_registered(monkeypatch):
    """What a plugin registers in this process is gone afterwards."""
    for registry in (algorithms, studies):
        registry.names()
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.usefixtures("nothing_stays_registered")
def test_a_new_algorithm_runs_keeps_the_laws_and_has_a_study(tmp_path, capsys):
    out = said(capsys, "new", "algorithm", "my-opd", "--directory", "mine")
    files = ["mine/configs/my-opd/l1.yaml", "mine/my_opd.py", "mine/test_my_opd.py"]
    assert [path for path in left_behind() if Path(path).is_file()] == files
    assert all(f"wrote {path}" in out for path in files)
    assert "posttrain train my-opd --plugin mine/my_opd.py" in out
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    laws = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "mine/test_my_opd.py"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    words = ["my-opd", "--plugin", "mine/my_opd.py", *QUICK]
    trained = command("train", *words, "--output", "trained", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.splitlines()[-1] == "trained/artifact.json"
    plugins = json.loads(Path("trained/execution.json").read_text())["execution"]["plugins"]
    assert [plugin["name"] for plugin in plugins] == ["mine/my_opd.py"]
    said(capsys, "reproduce", *words, "--output", "decided")
    claims = json.loads(Path("decided/artifact.json").read_text())["mechanism"]["claims"]
    assert [claim["id"] for claim in claims] == ["A1"]
    assert main(["verify", "trained", "decided"]) == 0
    assert laws.wait(timeout=120) == 0, laws.stdout.read()
    laws.stdout.close()


def test_files_that_are_there_are_never_overwritten(capsys):
    Path("my_opd.py").write_text("mine")
    assert "my_opd.py exists already" in said(capsys, "new", "algorithm", "my-opd", code=2)
    assert left_behind() == ["my_opd.py"]
    assert Path("my_opd.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("trian grpo", "Did you mean `train`?"),
        ("cache bild grpo", "Did you mean `build`?"),
        ("docs chekc", "Did you mean `check`?"),
        ("train grpo --save-step 5", "there is no option --save-step. Did you mean --save-steps?"),
        ("eval tiny:student --datset=steps", "there is no option --datset. Did you mean --dataset?"),
        ("bench run sequence --job 2", "there is no option --job. Did you mean --jobs?"),
    ],
)
def test_a_misspelt_verb_or_option_gets_its_neighbour(words, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--steps", "--learning_rate=0.1"])
def test_a_setting_with_dashes_is_no_misspelt_option(word, capsys):
    assert main(["train", "grpo", word]) == 2
    assert "settings are written without dashes. Write" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_ends_the_output_without_a_word():
    command = [sys.executable, "-m", "posttrain", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}) as listing:
        assert listing.stdout and listing.stderr
        listing.stdout.close()
        said = listing.stderr.read()
    assert (listing.returncode, said) == (141, b"")


@pytest.mark.parametrize("verb", ["train", "explain"])
def test_a_track_where_an_algorithm_is_asked_for_is_sent_to_its_verbs(verb, capsys):
    assert main([verb, "sequence"]) == 2
    assert "`sequence` is a bench track. Write posttrain bench run sequence" in capsys.readouterr().err
