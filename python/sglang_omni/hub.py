"""Checkpoints of the Hugging Face hub: an id such as ``org/name`` becomes a directory here.

huggingface_hub's own environment applies: ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT`` and
others.
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sglang_omni.packages import install_line
from sglang_omni.weight_files import config_fields, weight_files

logger = logging.getLogger(__name__)

# By the fields of a config.json, names or patterns of the files that its family needs beside its weights.
OwnFiles = Callable[[Mapping[str, Any]], Sequence[str]]

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SETTINGS = ("*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model", "*.tiktoken")
# What says which files hold the weights.
_FIRST = ("config.json", "*.safetensors.index.json")
# The same model a second time, in a layout that is not read here.
_DUPLICATES = ("consolidated*", "original/*", "onnx/*", "openvino/*", "coreml/*")


class HubError(Exception):
    """Why a checkpoint of the hub cannot be had, and what to do."""


def is_repo_id(model_path: str) -> bool:
    """True if a model's path has the form of a hub's id and is no directory or file here."""
    return _REPO_ID.fullmatch(model_path) is not None and not Path(model_path).exists()


class RepoFile(NamedTuple):
    """
    Attributes:
        name: Relative to the repository.
        size: In bytes.
        cached: True if the file is in the cache, and is not downloaded again.
    """

    name: str
    size: int
    cached: bool


class DownloadPlan(NamedTuple):
    """What serving a repository fetches.

    Attributes:
        directory: Where its files are, or will be. config.json and the index of the weights are there.
        settings: Configs, tokenizer and templates.
        weights: Files with weights, and the family's own.
    """

    repo_id: str
    directory: Path
    settings: tuple[RepoFile, ...]
    weights: tuple[RepoFile, ...]

    @property
    def commit(self) -> str:
        return self.directory.name

    @property
    def files(self) -> tuple[RepoFile, ...]:
        return self.settings + self.weights

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def missing_size(self) -> int:
        """Bytes of those that are not in the cache."""
        return sum(file.size for file in self.files if not file.cached)


def _none(fields: Mapping[str, Any]) -> Sequence[str]:
    return ()


def plan(repo_id: str, revision: str | None = None, *, own_files: OwnFiles = _none) -> DownloadPlan:
    """The files of a repository that serving it needs, with their sizes.

    Downloads config.json and the index of the weights, unless they are in the cache. Without a network it is
    the cache that says what there is.

    Args:
        repo_id, revision, own_files: As of ``download``.

    Raises:
        HubError: It cannot be had, or holds no weights that are read here; the text says why.
    """
    return _plan(repo_id, revision, own_files, weights=True)


def download(
    repo_id: str, revision: str | None = None, *, weights: bool = True, own_files: OwnFiles = _none
) -> Path:
    """The directory of a repository's files, which are downloaded unless they are in the cache.

    No weights are fetched twice: of copies in several layouts or precisions only the one that is read.
    Progress bars are huggingface_hub's, in a terminal.

    Args:
        repo_id: ``org/name``.
        revision: A branch, tag or commit; None for the default branch.
        weights: True if the weights are wanted too, not only configs and tokenizer.
        own_files: Of what the model's family needs beside them.

    Raises:
        HubError: It cannot be had; the text says why and what to do.
    """
    wanted = _plan(repo_id, revision, own_files, weights=weights)
    if missing := [file for file in wanted.files if not file.cached]:
        logger.info("%s: downloading %d files, %.2f GB", repo_id, len(missing), wanted.missing_size / 1e9)
    with _explained(repo_id, revision):
        # By its patterns: without a network only huggingface_hub knows which settings the cache lacks.
        _snapshot(repo_id, wanted.commit, [*_SETTINGS, *(glob.escape(file.name) for file in wanted.weights)])
    logger.info("%s is in %s", repo_id, wanted.directory)
    return wanted.directory


def _plan(repo_id: str, revision: str | None, own_files: OwnFiles, *, weights: bool) -> DownloadPlan:
    with _explained(repo_id, revision):
        from huggingface_hub import constants

        logger.info("Looking up %s on %s, cache %s", repo_id, constants.ENDPOINT, constants.HF_HUB_CACHE)
        directory = _snapshot(repo_id, revision, _FIRST)
        files, unreachable = _listing(repo_id, directory)
    small = tuple(files[name] for name in _matching(files, _SETTINGS))
    if not weights:
        return DownloadPlan(repo_id, directory, small, ())
    try:
        names = _weights(directory, files, own_files)
        if absent := [name for name in names if name not in files]:
            raise FileNotFoundError(f"it lacks {', '.join(absent)}, which its index of weights lists")
    except (FileNotFoundError, ValueError) as exc:
        if unreachable is not None:
            with _explained(repo_id, revision):
                raise unreachable from None
        raise HubError(f"{repo_id} cannot be served: {exc}") from exc
    return DownloadPlan(repo_id, directory, small, tuple(files[name] for name in names))


def _snapshot(repo_id: str, revision: str | None, patterns: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download

    found = snapshot_download(
        repo_id, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(_DUPLICATES)
    )
    return Path(found)


def _listing(repo_id: str, directory: Path) -> tuple[dict[str, RepoFile], Exception | None]:
    """The repository's files by name, and why the hub was not asked: then they are those of the cache."""
    from huggingface_hub import HfApi

    try:
        tree = HfApi().list_repo_tree(repo_id, recursive=True, revision=directory.name)
        sizes = {item.path: item.size for item in tree if hasattr(item, "size")}
    except Exception as exc:  # noqa: BLE001
        # Whatever keeps the hub from answering: what is in the cache can be served nevertheless.
        logger.info("%s: the hub does not answer (%s), so the cache is used", repo_id, exc)
        here = (path for path in directory.rglob("*") if path.is_file())
        found = {str(path.relative_to(directory)): path.stat().st_size for path in here}
        return {name: RepoFile(name, size, cached=True) for name, size in found.items()}, exc
    cached = {name for name in sizes if (directory / name).is_file()}
    return {name: RepoFile(name, size, name in cached) for name, size in sizes.items()}, None


def _weights(directory: Path, names: Mapping[str, Any], own_files: OwnFiles) -> list[str]:
    """The names of the files with weights, and of the family's own.

    Raises:
        FileNotFoundError, ValueError: As of ``weight_files``.
    """
    fields = config_fields(directory)
    chosen = weight_files(names, fields, lambda name: (directory / name).read_bytes()).files
    return list(dict.fromkeys([*chosen, *_matching(names, own_files(fields))]))


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    from huggingface_hub.utils import filter_repo_objects

    return list(filter_repo_objects(names, allow_patterns=[*patterns], ignore_patterns=[*_DUPLICATES]))


@contextmanager
def _explained(repo_id: str, revision: str | None) -> Iterator[None]:
    """Turns huggingface_hub's errors into HubErrors."""
    try:
        from huggingface_hub import constants, errors
    except ImportError:
        raise HubError(f"{repo_id}: the hub needs huggingface_hub:\n  {install_line('serve')}") from None
    at = repo_id if revision is None else f"{repo_id}, revision {revision!r},"
    try:
        yield
    except errors.GatedRepoError as exc:
        raise HubError(
            f"{repo_id} is gated: accept its terms on {constants.ENDPOINT}/{repo_id}, then log in with\n"
            "  hf auth login\nor set HF_TOKEN"
        ) from exc
    except errors.RevisionNotFoundError as exc:
        raise HubError(f"{repo_id} has no revision {revision!r}: give a branch, tag or commit of it") from exc
    except errors.RepositoryNotFoundError as exc:
        raise HubError(
            f"{repo_id} is not on {constants.ENDPOINT}, or is private: check the name; if it is private, log "
            "in with\n  hf auth login\nor set HF_TOKEN"
        ) from exc
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as exc:
        raise HubError(_unreachable(repo_id, at, exc, offline=constants.is_offline_mode())) from exc
    except errors.HfHubHTTPError as exc:
        status = exc.response.status_code
        hint = "log in with\n  hf auth login\nor set HF_TOKEN" if status in (401, 403) else "try again later"
        raise HubError(f"{at} cannot be had: {constants.ENDPOINT} answered {status}: {hint}") from exc
    except OSError as exc:
        raise HubError(f"{at} cannot be stored in {constants.HF_HUB_CACHE}: {exc}; HF_HOME moves it") from exc
    except Exception as exc:
        # The errors of a connection have another class in each version of huggingface_hub.
        raise HubError(_broken(at, exc)) from exc


def _unreachable(repo_id: str, at: str, exc: Exception, *, offline: bool) -> str:
    if offline:
        return (
            f"{at} is not, or not completely, in the cache, and HF_HUB_OFFLINE is set: unset it, or download "
            f"it on a machine with a network and bring the cache (HF_HOME)\n  hf download {repo_id}"
        )
    return _broken(at, exc.__cause__ or exc)


def _broken(at: str, exc: BaseException) -> str:
    return (
        f"{at} cannot be downloaded ({type(exc).__name__}: {exc}): check the network, a proxy (HTTPS_PROXY), "
        "or a mirror (HF_ENDPOINT); or copy the checkpoint here and give its directory"
    )
