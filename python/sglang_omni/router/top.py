"""`sgl-omni route top`: a router's workers, their load and latencies, live in a terminal."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from sglang_omni.command_line import CommandParser
from sglang_omni.router.scrape import Change, NotARouter, Router, RouterUnreachable, Snapshot

_GREEN, _YELLOW, _RED, _DIM, _BOLD, _PLAIN = (f"\x1b[{code}m" for code in ("32", "33", "31", "2", "1", "0"))
_STATES = {"up": _GREEN, "busy": _YELLOW, "unknown": _DIM, "draining": _YELLOW}
_OPEN_SCREEN, _CLOSE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"

_FIRST_BYTE = "worker_time_to_first_byte_seconds"
_COLUMNS = (
    "WORKER",
    "STATE",
    "LOAD",
    "REQ/S",
    "P50",
    "P99",
    "FAIL/S",
    "REQUESTS",
    "FAILURES",
    "TREE",
    "BLOCKS",
)


def build_parser(prog: str = "sgl-omni route top") -> CommandParser:
    parser = CommandParser(
        prog=prog,
        description="Watch a router: its workers, their load, hit rate and latencies. q ends it. "
        "If the output is not a terminal, it prints one table.",
    )
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the router (default: %(default)s)")
    parser.add_argument(
        "--admin-api-key",
        metavar="KEY",
        default=os.environ.get("SGLANG_OMNI_ROUTER_ADMIN_API_KEY"),
        help="the router's admin key; or set SGLANG_OMNI_ROUTER_ADMIN_API_KEY. Without one, works only on "
        "the router's own machine",
    )
    parser.add_argument(
        "--ca-cert",
        metavar="FILE",
        help="certificate authority of the router's certificate, if the system does not know it",
    )
    parser.add_argument(
        "--interval", type=float, default=1.0, metavar="SECONDS", help="time between two looks (default: 1)"
    )
    return parser


def main(argv: Sequence[str] | None = None, *, prog: str = "sgl-omni route top") -> int:
    """Returns the exit status: 1 if there is no router, or the router refuses the key."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    if not args.interval > 0:
        parser.error("--interval must be more than 0 seconds")
    url = args.url.rstrip("/") if "://" in args.url else f"http://{args.url.rstrip('/')}"
    try:
        router = Router(url, args.admin_api_key, args.ca_cert)
        first = router.read()
        if sys.stdout.isatty():
            _Screen(router, args.interval, first).run()
        else:
            time.sleep(args.interval)
            print("\n".join(table(url, Change(first, router.read()))))
    except (NotARouter, RouterUnreachable) as exc:
        print(f"{prog}: {exc}", file=sys.stderr)
        return 1
    except OSError as exc:
        print(f"{prog}: --ca-cert {args.ca_cert}: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def table(url: str, change: Change, *, color: bool = False) -> list[str]:
    """The lines to show."""
    now = change.now
    paint = _paint if color else _leave
    healthy = sum(bool(worker["healthy"]) for worker in now.workers)
    lines = [
        paint(_BOLD, f"{url}  {now.policy}  {healthy} of {len(now.workers)} workers healthy"),
        f"requests {_number(change.rate('worker_requests_total'))}/s"
        f"  in flight {_number(now.total('requests_in_flight'))}"
        f"  waiting {_number(now.total('requests_waiting'))}"
        f"  retries {_number(change.rate('retries_total'))}/s"
        f"  unserved {_number(change.rate('unserved_total'))}/s"
        f"  hit rate {_hit_rate(change)}",
        f"first byte p50 {_time(change.quantile(0.5, 'time_to_first_byte_seconds'))}"
        f" p99 {_time(change.quantile(0.99, 'time_to_first_byte_seconds'))}"
        f"  whole answer p50 {_time(change.quantile(0.5, 'request_duration_seconds'))}"
        f" p99 {_time(change.quantile(0.99, 'request_duration_seconds'))}",
        "",
    ]
    rows = [_COLUMNS, *(_row(change, worker) for worker in now.workers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    for row in rows:
        # Align text left and numbers right.
        cells = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        cells += [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        if row is _COLUMNS:
            lines.append(paint(_DIM, "  ".join(cells)))
        else:
            cells[1] = paint(_STATES.get(row[1], _RED), cells[1])
            lines.append("  ".join(cells))
    return lines if now.workers else [*lines, "no workers; POST /workers adds one"]


def _row(change: Change, worker: dict) -> tuple[str, ...]:
    name = _label(change.now, worker)
    return (
        worker["url"],
        "draining" if worker["draining"] else str(worker["state"]),
        str(worker["load"]),
        _number(change.rate("worker_requests_total", worker=name)),
        _time(change.quantile(0.5, _FIRST_BYTE, worker=name)),
        _time(change.quantile(0.99, _FIRST_BYTE, worker=name)),
        _number(change.rate("worker_failures_total", worker=name)),
        str(worker["requests"]),
        str(worker["failures"]),
        _bytes(change.now.total("tree_bytes", worker=name)),
        _blocks(change.now, worker, name),
    )


def _blocks(now: Snapshot, worker: dict, name: str) -> str:
    """The known blocks of the worker's cache, with a + if there may be more; - without events."""
    coverage = (worker.get("cache_events") or {}).get("coverage", "none")
    if coverage == "none":
        return "-"
    return _number(now.total("cache_blocks", worker=name)) + ("+" if coverage == "part" else "")


def _label(now: Snapshot, worker: dict) -> str:
    """The worker's name in metrics: its URL if the router exposes URLs, else its id."""
    named = {labels["worker"] for labels, _ in now.values.get("worker_up", []) if "worker" in labels}
    return worker["url"] if worker["url"] in named else str(worker["id"])


def _hit_rate(change: Change) -> str:
    """The hit rate of prompts' tokens, which workers report, or else of bytes, which the policy estimates."""
    for hit, asked in (
        ("cached_tokens_total", "prompt_tokens_total"),
        ("matched_bytes_total", "prompt_bytes_total"),
    ):
        if (prompts := change.grown(asked)) > 0:
            return f"{change.grown(hit) / prompts:.0%}"
    return "-"


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _time(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def _bytes(count: float) -> str:
    if math.isnan(count):
        return "-"
    for unit in ("B", "KB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _paint(code: str, text: str) -> str:
    return f"{code}{text}{_PLAIN}"


def _leave(_code: str, text: str) -> str:
    return text


class _Screen:
    """The live table, drawn at each interval and when the terminal's size changes."""

    def __init__(self, router: Router, interval: float, first: Snapshot) -> None:
        self.router = router
        self.interval = interval
        self.change = Change(first, first)
        self.trouble: str | None = None
        self.color = "NO_COLOR" not in os.environ

    def run(self) -> None:
        """Runs until q or Ctrl-C."""
        signal.signal(signal.SIGWINCH, lambda *_: self.draw())
        with _own_screen(), _single_keys() as keys:
            self.draw()
            while not _pressed(keys, "q", self.interval):
                self.look()
                self.draw()

    def look(self) -> None:
        try:
            self.change = Change(self.change.now, self.router.read())
            self.trouble = None
        except RouterUnreachable as exc:
            self.trouble = str(exc)

    def draw(self) -> None:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        lines = table(self.router.url, self.change, color=self.color)
        if self.trouble:
            lines[:0] = [_paint(_RED, self.trouble) if self.color else self.trouble, ""]
        if len(lines) > rows:
            lines[rows - 1 :] = [f"... and {len(lines) - rows + 1} more"]
        shown = (_TO_LINE_END + "\r\n").join(_clip(line, columns) for line in lines)
        sys.stdout.write(_HOME + shown + _TO_LINE_END + _TO_SCREEN_END)
        sys.stdout.flush()


def _clip(line: str, columns: int) -> str:
    """The line cut to ``columns``, in which escape sequences have no width."""
    out, room, rest = "", columns, line
    while rest and room > 0:
        if rest.startswith("\x1b["):
            end = rest.index("m") + 1
        else:
            end = min(room, rest.find("\x1b") if "\x1b" in rest else len(rest))
            room -= end
        out, rest = out + rest[:end], rest[end:]
    return out + (_PLAIN if "\x1b" in out else "")


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    sys.stdout.write(_OPEN_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(_CLOSE_SCREEN)
        sys.stdout.flush()


@contextlib.contextmanager
def _single_keys() -> Iterator[int | None]:
    """Yields the keyboard's descriptor, which then gives single keys; None if there is no keyboard."""
    if not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield keys
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)


def _pressed(keys: int | None, wanted: str, seconds: float) -> bool:
    """Waits at most ``seconds``; returns True at once if the key is pressed."""
    if keys is None:
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([keys], [], [], left)[0]:
            typed = os.read(keys, 64)
            if not typed or wanted.encode() in typed.lower():
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(prog="python -m sglang_omni.router.top"))
