"""A checkpoint in a folder on rows from a file, from the command line to a verified artifact (tier L3)."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from posttrain import tiny
from posttrain.cli import main
from posttrain.data.steps import Steps
from posttrain.trainer import Trainer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The tiny models' architecture with its first weights: a folder like any other."""
    folder = tmp_path_factory.mktemp("models") / "checkpoint"
    tiny.tokenizer_of(folder)
    tiny.untrained(tiny.RECIPES["student"]).save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with worked answers as plain rows and as pairs."""
    monkeypatch.chdir(tmp_path)
    problems = Steps(train_examples=40, validation_examples=1).build(0).train
    plain = [{"prompt": p.prompt, "answer": p.answer, "completion": p.responses[0]} for p in problems]
    pairs = [{"prompt": p.prompt, "chosen": p.responses[0], "rejected": p.responses[0][::-1]} for p in problems]
    for name, table in (("worked.jsonl", plain), ("pairs.jsonl", pairs)):
        Path(name).write_text("\n".join(map(json.dumps, table)))
    Path("pairs.yaml").write_text(
        "{tier: l3, seeds: 0, dataset: pairs.jsonl, policy: {name: causal_lm}, group_size: 2, learning_rate: 1.0e-5}"
    )
    return tmp_path


def train(algorithm, checkpoint, *words, code=0):
    options = ["steps=2", "problems_per_step=4", "policy.max_completion_tokens=8", "dataset.held_out=6"]
    given = ["train", algorithm, f"policy.model={checkpoint}", *words, *options, "--output", "run"]
    assert main(given) == code


def read(name):
    return json.loads(Path("run", name).read_text())


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("grpo", ["dataset=worked.jsonl", "reward=exact", "group_size=4"]),
        ("sft", ["dataset=worked.jsonl"]),
        ("dpo", ["dataset=pairs.jsonl", "--config", "pairs.yaml"]),
    ],
)
def test_a_folder_and_a_file_are_all_it_takes(here, checkpoint, capsys, algorithm, words):
    train(algorithm, checkpoint, *words)
    artifact, plan = read("artifact.json"), read("plan.json")["plan"]
    (run,) = artifact["runs"]
    assert artifact["evaluation_protocol"]["tier"] == "l3_real_model"
    assert (run["training"]["train_examples"], run["training"]["validation_examples"]) == (34, 6)
    assert "read 40, kept 40, left out 0" in run["training"]["data_source"]
    assert run["dataset"] == plan["dataset"]["id"] == f"files-{Path(words[0]).stem.removeprefix('dataset=')}"
    assert {entry["sha256"] is not None for entry in read("execution.json")["execution"]["inputs"]} == {True}
    for name in ("artifact.json", "plan.json"):
        assert str(here) not in Path("run", name).read_text()
        assert str(checkpoint) not in Path("run", name).read_text()
    assert main(["verify", "run"]) == 0
    assert "drawn again, the same fingerprint" in capsys.readouterr().out


def test_br_25_digests_of_data_model_tokenizer_and_template_are_recorded(here, checkpoint):
    """BR-25: the template's hash is in the artifact; another template or other weights give another one."""
    train("grpo", checkpoint, "dataset=worked.jsonl", "reward=exact", "group_size=2")
    first = read("artifact.json")["runs"][0]["model"]
    assert set(first) == {"weights", "tokenizer", "template"}
    inputs = {entry["path"]: entry["role"] for entry in read("execution.json")["execution"]["inputs"]}
    assert inputs["worked.jsonl"] == "dataset"
    assert inputs["checkpoint/model.safetensors"] == inputs["checkpoint/tokenizer.json"] == "model"
    other = here / "other"
    for path in checkpoint.iterdir():
        (other / path.name).parent.mkdir(exist_ok=True)
        (other / path.name).write_bytes(path.read_bytes())
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    Path("run").rename("before")
    train("grpo", other, "dataset=worked.jsonl", "reward=exact", "group_size=2")
    second = read("artifact.json")["runs"][0]["model"]
    assert second["template"] != first["template"]
    assert (second["weights"], second["tokenizer"]) == (first["weights"], first["tokenizer"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset=none.jsonl"], "dataset: there is no file `none.jsonl`"),
        (["dataset=worked.jsonl", "evaluation.reward=none.py:score"], "there is no such file"),
        (["dataset=worked.jsonl", "dataset.columns.answer=result"], "row 1: has no `result` (dataset.columns.answer)"),
        (["dataset=worked.jsonl", "policy.template.wrap=true"], "has no chat template"),
        (["dataset=pairs.jsonl", "reward=exact", "problems_per_step=64"], "given twice"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(here, checkpoint, capsys, words, said):
    train("grpo", checkpoint, "reward=exact", "group_size=2", *words, code=2)
    found = capsys.readouterr().err.strip()
    assert said in found
    assert len(found.splitlines()) == 1
    assert not Path("run").exists()


def test_a_run_of_another_file_under_the_same_name_is_noticed(here, checkpoint, capsys):
    train("sft", checkpoint, "dataset=worked.jsonl")
    rows = Path("worked.jsonl").read_text().splitlines()
    Path("worked.jsonl").write_text("\n".join(rows[:-1]))
    assert main(["verify", "run"]) == 1
    assert "drawn again it is" in capsys.readouterr().out
    Path("worked.jsonl").unlink()
    assert main(["verify", "run"]) == 0
    assert 'V2 data set: generator or files of "files-worked" are not at hand' in capsys.readouterr().out


@pytest.fixture
def unanswered(here):
    """Prompts alone, as one has them for distillation."""
    rows = [json.loads(line) for line in Path("worked.jsonl").read_text().splitlines()]
    Path("prompts.jsonl").write_text("\n".join(json.dumps({"prompt": row["prompt"]}) for row in rows))


def test_prompts_without_answers_serve_distillation_and_the_result_says_so(unanswered, checkpoint, capsys):
    """A model named as the teacher is a frozen one; nothing could be right, so accuracy says nothing."""
    train("opd", checkpoint, "dataset=prompts.jsonl", f"teacher.model={checkpoint}")
    artifact = read("artifact.json")
    assert artifact["runs"][0]["training"]["online_teacher_calls"] > 0
    assert artifact["runs"][0]["final"]["accuracy"] == 0
    [note] = [note for note in artifact["notes"] if "no answer" in note]
    assert note.startswith("6 of 6 held-out problems have no answer")
    assert note in capsys.readouterr().out.replace("\n", " ")
    assert main(["verify", "run"]) == 0


def test_answers_that_are_there_are_not_remarked_upon(here, checkpoint):
    train("grpo", checkpoint, "dataset=worked.jsonl", "reward=exact", "group_size=2")
    assert not [note for note in read("artifact.json")["notes"] if "no answer" in note]


def test_answers_that_a_reward_cannot_read_are_told_before_the_run(here, checkpoint, capsys):
    """Nobody could reach them. Where there is no other, nothing is trained."""
    rows = [json.loads(line) for line in Path("worked.jsonl").read_text().splitlines()]
    for some, code in ((rows[:10], 0), (rows, 2)):
        for row in some:
            row["answer"] = "none of these"
        Path("odd.jsonl").write_text("\n".join(map(json.dumps, rows)))
        train("grpo", checkpoint, "dataset=odd.jsonl", "reward=numeric", "group_size=2", code=code)
        said = capsys.readouterr().err
        assert f"{len(some)} of {len(rows)} answers are worth nothing to `numeric` themselves" in said
        assert "'none of these' of problem" in said
        assert Path("run/artifact.json").exists() == (code == 0)
        shutil.rmtree("run", ignore_errors=True)


@pytest.mark.parametrize("reward", ["exact", "numeric", "last_step", "sum reward.of=[exact,coin]"])
def test_a_reward_that_compares_is_refused_where_there_is_nothing_to_compare_with(
    unanswered, checkpoint, capsys, reward
):
    words = f"dataset=prompts.jsonl reward={reward}".split()
    train("grpo", checkpoint, *words, code=2)
    said = capsys.readouterr().err
    assert "compares with the answer, but 34 of 34 problems have none" in said
    assert "dataset.columns.answer=NAME" in said
    assert not Path("run/artifact.json").exists()


def test_a_judge_of_held_out_answers_needs_them_too(unanswered, checkpoint, capsys):
    words = ["dataset=prompts.jsonl", f"teacher.model={checkpoint}", "evaluation.accuracy=numeric"]
    train("opd", checkpoint, *words, code=2)
    assert "evaluation.accuracy: `numeric` compares with the answer, but 6 of 6" in capsys.readouterr().err


def test_a_prompt_and_a_completion_beyond_the_models_positions_are_refused(here, checkpoint, capsys):
    context = json.loads((checkpoint / "config.json").read_text())["max_position_embeddings"]
    words = ["dataset=worked.jsonl", "reward=exact", "group_size=2"]
    code = main(["train", "grpo", f"policy.model={checkpoint}", *words, f"policy.max_completion_tokens={context}"])
    assert code == 2
    assert f"but the model has {context} positions" in capsys.readouterr().err


def test_a_model_that_is_nowhere_is_told_in_one_line(here, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # the variable is read at the first import
    code = main(["train", "grpo", "policy.model=missing", "dataset=worked.jsonl", "reward=exact"])
    said = capsys.readouterr().err.splitlines()
    assert code == 2
    assert "policy.model: there is no folder `missing`. Give the folder of a model" in said[-1]


def test_without_a_limit_a_completion_has_the_positions_that_the_prompt_leaves(here, checkpoint):
    """The tiny models have 128 positions, fewer than the usual 256 tokens of a completion."""
    words = ["dataset=worked.jsonl", "reward=exact", "group_size=2", "steps=1", "problems_per_step=2"]
    assert main(["train", "grpo", f"policy.model={checkpoint}", *words, "--output", "run"]) == 0
    assert main(["eval", "run", "--dataset", "worked.jsonl", "--output", "measured"]) == 0


def test_a_folder_cannot_ask_for_its_own_code_to_be_run(here, checkpoint, capsys):
    """Trust is the caller's: neither an evaluation nor a rerun takes it from a record."""
    words = ["dataset=worked.jsonl", "reward=exact", "group_size=2", "policy.trust_remote_code=true"]
    train("grpo", checkpoint, *words)
    model = Path("run/model")
    folder = next(path.parent for path in model.rglob("config.json"))
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"] = {"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "mine.py").write_text("open('ran', 'w')")
    assert main(["eval", "run", "--dataset", "worked.jsonl", "--output", "measured"]) == 2
    assert "policy.trust_remote_code=true" in capsys.readouterr().err
    assert not Path("ran").exists()
    main(["verify", "run", "--rerun"])
    assert "a record cannot ask for that" in capsys.readouterr().out


def test_a_sampler_that_departs_from_the_trainer_is_noticed_before_anything_is_trained(
    here, checkpoint, capsys, monkeypatch
):
    """The parity probe is part of every start, and its log-probs are those of the sampler at hand."""
    from posttrain import assembly

    real = assembly.require_parity

    def apart(policy, rollouts, tolerance):
        real(policy, replace(rollouts, logprobs=rollouts.logprobs + 0.5 * rollouts.mask), tolerance)

    monkeypatch.setattr(assembly, "require_parity", apart)
    train("grpo", checkpoint, "dataset=worked.jsonl", "reward=exact", "group_size=2", code=1)
    assert "0.5" in capsys.readouterr().err
    assert not Path("run/artifact.json").exists()


@pytest.mark.parametrize(
    ("algorithm", "words", "said"),
    [
        (
            "grpo",
            ["dataset=pairs.jsonl", "reward=exact", "group_size=2"],
            "dataset.columns.answer: the rows are pairs (chosen, rejected) and have no column of answers",
        ),
        ("sft", ["dataset=asked.jsonl"], "dataset.columns.response: `sft` trains on given completions, but rows of"),
        ("gkd", ["dataset=asked.jsonl", "teacher.model=MODEL"], "dataset.columns.response: `gkd` trains on given"),
        ("dpo", ["dataset=asked.jsonl", "--config", "pairs.yaml"], "dataset.columns.chosen: `dpo` trains on pairs"),
        ("opd", ["dataset=asked.jsonl", "teacher.model=nowhere"], "teacher.model: there is no folder `nowhere`"),
    ],
)
def test_rows_that_do_not_fit_an_algorithm_are_refused_with_the_column_and_its_setting(
    here, checkpoint, capsys, algorithm, words, said
):
    Path("asked.jsonl").write_text("\n".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i)}) for i in range(9)))
    words = [word.replace("MODEL", str(checkpoint)) for word in words]
    given = ["train", algorithm, f"policy.model={checkpoint}", *words, "problems_per_step=4", "--output", "run"]
    assert main(given) == 2
    assert said in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize("algorithm", ["grpo", "sft", "dpo", "opd"])
def test_rows_without_a_model_are_answered_with_the_setting_that_names_one(here, capsys, algorithm):
    assert main(["train", algorithm, "dataset=worked.jsonl", "--output", "run"]) == 2
    said = capsys.readouterr().err
    assert "policy.model: nothing is chosen, but `files` has texts without candidates" in said
    assert "Write policy.model=FOLDER, or --tier l2" in said
    assert not Path("run").exists()


@pytest.mark.parametrize("word", ["chekpoint", "./chekpoint", "models/chekpoint"])
@pytest.mark.parametrize("verb", ["eval", "policy.model", "teacher.model"])
def test_a_folder_that_is_not_there_is_said_so_first_with_near_names_and_without_the_network(
    here, checkpoint, capsys, monkeypatch, verb, word
):
    import socket

    def refuse(*arguments, **options):
        raise AssertionError(f"the network was asked: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    Path("checkpoint").mkdir()
    Path("models/checkpoint").mkdir(parents=True)
    options = [f"{verb}={word}", "dataset=worked.jsonl", "problems_per_step=4"]
    if verb == "teacher.model":
        options.append(f"policy.model={checkpoint}")
    words = ["eval", word, "--dataset", "worked.jsonl"] if verb == "eval" else ["train", "opd", *options]
    if verb == "policy.model":
        words.append(f"teacher.model={checkpoint}")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert f"{'model' if verb == 'eval' else verb}: there is no folder `{word}`" in said
    assert f"Did you mean `{Path(word).parent / 'checkpoint'}`" in said


def test_the_chosen_text_of_a_pair_is_no_answer_of_an_evaluation_either(here, checkpoint, capsys):
    """Unless it is that of the run's own data, which the run was measured on."""
    assert main(["eval", str(checkpoint), "--dataset", "pairs.jsonl"]) == 2
    assert "dataset.columns.answer: the rows are pairs" in capsys.readouterr().err
    train("dpo", checkpoint, "dataset=pairs.jsonl", "--config", "pairs.yaml")
    assert main(["eval", "run", "--output", "own"]) == 0


@pytest.mark.parametrize("part", ["policy", "teacher"])
def test_a_run_does_not_go_on_with_another_model_in_the_same_folder(here, checkpoint, capsys, monkeypatch, part):
    for name in ("student", "teacher"):
        shutil.copytree(checkpoint, name)
    words = ["train", "opd", "policy.model=student", "teacher.model=teacher", "dataset=worked.jsonl", "steps=4"]
    words += ["problems_per_step=4", "policy.max_completion_tokens=8", "dataset.held_out=6", "--save-steps", "1"]
    words += ["--output", "run", "--resume", "auto"]
    plain, done = Trainer.step, []

    def step(self, number):
        done.append(number)
        if number == 3 and len(done) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    assert main(words) == 143
    place = Path("student" if part == "policy" else "teacher", "model.safetensors")
    kept = place.read_bytes()
    place.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    capsys.readouterr()
    assert main(words) == 2
    assert "was written with models sha256:" in capsys.readouterr().err
    place.write_bytes(kept)
    assert main(words) == 0
    inputs = read("execution.json")["execution"]["inputs"]
    assert {entry["role"] for entry in inputs} == {"dataset", "model", "teacher"}
