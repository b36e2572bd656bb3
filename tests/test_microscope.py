"""What student and teacher say of every sampled token, where it can be known without asking a teacher."""

import pytest

from posttrain import settings
from posttrain.assembly import assemble
from posttrain.policies.vocabulary import Vocabulary

SMALL = {"dataset.train_examples": 4, "dataset.validation_examples": 4, "steps": 2, "tune": None}


def trained(algorithm, tmp_path, **options):
    chosen = {key: options.pop(key) for key in ("tier", "config") if key in options}
    config = settings.load(algorithm, **chosen, overrides={**SMALL, **options})
    trainer = assemble(config, 42, folder=tmp_path)
    outcome = trainer.run()
    return trainer, outcome


def test_two_extreme_tokens_of_each_completion_are_marked_and_carry_the_largest_log_ratios(tmp_path):
    trainer, _ = trained("sparse-opd", tmp_path, config="l1-paper")
    for row in trainer.samples():
        ratios = [b - a for a, b in zip(row["logprobs"], row["teacher_logprobs"], strict=True)]
        kept = [ratio for ratio, marked in zip(ratios, row["supervised"], strict=True) if marked]
        assert sorted(kept) == [min(ratios), max(ratios)]
        assert " ".join(row["tokens"]) == row["completion"]


def test_a_dense_method_marks_every_token(tmp_path):
    trainer, _ = trained("opd", tmp_path)
    assert all(all(row["supervised"]) and len(row["supervised"]) == len(row["tokens"]) for row in trainer.samples())


@pytest.mark.parametrize("algorithm", ["grpo", "tip", "ppo"])
def test_what_cannot_be_known_is_null(algorithm, tmp_path):
    trainer, _ = trained(algorithm, tmp_path)
    for row in trainer.samples():
        assert row["supervised"] is None
        assert (row["teacher_logprobs"] is None) == (trainer.teacher is None)
        assert len(row["logprobs"]) == len(row["tokens"])


def test_looking_asks_no_teacher(tmp_path):
    trainer, outcome = trained("sparse-opd", tmp_path, config="l1-paper")
    before = trainer.teacher.events().online_teacher_calls
    trainer.samples()
    assert trainer.teacher.events().online_teacher_calls == before == outcome.events.online_teacher_calls


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A language model of this package after two steps, with a teacher."""
    return trained("sparse-opd", tmp_path_factory.mktemp("tiny"), tier="l2")[0]


def test_tokens_of_a_language_model_are_text_that_makes_up_the_completion(tiny):
    policy = tiny.policy
    rollouts = policy.sample(list(tiny.problems), 1, None, 42, 0)
    end = [policy.vocabulary.text(token) for token in policy.encoder.eos]
    for row, problem in enumerate(tiny.problems):
        texts = policy.token_texts(problem, rollouts.completion_ids[row][rollouts.mask[row]].tolist())
        assert "".join(text for text in texts if text not in end) == rollouts.texts[row]
    for row in tiny.samples():
        assert len(row["tokens"]) == len(row["logprobs"])
        assert not all(token.isdigit() and len(token) > 1 for token in row["tokens"])


def test_blanks_line_breaks_and_halves_of_characters_can_be_told_apart():
    known = Vocabulary((b" 4", b"\n", b"4", b" ", None, "é".encode(), "é".encode()[:1]))
    assert [known.text(index) for index in range(8)] == [" 4", "\n", "4", " ", "<4>", "é", "\\xc3", "<7>"]
