"""A tiny Qwen3-Omni as strangers meet it: made and served by `sgl-omni`, asked by `openai` and our clients.

For an environment that has the wheel: every answer to text, image and audio must be the oracle's, whole and
streamed.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from openai import OpenAI
from qwen3_omni_cases import Case, all_cases
from qwen3_omni_oracle import Oracle, OracleAnswer
from served_process import served_process

from sglang_omni import Client, SyncClient
from sglang_omni.client import GenerateRequest, SamplingParams
from sglang_omni.generation.audio import decode_pcm, decode_wav

SGL_OMNI = Path(sys.executable).with_name("sgl-omni")
# What `openai` has arguments for; the rest of a body goes beside them.
OPENAI_FIELDS = ("messages", "modalities", "audio", "max_tokens", "temperature")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = folder / "checkpoint"
        subprocess.run([SGL_OMNI, "make-tiny-checkpoint", "qwen3_omni", checkpoint], check=True)
        oracle = Oracle.load(checkpoint)
        (asked,) = [case for case in all_cases() if case.name == "image+audio"]
        case, right = asked.spoken_by(oracle)
        start = ("--model-path", str(checkpoint))
        with served_process(folder / "log", *start, program=(str(SGL_OMNI), "serve")) as server:
            url = server.base_url
            openai_whole(url, case, right)
            openai_streamed(url, case, right)
            asyncio.run(client(url, case, right))
            sync_client(url, case, right)
    print(
        "openai (whole, streamed), Client and SyncClient: text, tokens, codes and samples are transformers'"
    )


def openai_whole(url: str, case: Case, right: OracleAnswer) -> None:
    with OpenAI(base_url=f"{url}/v1", api_key="none") as api:
        own = {name: value for name, value in case.chat_body.items() if name in OPENAI_FIELDS}
        rest = {name: value for name, value in case.chat_body.items() if name not in own}
        answer = api.chat.completions.create(model=api.models.list().data[0].id, extra_body=rest, **own)
    choice = answer.choices[0]
    equal(choice.token_ids, right.token_ids)
    equal(choice.message.content, right.text)
    equal(choice.message.audio.codes, right.codes)
    samples, _ = decode_wav(base64.b64decode(choice.message.audio.data))
    sounds_like(samples, right)


def openai_streamed(url: str, case: Case, right: OracleAnswer) -> None:
    body = {**case.chat_body, "audio": {"voice": case.speaker, "format": "pcm16"}}
    del body["return_token_ids"]
    own = {name: value for name, value in body.items() if name in OPENAI_FIELDS}
    rest = {name: value for name, value in body.items() if name not in own}
    with OpenAI(base_url=f"{url}/v1", api_key="none") as api:
        model = api.models.list().data[0].id
        stream = api.chat.completions.create(model=model, stream=True, extra_body=rest, **own)
        deltas = [chunk.choices[0].delta.model_dump() for chunk in stream if chunk.choices]
    spoken = [delta["audio"] for delta in deltas if delta.get("audio")]
    pieces = [base64.b64decode(part["data"]) for part in spoken if part.get("data")]
    text = [delta["content"] for delta in deltas if delta.get("content")]
    assert len(text) > 1, "the answer came at once"
    equal("".join(text), right.text)
    equal("".join(part.get("transcript") or "" for part in spoken), right.text)
    sounds_like(decode_pcm(b"".join(pieces)), right)


async def client(url: str, case: Case, right: OracleAnswer) -> None:
    async with Client(url) as api:
        done = await api.completion(request(case))
    equal(done.text, right.text)
    assert done.audio is not None
    samples, _ = decode_wav(base64.b64decode(done.audio.data))
    sounds_like(samples, right)


def sync_client(url: str, case: Case, right: OracleAnswer) -> None:
    with SyncClient(url) as api:
        chunks = list(api.completion_stream(request(case), audio_format="pcm16"))
    equal("".join(chunk.text or "" for chunk in chunks), right.text)
    pieces = [base64.b64decode(chunk.audio_b64) for chunk in chunks if chunk.audio_b64]
    sounds_like(decode_pcm(b"".join(pieces)), right)


def request(case: Case) -> GenerateRequest:
    params = case.params
    return GenerateRequest(
        messages=case.messages,
        max_tokens=case.max_tokens,
        sampling=SamplingParams(temperature=params["temperature"]),
        stage_params=params["stage_params"],
        output_modalities=["text", "audio"],
        extra_params={
            "voice": case.speaker,
            "talker_temperature": params["talker_temperature"],
            "talker_max_new_tokens": params["talker_max_new_tokens"],
        },
    )


def equal(ours: object, theirs: object) -> None:
    assert ours == theirs, f"{ours!r} is not the oracle's {theirs!r}"


def sounds_like(samples: np.ndarray, right: OracleAnswer) -> None:
    """16 bits each way, of which float32's last ones may round differently."""
    assert samples.shape == right.waveform.shape, f"{samples.shape} samples, not {right.waveform.shape}"
    np.testing.assert_allclose(samples, right.waveform, rtol=0, atol=2.01 / 32768)


if __name__ == "__main__":
    main()
