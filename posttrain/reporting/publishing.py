"""Publishing: a verified, complete run from clean code goes where its artifact says it belongs.

Code from outside the package (a plugin, an idea, a track, a reward) is published with it, byte for byte.
"""

from __future__ import annotations

import getpass
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import DocumentError, dumps, load, parse, write_atomically
from posttrain.artifacts.manifest import NAMESPACES, PART, ManifestError, execution_document, inside, split_reference
from posttrain.artifacts.report import Report
from posttrain.reporting.page import command
from posttrain.reporting.reading import SuiteError, outside_path

Verify = Callable[[Path], Report]

# A path of a machine: absolute, of a user, or of a drive. JSON Pointers such as /final/accuracy are none.
_MACHINE_PATH = re.compile(
    r"(?<![\w:./-])(?:/(?:home|root|tmp|var|usr|opt|mnt|srv|work|workspace|data|private|Users|Volumes|nix|scratch|run)/"
    r"|~/|[A-Za-z]:\\)"
)


class Refused(ValueError):
    """A run that may not be published: the message says why and what to do."""


@dataclass(frozen=True)
class Publication:
    """The files of one publication, by path from the root."""

    files: Mapping[str, bytes]
    artifact: str  # path of the main artifact


def publication(run: Path, verify: Verify) -> Publication:
    """The files that publishing a run would write, its arms' included; Refused where it may not be published."""
    places = [run, *sorted(path for path in run.glob("arms/*") if path.is_dir())]
    files: dict[str, bytes] = {}
    main = ""
    for place in places:
        report = verify(place)
        if report.exit_code:
            raise Refused(_not_verified(place, report))
        made = dict(_files(place))
        main = main or next(path for path in made if "/metrics/" in path)
        clash = [path for path in made if files.get(path, made[path]) != made[path]]
        if clash:
            raise Refused(f"{place.name}: two arms want the place {clash[0]}; give them names of their own")
        files |= made
    _verify_in_place(files, verify)
    return Publication(files, main)


def _not_verified(place: Path, report: Report) -> str:
    failed = [f"{check.level} {check.name}: {check.message}" for check in report.checks if check.status == "failed"]
    why = failed[0] if failed else "; ".join(report.unverifiable)
    return f"{place.name} is not verified: {why}. Publish a run that posttrain verify passes"


def _files(place: Path) -> Iterator[tuple[str, bytes]]:
    """Artifact, plan and execution record of one arm, under their published paths."""
    try:
        data, plan, record = (load(place / name) for name in ("artifact.json", "plan.json", "execution.json"))
        artifact, execution = parse(data, "artifact.json"), parse(record, "execution.json")
    except (DocumentError, FileNotFoundError) as error:
        raise Refused(f"{place.name} is incomplete: {error}") from None
    if "eval_version" in artifact:
        raise Refused(f"{place.name} is an evaluation of checkpoints, which has no page; publish the run itself")
    _require_clean(place.name, execution["execution"]["code"])
    if (place / PART).exists() or "--only-seed" in execution["execution"]["argv"]:
        raise Refused(
            f"{place.name} is one seed of a plan; put the seeds together with posttrain merge, and publish that"
        )
    if not execution["execution"]["argv"]:
        raise Refused(
            f"{place.name} came from Python, so no command makes it again; run it with posttrain on the command line"
        )
    namespace, name, _ = split_reference(artifact["manifest_ref"])
    folder, method = NAMESPACES[namespace], artifact.get("method", artifact.get("track"))
    yield artifact["provenance"]["artifact_path"], data
    yield f"{folder}/{name}.json", plan
    outside = {
        outside_path(f"{folder}/{name}", plugin): _source(place.name, plugin, execution["execution"]["argv"])
        for plugin in execution["execution"].get("plugins", [])
        if plugin["name"].endswith(".py")  # an installed package is named by its digest only
    }
    yield f"{folder}/{name}/{method}.json", published_execution(execution["execution"], tuple(outside))
    yield from outside.items()
    ran = {(Path(plugin["name"]).name, plugin["sha256"]) for plugin in execution["execution"].get("plugins", [])}
    if len(outside) < sum(name.endswith(".py") for name, _ in ran):
        raise Refused(f"{place.name} ran two files of one name, which have one place here; rename one and run it again")
    private = [found for text in (data, plan) for found in _private(parse(text))]
    private += [
        found for path, source in outside.items() for found in _private(source.decode("utf-8", "replace"), path)
    ]
    if private:
        raise Refused(f"{place.name} holds what belongs to one machine: {private[0]}; give the run a relative path")


def _require_clean(name: str, code: Mapping[str, Any]) -> None:
    if code["git_commit"] is None or code["git_dirty"] is None:
        reason = code.get("unknown", {}).get("git_commit", "git could not compare the files")
        raise Refused(f"{name}: its code cannot be named: {reason}; run it from a clone with its history")
    if code["git_dirty"]:
        raise Refused(
            f"{name} is dirty: posttrain/ or configs/ differed from commit {code['git_commit'][:12]} when it ran; "
            "commit them and run it again"
        )


def _source(name: str, plugin: Mapping[str, Any], argv: Sequence[str]) -> bytes:
    """The bytes of a file of code from outside, which lies where the record or the command says."""
    words = [word.rpartition("=")[2].partition(":")[0] for word in argv]
    file = Path(plugin["name"]).name
    for path in (Path(plugin["name"]), *(Path(word) for word in words if Path(word).name == file)):
        if path.is_file() and bytes_digest(data := path.read_bytes()) == plugin["sha256"]:
            return data
    raise Refused(
        f"{name} ran {file} ({plugin['sha256']}), and no file with these bytes is where the command says. It is "
        "published with the run: put it back, write publish in the folder of the run's command, or run again"
    )


def published_execution(execution: Mapping[str, Any], outside: Sequence[str] = ()) -> bytes:
    """The record without where on a machine it ran: paths of the command and of plugins by their last part.

    The command names code from outside where it is published, one of the paths `outside`: so it runs in every clone.
    """
    record = {**execution, "argv": [_bare(_published(word, outside)) for word in _words(execution)]}
    if "plugins" in record:
        record["plugins"] = [{**plugin, "name": _bare(plugin["name"])} for plugin in record["plugins"]]
    record["overrides"] = [_bare(word) for word in execution["overrides"]]
    private = list(_private(record))
    if private:
        raise Refused(f"execution.json holds what belongs to one machine: {private[0]}; give the run a relative path")
    try:
        return dumps(execution_document(record))
    except ManifestError as error:
        raise Refused(f"execution.json: {error}") from None


def _published(word: str, outside: Sequence[str]) -> str:
    """A word of a command with the published path of the code that it names: FILE.py, key=FILE.py:NAME."""
    key, equals, value = word.rpartition("=")
    file, colon, name = value.partition(":")
    places = [path for path in outside if file.endswith(".py") and Path(path).name == Path(file).name]
    return f"{key}{equals}{places[0]}{colon}{name}" if places else word


def _words(execution: Mapping[str, Any]) -> list[str]:
    """The command line as one would type it."""
    import shlex

    return shlex.split(command(execution))


def _bare(word: str) -> str:
    """A word whose machine path is cut to its last part."""
    name, equals, value = word.rpartition("=")
    return name + equals + Path(value).name if _MACHINE_PATH.match(value) else word


def _private(value: Any, place: str = "") -> Iterator[str]:
    """Paths, host and user names of a machine anywhere in a document."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _private(part, f"{place}/{key}")
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _private(part, f"{place}/{i}")
    elif isinstance(value, str) and (_MACHINE_PATH.search(value) or value in _machine_names()):
        yield f"{place} is {value!r}"


def _machine_names() -> set[str]:
    names = {socket.gethostname(), socket.getfqdn()} - {"localhost", ""}
    try:
        names.add(getpass.getuser())
    except (KeyError, OSError):  # a user without a name
        return names
    return names - {"root", "posttrain"}


def _verify_in_place(files: Mapping[str, bytes], verify: Verify) -> None:
    """Verifies the files where they are going to lie, in a scratch copy, before anything is written."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        for path, data in files.items():
            try:
                target = inside(root, path)
            except ManifestError as error:
                raise Refused(str(error)) from None
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        for path in files:
            if "/metrics/" in path and (report := verify(root / path)).exit_code:
                raise Refused(_not_verified(Path(path), report))


def put(root: Path, made: Publication, *, replace: bool = False) -> list[str]:
    """Writes a publication below the root and gives what it wrote: nothing where the same artifacts are published.

    A place that holds something else is refused unless it is superseded. The execution record of a run that gave the
    same bytes before stays: it is the evidence that the published digests are of.
    """
    artifact = parse(made.files[made.artifact])
    supersedes = artifact["provenance"].get("supersedes")
    for path, data in made.files.items():
        target = root / path
        if target.is_symlink() or not target.resolve().is_relative_to((root / "docs").resolve()):
            raise SuiteError(f"{path} is or lies behind a symbolic link; put a real folder there. Nothing was written")
        if not target.exists() or target.read_bytes() == data:
            continue
        found = bytes_digest(target.read_bytes())
        if _is_plan(path) and not replace:
            raise Refused(
                f"{path} holds another plan under the same name ({found}); its artifacts would lose theirs. "
                "Run with other seeds or another dataset, or replace it and every run of it with --replace"
            )
        if path == made.artifact and supersedes != found and not replace:
            raise Refused(
                f"{path} holds another run, and a page shows one of a method under a plan, which is called after data "
                f"and seeds. Beside it goes a run of other seeds, in its place one with supersedes={found}"
            )
    new = {path: data for path, data in made.files.items() if not _holds(root / path, data)}
    if not replace and not any("/metrics/" in path for path in new) and all((root / path).exists() for path in new):
        return []
    for path, data in new.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(root / path, data)
    return list(new)


def refuse_other_results(root: Path, made: Publication) -> None:
    """Refused where a run would take the place of other numbers and does not say so: the better one would be kept."""
    target, artifact = root / made.artifact, parse(made.files[made.artifact])
    if not target.is_file() or artifact.get("runs") == parse(target.read_bytes()).get("runs") is not None:
        return
    found = bytes_digest(target.read_bytes())
    if artifact["provenance"].get("supersedes") != found and target.read_bytes() != made.files[made.artifact]:
        raise Refused(
            f"{made.artifact} holds a run with other numbers. What takes its place says so before it starts: run it "
            f"with supersedes={found}"
        )


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _is_plan(path: str) -> bool:
    return any(path.rpartition("/")[0] == folder for folder in NAMESPACES.values())
