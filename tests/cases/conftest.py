"""Cases that users of similar tools reported, each with its right value: one file a case, its id in every docstring."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "lm"))  # the tiny language models and their trainer


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
