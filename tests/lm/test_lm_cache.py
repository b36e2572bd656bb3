"""`cached` for language models: what is read back is what would be said, and nothing else is ever used."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tiny_lm
import torch
from safetensors.torch import load_file, save_file

from posttrain.policies.causal_lm import CausalLM
from posttrain.teachers import cached, store
from posttrain.teachers.base import Events, Surroundings
from posttrain.teachers.cached import Cached
from posttrain.teachers.frozen import Frozen
from posttrain.teachers.store import shelves

GIVEN = tiny_lm.problems(3, responses=1)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path):
    """A model's folder, student and teacher at once."""
    tiny_lm.policy("llama", "float32", given=GIVEN).save(tmp_path / "model")
    return tmp_path / "model"


@dataclass(frozen=True)
class Case:
    """A run that asks about the data rows of three problems."""

    folder: Path
    problems: tuple = tuple(GIVEN)
    top_k: int | None = 4
    options: tuple = ()

    @property
    def around(self) -> Surroundings:
        config = CausalLM(model=str(self.folder), dtype="float64", max_completion_tokens=6, max_prompt_tokens=32)
        config = replace(config, **dict(self.options))
        made = config.build(self.problems, {}, False)

        def load(model: str):
            return replace(config, model=model).build(self.problems, {}, False).requires_grad_(False)

        return Surroundings(made, {}, self.folder.parent / "store", load, self.problems)

    def ask(self, teacher=None):
        """The teacher behind the store, and its answers; `teacher` in its place."""
        around = self.around
        rows = around.student.respond(list(self.problems), 0, 1)
        asked = (teacher or Cached(model=str(self.folder))).build(around)
        return asked, rows, asked.targets(rows, rows.mask, self.top_k)

    def hits(self) -> tuple[int, int]:
        """Found and made, with every value compared with a teacher that keeps nothing."""
        asked, rows, told = self.ask()
        _, _, online = self.ask(Frozen(model=str(self.folder)))
        # Float32 rounds a row beside others differently from a row alone.
        limit = 1e-6 if told.logprobs.dtype == torch.float64 else 1e-5
        assert float((told.logprobs - online.logprobs).abs().max()) <= limit
        assert torch.equal(told.mask, online.mask)
        if self.top_k is not None:
            assert torch.equal(told.support_ids[rows.mask], online.support_ids[rows.mask])
            assert float((told.support_logprobs - online.support_logprobs)[rows.mask].abs().max()) <= limit
        return asked.found.teacher_store_hits, asked.found.teacher_store_scored


def template(folder: Path) -> None:
    """One character of the chat template."""
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text().replace("<u> ", "<u>  ", 1))


def added_token(folder: Path) -> None:
    tiny_lm.tokenizer(words=(*tiny_lm.WORDS, "w54")).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat([weights[name], weights[name][:1]])
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "vocab_size": len(tiny_lm.WORDS) + 1}))


def one_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][0, 0] += 1e-3
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("top_k", [None, 4])
def test_br_18_what_has_not_changed_is_found_and_belongs_to_its_prompt_in_any_order(folder, top_k):
    case = Case(folder, top_k=top_k)
    assert case.hits() == (0, 3)
    assert case.hits() == (3, 0)
    assert replace(case, problems=tuple(reversed(GIVEN))).hits() == (3, 0)
    edited = (GIVEN[0], replace(GIVEN[1], prompt=GIVEN[1].prompt + " w9"), GIVEN[2])
    assert replace(case, problems=edited).hits() == (2, 1)


@pytest.mark.parametrize("change", [template, added_token, one_weight])
def test_br_18_another_template_tokenizer_or_weight_over_the_same_path_finds_nothing(folder, change):
    case = Case(folder)
    assert case.hits() == (0, 3)
    change(folder)
    assert case.hits() == (0, 3)
    assert case.hits() == (3, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"dtype": "float32"},
        {"max_completion_tokens": 7},
        {"max_prompt_tokens": 33},
        {"attn_implementation": "eager"},
    ],
    ids=str,
)
def test_br_18_another_scoring_setting_finds_nothing(folder, options):
    assert Case(folder).hits() == (0, 3)
    assert Case(folder, options=tuple(options.items())).hits() == (0, 3)


def test_br_18_another_k_or_format_of_the_store_finds_nothing(folder, monkeypatch):
    assert [Case(folder, top_k=k).hits() for k in (4, 5, None)] == [(0, 3)] * 3
    for module in (cached, store):
        monkeypatch.setattr(module, "FORMAT", store.FORMAT + 1)
    assert Case(folder).hits() == (0, 3)


@pytest.mark.parametrize("damage", ["flipped", "halved"])
def test_br_18_a_flipped_byte_or_half_a_file_is_detected_and_made_again(folder, damage):
    case = Case(folder)
    case.hits()
    (kept,) = shelves(folder.parent / "store")
    for number, key in enumerate(kept.keys()):
        data = bytearray(kept.path(key).read_bytes())
        data[len(data) // (number + 2)] ^= 16
        kept.path(key).write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    asked, _, _ = case.ask()
    assert (asked.found.teacher_store_hits, asked.found.teacher_store_corrupt) == (0, 3)
    assert case.hits() == (3, 0)


def test_r4b_a_flip_in_any_byte_of_an_entry_of_a_language_model_is_detected(folder):
    """Each of the eight bits in turn; tests/test_teachers.py flips every bit of an entry."""
    case = Case(folder, problems=tuple(GIVEN[:1]), top_k=2)
    case.hits()
    (kept,) = shelves(folder.parent / "store")
    (key,) = kept.keys()
    written, unnoticed = kept.path(key).read_bytes(), 0
    for place in range(len(written)):
        changed = bytearray(written)
        changed[place] ^= 1 << place % 8
        kept.path(key).write_bytes(changed)
        try:
            kept.get(key)
            unnoticed += 1
        except store.CorruptEntry:
            pass
    assert (unnoticed, len(written) > 100) == (0, True)


@pytest.mark.parametrize("top_k", [None, 1, 4, 60])
def test_law_7_what_is_read_back_is_bit_for_bit_what_was_said_beside_whomever_it_was_asked(folder, top_k):
    """A cold store, a warm one, and one that was filled row by row and in another order give the same bits."""
    case = Case(folder, top_k=top_k, options=(("dtype", "float32"),))
    _, rows, cold = case.ask()
    _, _, warm = case.ask()
    for kept in shelves(folder.parent / "store"):
        for key in kept.keys():  # noqa: SIM118
            kept.path(key).unlink()
    for problem in reversed(GIVEN):
        replace(case, problems=(problem,)).ask()
    other, _, mixed = case.ask()
    assert other.found.teacher_store_hits == 3
    for found in (warm, mixed):
        for name in ("logprobs", "entropy", "support_ids", "support_logprobs"):
            left, right = getattr(cold, name), getattr(found, name)
            assert (left is None) == (right is None)
            assert left is None or (torch.equal(left, right) and left.dtype == right.dtype)
    if top_k is not None:
        assert float(cold.support_logprobs.exp().sum(-1)[rows.mask].max()) <= 1 + 1e-5
        assert bool((cold.support_ids == rows.completion_ids.unsqueeze(-1)).any(-1)[rows.mask].all())


def test_an_entry_takes_eight_bytes_a_token_and_eight_more_for_each_id(folder):
    """A float32 log-prob and entropy; an int32 id and a float32 log-prob: K = 4 is 40 bytes, beside 32 and a header."""
    for k in (None, 4):
        asked, rows, _ = Case(folder, top_k=k, options=(("dtype", "float32"),)).ask()
        assert asked.found.teacher_store_bytes > 8 * asked.found.teacher_store_tokens
        assert asked.found.teacher_store_tokens == int(rows.mask.sum())
        (kept,) = shelves(folder.parent / "store")
        for key in kept.keys():  # noqa: SIM118
            entry = kept.get(key)
            bytes_per_token = sum(value.nbytes for value in entry.values()) / len(entry["logprobs"])
            assert bytes_per_token in ({8} if k is None else {8, 40})


def test_a_run_counts_completions_once_however_often_they_come(folder):
    case = Case(folder, problems=(GIVEN[0], GIVEN[1], GIVEN[0]))
    asked, _, _ = case.ask()
    assert asked.events() == Events(teacher_cache_entries=2, online_teacher_calls=2)


def test_completions_that_the_student_drew_are_found_by_their_ids_and_never_by_their_text(folder):
    """Two rows that decode alike under other ids are two entries."""
    around = Case(folder).around
    rows = around.student.sample(list(GIVEN), 2, np.random.default_rng(0), 0, 1)
    teacher = Cached(model=str(folder)).build(around)
    teacher.targets(replace(rows, texts=("same",) * 6), rows.mask, None)
    different = {
        (p, *ids[mask].tolist()) for p, ids, mask in zip(rows.problem_ids, rows.completion_ids, rows.mask, strict=True)
    }
    assert teacher.events().teacher_cache_entries == len(different)
    assert json.loads((teacher.store.root / "teacher.json").read_text())["teacher"] == str(folder)
