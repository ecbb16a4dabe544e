"""What is fetched of published repositories, and what of their listings is left."""

from __future__ import annotations

from sglang_omni.published import published_model

_FP32 = (("model", "safetensors"), ("pytorch_model", "bin"))
# By published id: its family, and which of the files of its listing are not fetched to serve it.
LEFT: dict[str, tuple[str, list[str]]] = {
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": ("qwen3_omni", ["README.md"]),
    "Qwen/Qwen2.5-Omni-7B": ("qwen2_5_omni", ["README.md", "LICENSE", ".gitattributes"]),
    "sesame/csm-1b": (
        "csm",
        [
            *("README.md", ".gitattributes", "ckpt.pt", "model.safetensors"),
            *(f"prompts/conversational_{name}.wav" for name in "ab"),
            *(f"prompts/read_speech_{name}.wav" for name in "abcd"),
        ],
    ),
    "openai/whisper-large-v3": (
        "whisper",
        [
            # Of what is left of these, the indexes are small.
            *(f"{kind}.fp32-0000{number}-of-00002.{end}" for kind, end in _FP32 for number in (1, 2)),
            *("flax_model.msgpack", "pytorch_model.bin"),
        ],
    ),
    "openai/whisper-base": (
        "whisper",
        ["README.md", ".gitattributes", "flax_model.msgpack", "pytorch_model.bin", "tf_model.h5"],
    ),
    "fishaudio/s2-pro": ("fish_s2_pro", ["README.md", "LICENSE.md", ".gitattributes"]),
    "Qwen/Qwen3-ASR-0.6B": ("qwen3_asr", ["README.md"]),
    "mistralai/Voxtral-Mini-4B-Realtime-2602": ("voxtral_realtime", ["consolidated.safetensors"]),
    **{
        f"Qwen/Qwen3-TTS-12Hz-1.7B-{kind}": ("qwen3_tts", ["README.md", ".gitattributes"])
        for kind in ("Base", "CustomVoice", "VoiceDesign")
    },
    "hexgrad/Kokoro-82M": ("kokoro", ["README.md", "VOICES.md", ".gitattributes"]),
    "meta-llama/Llama-3.2-1B-Instruct": (
        "text",
        [
            *("README.md", ".gitattributes", "LICENSE.txt", "USE_POLICY.md"),
            *(f"original/{name}" for name in ("consolidated.00.pth", "params.json", "tokenizer.model")),
        ],
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": ("text", ["README.md", "LICENSE", ".gitattributes"]),
    "Qwen/Qwen3-0.6B": ("text", ["README.md", "LICENSE", ".gitattributes"]),
    "Qwen/Qwen3-30B-A3B": ("text", ["README.md", "LICENSE", ".gitattributes"]),
    "bosonai/higgs-audio-v2-generation-3B-base": (
        "higgs_audio_v2",
        [
            *("README.md", "LICENSE", ".gitattributes"),
            # In the authors' own layout.
            *(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
        ],
    ),
}


def fetched_of(repo: str) -> list[str]:
    """The files of a listing that are fetched, without config.json."""
    family, left = LEFT[repo]
    listing = published_model(family, repo).listing
    assert set(left) <= set(listing)
    return [name for name in listing if name not in (*left, "config.json")]
