"""``/tokenize`` and ``/detokenize``: the model's token ids of a text, and the text of token ids."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from sglang_omni.answers.chat import ChatPrompts
from sglang_omni.preprocessing.messages import parse_messages, with_parts
from sglang_omni.proto import OmniRequest, RequestError
from sglang_omni.serve.front.bodies import JsonRoute
from sglang_omni.serve.models.content import ChatMessage
from sglang_omni.serve.models.tokenize import DetokenizeRequest, TokenizeRequest
from sglang_omni.serve.state import AppState


def tokenize_routes(server: AppState) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> JSONResponse:
        """Token ids of a prompt or of messages, as a completion or a chat would have them."""
        server.check_model(body.model)
        _check(body)
        return JSONResponse(await server.prompts.run(lambda chats: _tokenized(chats, body)))

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> JSONResponse:
        """The text of token ids, control tokens included."""
        server.check_model(body.model)
        text = await server.prompts.run(lambda chats: _text(chats, body.tokens))
        return JSONResponse({"prompt": text})

    return router


def _tokenized(chats: ChatPrompts, body: TokenizeRequest) -> dict[str, Any]:
    encoder = chats.prompts
    if body.messages is None:
        ids = encoder.read_prompt(
            body.prompt or "",
            parse_special_tokens=body.parse_special_tokens,
            add_special_tokens=body.add_special_tokens is not False,
        )
    else:
        text = _rendered(chats, body, [message.model_dump(exclude_none=True) for message in body.messages])
        ids = encoder.tokenizer.encode(text, add_special_tokens=bool(body.add_special_tokens))
    return {
        "count": len(ids),
        "max_model_len": encoder.context_length,
        "tokens": ids,
        "token_strs": encoder.tokenizer.tokens(ids) if body.return_token_strs else None,
    }


def _rendered(chats: ChatPrompts, body: TokenizeRequest, turns: list[dict[str, Any]]) -> str:
    messages = with_parts(*parse_messages(turns, ()))
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    params = {"tools": tools, "chat_template_kwargs": body.chat_template_kwargs}
    text, _ = chats.render(messages, OmniRequest(inputs=None, params=params))
    return text


def _text(chats: ChatPrompts, token_ids: list[int]) -> str:
    encoder = chats.prompts
    for index, token_id in enumerate(token_ids):
        if token_id >= encoder.vocab_size:
            raise RequestError(
                f"tokens[{index}] is {token_id}; the vocabulary has the ids 0 to {encoder.vocab_size - 1}",
                param="tokens",
                code="invalid_value",
            )
    return encoder.tokenizer.decode(token_ids)


def _check(body: TokenizeRequest) -> None:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError(
            "give exactly one of prompt and messages",
            param="prompt",
            code="missing_required_parameter" if body.prompt is None else "invalid_value",
        )
    for name in ("chat_template_kwargs", "tools"):
        if body.messages is None and getattr(body, name):
            raise _of_no_use(name, "messages")
    if body.messages is not None and body.parse_special_tokens:
        raise _of_no_use("parse_special_tokens", "a prompt")
    for index, message in enumerate(body.messages or ()):
        _check_text(message, f"messages[{index}].content")


def _check_text(message: ChatMessage, where: str) -> None:
    for index, part in enumerate(message.content if isinstance(message.content, list) else ()):
        if part.type != "text":
            raise RequestError(
                f"{where}[{index}]: how many tokens a medium takes is known only to the pipeline's own "
                "stages; send text alone",
                param=f"{where}[{index}]",
                code="unsupported_value",
            )


def _of_no_use(param: str, needs: str) -> RequestError:
    return RequestError(f"{param}: only for {needs}", param=param, code="unsupported_parameter")
