"""Where the codec of a Higgs Audio v2 checkpoint is: it is published as a repository of its own."""

from __future__ import annotations

from pathlib import Path

from sglang_omni import hub
from sglang_omni.preprocessing.text import read_json

_FOLDER = "audio_tokenizer"


def codec_dir(model_path: str | Path, codec_path: str | None, *, weights: bool = True) -> Path:
    """The codec's directory. A repository of the hub is downloaded unless it is in the cache.

    Args:
        model_path: Directory of the model's checkpoint.
        codec_path: The codec's directory or hub id; None for the checkpoint's folder ``audio_tokenizer``, or
            else what its processor_config.json names, which may be relative to it.
        weights: True if the weights are wanted too.

    Raises:
        ValueError: It is in neither place.
        HubError: It cannot be downloaded.
    """
    directory = Path(model_path).expanduser()
    named = codec_path
    if named is None and (directory / _FOLDER).is_dir():
        return directory / _FOLDER
    if named is None:
        config = read_json(directory / "processor_config.json").get("audio_tokenizer") or {}
        named = config.get("audio_tokenizer_name_or_path")
        if named and (directory / named).is_dir():
            return directory / named
    if named and hub.is_repo_id(named):
        return hub.download(named, weights=weights)
    if not named or not (found := Path(named).expanduser()).is_dir():
        why = f": {named} is no directory" if named else ""
        raise ValueError(
            f"the codec of {directory} is missing{why}: put it into {directory / _FOLDER}, or give "
            "codec_path, its directory or hub id, to the stages preprocess, reference and code2wav"
        )
    return found
