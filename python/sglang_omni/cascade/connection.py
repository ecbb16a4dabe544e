"""The connection of a stage to its part: the client, the model's name there, and errors in words."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from sglang_omni.cascade.local import part_pipeline
from sglang_omni.cascade.part import DEFAULT_KEY_ENV, PartConfig, PartError, PartName, server_key
from sglang_omni.client import Client, ServerUnreachable
from sglang_omni.generation.answer import AnswerBuilder, GenerateChunk
from sglang_omni.generation.errors import ClientError
from sglang_omni.generation.local import LocalTransport
from sglang_omni.generation.request import GenerateRequest
from sglang_omni.pipeline.processes.runner import MultiProcessPipelineRunner
from sglang_omni.proto import RequestError

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_WHAT: dict[PartName, str] = {"asr": "speech recognition", "llm": "language model", "tts": "voice"}
_REFUSED_KEY = (401, 403)
_BAD_GATEWAY, _GATEWAY_TIMEOUT = 502, 504


class PartConnection:
    """Sends requests to a part.

    Args:
        name: Which part.
        config: Where it is.
        client: Of the server or pipeline.
        runner: Runs the pipeline; stopped by ``close``.

    Attributes:
        model: The name that requests give the model; None until it is known, and for a pipeline.
    """

    def __init__(
        self,
        name: PartName,
        config: PartConfig,
        client: Client,
        runner: MultiProcessPipelineRunner | None = None,
    ) -> None:
        self.name = name
        self._runner = runner
        self.config = config
        self.client = client
        self.model = config.model
        self._asking = asyncio.Lock()

    @classmethod
    async def to_server(cls, name: PartName, config: PartConfig) -> PartConnection:
        """Connects to a server, which need not be up yet.

        Raises:
            PartError: The server answers, and refuses the key, or does not say which model to name.
        """
        assert config.url is not None
        key = server_key(name, config)
        connection = cls(name, config, Client(config.url, api_key=key, max_retries=config.max_retries))
        try:
            await connection._find_model()
        except ClientError as exc:
            logger.warning("--%s %s does not answer yet: %s", name, config.url, exc)
        return connection

    @classmethod
    async def to_pipeline(cls, name: PartName, config: PartConfig) -> PartConnection:
        """Starts a pipeline of this machine, which ends with this process or by ``close``.

        Raises:
            RuntimeError: One of its stages could not be built.
            ConfigError: It cannot run.
        """
        runner = MultiProcessPipelineRunner(part_pipeline(name, config), within_stage=True)
        # How long a start may take is for the outer pipeline to say.
        await runner.start(timeout=math.inf)
        client = Client(runner.coordinator)
        if isinstance(client.transport, LocalTransport):
            client.transport.must_answer = True
        return cls(name, config, client, runner)

    async def parts(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        """``Transport.parts``, with the part's model and errors. Leaving it early ends the request there.

        Raises:
            RequestError: The request is refused, or the part failed: 502, or 504 if it is silent.
        """
        request = replace(request, model=await self._named())
        async with aclosing(self.client.transport.parts(request)) as parts:
            while True:
                try:
                    part = await self._in_time(anext(parts, None))
                except Exception as exc:
                    raise self.as_ours(exc) from exc
                if part is None:
                    return
                yield part

    async def whole(self, request: GenerateRequest) -> GenerateChunk:
        """The whole answer; errors are those of ``parts``."""
        answer = AnswerBuilder()
        async with aclosing(self.parts(request)) as parts:
            async for part in parts:
                answer.join(part)
        return answer.whole()

    async def close(self) -> None:
        await self.client.close()
        if self._runner is not None:
            await self._runner.stop()

    async def _named(self) -> str | None:
        if self.model is None and self.config.url is not None:
            async with self._asking:
                if self.model is None:
                    try:
                        await self._find_model()
                    except Exception as exc:
                        raise self.as_ours(exc) from exc
        return self.model

    async def _find_model(self) -> None:
        """Asks the server for its models.

        Raises:
            PartError: As of ``to_server``.
            ClientError: The server does not answer as one.
        """
        try:
            listed = [model.id for model in await self._in_time(self.client.models())]
        except RequestError as exc:
            if exc.status in _REFUSED_KEY:
                raise PartError(self._refused_key(exc)) from None
            if self.model is None:
                raise PartError(
                    f"--{self.name} {self.config.url}: its /v1/models says {exc.status} ({exc.message}); is "
                    f"the URL that of an API? If it lists no models, name one with --{self.name}-model"
                ) from None
            return
        if self.model is None:
            if len(listed) != 1:
                has = ", ".join(map(repr, listed[:20])) or "none"
                raise PartError(
                    f"--{self.name} {self.config.url} lists {len(listed)} models ({has}); choose one with "
                    f"--{self.name}-model"
                )
            self.model = listed[0]
            logger.info("--%s %s: the model is %r", self.name, self.config.url, self.model)
        elif self.model not in listed:
            logger.warning(
                "--%s-model %r is not among the models of %s: %s",
                self.name,
                self.model,
                self.config.url,
                ", ".join(listed[:20]),
            )

    async def _in_time(self, awaited: Awaitable[_T]) -> _T:
        async with asyncio.timeout(self.config.silence_timeout):
            return await awaited

    def as_ours(self, exc: Exception) -> Exception:
        """A failure in words for the caller of the cascade. The log has what is the operator's."""
        what = f"the {_WHAT[self.name]} of this pipeline (--{self.name})"
        if self.config.url is None and not isinstance(exc, TimeoutError):
            return exc
        if isinstance(exc, RequestError) and exc.status not in (*_REFUSED_KEY, 404, _BAD_GATEWAY):
            # The server's own words about the request; it spells fields as OpenAI does, as this one does.
            return exc
        logger.warning("--%s %s: %s", self.name, self.config.url or "(local)", exc or type(exc).__name__)
        if isinstance(exc, TimeoutError):
            why = "took too long" if str(exc) else f"was silent for {self.config.silence_timeout:g} s"
            text = f"{what} {why}; try again later"
            return RequestError(text, code="upstream_timeout", status=_GATEWAY_TIMEOUT)
        if isinstance(exc, ServerUnreachable):
            text = f"{what} is at a server that does not answer; try again later"
            return RequestError(text, code="upstream_unreachable", status=_BAD_GATEWAY)
        if isinstance(exc, PartError):
            text = f"{what} cannot be used as it is configured; the server's log says why"
            return RequestError(text, code="upstream_refused", status=_BAD_GATEWAY)
        if isinstance(exc, RequestError):
            why = (
                f"its server refuses the key ({exc.status})"
                if exc.status in _REFUSED_KEY
                else f"its server does not find {self.model!r} or the route ({exc.message})"
            )
            if exc.status in _REFUSED_KEY:
                logger.error("%s", self._refused_key(exc))
            text = f"{what} is not usable: {why}; the operator must fix it"
            return RequestError(text, code="upstream_refused", status=_BAD_GATEWAY)
        text = f"{what} failed in the middle of its answer or before it; try again"
        return RequestError(text, code="upstream_failed", status=_BAD_GATEWAY)

    def _refused_key(self, exc: RequestError) -> str:
        env = self.config.api_key_env or DEFAULT_KEY_ENV
        has = "has another one" if os.environ.get(env) else "is not set"
        return (
            f"--{self.name} {self.config.url} refuses the key ({exc.status}): the environment variable {env} "
            f"{has}; set it, or name another with --{self.name}-api-key-env"
        )
