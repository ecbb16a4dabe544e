"""Checkpoints of the Hugging Face hub: an id such as ``org/name`` becomes a directory here.

huggingface_hub's own environment applies: ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_OFFLINE``, ``HF_ENDPOINT`` and
others.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from sglang_omni.packages import install_line

logger = logging.getLogger(__name__)

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SETTINGS = ("*.json", "*.jinja", "merges.txt", "vocab.txt", "*.model", "*.tiktoken")
# Fish Audio's codec comes in torch's own format beside them; it is read without unpickling objects.
_WEIGHTS = ("*.safetensors", "codec.pth")
# The same weights a second time, in a layout that is not read here.
_DUPLICATES = ("consolidated*", "original/*", "onnx/*", "openvino/*", "coreml/*")


class HubError(Exception):
    """Why a checkpoint of the hub cannot be had, and what to do."""


def is_repo_id(model_path: str) -> bool:
    """Whether a model's path has the form of a hub's id and is no directory or file here."""
    return _REPO_ID.fullmatch(model_path) is not None and not Path(model_path).exists()


def download(repo_id: str, revision: str | None = None, *, weights: bool = True) -> Path:
    """The directory of a repository's files, which are downloaded unless they are in the cache.

    Progress bars are huggingface_hub's, in a terminal.

    Args:
        repo_id: ``org/name``.
        revision: A branch, tag or commit; None for the default branch.
        weights: Whether the weights are wanted too, not only configs and tokenizer.

    Raises:
        HubError: It cannot be had; the text says why and what to do.
    """
    try:
        from huggingface_hub import constants, errors, snapshot_download
    except ImportError:
        raise HubError(f"{repo_id}: the hub needs huggingface_hub:\n  {install_line('serve')}") from None
    at = repo_id if revision is None else f"{repo_id}, revision {revision!r},"
    logger.info("Looking up %s on %s, cache %s", at.rstrip(","), constants.ENDPOINT, constants.HF_HUB_CACHE)
    patterns = [*_SETTINGS, *(_WEIGHTS if weights else ())]
    try:
        directory = Path(
            snapshot_download(
                repo_id, revision=revision, allow_patterns=patterns, ignore_patterns=list(_DUPLICATES)
            )
        )
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
    except errors.LocalEntryNotFoundError as exc:
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
    if weights and not any(directory.glob("*.safetensors")):
        raise HubError(f"{at} has no safetensors files, and no other weights are read here")
    logger.info("%s is in %s", at.rstrip(","), directory)
    return directory


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
