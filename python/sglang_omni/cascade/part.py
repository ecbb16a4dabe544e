"""What a part of a cascade is: bundled, a pipeline of this machine, or a server of OpenAI's API."""

from __future__ import annotations

import os
from typing import Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sglang_omni.config.schema.strict import Integer, Number, StrictModel

#: The environment variable that holds a server's key if no other is named.
DEFAULT_KEY_ENV = "OPENAI_API_KEY"

PartName = Literal["asr", "llm", "tts"]
PARTS: tuple[PartName, ...] = get_args(PartName)


class PartError(ValueError):
    """Why a part cannot be used, for the person who starts the cascade."""


class PartConfig(StrictModel, hide_input_in_errors=True):
    """One part of a cascade; the bundled model if neither ``url`` nor ``pipeline`` is set.

    Attributes:
        url: The base URL of a server with OpenAI's API, as ``http://127.0.0.1:8001/v1``.
        model: The model to name there; None for the only one that the server lists.
        api_key_env: The environment variable that holds the server's key. If it is not named, that is
            OPENAI_API_KEY, which may be unset. The key itself is in no config.
        voice: Of the part that speaks: the voice of requests that name none.
        pipeline: The config of a pipeline of this machine, as a config file holds it.
        silence_timeout: Seconds without anything from the part after which a request to it has failed.
        max_concurrency: Requests that it is given at once.
        max_retries: How often a request is sent again before the first byte of its answer, if the server
            cannot be reached, or answers 429 or 503.
    """

    url: str | None = None
    model: str | None = Field(default=None, min_length=1)
    api_key_env: str | None = Field(default=None, min_length=1)
    voice: str | None = Field(default=None, min_length=1)
    pipeline: dict[str, Any] | None = None
    silence_timeout: Number = Field(default=120.0, gt=0)
    max_concurrency: Integer = Field(default=64, ge=1)
    max_retries: Integer = Field(default=2, ge=0)

    @property
    def is_bundled(self) -> bool:
        """True for the model inside a Python package, or for the language model that ``model_path`` names."""
        return self.url is None and self.pipeline is None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        return url if url is None else checked_url(url)

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.url is not None and self.pipeline is not None:
            raise ValueError("url and pipeline exclude each other: a part is at one place")
        given = {name for name in ("model", "api_key_env") if getattr(self, name) is not None}
        if given and self.url is None:
            raise ValueError(f"{min(given)} is of a server: give its url too")
        return self


def checked_url(url: str) -> str:
    """``url``, if it can be that of a server.

    Raises:
        ValueError: It cannot, or it holds what does not belong into a config: a password or a key.
    """
    try:
        parts = urlsplit(url)
        # Reading the port is what finds a wrong one.
        port = parts.port
    except ValueError as exc:
        raise ValueError(f"{url!r} is no URL: {exc}") from None
    if parts.username is not None or parts.password is not None or parts.query:
        # Not quoted: it may hold a secret, and errors are logged.
        raise ValueError(
            "a part's URL must hold no user, password or query; the server's key belongs into an environment "
            "variable (api_key_env)"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment or port == 0:
        raise ValueError(f"{url!r} is no URL of a server; one looks like http://127.0.0.1:8001/v1")
    return url.rstrip("/")


def server_key(name: PartName, config: PartConfig) -> str | None:
    """The key that the environment has for a server; None if there is none and none is asked for.

    Raises:
        PartError: The variable that is named is not set, or holds what no header can.
    """
    env = config.api_key_env or DEFAULT_KEY_ENV
    key = os.environ.get(env, "").strip()
    if not key and config.api_key_env is not None:
        raise PartError(f"--{name}-api-key-env {env}: the environment has no variable of this name")
    if not (key.isascii() and key.isprintable()):
        raise PartError(f"the key in the environment variable {env} holds what no header can")
    return key or None
