"""What the verbs of the command line do with published and finished runs; heavy imports inside each function."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posttrain.artifacts.report import Report
    from posttrain.reporting.facts import Dataset, Method

FAILED = 1

# What posttrain writes beside artifacts, by the end of its name.
NO_ARTIFACT = {
    "part.json": "one seed of a plan; verify its folder",
    "plan.json": "a plan; verify its folder",
    "execution.json": "an execution record; verify its folder",
    "comparison.json": "a comparison; verify the artifacts that it names",
    ".jsonl": "rows of a run; verify its folder",
    ".yaml": "a configuration",
    ".html": "a report",
    ".svg": "a figure",
}


def say(error: Exception, code: int = FAILED) -> int:
    print(f"posttrain: {error}", file=sys.stderr)
    return code


def methods_of(plugins: list[str]) -> list[Method]:
    from posttrain.evaluation.facts import methods
    from posttrain.registry import load_plugins

    load_plugins(plugins)
    return methods()


def datasets_of() -> list[Dataset]:
    from posttrain.evaluation.facts import datasets

    return datasets()


def verifier(plugins: list[str]) -> Any:
    """`verify` with the generators and the code that are at hand."""
    from posttrain.artifacts.verify import verify
    from posttrain.registry import load_plugins

    load_plugins(plugins)
    from posttrain.bench.planning import regenerate as regenerate_track
    from posttrain.evaluation.records import redecide, regenerate

    package = Path(__file__).parent.parent

    def drawn(dataset: dict[str, Any]) -> str | None:
        return regenerate_track(dataset) or regenerate(dataset)

    return lambda path: verify(path, fingerprints=drawn, package_root=package, claims=redecide)


def verify_paths(paths: list[Path], plugins: list[str], rerun: bool, budget: float | None) -> list[Report]:
    """Reports on artifacts, run folders and `docs/` folders; `rerun` adds level V3."""
    from posttrain.reporting.suite_checks import is_suite, verify_suite

    check = verifier(plugins)
    if rerun:
        from posttrain.bench import rerun as bench
        from posttrain.evaluation import rerun as third

        plain = check

        def check(path: Path) -> Report:
            seconds = third.BUDGET if budget is None else budget
            if bench.handles(path):
                return bench.rerun(plain(path), path, seconds, plugins)
            return third.rerun(plain(path), path, seconds)

    def suite(path: Path) -> list[Report]:
        return verify_suite(path.resolve().parent, methods_of([]), check, datasets_of())

    reports = []
    for path in artifacts_among(paths):
        reports += suite(path) if is_suite(path) else [check(path)]
    return reports


def artifacts_among(paths: list[Path]) -> list[Path]:
    """Without what only lies beside artifacts, as in `runs/*`, named on stderr; all where nothing else stays."""
    kinds = {path: kind for path in paths if (kind := _no_artifact(path)) is not None}
    if len(kinds) == len(paths):
        return paths
    for path, kind in kinds.items():
        print(f"skipped {path}: {kind}", file=sys.stderr)
    return [path for path in paths if path not in kinds]


def _no_artifact(path: Path) -> str | None:
    """What a path is that cannot be an artifact; None for what may be one."""
    if path.is_dir():
        compared = (path / "comparison.json").is_file() and not (path / "artifact.json").exists()
        return NO_ARTIFACT["comparison.json"] if compared else None
    return next((kind for end, kind in NO_ARTIFACT.items() if path.name.endswith(end)), None)


def rerun_published(root: Path, what: str, methods: list[Method], plugins: list[str]) -> None:
    """Runs published commands again, each in a scratch folder, and replaces what was there by what they give.

    All of them are looked at before the first one runs: `plugins` is the only code from outside that they may name.
    """
    import tempfile

    from posttrain import cli
    from posttrain.reporting import publishing
    from posttrain.reporting.page import command
    from posttrain.reporting.reading import SuiteError, read_suite
    from posttrain.reporting.selecting import selected

    chosen = []
    for entry in selected(read_suite(root), what, methods):
        assert entry.execution is not None
        record = entry.execution.value["execution"]
        if (reason := _not_to_be_run(record["argv"][1:], plugins)) is not None:
            raise SuiteError(f"{entry.artifact.path} is not run again: {reason}. Nothing was run.")
        chosen.append((entry, record))
    publications = []
    for entry, record in chosen:
        print(f"running again: {command(record)}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            words = [*record["argv"][1:], "--output", str(folder)]
            with _typed(words):
                code = cli.main(words)
            if code:
                raise SuiteError(
                    f"{entry.artifact.path}: its command ended with exit code {code}. Nothing was replaced"
                )
            try:
                publications.append(publishing.publication(folder, verifier([])))
            except publishing.Refused as error:
                raise SuiteError(f"{entry.artifact.path}: {error}. Nothing was replaced") from None
    for made in publications:
        try:
            publishing.put(root, made, replace=True)
        except publishing.Refused as error:
            raise SuiteError(f"{made.artifact} was not replaced: {error}") from None


@contextmanager
def _typed(words: list[str]) -> Iterator[None]:
    """In here the program was called with these words, which is what a record says of its run."""
    typed = sys.argv
    sys.argv = [typed[0], *words]
    try:
        yield
    finally:
        sys.argv = typed


RUNS = (["train"], ["reproduce"], ["compare"], ["bench", "run"])  # verbs that make what is published


def _not_to_be_run(words: list[str], plugins: list[str]) -> str | None:
    """Why a recorded command is not run, None where it may be: a record is data, and only the caller has code run."""
    from posttrain import settings
    from posttrain.overrides import code_named, parse_overrides

    if not any(words[: len(verb)] == verb for verb in RUNS):
        return f"its command is `posttrain {' '.join(words[:2])}`, which makes no artifact"
    options = [word for word in words if word.startswith("-")]
    asked = _dotted(parse_overrides([word for word in words if "=" in word and word not in options]))
    named = [word for word in words if word.endswith(".py") and word not in options]
    pairs = [*pairwise(words), *((name, value) for name, _, value in (word.partition("=") for word in options))]
    for option, value in pairs:
        if option in ("--plugin", "--idea") and value:
            named.append(value)
        elif option == "--config" and (value.endswith((".yaml", ".yml")) or "/" in value):
            asked |= _dotted(settings._read_yaml(Path(value)))
    for name in [*named, *code_named(asked)]:
        if name not in plugins:
            return f"its command has {name} run. Where you have read and trust that code, write --plugin {name}"
    for key, value in asked.items():
        if key.rpartition(".")[2] in settings.TRUST and str(value).lower() != "false":
            return f"its command says {key}={value}, which has code of a model or of data run. Run it by hand"
    return None


def _dotted(value: Any, key: str = "") -> dict[str, Any]:
    """Nested settings by their dotted keys."""
    if not isinstance(value, dict):
        return {key: value}
    return {k: v for name, part in value.items() for k, v in _dotted(part, f"{key}.{name}".lstrip(".")).items()}


def run_folder(path: Path) -> Path:
    """The run folder meant by itself or by the artifact in it; ReportError for what is neither."""
    from posttrain.reporting.html import ReportError

    if not path.exists():
        raise ReportError(f"there is no {path}. Write the folder of a run.")
    if path.is_dir():
        return path
    if path.name != "artifact.json":
        raise ReportError(f"{path} is a file. Write the folder of a run, with what its steps and samples were.")
    return path.parent


def report_in_words(path: Path, output: Path | None, plugins: list[str]) -> bool:
    """Shows a bench artifact or an evaluation as its own verb does, and whether it verifies; False for other paths.

    ReportError for a file that holds no JSON, ConfigError for an artifact that breaks its schema.
    """
    from posttrain.artifacts.documents import DocumentError, read
    from posttrain.artifacts.schema import violations
    from posttrain.registry import ConfigError
    from posttrain.reporting.html import ReportError

    file = path / "artifact.json" if path.is_dir() else path
    if not file.is_file():
        return False
    try:
        value = read(file)
    except DocumentError as error:
        raise ReportError(str(error)) from None
    kind = next((key for key in ("bench_version", "eval_version") if isinstance(value, dict) and key in value), None)
    if kind is None:
        return False
    if kind == "bench_version":
        from posttrain.bench.report import report

        if output is not None and output.suffix != ".svg":
            raise ConfigError(f"--output: found {output}; of a bench only the figure is written. Write FILE.svg.")
        report([file], output)
        _say_verified(file, plugins)
        return True
    from posttrain.evaluation.benchmark_conduct import Evaluated
    from posttrain.evaluation.benchmark_display import show

    if broken := violations(value, "eval-v1"):
        raise ConfigError(f"report: {file} is no evaluation: {'; '.join(map(str, broken[:3]))}")
    if output is not None:
        raise ConfigError(f"--output: found {output}; an evaluation is shown and nothing written. Leave it out.")
    show(Evaluated(file.parent, value), file)
    _say_verified(file, plugins)
    return True


def _say_verified(file: Path, plugins: list[str]) -> None:
    """Whether what was shown verifies, and if not, the first check that fails."""
    checked = verifier(plugins)(file)
    failed = [f"{check.level} {check.name}: {check.message}" for check in checked.checks if check.status == "failed"]
    if failed:
        print(f"NOT VERIFIED: {len(failed)} checks fail, first {failed[0]}. Nothing above is to be relied on.")
    elif checked.unverifiable:
        print(f"not verified: {'; '.join(checked.unverifiable)}")
    else:
        print(f"verified at {', '.join(checked.passed_levels)}")


def compare_artifacts(words: list[str], output: Path | None, plugins: list[str]) -> int:
    """`posttrain compare A.json B.json`: tables, verdicts, and a folder with the numbers and the figure."""
    from posttrain.artifacts.digests import content_digest
    from posttrain.artifacts.documents import dumps, write_atomically
    from posttrain.reporting import comparing, figures

    try:
        found = comparing.compare_files([Path(word) for word in words], verifier(plugins))
    except comparing.Refused as error:
        return say(ValueError(f"compare: refused: {error}"))
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
