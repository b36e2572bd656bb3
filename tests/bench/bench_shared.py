"""Places that the tests of bench share."""

from pathlib import Path

PLANTED = str(Path(__file__).parent / "bench_planted.py")
REPOSITORY = Path(__file__).parents[2]
HISTORICAL = sorted((REPOSITORY / "docs" / "bench" / "historical").glob("*.json"))
