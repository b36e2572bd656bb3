"""The laws on a tiny causal LM, through the real trainer: the same functions that candidate policies are tried with."""

import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tiny_lm
import torch

from posttrain.algorithms.gkd import GKD
from posttrain.algorithms.grpo import GRPO
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.sparse_opd import SparseOPD
from posttrain.batch import Failure
from posttrain.functional.selection import Select
from posttrain.registry import algorithms
from posttrain.testing import Setting, draw, edits, laws, prepare, price, references
from posttrain.testing.bench import moved, nudge
from posttrain.testing.edits import TOKEN_FIELDS, pad
from posttrain.tracking import Evaluator
from posttrain.trainer import Optimization, Trainer

LM = Setting("tiny causal LM", problems=3, group_size=3, candidates=len(tiny_lm.WORDS))
RELATIVE = 1e-10  # float64: the backbone's matrix products round differently for other shapes of the batch
EXACT_KIND = "gpt2"  # float64 throughout; Llama's norms and rotations are float32 whatever the weights are
MADE = [
    *(
        algorithms.get(name)()
        for name in algorithms.names()
        if algorithms.get(name).__module__.startswith("posttrain.")
    ),
    SparseOPD(Select("random", k=2)),
    GKD("reverse_kl", student_share=1.0),
    GKD("jsd", 0.3, support=3),
    GKD("forward_kl", student_share=0.0),
]


@pytest.fixture(autouse=True)
def as_a_run_is_set_up():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def grade(problem, text):
    """The mean of its words, in a number from 0 to 1; some completions cannot be judged."""
    words = [int(word[1:]) for word in text.split() if word[1:].isdigit()]
    if sum(words) % 5 == 1:
        return Failure("the sum of its words leaves 1 when divided by 5")
    return sum(words) / 54 / max(1, len(words))


def trainer_for(algorithm, setting=LM, dtype="float64", kind=EXACT_KIND, **options):
    """Student, reference and teacher are three different models."""
    size = 2 if "pairs" in algorithm.needs else max(setting.group_size, algorithm.minimum_group)
    given = tiny_lm.problems(setting.problems, responses=size)
    made = partial(tiny_lm.policy, kind, dtype, given=given, temperature=setting.temperature, **options)
    student = made(seed=setting.seed, critic="values" in algorithm.needs)
    trainer = Trainer(
        algorithm=algorithm,
        policy=student,
        reference=student.snapshot(),
        teacher=edits.frozen(made(seed=setting.seed + 50).snapshot()),
        problems=given,
        grader=grade,
        evaluator=Evaluator(tuple(given[:2]), grade, grade),
        options=Optimization(problems_per_step=setting.problems, group_size=size),
        seed=setting.seed,
    )
    nudge(student, 0.05, setting.seed)
    if algorithm.rollouts == "once":
        trainer._sample_once()
        nudge(student, 0.05, setting.seed + 1)
    return trainer


@pytest.fixture
def on_a_language_model(monkeypatch):
    """The laws' own trainer and tolerances replaced by a language model's."""

    def same(law, setting, name, found, expected, tolerance=RELATIVE):
        laws_same(law, setting, name, found, expected, max(tolerance, RELATIVE))

    laws_same = laws.same
    for module in (laws, references):
        monkeypatch.setattr(module, "trainer_for", trainer_for)
        monkeypatch.setattr(module, "same", same)
        monkeypatch.setattr(module, "moved", partial(moved, scale=0.05))
    monkeypatch.setattr(laws, "EXACT", RELATIVE)
    monkeypatch.setattr(references, "REST", RELATIVE)


def dense_references():
    path = Path(__file__).parents[1] / "test_algorithms.py"
    spec = importlib.util.spec_from_file_location("dense_references_of_the_algorithms", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DENSE = dense_references()


@pytest.mark.usefixtures("on_a_language_model")
@pytest.mark.parametrize("made", MADE, ids=str)
def test_an_algorithm_obeys_laws_1_2_3_4_5_7_and_9_on_a_causal_lm(made):
    for law in (laws.law_9, laws.law_3, laws.law_1, laws.law_2):
        law(made, LM)
    name = next(name for name in algorithms.names() if isinstance(made, algorithms.get(name)))
    if name in DENSE.INSTANCES:
        references.law_5(made, LM, reference=DENSE.INSTANCES[name][0](made))
    if DENSE.rests(made):
        references.law_4(made, LM, bring_to_rest=references.student_as_teacher)
    if "teacher" in made.needs and "divergence" not in made.needs:
        references.law_7_cached(made, LM)


@pytest.mark.usefixtures("on_a_language_model")
@pytest.mark.parametrize(
    ("made", "equal"),
    [
        (SparseOPD(Select("all"), normaliser="kept", surrogate="reinforce"), OPD()),
        (GKD("jsd", 0.3, student_share=1.0, support=len(tiny_lm.WORDS)), GKD("jsd", 0.3, student_share=1.0)),
    ],
    ids=["every token is dense", "the whole vocabulary is no support"],
)
def test_law_7_a_setting_at_its_limit_is_the_algorithm_it_becomes(made, equal):
    still = pytest.MonkeyPatch()
    with still.context() as patch:  # at the policy that sampled, where the two surrogates have one gradient
        patch.setattr(references, "moved", partial(moved, scale=0.0))
        patch.setattr(references, "same", gradients_alone)
        references.law_7(made, LM, equal)


def gradients_alone(law, setting, name, found, expected, tolerance):
    laws.same(law, setting, name, replace(found, loss=0.0), replace(expected, loss=0.0), tolerance)


@pytest.mark.parametrize("made", [GRPO(), GKD("reverse_kl", student_share=1.0), SparseOPD()], ids=str)
def test_law_1_in_float32_holds_to_two_parts_in_a_million(made):
    trainer = trainer_for(made, dtype="float32")
    step = prepare(trainer, *draw(trainer))
    with moved(trainer, 0.05):
        whole = price(trainer, step)
        for micro, ranks in ((1, 1), (6, 1), (1, 2), (3, 3), (None, 7)):
            found = price(trainer, step, micro=micro, ranks=ranks)
            apart = float((found.gradient - whole.gradient).abs().max() / whole.gradient.abs().max())
            assert apart <= 2e-6, (micro, ranks)


@pytest.mark.parametrize("made", [GRPO(), GKD("jsd", student_share=1.0)], ids=str)
def test_law_1_columns_of_padding_on_either_side_change_nothing(made):
    trainer = trainer_for(made)
    problems, rollouts = draw(trainer)
    whole = price(trainer, prepare(trainer, problems, rollouts))
    for left, right in ((1, 0), (0, 3), (4, 2)):
        wider = replace(rollouts, **{name: pad(getattr(rollouts, name), right) for name in TOKEN_FIELDS})
        shifted = {name: pad(getattr(wider, name).flip(1), left).flip(1) for name in ("prompt_ids", "prompt_mask")}
        found = price(trainer, prepare(trainer, problems, replace(wider, **shifted)))
        laws.same(1, LM, f"{left} and {right} columns", found, whole, RELATIVE)


def test_law_1_the_chunk_of_the_projection_changes_nothing():
    found = []
    for chunk in (None, 1, 7):
        trainer = trainer_for(GKD("jsd", student_share=1.0), chunk=chunk)
        found.append(price(trainer, prepare(trainer, *draw(trainer))))
    for other in found[1:]:
        laws.same(1, LM, "chunks", other, found[0], RELATIVE)


@pytest.mark.parametrize("name", ["grpo", "sparse-opd", "ppo", "gspo"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_law_6_ratios_start_at_one_also_at_temperature_0_7(name, dtype):
    trainer = trainer_for(algorithms.get(name)(), replace(LM, temperature=0.7), dtype)
    step = prepare(trainer, *draw(trainer))
    scores = trainer._score(step.rollouts, step.rollouts.mask, step.batch.teacher, None)
    ratio = (scores.logprobs.detach() - step.rollouts.logprobs)[step.rollouts.mask].exp()
    assert float((ratio - 1).abs().max()) <= (1e-12 if dtype == "float64" else 1e-5)


def test_a_run_of_the_trainer_learns_and_evaluates():
    trainer = trainer_for(GRPO(kl_coef=0.0))
    trainer.options = replace(trainer.options, steps=12, learning_rate=0.01, group_size=8, eval_steps=12)
    outcome = replace(trainer).run()
    assert outcome.final["kl_from_reference"] > 0.01
    assert set(outcome.final) == {"accuracy", "mean_reward", "entropy", "kl_from_reference", "kl_from_teacher"}
    assert outcome.last_diagnostics["reward"] > 0.6  # about 0.45 at the start
    assert outcome.last_diagnostics["ratio"] == pytest.approx(1)
