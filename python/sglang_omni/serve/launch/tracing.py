"""Where spans of requests go, if anywhere, by flag or by OpenTelemetry's environment variables."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.parse import urlsplit

_INSTALL = 'pip install "sgl-omni[otel]"'


@dataclass(frozen=True)
class Tracing:
    """Spans go to a collector. ``endpoint``: its URL for traces; None for what the environment says."""

    endpoint: str | None


def take_tracing(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Tracing | None:
    """What the flag and the environment say; ends the program if that cannot be done."""
    env = os.environ
    given: str | None = args.otlp_traces_endpoint
    named = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    is_off = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER") == "none"
    if is_off or not (given or named):
        return None
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "http/protobuf"):
        parser.error(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is not supported; use http/protobuf")
    if given is not None:
        parts = urlsplit(given)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            parser.error(
                f"--otlp-traces-endpoint: {given!r} is not an http(s) URL like http://localhost:4318/v1/traces"
            )
        if parts.path in ("", "/"):
            given = parts._replace(path="/v1/traces").geturl()
    if not _is_installed():
        parser.error(f"--otlp-traces-endpoint: OpenTelemetry is not installed; {_INSTALL}")
    return Tracing(given)


def _is_installed() -> bool:
    try:
        return all(map(find_spec, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        return False
