"""Builds every page and figure in memory; writing and checking both start from that."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.artifacts import audit
from posttrain.artifacts.digests import content_digest
from posttrain.artifacts.documents import write_atomically
from posttrain.reporting import figures, manual
from posttrain.reporting.bench_page import bench_pages
from posttrain.reporting.catalogue_page import catalogue_page
from posttrain.reporting.claims import Problem, check_text
from posttrain.reporting.facts import Dataset, Method
from posttrain.reporting.figures import Figure
from posttrain.reporting.licence import licence_of
from posttrain.reporting.method_page import method_page
from posttrain.reporting.page import FIXED, HEADER, compose
from posttrain.reporting.reading import BENCH, POST_TRAINING, Entry, Suite, SuiteError, read_suite

MARKDOWN = (".md", ".markdown", ".mdown", ".mkd", ".mkdn")  # what a site renders
_SHOWN_LINES = 40  # of one file's difference


@dataclass(frozen=True)
class Built:
    """Everything generated: bytes by path from the root, what has no licence, and what could not be compared."""

    files: Mapping[str, bytes]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...] = ()
    published: frozenset[str] = frozenset()  # paths of the files it was made from


def build(root: Path, methods: Sequence[Method], datasets: Sequence[Dataset] = ()) -> Built:
    """All pages and figures; SuiteError where a published file or a page's markers cannot be used."""
    suite = read_suite(root)
    _require_sound(suite)
    _require_registered(suite, methods)
    pages = [method_page(method, suite) for method in methods]
    pages += [catalogue_page(methods, suite, datasets), *bench_pages(suite)]
    registered = [method.name for method in methods]
    everything = licence_of(suite.entries)  # a sentence may speak of other methods than its page's
    files: dict[str, bytes] = {}
    problems: list[Problem] = []
    other: set[str] = set()
    for page in pages:
        drawn = {path: _drawn(root, path, figure, other) for path, figure in page.figures.items()}
        old = _text(root, page.path)
        text = compose(page, manual.text_of(old, page.path), drawn)
        files |= {page.path: text, **drawn}
        read, names = text.decode(), (*page.names, *FIXED)
        licence = page.licence
        if page.method is not None:
            known = {name: getattr(everything, name) for name in ("outcomes", "findings", "counts")}
            licence = replace(licence, **known)
        problems += check_text(page.path, read, licence, names, page.method, registered, manual.span(read))
    problems += _other_texts(root, suite, methods, files)
    published = frozenset(file.path for entry in suite.entries for file in entry.files)
    return Built(dict(sorted(files.items())), tuple(problems), tuple(sorted(other)), published)


def write(root: Path, built: Built) -> list[str]:
    """Writes what differs and gives its paths."""
    changed = []
    for path, data in built.files.items():
        target = root / path
        if target.is_symlink() or not target.resolve().is_relative_to(root.resolve()):
            raise SuiteError(f"{path} is or lies behind a symbolic link; put a real file there. It was not written")
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, data)
            changed.append(path)
    return changed


def compare(root: Path, built: Built) -> Iterator[str]:
    """What differs on disk, as unified differences, and generated files that nothing generates any more."""
    for path, data in built.files.items():
        target = root / path
        if not target.is_file():
            yield f"{path} is missing; write it with posttrain docs build"
        elif target.read_bytes() != data:
            yield _difference(path, target.read_bytes(), data)
    yield from (f"{path} is generated no more; delete it" for path in stale(root, built))
    yield from strangers(root, built)


def stale(root: Path, built: Built) -> list[str]:
    """Generated pages and figures on disk that are not among those built."""
    found = [path for place in (POST_TRAINING, BENCH) for path in (root / place).glob("*/figures/*")]
    for place in (POST_TRAINING, BENCH):
        texts = [*(root / place).glob("README.md"), *(root / place).glob("*/README.md")]
        found += [path for path in texts if path.read_bytes().startswith(HEADER.encode())]
    return sorted(name for path in found if (name := path.relative_to(root).as_posix()) not in built.files)


def strangers(root: Path, built: Built) -> Iterator[str]:
    """What lies among the published files and is none of them: no page shows it, and no digest binds it."""
    known = built.published | built.files.keys()
    for path in sorted((root / "docs").rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            yield f"{name} is a symbolic link; put what it leads to there, or delete it"
        elif not name.startswith((f"{POST_TRAINING}/", f"{BENCH}/")):
            continue
        elif path.is_file() and name not in known and path.suffix not in MARKDOWN and "/figures/" not in name:
            yield f"{name} is neither published nor a page; delete it, or publish its run with posttrain publish"


def _difference(path: str, found: bytes, expected: bytes) -> str:
    old, new = (data.decode("utf-8", errors="replace").splitlines() for data in (found, expected))
    lines = list(difflib.unified_diff(old, new, f"{path} (on disk)", f"{path} (from the artifacts)", lineterm="", n=1))
    if not lines:
        return f"{path} differs in its line ends or its last line"
    more = [f"... {len(lines) - _SHOWN_LINES} more lines"] if len(lines) > _SHOWN_LINES else []
    return "\n".join(lines[:_SHOWN_LINES] + more)


def _drawn(root: Path, path: str, figure: Figure, other: set[str]) -> bytes:
    """The figure's bytes. One drawn from the same numbers by another matplotlib is kept as it is: its digest stands
    in the page, so that an edit still shows."""
    target = root / path
    old = target.read_bytes() if target.is_file() and not target.is_symlink() else b""
    stamp, here = figures.stamp(old), figures.available()
    if stamp is not None and stamp[0] == figure.digest and stamp[1] != here:
        reader = f"matplotlib {here}" if here else "no matplotlib"
        other.add(f"figures drawn by matplotlib {stamp[1]} were compared by their numbers only: here is {reader}")
        return old
    return figures.draw(figure)


def _text(root: Path, path: str) -> str | None:
    target = root / path
    if target.is_symlink():
        raise SuiteError(f"{path} is a symbolic link; put the file itself there")
    if not target.is_file():
        return None
    try:
        return target.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SuiteError(f"{path} is not UTF-8: byte {error.start}") from None


def _other_texts(root: Path, suite: Suite, methods: Sequence[Method], files: Mapping[str, bytes]) -> Iterator[Problem]:
    """Hand-written Markdown and README.md: what is published below its folder licenses it, beside both all there is.

    Decision records are left out: what they weigh is the project's own design.
    """
    names = [*FIXED, *(text for method in methods for text in (method.title, method.summary))]
    registered = [method.name for method in methods]
    licences = {
        place: licence_of([entry for entry in suite.entries if entry.artifact.path.startswith(place)])
        for place in (f"{POST_TRAINING}/", f"{BENCH}/", "")
    }
    texts = [path for path in (root / "docs").rglob("*") if path.suffix.lower() in MARKDOWN and not path.is_dir()]
    for path in sorted([*texts, *root.glob("README.md")]):
        name = path.relative_to(root).as_posix()
        if name not in files and not name.startswith("docs/adr/"):
            place = next(place for place in licences if name.startswith(place))
            yield from check_text(name, _text(root, name) or "", licences[place], names, None, registered)


def _require_sound(suite: Suite) -> None:
    """Refuses what the digests show to be altered, before a page repeats it."""
    for entry in suite.entries:
        found = list(_altered(entry))
        if found:
            raise SuiteError(f"{entry.artifact.path}: {found[0]}. Restore it, or publish the run again")


def _require_registered(suite: Suite, methods: Sequence[Method]) -> None:
    """An artifact of a method that is not known here would stand on no page, and nobody would miss it."""
    known = {method.name for method in methods}
    for entry in suite.entries:
        if not entry.bench and entry.page not in known:
            files = [file.path for file in entry.outside] or ["FILE.py"]
            raise SuiteError(
                f"{entry.artifact.path} is of {entry.page!r}, which is not registered; write --plugin {files[0]}, "
                "here and in the command that checks the pages (Makefile)"
            )


def _altered(entry: Entry) -> Iterator[str]:
    if entry.plan is None or entry.execution is None:
        return
    yield from audit.content_problems(entry.value)
    expected = content_digest(entry.plan.value["plan"])
    block = "protocol" if entry.bench else "evaluation_protocol"
    for place, digest in (
        (entry.plan.path, entry.plan.value["plan_sha256"]),
        (f"/{block}/plan_sha256", entry.value[block].get("plan_sha256")),
    ):
        if digest != expected:
            yield f"the plan's digest is {digest} in {place}, its content gives {expected}"
    record = entry.execution.value
    if record["execution_sha256"] != content_digest(record["execution"]):
        yield f"{entry.execution.path} does not have the digest that it bears"
    outputs = {file["sha256"] for file in record["execution"]["outputs"]}
    if entry.artifact.digest not in outputs:
        yield f"its bytes are no output of {entry.execution.path}"
    if entry.value["provenance"]["artifact_path"] != entry.artifact.path:
        yield f"its recorded place is {entry.value['provenance']['artifact_path']}"
