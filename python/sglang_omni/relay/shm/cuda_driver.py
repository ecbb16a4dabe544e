"""The few calls of the CUDA driver that torch does not offer to Python.

They are the driver's own and not the runtime's: the runtime remembers a failed call per thread and
reports it at the thread's next kernel launch, of any library, and a refusal is nothing unusual here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from uuid import UUID

# CU_MEMHOSTREGISTER_PORTABLE: page-locked for every device, not only for the current one.
_PORTABLE = 1
# CU_MEMHOSTREGISTER_READ_ONLY.
_READ_ONLY = 8
# CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is; it must be given.
_LAZY_PEER_ACCESS = 1

# CU_POINTER_ATTRIBUTE_BUFFER_ID.
_BUFFER_ID = 7

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
_CAPABILITY_MAJOR = 75
_CAPABILITY_MINOR = 76

IPC_HANDLE_BYTES = 64


class CudaError(RuntimeError):
    """The CUDA driver is missing or refused a call; the text is its own."""


class NoCudaDriver(CudaError):
    """The machine has no CUDA driver at all."""


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * IPC_HANDLE_BYTES),)


def is_cuda_in_use() -> bool:
    """True if this process has begun to use a GPU through torch. Imports nothing."""
    # While another thread is importing torch, the module has none of its parts yet.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda is not None and cuda.is_initialized()


def gpu_count() -> int:
    """GPUs that this process may use; 0 without a driver. Imports nothing."""
    try:
        return cuda_driver().device_count()
    except CudaError:
        return 0


@cache
def cuda_driver() -> CudaDriver:
    """This process's driver.

    Raises:
        CudaError: There is none.
    """
    return CudaDriver()


class CudaDriver:
    """Addresses are integers, sizes are bytes. Every method raises CudaError if the driver refuses."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NoCudaDriver(f"no CUDA driver: {error}") from error
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._call("cuInit", ctypes.c_uint(0))

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA that the driver serves, such as (13, 0). Newer minor versions run as well."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return version.value // 1000, version.value % 1000 // 10

    def device_count(self) -> int:
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def describe(self, device: int) -> tuple[str, str, int, tuple[int, int]]:
        """A device's uuid, name, bytes of memory and compute capability. Creates no context on it."""
        number, uuid, name = ctypes.c_int(), (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(256)
        total, major, minor = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
        self._call("cuDeviceGetUuid_v2", ctypes.byref(uuid), number)
        self._call("cuDeviceGetName", name, ctypes.c_int(len(name)), number)
        self._call("cuDeviceTotalMem_v2", ctypes.byref(total), number)
        for value, attribute in ((major, _CAPABILITY_MAJOR), (minor, _CAPABILITY_MINOR)):
            self._call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), number)
        text = name.value.decode()
        # Of a slice, the driver gives the slice's own uuid, and a name such as "NVIDIA H100 ... MIG 1g.10gb".
        kind = "MIG" if " MIG " in text else "GPU"
        return f"{kind}-{UUID(bytes=bytes(uuid))}", text, total.value, (major.value, minor.value)

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make torch's context of ``device`` this thread's; the other methods work inside of this."""
        context = self._contexts.get(device)
        if context is None:
            number, context = ctypes.c_int(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(number), ctypes.c_int(device))
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
            self._contexts[device] = context
        self._call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def page_lock(self, address: int, nbytes: int, *, read_only: bool = False) -> None:
        """Lock whole pages of host memory, so that copies between them and a GPU are direct.

        Args:
            read_only: The GPU may not write to them. Pages that this process may not write to can be locked
                only so, and only if the device can do that.
        """
        self._call(
            "cuMemHostRegister_v2",
            ctypes.c_void_p(address),
            ctypes.c_size_t(nbytes),
            ctypes.c_uint(_PORTABLE | (_READ_ONLY if read_only else 0)),
        )

    def page_unlock(self, address: int) -> None:
        """Undo ``page_lock`` of the range that begins at ``address``."""
        self._call("cuMemHostUnregister", ctypes.c_void_p(address))

    def allocation(self, address: int) -> tuple[int, int]:
        """Start and size of the device allocation that ``address`` is in."""
        start, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call(
            "cuMemGetAddressRange_v2", ctypes.byref(start), ctypes.byref(size), ctypes.c_uint64(address)
        )
        return start.value, size.value

    def allocation_number(self, address: int) -> int:
        """The number of the allocation that ``address`` is in, which no other of this process ever has."""
        number = ctypes.c_ulonglong()
        self._call(
            "cuPointerGetAttribute", ctypes.byref(number), ctypes.c_int(_BUFFER_ID), ctypes.c_uint64(address)
        )
        return number.value

    def export_memory(self, start: int) -> bytes:
        """A handle of ``IPC_HANDLE_BYTES`` by which another process can open the allocation at ``start``."""
        handle = _IpcHandle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(start))
        return bytes(handle)

    def open_memory(self, handle: bytes) -> int:
        """Where another process's allocation is in this one. Opened twice, it must be closed twice."""
        start = ctypes.c_uint64()
        self._call(
            "cuIpcOpenMemHandle_v2",
            ctypes.byref(start),
            _IpcHandle.from_buffer_copy(handle),
            ctypes.c_uint(_LAZY_PEER_ACCESS),
        )
        return start.value

    def close_memory(self, start: int) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(start))

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._lib, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorString(status, ctypes.byref(text))
            reason = text.value.decode() if text.value else "unknown error"
            raise CudaError(f"{name}: {reason} (CUDA error {status})")
