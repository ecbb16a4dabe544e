"""``sgl-omni doctor``: what this machine has and lacks, a line for each fact, with what mends it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from sglang_omni.cli.findings import print_findings
from sglang_omni.command_line import CommandParser


def main(argv: Sequence[str] | None = None, *, prog: str = "sgl-omni doctor") -> int:
    """Prints the findings. Returns 1 if something is wrong, else 0."""
    parser = CommandParser(
        prog=prog,
        description="Say what this machine has and lacks, and the command that fixes it; exit status 1 if "
        "one fails. What is marked - is missing, and needed only for the use that is named.",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of lines")
    args = parser.parse_args(argv)
    # Imported late, so that --help is fast.
    from sglang_omni.cli.doctor.machine import examine

    findings = examine()
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        print_findings(findings)
    return 1 if any(finding.status == "fail" for finding in findings) else 0
