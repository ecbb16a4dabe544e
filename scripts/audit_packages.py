"""Report known vulnerabilities of the packages in requirements/*.lock, as pip-audit finds them.

Its one argument is pip-audit's path. Exits with 1 if a package has a vulnerability. An index without such
data is reported in one line: then nothing was checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent.parent / "requirements"
# It has one package: an index that knows nothing of it is asked for no other.
FIRST = "maturin.lock"


class NotChecked(Exception):
    """pip-audit ended without a report; the message is its last line."""


def audit(pip_audit: str, lock: Path) -> list[dict]:
    """The packages of a lock: each has `vulns`, or a `skip_reason`.

    Raises NotChecked if the index cannot be reached.
    """
    done = subprocess.run(
        [pip_audit, "--disable-pip", "--progress-spinner=off", "--format=json", f"--requirement={lock}"],
        capture_output=True,
        text=True,
    )
    if not done.stdout:
        raise NotChecked((done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1])
    return json.loads(done.stdout)["dependencies"]


def main(pip_audit: str) -> None:
    vulnerable = False
    for lock in sorted(LOCKS.glob("*.lock"), key=lambda lock: (lock.name != FIRST, lock.name)):
        try:
            packages = audit(pip_audit, lock)
        except NotChecked as error:
            print(f"Advisories of {lock.name} and of the locks after it were not checked: {error}")
            break
        skipped = [package["skip_reason"] for package in packages if "skip_reason" in package]
        if lock.name == FIRST and len(skipped) == len(packages):
            print("Advisories of Python packages were not checked: the index has no data of them")
            break
        print(f"{lock.name}: {len(packages) - len(skipped)} packages checked")
        for reason in skipped:
            print(f"  not checked: {reason}")
        for package in packages:
            for found in package.get("vulns", ()):
                vulnerable = True
                fixed = ", ".join(found["fix_versions"]) or "no version"
                print(f"  {package['name']} {package['version']}: {found['id']}, fixed in {fixed}")
    if vulnerable:
        sys.exit("A package has a known vulnerability.")


if __name__ == "__main__":
    main(sys.argv[1])
