"""Errors of the service, as clients raise them; those of a request are ``sglang_omni.proto.RequestError``."""

from __future__ import annotations


class ClientError(RuntimeError):
    """The service failed, or its answer cannot be read.

    If the request is at fault, :class:`sglang_omni.proto.RequestError` is raised instead.

    Attributes:
        status: The HTTP status, if the failure came over HTTP.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ServerUnreachable(ClientError):
    """No server listens at the base URL, or its name is unknown."""


class NoAudioError(ClientError):
    """The model ended its speech before there was any audio."""

    def __init__(self) -> None:
        super().__init__(
            "the model ended its speech before its first frame of audio: "
            "try another seed, temperature or voice, or other words"
        )
