"""A spoken answer, streamed: its words as they come, its sound into a file.

python examples/client_chat.py http://127.0.0.1:8000 "What is the capital of France?"
"""

from __future__ import annotations

import asyncio
import sys

from sglang_omni.client import Client, GenerateRequest, SamplingParams, Sound, save


async def main(url: str, question: str) -> None:
    request = GenerateRequest(
        messages=[{"role": "user", "content": question}],
        output_modalities=["text", "audio"],
        sampling=SamplingParams(temperature=0),
        max_tokens=60,
    )
    sound = []
    async with Client(url) as client:
        async for chunk in client.generate(request):
            if chunk.finish_reason is not None:
                # The last chunk is the whole result again.
                print(f"\n({chunk.finish_reason}, {chunk.usage.completion_tokens} tokens)")
                break
            print(chunk.text, end="", flush=True)
            if chunk.audio_data is not None:
                sound.append(Sound(chunk.audio_data, chunk.sample_rate))
    save("answer.wav", sound)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
