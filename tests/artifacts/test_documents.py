"""Laws of JSON documents: what is refused, what is kept, and that a write is never half done."""

import errno
import json
import math
import os
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.artifacts import documents
from posttrain.artifacts.documents import DocumentError, dumps, parse, pointer, read, remove_leftovers, write_atomically

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53 - 1), 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(JSON)
def test_what_is_written_is_read_back_equal_in_value_type_order_and_sign_of_zero(value):
    assert repr(parse(dumps(value))) == repr(value)


def test_a_document_has_two_spaces_insertion_order_and_a_newline_at_the_end():
    assert dumps({"b": [1, 2.0, -0.0], "a": {}, "ö": []}) == (
        '{\n  "b": [\n    1,\n    2.0,\n    -0.0\n  ],\n  "a": {},\n  "ö": []\n}\n'.encode()
    )


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b'{"a": 1, "a": 1}', "stands twice"),
        (b'{"a": 1, "\\u0061": 2}', "stands twice"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[Infinity]", "Infinity is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[1e999]", "too large"),
        (b"[9007199254740992]", "beyond"),
        (b"[-9007199254740992]", "beyond"),
        (b"[" + b"9" * 5000 + b"]", "beyond"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ('"ö"'.encode("latin-1"), "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'["\\ud800"]', "surrogate"),
        (b'["\xed\xa0\x80"]', "not UTF-8"),
        (b"{} {}", "not one JSON value"),
        (b"1 2", "not one JSON value"),
        (b"", "not one JSON value"),
        (b"[1,]", "not one JSON value"),
        (b"['a']", "not one JSON value"),
        (b'["\n"]', "not one JSON value"),
        (b"[01]", "not one JSON value"),
        (b"// note\n{}", "not one JSON value"),
        (b"  1\t{\n  2\t}", "not one JSON value"),  # line numbers before each line
        (b"[" * 65 + b"]" * 65, "deeper than 64"),
        (b"[" * 1_000_000, "deeper than 64"),
        (b'{"a":' * 1_000_000, "deeper than 64"),
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(data, complaint):
    with pytest.raises(DocumentError, match=complaint) as caught:
        parse(data, "some.json")
    assert "some.json" in str(caught.value)


def test_brackets_in_strings_are_not_depth_and_64_levels_are_allowed():
    deepest = '{"[[": [' * 32 + "]}" * 32
    assert parse(deepest.encode()) == json.loads(deepest)
    assert parse(b'["' + b"[" * 100 + b'\\"[", "\\\\", []]') == ["[" * 100 + '"[', "\\", []]


@pytest.mark.parametrize("data", [b'"' + b'\\"' * 2_000_000, b'"' * 2_000_001, b'["' + b"\\" * 2_000_001])
def test_a_document_of_quotes_is_refused_without_delay(data):
    with pytest.raises(DocumentError):
        parse(data)


def test_files_beyond_16_mib_pipes_and_folders_are_refused_without_being_read(tmp_path):
    with open(tmp_path / "big.json", "wb") as big:
        big.truncate(documents.MAX_BYTES + 1)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(DocumentError, match="larger than 16777216 bytes"):
        read(tmp_path / "big.json")
    with pytest.raises(DocumentError, match="not a regular file"):
        read(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="directory"):
        read(tmp_path)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, np.float32("nan"), np.float64("inf")])
def test_a_number_that_is_not_finite_is_refused_by_its_place(bad):
    with pytest.raises(DocumentError, match=r"'/runs/1/a~1b' is -?(nan|inf)"):
        dumps({"ok": 0.5, "word": "NaN", "runs": [{}, {"a/b": bad}]})
    assert parse(dumps({"ok": 0.5, "word": "NaN"})) == {"ok": 0.5, "word": "NaN"}


def test_numpy_numbers_are_converted_exactly_or_refused():
    assert dumps([np.float32(0.1), np.float64(0.1), np.int64(3)]) == dumps([float(np.float32(0.1)), 0.1, 3])
    for value in (np.zeros(2), np.bool_(True), b"x", {1, 2}, Fraction(1, 3), 1j):
        with pytest.raises(DocumentError, match="''"):
            dumps(value)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [({1: 2}, "key"), (2**53, "beyond"), ("\ud800", "surrogate"), ({"\udfff": 1}, "surrogate")],
)
def test_what_no_reader_would_take_is_not_written(value, complaint):
    with pytest.raises(DocumentError, match=complaint):
        dumps(value)


def test_too_deep_or_circular_values_are_refused():
    circular: list = []
    circular.append(circular)
    with pytest.raises(DocumentError, match="deeper than 64"):
        dumps(circular)


def test_a_pointer_escapes_slash_and_tilde():
    assert pointer(()) == ""
    assert pointer(("a/b", 0, "~")) == "/a~1b/0/~0"


OPERATIONS = ("open", "write", "fsync", "close", "replace")


def _fail_at(monkeypatch, k, failure, *, after=False):
    """Makes the k-th file operation fail (close always closes first); gives the list of operations that were made."""
    made = []

    def failing(name):
        real = getattr(os, name)

        def operation(*args, **kwargs):
            made.append(name)
            if len(made) - 1 == k:
                if after or name == "close":
                    real(*args, **kwargs)
                raise failure
            return real(*args, **kwargs)

        return operation

    for name in OPERATIONS:
        monkeypatch.setattr(documents.os, name, failing(name))
    return made


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("k", range(8))
def test_a_write_that_fails_at_any_operation_is_old_or_new_and_leaves_no_temporary_file(tmp_path, monkeypatch, k, code):
    path = tmp_path / "artifact.json"
    path.write_bytes(b"old")
    with monkeypatch.context() as patched:
        made = _fail_at(patched, k, OSError(code, os.strerror(code)))
        with pytest.raises(OSError, match=os.strerror(code)):
            write_atomically(path, b"new")
    assert made[: k + 1] == ["open", "write", "fsync", "close", "replace", "open", "fsync", "close"][: k + 1]
    assert path.read_bytes() == (b"old" if k <= 4 else b"new")
    assert os.listdir(tmp_path) == ["artifact.json"]


def test_the_eight_operations_are_all_there_are(tmp_path, monkeypatch):
    made = _fail_at(monkeypatch, 100, OSError())
    write_atomically(tmp_path / "artifact.json", b"new")
    assert len(made) == 8


class Killed(BaseException):
    """The process ends here: nothing after it runs."""


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("k", range(8))
def test_a_writer_killed_at_any_operation_leaves_old_or_new_and_its_leftover_can_be_removed(
    tmp_path, monkeypatch, k, after
):
    path = tmp_path / "artifact.json"
    path.write_bytes(b"old")
    with monkeypatch.context() as patched:
        made = _fail_at(patched, k, Killed(), after=after)
        patched.setattr(documents.os, "unlink", lambda _: made.append("unlink"))
        with pytest.raises(Killed):
            write_atomically(path, b"new")
    assert path.read_bytes() == (b"new" if k > 4 or (after and k == 4) else b"old")
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["artifact.json"]


def test_short_writes_are_continued_and_a_disk_that_fills_up_keeps_the_old_file(tmp_path, monkeypatch):
    path, real, left = tmp_path / "artifact.json", os.write, [10_000]
    monkeypatch.setattr(documents.os, "write", lambda descriptor, data: real(descriptor, bytes(data[:7])))
    write_atomically(path, bytes(range(100)))
    assert path.read_bytes() == bytes(range(100))

    def filling(descriptor, data):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= (written := real(descriptor, bytes(data[: min(left[0], 999)])))
        return written

    monkeypatch.setattr(documents.os, "write", filling)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"x" * 20_000)
    assert path.read_bytes() == bytes(range(100))
    assert os.listdir(tmp_path) == ["artifact.json"]


def test_a_new_file_has_the_permissions_any_new_file_has(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "atomic", b"")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode
