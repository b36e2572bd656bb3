"""`posttrain docs`, `publish`, `report` and `merge`. Every verb imports what it needs when it runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from posttrain.reporting.actions import (
    FAILED,
    datasets_of,
    methods_of,
    report_in_words,
    rerun_published,
    run_folder,
    say,
    verifier,
)
from posttrain.verbs import Run, add_group, add_plugin, add_verb

UNUSABLE = 3


def add_verbs(verbs: Any) -> None:
    """Adds the verbs of reporting to the command line's."""

    def verb(parent: Any, name: str, run: Run, text: str) -> argparse.ArgumentParser:
        added = add_verb(parent, name, run, text)
        add_plugin(added)
        return added

    own = add_group(verbs, "docs", "pages and figures from the published artifacts")
    added = verb(own, "build", _build, "write every page and figure again")
    added.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the folder with docs/ (default: .)")
    added.add_argument("--rerun", metavar="WHAT", help="first run again: l0, l1, l2, bench or methods, with commas")
    added = verb(own, "check", _check, "build in memory and compare; exit 1 with the differences")
    added.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the folder with docs/ (default: .)")
    added = verb(own, "migrate", _migrate, "put a received copy of a recorded artifact where it belongs, mended")
    added.add_argument("file", metavar="FILE", type=Path)
    added.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the folder with docs/ (default: .)")
    added = verb(
        verbs, "publish", _publish, "put a verified, complete run of clean code below docs/, rebuild the pages"
    )
    added.add_argument("folder", metavar="RUN", type=Path)
    added.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="the folder with docs/ (default: .)")
    added.add_argument(
        "--replace",
        action="store_true",
        help="take the place of the same runs, or of a plan of this name",
    )
    added = verb(verbs, "report", _report, "one HTML file of a run; a bench or an evaluation as a table")
    added.add_argument("folder", metavar="RUN", type=Path)
    added.add_argument("--output", type=Path, metavar="FILE", help="default: report.html in the run folder's parent")
    added = verb(verbs, "merge", _merge, "put runs of single seeds (--only-seed) together, to the same bytes")
    added.add_argument("folders", metavar="RUN", type=Path, nargs="+")
    added.add_argument("--output", type=Path, metavar="DIR", help="the run folder (default: a new one under runs/)")


# -- docs -----------------------------------------------------------------------------------------------------


def _build(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.reporting import build
    from posttrain.reporting.reading import SuiteError

    try:
        _require_docs(options.root)
        methods = methods_of(options.plugin)
        if options.rerun:
            rerun_published(options.root, options.rerun, methods, options.plugin)
        built = build.build(options.root, methods, datasets_of())
        changed = build.write(options.root, built)
    except SuiteError as error:
        return say(error, UNUSABLE)
    for path in changed:
        print(f"wrote {path}")
    print(f"{len(built.files)} files, {len(changed)} changed")
    for line in (
        *built.notes,
        *(f"{path} is generated no more; delete it" for path in build.stale(options.root, built)),
    ):
        print(f"note: {line}")
    return _print_problems(built.problems)


def _check(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.reporting import build
    from posttrain.reporting.reading import SuiteError

    try:
        _require_docs(options.root)
        built = build.build(options.root, methods_of(options.plugin), datasets_of())
        differences = list(build.compare(options.root, built))
    except SuiteError as error:
        return say(error, UNUSABLE)
    for difference in differences:
        print(difference)
    for note in built.notes:
        print(f"note: {note}")
    code = _print_problems(built.problems)
    if differences:
        print(f"{len(differences)} differ from what the artifacts give. Write them with: posttrain docs build")
        return FAILED
    if not code:
        print(
            f"{len(built.files)} files are what the artifacts give; each number and claim word of README.md and docs/ "
            "has a licence"
        )
    return code


def _print_problems(problems: Any) -> int:
    for problem in problems:
        print(problem)
    if problems:
        print(f"{len(problems)} without a licence")
    return FAILED if problems else 0


def _migrate(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.artifacts.documents import DocumentError, load, write_atomically
    from posttrain.reporting import history
    from posttrain.reporting.reading import SuiteError

    try:
        _require_docs(options.root)
        for path, data in history.restore(options.root, load(options.file), options.file.name).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
            print(f"wrote {path.relative_to(options.root)}")
    except (DocumentError, FileNotFoundError, SuiteError) as error:
        return say(error, UNUSABLE)
    return _build(argparse.Namespace(root=options.root, plugin=options.plugin, rerun=None), [])


def _require_docs(root: Path) -> None:
    from posttrain.reporting.reading import POST_TRAINING, SuiteError

    if not (root / POST_TRAINING).is_dir():
        raise SuiteError(f"there is no {POST_TRAINING}/ in {root}; run this in a clone, or write --root DIR")


# -- publish --------------------------------------------------------------------------------------------------


def _publish(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.reporting import build, publishing
    from posttrain.reporting.html import ReportError
    from posttrain.reporting.reading import SuiteError

    try:
        _require_docs(options.root)
        made = publishing.publication(run_folder(options.folder), verifier(options.plugin))
        if options.replace:
            publishing.refuse_other_results(options.root, made)
        methods = methods_of(options.plugin)
        build.build(options.root, methods, datasets_of())  # what is there has to be sound before anything is added
        written = publishing.put(options.root, made, replace=options.replace)
        for path in written:
            print(f"published {path}")
        if not written:
            print(f"{made.artifact} is published already, bit for bit; the execution record there stays (or --replace)")
        built = build.build(options.root, methods, datasets_of())
        for path in build.write(options.root, built):
            print(f"wrote {path}")
    except (publishing.Refused, ReportError) as error:
        return say(ValueError(f"publish: refused: {error}"))
    except SuiteError as error:
        return say(error, UNUSABLE)
    return _print_problems(built.problems)


# -- report and merge -----------------------------------------------------------------------------------------


def _report(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.artifacts.documents import write_atomically
    from posttrain.reporting import figures, html

    try:
        if report_in_words(options.folder, options.output, options.plugin):
            return 0
        folder = run_folder(options.folder)
        page = html.render(html.read_run(folder), verifier(options.plugin)(folder))
    except (html.ReportError, figures.FigureError) as error:
        return say(ValueError(f"report: {error}"))
    # Beside the folder, not in it: what lies in a run folder is recorded.
    target = options.output or folder.resolve().with_name(f"{folder.resolve().name}-report.html")
    write_atomically(target, page.encode())
    print(target if options.output else target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target)
    return 0


def _merge(options: argparse.Namespace, words: list[str]) -> int:
    from posttrain.evaluation import parts
    from posttrain.registry import ConfigError, load_plugins
    from posttrain.reporting import sentences

    loaded = {plugin.name for plugin in load_plugins(options.plugin)}
    # A part is data, and what data names is never run: whoever asks for the merge names the code.
    missing = [name for name in parts.plugins_of(options.folders[0]) if name not in loaded]
    if missing:
        raise ConfigError(f"merge: the parts were run with {' '.join(missing)}. Write --plugin {missing[0]}.")
    finished = parts.merge(options.folders, options.output, verifier([]))
    for line in sentences.said(finished.artifact):
        print(line)
    print(finished.path)
    return 0
