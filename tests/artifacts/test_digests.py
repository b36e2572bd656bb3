"""Laws of digests: the canonical form is RFC 8785, and every digest equals what others form of the same data."""

import hashlib
import math
import shutil
import subprocess
import sys

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from posttrain.artifacts.digests import (
    bytes_digest,
    canonical,
    code_digest,
    content_digest,
    dataset_fingerprint,
    dataset_set_fingerprint,
    file_digest,
    sealed,
)
from posttrain.artifacts.documents import DocumentError

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53 - 1), 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)
TRAIN = [{"prompt": "1+1", "answer": "2"}, {"prompt": "2+2", "answer": "4"}]
VALIDATION = [{"prompt": "3+3", "answer": "6"}]


@given(JSON)
def test_the_canonical_form_agrees_with_an_independent_library(value):
    assert canonical(value) == rfc8785.dumps(value)


@given(st.integers(0, 2**64 - 1))
def test_every_float64_is_printed_as_an_independent_library_prints_it(bits):
    import struct

    value = struct.unpack("d", struct.pack("Q", bits))[0]
    if math.isfinite(value):
        assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": -0.0, "a": 1.0}, '{"a":1,"b":0}'),
        (
            [1e21, 1e-7, 1e-6, 0.1 + 0.2, 333333333.33333329],
            "[1e+21,1e-7,0.000001,0.30000000000000004,333333333.3333333]",
        ),
        (
            {"€": 0, "\r": 0, "1": 0, "😀": 0, "\ufb33": 0, "ö": 0},
            '{"\\r":0,"1":0,"ö":0,"€":0,"😀":0,"\ufb33":0}',
        ),
        ([1e20, 123.0, -1e-5, 5e-324, 1.7976931348623157e308], "[100000000000000000000,123,-0.00001,5e-324,"
         "1.7976931348623157e+308]"),
        ('\x00\x1f\x7f"\\/\b', '"\\u0000\\u001f\x7f\\"\\\\/\\b"'),
    ],
)  # fmt: skip
def test_the_known_canonical_forms(value, expected):
    assert canonical(value).decode() == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2**53, -(2**53), 2**53 + 1, "\ud800", {1: 1}, {1}])
def test_what_has_no_canonical_form_is_refused(value):
    with pytest.raises(DocumentError):
        canonical([value])


def test_a_content_digest_equals_the_known_one_and_does_not_see_how_a_number_is_written():
    known = "sha256:013ce84690f2eece2932c31e29498da83d5c5196d4af951073e26eedf9ca6620"
    assert content_digest({"steps": 100, "learning_rate": 0.08, "group_size": 4}) == known
    assert content_digest({"group_size": 4.0, "steps": 100.0, "learning_rate": 0.08}) == known
    assert content_digest(-0.0) == content_digest(0)


def test_a_file_digest_covers_the_raw_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"1.0")
    (tmp_path / "b").write_bytes(b"1")
    assert file_digest(tmp_path / "a") == bytes_digest(b"1.0") == "sha256:" + hashlib.sha256(b"1.0").hexdigest()
    assert file_digest(tmp_path / "a") != file_digest(tmp_path / "b")


def test_a_sealed_artifact_bears_the_digest_of_all_its_other_content():
    artifact = {"method": "x", "provenance": {"artifact_path": "p"}}
    once = sealed(artifact)
    assert once["provenance"]["content_digest"] == content_digest(artifact)
    assert sealed(once) == once
    assert sealed({**once, "method": "y"})["provenance"] != once["provenance"]
    assert "content_digest" not in artifact["provenance"]


def test_data_set_fingerprints_equal_the_known_ones():
    splits = {"validation": VALIDATION, "train": TRAIN}
    turned = {"train": TRAIN[::-1], "validation": VALIDATION}
    whole = "sha256:adfb4cdb40cf1f7e917d82d403d2e626dfd7e02a00409c0824dd9944cf24a296"
    assert dataset_fingerprint(splits) == "sha256:f9215e906a8f4e99bafba0189ae6101c585691426bce3b9f907075dfee88f817"
    assert dataset_fingerprint(turned) == "sha256:840912629a9e228b279052e3269b1d3e8f6197ca49f436e9ba9c647d72bb014f"
    assert dataset_set_fingerprint(splits) == dataset_set_fingerprint(turned) == whole


def test_moving_an_example_between_splits_changes_both_fingerprints():
    moved = {"train": TRAIN[:1], "validation": [TRAIN[1], *VALIDATION]}
    splits = {"train": TRAIN, "validation": VALIDATION}
    assert dataset_fingerprint(moved) != dataset_fingerprint(splits)
    assert dataset_set_fingerprint(moved) != dataset_set_fingerprint(splits)


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "configs").mkdir()
    (tmp_path / "a.py").write_bytes(b"x=1\n")
    (tmp_path / "b/c.py").write_bytes(b"y=2\n")
    (tmp_path / "b/notes.txt").write_bytes(b"not code")
    (tmp_path / "configs/l1.yaml").write_bytes(b"steps: 1\n")
    return tmp_path


def test_a_code_digest_equals_the_known_one_and_covers_names_bytes_and_chosen_patterns(sources):
    known = "sha256:fb12b41a9f3424872e590cf19501b29d02c15e97ca345def2a39d167e50800e2"
    assert code_digest(sources) == code_digest(sources, ["b/*.py", "*.py", "**/*.py"]) == known
    with_configs = code_digest(sources, ("**/*.py", "configs/**/*.yaml"))
    (sources / "configs/l1.yaml").write_bytes(b"steps: 2\n")
    assert known != with_configs != code_digest(sources, ("**/*.py", "configs/**/*.yaml"))
    (sources / "a.py").rename(sources / "z.py")
    assert code_digest(sources) != known


def test_a_code_digest_of_nothing_is_an_error(sources):
    with pytest.raises(FileNotFoundError, match=r"no file below .* matches \*\*/\*\.rs"):
        code_digest(sources, "**/*.rs")


@pytest.mark.skipif(shutil.which("sha256sum") is None or sys.platform == "win32", reason="needs sha256sum")
def test_a_code_digest_equals_the_shell_pipeline(sources):
    pipeline = "find . -name '*.py' -type f | sed 's|^./||' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    printed = subprocess.run(["sh", "-c", pipeline], cwd=sources, capture_output=True, text=True, check=True).stdout
    assert code_digest(sources) == "sha256:" + printed.split()[0]
