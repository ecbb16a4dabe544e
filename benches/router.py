"""The router beside the direct path, a bare TCP pass-through and three peers.

    python benches/router.py                                      # everything, eleven minutes
    python benches/router.py --cases json-32,sse-32 --no-peers    # while working on it
    python benches/router.py --cases json-32 --no-peers --router before=/tmp/sglang-omni-router

``--router NAME=COMMAND`` measures one more build: ``--host``, ``--port``, ``--policy`` and ``--worker-urls``
are added to its command. A full run writes benches/results/router.json and router.md; a part is only printed.
Ways take turns within each case, forwards and backwards (A B B A), `--rounds` times.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from dataclasses import asdict
from typing import Any

from measure import RESULTS, conditions, progress
from router_cases import CASES, IDLE_MEMORY, Case, Row, Windows, rows_of, table
from router_ways import LOAD, OURS, PEER_NAMES, Way, load, pass_through, router, workers

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


def main() -> None:
    arguments = _arguments()
    cases = [case for case in CASES if arguments.cases is None or case.name in arguments.cases]
    extra = dict(text.split("=", 1) for text in arguments.router)
    names = [OURS, *extra, *(() if arguments.no_peers else PEER_NAMES)]
    began = conditions()
    rows: list[Row] = []
    failures: dict[str, dict[str, str]] = {}
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(workers(2))
        ways = [Way("direct", ports[0]), stack.enter_context(pass_through(ports[0]))]
        for name in names:
            progress(f"starting {name}")
            way = stack.enter_context(router(name, ports, extra.get(name)))
            if way.failure is None:
                ways.append(way)
            else:
                failures["start"] = failures.get("start", {}) | {name: way.failure}
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
    columns = ["direct", "pass", *names]
    text = "\n".join([table(rows, columns), "", *_notes(failures, began)]) + "\n"
    print(text, end="")
    if arguments.cases is None and not extra and not arguments.no_peers:
        _write(rows, columns, failures, began, text)


def _write(
    rows: list[Row], columns: list[str], failures: dict[str, dict[str, str]], began: dict[str, Any], text: str
) -> None:
    content = {
        "began": began,
        "ended": conditions(),
        "ways": columns,
        "rows": [{**asdict(row), "reached": row.reached} for row in rows],
        "failures": failures,
    }
    (RESULTS / "router.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "router.md").write_text(text)
    progress(f"wrote {RESULTS / 'router.json'} and router.md")


def _notes(failures: dict[str, dict[str, str]], began: dict[str, Any]) -> list[str]:
    notes = [
        f"{began['when']} to {conditions()['when'][11:]}, load average {began['load'][0]} before, "
        f"{began['cpus']} CPUs ({began['machine']})."
    ]
    for case, failed in failures.items():
        notes += [f"- {case}: {name} has no figure: {why}" for name, why in failed.items()]
    return notes


def _arguments() -> argparse.Namespace:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    names = [case.name for case in CASES]
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), help=f"some of {','.join(names)}; all without it"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each window (2)")
    parser.add_argument("--rounds", type=int, default=2, help="of A B B A (2)")
    parser.add_argument("--no-peers", action="store_true", help="only direct, pass-through and ours")
    parser.add_argument("--router", action="append", default=[], metavar="NAME=COMMAND", help="another build")
    arguments = parser.parse_args()
    if unknown := set(arguments.cases or ()) - set(names):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if not LOAD.exists():
        parser.error(f"{LOAD} is not built: cargo build --release -p sglang-omni-router-load")
    return arguments


if __name__ == "__main__":
    main()
