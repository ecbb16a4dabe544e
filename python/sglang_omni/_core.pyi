"""The Rust core. One section an area; each area is one file in `rust/python/src`."""

__version__: str

# --- payload ---------------------------------------------------------------------------------

# --- relay -----------------------------------------------------------------------------------

# --- router ----------------------------------------------------------------------------------

def router_policies() -> list[str]:
    """Names of the policies that a router can be started with."""

class RouterServer:
    """A running router; dropping it stops it at once.

    Raises:
        ValueError: A value is wrong; the text names it.
        OSError: The port cannot be listened on.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        worker_urls: list[str],
        policy: str,
        cache_threshold: float,
        balance_abs_threshold: int,
        balance_rel_threshold: float,
        eviction_interval: float,
        max_tree_size: int,
        threads: int,
        max_body_bytes: int,
        header_timeout: float,
        drain_timeout: float,
        probe_interval: float,
    ) -> None: ...
    @property
    def url(self) -> str:
        """`http://host:port` it listens on."""

    def drain(self) -> None:
        """Takes no more connections; ends when what is in flight is done, or after `drain_timeout`."""

    def stop(self) -> None:
        """Ends now, whatever is in flight."""

    def wait(self, timeout: float) -> bool:
        """Waits for the end for at most `timeout` seconds, without the interpreter lock. True if it came."""
