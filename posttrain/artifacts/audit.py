"""Level V2 of a verification: every digest that was recorded is formed again.

Functions give sentences about what does not hold; files named in a record are read only inside the folder that was run.
"""

import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.artifacts import provenance
from posttrain.artifacts.digests import PREFIX, content_digest, file_digest, sealed
from posttrain.artifacts.documents import DocumentError, read
from posttrain.artifacts.evidence import Document, Evidence
from posttrain.artifacts.manifest import PART, ManifestError, inside, plan_problems, split_reference

_COPIED = ("primary_metric", "direction", "alpha", "family_id", "sesoi", "failure_value", "tier")


def content_problems(artifact: Mapping[str, Any]) -> Iterator[str]:
    """The digest that an artifact bears of its own content."""
    found, expected = artifact["provenance"].get("content_digest"), sealed(artifact)["provenance"]["content_digest"]
    if found != expected:
        yield f"/provenance/content_digest is {found}, the content gives {expected}"


def plan_digest_problems(evidence: Evidence, plan: Document) -> Iterator[str]:
    """The plan's digest, in its own file and in the stamp that the artifact bears."""
    expected = content_digest(plan.value["plan"])
    if plan.value["plan_sha256"] != expected:
        yield f"plan_sha256 is {plan.value['plan_sha256']}, the plan gives {expected}"
    stamp = evidence.artifact.value["evaluation_protocol"].get("plan_sha256")
    if stamp != expected:
        yield f"/evaluation_protocol/plan_sha256 is {stamp}, the plan gives {expected}"
    recorded = evidence.artifact.value["provenance"].get("manifest_sha256", plan.digest)
    if recorded != plan.digest:
        yield f"/provenance/manifest_sha256 is {recorded}, the plan's file has {plan.digest}"


def plan_agreement_problems(artifact: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """What the artifact copies from the plan, and what the plan says about itself."""
    yield from plan_problems(plan)
    protocol, seeds = artifact["evaluation_protocol"], artifact["seeds"]
    expected = {key: plan[key] for key in _COPIED}
    expected |= {"family_size": len(plan["family"]), "planned_n": len(plan["seeds"])}
    for key, value in expected.items():
        if key in protocol and (protocol[key] != value or isinstance(protocol[key], bool)):
            yield f"/evaluation_protocol/{key} is {protocol[key]}, the plan says {value}"
    looks = [plan["seeds"][: look["n"]] for look in plan["looks"]]
    if seeds != plan["seeds"] and seeds not in looks:
        yield f"/seeds is {seeds}, the plan says {plan['seeds']}"
    name = split_reference(artifact["manifest_ref"])[1]
    if name != plan["name"]:
        yield f"/manifest_ref names {name!r}, the plan is {plan['name']!r}"
    dataset = plan["dataset"]
    if artifact["provenance"]["dataset_fingerprint"] != dataset["fingerprint"]:
        found = artifact["provenance"]["dataset_fingerprint"]
        yield f"/provenance/dataset_fingerprint is {found}, the plan says {dataset['fingerprint']}"
    sizes = {split["name"]: split["n"] for split in dataset["splits"]}
    for i, run in enumerate(artifact["runs"]):
        if run["dataset"] != dataset["id"]:
            yield f"/runs/{i}/dataset is {run['dataset']!r}, the plan says {dataset['id']!r}"
        for split, key in (("train", "train_examples"), ("validation", "validation_examples")):
            n = sizes.get(f"{run.get('seed')}/{split}", sizes.get(split))
            if n is not None and run["training"][key] != n:
                yield f"/runs/{i}/training/{key} is {run['training'][key]}, the plan's split has {n}"


def execution_problems(artifact: Document, execution: Document) -> Iterator[str]:
    """The execution record: its own digest, its method and end, and that this very artifact came out of it."""
    record, expected = execution.value["execution"], content_digest(execution.value["execution"])
    if execution.value["execution_sha256"] != expected:
        yield f"execution_sha256 is {execution.value['execution_sha256']}, the record gives {expected}"
    if record["method"] != artifact.value["method"]:
        yield f"the execution is of {record['method']!r}, the artifact of {artifact.value['method']!r}"
    if record["status"] != "completed" or record["exit_code"] != 0:
        yield f"the run ended as {record['status']} with exit code {record['exit_code']}"
    outputs = [(file["sha256"], file["bytes"]) for file in record["outputs"]]
    if (artifact.digest, artifact.size) not in outputs:
        yield f"no output of the execution is this artifact, {artifact.digest} with {artifact.size} bytes"


def recorded_outputs(evidence: Evidence) -> list[Mapping[str, Any]]:
    """Every file that the execution record or a run of the artifact says it left."""
    of_runs = [file for run in evidence.artifact.value["runs"] for file in run.get("outputs", [])]
    return [*(evidence.execution.value["execution"]["outputs"] if evidence.execution else []), *of_runs]


def output_problems(folder: Path, files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Files left by a run: there, inside the folder, of the recorded size and digest."""
    for file in files:
        try:
            path = inside(folder, file["path"])
        except ManifestError as error:
            yield str(error)
            continue
        if not path.exists():
            yield f"{file['path']} is missing"
            continue
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            yield f"{file['path']} is not a regular file"
        elif status.st_size != file["bytes"]:
            yield f"{file['path']} has {status.st_size} bytes, recorded are {file['bytes']}"
        elif file_digest(path).removeprefix(PREFIX) != file["sha256"].removeprefix(PREFIX):
            yield f"{file['path']} does not have the recorded digest {file['sha256']}"


APART = ("arms/", "against/", "teacher-cache/", "tuning/", "tensorboard/", "wandb/")


def unrecorded_files(folder: Path, files: Sequence[Mapping[str, Any]]) -> list[str]:
    """Files in a run folder that no record names; arms keep their own records, a teacher's cache its own digests."""
    known = {file["path"] for file in files} | {"execution.json", "artifact.json", "plan.json", PART}
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if name not in known and not name.startswith(APART))


def mixed_code(execution: Mapping[str, Any]) -> Iterator[str]:
    """Why a run that was taken up again is no evidence about one code: no rerun could tell which updates were whose."""
    code = provenance.code_of(execution["code"]["dirhash"], execution["plugins"])
    others = provenance.other_code(execution.get("resumed_from", []), code)
    if others:
        yield f"begun by other code than it was ended by: {others[0]}"


def part_problems(folder: Path) -> Iterator[str]:
    """What is wrong with the note that a run is one seed of a plan; it bears its own digest."""
    try:
        document = read(folder / PART)
    except DocumentError as error:
        yield str(error)
        return
    part = document.get("part") if isinstance(document, Mapping) else None
    if not isinstance(part, Mapping) or document.get("part_sha256") != content_digest(part):
        yield f"{PART} does not have the digest that it bears"


def arm_problems(evidence: Evidence) -> Iterator[str]:
    """Arms at hand: their bytes, their learning rate, and the conditions that a comparison shares."""
    artifact = evidence.artifact.value
    for entry in artifact.get("mechanism", {}).get("arms", []):
        arm = evidence.arms.get(entry["name"])
        if arm is None:
            continue
        if arm.digest != entry["artifact_sha256"]:
            yield f"arm {entry['name']} has the digest {arm.digest}, recorded is {entry['artifact_sha256']}"
        rates = {run["training"]["learning_rate"] for run in arm.value["runs"]}
        if entry["learning_rate"] is not None and rates != {entry["learning_rate"]}:
            yield f"arm {entry['name']} ran at learning rates {sorted(rates)}, recorded is {entry['learning_rate']}"
    for entry in artifact.get("comparison", []):
        name, digest = entry["against"]["method"], entry["against"]["artifact_sha256"]
        for arm, rival in evidence.arms.items():
            if rival.digest == digest:
                if name not in (arm, rival.value["method"]):
                    yield f"the rival called {name} is the arm {arm}, method {rival.value['method']}"
                yield from _condition_problems(artifact, rival.value, name)


def _condition_problems(artifact: Mapping[str, Any], rival: Mapping[str, Any], name: str) -> Iterator[str]:
    """What two compared arms must share: plan, data and the number of evaluated items."""
    for block, key in (("evaluation_protocol", "plan_sha256"), ("provenance", "dataset_fingerprint")):
        if artifact[block].get(key) != rival[block].get(key):
            yield f"the rival {name} has another {key}: {rival[block].get(key)}"
    items = [sorted(run["training"]["validation_examples"] for run in arm["runs"]) for arm in (artifact, rival)]
    if items[0] != items[1]:
        yield f"the rival {name} was evaluated on {items[1]} items, this method on {items[0]}"
