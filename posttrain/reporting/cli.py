"""`posttrain docs`, `publish`, `report` and `merge`. Every verb imports what it needs when it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.reporting.facts import Method

FAILED, UNUSABLE = 1, 3


def add_verbs(verbs: Any) -> None:
    """Adds the verbs of reporting to the command line's."""

    def verb(parent: Any, name: str, run: Any, text: str) -> argparse.ArgumentParser:
        added = parent.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(run=run, settings=False)
        added.add_argument("--plugin", action="append", default=[], metavar="M|F.py", help="what registers further names")
        return added

    docs = verb(verbs, "docs", lambda options, words: _help(docs), "pages and figures from the published artifacts")
    own = docs.add_subparsers(dest="docs_verb", metavar="VERB")
    added = verb(own, "build", _build, "write every page and figure again")
    added.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the folder that holds docs/ (default: .)")
    added.add_argument("--rerun", metavar="WHAT", help="first run again: l0, l1, l2, bench or methods, with commas")
    added = verb(own, "check", _check, "build in memory and compare; exit 1 with the differences")
    added.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the folder that holds docs/ (default: .)")
    added = verb(verbs, "publish", _publish, "put a verified, complete run of clean code below docs/, rebuild the pages")
    added.add_argument("folder", metavar="RUN", type=Path)
    added.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the folder that holds docs/ (default: .)")
    added.add_argument("--replace", action="store_true", help="take the place of what is published there")
    added = verb(verbs, "report", _report, "one HTML file of a run: no server, no network")
    added.add_argument("folder", metavar="RUN", type=Path)
    added.add_argument("--output", type=Path, metavar="FILE", help="default: report.html in the run folder's parent")
    added = verb(verbs, "merge", _merge, "put runs of single seeds (--only-seed) together, to the same bytes")
    added.add_argument("folders", metavar="RUN", type=Path, nargs="+")
    added.add_argument("--output", type=Path, metavar="DIR", help="the run folder (default: a new one under runs/)")


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


def _say(error: Exception, code: int = FAILED) -> int:
    print(f"posttrain: {error}", file=sys.stderr)
    return code


def _methods(plugins: list[str]) -> list[Method]:
    from posttrain.evaluation.facts import methods
    from posttrain.registry import load_plugins

    load_plugins(plugins)
    return methods()


# -- docs -----------------------------------------------------------------------------------------------------


def _build(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.reporting import build
    from posttrain.reporting.reading import SuiteError

    try:
        _require_docs(options.root)
        methods = _methods(options.plugin)
        if options.rerun:
            _rerun(options.root, options.rerun, methods)
        built = build.build(options.root, methods)
        changed = build.write(options.root, built)
    except SuiteError as error:
        return _say(error, UNUSABLE)
    for path in changed:
        print(f"wrote {path}")
    print(f"{len(built.files)} files, {len(changed)} changed")
    for line in (*built.notes, *(f"{path} is generated no more; delete it" for path in build.stale(options.root, built))):
        print(f"note: {line}")
    return _print_problems(built.problems)


def _rerun(root: Path, what: str, methods: list[Method]) -> None:
    """Runs published commands again, each in a scratch folder, and puts what they give in the place of what was there."""
    import tempfile

    from posttrain import cli
    from posttrain.reporting import publishing
    from posttrain.reporting.page import command
    from posttrain.reporting.reading import SuiteError, read_suite
    from posttrain.reporting.selecting import selected

    for entry in selected(read_suite(root), what, methods):
        assert entry.execution is not None
        record = entry.execution.value["execution"]
        print(f"running again: {command(record)}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            if code := cli.main([*record["argv"][1:], "--output", str(folder)]):
                raise SuiteError(f"{entry.artifact.path}: its command ended with exit code {code}; nothing was replaced")
            try:
                made = publishing.publication(folder, verifier([]))
                publishing.put(root, made, replace=True)
            except publishing.Refused as error:
                raise SuiteError(f"{entry.artifact.path} was not replaced: {error}") from None


def _check(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.reporting import build
    from posttrain.reporting.reading import SuiteError

    try:
        _require_docs(options.root)
        built = build.build(options.root, _methods(options.plugin))
        differences = list(build.compare(options.root, built))
    except SuiteError as error:
        return _say(error, UNUSABLE)
    for difference in differences:
        print(difference)
    for note in built.notes:
        print(f"note: {note}")
    code = _print_problems(built.problems)
    if differences:
        print(f"{len(differences)} differ from what the artifacts give. Write them with: posttrain docs build")
        return FAILED
    if not code:
        print(f"{len(built.files)} files are what the artifacts give; every number and claim word has its licence")
    return code


def _print_problems(problems: Any) -> int:
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} without a licence")
    return FAILED if problems else 0


def _require_docs(root: Path) -> None:
    from posttrain.reporting.reading import POST_TRAINING, SuiteError

    if not (root / POST_TRAINING).is_dir():
        raise SuiteError(f"there is no {POST_TRAINING}/ in {root}; run this in a clone, or write --root DIR")


# -- publish --------------------------------------------------------------------------------------------------


def verifier(plugins: list[str]) -> Any:
    """`verify` with the generators and the code that are at hand."""
    from posttrain.artifacts.verify import verify
    from posttrain.registry import load_plugins

    load_plugins(plugins)
    from posttrain.bench.planning import regenerate as regenerate_track
    from posttrain.evaluation.records import regenerate

    package = Path(__file__).parent.parent
    return lambda path: verify(path, fingerprints=lambda d: regenerate_track(d) or regenerate(d), package_root=package)


def _publish(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.reporting import build, publishing
    from posttrain.reporting.reading import SuiteError

    try:
        _require_docs(options.root)
        made = publishing.publication(options.folder, verifier(options.plugin))
        methods = _methods(options.plugin)
        build.build(options.root, methods)  # what is there has to be sound before anything is added
        for path in publishing.put(options.root, made, replace=options.replace):
            print(f"published {path}")
        built = build.build(options.root, methods)
        for path in build.write(options.root, built):
            print(f"wrote {path}")
    except publishing.Refused as error:
        return _say(ValueError(f"publish: refused: {error}"))
    except SuiteError as error:
        return _say(error, UNUSABLE)
    return _print_problems(built.problems)


# -- verify ---------------------------------------------------------------------------------------------------


def verify_paths(paths: list[Path], plugins: list[str], rerun: bool, budget: float | None) -> list[Report]:
    """Reports on artifacts, run folders and `docs/` folders; `rerun` adds level V3."""
    from posttrain.reporting.suite_checks import is_suite, verify_suite

    check = verifier(plugins)
    if rerun:
        from posttrain.evaluation import rerun as third

        plain = check

        def check(path: Path) -> Report:
            return third.rerun(plain(path), path, third.BUDGET if budget is None else budget)

    reports = []
    for path in paths:
        reports += verify_suite(path.resolve().parent, _methods([]), check) if is_suite(path) else [check(path)]
    return reports


# -- report and merge -----------------------------------------------------------------------------------------


def _report(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.artifacts.documents import write_atomically
    from posttrain.reporting import figures, html

    try:
        run = html.read_run(options.folder)
        page = html.render(run, verifier(options.plugin)(options.folder))
    except (html.ReportError, figures.FigureError) as error:
        return _say(ValueError(f"report: {error}"))
    # Beside the folder, not in it: what lies in a run folder is recorded.
    target = options.output or options.folder.resolve().with_name(f"{options.folder.resolve().name}-report.html")
    write_atomically(target, page.encode())
    print(target if options.output else target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target)
    return 0


def _merge(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.evaluation import parts
    from posttrain.registry import load_plugins

    load_plugins([*options.plugin, *(name for name in parts.plugins_of(options.folders[0]) if name.endswith(".py"))])
    finished = parts.merge(options.folders, options.output, verifier([]))
    for line in said_of(finished.artifact):
        print(line)
    print(finished.path)
    return 0


def said_of(artifact: Any) -> list[str]:
    """What may be said of an artifact."""
    from posttrain.reporting import sentences

    compared = [sentences.compared(artifact, entry) for entry in artifact.get("comparison", [])]
    return [*sentences.described(artifact), *compared]


def compare_artifacts(words: list[str], output: Path | None, plugins: list[str]) -> int:
    """`posttrain compare A.json B.json`: tables, verdicts, and a folder with the numbers and the figure."""
    from posttrain.artifacts.digests import content_digest
    from posttrain.artifacts.documents import dumps, write_atomically
    from posttrain.reporting import comparing, figures

    try:
        found = comparing.compare_files([Path(word) for word in words], verifier(plugins))
    except comparing.Refused as error:
        return _say(ValueError(f"compare: refused: {error}"))
    names = "-vs-".join(artifact.value["method"] for artifact in found.artifacts)
    folder = output or Path("runs") / f"{names}-{content_digest(found.as_json()).removeprefix('sha256:')[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "comparison.json", dumps(found.as_json()))
    print(comparing.render(found))
    metric = found.artifacts[0].value["evaluation_protocol"]["primary_metric"].rpartition("/")[2]
    try:
        write_atomically(folder / "differences.svg", figures.draw(figures.differences(found.entries, metric)))
        print(folder / "differences.svg")
    except figures.FigureError as error:
        print(f"note: no figure: {error}")
    print(folder / "comparison.json")
    return 0
