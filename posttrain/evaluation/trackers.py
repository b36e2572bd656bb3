"""Where metrics go beside `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_tensorboard(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One TensorBoard run per seed under `folder`; needs the extra `posttrain[tensorboard]`."""
    from torch.utils.tensorboard import SummaryWriter

    writers: dict[int, SummaryWriter] = {}
    for row in rows:
        seed, step = int(row["seed"]), int(row["step"])
        if seed not in writers:
            writers[seed] = SummaryWriter(str(folder / f"seed-{seed}"))
        for name, value in row.items():
            if name not in ("seed", "step"):
                writers[seed].add_scalar(name, value, step)
    for writer in writers.values():
        writer.close()
