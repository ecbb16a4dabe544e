"""Who may use and administer a server: the keys and the host names that ``Guard`` checks."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Access:
    """
    Attributes:
        api_keys: Keys of clients, who must show one of them; no key is asked for if this is empty.
        admin_key: Opens everything. Without one, only this machine may administer the server.
        host: The address the server listens on, which is also a name it may be administered by.
        allowed_hosts: Further such names; ``*`` for any.
        tenants: The tenant that a key belongs to, by key. All keys of a tenant are one owner.
        allowed_origins: Origins of web pages that may use the server; ``*`` for any.
        owner_secret: Owners are hashes with it, the same in all of the server's processes.
    """

    api_keys: tuple[str, ...] = ()
    admin_key: str | None = None
    host: str = ""
    allowed_hosts: tuple[str, ...] = ()
    tenants: Mapping[str, str] = field(default_factory=dict)
    allowed_origins: tuple[str, ...] = ()
    owner_secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False, compare=False)
