"""The same attacks on our router and on three peers: what each costs, and what it gets the attacker.

    python benches/attacked_routers.py                              # all routers, about ten minutes
    python benches/attacked_routers.py --routers sglang_omni --attacks model-names,web-page

Every attack has a router of its own with the defaults, but for the options named in its line, and workers
that do what a prompt tells them (``attacked_workers``).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attacked_workers import RESET, SILENT, SLOW_RESET, Workers, attacked_workers
from measure import progress
from router_ways import OURS, PEER_NAMES, Way, command_of, environment, free_port, start, stop

JSON = {"content-type": "application/json"}


@dataclass
class Scene:
    """One router under attack, and the workers behind it."""

    name: str
    way: Way
    workers: Workers

    def ask(
        self,
        prompt: str = "hello",
        *,
        model: str = "m",
        stream: bool = False,
        timeout: float = 30.0,
    ) -> int | str:
        """The status, or what became of the connection."""
        body = json.dumps(
            {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": stream}
        )
        return self.request("POST", "/v1/chat/completions", body, JSON, timeout)[0]

    def request(
        self,
        method: str,
        path: str,
        body: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30.0,
    ) -> tuple[int | str, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.way.port, timeout=timeout)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers or {})
                answer = connection.getresponse()
                return answer.status, answer.read().decode(errors="replace")
            except TimeoutError:
                return "no answer", ""
            except (http.client.HTTPException, OSError) as error:
                return type(error).__name__, ""


Attack = Callable[[Scene], str]


def model_names(scene: Scene) -> str:
    """400 requests with model names of 500 kB."""
    before = scene.way.resident_mib()
    statuses = [scene.ask(model=f"{number:06}" + "x" * 500_000) for number in range(400)]
    grown = scene.way.resident_mib() - before
    return f"+ {grown:.0f} MiB ({_most(statuses)})"


def short_prompts(scene: Scene) -> str:
    """60,000 different prompts of 12 bytes."""
    before = scene.way.resident_mib()

    def some(start_at: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", scene.way.port, timeout=30)
        for number in range(start_at, start_at + 7500):
            message = {"role": "user", "content": f"{(number * 2654435761) % 2**48:012x}"}
            with contextlib.suppress(http.client.HTTPException, OSError):
                connection.request(
                    "POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": [message]}), JSON
                )
                connection.getresponse().read()
        connection.close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(some, range(0, 60_000, 7500)))
    return f"+ {scene.way.resident_mib() - before:.0f} MiB"


def web_page(scene: Scene) -> str:
    """A page of another site adds a worker, by requests that need no preflight."""
    evil = {"origin": "http://evil.example", "sec-fetch-site": "cross-site", "content-type": "text/plain"}
    own = scene.workers.ports[-1]
    tried = {}
    for path, body in (
        (f"/workers?url=http://127.0.0.1:{own}", None),
        ("/workers", json.dumps({"url": f"http://127.0.0.1:{own}"})),
        (f"/add_worker?url=http://127.0.0.1:{own}", None),
    ):
        tried[path.partition("?")[0] + (" (body)" if body else "")] = scene.request("POST", path, body, evil)[
            0
        ]
    # Some routers add a worker in the background, after a check of its health.
    time.sleep(8)
    for number in range(40):
        scene.ask(f"{number} of forty prompts, each another one")
    got = sum(count for (port, _), count in scene.workers.seen.items() if port == own)
    flush = scene.request("GET", "/flush_cache", None, evil)[0]
    statuses = ", ".join(f"{path} {status}" for path, status in tried.items())
    return f"it got {got} of 40 prompts ({statuses}; GET /flush_cache {flush})"


def silent_streams(scene: Scene) -> str:
    """Three streams of which the worker sends one event and no more; open after 15 s?"""
    sockets = [_send_head(scene, SILENT, stream=True) for _ in range(3)]
    ended, began = 0, time.monotonic()
    waited: list[float] = []
    for each in sockets:
        with contextlib.closing(each):
            try:
                while True:
                    each.settimeout(max(0.01, began + 15 - time.monotonic()))
                    if not each.recv(1 << 16):
                        break
                ended += 1
                waited.append(time.monotonic() - began)
            except TimeoutError:
                continue
            except OSError:
                ended += 1
    took = f", the last after {max(waited):.1f} s" if waited else ""
    return f"{3 - ended} of 3 still open after 15 s{took}"


def slow_bodies(scene: Scene) -> str:
    """Two places, two bodies that come a byte a second, and one honest request."""
    dribbling = [_send_head(scene, "x", length=1000) for _ in range(2)]
    try:
        for _ in range(3):
            for each in dribbling:
                with contextlib.suppress(OSError):
                    each.sendall(b" ")
            time.sleep(1)
        began = time.monotonic()
        status = scene.ask(timeout=15)
        return f"the honest request: {status} after {time.monotonic() - began:.2f} s"
    finally:
        for each in dribbling:
            each.close()


def slow_administration(scene: Scene) -> str:
    """POST /workers of which one byte of 100 comes; open after 40 s?"""
    head = b"POST /workers HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", scene.way.port)) as sender:
        sender.sendall(head + b"content-length: 100\r\n\r\n{")
        sender.settimeout(40)
        began = time.monotonic()
        try:
            answer = sender.recv(1 << 16)
        except TimeoutError:
            return "open after 40 s"
        first = answer.split(b"\r\n", 1)[0].decode(errors="replace") or "closed"
        return f"{first} after {time.monotonic() - began:.1f} s"


def empty_connections(scene: Scene) -> str:
    """200 connections that send nothing; open after 40 s?"""
    opened = [socket.create_connection(("127.0.0.1", scene.way.port)) for _ in range(200)]
    time.sleep(40)
    left = 0
    for each in opened:
        each.setblocking(False)
        try:
            # A router may say why it closes the connection.
            while each.recv(1 << 16):
                pass
        except BlockingIOError:
            left += 1
        except OSError:
            pass
        each.close()
    return f"{left} of 200 open after 40 s"


def killer(scene: Scene) -> str:
    """A request that kills the worker it comes to; five workers."""
    status = scene.ask(RESET)
    killed = sum(count for (_, asked), count in scene.workers.seen.items() if asked == RESET)
    return f"{killed} of 5 workers got it (then {status})"


def sent_again(scene: Scene) -> str:
    """--disable-retries: a worker works on a request and dies, on a connection used before. How often was
    it sent?"""
    for number in range(12):
        scene.ask(f"warm {number}")
    status = scene.ask(SLOW_RESET)
    times = sum(count for (_, asked), count in scene.workers.seen.items() if asked == SLOW_RESET)
    return f"sent {times} times (then {status})"


def zeros(scene: Scene) -> str:
    """Four bodies of 8 MB of zeros as `messages`."""
    body = json.dumps({"model": "m", "messages": [0]}).replace("[0]", "[" + "0," * 3_999_999 + "0]")
    before, cpu = scene.way.resident_mib(), scene.way.cpu_seconds()
    statuses = [scene.request("POST", "/v1/chat/completions", body, JSON)[0] for _ in range(4)]
    used = scene.way.cpu_seconds() - cpu
    return f"{used:.2f} s of CPU, + {scene.way.resident_mib() - before:.0f} MiB ({_most(statuses)})"


def _send_head(
    scene: Scene, prompt: str, *, stream: bool = False, length: int | None = None
) -> socket.socket:
    """A connection with a whole request, or with only the head of one if ``length`` is given."""
    message = {"model": "m", "messages": [{"role": "user", "content": prompt}], "stream": stream}
    body = json.dumps(message).encode() if length is None else b""
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    sender = socket.create_connection(("127.0.0.1", scene.way.port))
    sender.sendall(f"{head}content-length: {length or len(body)}\r\n\r\n".encode() + body)
    return sender


def _most(statuses: list[int | str]) -> str:
    return ", ".join(f"{status} x {statuses.count(status)}" for status in dict.fromkeys(statuses))


# What a router has beside a limit on whole requests.
STREAM_LIMITS = {OURS: ["--stream-idle-timeout", "3"], "smg": ["--stream-body-stall-timeout-secs", "3"]}

# Name, attack, workers, options that every router here has, under whichever of their names.
ATTACKS: dict[str, tuple[Attack, int, list[str]]] = {
    "model-names": (model_names, 2, []),
    "short-prompts": (short_prompts, 2, []),
    "web-page": (web_page, 3, []),
    "silent-streams": (silent_streams, 2, ["--request-timeout-secs", "3"]),
    "slow-bodies": (slow_bodies, 2, ["--max-concurrent-requests", "2", "--queue-size", "0"]),
    "slow-administration": (slow_administration, 2, []),
    "empty-connections": (empty_connections, 2, []),
    "killer": (killer, 5, []),
    "sent-again": (sent_again, 2, ["--disable-retries"]),
    "zeros": (zeros, 2, []),
}


@contextlib.contextmanager
def scene(name: str, count: int, options: list[str], spare: int) -> Iterator[Scene | str]:
    """A router that answers, with ``count`` workers of which it is not told the last ``spare``."""
    with attacked_workers(count) as workers:
        port = free_port()
        urls = [f"http://127.0.0.1:{worker}" for worker in workers.ports[: count - spare]]
        command = command_of(name, port, urls, "cache_aware") + options
        process = start(command, 0, f"attacked-{name}", env=environment(name))
        try:
            found = Scene(name, Way(name, port, process), workers)
            deadline = time.monotonic() + 60
            status: int | str = "no answer"
            while time.monotonic() < deadline and process.poll() is None and status != 200:
                status = found.ask(timeout=5)
                time.sleep(0.2)
            workers.seen.clear()
            yield found if status == 200 else f"not started ({status})"
        finally:
            stop(process)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--routers", default=",".join((OURS, *PEER_NAMES)))
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    arguments = parser.parse_args()
    routers = arguments.routers.split(",")
    print("| attack | " + " | ".join(routers) + " |")
    print("|---|" + "---|" * len(routers))
    for attack in arguments.attacks.split(","):
        run, count, options = ATTACKS[attack]
        said = []
        for name in routers:
            progress(f"{attack}: {name}")
            own = STREAM_LIMITS.get(name, []) if run is silent_streams else []
            with scene(name, count, options + own, spare=int(run is web_page)) as found:
                said.append(found if isinstance(found, str) else run(found))
        what = " ".join((run.__doc__ or "").split())
        print(f"| {what} | " + " | ".join(said) + " |", flush=True)


if __name__ == "__main__":
    main()
