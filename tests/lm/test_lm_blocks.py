"""A vocabulary seen in blocks is the vocabulary seen at once, whatever the cut; and few rows are projected alike."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from test_lm_head import DIVERGENCES, HEADS, N, V, close, dense, gradients, head, normal, numbers, question

from posttrain.functional import divergences
from posttrain.policies import lm_blocks, lm_head, lm_projection
from posttrain.policies.base import Divergence
from posttrain.policies.lm_blocks import Blocks, add_at, take, tiles, whole_divergence
from posttrain.policies.lm_head import Question, answer
from posttrain.policies.lm_projection import Head


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """One thread, and tiles of about 3 positions and 7 ids, so that each side is cut several times."""
    torch.set_num_threads(1)
    monkeypatch.setattr(lm_blocks, "WIDTH", 7)
    monkeypatch.setattr(lm_head, "CACHE_BYTES", 8 * 21)


def asked_of(teacher, divergence, seed=3):
    plain = question(seed=seed)
    return plain.against(divergence, normal(N, teacher.weight.shape[1], seed=5), teacher)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("divergence", DIVERGENCES, ids=str)
def test_in_tiles_against_another_models_head_all_is_as_in_the_dense_float64_projection(kind, divergence):
    made, hidden = head(kind), normal(N, 16, seed=6).requires_grad_()
    teacher = replace(head("everything"), weight=normal(V, 9, seed=7))
    asked = asked_of(teacher, divergence)
    for wanted in ((0,), (1,), (2,), (3,), (0, 1, 2, 3)):
        found, expected = numbers(answer(made, hidden, asked)), dense(made, hidden, asked)
        close(found, expected)
        close(gradients(made, hidden, found, wanted), gradients(made, hidden, expected, wanted))


def test_tiles_cover_every_position_and_id_once_and_hold_no_more_than_they_may():
    for rows, ids, elements in ((23, 50, 21), (1, 5, 1), (0, 50, 100), (4096, 50, 10**6), (3, 151_936, 2**21)):
        high, wide = tiles(rows, ids, elements)
        assert [i for some in high for i in range(rows)[some]] == list(range(rows))
        assert [i for some in wide for i in range(ids)[some]] == list(range(ids))
        assert max(s.stop - s.start for s in high) * max(s.stop - s.start for s in wide) <= elements


def test_a_model_compared_with_its_own_head_is_at_rest_in_every_block():
    made, hidden = head("everything"), normal(N, 16, seed=6).requires_grad_()
    for kind in DIVERGENCES:
        found = answer(made, hidden, Question(torch.zeros(N, dtype=torch.int64)).against(kind, hidden.detach(), made))
        assert float(found.divergence.detach().abs().max()) < 1e-14
        assert float(torch.autograd.grad(found.divergence.sum(), hidden)[0].abs().max()) < 1e-14


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl"])
def test_entropy_and_kl_obey_the_chain_rule_over_any_blocks(kind):
    student, teacher = 9 * normal(5, 12, seed=1), 9 * normal(5, 12, seed=2)
    for cut in ([12], [1] * 12, [5, 7], [2, 1, 9]):
        mine, theirs = (Blocks(5, len(cut), student) for _ in range(2))
        within = torch.empty_like(mine.peak)
        for block, (x, y) in enumerate(zip(student.split(cut, 1), teacher.split(cut, 1), strict=True)):
            x, y = mine.put(block, x.clone(), entropy=True), theirs.put(block, y.clone())
            within[:, block] = divergences.divergence(kind, x, y)
        p, q = student.log_softmax(1), teacher.log_softmax(1)
        close([mine.whole_entropy()], [divergences.entropy(p)])
        close([whole_divergence(Divergence(kind), mine, theirs, within)], [divergences.divergence(kind, p, q)])
        assert bool((mine.entropy >= 0).all())


def test_ids_are_found_and_added_to_in_the_block_they_lie_in():
    logits, wanted = normal(3, 10), torch.tensor([[0, 9, 4], [4, 4, 5], [3, 6, 9]])
    found, slope = torch.zeros(3, 3, dtype=torch.float64), torch.zeros_like(logits)
    for start in (0, 4, 8):
        take(found, logits[:, start : start + 4], wanted, start)
        add_at(slope[:, start : start + 4], torch.ones_like(found), wanted, start)
    assert torch.equal(found, logits.gather(1, wanted))
    assert torch.equal(slope, torch.zeros_like(logits).scatter_add_(1, wanted, torch.ones_like(found)))


def test_a_token_banned_on_both_sides_moves_no_divergence_and_makes_no_nan():
    made, hidden = replace(head("bias"), temperature=0.5), normal(N, 16, seed=6).requires_grad_()
    banned = made.bias.detach().clone()
    banned[[3, *range(7, 14)]] = -torch.inf  # one id, and a whole block
    made = replace(made, bias=banned)
    teacher = replace(made, weight=normal(V, 16, seed=9))
    for kind in DIVERGENCES:
        for project in (teacher, teacher.log_probs):
            asked = Question(torch.full((N,), 2)).against(kind, hidden.detach(), project)
            found = answer(made, hidden, asked)
            kept = [i for i in range(V) if banned[i] > -torch.inf]
            mine, theirs = (replace(h, weight=h.weight[kept], bias=h.bias[kept]) for h in (made, teacher))
            plain = answer(mine, hidden, Question(torch.full((N,), 2)).against(kind, hidden.detach(), theirs))
            close([found.divergence, found.entropy], [plain.divergence, plain.entropy])
            assert bool(found.divergence.isfinite().all())
            slopes = [torch.autograd.grad(f.divergence.sum() + f.entropy.sum(), hidden)[0] for f in (found, plain)]
            close(slopes[:1], slopes[1:])


@pytest.mark.parametrize("rows", [1, 2, 8, 9])
def test_few_positions_before_a_large_weight_have_the_logits_of_many(rows, monkeypatch):
    monkeypatch.setattr(lm_projection, "LARGE", 1)
    for kind in HEADS:
        made, hidden = head(kind).detached(), normal(rows, 16, seed=6)
        close([made.block(hidden, slice(3, 40))], [made.logits(hidden)[:, 3:40]])
        assert made.block(hidden, slice(None)).is_contiguous()


GROWTH = """
from pathlib import Path
import torch
from posttrain.policies.lm_head import Question, answer
from posttrain.policies.lm_projection import Head

def resident(field):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if field in line)

torch.set_num_threads(1)
made, hidden = Head(torch.randn(2**18, 8)), torch.randn(256, 8)
answer(made, hidden[:2], Question(torch.zeros(2, dtype=torch.int64)))
before = resident("VmRSS")
answer(made, hidden, Question(torch.zeros(256, dtype=torch.int64)))
print((resident("VmHWM") - before) / 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_process_grows_by_a_few_tiles_however_many_there_are():
    """Small tensors kept among the tiles would pin each one's place in the heap: 32 tiles of 8 MiB would stay."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 80


def test_a_head_is_the_projection_to_log_probs():
    made = Head(normal(V, 16))
    hidden = normal(2, 3, 16, seed=1)
    assert torch.equal(made(hidden), made.log_probs(hidden))
