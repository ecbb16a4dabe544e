"""The tensors of a random Qwen3-TTS checkpoint, by their published names: talker, voice encoder, codec.

A greedy speech varies with every part of its prompt, and its samples are neither silent nor clipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from sglang_omni.models.tiny.tensors import (
    TensorSpec,
    attention,
    conv,
    linear,
    norm,
    qwen3_decoder,
    scaled_layers,
    spread,
    wave_decoder,
)

_Config = Mapping[str, Any]
# Speech ends late rather than at once.
_RARE = 0.9
# A frame says more of the next one than the text does: otherwise speech would stand still.
_CODES = 1.4
# Sizes that published configs leave to the defaults of the authors' class.
_MEL_BINS, _KERNEL, _BRANCHES = 128, 5, 8


def model_specs(config: _Config) -> Iterator[TensorSpec]:
    """All tensors of the model that ``config`` (of ``config.json``) describes."""
    talker = config["talker_config"]
    predictor = talker["code_predictor_config"]
    hidden, text, inner = talker["hidden_size"], talker["text_hidden_size"], predictor["hidden_size"]
    vocab, codes = talker["vocab_size"], predictor["vocab_size"]
    yield TensorSpec("talker.model.text_embedding.weight", (talker["text_vocab_size"], text), 1.0)
    yield from linear("talker.text_projection.linear_fc1", text, text, gain=1.5, bias=True)
    yield from linear("talker.text_projection.linear_fc2", hidden, text, gain=1.5, bias=True)
    yield TensorSpec("talker.model.codec_embedding.weight", (vocab, hidden), _CODES)
    yield from qwen3_decoder("talker.model", talker)
    end = (talker["codec_eos_token_id"],)
    yield TensorSpec("talker.codec_head.weight", (vocab, hidden), spread(hidden, 2.0), 0.0, end, _RARE)
    if inner != hidden:
        yield from linear("talker.code_predictor.small_to_mtp_projection", inner, hidden, bias=True)
    yield from qwen3_decoder("talker.code_predictor.model", predictor)
    for group in range(predictor["num_code_groups"] - 1):
        yield TensorSpec(
            f"talker.code_predictor.model.codec_embedding.{group}.weight", (codes, hidden), _CODES
        )
        yield from linear(f"talker.code_predictor.lm_head.{group}", codes, inner, gain=2.0)
    if "speaker_encoder_config" in config:
        yield from _speaker_encoder("speaker_encoder", config["speaker_encoder_config"])


def codec_specs(config: _Config) -> Iterator[TensorSpec]:
    """All tensors of the codec that ``config`` (of its ``config.json``) describes."""
    yield from _mimi_encoder("encoder", config["encoder_config"])
    decoder = config["decoder_config"]
    hidden, latent, rows = decoder["hidden_size"], decoder["latent_dim"], decoder["codebook_dim"]
    for part, quantizers in (("rvq_first", 1), ("rvq_rest", decoder["num_quantizers"] - 1)):
        name, size = f"decoder.quantizer.{part}", rows // 2
        yield from conv(f"{name}.input_proj", size, rows, 1, bias=False)
        yield from conv(f"{name}.output_proj", rows, size, 1, bias=False)
        for i in range(quantizers):
            codebook = f"{name}.vq.layers.{i}._codebook"
            yield TensorSpec(f"{codebook}.cluster_usage", (decoder["codebook_size"],), 0.2, 1.0)
            yield TensorSpec(f"{codebook}.embedding_sum", (decoder["codebook_size"], size), 1.0)
    yield from conv("decoder.pre_conv.conv", latent, rows, 3)
    yield from linear("decoder.pre_transformer.input_proj", hidden, latent, bias=True)
    yield from scaled_layers("decoder.pre_transformer", decoder)
    yield from linear("decoder.pre_transformer.output_proj", latent, hidden, bias=True)
    yield from wave_decoder("decoder", latent, decoder)


def _speaker_encoder(name: str, config: _Config) -> Iterator[TensorSpec]:
    """ECAPA-TDNN: a convolution over mel bins, three blocks, statistics over time, and a projection."""
    channels = config["enc_channels"]
    first, last, inner = channels[0], channels[-1], config["enc_attention_channels"]
    # The bins of a quiet recording are large and nearly equal: their differences are what counts.
    yield from conv(f"{name}.blocks.0.conv", first, _MEL_BINS, _KERNEL, gain=0.5)
    for i, (inputs, out) in enumerate(pairwise(channels[:-1]), start=1):
        block, branch, squeezed = f"{name}.blocks.{i}", out // _BRANCHES, config["enc_se_channels"]
        yield from conv(f"{block}.tdnn1.conv", out, inputs, 1, gain=1.4)
        for part in range(_BRANCHES - 1):
            yield from conv(f"{block}.res2net_block.blocks.{part}.conv", branch, branch, 3, gain=1.4)
        yield from conv(f"{block}.tdnn2.conv", out, out, 1, gain=1.4)
        yield from conv(f"{block}.se_block.conv1", squeezed, out, 1)
        yield from conv(f"{block}.se_block.conv2", out, squeezed, 1)
    yield from conv(f"{name}.mfa.conv", last, last, 1, gain=1.4)
    yield from conv(f"{name}.asp.tdnn.conv", inner, 3 * last, 1)
    yield from conv(f"{name}.asp.conv", last, inner, 1)
    yield from conv(f"{name}.fc", config["enc_dim"], 2 * last, 1, gain=0.7)


def _mimi_encoder(name: str, config: _Config) -> Iterator[TensorSpec]:
    """Mimi without its way back to sound."""
    channels, kernel = config["num_filters"], config["kernel_size"]
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield from conv(f"{name}.encoder.layers.0.conv", channels, config["audio_channels"], kernel, gain=2.0)
    place = 1
    for ratio in reversed(config["upsampling_ratios"]):
        squeezed, block = channels // config["compress"], f"{name}.encoder.layers.{place}.block"
        yield from conv(f"{block}.1.conv", squeezed, channels, config["residual_kernel_size"], gain=2.0)
        yield from conv(f"{block}.3.conv", channels, squeezed, 1)
        # Between them and behind them are activations.
        yield from conv(
            f"{name}.encoder.layers.{place + 2}.conv", 2 * channels, channels, 2 * ratio, gain=2.0
        )
        channels *= 2
        place += 3
    yield from conv(
        f"{name}.encoder.layers.{place + 1}.conv", hidden, channels, config["last_kernel_size"], gain=2.0
    )
    for i in range(config["num_hidden_layers"]):
        layer = f"{name}.encoder_transformer.layers.{i}"
        yield from norm(f"{layer}.input_layernorm", hidden, bias=True)
        yield from attention(f"{layer}.self_attn", config)
        yield from norm(f"{layer}.post_attention_layernorm", hidden, bias=True)
        yield from linear(f"{layer}.mlp.fc1", inner, hidden, gain=1.5)
        yield from linear(f"{layer}.mlp.fc2", hidden, inner, gain=1.5)
        for part in ("self_attn", "mlp"):
            yield TensorSpec(f"{layer}.{part}_layer_scale.scale", (hidden,), 0.1, 0.5)
    yield from conv(f"{name}.downsample.conv", hidden, hidden, 4, gain=2.0, bias=False)
    semantic = config["num_semantic_quantizers"]
    for part, quantizers in (("semantic", semantic), ("acoustic", config["num_quantizers"] - semantic)):
        quantizer = f"{name}.quantizer.{part}_residual_vector_quantizer"
        size = config["vector_quantization_hidden_dimension"]
        yield from conv(f"{quantizer}.input_proj", size, hidden, 1, bias=False)
        yield from conv(f"{quantizer}.output_proj", hidden, size, 1, bias=False)
        for i in range(quantizers):
            codebook = f"{quantizer}.layers.{i}.codebook"
            yield TensorSpec(f"{codebook}.initialized", (1,), 0.0, 1.0)
            yield TensorSpec(f"{codebook}.cluster_usage", (config["codebook_size"],), 0.2, 1.0)
            yield TensorSpec(f"{codebook}.embed_sum", (config["codebook_size"], size), 1.0)
