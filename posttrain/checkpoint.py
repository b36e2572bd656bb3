"""Checkpoints: a run's whole state on disk, atomic and digested, so that a killed run goes on as if nothing happened.

A checkpoint is two files, each written beside its place and renamed into it: first `step-N.safetensors` with the
tensors, then `step-N.json` with everything else and the tensors' SHA-256, itself sealed by its own. The second file is
the mark of completeness; without it, or where a digest does not agree, a checkpoint does not count. Two generations are
kept. Nothing is ever unpickled: tensors are safetensors, the rest is JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from posttrain.artifacts.documents import remove_leftovers, write_atomically
from posttrain.registry import ConfigError

FORMAT = 2
KEPT = 2  # generations: the newest may be the one that a fault has torn
TENSOR = "tensor:"  # marks the place of a tensor in the JSON file


class Broken(Exception):
    """A file that is not what was written: torn, flipped, truncated, or of another format."""


def write_sealed(path: Path, value: Any) -> None:
    """Writes JSON behind the SHA-256 of its bytes, atomically; OSError where the disk refuses."""
    body = json.dumps(value, allow_nan=False).encode()
    write_atomically(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def read_sealed(path: Path) -> Any:
    """What `write_sealed` wrote; Broken where a single bit is another."""
    digest, _, body = path.read_bytes().partition(b"\n")
    if digest != hashlib.sha256(body).hexdigest().encode():
        raise Broken("its digest does not agree with its content")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Broken(f"its digest agrees, but it holds no JSON ({error})") from error


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one seed in a folder of their own.

    `identity` is what a checkpoint must have been written by to be gone on from: configuration, seed, number of ranks.
    """

    folder: Path
    identity: Mapping[str, Any]

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Writes the state after `step` updates and lets go of all but two generations.

        `state` nests mappings with string keys, lists, tensors and JSON values. OSError leaves the older ones as they
        were.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        tensors: dict[str, Tensor] = {}
        plain = _without_tensors(state, "", tensors)
        blob = save(tensors)
        write_atomically(self._path(step, "safetensors"), blob)
        digest = hashlib.sha256(blob).hexdigest()
        content = {"format": FORMAT, "identity": dict(self.identity), "step": step, "tensors": digest, "state": plain}
        write_sealed(self._path(step, "json"), content)
        self._forget(step)

    def load(self) -> tuple[dict[str, Any] | None, list[str]]:
        """State of the newest complete checkpoint, or None; and one line for each broken one that was passed over.

        A complete checkpoint of another identity is a ConfigError.
        """
        broken = []
        for step in reversed(self._steps("json")):
            try:
                return self._read(step), broken
            except Broken as fault:
                broken.append(f"{self._path(step, 'json')}: {fault}")
        return None, broken

    def _read(self, step: int) -> dict[str, Any]:
        content = read_sealed(self._path(step, "json"))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, dict) else type(content).__name__
            raise Broken(f"its format is {found}, this version reads {FORMAT}")
        for name, expected in self.identity.items():
            found = content["identity"].get(name)
            if found != expected:
                raise ConfigError(
                    f"--resume: {self._path(step, 'json')} was written with {name} {found}, this run has {expected}. "
                    "Go on as the run was started, or choose another --output."
                )
        try:
            blob = self._path(step, "safetensors").read_bytes()
        except FileNotFoundError:
            raise Broken("its tensors are missing") from None
        if hashlib.sha256(blob).hexdigest() != content["tensors"]:
            raise Broken("its tensors do not have the digest that was written down")
        try:
            return _with_tensors(content["state"], load(blob))
        except (SafetensorError, KeyError) as error:
            raise Broken(f"its digests agree, but it holds no state ({error})") from error

    def _forget(self, newest: int) -> None:
        """Removes generations beyond two, those of a future that was abandoned, and tensors nobody refers to."""
        kept = [step for step in self._steps("json") if step <= newest][-KEPT:]
        for suffix in ("json", "safetensors"):  # the mark of completeness goes first
            for step in self._steps(suffix):
                if step not in kept:
                    self._path(step, suffix).unlink()

    def _steps(self, suffix: str) -> list[int]:
        """Steps with a file of this kind, in the order of numbers."""
        return sorted(int(path.stem.removeprefix("step-")) for path in self.folder.glob(f"step-*.{suffix}"))

    def _path(self, step: int, suffix: str) -> Path:
        return self.folder / f"step-{step}.{suffix}"


def _without_tensors(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The value with a name in place of each tensor, which goes into `tensors` under that name."""
    if isinstance(value, Tensor):
        # A copy: safetensors refuses tensors that share memory, such as tied embeddings.
        tensors[place] = value.detach().cpu().contiguous().clone()
        return TENSOR + place
    if isinstance(value, Mapping):
        return {key: _without_tensors(part, f"{place}/{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(part, f"{place}/{i}", tensors) for i, part in enumerate(value)]
    if isinstance(value, str) and value.startswith(TENSOR):
        return TENSOR + TENSOR + value  # a text that only looks like one
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, str) and value.startswith(TENSOR + TENSOR):
        return value.removeprefix(TENSOR + TENSOR)
    if isinstance(value, str) and value.startswith(TENSOR):
        return tensors[value.removeprefix(TENSOR)]
    if isinstance(value, dict):
        return {key: _with_tensors(part, tensors) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_tensors(part, tensors) for part in value]
    return value
