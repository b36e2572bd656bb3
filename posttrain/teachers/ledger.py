"""What a run needed of a store of teachers' answers and what it found there, also where several ranks share the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from posttrain.teachers.base import Events, Found


@dataclass(frozen=True)
class Use:
    """How a run came by an entry, at its first use."""

    before_training: bool
    was_there: bool  # made by an earlier run, or by another process
    tokens: int
    bytes: int


@dataclass
class Ledger:
    """Counts of single happenings, and the entries that were used, by their keys.

    A completion may be drawn again on another rank, so numbers of entries cannot be added up over ranks: the ledgers
    are put together, and each entry counts once.
    """

    counted: Events = field(default_factory=Events)
    noted: Found = field(default_factory=Found)
    uses: dict[str, Use] = field(default_factory=dict)

    @classmethod
    def over(cls, ranks: Sequence[Ledger]) -> Ledger:
        """The ledger of all ranks together: that of one process which had done everything."""
        uses: dict[str, Use] = {}
        for key, use in (item for ledger in ranks for item in ledger.uses.items()):
            known = uses.get(key, use)
            before, there = known.before_training or use.before_training, known.was_there and use.was_there
            uses[key] = replace(use, before_training=before, was_there=there)
        noted = [asdict(ledger.noted) for ledger in ranks]
        summed = Found(**{name: sum(part[name] for part in noted) for name in noted[0]})
        return cls(Events.over([ledger.counted for ledger in ranks]), summed, uses)

    @property
    def events(self) -> Events:
        """What the run needed, for its artifact."""
        before = sum(use.before_training for use in self.uses.values())
        return replace(
            self.counted,
            teacher_cache_entries=len(self.uses),
            teacher_prefill_calls=before,
            online_teacher_calls=len(self.uses) - before,
        )

    @property
    def found(self) -> Found:
        """What the run found, for its execution record."""
        return replace(
            self.noted,
            teacher_store_hits=sum(use.was_there for use in self.uses.values()),
            teacher_store_tokens=sum(use.tokens for use in self.uses.values()),
            teacher_store_bytes=sum(use.bytes for use in self.uses.values()),
        )

    def state_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "counted": asdict(self.counted),
            "noted": asdict(self.noted),
            "uses": {key: asdict(use) for key, use in sorted(self.uses.items())},
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Ledger:
        """Goes on from `state_dict`."""
        uses = {key: Use(**use) for key, use in state["uses"].items()}
        return cls(Events(**state["counted"]), Found(**state["noted"]), uses)
