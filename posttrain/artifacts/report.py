"""The report of a verification: what was checked, at which level, and what was not."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["V0", "V1", "V2", "V3", "V4"]
Status = Literal["passed", "failed", "warned", "skipped"]

LEVELS: dict[Level, str] = {
    "V0": "parse and schema",
    "V1": "recomputation",
    "V2": "digests",
    "V3": "rerun",
    "V4": "the published suite",
}
PASSED, FAILED, UNVERIFIABLE = 0, 1, 3  # exit codes; 2 is a wrong command line
_SHOWN_PROBLEMS = 5
_WIDEST = 400  # characters of one problem


@dataclass(frozen=True)
class Check:
    """One check and how it ended."""

    name: str
    level: Level
    status: Status
    message: str  # what holds, what is wrong or why it was not made


def settle(name: str, level: Level, problems: Iterable[str], holds: str) -> Check:
    """A check that failed if there is any problem, and otherwise says what holds."""
    found = [problem if len(problem) <= _WIDEST else problem[:_WIDEST] + "..." for problem in problems]
    if not found:
        return Check(name, level, "passed", holds)
    more = [f"and {len(found) - _SHOWN_PROBLEMS} more"] if len(found) > _SHOWN_PROBLEMS else []
    return Check(name, level, "failed", "; ".join(found[:_SHOWN_PROBLEMS] + more))


@dataclass(frozen=True)
class Report:
    """What one artifact's verification found; `not_checked` is never empty."""

    path: str
    checks: tuple[Check, ...]
    not_checked: tuple[str, ...]
    unverifiable: tuple[str, ...] = ()  # reasons why nothing wrong was found and yet nothing is verified

    @property
    def exit_code(self) -> int:
        """0 passed, 1 failed, 3 could not be verified."""
        if any(check.status == "failed" for check in self.checks):
            return FAILED
        return UNVERIFIABLE if self.unverifiable else PASSED

    @property
    def passed_levels(self) -> tuple[Level, ...]:
        """Levels at which something was checked and nothing failed."""
        failed = {check.level for check in self.checks if check.status == "failed"}
        made = {check.level for check in self.checks if check.status in ("passed", "warned")}
        return tuple(level for level in LEVELS if level in made - failed)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values, keys in order."""
        return {
            "path": self.path,
            "exit_code": self.exit_code,
            "passed_levels": list(self.passed_levels),
            "unverifiable": list(self.unverifiable),
            "checks": [asdict(check) for check in self.checks],
            "not_checked": list(self.not_checked),
        }


def render(report: Report) -> str:
    """The report as plain text: checks by level, what was not checked, and one sentence that names the levels."""
    lines = [_printable(report.path)]
    for level, title in LEVELS.items():
        checks = [check for check in report.checks if check.level == level and check.status != "skipped"]
        lines += [f"  {level} {title}"] if checks else []
        lines += [f"    {check.status:<7} {check.name}: {_printable(check.message)}" for check in checks]
    lines += ["  not checked", *(f"    {_printable(item)}" for item in report.not_checked)]
    return "\n".join([*lines, f"  {_printable(_conclusion(report))}", ""])


def render_all(reports: Sequence[Report]) -> str:
    """Several reports: a line for each, the whole where one failed or is of the suite, and how many are what."""
    if len(reports) == 1:
        return render(reports[0])
    whole = [report for report in reports if report.exit_code == FAILED or any(c.level == "V4" for c in report.checks)]
    lines = [f"{_printable(r.path)}: {_printable(_conclusion(r))}" for r in reports if r not in whole]
    codes = Counter(report.exit_code for report in reports)
    kinds = {0: "verified", UNVERIFIABLE: "not verified", FAILED: "failed"}
    said = ", ".join(f"{codes[code]} {kind}" for code, kind in kinds.items() if codes[code])
    warned = Counter(check.name for report in reports for check in report.checks if check.status == "warned")
    more = "; warnings: " + ", ".join(f"{name} ({n})" for name, n in sorted(warned.items())) if warned else ""
    details = "One by itself, or --json, shows every check."
    return "\n\n".join(["\n".join(lines), *map(render, whole), f"{len(reports)} reports: {said}{more}. {details}"])


def _printable(text: str) -> str:
    """The text on one line and without characters that steer a terminal: a file could hold a forged report."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _conclusion(report: Report) -> str:
    count = {
        status: sum(check.status == status for check in report.checks) for status in ("passed", "warned", "failed")
    }
    warned = f", {count['warned']} warned" if count["warned"] else ""
    if report.exit_code == FAILED:
        levels = sorted({check.level for check in report.checks if check.status == "failed"})
        return f"failed at {' and '.join(levels)}: {count['failed']} failed, {count['passed']} passed{warned}"
    levels = ", ".join(report.passed_levels) or "no level"
    if report.unverifiable:
        return f"not verified ({'; '.join(report.unverifiable)}): {count['passed']} checks passed{warned} at {levels}"
    return f"verified at {levels}: {count['passed']} checks passed{warned}"
