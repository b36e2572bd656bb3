"""`hub`: a dataset of the Hugging Face hub, or a local folder in one of its forms. No code of a dataset is ever run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from posttrain.batch import ProblemSet
from posttrain.data.contained import refuse_outside
from posttrain.data.reading import READERS, AbsentData, Table
from posttrain.data.splits import RowOptions, problem_set
from posttrain.registry import ConfigError, datasets, did_you_mean

# Settings that make the bare id work, by its last part, so that a folder of that name works too.
KNOWN: Mapping[str, Mapping[str, Any]] = {
    "gsm8k": {"config": "main", "validation_split": "test", "answer_after": "####"},
}
HELD_OUT_SPLITS = ("validation", "test")


@datasets.register("hub")
@dataclass(frozen=True)
class Hub(RowOptions):
    """A dataset of the Hugging Face hub by id, or a local folder: one saved by `save_to_disk`, or files of rows."""

    path: str = ""
    config: str | None = None  # the configuration's name, where there are several
    split: str = "train"
    validation_split: str | None = None  # null: `validation` or `test` where there is one, else `held_out` of `split`
    revision: str | None = None  # a commit, branch or tag of the hub

    def __post_init__(self) -> None:
        super().__post_init__()
        folder = Path(self.path)
        if self.path and not self.path.startswith((".", "/", "~")) and folder.is_dir():
            object.__setattr__(self, "path", f"./{self.path}")  # spelled out, it is never taken for a hub id
        for name, value in KNOWN.get(self.path.rstrip("/").rpartition("/")[2], {}).items():
            flat = name == "config" and folder.is_dir() and not (folder / value).is_dir()
            if getattr(self, name) is None and not flat:
                object.__setattr__(self, name, value)  # spelled out wherever the settings are

    def build(self, seed: int) -> ProblemSet:
        """The problems of the split; the seed has a say in them with `resplit` alone."""
        if not self.path:
            raise ConfigError("dataset.path: nothing is chosen. Write dataset=OWNER/NAME or dataset=FOLDER.")
        splits = _splits(self.path, self.config, self.revision)
        name = Path(self.path).name if Path(self.path).is_dir() else self.path
        found = self.validation_split or next((s for s in HELD_OUT_SPLITS if s in splits and s != self.split), None)
        train, held_out = (self._table(splits, split, name) for split in (self.split, found))
        assert train is not None
        return problem_set(self, train, held_out, seed, f"`{name}`")

    def sources(self) -> list[Path]:
        """The files of a local folder; none for an id, whose files the hub keeps under `revision`."""
        folder = Path(self.path)
        return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []

    def _table(self, splits: Mapping[str, Any], split: str | None, name: str) -> Table | None:
        if split is None:
            return None
        if split not in splits:
            field = "split" if split == self.split else "validation_split"
            raise ConfigError(f"dataset.{field}: `{name}` has no split `{split}`.{did_you_mean(split, splits)}")
        return Table(f"{name}:{split}", tuple(enumerate(splits[split].with_format("arrow")[:].to_pylist(), 1)))


@lru_cache(maxsize=4)
def _splits(path: str, config: str | None, revision: str | None) -> Mapping[str, Any]:
    """Every split as a `datasets.Dataset`."""
    import datasets as hf
    from datasets.exceptions import DatasetGenerationError
    from huggingface_hub.errors import HfHubHTTPError

    folder = Path(path)
    if folder.is_dir():
        _refuse_scripts(folder)
        refuse_outside(folder)
    elif path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise AbsentData(f"dataset.path: there is no folder `{path}`. Give a folder or a hub id (owner/name).")
    hf.disable_progress_bars()
    try:
        if (folder / "dataset_info.json").is_file() and (folder / "state.json").is_file():
            return {"train": hf.load_from_disk(path)}
        saved = (folder / "dataset_dict.json").is_file()
        found: Any = hf.load_from_disk(path) if saved else hf.load_dataset(path, config, revision=revision)
        return {str(name): split for name, split in found.items()}
    except (FileNotFoundError, ConnectionError) as error:
        raise AbsentData(f"dataset.path: `{path}` is not to be had: {error}") from error
    except (OSError, ValueError, RuntimeError, HfHubHTTPError, DatasetGenerationError) as error:
        raise ConfigError(f"dataset.path: `{path}` cannot be loaded: {error}") from error


def _refuse_scripts(folder: Path) -> None:
    """A folder whose data would come out of a script is refused, and the script named."""
    scripts = sorted(path.name for path in folder.glob("*.py"))
    data = any(path.suffix in (*READERS, ".arrow") for path in folder.rglob("*"))
    if f"{folder.resolve().name}.py" in scripts or (scripts and not data):
        raise ConfigError(
            f"dataset.path: `{folder / scripts[0]}` is a loading script. Code of a dataset is never run: save its rows "
            "as Parquet or JSONL, or with `save_to_disk`."
        )
