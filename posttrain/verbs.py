"""How the command line's verbs are declared, and what it says where a word of it is misspelt. Nothing but argparse."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

Run = Callable[[argparse.Namespace, list[str]], int]  # the options, and the settings written key=value
CLOSE = 0.8  # how alike an option must be to be meant, by difflib's ratio; `--steps` is not `--save-steps`


class Parser(argparse.ArgumentParser):
    """A parser that names the verb that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2; a misspelt verb gets its neighbour."""
        found = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(found[1], re.findall(r"[\w-]+", found[2]), n=1) if found else []
        super().error(f"{message}. Did you mean `{near[0]}`?" if near else message)


def add_verb(
    verbs: Any, name: str, run: Run, text: str, *, settings: bool = False, epilog: str | None = None
) -> argparse.ArgumentParser:
    """One verb; with `settings` it also takes words key=value."""
    raw = argparse.RawDescriptionHelpFormatter
    added = verbs.add_parser(name, help=text, description=text, epilog=epilog, formatter_class=raw, allow_abbrev=False)
    added.set_defaults(run=run, settings=settings, parser=added)
    return added


def add_group(verbs: Any, name: str, text: str, *, epilog: str | None = None) -> Any:
    """A verb with verbs of its own, which alone prints its help: what they are added to."""

    def show(options: argparse.Namespace, words: list[str]) -> int:
        group.print_help()
        return 0

    group = add_verb(verbs, name, show, text, epilog=epilog)
    return group.add_subparsers(dest=f"{name}_verb", metavar="VERB")


def add_plugin(parser: argparse.ArgumentParser, text: str = "what registers further names") -> None:
    """`--plugin`, as often as there are plugins."""
    parser.add_argument("--plugin", action="append", default=[], metavar="M|F.py", help=text)


def refuse_misspelt_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Ends the program where a left-over word is almost one of the verb's options."""
    options = re.findall(r"--[a-z][a-z-]*", parser.format_help())
    for word in words:
        near = difflib.get_close_matches(word.partition("=")[0], options, n=1, cutoff=CLOSE)
        if word.startswith("--") and near:
            parser.error(f"there is no option {word.partition('=')[0]}. Did you mean {near[0]}?")
