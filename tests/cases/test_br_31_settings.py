"""Case BR-31: settings that are misspelt, misplaced, or read as something else."""

import pytest

from posttrain import assembly
from posttrain.cli import main
from posttrain.settings import load

SHORT = ("dataset.train_examples=8", "dataset.validation_examples=4", "steps=2", "seeds=3")
FILE = """\
tier: l1
dataset: {name: decisions, train_examples: 8, validation_examples: 4}
policy: {name: factored, start: student}
reward: positions
evaluation: {accuracy: positions, reward: positions}
group_size: 4
seeds: 3
"""


@pytest.fixture
def nothing_is_built(monkeypatch):
    """A mistake is found before a dataset or model is made."""

    def build(*arguments, **given):
        raise AssertionError("something was built")

    monkeypatch.setattr(assembly, "assemble", build)
    monkeypatch.setattr("posttrain.evaluation.preflight.assemble", build)


@pytest.mark.usefixtures("nothing_is_built")
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("learning_rte: 5e-5\nnum_epochs: 9", ["learning_rte:", "Did you mean `learning_rate`?"]),
        ("learning_rate: 5e-5\nstep: 9", ["step:", "Did you mean `steps`?"]),
        ("training: {learning_rate: 5e-5, steps: 9}", ["training.learning_rate:", "Did you mean `learning_rate`?"]),
        ("algorithm: {learning_rate: 5e-5}", ["algorithm.learning_rate:", "`grpo` has no such setting"]),
        ("optim: {learning_rate: 5e-5}", ["optim:", "one of adamw_torch, sgd"]),
        ("num_train_epochs: 9", ["num_train_epochs:", "Write steps="]),
        ("learning_rate: 5e-5\nlearning_rate: 2e-4", ["learning_rate", "duplicate"]),
        ("policy: {name: factored, name: tree}", ["policy", "duplicate"]),
    ],
)
def test_br_31_a_key_of_the_file_that_is_unknown_misplaced_or_given_twice_ends_the_command(
    tmp_path, capsys, lines, said
):
    """BR-31, the file: a non-zero exit before anything is built, with the full path and the nearest key."""
    file = tmp_path / "mine.yaml"
    file.write_text(FILE + lines)
    assert main(["train", "grpo", "--config", str(file), "--output", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in said), message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("algorithm", "word", "place", "value"),
    [
        ("grpo", "learning_rate=1e-5", "learning_rate", 1e-05),
        ("grpo", "learning_rate=1e-9", "learning_rate", 1e-09),
        ("sparse-opd", "policy.replacement=False", "policy.replacement", False),
        ("sparse-opd", "policy.replacement=no", "policy.replacement", False),
        ("sparse-opd", "policy.replacement=True", "policy.replacement", True),
    ],
)
def test_br_31_a_word_is_the_number_or_the_truth_that_it_reads_as(algorithm, word, place, value):
    """BR-31: 1e-5 is a float (PyYAML reads text), False and no are false (bool('False') is true)."""
    found = load(algorithm, overrides=[word])
    for part in place.split("."):
        found = getattr(found, part)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("value", ["1e-5", "1.0e-5", "0.00001", "'1e-5'"])
def test_br_31_a_number_of_the_file_is_the_number(tmp_path, value):
    """BR-31: whatever YAML 1.1 thinks of 1e-5."""
    file = tmp_path / "mine.yaml"
    file.write_text(FILE + f"learning_rate: {value}")
    found = load("grpo", config=str(file)).learning_rate
    assert (type(found), found) == (float, 1e-05)


@pytest.mark.usefixtures("nothing_is_built")
@pytest.mark.parametrize(
    ("algorithm", "word", "said"),
    [
        ("grpo", "lr=1e-5", ["lr:", "Write learning_rate"]),
        ("grpo", "steps=1e3", ["steps:", "a whole number"]),
        ("grpo", "steps=2.5", ["steps:", "2.5", "a whole number"]),
        ("dpo", "algorithm.beta=-1", ["algorithm.beta:", "-1"]),
        ("grpo", "algorithm.kl_coef=-1", ["algorithm.kl_coef:", "-1"]),
        ("grpo", "+trainer.larning_rate=1", ["+trainer.larning_rate:", "Did you mean `learning_rate`?"]),
        ("grpo", "trainer.larning_rate=1", ["trainer.larning_rate:", "Did you mean `learning_rate`?"]),
        ("grpo", "+learning_rate=1", ["+learning_rate:", "Write key=value"]),
        ("grpo", "top_p=None", ["top_p:", "Leave it out"]),
        ("grpo", "seed=", ["seed:", "empty"]),
        ("grpo", "seed=''", ["seed:", "seeds"]),
        ("grpo", "seeds=", ["seeds:", "seeds=42-44"]),
        ("grpo", "steps=''", ["steps:", "a whole number"]),
        ("sparse-opd", "policy.replacement=''", ["policy.replacement:", "true or false"]),
    ],
)
def test_br_31_a_word_that_means_nothing_ends_the_command_with_its_name(capsys, tmp_path, algorithm, word, said):
    """BR-31: refused with the field's name, also for an additive override."""
    assert main(["train", algorithm, word, "--output", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in said), message
    assert not (tmp_path / "run").exists()


def test_br_31_the_stored_configuration_gives_the_same_object(tmp_path):
    """BR-31: config.yaml of a run, loaded again, is the resolved configuration of that run."""
    words = [*SHORT, "learning_rate=1e-5", "algorithm.clip=0.3"]
    assert main(["train", "grpo", *words, "--output", str(tmp_path / "run")]) == 0
    assert load("grpo", config=str(tmp_path / "run" / "config.yaml")) == load("grpo", overrides=words)
