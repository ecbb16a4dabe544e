"""Reads `/workers` and `/metrics` of a running router, and compares them over time."""

from __future__ import annotations

import json
import math
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 5.0
_PREFIX = "sglang_omni_router_"

# Routes that the router answers itself: their metrics say nothing about its work.
_OWN_ROUTES = ("/health", "/liveness", "/readiness", "/metrics", "/workers")

Labels = Mapping[str, str]


class RouterUnreachable(Exception):
    """The router did not answer; the text tells the reason."""


class NotARouter(Exception):
    """The answer is a refusal, or not a router's; the text tells what to do."""


@dataclass(frozen=True)
class Snapshot:
    """The router's state at one time.

    Attributes:
        at: Seconds of a monotonic clock.
        workers: Entries of `/workers`.
        values: Labels and value of each series, by metric without the common prefix.
    """

    at: float
    policy: str
    workers: list[dict[str, Any]]
    values: dict[str, list[tuple[Labels, float]]]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels; nan if there is none."""
        found = [value for had, value in self.values.get(name, []) if labels.items() <= had.items()]
        return sum(found) if found else math.nan

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Cumulative counts by upper bound, summed over all series with these labels."""
        counts: dict[float, float] = {}
        for had, value in self.values.get(f"{name}_bucket", []):
            if labels.items() <= had.items():
                bound = float(had["le"])
                counts[bound] = counts.get(bound, 0.0) + value
        return counts


@dataclass(frozen=True)
class Change:
    """The change between two snapshots."""

    before: Snapshot
    now: Snapshot

    def grown(self, name: str, **labels: str) -> float:
        """The growth of a counter; a new or restarted counter grew from 0."""
        now, before = self.now.total(name, **labels), self.before.total(name, **labels)
        return now if math.isnan(before) or before > now else now - before

    def rate(self, name: str, **labels: str) -> float:
        return self.grown(name, **labels) / max(self.now.at - self.before.at, 1e-9)

    def quantile(self, share: float, name: str, **labels: str) -> float:
        """The ``share`` quantile of the histogram's new observations; nan if there are none."""
        before, now = self.before.buckets(name, **labels), self.now.buckets(name, **labels)
        grown = [(bound, count - before.get(bound, 0.0)) for bound, count in sorted(now.items())]
        total = grown[-1][1] if grown else 0.0
        if total <= 0:
            return math.nan
        low, below = 0.0, 0.0
        for bound, count in grown:
            if count >= share * total:
                # The last bucket has only a lower end.
                within = (share * total - below) / (count - below) if count > below else 1.0
                return low if math.isinf(bound) else low + (bound - low) * within
            low, below = bound, count
        return low


class Router:
    """A client of a router's endpoints.

    Args:
        ca_cert: File with the certificate authority of the router's certificate, if the system does not know
            it.
    """

    def __init__(self, url: str, admin_api_key: str | None = None, ca_cert: str | None = None) -> None:
        self.url = url
        self._admin_api_key = admin_api_key
        # No proxies: the environment's are not meant for the router.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if ca_cert:
            context = ssl.create_default_context(cafile=ca_cert)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def read(self) -> Snapshot:
        """Reads the router's state.

        Raises:
            RouterUnreachable: The router does not answer now.
            NotARouter: The server needs a key, or is not a router.
        """
        try:
            listed = json.loads(self._get("/workers"))
            return Snapshot(
                at=time.monotonic(),
                policy=listed["policy"],
                workers=listed["workers"],
                values=parse(self._get("/metrics")),
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise NotARouter(f"what answers at {self.url} is not a sglang-omni router") from exc

    def _get(self, path: str) -> str:
        request = urllib.request.Request(self.url + path)
        if self._admin_api_key:
            request.add_header("Authorization", f"Bearer {self._admin_api_key}")
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as exc:
            if exc.code in (401, 403):
                raise NotARouter(f"{self.url} {self._hint(exc)}") from exc
            raise NotARouter(f"{self.url}{path} answered {exc.code}: is that a sglang-omni router?") from exc
        except OSError as exc:
            reason = getattr(exc, "reason", exc)
            if isinstance(reason, ssl.SSLCertVerificationError):
                text = (
                    f"the certificate of {self.url} is not trusted ({reason.verify_message}): give --ca-cert"
                )
                raise NotARouter(text) from exc
            raise RouterUnreachable(f"no router answers at {self.url}: {reason}") from exc

    def _hint(self, refused: urllib.error.HTTPError) -> str:
        """The reason of the refusal, and what to do."""
        if self._admin_api_key:
            return "does not take this --admin-api-key"
        if refused.code == 401:
            return "needs its admin key: give --admin-api-key"
        return f"does not show its workers here: {_message(refused)}"


def _message(refused: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(refused.read())["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(refused)


def parse(text: str) -> dict[str, list[tuple[Labels, float]]]:
    """Parses Prometheus' text format in the form that the router writes."""
    values: dict[str, list[tuple[Labels, float]]] = {}
    own = tuple(f'route="{path}"' for path in _OWN_ROUTES)
    for line in text.splitlines():
        if not line.startswith(_PREFIX) or any(route in line for route in own):
            continue
        series, value = line.removeprefix(_PREFIX).rsplit(" ", 1)
        name, _, rest = series.partition("{")
        values.setdefault(name, []).append((_labels(rest.removesuffix("}")), float(value)))
    return values


def _labels(text: str) -> Labels:
    pairs = (pair.partition('="') for pair in text.split('",') if pair)
    return {name: value.removesuffix('"') for name, _, value in pairs}
