"""Damaged copies of the recorded artifacts: mended by named repairs to the recorded bytes, or refused."""

from pathlib import Path

import pytest

from posttrain.artifacts.digests import bytes_digest
from posttrain.artifacts.documents import DocumentError, parse
from posttrain.artifacts.migration import REPAIRS, migrate

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = sorted(DOCS.glob("*/historical/*.json"))
RECEIVED = sorted(DOCS.glob("*/historical/received/*"))


def numbered(data: bytes) -> bytes:
    """As a pager shows it: every line behind its number."""
    lines = data.decode().splitlines(keepends=True)
    return "".join(f"{number:>3}{line}" for number, line in enumerate(lines, start=1)).encode()


DAMAGES = {
    "bom": lambda data: b"\xef\xbb\xbf" + data,
    "crlf": lambda data: data.replace(b"\n", b"\r\n"),
    "strip-line-numbers": numbered,
    "final-newline": lambda data: data.removesuffix(b"\n"),
}


def test_every_repair_has_its_damage():
    assert DAMAGES.keys() == REPAIRS.keys()


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_artifact_is_what_it_is(path):
    found = migrate(path.read_bytes())
    assert (found.data, found.changes, found.received) == (path.read_bytes(), (), bytes_digest(path.read_bytes()))


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_each_damage_is_mended_by_its_repair_alone(path, name):
    recorded = path.read_bytes()
    if (damaged := DAMAGES[name](recorded)) == recorded:  # a record that ends without a newline has none to lose
        pytest.skip("the recorded bytes do not have what this damage takes")
    found = migrate(damaged)
    assert (found.data, found.changes, found.received) == (recorded, (name,), bytes_digest(damaged))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_all_damages_together_are_mended(path):
    damaged = path.read_bytes()
    for name in ("final-newline", "strip-line-numbers", "crlf", "bom"):
        damaged = DAMAGES[name](damaged)
    assert migrate(damaged).data == path.read_bytes()


def test_the_copy_with_a_number_before_every_line_is_kept_and_gives_the_record():
    [copy] = RECEIVED
    with pytest.raises(DocumentError):
        parse(copy.read_bytes())
    found = migrate(copy.read_bytes())
    assert found.data == (DOCS / "bench/historical/sequence.json").read_bytes()
    assert found.changes == ("strip-line-numbers", "final-newline")
    assert copy.stem == found.received.removeprefix("sha256:")


def test_a_copy_with_another_number_is_no_copy():
    [copy] = RECEIVED
    data = copy.read_bytes()
    for old, new in ((b"0.53", b"0.54"), (b"  7", b"  8"), (b'"track"', b'"Track"')):
        assert old in data
        with pytest.raises(DocumentError, match="no copy of a recorded artifact"):
            migrate(data.replace(old, new, 1))


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b"1{}", b"\r\n", b"1\n2\n3\n"])
def test_anything_else_is_refused(data):
    with pytest.raises(DocumentError, match=r"list is closed.*posttrain publish"):
        migrate(data)
