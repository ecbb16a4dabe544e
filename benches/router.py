"""The router beside the direct path, a bare TCP pass-through and three peers.

    python benches/router.py                                      # everything, eleven minutes
    python benches/router.py --cases json-32,sse-32 --no-peers    # while working on it
    python benches/router.py --cases json-32 --no-peers --router before=/tmp/sglang-omni-router

``--router NAME=COMMAND`` measures one more build: ``--host``, ``--port``, ``--policy`` and ``--worker-urls``
are added to its command. A full run writes benches/results/router.json and, with ``router_report``, its
tables; a part is only printed. Ways take turns within each case, forwards and backwards (A B B A),
``--rounds`` times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from dataclasses import asdict
from typing import Any

import router_hits
import router_real
import router_report
from measure import RESULTS, conditions, progress
from router_cases import CASES, IDLE_MEMORY, Case, Row, Windows, rows_of
from router_ways import LOAD, OURS, PEER_NAMES, Way, load, pass_through, router, workers

# Hit rate and balance, which are measured by themselves.
HITS = "hits"
# Through a real server, in place of mock workers.
REAL = "real"
# After this long without requests a router has given back what it is going to give back soon.
REST_S = 3.0


def measure_case(case: Case, ways: list[Way], seconds: float, rounds: int) -> tuple[Windows, dict[str, str]]:
    """The windows of every way that answered all its requests, and why the others did not."""
    windows: Windows = {way.name: [] for way in ways}
    failures: dict[str, str] = {}
    for _ in range(rounds):
        for way in [*ways, *reversed(ways)]:
            if way.name in failures:
                continue
            window = load(way, case.clients, seconds, case.kind, case.body_bytes)
            if isinstance(window, str):
                failures[way.name] = window
                del windows[way.name]
                progress(f"{case.name}: {way.name} failed: {window}")
            else:
                windows[way.name].append(window)
    return windows, failures


def memory_row(name: str, ways: list[Way]) -> Row:
    return Row(name, "MB", "lower", {way.name: way.resident_mib() for way in ways if way.process})


def measure_speed(
    cases: list[Case], arguments: argparse.Namespace, failures: dict[str, dict[str, str]]
) -> list[Row]:
    """The rows of all cases; why a way has no figure goes into ``failures``."""
    rows: list[Row] = []
    extra = _extra(arguments)
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(workers(2))
        ways = [Way("direct", ports[0]), stack.enter_context(pass_through(ports[0]))]
        for name in _routers(arguments):
            progress(f"starting {name}")
            way = stack.enter_context(router(name, ports, extra.get(name)))
            if way.failure is None:
                ways.append(way)
            else:
                failures.setdefault("start", {})[name] = way.failure
                progress(f"{name} cannot be measured: {way.failure}")
        idle = {way.name: way.idle_mib for way in ways if way.idle_mib is not None}
        rows.append(Row("memory when idle", "MB", "lower", idle, IDLE_MEMORY.must, IDLE_MEMORY.aim))
        for case in cases:
            progress(case.name)
            windows, failed = measure_case(case, ways, arguments.seconds, arguments.rounds)
            if failed:
                failures[case.title] = failed
            if "direct" not in windows:
                raise SystemExit(f"{case.name}: the workers themselves failed: {failed['direct']}")
            rows += rows_of(case, windows)
            if case.body_bytes >= 64_000:
                time.sleep(REST_S)
                rows.append(memory_row(f"{case.title}: memory {REST_S:g} s after", ways))
    return rows


def main() -> None:
    arguments = _arguments()
    began = conditions()
    failures: dict[str, dict[str, str]] = {}
    cases = [case for case in CASES if case.name in arguments.cases]
    speed = measure_speed(cases, arguments, failures) if cases else []
    through_all = REAL in arguments.cases
    real = router_real.rows(_routers(arguments), _extra(arguments), failures) if through_all else []
    hits = router_hits.rows(not arguments.no_peers, failures) if HITS in arguments.cases else []
    measured = {
        "began": began,
        "ended": conditions(),
        "speed": {"ways": ["direct", "pass", *_routers(arguments)], "rows": list(map(as_json, speed))},
        "real": {"ways": ["direct", "pass", *_routers(arguments)], "rows": list(map(as_json, real))},
        "hits": {
            "ways": [router_hits.PERFECT, router_hits.ROUND_ROBIN, OURS, *PEER_NAMES],
            "rows": list(map(as_json, hits)),
        },
        "failures": failures,
    }
    print(router_report.tables(measured), end="")
    if arguments.is_all:
        (RESULTS / "router.json").write_text(json.dumps(measured, indent=1) + "\n")
        router_report.main()


def as_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "reached": row.reached}


def _extra(arguments: argparse.Namespace) -> dict[str, str]:
    return dict(text.split("=", 1) for text in arguments.router)


def _routers(arguments: argparse.Namespace) -> list[str]:
    return [OURS, *_extra(arguments), *(() if arguments.no_peers else PEER_NAMES)]


def _arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    names = [*(case.name for case in CASES), REAL, HITS]
    parser.add_argument("--cases", default=",".join(names), help=f"some of {','.join(names)}")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each window (2)")
    parser.add_argument("--rounds", type=int, default=2, help="of A B B A (2)")
    parser.add_argument("--no-peers", action="store_true", help="only direct, pass-through and ours")
    parser.add_argument("--router", action="append", default=[], metavar="NAME=COMMAND", help="another build")
    arguments = parser.parse_args()
    arguments.cases = arguments.cases.split(",")
    # Only the whole is worth being shown later.
    arguments.is_all = arguments.cases == names and not arguments.router and not arguments.no_peers
    if unknown := set(arguments.cases) - set(names):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if not LOAD.exists():
        parser.error(f"{LOAD} is not built: cargo build --release -p sglang-omni-router-load")
    return arguments


if __name__ == "__main__":
    main()
