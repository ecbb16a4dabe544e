"""What SGLang compiles its kernels with on a GPU: ninja, a C++ compiler, and a CUDA toolkit.

It looks for the toolkit in CUDA_HOME, then in CUDA_PATH, then where ``nvcc`` is on the PATH, then in
/usr/local/cuda, and links kernels to the toolkit's ``lib64/libcudart.so``. NVIDIA's wheels hold all of it, in
another place and layout, so links to their files are laid out as a toolkit. FlashInfer links its kernels to
the driver too, by ``lib64/stubs/libcuda.so``, which no wheel holds: it is a link to this machine's driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

_DEFAULT = Path("/usr/local/cuda")
# torch requires one version of ``cuda-toolkit``, so pip takes a compiler that goes with torch's headers.
_WHEELS_LINE = "pip install 'cuda-toolkit[nvcc,cccl]==13.*'"


class Lack(NamedTuple):
    """A part that compiling needs, why it cannot be used, and what mends it."""

    name: str
    text: str
    mend: str


def provide() -> None:
    """Makes SGLang find its compilers, in this process and its children.

    Scripts of this Python's environment are on the PATH afterwards: it may have been called by its path.

    Raises:
        ImportError: A part is missing.
    """
    if lacking := lacks():
        parts = "; ".join(f"{part.name}: {part.text} ({part.mend})" for part in lacking)
        raise ImportError(f"SGLang cannot compile its kernels for a GPU: {parts}", name="sglang")
    os.environ["PATH"] = _path()
    if _found() is None and (wheels := _wheels()) is not None:
        home = _linked(wheels)
        _link_driver(home)
        os.environ["CUDA_HOME"] = str(home)


def lacks() -> list[Lack]:
    """The parts that are missing on this machine; empty if SGLang can compile."""
    found = []
    if _which("ninja") is None:
        found.append(Lack("ninja", "not found", "pip install ninja"))
    compiler = os.environ.get("CXX", "c++")
    if _which(compiler) is None:
        found.append(
            Lack("c++", f"{compiler} is not found", "apt-get install g++; on Fedora: dnf install gcc-c++")
        )
    home = _found()
    if home is None:
        found += _wheels_lack()
    elif not (home / "bin/nvcc").is_file():
        found.append(
            Lack("nvcc", f"CUDA_HOME is {home}, which has no bin/nvcc", "unset CUDA_HOME, or correct it")
        )
    elif not (home / "lib64/libcudart.so").is_file() and not _is_linked_by_itself(compiler):
        found.append(
            Lack(
                "libcudart",
                f"the CUDA toolkit in {home} has no lib64/libcudart.so",
                f"set CUDA_HOME to a whole CUDA toolkit; or take it off the PATH, and {_WHEELS_LINE}",
            )
        )
    for folder in (_kernels_folder(), *([] if home else [_links_folder()])):
        if not _can_be_written(folder):
            mend = (
                "set HOME, or SGLANG_JIT_CACHE_DIR and XDG_CACHE_HOME, to a folder that can be written; in a "
                "container to a volume's"
            )
            found.append(Lack("HOME", f"compiled kernels cannot be written to {folder}", mend))
            break
    return found


def _wheels_lack() -> list[Lack]:
    wheels = _wheels()
    if wheels is None:
        return [Lack("nvcc", "neither a CUDA toolkit nor NVIDIA's wheel of it is found", _WHEELS_LINE)]
    if _cudart(wheels) is None:
        return [Lack("libcudart", f"{wheels}/lib has no libcudart.so", _WHEELS_LINE)]
    compiler, headers = _minor("nvidia-cuda-nvcc"), _minor("nvidia-cuda-runtime")
    if compiler != headers:
        # CUDA's C++ library refuses it, though other kernels compile.
        text = f"the wheel of nvcc is of CUDA {compiler}, and that of its headers of {headers}"
        return [Lack("nvcc", text, _WHEELS_LINE)]
    return []


def _found() -> Path | None:
    """The toolkit that SGLang finds by itself."""
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Path(home)
    if nvcc := _which("nvcc"):
        return Path(nvcc).parent.parent
    return _DEFAULT if (_DEFAULT / "bin/nvcc").is_file() else None


def _wheels() -> Path | None:
    """The folder with the files of NVIDIA's wheels, if nvcc is among them."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    folders = (folder for place in places or () for folder in sorted(Path(place).glob("cu[0-9]*")))
    return next((folder for folder in folders if (folder / "bin/nvcc").is_file()), None)


def _cudart(wheels: Path) -> Path | None:
    return next(iter(sorted((wheels / "lib").glob("libcudart.so.*"))), None)


def _linked(wheels: Path) -> Path:
    """A toolkit of links to ``wheels``, which every process of this user and environment finds there."""
    folder = _links_folder()
    home = folder / hashlib.sha256(str(wheels).encode()).hexdigest()[:16]
    cudart = _cudart(wheels)
    assert cudart is not None
    folder.mkdir(parents=True, exist_ok=True)
    if home.is_dir():
        return home
    # Another process sees the whole folder or none.
    made = Path(tempfile.mkdtemp(dir=folder, prefix="."))
    for part in ("bin", "include", "nvvm"):
        (made / part).symlink_to(wheels / part)
    (made / "lib64").mkdir()
    (made / "lib64/libcudart.so").symlink_to(cudart)
    try:
        made.rename(home)
    except OSError:
        shutil.rmtree(made)
        if not home.is_dir():
            raise
    return home


def _link_driver(home: Path) -> None:
    """Has the linker find the driver, of which a machine may have ``libcuda.so.1`` alone."""
    driver, link = _driver(), home / "lib64/stubs/libcuda.so"
    if driver is None or os.path.realpath(link) == os.path.realpath(driver):
        return
    link.parent.mkdir(exist_ok=True)
    made = link.with_name(f".{os.getpid()}")
    made.symlink_to(driver)
    made.replace(link)


def _driver() -> str | None:
    """The file that this process loads as CUDA's driver; None without one."""
    with contextlib.suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
    mapped = (line.split(maxsplit=5)[5:] for line in Path("/proc/self/maps").read_text().splitlines())
    files = (file[0] for file in mapped if file)
    return next((file for file in files if os.path.basename(file).startswith("libcuda.so")), None)


def _links_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "sgl-omni" / "cuda"


def _kernels_folder() -> Path:
    """Where SGLang keeps what it compiles."""
    return Path(os.path.expanduser(os.environ.get("SGLANG_JIT_CACHE_DIR") or "~/.cache/sglang/jit"))


def _can_be_written(folder: Path) -> bool:
    # Of a user without a home, "~" stays.
    there = next((place for place in (folder, *folder.parents) if os.path.exists(place)), folder)
    return folder.is_absolute() and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _is_linked_by_itself(compiler: str) -> bool:
    """True if the compiler finds CUDA's runtime where the system has its libraries, as on Debian."""
    program = _which(compiler)
    if program is None:
        return False
    done = subprocess.run(
        [program, "-print-file-name=libcudart.so"], capture_output=True, text=True, check=False
    )
    return Path(done.stdout.strip()).is_absolute()


def _path() -> str:
    """The PATH, and after it the folder of this Python's own programs."""
    own = str(Path(sys.executable).parent)
    path = os.environ.get("PATH") or os.defpath
    return path if own in path.split(os.pathsep) else f"{path}{os.pathsep}{own}"


def _which(program: str) -> str | None:
    return shutil.which(program, path=_path())


def _minor(distribution: str) -> str:
    """The minor version of an installed wheel, such as ``"13.0"``."""
    try:
        return ".".join(version(distribution).split(".")[:2])
    except PackageNotFoundError:
        return "unknown"
