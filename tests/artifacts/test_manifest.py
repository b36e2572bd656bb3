"""Laws of the manifest: what cannot be meant is refused, and a reference never leaves its folder."""

import json
import shutil

import pytest
from complete_run import execution_body, plan_body

from posttrain.artifacts.digests import content_digest
from posttrain.artifacts.documents import DocumentError, dumps, parse
from posttrain.artifacts.manifest import (
    NAMESPACES,
    ManifestError,
    ManifestNotFoundError,
    execution_document,
    plan_document,
    resolve,
    resolve_execution,
    split_reference,
)

DIRHASH = "sha256:" + "0" * 64
NAME = "arithmetic-smoke-seeds42-47"
REFERENCE = f"post-training:{NAME}"


def test_a_plan_document_holds_the_plan_and_the_digest_of_its_canonical_form():
    document = plan_document(plan_body())
    assert list(document) == ["manifest_version", "plan", "plan_sha256"]
    assert document["plan"] == plan_body()
    assert document["plan_sha256"] == content_digest(plan_body())
    assert parse(dumps(document)) == document


def test_the_digest_of_a_plan_does_not_depend_on_the_order_of_its_keys_and_does_on_every_value():
    body = plan_body()
    turned = {key: body[key] for key in reversed(body)}
    assert plan_document(turned)["plan_sha256"] == plan_document(body)["plan_sha256"]
    digests = {plan_document({**body, key: value})["plan_sha256"] for key, value in (("alpha", 0.1), ("sesoi", None))}
    assert len(digests | {plan_document(body)["plan_sha256"]}) == 3


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"alpha": 2}, "/plan/alpha: is 2; write at most 1"),
        ({"direction": "up"}, 'write "higher is better" or "lower is better"'),
        ({"primary_metric": "accuracy"}, "/plan/primary_metric"),
        ({"seeds": [1, 1]}, "write each item once"),
        ({"surprise": 1}, "/plan/surprise: must not be here"),
        ({"tuning": {"grid": {}, "seeds": [41, 42, 47]}}, r"seeds \[42, 47\] serve tuning and evaluation"),
        ({"controls": ["random"]}, r"controls \['random'\] are no arms"),
        ({"looks": [{"n": 6, "alpha": 0.03}, {"n": 8, "alpha": 0.03}]}, "the looks spend alpha 0.06"),
        ({"claims": plan_body()["claims"] * 2}, "two claims bear one id"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused_with_the_way_out(change, complaint):
    with pytest.raises(ManifestError, match=complaint):
        plan_document({**plan_body(), **change})


def test_declared_looks_may_split_alpha():
    plan_document({**plan_body(), "looks": [{"n": 4, "alpha": 0.025}, {"n": 6, "alpha": 0.025}]})


def test_a_plan_with_a_number_that_is_not_finite_is_refused():
    with pytest.raises(DocumentError, match="/common_config/x"):
        plan_document({**plan_body(), "common_config": {"x": float("nan")}})


def test_an_execution_document_bears_its_digest_and_no_secret():
    document = execution_document(execution_body([], DIRHASH))
    assert list(document) == ["manifest_version", "execution", "execution_sha256"]
    assert document["execution_sha256"] == content_digest(document["execution"])
    assert "very-secret" not in json.dumps(document)
    assert document["execution"]["argv"][-2:] == ["--hub-token", "<redacted>"]
    assert document["execution"]["overrides"] == ["steps=2", "server.api_key=<redacted>"]
    assert document["execution"]["config"]["server"] == {"api_key": "<redacted>"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"started_at": "2026-09-01 10:00:00"}, "/execution/started_at"),
        ({"started_at": "2026-09-01T10:00:00+00:00"}, "/execution/started_at"),
        ({"ended_at": "2026-09-01T09:59:59Z"}, "before it starts"),
        ({"started_at": "2026-13-01T10:00:00Z"}, "month must be in 1..12"),
        ({"status": "fine"}, "/execution/status"),
        ({"outputs": [{"path": "a", "sha256": "0" * 64, "bytes": 1}]}, "/execution/outputs/0/sha256"),
        ({"seeds": []}, "at least 1 items"),
        ({"hostname": "x"}, "/execution/hostname: must not be here"),
    ],
)
def test_a_malformed_execution_record_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        execution_document({**execution_body([], DIRHASH), **change})


@pytest.fixture
def repository(tmp_path):
    """A checkout with one published plan and execution, and a run folder in it."""
    manifests = tmp_path / NAMESPACES["post-training"]
    (manifests / NAME).mkdir(parents=True)
    (tmp_path / "runs/one").mkdir(parents=True)
    (manifests / f"{NAME}.json").write_bytes(dumps(plan_document(plan_body())))
    (manifests / NAME / "sparse-opd.json").write_bytes(dumps(execution_document(execution_body([], DIRHASH))))
    return tmp_path


def test_a_plan_is_sought_beside_the_artifact_first_and_then_below_docs(repository):
    artifact = repository / "runs/one/artifact.json"
    published = repository / NAMESPACES["post-training"] / f"{NAME}.json"
    assert resolve(REFERENCE, artifact) == published
    shutil.copy(published, artifact.with_name("plan.json"))
    assert resolve(REFERENCE, artifact) == artifact.with_name("plan.json")


def test_a_pin_is_the_digest_of_the_plan(repository):
    artifact = repository / "runs/one/artifact.json"
    assert resolve(f"{REFERENCE}@{plan_document(plan_body())['plan_sha256']}", artifact)
    with pytest.raises(ManifestError, match="the reference pins"):
        resolve(f"{REFERENCE}@{DIRHASH}", artifact)


def test_a_published_execution_serves_published_artifacts_only(repository):
    published = repository / "docs/post-training/2609.04565-sparse-opd/metrics/a.json"
    published.parent.mkdir(parents=True)
    found = resolve_execution(REFERENCE, published, "sparse-opd")
    assert found == repository / NAMESPACES["post-training"] / NAME / "sparse-opd.json"
    with pytest.raises(ManifestNotFoundError):
        resolve_execution(REFERENCE, repository / "runs/one/artifact.json", "sparse-opd")


@pytest.mark.parametrize(
    "reference",
    [
        "post-training:..",
        "post-training:../x",
        "post-training:a/b",
        "post-training:/etc/passwd",
        "https://example.com/x",
        "file:x",
        "post-training:x@sha256:00",
        "post-training:x\n",
        "x",
        "",
    ],
)
def test_a_reference_is_a_name_and_never_a_path_or_an_address(repository, reference):
    with pytest.raises(ManifestError, match=r"reference|namespace") as caught:
        resolve(reference, repository / "runs/one/artifact.json")
    assert not isinstance(caught.value, ManifestNotFoundError)


def test_symlinks_that_leave_the_folder_are_refused_and_those_within_are_followed(repository, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    published = repository / NAMESPACES["post-training"] / f"{NAME}.json"
    shutil.move(published, outside / "plan.json")
    artifact = repository / "runs/one/artifact.json"
    for link in (published, artifact.with_name("plan.json")):
        link.symlink_to(outside / "plan.json")
        with pytest.raises(ManifestError, match="leads out of"):
            resolve(REFERENCE, artifact)
        link.unlink()
    shutil.copy(outside / "plan.json", artifact.with_name("frozen.json"))
    artifact.with_name("plan.json").symlink_to("frozen.json")
    assert resolve(REFERENCE, artifact) == artifact.with_name("plan.json")


def test_a_missing_plan_is_told_from_a_forbidden_one(tmp_path):
    with pytest.raises(ManifestNotFoundError, match=r"plan\.json"):
        resolve(REFERENCE, tmp_path / "artifact.json")


def test_a_reference_falls_into_namespace_name_and_pin():
    assert split_reference(f"{REFERENCE}@{DIRHASH}") == ("post-training", NAME, DIRHASH)
    assert split_reference("bench:sequence") == ("bench", "sequence", None)
