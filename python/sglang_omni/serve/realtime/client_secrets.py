"""Keys for a short time, with which a client that must not have the server's own opens sessions."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from sglang_omni.proto import RequestError
from sglang_omni.serve.realtime.config import SessionConfig

PREFIX = "ek_"
_MAX_SECRETS = 10_000


@dataclass(frozen=True)
class ClientSecret:
    """
    Attributes:
        owner: Of the one who asked for it, to whom its sessions belong.
        config: What its sessions begin with.
        expires_at: Unix time, after which it opens none.
    """

    value: str
    owner: str | None
    config: SessionConfig
    expires_at: int


class ClientSecrets:
    """Those of one server, which forgets them when it stops."""

    def __init__(self) -> None:
        self._secrets: OrderedDict[str, ClientSecret] = OrderedDict()

    def create(self, owner: str | None, config: SessionConfig, seconds: int) -> ClientSecret:
        """
        Raises:
            RequestError: 429: there are as many as there may be.
        """
        now = time.time()
        for value in [value for value, secret in self._secrets.items() if secret.expires_at < now]:
            del self._secrets[value]
        if len(self._secrets) >= _MAX_SECRETS:
            raise RequestError(
                f"{_MAX_SECRETS} client secrets are valid, the limit; try again later",
                code="rate_limit_exceeded",
                status=429,
            )
        secret = ClientSecret(PREFIX + secrets.token_urlsafe(32), owner, config, int(now) + seconds)
        self._secrets[secret.value] = secret
        return secret

    def find(self, shown: str) -> ClientSecret | None:
        """The secret of this value, if it is still valid. What is looked up is too long to be guessed."""
        secret = self._secrets.get(shown)
        return secret if secret is not None and secret.expires_at >= time.time() else None
