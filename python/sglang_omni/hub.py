"""Checkpoints of the Hugging Face hub: an id such as ``org/name`` becomes a directory here.

huggingface_hub's own environment applies: ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT`` and
others.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
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


# Of a file of a family's own, the most that is fetched to see what is in it.
_SMALL = 4_000_000


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
    Inside of ``outlines_only`` no weights are fetched, until ``Outlines.complete`` is set.
    Progress bars are huggingface_hub's, in a terminal.

    Args:
        repo_id: ``org/name``.
        revision: A branch, tag or commit; None for the default branch.
        weights: True if the weights are wanted too, not only configs and tokenizer.
        own_files: Of what the model's family needs beside them.

    Raises:
        HubError: It cannot be had; the text says why and what to do.
    """
    outlines = _outlines.get()
    # What has an outline was looked up for it.
    wanted = None if outlines is None else outlines.plan_of(repo_id)
    if wanted is None:
        wanted = _plan(repo_id, revision, own_files, weights=weights)
    if not weights:
        wanted = wanted._replace(weights=())
    if weights and outlines is not None and not outlines.complete:
        return outlines.add(wanted)
    if missing := [file for file in wanted.files if not (wanted.directory / file.name).is_file()]:
        gigabytes = sum(file.size for file in missing) / 1e9
        logger.info("%s: downloading %d files, %.2f GB", repo_id, len(missing), gigabytes)
    with _explained(repo_id, revision):
        # By its patterns: without a network only huggingface_hub knows which settings the cache lacks.
        _snapshot(repo_id, wanted.commit, [*_SETTINGS, *(glob.escape(file.name) for file in wanted.weights)])
    logger.info("%s is in %s", _name(repo_id, revision), wanted.directory)
    return wanted.directory


class Outlines:
    """Directories that look like downloaded checkpoints, whose weights are headers before holes.

    Of a repository whose weights are in the cache, the directory is the cache's.

    Attributes:
        plans: What serving each would have fetched.
        places: The id of the repository of each directory.
        unseen: Paths of files of which nothing was fetched.
        broken: True if headers could not be fetched, of weights that perhaps can.
        complete: Set to True for whole checkpoints instead, without looking up again what has an outline.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.plans: list[DownloadPlan] = []
        self.places: dict[Path, str] = {}
        self.unseen: list[Path] = []
        self.broken = False
        self.complete = False

    @property
    def missing_size(self) -> int:
        """Bytes that serving them would still fetch."""
        return sum(plan.missing_size for plan in self.plans if plan.directory not in self.places)

    def plan_of(self, repo_id: str) -> DownloadPlan | None:
        return next((plan for plan in self.plans if plan.repo_id == repo_id), None)

    def named(self, text: str) -> str:
        """A text that names repositories, and not where their outlines are."""
        for place, repo_id in self.places.items():
            text = text.replace(str(place), repo_id)
        return text

    def add(self, wanted: DownloadPlan) -> Path:
        """The directory of a repository's outline. Fetches its settings, and the headers of its weights.

        Raises:
            HubError: It cannot be had.
        """
        for place, repo_id in self.places.items():
            if repo_id == wanted.repo_id:
                return place
        self.plans.append(wanted)
        names = [*_SETTINGS, *(glob.escape(f.name) for f in wanted.weights if f.cached or _is_small(f))]
        with _explained(wanted.repo_id, None):
            place = here = _snapshot(wanted.repo_id, wanted.commit, names)
            if far := [file for file in wanted.weights if not (here / file.name).exists()]:
                place = self._folder / wanted.repo_id.replace("/", "--")
                self._write(place, here, wanted, far)
        self.places[place] = wanted.repo_id
        return place

    def _write(self, outline: Path, here: Path, wanted: DownloadPlan, far: Sequence[RepoFile]) -> None:
        for name in _everything(here):
            (outline / name).parent.mkdir(parents=True, exist_ok=True)
            (outline / name).symlink_to(here / name)
        self.broken = True
        with ThreadPoolExecutor(_HEADERS_AT_ONCE) as pool:
            for file, header in zip(far, pool.map(partial(_header, wanted), far), strict=True):
                path = outline / file.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(header)
                os.truncate(path, file.size)
                if not header:
                    self.unseen.append(path)
        self.broken = False


_outlines: ContextVar[Outlines | None] = ContextVar("outlines", default=None)
_HEADERS_AT_ONCE = 8


@contextmanager
def outlines_only(outlines: Outlines) -> Iterator[None]:
    """In it, ``download`` gives outlines instead of weights: for checks of what is there."""
    token = _outlines.set(outlines)
    try:
        yield
    finally:
        _outlines.reset(token)


def _name(repo_id: str, revision: str | None) -> str:
    return repo_id if revision is None else f"{repo_id}, revision {revision!r},"


def _is_small(file: RepoFile) -> bool:
    return not file.name.endswith(".safetensors") and file.size <= _SMALL


def _everything(directory: Path) -> list[str]:
    return [str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()]


def _header(wanted: DownloadPlan, file: RepoFile) -> bytes:
    """The header of a safetensors file, fetched by itself; empty for another file."""
    from huggingface_hub import HfApi

    if not file.name.endswith(".safetensors"):
        return b""
    found = HfApi().parse_safetensors_file_metadata(wanted.repo_id, file.name, revision=wanted.commit)
    text = json.dumps(
        {
            name: {"dtype": info.dtype, "shape": info.shape, "data_offsets": info.data_offsets}
            for name, info in found.tensors.items()
        },
        separators=(",", ":"),
    ).encode()
    # As long as the file's own, which the offsets of its end tell.
    end = max((info.data_offsets[1] for info in found.tensors.values()), default=0)
    text = text.ljust(file.size - end - 8)
    return len(text).to_bytes(8, "little") + text


def _plan(repo_id: str, revision: str | None, own_files: OwnFiles, *, weights: bool) -> DownloadPlan:
    with _explained(repo_id, revision):
        from huggingface_hub import constants

        logger.info(
            "Looking up %s on %s, cache %s",
            _name(repo_id, revision),
            constants.ENDPOINT,
            constants.HF_HUB_CACHE,
        )
        directory = _snapshot(repo_id, revision, _FIRST)
        files, unreachable = _listing(repo_id, directory)
    try:
        return choose(repo_id, directory, files, own_files, weights=weights)
    except (FileNotFoundError, ValueError) as exc:
        if unreachable is not None:
            with _explained(repo_id, revision):
                raise unreachable from None
        raise HubError(f"{repo_id} cannot be served: {exc}") from exc


def choose(
    repo_id: str,
    directory: Path,
    files: Mapping[str, RepoFile],
    own_files: OwnFiles = _none,
    *,
    weights: bool = True,
) -> DownloadPlan:
    """What serving a repository fetches of its ``files``.

    Args:
        directory: With its config.json, and the index of its weights if it has one.
        files: All of its files, by name.
        own_files, weights: As of ``download``.

    Raises:
        FileNotFoundError, ValueError: It holds no weights that are read here; the text says why.
    """
    small = tuple(files[name] for name in _matching(files, _SETTINGS))
    names = _weights(directory, files, own_files) if weights else []
    if absent := [name for name in names if name not in files]:
        raise FileNotFoundError(f"it lacks {', '.join(absent)}, which its index of weights lists")
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
    at = _name(repo_id, revision)
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
