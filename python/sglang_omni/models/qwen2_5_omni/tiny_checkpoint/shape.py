"""The sizes of a tiny checkpoint, and its ``config.json``: the published one, with these sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_omni.models.tiny.shapes import option
from sglang_omni.published import published_model, shrunk


@dataclass(frozen=True)
class OmniShape:
    """The sizes of a checkpoint; each is an option of ``make-tiny-checkpoint``."""

    vocab_size: int = option(640, "tokens of the thinker's vocabulary, those of voices included")
    layers: int = option(2, "the thinker's layers")
    hidden: int = option(64, "the thinker's hidden size")
    heads: int = option(4, "the thinker's attention heads")
    kv_heads: int = option(2, "its key and value heads")
    context: int = option(32768, "longest prompt and answer, in tokens")
    vision_depth: int = option(3, "layers of the vision encoder, of which every second sees whole frames")
    audio_layers: int = option(2, "layers of the audio encoder")
    talker_layers: int = option(2, "the talker's layers")
    talker_hidden: int = option(48, "the talker's hidden size")
    talker_heads: int = option(4, "the talker's attention heads, an even number")
    talker_head_dim: int = option(16, "size of each of these")
    codes: int = option(96, "the codec's codes")
    dit_layers: int = option(4, "layers of the codec's transformer")
    dit_hidden: int = option(32, "its hidden size")
    dit_heads: int = option(2, "its attention heads")
    block_size: int = option(24, "mel frames of a block, an even number")
    mel_bins: int = option(16, "numbers of a mel frame, a multiple of 16")
    speaker_dim: int = option(12, "numbers of a speaker's vector")
    vocoder_dim: int = option(32, "channels of the vocoder, a multiple of 8")
    talker: int = option(1, "0 for a model that only writes")
    shard_kb: int = option(600, "size of a safetensors file")

    def config(self, ids: Mapping[str, int], first_speech_id: int) -> dict[str, Any]:
        """``config.json``: the published one with these sizes.

        Args:
            ids: Of added tokens and of "user".
            first_speech_id: Behind the tokenizer's ids: of the text's padding; then the text's end.
        """
        media = {
            "audio_token_index": ids["<|AUDIO|>"],
            "audio_start_token_id": ids["<|audio_bos|>"],
            "audio_end_token_id": ids["<|audio_eos|>"],
            "image_token_index": ids["<|IMAGE|>"],
            "video_token_index": ids["<|VIDEO|>"],
            "vision_start_token_id": ids["<|vision_bos|>"],
            "vision_end_token_id": ids["<|vision_eos|>"],
        }
        published = published_model("qwen2_5_omni").config()
        seconds = published["talker_config"]["position_id_per_seconds"]
        config = shrunk(
            published,
            {
                "torch_dtype": "float32",
                "enable_audio_output": bool(self.talker),
                "enable_talker": bool(self.talker),
                "thinker_config": {
                    **media,
                    "torch_dtype": "float32",
                    "user_token_id": ids["user"],
                    "bos_token_id": ids["<|im_start|>"],
                    "eos_token_id": ids["<|im_end|>"],
                    "pad_token_id": ids["<|endoftext|>"],
                    "vision_token_id": ids["<|vision_pad|>"],
                    "audio_config": {
                        "d_model": 32,
                        "encoder_attention_heads": 4,
                        "encoder_ffn_dim": 64,
                        "encoder_layers": self.audio_layers,
                        "num_hidden_layers": self.audio_layers,
                        "output_dim": self.hidden,
                    },
                    "vision_config": {
                        "depth": self.vision_depth,
                        "embed_dim": 32,
                        "hidden_size": 32,
                        "intermediate_size": 48,
                        "num_heads": 4,
                        "out_hidden_size": self.hidden,
                        "fullatt_block_indexes": list(range(1, self.vision_depth, 2)),
                    },
                    "text_config": {
                        "vocab_size": self.vocab_size,
                        "hidden_size": self.hidden,
                        "intermediate_size": 3 * self.hidden // 2,
                        "num_hidden_layers": self.layers,
                        "num_attention_heads": self.heads,
                        "num_key_value_heads": self.kv_heads,
                        "max_position_embeddings": self.context,
                        "rope_scaling": {"mrope_section": _thinker_section(self.hidden // self.heads)},
                    },
                },
                "talker_config": {
                    **media,
                    "torch_dtype": "float32",
                    # Another than the thinker's, which published ones have, shows a confusion of the two.
                    "position_id_per_seconds": 2 * seconds,
                    "vocab_size": self.codes + 24,
                    "embedding_size": self.hidden,
                    "hidden_size": self.talker_hidden,
                    "intermediate_size": 2 * self.talker_hidden,
                    "num_hidden_layers": self.talker_layers,
                    "num_attention_heads": self.talker_heads,
                    "num_key_value_heads": self.talker_heads // 2,
                    "head_dim": self.talker_head_dim,
                    "max_position_embeddings": self.context,
                    "rope_scaling": {"mrope_section": _talker_section(self.talker_head_dim)},
                    "tts_text_pad_token_id": first_speech_id,
                    "tts_text_start_token_id": first_speech_id,
                    "tts_text_end_token_id": first_speech_id + 1,
                    "tts_codec_pad_token_id": self.codes + 12,
                    "tts_codec_start_token_id": self.codes + 13,
                    "tts_codec_end_token_id": self.codes + 14,
                    "tts_codec_mask_token_id": self.codes + 16,
                },
                "token2wav_config": {"dit_config": self._dit(), "bigvgan_config": self._vocoder()},
            },
        )
        config["token2wav_config"]["dit_config"] |= self._unpublished()
        return config

    def _dit(self) -> dict[str, Any]:
        return {
            "depth": self.dit_layers,
            "dim": self.dit_hidden,
            "heads": self.dit_heads,
            "head_dim": self.dit_hidden // self.dit_heads,
            "emb_dim": 16,
            "num_embeds": self.codes + 1,
            "mel_dim": self.mel_bins,
            "enc_emb_dim": self.speaker_dim,
            "enc_dim": 8,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_attention_channels": 8,
            "enc_se_channels": 8,
        }

    def _unpublished(self) -> dict[str, Any]:
        """What published checkpoints leave to defaults, which would be as large as theirs."""
        return {
            "hidden_size": self.dit_hidden,
            "num_hidden_layers": self.dit_layers,
            "num_attention_heads": self.dit_heads,
            "block_size": self.block_size,
            "look_ahead_layers": [self.dit_layers // 2],
            "look_backward_layers": [0, self.dit_layers - 1],
        }

    def _vocoder(self) -> dict[str, Any]:
        return {
            "mel_dim": self.mel_bins,
            "upsample_initial_channel": self.vocoder_dim,
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
            "upsample_rates": [10, 6, 4],
            "upsample_kernel_sizes": [20, 12, 8],
        }


def _thinker_section(head_dim: int) -> list[int]:
    """The published split of 64 frequencies is 16 for time, 24 each for height and width."""
    side = head_dim // 2 * 24 // 64
    return [head_dim // 2 - 2 * side, side, side]


def _talker_section(head_dim: int) -> list[int]:
    """The published split of 32 frequencies is 16 each for time and height."""
    half = head_dim // 2
    return [half - half // 2, half // 2, 0]
