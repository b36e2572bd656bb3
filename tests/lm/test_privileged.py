"""`privileged`: the same weights and the same completion, behind a prompt that shows more."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_lm
import torch
from test_lm_laws import trainer_for

from posttrain.algorithms.gkd import GKD
from posttrain.algorithms.opd import OPD
from posttrain.algorithms.opsd import OPSD
from posttrain.batch import Problem
from posttrain.policies.base import Divergence
from posttrain.policies.causal_lm import CausalLM
from posttrain.policies.lm_encoding import Template
from posttrain.registry import ConfigError
from posttrain.teachers.base import Events, Surroundings
from posttrain.teachers.cached import Cached
from posttrain.teachers.privileged import FIELDS, PROMPT, Privileged, privileged_problem
from posttrain.testing.bench import nudge
from posttrain.tracking import Averages

SHOWN = "{solution} w40 {prompt}"


def around(folder=None, given=None, **options) -> Surroundings:
    given = tiny_lm.problems() if given is None else given
    return Surroundings(tiny_lm.policy(given=given, **options), {}, folder, None, given)


def drawn(here: Surroundings, group_size=3):
    return here.student.sample(list(here.problems), group_size, np.random.default_rng(0), 0, 1)


def chats():
    """Conversations in two turns; the last question is what a teacher's prompt replaces."""
    return [
        replace(
            problem,
            meta={
                "messages": [
                    {"role": "user", "content": "w50"},
                    {"role": "assistant", "content": "w51"},
                    {"role": "user", "content": problem.prompt},
                ],
                "feedback": f"w{number} w52",
            },
        )
        for number, problem in enumerate(tiny_lm.problems())
    ]


def dense(here: Surroundings, rollouts, prompts: list[list[int]]) -> list[torch.Tensor]:
    """Log-probs [L, V] of the model itself over each completion's ids behind the given prompt."""
    found = []
    for row, prompt in enumerate(prompts):
        ids = prompt + rollouts.completion_ids[row][rollouts.mask[row]].tolist()
        with torch.no_grad():
            logits = here.student.model(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1]
        found.append(torch.log_softmax(logits[:, : len(tiny_lm.WORDS)], -1))
    return found


@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_the_teacher_scores_the_very_ids_that_were_sampled_behind_the_other_prompt(kind):
    here = around(given=chats() if kind == "chat" else None)
    rollouts, words = drawn(here), here.student.encoder.tokenizer
    teacher = Privileged(SHOWN, max_prompt_tokens=64).build(here)
    prompts = []
    for problem in here.problems:
        shown = f"{problem.responses[0]} w40 {problem.prompt}"
        text = f"<bos><u> w50 </u><a> w51 <eos><u> {shown} </u><a>" if kind == "chat" else shown
        start = [] if kind == "chat" else here.student.encoder._plain("")[:1]
        prompts += [start + words(text, add_special_tokens=False)["input_ids"]] * 3
    expected = dense(here, rollouts, prompts)
    single, best = (teacher.targets(rollouts, rollouts.mask, k) for k in (None, 5))
    states = teacher.states(rollouts)
    whole = states.project(states.hidden)
    for row, logprobs in enumerate(expected):
        mask, ids = rollouts.mask[row], rollouts.completion_ids[row]
        sampled = logprobs.gather(1, ids[mask].unsqueeze(1)).squeeze(1)
        for found in (single.logprobs, best.logprobs):
            assert torch.allclose(found[row][mask], sampled, atol=1e-10)
        assert torch.allclose(best.support_logprobs[row][mask], logprobs.gather(1, best.support_ids[row][mask]))
        assert torch.allclose(whole[row][mask], logprobs, atol=1e-10)
    blind = here.student.targets(rollouts, rollouts.mask)
    assert not torch.allclose(blind.logprobs, single.logprobs, atol=1e-3)


def test_a_completion_that_no_encoding_would_give_is_scored_as_it_was_sampled():
    """Its text encodes to other ids; the teacher is asked about the ids, and keeps their number and mask."""
    here = around()
    rollouts = drawn(here)
    odd = replace(rollouts, completion_ids=torch.where(rollouts.mask, 3, 0), texts=("w1 w2",) * len(rollouts.texts))
    teacher = Privileged(SHOWN, max_prompt_tokens=64).build(here)
    behind = teacher.policy.behind(odd)
    assert behind.completion_ids is odd.completion_ids
    assert behind.mask is odd.mask
    found = teacher.targets(odd, odd.mask, None)
    (first,) = dense(here, odd, [behind.prompt_ids[0][behind.prompt_mask[0]].tolist()])
    assert torch.allclose(found.logprobs[0][odd.mask[0]], first[:, 3], atol=1e-10)


def test_rows_find_their_own_solution_in_any_order():
    here = around()
    rollouts = drawn(here, group_size=1)
    teacher = Privileged(SHOWN, max_prompt_tokens=64).build(here)
    whole = teacher.targets(rollouts, rollouts.mask, None)
    for row in range(4):
        alone = rollouts.rows(slice(row, row + 1))
        found = teacher.targets(alone, alone.mask, None).logprobs
        assert torch.allclose(found, whole.logprobs[row : row + 1], atol=1e-12)


# -- whose weights ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("refresh", "weights_of"), [(None, [0, 0, 0, 0]), (1, [1, 2, 3, 4]), (2, [0, 2, 2, 4])])
def test_the_weights_are_the_students_start_its_present_or_its_past(refresh, weights_of):
    """After each of four updates: as it began, as it is, or as it was at the last even update."""
    here = around()
    teacher = Privileged(SHOWN, refresh, 64).build(here)
    past = [here.student.snapshot()]
    for step, expected in enumerate(weights_of, 1):
        nudge(here.student, 0.05, step)
        past.append(here.student.snapshot())
        teacher.after_update(step, here.student)
        assert teacher.policy.identity()["weights"] == past[expected].identity()["weights"]
    assert teacher.events().rollout_policy_refreshes == len(set(weights_of) - {0})
    assert (teacher.distribution() is None) == (refresh is not None)


def test_a_start_that_stays_is_counted_as_an_online_teacher_and_a_refreshed_one_as_a_snapshot():
    here = around()
    rollouts = drawn(here)
    for refresh, calls in ((None, 12), (2, 0)):
        teacher = Privileged(SHOWN, refresh, 64).build(here)
        teacher.targets(rollouts, rollouts.mask, None)
        assert teacher.events() == Events(online_teacher_calls=calls)


def test_no_gradient_reaches_the_teacher_and_its_weights_are_its_own():
    trainer = trainer_for(OPSD("forward_kl"))
    here = Surroundings(trainer.policy, problems=trainer.problems)
    trainer.teacher = Privileged(SHOWN, None, 64).build(here)
    before = [weight.clone() for weight in trainer.teacher.policy.parameters()]
    for step in (1, 2):
        trainer.step(step)
    assert all(torch.equal(*pair) for pair in zip(before, trainer.teacher.policy.parameters(), strict=True))
    assert not any(weight.requires_grad for weight in trainer.teacher.policy.parameters())


# -- at rest, and as any teacher --------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [OPSD(), GKD("reverse_kl", student_share=1.0, support=3), OPD()], ids=str)
def test_law_4_without_privilege_there_is_nothing_to_learn(made):
    """The prompt alone as template, the student itself as teacher."""
    trainer = trainer_for(made)
    problems = list(trainer.problems)
    rollouts = trainer.policy.sample(problems, 3, trainer.stream, 0, 1)
    sizes = []
    for template in ("{prompt}", SHOWN):
        trainer.teacher = Privileged(template, None, 64).build(Surroundings(trainer.policy, problems=problems))
        sizes.append(float(trainer.gradient(problems, rollouts).abs().max()))
    assert sizes[0] <= 1e-10
    assert sizes[1] > 1e-4


def test_opsd_is_the_divergence_from_the_privileged_distribution():
    trainer = trainer_for(OPSD("jsd", 0.3))
    problems = list(trainer.problems)
    here = Surroundings(trainer.policy, problems=problems)
    rollouts = trainer.policy.sample(problems, 3, trainer.stream, 0, 1)
    trainer.teacher = Privileged(SHOWN, None, 64).build(here)
    states = trainer.teacher.states(rollouts)
    scores = trainer.policy.score(rollouts, rollouts.mask, divergence=Divergence("jsd", 0.3), against=states)
    loss = trainer.accumulate(trainer.algorithm.prepare(rollouts, None), 0, states, Averages())
    assert loss == pytest.approx(float(scores.divergence.detach()[rollouts.mask].mean()), rel=1e-12)


def test_distance_and_accuracy_are_those_of_the_privileged_policy():
    """`kl_from_teacher` looks behind the privileged prompt, on held-out problems too."""
    here = around()
    rollouts = drawn(here, group_size=1)
    policy = Privileged(SHOWN, None, 64).build(here).distribution()
    told = [privileged_problem(problem, SHOWN) for problem in here.problems]
    assert torch.equal(policy.greedy(here.problems).completion_ids, policy.policy.greedy(told).completion_ids)
    found = here.student.expectations(here.problems, {"teacher": policy, "reference": here.student.snapshot()})
    assert float(found.kl["reference"].abs().max()) < 1e-12
    assert float(found.kl["teacher"].min()) > 1e-3
    assert rollouts.groups == 4


@pytest.mark.parametrize("top_k", [None, 4])
def test_a_store_holds_what_the_privileged_teacher_says(tmp_path, top_k):
    here = around(tmp_path)
    rollouts = drawn(here)
    online = Privileged(SHOWN, None, 64).build(here).targets(rollouts, rollouts.mask, top_k)
    for calls in ("asked", "read back"):
        teacher = Cached(prompt=SHOWN, max_prompt_tokens=64, on_miss="score").build(here)
        found = teacher.targets(rollouts, rollouts.mask, top_k)
        assert torch.allclose(found.logprobs, online.logprobs, atol=1e-12), calls
        if top_k:
            assert torch.equal(found.support_ids[rollouts.mask], online.support_ids[rollouts.mask])
    other = Cached(prompt="{answer} w40 {prompt}", max_prompt_tokens=64).build(here)
    other.targets(rollouts, rollouts.mask, top_k)
    assert other.found.teacher_store_hits == 0


# -- templates --------------------------------------------------------------------------------------------------------


def test_fields_are_put_in_once_and_braces_may_be_doubled():
    """What a field holds is text: `{answer}` inside a solution stays as it is."""
    problem = Problem("p", "Q?", "42", responses=("see {answer} {",), meta={"feedback": "too low"})
    made = privileged_problem(problem, "{{x}} {prompt}|{solution}|{answer}|{feedback}")
    assert made.prompt == "{x} Q?|see {answer} {|42|too low"
    assert (made.id, made.answer, made.responses) == ("p", "42", problem.responses)


def test_in_a_conversation_the_last_message_of_the_user_is_replaced():
    (first, *_) = chats()
    made = privileged_problem(first, "{feedback} w9 {prompt}")
    assert [message["content"] for message in made.meta["messages"]] == ["w50", "w51", f"w0 w52 w9 {first.prompt}"]
    assert first.meta["messages"][-1]["content"] == first.prompt


def test_a_wrapped_prompt_is_wrapped_with_what_the_teacher_sees():
    here = around(template=Template(wrap=True))
    ids = Privileged(SHOWN, None, 64).build(here).policy.behind(drawn(here, 1))
    text = here.student.encoder.tokenizer.decode(ids.prompt_ids[1][ids.prompt_mask[1]].tolist())
    assert text.startswith("<bos><u> ") or text.startswith("<bos> <u> ")
    assert text.endswith("w40 w7 </u> <a>")


def test_the_template_that_nobody_chose_shows_the_solution_behind_the_question():
    assert [name for name in FIELDS if f"{{{name}}}" in PROMPT] == ["prompt", "solution"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "{solution}"}, r"teacher\.prompt: it holds no \{prompt\}"),
        ({"prompt": "{prompt} {soluton}"}, r"no field \{soluton\}\. Did you mean `solution`"),
        ({"prompt": "{prompt} {answer.real}"}, r"no field \{answer\.real\}"),
        ({"prompt": "{prompt!r}"}, "takes no options"),
        ({"prompt": "{prompt:>9}"}, "takes no options"),
        ({"prompt": "{prompt} {"}, r"teacher\.prompt: .*braces"),
        ({"refresh_every": 0}, r"teacher\.refresh_every: found 0"),
        ({"max_prompt_tokens": 0}, r"teacher\.max_prompt_tokens: found 0"),
    ],
)
def test_a_template_without_a_meaning_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        Privileged(**options)


@pytest.mark.parametrize(
    ("given", "template", "words"),
    [
        (tiny_lm.problems(responses=0), SHOWN, r"holds \{solution\}, but problem `p0` has none\. Give it a data row"),
        (tiny_lm.problems(), "{prompt} {feedback}", r"holds \{feedback\}, but problem `p0` has none"),
        ([Problem("a", "w1", "w2"), Problem("a", "w3", "w2")], "{prompt} {answer}", "two problems are called `a`"),
        (
            [replace(chats()[0], meta={"messages": [{"role": "system", "content": "w1"}]})],
            "{prompt} {answer}",
            "hold none of the user",
        ),
    ],
)
def test_a_problem_that_lacks_what_the_template_shows_is_named_before_training(given, template, words):
    here = replace(around(), problems=given)
    with pytest.raises(ConfigError, match=words):
        Privileged(template).build(here)


def test_a_privileged_prompt_over_the_limit_is_named_before_training():
    """Problem p2 has 5 words, a solution of 2, one of the template and a beginning, if any."""
    here = around()
    with pytest.raises(ConfigError, match=r"teacher\.max_prompt_tokens: .*`p2` has [89] tokens, but the limit is 7"):
        Privileged(SHOWN, None, 7).build(here)
    Privileged(SHOWN, None, 9).build(here)
    with pytest.raises(ConfigError, match=r"policy\.max_prompt_tokens"):
        tiny_lm.policy(max_prompt_tokens=4)
    assert CausalLM().max_prompt_tokens == 512


def test_candidates_have_no_prompts_to_write():
    from posttrain import settings
    from posttrain.assembly import assemble

    config = settings.load("opsd", overrides=["teacher=privileged"])
    with pytest.raises(ConfigError, match=r"teacher\.name: `privileged` writes prompts for language models"):
        assemble(config, 42)


def test_a_problem_from_elsewhere_is_refused():
    here = around()
    teacher = Privileged(SHOWN, None, 64).build(replace(here, problems=here.problems[:3]))
    with pytest.raises(ConfigError, match="`p3` is none of the dataset's"):
        teacher.targets(drawn(here), drawn(here).mask, None)
