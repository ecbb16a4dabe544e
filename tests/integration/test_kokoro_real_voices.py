"""Published weights of Kokoro, which registries of packages have in 8 bits, speak as its package does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from kokoro_oracle import KokoroOracle
from kokoro_real_voices import onnx_file, write_real_checkpoint

from sglang_omni.models.kokoro.components.checkpoint import KokoroCheckpoint
from sglang_omni.models.kokoro.components.weights import KokoroVoices, load_kokoro
from sglang_omni.preprocessing.voice_blends import voice_parts

PHONEMES = (
    ("koɲɲiʨiβa. kʲoː no seʦɨmeː o haʥimemasɨ.", "jf_alpha"),
    ("həlˈO wˈɜɹld, ðɪs ɪz ə tˈɛst.", "jf_nezumi,jm_kumo"),
)


def log_spectrum(samples: np.ndarray) -> np.ndarray:
    window = torch.hann_window(1024)
    found = torch.stft(torch.from_numpy(samples), 1024, 256, window=window, return_complex=True)
    return (found.abs() + 1e-3).log().numpy()


@pytest.mark.long
def test_they_speak_as_the_package_and_as_their_graph(tmp_path: Path) -> None:
    import onnxruntime

    graph = onnx_file(tmp_path)
    path = write_real_checkpoint(tmp_path / "kokoro", graph)
    checkpoint, oracle = KokoroCheckpoint.from_dir(path), KokoroOracle(path)
    model, voices = load_kokoro(checkpoint, "cpu"), KokoroVoices(checkpoint)
    assert checkpoint.voices == ("jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo")
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    for phonemes, voice in PHONEMES:
        style = voices(voice_parts(voice))[len(phonemes) - 1]
        ids = [checkpoint.vocab[phoneme] for phoneme in phonemes]
        said = model.speak(ids, style, 1.0, torch.Generator().manual_seed(3))
        due = oracle.speak([phonemes], voice, seed=3)
        assert said.durations == due.durations[0]
        assert np.abs(said.samples.numpy() - due.samples).max() <= 1e-5
        given = {
            "tokens": np.array([[0, *ids, 0]]),
            "style": style[None].numpy(),
            "speed": np.ones(1, np.float32),
        }
        heard = session.run(None, given)[0].reshape(-1)
        # Its 8 bits change the sound, by rounding and by the phase, and hardly when it is heard.
        assert abs(len(heard) - len(due.samples)) <= 3 * 600
        least = min(len(heard), len(due.samples))
        spectra = (log_spectrum(each[:least]).ravel() for each in (said.samples.numpy(), heard))
        assert np.corrcoef(*spectra)[0, 1] > 0.85
