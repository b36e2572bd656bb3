"""The cache with room ahead holds what transformers' own holds, through growth and through rows that leave."""

import tiny_lm
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from posttrain.samplers import kv_cache
from posttrain.samplers.in_process import cache_word
from posttrain.samplers.kv_cache import RoomyLayer, roomy_cache


def run(made, cache, ids):
    return made.model(input_ids=ids, use_cache=True, **{cache_word(made.model): cache}).last_hidden_state


def test_it_gives_the_hidden_states_of_transformers_own_cache_while_it_grows_and_rows_leave_or_repeat(monkeypatch):
    monkeypatch.setattr(kv_cache, "ROOM", 3)
    torch.set_num_threads(1)
    for kind in ("llama", "gemma2"):
        made = tiny_lm.model(kind).eval()
        caches = [roomy_cache(made.config), DynamicCache(config=made.config)]
        ids = torch.randint(0, 60, (4, 20), generator=torch.Generator().manual_seed(0))
        rows = torch.arange(4)
        with torch.no_grad():
            for start, stop, kept in ((0, 5, [0, 0, 1, 2, 3]), (5, 6, [4, 1, 0]), (6, 7, [0, 2]), (7, 15, [1])):
                found, expected = (run(made, cache, ids[rows, start:stop]) for cache in caches)
                assert float((found - expected).abs().max()) < 1e-12
                rows = rows[torch.tensor(kept)]
                for cache in caches:
                    cache.batch_select_indices(torch.tensor(kept))
        for mine, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
            assert torch.allclose(mine.keys, theirs.keys)
            assert type(mine) is (RoomyLayer if type(theirs) is DynamicLayer else type(theirs))


def test_a_token_is_written_in_place_as_long_as_there_is_room():
    layer = RoomyLayer()
    one = torch.zeros(2, 1, 1, 4)
    layer.update(one, one)
    place = layer.keys.data_ptr()
    for _ in range(kv_cache.ROOM):
        layer.update(one, one)
    assert layer.keys.data_ptr() == place
    layer.update(one, one)
    assert layer.keys.data_ptr() != place
    assert layer.keys.shape[2] == kv_cache.ROOM + 2
