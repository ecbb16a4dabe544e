"""The codec's decoder: streams of any pieces equal the whole, which is the authors' package's."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_recorders import FakeRecorder
from qwen3_tts_oracle import Qwen3TTSOracle
from safetensors.torch import load_file, save_file
from scheduler_runs import running

from sglang_omni.models.codecs import streamed
from sglang_omni.models.frames.speech import SpeechParts
from sglang_omni.models.qwen3_tts.codec_stages import create_code2wav
from sglang_omni.models.qwen3_tts.components.codec import Qwen3TTSDecoder
from sglang_omni.models.qwen3_tts.components.codec_config import CodecConfig
from sglang_omni.models.qwen3_tts.memory import codec_demand
from sglang_omni.models.qwen3_tts.tiny_checkpoint import make
from sglang_omni.proto import OmniRequest, StagePayload
from sglang_omni.scheduling.code2wav_scheduler import Code2WavScheduler
from sglang_omni.scheduling.messages import IncomingMessage

FRAMES, STREAMS, GROUPS, SAMPLES = 40, 3, 4, 96
FOLDER = "speech_tokenizer"
# Of samples within [-1, 1]: the rounding of convolutions over longer or shorter inputs.
CLOSE = {"rtol": 0.0, "atol": 1e-5}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("qwen3-tts"), groups=GROUPS)


@pytest.fixture(scope="module")
def codec(path: Path) -> Qwen3TTSDecoder:
    return load(path)


def load(path: Path) -> Qwen3TTSDecoder:
    return Qwen3TTSDecoder.load(path, torch.float32, "cpu")


def random_codes(frames: int) -> torch.Tensor:
    return torch.randint(64, (STREAMS, GROUPS, frames), generator=torch.Generator().manual_seed(1))


def decoded(codec: Qwen3TTSDecoder, codes: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return codec(codes)


def in_pieces(codec: Qwen3TTSDecoder, codes: torch.Tensor, cuts: list[int]) -> torch.Tensor:
    streams = [codec.open_stream() for _ in codes]
    with torch.inference_mode():
        return torch.cat([codec.decode_batch(streams, piece) for piece in codes.split(cuts, -1)], -1)


def random_cuts(frames: int, longest: int) -> list[int]:
    chance, cuts = random.Random(frames), [0]
    while (left := frames - sum(cuts)) > 0:
        cuts.append(chance.randint(1, min(left, longest)))
    return cuts[1:]


@pytest.mark.long
@pytest.mark.parametrize("frames", [*range(1, FRAMES + 1), 700])
def test_samples_are_the_packages(path: Path, codec: Qwen3TTSDecoder, frames: int) -> None:
    codes = random_codes(frames)
    oracle = Qwen3TTSOracle(path)
    expected = torch.stack([torch.from_numpy(oracle.decode(each.t().numpy())) for each in codes])
    assert 0.01 < expected.abs().max() < 1
    torch.testing.assert_close(decoded(codec, codes)[:, 0], expected, **CLOSE)
    torch.testing.assert_close(in_pieces(codec, codes, random_cuts(frames, 17))[:, 0], expected, **CLOSE)


@pytest.mark.parametrize("cuts", [[1] * FRAMES, [2, 4, 8, 16, 10], random_cuts(700, 60)])
def test_pieces_are_the_whole(codec: Qwen3TTSDecoder, cuts: list[int]) -> None:
    codes = random_codes(sum(cuts))
    whole = decoded(codec, codes)
    assert (codec.sample_rate, codec.total_upsample, codec.num_groups) == (24_000, SAMPLES, GROUPS)
    assert whole.shape == (STREAMS, 1, SAMPLES * sum(cuts))
    torch.testing.assert_close(in_pieces(codec, codes, cuts), whole, **CLOSE)


def test_streams_at_different_places_are_decoded_together(codec: Qwen3TTSDecoder) -> None:
    codes = random_codes(FRAMES)
    whole = decoded(codec, codes)
    first, second = codec.open_stream(), codec.open_stream()
    with torch.inference_mode():
        # Longer than the transformer's window of 12 frames.
        first.decode(codes[:1, :, :17])
        both = codec.decode_batch([first, second], torch.cat((codes[:1, :, 17:23], codes[1:2, :, :6])))
    torch.testing.assert_close(both[0], whole[0, :, SAMPLES * 17 : SAMPLES * 23], **CLOSE)
    torch.testing.assert_close(both[1], whole[1, :, : SAMPLES * 6], **CLOSE)


def made_stage(path: Path, **args: Any) -> Code2WavScheduler:
    return create_code2wav(str(path), num_threads=1, **args)


@pytest.mark.parametrize("count", [0, 1, 37])
def test_speech_continues_the_recording(path: Path, codec: Qwen3TTSDecoder, count: int) -> None:
    codes = random_codes(count + FRAMES)[0].t()
    data: SpeechParts = {"parts": [], "opening": [], "reference_codes": codes[:count]}
    stage = made_stage(path)
    stage.inbox.put(IncomingMessage("r", "new_request", StagePayload("r", OmniRequest(None), data)))
    stage.inbox.put(IncomingMessage("r", "stream_chunk", Item(codes[count:])))
    stage.inbox.put(IncomingMessage("r", "stream_done"))
    with running(stage):
        chunks = []
        while (message := stage.outbox.get(timeout=60)).type == "stream":
            chunks.append(message.data["audio_data"])
    assert message.type == "result", message.data
    whole = decoded(codec, codes.t()[None])[0, 0].numpy()
    assert [len(chunk) // SAMPLES for chunk in chunks] == [2, 4, 8, 16, 10]
    np.testing.assert_allclose(np.concatenate(chunks), whole[SAMPLES * count :], **CLOSE)
    np.testing.assert_array_equal(message.data.data["codes"], codes[count:])


class Item:
    """What a stream carries."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data


def test_graphs_are_recorded_of_first_chunks_after_a_recording(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = FakeRecorder()
    monkeypatch.setattr(streamed, "recorder_for", lambda device, cuda_graph: recorder)
    codec = made_stage(path, chunk_size=4, max_batch_frames=4).model
    assert isinstance(codec, Qwen3TTSDecoder)
    stream, codes = codec.open_stream(), random_codes(8)[:1]
    with torch.inference_mode():
        pieces = [stream.decode(piece) for piece in codes.split([2, 4, 2], -1)]
    assert len(recorder.replayed) == 3
    torch.testing.assert_close(torch.cat(pieces, -1), decoded(load(path), codes), **CLOSE)


def changed_codec(path: Path, folder: Path, part: str | None = None, **fields: Any) -> Path:
    """The checkpoint's codec with other fields in its config.json, or in a part of it."""
    config = json.loads((path / FOLDER / "config.json").read_text())
    (config if part is None else config[part]).update(fields)
    (folder / FOLDER).mkdir()
    (folder / FOLDER / "config.json").write_text(json.dumps(config))
    (folder / FOLDER / "model.safetensors").symlink_to(path / FOLDER / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("part", "fields", "error"),
    [
        (None, {"model_type": "qwen3_tts_tokenizer_25hz"}, "model_type is 'qwen3_tts_tokenizer_25hz'"),
        (None, {"output_sample_rate": 48_000}, "output_sample_rate differ"),
        (None, {"decode_upsample_rate": 100}, "must be the product of upsample_rates"),
        (None, {"encoder_valid_num_quantizers": 3}, "must be the decoder's num_quantizers, 4"),
        ("decoder_config", {"hidden_act": "gelu"}, "hidden_act 'silu' is supported"),
        ("decoder_config", {"attention_bias": True}, "without attention_bias"),
        ("decoder_config", {"num_key_value_heads": 1}, "as many num_key_value_heads"),
        ("decoder_config", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "without rope_scaling"),
        ("decoder_config", {"num_hidden_layers": 3}, r"pre_transformer\.layers\.2"),
        ("decoder_config", {"num_hidden_layers": 1}, r"pre_transformer\.layers\.1"),
        ("decoder_config", {"hidden_size": 18}, r"asks for \(18"),
    ],
)
def test_another_codec_is_refused(
    path: Path, tmp_path: Path, part: str | None, fields: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        load(changed_codec(path, tmp_path, part, **fields))


def test_a_codec_that_is_missing_or_has_more_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="the codec is a part of the checkpoint"):
        load(tmp_path)
    file = changed_codec(path, tmp_path) / FOLDER / "model.safetensors"
    tensors = load_file(file)
    file.unlink()
    save_file({**tensors, "decoder.more.weight": torch.zeros(2)}, file)
    with pytest.raises(ValueError, match=r"decoder\.more\.weight"):
        load(tmp_path)


def test_defaults_are_the_packages(path: Path, tmp_path: Path) -> None:
    """Of a field that a config leaves out."""
    changed = changed_codec(path, tmp_path)
    config = json.loads((changed / FOLDER / "config.json").read_text())
    for name in ("rms_norm_eps", "rope_theta", "upsampling_ratios"):
        del config["decoder_config"][name]
    (changed / FOLDER / "config.json").write_text(json.dumps(config))
    assert CodecConfig.from_dir(changed).decoder == CodecConfig.from_dir(path).decoder


@pytest.mark.parametrize(("dtype", "item"), [(None, 4), ("bfloat16", 2)])
def test_memory_is_that_of_the_weights_of_each_half(path: Path, dtype: str | None, item: int) -> None:
    codec, model = (load_file(folder / "model.safetensors") for folder in (path / FOLDER, path))

    def size(tensors: dict[str, torch.Tensor], prefix: str) -> int:
        return item * sum(tensor.numel() for name, tensor in tensors.items() if name.startswith(prefix))

    args = {"dtype": dtype}
    reference, code2wav = (codec_demand(path, stage, args) for stage in ("reference", "code2wav"))
    assert reference is not None
    assert code2wav is not None
    assert reference.weights == size(codec, "encoder.") + size(model, "speaker_encoder.")
    assert code2wav.weights == size(codec, "decoder.")
    longer = codec_demand(path, "code2wav", {**args, "max_batch_frames": 128})
    assert longer is not None
    assert longer.workspace > code2wav.workspace
    assert codec_demand(path, "speak", args) is None
