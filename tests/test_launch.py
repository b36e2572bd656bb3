"""Launchers: whoever starts the program, and however many processes, the artifact is the same bytes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import ranks
from posttrain.cli import main
from posttrain.registry import ConfigError

ROOT = Path(__file__).parents[1]
PROGRAMS = Path(sys.executable).parent
LITERAL = ["train", "sparse-opd", "steps=2", "seeds=42"]
SPREAD = ["train", "grpo", "dataset.train_examples=8", "dataset.validation_examples=4", "steps=3", "seeds=1-3"]
ALONE = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH", "CUDA_VISIBLE_DEVICES")


def begun(command: list[str], cwd: Path, **environment: str) -> subprocess.Popen:
    """A process without the variables of whoever runs the tests; `PYTHONPATH` only where it is given."""
    variables = {key: value for key, value in os.environ.items() if key not in ALONE}
    variables |= {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**variables, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen, code: int = 0, timeout: float = 120) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # a launcher passes it on to its workers
        process.communicate()
        raise
    assert process.returncode == code, err[-3000:]
    return out, err


def program(name: str) -> str:
    path = PROGRAMS / name
    if not path.exists():
        pytest.skip(f"{name} is not installed beside this Python")
    return str(path)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, bytes]:
    """The artifacts of the two commands, made in this process."""
    folder = tmp_path_factory.mktemp("here")
    for name, words in (("literal", LITERAL), ("spread", SPREAD)):
        assert main([*words, "--output", str(folder / name)]) == 0
    return {name: (folder / name / "artifact.json").read_bytes() for name in ("literal", "spread")}


# -- one process ------------------------------------------------------------------------------------------------------


def test_the_literal_command_runs_from_the_root_and_makes_the_same_bytes(tmp_path, expected):
    """`accelerate launch posttrain train sparse-opd`: the launcher runs the package folder as a script."""
    output = tmp_path / "run"
    words = [*LITERAL, "--output", str(output)]
    out, _ = ended(begun([program("accelerate"), "launch", "posttrain", *words], ROOT, CUDA_VISIBLE_DEVICES="0,1,2"))
    assert out.splitlines()[-1] == str(output / "artifact.json")
    assert (output / "artifact.json").read_bytes() == expected["literal"]


def test_the_package_is_a_module_and_a_folder_to_run_from_anywhere(tmp_path, expected):
    """`python -m posttrain` and `python /path/to/posttrain`, with any accelerators made visible or hidden."""
    ways = {
        "module": ([sys.executable, "-m", "posttrain"], {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}),
        "folder": ([sys.executable, str(ROOT / "posttrain")], {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}),
    }
    started = {
        name: begun([*command, *LITERAL, "--output", name], tmp_path, **environment)
        for name, (command, environment) in ways.items()
    }
    for name, process in started.items():
        ended(process)
        assert (tmp_path / name / "artifact.json").read_bytes() == expected["literal"]


def test_accelerate_launches_the_module_from_any_folder(tmp_path, expected):
    command = [program("accelerate"), "launch", "-m", "posttrain", *LITERAL, "--output", "run"]
    ended(begun(command, tmp_path, PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES=""))
    assert (tmp_path / "run" / "artifact.json").read_bytes() == expected["literal"]


def test_run_as_a_folder_no_file_of_the_package_hides_another_module(tmp_path):
    """A file such as posttrain/registry.py must not answer to `import registry`."""
    code = (
        "import runpy, sys\nsys.argv = ['posttrain', '--version']\nsys.path.insert(0, sys.argv[1])\n"
        f"sys.path[0] = {str(ROOT / 'posttrain')!r}\n"
        f"try: runpy.run_path({str(ROOT / 'posttrain' / '__main__.py')!r}, run_name='__main__')\n"
        "except SystemExit: pass\nprint(sys.path[0])\n"
        "try: import registry\nexcept ModuleNotFoundError: print('hidden by nothing')\n"
    )
    out, _ = ended(begun([sys.executable, "-c", code.replace("sys.argv[1]", "''")], tmp_path))
    assert out.splitlines()[-2:] == [str(ROOT), "hidden by nothing"]


# -- several processes ------------------------------------------------------------------------------------------------


PACKAGE = str(ROOT / "posttrain")


def torchrun(count: int, folder: Path, *words: str, **environment: str) -> subprocess.Popen:
    """`--standalone` takes a free port, so that several launchers can run beside each other."""
    command = [program("torchrun"), "--standalone", "--nproc_per_node", str(count), *words]
    return begun(command, folder, ACCELERATE_USE_CPU="true", **environment)


def test_two_ranks_make_the_same_bytes_as_one(tmp_path, expected):
    out, _ = ended(torchrun(2, tmp_path, PACKAGE, *SPREAD, "--output", "run"))
    assert (tmp_path / "run" / "artifact.json").read_bytes() == expected["spread"]
    assert [line for line in out.splitlines() if line == "run/artifact.json"] == ["run/artifact.json"]
    assert main(["verify", str(tmp_path / "run")]) == 0


@pytest.mark.slow
def test_eight_ranks_of_which_five_have_no_seed_make_the_same_bytes_as_one(tmp_path, expected):
    ended(torchrun(8, tmp_path, PACKAGE, *SPREAD, "--output", "run", CUDA_VISIBLE_DEVICES="0,1,2,3,4,5,6,7"))
    assert (tmp_path / "run" / "artifact.json").read_bytes() == expected["spread"]


FAILS = """
from dataclasses import dataclass

from posttrain.registry import rewards


@rewards.register("fails")
@dataclass(frozen=True)
class Fails:
    '''Cannot judge the problems of seed 2, which only one of two ranks finds out.'''

    def __call__(self, problem, text):
        if problem.id.startswith("2/"):
            raise ArithmeticError("seed 2 is lost")
        return 1.0
"""


def test_an_error_on_one_rank_ends_all_of_them_and_leaves_no_artifact(tmp_path):
    """The others wait for that rank's results; it must not in turn wait for them at a barrier."""
    (tmp_path / "fails.py").write_text(FAILS)
    words = [*SPREAD[:-1], "seeds=1-2", "reward=fails", "--plugin", "fails.py", "--output", "run"]
    _, err = ended(torchrun(2, tmp_path, PACKAGE, *words), code=1, timeout=60)
    assert "posttrain: seed 2 is lost" in err
    assert not (tmp_path / "run" / "artifact.json").exists()


REFUSES = """
def score(completion, id):
    # Rank 1 of two trains seed 2.
    return "yes" if id.startswith("2/") else 1.0
"""


def test_br_20_c_a_reward_that_fails_on_one_rank_ends_both_and_names_rank_and_function(tmp_path):
    """BR-20 (c): both exit non-zero within the time limit; the message says which rank and which function."""
    (tmp_path / "refuses.py").write_text(REFUSES)
    words = [*SPREAD[:-1], "seeds=1-2", "reward.name=function", "reward.source=refuses.py:score", "--output", "run"]
    _, err = ended(torchrun(2, tmp_path, PACKAGE, *words), code=1, timeout=60)
    assert "posttrain: rank 1: reward `refuses.py:score`, sample 0 (problem 2/train/" in err
    assert "found 'yes', expected a finite number, None or a Failure" in err
    assert not (tmp_path / "run" / "artifact.json").exists()


GRADIENTS = """
import json, sys
import torch
from posttrain import ranks
from posttrain.batch import Rollouts
from posttrain.registry import algorithms
from posttrain.testing import Setting, draw, trainer_for

torch.set_num_threads(1)
joined = ranks.join()
found = {}
for name in ("grpo", "ppo", "dpo"):
    for groups in (1, 3):  # of one group, one of two ranks has none
        trainer = trainer_for(algorithms.get(name)(), Setting("tree", problems=groups))
        problems, rollouts = draw(trainer)
        trainer.ranks = joined
        gradient = trainer.gradient(problems, rollouts)
        step = trainer.step(1)
        weights = torch.cat([p.detach().flatten() for p in trainer.parameters])
        found[f"{name}, {groups} groups"] = [gradient.tolist(), weights.tolist(), step]
if joined.main:
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
ranks.leave(joined)
ranks.end(0)
"""


def test_rows_spread_over_processes_give_the_gradient_the_update_and_the_diagnostics_of_one(tmp_path):
    """Also where a rank has no group. 1e-12: the sums are cut at another place."""
    (tmp_path / "gradients.py").write_text(GRADIENTS)
    alone = begun([sys.executable, "gradients.py", "one.json"], tmp_path, PYTHONPATH=str(ROOT))
    together = torchrun(2, tmp_path, "gradients.py", "two.json", PYTHONPATH=str(ROOT))
    ended(alone)
    ended(together, timeout=60)
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert one.keys() == two.keys()
    for name, (gradient, weights, step) in one.items():
        assert max(map(abs, gradient)) > 1e-3, name
        assert two[name][0] == pytest.approx(gradient, abs=1e-12), name
        assert two[name][1] == pytest.approx(weights, abs=1e-9), name  # AdamW divides by the size of the gradient
        assert two[name][2].keys() == step.keys(), name
        assert two[name][2] == pytest.approx(step, abs=1e-10), name


def test_more_processes_announced_than_joined_are_refused(monkeypatch):
    """Otherwise two runs would each believe to be the only one."""
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setenv("WORLD_SIZE", "2")

    class Alone:
        num_processes, process_index = 1, 0

        def __init__(self, cpu):
            assert cpu

    monkeypatch.setattr(accelerate, "PartialState", Alone)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 2, but 1 process\(es\) joined.*torchrun --nproc_per_node 2"):
        ranks.join()


def test_a_world_of_which_nobody_knows_more_than_its_size_is_refused_and_nothing_left_behind(tmp_path):
    process = begun([sys.executable, "-m", "posttrain", *LITERAL], tmp_path, PYTHONPATH=str(ROOT), WORLD_SIZE="2")
    _, err = ended(process, code=2)
    assert err.startswith("posttrain: launcher: WORLD_SIZE is 2, but no other process")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [None, "1"])
def test_one_process_joins_nobody(monkeypatch, size):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size:
        monkeypatch.setenv("WORLD_SIZE", size)
    assert ranks.join() == ranks.Ranks(0, 1)
