"""`files`: rows of a JSONL, JSON, CSV or Parquet file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.batch import ProblemSet
from posttrain.data.reading import read_table
from posttrain.data.splits import RowOptions, problem_set
from posttrain.registry import ConfigError, datasets


@datasets.register("files")
@dataclass(frozen=True)
class Files(RowOptions):
    """Rows of a JSONL, JSON, CSV or Parquet file: plain, conversations or pairs, with any names of columns."""

    path: str = ""
    validation: str | None = None  # another file; null: `held_out` of the rows of `path`

    def build(self, seed: int) -> ProblemSet:
        """The file's problems; the seed has a say in them with `resplit` alone."""
        if not self.path:
            raise ConfigError("dataset.path: nothing is chosen. Write dataset=FILE.jsonl or dataset.path=FILE.jsonl.")
        table = read_table(Path(self.path).expanduser(), "dataset.path")
        held_out = None
        if self.validation is not None:
            held_out = read_table(Path(self.validation).expanduser(), "dataset.validation")
            if held_out.name == table.name:
                held_out = replace(held_out, name=f"validation/{held_out.name}")
        return problem_set(self, table, held_out, seed, "rows of a file")

    def sources(self) -> list[Path]:
        """The files that are read."""
        return [Path(path).expanduser() for path in (self.path, self.validation) if path]
