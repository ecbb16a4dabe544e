"""The router's options. Imports only the standard library, to keep the router's process small."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

WORKERS = "workers"
LISTENING = "listening"
ROUTING = "routing"
LIMITS = "limits"
HEALTH = "health"
FAILURES = "failures"
KEYS = "keys"
LOGS = "logs"


# Returns Any, like `dataclasses.field`: the field's annotation is its type.
def option(default: Any, section: str, text: str, *, metavar: str | None = None, also: str = "") -> Any:
    """A dataclass field with a flag of the same name and type.

    Args:
        default: The field's default.
        section: The section of ``--help`` and docs/router.md that lists the flag.
        text: The flag's help, with its unit.
        metavar: The name of the flag's value in ``--help``.
        also: The flag's spelling in other routers.
    """
    metadata = {"section": section, "help": text, "metavar": metavar, "also": also}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class RouterConfig:
    """The options of a router in front of HTTP servers, checked when it starts (`ValueError` names the
    field).

    Each field is a flag of `python -m sglang_omni.launch_router` and a line in docs/router.md.
    """

    worker_urls: list[str] = option(
        [],
        WORKERS,
        "workers, as http://host:port or https://host:port; POST /workers adds more at run time",
        metavar="URL",
    )
    worker_ca_file: str | None = option(
        None,
        WORKERS,
        "certificate authorities of https workers, in PEM; by default those that the system trusts",
        metavar="FILE",
    )
    workers_file: str | None = option(
        None,
        WORKERS,
        "a file that lists workers, one URL a line or as a JSON or YAML list; it is watched",
        metavar="FILE",
    )
    worker_dns: list[str] = option(
        [], WORKERS, "names all of whose addresses are workers", metavar="NAME:PORT"
    )
    dns_interval: float = option(5.0, WORKERS, "time between look-ups of these names", metavar="SECONDS")

    host: str = option("127.0.0.1", LISTENING, "address to listen on; of a name, all its addresses")
    port: int = option(30000, LISTENING, "port to listen on; 0 takes a free one")
    threads: int = option(0, LISTENING, "number of threads; 0 takes one a core")

    tls_cert_path: str | None = option(
        None, LISTENING, "the certificate, with its chain, in PEM: clients then use https", metavar="PATH"
    )
    tls_key_path: str | None = option(None, LISTENING, "the certificate's key, in PEM", metavar="PATH")

    cors_allowed_origins: list[str] = option(
        [],
        LISTENING,
        "origins of web pages that may read answers, as https://host:port; * for any",
        metavar="ORIGIN",
    )
    prometheus_port: int | None = option(
        None, LISTENING, "a second port, for /metrics alone; 0 takes a free one", metavar="PORT"
    )
    prometheus_host: str = option("127.0.0.1", LISTENING, "address of that port", metavar="HOST")

    policy: str = option("cache_aware", ROUTING, "how a worker is chosen", metavar="POLICY")
    cache_threshold: float = option(
        0.5,
        ROUTING,
        "cache_aware: a prompt of which no worker has seen more than this share avoids large trees",
        metavar="SHARE",
    )
    balance_abs_threshold: int = option(
        32,
        ROUTING,
        "cache_aware: load weighs twice once the longest queue has this many requests more than the "
        "shortest, and is longer by --balance-rel-threshold",
        metavar="REQUESTS",
    )
    balance_rel_threshold: float = option(
        1.0001, ROUTING, "cache_aware: see --balance-abs-threshold", metavar="FACTOR"
    )
    eviction_interval: float = option(
        60.0,
        ROUTING,
        "cache_aware: time between trims of the prefix tree",
        metavar="SECONDS",
        also="--eviction-interval-secs",
    )
    max_tree_size: int = option(
        16777216,
        ROUTING,
        "cache_aware: memory for the prompts that each worker has seen; a quarter more for those in flight. "
        "All workers share 1 GiB, or this if it is more",
        metavar="BYTES",
    )
    kv_events: str = option(
        "off",
        ROUTING,
        "cache_aware: follow what workers publish of their caches: off, auto for those that announce it in "
        "/get_server_info, or the JSON that all workers got as --kv-events-config",
        metavar="WORD",
    )

    max_body_bytes: int = option(
        268435456,
        LIMITS,
        "larger request bodies are refused with 413",
        metavar="BYTES",
        also="--max-payload-size",
    )
    max_held_bytes: int = option(
        1073741824,
        LIMITS,
        "request bodies held until workers answer, up to 1 MiB of each; more are refused with 503",
        metavar="BYTES",
    )
    header_timeout: float = option(
        30.0, LIMITS, "a request whose headers take longer is refused with 408", metavar="SECONDS"
    )
    stall_timeout: float = option(
        60.0,
        LIMITS,
        "a client that sends less than 1 KiB a second of a body for this long gets 408; one that takes "
        "nothing of its answer for this long, or less than 8 KiB a second after it, is disconnected",
        metavar="SECONDS",
    )
    stream_idle_timeout: float = option(
        300.0,
        LIMITS,
        "an answer or a WebSocket without data for this long is broken off; 0 waits for ever",
        metavar="SECONDS",
    )
    keep_alive_timeout: float = option(
        120.0, LIMITS, "a connection without a request for this long is closed", metavar="SECONDS"
    )
    worker_keep_alive_timeout: float = option(
        60.0,
        LIMITS,
        "a connection to a worker without a request for this long is closed; earlier where the worker closes "
        "it, or says in `Keep-Alive` that it will",
        metavar="SECONDS",
    )
    drain_timeout: float = option(
        30.0,
        LIMITS,
        "time for requests in flight to end after SIGTERM",
        metavar="SECONDS",
        also="--shutdown-grace-period-secs",
    )
    max_concurrent_requests: int | None = option(
        None, LIMITS, "limit of requests at workers at once; -1 for none", metavar="REQUESTS"
    )
    queue_size: int = option(
        100,
        LIMITS,
        "limit of requests that wait for their turn beyond that; more get 429",
        metavar="REQUESTS",
    )
    queue_timeout: float = option(
        60.0,
        LIMITS,
        "a request that has waited for its turn this long gets 429",
        metavar="SECONDS",
        also="--queue-timeout-secs",
    )
    tenants_file: str | None = option(
        None,
        LIMITS,
        "a JSON file with tenants' weights, rates and priorities; SIGHUP reads it again",
        metavar="FILE",
    )

    probe_interval: float = option(
        1.0,
        HEALTH,
        "time between health checks of a worker",
        metavar="SECONDS",
        also="--health-check-interval-secs",
    )
    probe_timeout: float = option(
        2.0,
        HEALTH,
        "a worker that is later than this with two health checks in a row, and answers no request either, is "
        "down",
        metavar="SECONDS",
        also="--health-check-timeout-secs",
    )

    retry_max_retries: int = option(
        3,
        FAILURES,
        "how often a request is sent again, to another worker, if no part of an answer has come",
        metavar="TIMES",
    )
    disable_retries: bool = option(
        False, FAILURES, "send again only requests that could not be sent; the same as --retry-max-retries 0"
    )
    cb_failure_threshold: int = option(
        5,
        FAILURES,
        "failures in a row that put a worker behind the others, while these succeed",
        metavar="FAILURES",
    )
    cb_timeout: float = option(
        2.0,
        FAILURES,
        "time until a failing or hung worker gets one request as a trial",
        metavar="SECONDS",
        also="--cb-timeout-duration-secs",
    )
    disable_circuit_breaker: bool = option(
        False, FAILURES, "do not put workers behind others for their failures"
    )
    hung_timeout: float = option(
        3.0,
        FAILURES,
        "silence after which a worker may be hung, and requests without a first byte go to another worker",
        metavar="SECONDS",
    )
    request_timeout: float = option(
        1800.0,
        FAILURES,
        "a request without the first byte of an answer after this long gets a 504",
        metavar="SECONDS",
        also="--request-timeout-secs",
    )

    api_key: list[str] = option(
        [],
        KEYS,
        "clients must send one of these keys; or set SGLANG_OMNI_ROUTER_API_KEY, which `ps` does not show",
        metavar="KEY",
    )
    api_key_file: str | None = option(
        None,
        KEYS,
        "a file with such keys, one a line; a name before a key is its tenant's, who may have several",
        metavar="PATH",
    )
    worker_api_key: str | None = option(
        None,
        KEYS,
        "the key sent to workers instead of the client's; or set SGLANG_OMNI_ROUTER_WORKER_API_KEY",
        metavar="KEY",
    )
    worker_api_key_file: str | None = option(None, KEYS, "a file with that key", metavar="PATH")

    admin_api_key: str | None = option(
        None,
        KEYS,
        "the key for administration; or set SGLANG_OMNI_ROUTER_ADMIN_API_KEY. Without one, only clients on "
        "this machine may administer the router",
        metavar="KEY",
    )
    admin_api_key_file: str | None = option(None, KEYS, "a file with that key", metavar="PATH")
    allowed_hosts: list[str] = option(
        [],
        KEYS,
        "host names of administration requests, beside addresses, localhost and --host; * for any",
        metavar="NAME",
    )
    expose_worker_urls: bool = option(
        False, KEYS, "name workers by their URLs in answers, errors and metrics, instead of by their ids"
    )

    log_level: str = option(
        "info", LOGS, "debug, info, warn or error: lines below it are not logged", metavar="LEVEL"
    )
    log_format: str = option("text", LOGS, "text, or json for one object a line", metavar="FORMAT")
    access_log: bool = option(False, LOGS, "log every request when it ends")
    otlp_traces_endpoint: str | None = option(
        None,
        LOGS,
        "the URL of an OpenTelemetry collector that gets a span of each request, as OTLP over HTTP; or set "
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        metavar="URL",
    )
    request_id_headers: list[str] = option(
        [],
        LOGS,
        "headers that may hold a request's id, read in order and before x-request-id",
        metavar="NAME",
    )
