"""Hit rate and balance over real sockets: the simulator's traces, workers with a simulated KV cache.

Each router meets fresh workers that hold a fixed budget of KV cache together. Perfect affinity, which knows
what belongs together but not who is busy, is computed by the simulator.
"""

from __future__ import annotations

import json
import subprocess
from urllib.request import urlopen

from measure import progress
from router_cases import Goal, Row
from router_ways import LOAD, OURS, PEER_NAMES, cores, router, workers

PERFECT, ROUND_ROBIN = "perfect affinity", "round robin"
# By trace and number of workers: the hit rate, and requests of the busiest worker over the mean.
GOALS = {
    ("multi-turn", 4): (Goal(0.94, 0.95), Goal(1.4, 1.2)),
    ("multi-turn", 8): (Goal(0.93, 0.94), Goal(1.5, 1.3)),
    ("shared-prefixes", 4): (Goal(0.83, 0.85), Goal(1.3, 1.1)),
    ("shared-prefixes", 8): (Goal(0.82, 0.85), Goal(1.4, 1.2)),
}


def rows(peers: bool, failures: dict[str, dict[str, str]]) -> list[Row]:
    """Two rows a trace and fleet; why a router has no figure goes into ``failures``."""
    found = []
    for (trace, count), (hits, balance) in GOALS.items():
        case = f"{trace}, {count} workers"
        progress(case)
        seen = {PERFECT: _perfect(trace, count)}
        for name in (ROUND_ROBIN, OURS, *(PEER_NAMES if peers else ())):
            outcome = _measure(name, trace, count)
            if isinstance(outcome, str):
                failures.setdefault(case, {})[name] = outcome
                progress(f"{case}: {name} failed: {outcome}")
            else:
                seen[name] = outcome
        rate = {name: outcome[0] for name, outcome in seen.items()}
        spread = {name: outcome[1] for name, outcome in seen.items()}
        found.append(Row(f"{case}: hit rate", "share", "higher", rate, hits.must, hits.aim))
        found.append(Row(f"{case}: max / mean requests", "x", "lower", spread, balance.must, balance.aim))
    return found


def _perfect(trace: str, count: int) -> tuple[float, float]:
    ran = subprocess.run([LOAD, "perfect", trace, str(count)], capture_output=True, text=True, check=True)
    outcome = json.loads(ran.stdout)
    return outcome["hit_rate"], outcome["max_over_mean"]


def _measure(name: str, trace: str, count: int) -> tuple[float, float] | str:
    """Hit rate, and requests of the busiest worker over the mean; or why there is none."""
    policy = "round_robin" if name == ROUND_ROBIN else "cache_aware"
    with (
        workers(count, "kv-worker", trace) as ports,
        router(OURS if name == ROUND_ROBIN else name, ports, policy=policy) as way,
    ):
        if way.failure is not None:
            return way.failure
        before = [_stats(port) for port in ports]
        replay = ["taskset", "-c", str(cores()[1]), str(LOAD), "replay", trace, str(way.port)]
        ran = subprocess.run(replay, capture_output=True, text=True, timeout=120, check=False)
        if ran.returncode:
            return ran.stderr.strip()
        after = [_stats(port) for port in ports]

    def each(what: str) -> list[int]:
        return [late[what] - early[what] for late, early in zip(after, before, strict=True)]

    requests = each("requests")
    return sum(each("cached_bytes")) / sum(each("prompt_bytes")), max(requests) * count / sum(requests)


def _stats(port: int) -> dict[str, int]:
    with urlopen(f"http://127.0.0.1:{port}/stats", timeout=10) as answer:
        stats: dict[str, int] = json.load(answer)
    return stats
