"""The sizes of a tiny checkpoint, and its ``config.json`` in the published form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_omni.models.tiny_shapes import option


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
        """``config.json``.

        Args:
            ids: Of special tokens and of "user".
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
            "position_id_per_seconds": 25,
            "seconds_per_chunk": 2,
        }
        return {
            "architectures": ["Qwen2_5OmniModel"],
            "model_type": "qwen2_5_omni",
            "dtype": "float32",
            "enable_audio_output": bool(self.talker),
            "enable_talker": bool(self.talker),
            "thinker_config": {
                **media,
                "model_type": "qwen2_5_omni_thinker",
                "user_token_id": ids["user"],
                "eos_token_id": ids["<|im_end|>"],
                "pad_token_id": ids["<|endoftext|>"],
                "audio_config": self._audio(),
                "vision_config": self._vision(),
                "text_config": {
                    "model_type": "qwen2_5_omni_text",
                    "vocab_size": self.vocab_size,
                    "hidden_size": self.hidden,
                    "intermediate_size": 3 * self.hidden // 2,
                    "num_hidden_layers": self.layers,
                    "num_attention_heads": self.heads,
                    "num_key_value_heads": self.kv_heads,
                    **self._decoder(self.hidden // self.heads),
                },
            },
            "talker_config": {
                **media,
                # Published checkpoints have the thinker's value; another one shows a confusion of the two.
                "position_id_per_seconds": 2 * media["position_id_per_seconds"],
                "model_type": "qwen2_5_omni_talker",
                "vocab_size": self.codes + 24,
                "embedding_size": self.hidden,
                "hidden_size": self.talker_hidden,
                "intermediate_size": 2 * self.talker_hidden,
                "num_hidden_layers": self.talker_layers,
                "num_attention_heads": self.talker_heads,
                "num_key_value_heads": self.talker_heads // 2,
                "head_dim": self.talker_head_dim,
                **self._decoder(self.talker_head_dim),
                "tts_text_pad_token_id": first_speech_id,
                "tts_text_start_token_id": first_speech_id,
                "tts_text_end_token_id": first_speech_id + 1,
                "tts_codec_pad_token_id": self.codes + 12,
                "tts_codec_start_token_id": self.codes + 13,
                "tts_codec_end_token_id": self.codes + 14,
                "tts_codec_mask_token_id": self.codes + 16,
                "spatial_merge_size": 2,
            },
            "token2wav_config": {
                "model_type": "qwen2_5_omni_token2wav",
                "dit_config": self._dit(),
                "bigvgan_config": self._vocoder(),
            },
        }

    def _decoder(self, head_dim: int) -> dict[str, Any]:
        # The published split of 64 frequencies is 16 for time, 24 each for height and width.
        side = head_dim // 2 * 24 // 64
        return {
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "mrope_section": [head_dim // 2 - 2 * side, side, side],
                "rope_type": "default",
                "type": "default",
            },
            "rope_theta": 1000000.0,
            "sliding_window": 32768,
            "use_sliding_window": False,
            "max_window_layers": 28,
            "attention_dropout": 0.0,
            "use_cache": True,
        }

    def _audio(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2_5_omni_audio_encoder",
            "activation_function": "gelu",
            "d_model": 32,
            "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "encoder_layers": self.audio_layers,
            "max_source_positions": 1500,
            "n_window": 100,
            "num_mel_bins": 128,
            "output_dim": self.hidden,
            "scale_embedding": False,
        }

    def _vision(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2_5_omni_vision_encoder",
            "depth": self.vision_depth,
            "hidden_act": "silu",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 4,
            "in_channels": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "out_hidden_size": self.hidden,
            "fullatt_block_indexes": list(range(1, self.vision_depth, 2)),
        }

    def _dit(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2_5_omni_dit",
            "hidden_size": self.dit_hidden,
            "num_hidden_layers": self.dit_layers,
            "num_attention_heads": self.dit_heads,
            "head_dim": self.dit_hidden // self.dit_heads,
            "ff_mult": 2,
            "emb_dim": 16,
            "rope_theta": 10000.0,
            "max_position_embeddings": 32768,
            "block_size": self.block_size,
            "look_ahead_layers": [self.dit_layers // 2],
            "look_backward_layers": [0, self.dit_layers - 1],
            "repeats": 2,
            "num_embeds": self.codes + 1,
            "mel_dim": self.mel_bins,
            "dropout": 0.1,
            "enc_emb_dim": self.speaker_dim,
            "enc_dim": 8,
            "enc_channels": [16, 16, 16, 16, 48],
            "enc_kernel_sizes": [5, 3, 3, 3, 1],
            "enc_dilations": [1, 2, 3, 4, 1],
            "enc_attention_channels": 8,
            "enc_res2net_scale": 2,
            "enc_se_channels": 8,
        }

    def _vocoder(self) -> dict[str, Any]:
        return {
            "model_type": "qwen2_5_omni_bigvgan",
            "mel_dim": self.mel_bins,
            "upsample_initial_channel": self.vocoder_dim,
            "resblock_kernel_sizes": [3, 7, 11],
            "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
            "upsample_rates": [10, 6, 4],
            "upsample_kernel_sizes": [20, 12, 8],
        }
