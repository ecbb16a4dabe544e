"""What the router can be told. Standard library only: a router's process should stay small."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """A router in front of HTTP replicas; checked when the router starts (`ValueError` naming the field).

    Attributes:
        worker_urls: `http://host:port` of each replica. May be empty: `POST /workers` adds more.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        policy: One of `sglang_omni._core.router_policies()`.
        cache_threshold: Share of a prompt, 0 to 1, that a worker must have seen for `cache_aware` to
            follow it there.
        balance_abs_threshold: `cache_aware` takes the shortest queue when the longest exceeds it by more
            than this many requests ...
        balance_rel_threshold: ... and by more than this factor.
        eviction_interval: Seconds between two trims of the prefix tree.
        max_tree_size: Bytes of prompt text remembered for each worker.
        threads: Threads that serve; 0 takes one a core.
        max_body_bytes: Larger request bodies are refused with 413.
        header_timeout: Seconds for a request's headers to arrive; later ones are refused with 408.
        drain_timeout: Seconds that requests in flight may take once SIGTERM has come.
        probe_interval: Seconds between two health checks of a worker.
    """

    worker_urls: list[str] = field(default_factory=list)
    host: str = "127.0.0.1"
    port: int = 30000
    policy: str = "cache_aware"
    cache_threshold: float = 0.5
    balance_abs_threshold: int = 32
    balance_rel_threshold: float = 1.0001
    eviction_interval: float = 60.0
    max_tree_size: int = 16777216
    threads: int = 0
    max_body_bytes: int = 256 * 1024 * 1024
    header_timeout: float = 30.0
    drain_timeout: float = 30.0
    probe_interval: float = 1.0
