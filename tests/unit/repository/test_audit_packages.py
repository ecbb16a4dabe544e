"""scripts/audit_packages.py: a vulnerability fails it, and what was not checked does not pass for checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "audit_packages.py"
SOUND = {"name": "sound", "version": "1", "vulns": []}
BROKEN = {"name": "broken", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "unknown", "skip_reason": "Dependency not found: unknown (1)"}


def audited(folder: Path, first: str, others: str) -> subprocess.CompletedProcess[str]:
    """Runs it with a pip-audit that prints `first` for the first lock and `others` for the others."""
    pip_audit = folder / "pip-audit"
    pip_audit.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"print({first!r} if sys.argv[-1].endswith('/maturin.lock') else {others!r}, end='')\n"
        "print('a trace', 'no route', sep='\\n', file=sys.stderr)\n"
    )
    pip_audit.chmod(0o755)
    return subprocess.run([sys.executable, SCRIPT, pip_audit], capture_output=True, text=True)


def report(*packages: dict) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_a_vulnerability_fails_it(tmp_path: Path) -> None:
    done = audited(tmp_path, report(SOUND), report(SOUND, BROKEN))
    assert done.returncode == 1
    assert "maturin.lock: 1 packages checked\n" in done.stdout
    assert "cuda.lock: 2 packages checked\n  broken 2: PYSEC-1, fixed in 3\n" in done.stdout


def test_a_package_that_was_not_checked_is_named(tmp_path: Path) -> None:
    done = audited(tmp_path, report(SOUND), report(SOUND, UNKNOWN))
    assert done.returncode == 0
    assert f"cuda.lock: 1 packages checked\n  not checked: {UNKNOWN['skip_reason']}\n" in done.stdout


def test_an_index_without_such_data_is_one_line(tmp_path: Path) -> None:
    done = audited(tmp_path, report(UNKNOWN), report(BROKEN))
    assert done.returncode == 0
    assert done.stdout == "Advisories of Python packages were not checked: the index has no data of them\n"


def test_no_network_is_one_line_with_the_reason(tmp_path: Path) -> None:
    done = audited(tmp_path, "", report(BROKEN))
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stdout.endswith("were not checked: no route\n")


# The first lock is the probe of an index: it must be there, with a package that every index has.
def test_the_first_lock_has_one_package() -> None:
    lock = SCRIPT.parents[1] / "requirements" / "maturin.lock"
    assert lock.read_text(encoding="utf-8").count("==") == 1


@pytest.mark.parametrize("first", ["", report(UNKNOWN)])
def test_nothing_counts_as_checked_then(tmp_path: Path, first: str) -> None:
    assert "packages checked" not in audited(tmp_path, first, report(SOUND)).stdout
