"""The server's keys: as flags, as files, and in the environment, where `ps` does not show them."""

from __future__ import annotations

import argparse
import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sglang_omni.serve.front.access import Access

API_KEY = "SGLANG_OMNI_API_KEY"
ADMIN_API_KEY = "SGLANG_OMNI_ADMIN_API_KEY"
# A fleet's replicas have no business with what their router reads from there.
_ROUTERS = (
    "SGLANG_OMNI_ROUTER_API_KEY",
    "SGLANG_OMNI_ROUTER_WORKER_API_KEY",
    "SGLANG_OMNI_ROUTER_ADMIN_API_KEY",
)


def take_access(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Access:
    """The keys that were given. Those of the environment are taken out of it: no child inherits them.

    Exits through ``parser`` if one can be no key, or is given twice.
    """
    given, admin_given = os.environ.pop(API_KEY, ""), os.environ.pop(ADMIN_API_KEY, "")
    try:
        tenants = _tenants(_lines("--api-key-file", args.api_key_file))
        keys = [*args.api_key, *tenants]
        admin_keys = _lines("--admin-api-key-file", args.admin_api_key_file)
    except (OSError, ValueError) as exc:
        parser.error(exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc))
    if args.admin_api_key is not None:
        admin_keys.append(args.admin_api_key)
    if len(admin_keys) > 1:
        parser.error("--admin-api-key: there is to be one, in the flag or as the one line of its file")
    keys = keys or given.split()
    admin_keys = admin_keys or admin_given.split()
    if not all(_is_key(key) for key in (*keys, *admin_keys)):
        parser.error("--api-key: a key is empty or has other characters than visible ASCII ones")
    return Access(
        api_keys=tuple(dict.fromkeys(keys)),
        admin_key=admin_keys[0] if admin_keys else None,
        host=args.host,
        allowed_hosts=tuple(args.allowed_hosts),
        tenants={key: tenant for key, tenant in tenants.items() if tenant},
        allowed_origins=tuple(args.allowed_origins),
    )


def routers_keys(
    parser: argparse.ArgumentParser, access: Access, router: Mapping[str, Any], key_file: Path | None = None
) -> dict[str, Any]:
    """A fleet's router's fields with the server's keys, which are the router's there.

    Args:
        parser, access, router: The command line's.
        key_file: What the router reads the keys of tenants from, and their names.

    Exits through ``parser`` if both are given.
    """
    fields: dict[str, Any] = {}
    if access.api_keys:
        fields["api_key"] = [key for key in access.api_keys if key not in access.tenants]
    if access.tenants:
        fields["api_key_file"] = str(key_file)
    if access.admin_key is not None:
        fields["admin_api_key"] = access.admin_key
    if access.allowed_hosts:
        fields["allowed_hosts"] = list(access.allowed_hosts)
    for name in [name for name in fields if not name.endswith("_file")]:
        for own in (name, f"{name}_file"):
            if own in router:
                flag = name.replace("_", "-")
                parser.error(
                    f"--{flag} and --router-{own.replace('_', '-')} are the same in a fleet: give one"
                )
    return {**router, **fields}


def runs_key(router: Mapping[str, Any], secret: bytes | None = None) -> tuple[str, dict[str, Any]]:
    """The key that a fleet's replicas ask of their router, and the router's fields with it.

    It is what the router was to show its workers anyhow, or else a new random one.

    Args:
        secret: The key is made from it in the place of a random one. Owners are hashes with this key, too:
            what they keep outlives the run only if the key does.
    """
    fields = dict(router)
    in_file = _lines("--router-worker-api-key-file", fields.pop("worker_api_key_file", None))
    key = fields.get("worker_api_key") or " ".join(in_file) or os.environ.get(_ROUTERS[1])
    made = secrets.token_urlsafe(32) if secret is None else hmac.digest(secret, b"fleet", "sha256").hex()
    fields["worker_api_key"] = key or made
    return fields["worker_api_key"], fields


def replicas_environment(run_key: str) -> dict[str, str]:
    """This process's, with the key of the run and none of the router's."""
    kept = {name: value for name, value in os.environ.items() if name not in _ROUTERS}
    return {**kept, API_KEY: run_key, ADMIN_API_KEY: run_key}


def _tenants(lines: Iterable[str]) -> dict[str, str]:
    """The tenant of each key, empty for a key without one, from lines ``KEY`` or ``TENANT KEY``.

    Raises:
        ValueError: A key belongs to two.
    """
    tenants: dict[str, str] = {}
    for line in lines:
        tenant, _, key = line.rpartition(" ")
        tenant = tenant.strip()
        if tenants.setdefault(key, tenant) != tenant:
            raise ValueError(f"--api-key-file: one key is that of {tenants[key]!r} and of {tenant!r}")
    return tenants


def _lines(flag: str, path: str | Path | None) -> list[str]:
    """
    Raises:
        OSError, ValueError: It cannot be read, or holds no key; the text names flag and file.
    """
    if path is None:
        return []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as exc:
        raise OSError(exc.errno, f"{flag}: cannot read {path}: {exc.strerror}") from exc
    found = [line.strip() for line in text.splitlines() if line.strip()]
    if not found:
        raise ValueError(f"{flag}: {path} holds no key")
    return found


def _is_key(key: str) -> bool:
    return key.isascii() and key.isprintable() and " " not in key and bool(key)
