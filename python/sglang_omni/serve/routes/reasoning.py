"""The reasoning effort of a request, which clients send to any model."""

from __future__ import annotations

from sglang_omni.serve.state import AppState


async def usable_effort(server: AppState, effort: str | None, *, with_tools: bool, param: str) -> str | None:
    """The effort for the pipeline; None if there is none, or the model has no use for it, which is warned of.

    Args:
        with_tools: True if the request has tools, for which a model may have another chat template.
        param: The request's field.

    Raises:
        RequestError: The model has no use for it, and the server is strict.
    """
    if effort is None:
        return None
    if not server.takes("chat", "reasoning_effort"):
        server.ignore(param, "of no effect on this model's chat")
        return None
    if server.capabilities.chat_prompts is None:
        return effort
    why = await server.prompts.run(lambda chats: chats.no_effort(with_tools=with_tools))
    if why is None:
        return effort
    server.ignore(param, why)
    return None
