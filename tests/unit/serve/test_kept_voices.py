"""The folder of kept voices: who finds what, what is refused, and what a crash or damage leaves."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_omni.proto import RequestError, Unavailable
from sglang_omni.proto.tasks import EncodedVoice
from sglang_omni.serve import kept_voices
from sglang_omni.serve.kept_voices import KeptVoice, KeptVoices, owners_secret

ENCODED = EncodedVoice(codes=np.arange(12, dtype=np.int32).reshape(3, 4), speaker=np.ones(5, np.float32))


def store(folder: Path, **limits: Any) -> KeptVoices:
    """As another process has it."""
    folder.mkdir(exist_ok=True)
    return KeptVoices(folder, "ours", **limits)


def new(name: str, owner: str | None = None, **fields: Any) -> KeptVoice:
    about = {"consent": "cons_1", "ref_text": "Hello.", "seconds": 2.5, "encoder": "ours", **fields}
    return KeptVoice.new(name=name, owner=owner, **about)


def keep(voices: KeptVoices, name: str, owner: str | None = None, **fields: Any) -> KeptVoice:
    voices.save(voice := new(name, owner, **fields), ENCODED)
    return voice


def names(voices: KeptVoices, owner: str | None = None) -> list[str]:
    return [voice.name for voice in voices.of_owner(owner)]


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is looked at again only if it has changed, as if all changes were long ago."""
    monkeypatch.setattr(kept_voices, "_STEP_NS", 0)
    return tmp_path


def test_what_one_process_keeps_another_reads(settled: Path) -> None:
    here, there = store(settled), store(settled)
    assert names(there) == []
    anna = keep(here, "Anna")
    assert there.find("anna", None) == there.find(anna.id, None) == anna
    loaded = there.load(anna)
    assert loaded["text"] == "Hello."
    assert np.array_equal(loaded["codes"], ENCODED["codes"])
    assert np.array_equal(loaded["speaker"], ENCODED["speaker"])
    # A restart.
    assert names(store(settled)) == ["Anna"]
    assert here.delete(anna)
    assert there.find("anna", None) is None
    assert not there.delete(anna)
    assert [file.name for file in settled.iterdir()] == [".lock"]


def test_a_file_holds_no_sound_and_is_its_owners(tmp_path: Path) -> None:
    anna = keep(store(tmp_path), "Anna")
    file = tmp_path / f"{anna.id}.safetensors"
    assert file.stat().st_mode & 0o077 == 0
    assert file.stat().st_size < 1024


def test_an_owner_finds_its_own_alone(tmp_path: Path) -> None:
    voices = store(tmp_path)
    anna = keep(voices, "anna", "x")
    other = keep(voices, "anna", "y")
    assert voices.find("anna", "x") == anna
    assert voices.find("ANNA", "y") == other
    assert voices.find(anna.id, "y") is voices.find("anna", None) is None
    assert names(voices, "x") == ["anna"]


def refused(voices: KeptVoices, name: str = "more", owner: str | None = None) -> tuple[str | None, str]:
    with pytest.raises(RequestError) as error:
        keep(voices, name, owner)
    return error.value.code, error.value.message


def test_names_and_limits(tmp_path: Path) -> None:
    voices = store(tmp_path, max_of_owner=2, max_voices=3)
    anna = keep(voices, "anna")
    code, said = refused(voices, "Anna")
    assert code == "voice_exists"
    assert anna.id in said
    keep(voices, "bob")
    code, said = refused(voices)
    assert (code, "you have 2 voices" in said, "delete one of yours" in said) == (
        "voice_limit_exceeded",
        True,
        True,
    )
    keep(voices, "anna", "x")
    assert "the server has 3 voices" in refused(voices, owner="y")[1]
    assert voices.delete(anna)
    keep(voices, "anna", "y")
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert f"take {size} of the {size} bytes" in refused(store(tmp_path, max_bytes=size))[1]


def test_a_voice_of_another_encoder_is_known_as_such(tmp_path: Path) -> None:
    voices = store(tmp_path)
    foreign = keep(voices, "anna", encoder="theirs")
    assert not voices.reads(foreign)
    assert "which another model has encoded" in refused(voices, "anna")[1]


def test_voices_used_longest_ago_leave_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = ENCODED["codes"].nbytes + ENCODED["speaker"].nbytes
    voices = store(tmp_path, memory_bytes=2 * size)
    one, two, three = (keep(voices, name) for name in ("one", "two", "three"))
    read: list[str] = []
    load = kept_voices._load

    def loading(path: Path, voice: KeptVoice) -> EncodedVoice:
        read.append(voice.name)
        return load(path, voice)

    monkeypatch.setattr(kept_voices, "_load", loading)
    for voice in (one, two, one, three, one, two):
        voices.load(voice)
    assert read == ["one", "two", "three", "two"]


def test_a_deleted_voice_leaves_the_memory_with_the_next_that_comes_in(tmp_path: Path) -> None:
    voices = store(tmp_path)
    one, two = keep(voices, "one"), keep(voices, "two")
    voices.load(one)
    store(tmp_path).delete(one)
    voices.load(two)
    assert [*voices._memory] == [two.id]


def test_damage_is_reported_once_and_costs_no_other_voice(
    settled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    voices = store(settled)
    whole, cut, flipped, foreign = (keep(voices, name) for name in ("whole", "cut", "flipped", "foreign"))
    path = settled / f"{cut.id}.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    path = settled / f"{flipped.id}.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (settled / f"{foreign.id}.safetensors").rename(settled / "other.safetensors")
    for again in (voices, voices, store(settled)):
        assert sorted(names(again)) == ["flipped", "whole"]
    # By each of the two processes.
    assert len(caplog.records) == 4
    assert voices.load(whole)["text"] == "Hello."
    for _ in range(2):
        with pytest.raises(RequestError, match="damaged: delete the voice, and upload it again"):
            voices.load(flipped)
    assert len(caplog.records) == 5
    assert voices.delete(flipped)
    # Its name is free, and so is that of a file that cannot be read.
    keep(voices, "flipped")
    keep(voices, "cut")


PROCESS = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_kept_voices import *
voices = store(Path(sys.argv[1]))
if sys.argv[2] == "dies":
    os.replace = lambda *paths: os._exit(7)
for name in sys.argv[3:]:
    try:
        keep(voices, name)
    except RequestError as refused:
        assert refused.code == "voice_exists"
    else:
        print(name)
"""


def writing(folder: Path, how: str, *kept: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), how, *kept], stdout=subprocess.PIPE, text=True
    )


def test_writers_at_the_same_time_and_one_that_dies(settled: Path) -> None:
    voices = store(settled)
    died = writing(settled, "dies", "never")
    died.communicate()
    assert died.returncode == 7
    # Before its file has its name: there is no voice, and room for one of that name.
    assert any(file.suffix == ".tmp" for file in settled.iterdir())
    assert names(voices) == []
    both = [writing(settled, "lives", *(f"{which}{n}" for n in range(8)), "shared") for which in "ab"]
    printed = "".join(each.communicate()[0] for each in both).split()
    assert [each.returncode for each in both] == [0, 0]
    due = [f"{which}{n}" for which in "ab" for n in range(8)] + ["shared"]
    assert sorted(printed) == sorted(due) == sorted(names(voices))
    assert not any(file.suffix == ".tmp" for file in settled.iterdir())


def test_a_folder_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voices = store(tmp_path / "voices")

    def full(*paths: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(Unavailable, match=r"--voices-dir .* cannot be used: No space left"):
        keep(voices, "anna")
    assert [file.name for file in (tmp_path / "voices").iterdir()] == [".lock"]
    (tmp_path / "voices").rename(tmp_path / "gone")
    with pytest.raises(Unavailable, match="No such file"):
        voices.find("anna", None)


def test_the_secret_of_owners_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    secret = owners_secret(folder)
    assert len(secret) == 32
    assert owners_secret(folder) == secret != owners_secret(tmp_path / "c")
    assert (folder.stat().st_mode & 0o077, (folder / ".owners").stat().st_mode & 0o077) == (0, 0)
    (folder / ".owners").write_bytes(secret[:5])
    with pytest.raises(OSError, match="is damaged"):
        owners_secret(folder)


def test_a_voice_is_what_its_file_says(tmp_path: Path) -> None:
    voices = store(tmp_path)
    anna = keep(voices, "anna")
    with pytest.raises(RequestError, match="damaged"):
        voices.load(replace(anna, ref_text="Other."))
    with pytest.raises(RequestError, match="has just been deleted"):
        voices.load(replace(anna, id="voice_0"))
