"""``make parity``: a family's answers against its reference's, over seeds, shapes and engines."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from sglang_omni.testing import ALL_WAYS, Report, Way

FAMILIES = sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))
ENGINES = ("omni", "sglang")


def _seeds(listed: str) -> list[int]:
    return [int(seed) for seed in listed.split(",")]


def _engines(listed: str) -> list[str]:
    if unknown := set(names := listed.split(",")) - set(ENGINES):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="parity", description=__doc__)
    parser.add_argument("family", choices=("all", *FAMILIES), help="its file in tests/parity")
    parser.add_argument("--seeds", type=_seeds, default="0", help="of checkpoints (default: %(default)s)")
    parser.add_argument("--shapes", nargs="+", help="of the family's SHAPES (default: all)")
    parser.add_argument("--engines", type=_engines, default="omni", help="omni,sglang (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=ALL_WAYS, default=list(ALL_WAYS), type=Way)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    reports: list[Report] = []
    for name in FAMILIES if args.family == "all" else [args.family]:
        family = importlib.import_module(f"parity.{name}")
        missing = [each for each in getattr(family, "REFERENCE_NEEDS", ()) if find_spec(each) is None]
        if missing and args.family == "all":
            print(f"\n{name}: not compared, as its reference needs {', '.join(missing)}", flush=True)
            continue
        # A family that has only some of the engines names them.
        engines = [each for each in args.engines if each in getattr(family, "ENGINES", args.engines)]
        for shape, seed, engine in product(args.shapes or family.SHAPES, args.seeds, engines):
            if engine not in getattr(family, "SHAPE_ENGINES", {}).get(shape, engines):
                continue
            with tempfile.TemporaryDirectory() as folder:
                report: Report = family.subject(Path(folder), seed, shape, engine).check(args.ways)
            print(f"\n{name} {shape}, seed {seed}, {engine}\n{report}", flush=True)
            reports.append(report)
    wrong = sum(len(report.differences) for report in reports)
    total = sum(report.answers for report in reports)
    print(f"\n{total - wrong} of {total} answers are right")
    return 0 if reports and all(report.ok for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
