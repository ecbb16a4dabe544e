"""Failures that are not the request's: of the service, and of an answer that lacks what was asked for."""

from __future__ import annotations

from sglang_omni.proto import RequestError


class ClientError(RuntimeError):
    """The service failed, or its answer cannot be read.

    If the request is at fault, :class:`sglang_omni.proto.RequestError` is raised instead.

    Attributes:
        status: The HTTP status, if the failure came over HTTP.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NoAudioError(ClientError):
    """The model ended its speech before there was any audio."""

    def __init__(self) -> None:
        super().__init__(
            "the model ended its speech before its first frame of audio: "
            "try another seed, temperature or voice, or other words"
        )


def no_audio(finish_reason: str | None) -> ClientError | RequestError:
    """Why there is no audio in an answer that ended so. An abort is neither the model's nor the server's."""
    if finish_reason != "abort":
        return NoAudioError()
    return RequestError(
        "the request was aborted before there was any audio", code="request_aborted", status=499
    )
