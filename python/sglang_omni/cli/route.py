"""``sgl-omni route``: the router, and ``route top``, which shows its workers live."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str], *, prog: str) -> int:
    """Runs the router until it is stopped, or the live view of one."""
    if argv[:1] == ["top"]:
        from sglang_omni.router.top import main as top

        return top(argv[1:])
    from sglang_omni.launch_router import main as route

    return route(argv, prog=prog)
