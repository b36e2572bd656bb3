"""`posttrain cache ...`. Every verb imports what it needs when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from posttrain.verbs import add_group, add_plugin, add_verb

FAILED = 1
EPILOG = """\
examples:
  posttrain cache build lightning-opd --tier l2 --store answers seeds=0-7
  posttrain train lightning-opd --tier l2 teacher.store=answers seeds=0-7
  posttrain cache info answers
  posttrain cache verify answers
"""


def add_verbs(verbs: Any) -> None:
    """Adds `cache` with its own verbs to the command line's."""
    text = "stores of teachers' answers: fill one before a run, describe it, check it"
    own = add_group(verbs, "cache", text, epilog=EPILOG)
    added = add_verb(
        own,
        "build",
        _build,
        "ask the teacher once about every completion known before",
        settings=True,
        epilog="Settings are written key=value, as for `posttrain train`; the run then needs the same ones.",
    )
    added.add_argument("algorithm", metavar="ALGO")
    added.add_argument("--tier", metavar="TIER", help="l0, l1 (the default), l2, or l3")
    added.add_argument("--config", metavar="NAME|FILE", help="one of the algorithm's own configurations, or a file")
    added.add_argument("--store", metavar="DIR", help="the same as teacher.store=DIR")
    add_plugin(added)
    added.add_argument("--json", action="store_true")
    added = add_verb(own, "info", _info, "teachers, entries, tokens, bytes per token")
    added.add_argument("store", metavar="STORE", type=Path)
    added.add_argument("--json", action="store_true")
    added = add_verb(own, "verify", _verify, "the digest of every entry; exit 1 names what is corrupt")
    added.add_argument("store", metavar="STORE", type=Path)
    added.add_argument("--repair", action="store_true", help="delete corrupt entries: the next run makes them again")


def _build(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from posttrain import settings
    from posttrain.evaluation import caches
    from posttrain.registry import load_plugins

    load_plugins(options.plugin)
    tier = settings.tier_of(options.tier, words)
    config = caches.buildable(settings.load(options.algorithm, tier, options.config, words), options.store)
    for filled in caches.fill(config):
        if options.json:
            print(json.dumps(caches.as_json(filled)), flush=True)
        else:
            print(caches.line(filled), flush=True)
    if not options.json:
        print(caches.render(caches.info(Path(config.teacher.store))))
    return 0


def _info(options: argparse.Namespace, words: list[str]) -> int:
    import json

    from posttrain.evaluation import caches

    found = caches.info(options.store)
    print(json.dumps(found, indent=2) if options.json else caches.render(found))
    return 0


def _verify(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.evaluation import caches

    checked = caches.verify(options.store, options.repair)
    for fault in checked.faults:
        print(fault)
    print(
        f"{checked.sound} entries are sound, {len(checked.faults)} faults, {checked.repaired} corrupt entries deleted"
    )
    return FAILED if checked.faults else 0
