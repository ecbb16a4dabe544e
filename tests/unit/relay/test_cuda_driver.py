"""The driver's calls: arguments as CUDA's own header has them, checked against a driver of this test's."""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sglang_omni.relay.shm.cuda_driver import CudaDriver, CudaError

# Compiled with the real prototypes. Each function fails where its arguments are not what this test passes.
DRIVER = r"""
#include <cuda.h>
#include <string.h>

static _Thread_local long depth, pushed_for;  // a fresh thread has no context
#define EXPECT(condition) if (!(condition)) return CUDA_ERROR_INVALID_VALUE
#define INSIDE if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT

CUresult cuInit(unsigned int flags) { EXPECT(flags == 0); return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13010; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal + 10; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)((1L << 40) + device);
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
    pushed_for = (long)context - (1L << 40);
    depth++;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext *context) { INSIDE; EXPECT(context); depth--; return CUDA_SUCCESS; }
CUresult cuMemHostRegister(void *p, size_t size, unsigned int flags) {
    INSIDE;
    unsigned int read_only = size == 1UL << 33 ? CU_MEMHOSTREGISTER_READ_ONLY : 0;
    EXPECT(p == (void *)(5L << 40) && flags == (CU_MEMHOSTREGISTER_PORTABLE | read_only));
    return read_only || size == 3UL << 33 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemHostUnregister(void *p) { INSIDE; EXPECT(p == (void *)(5L << 40)); return CUDA_SUCCESS; }
CUresult cuMemGetAddressRange(CUdeviceptr *start, size_t *size, CUdeviceptr p) {
    INSIDE;
    *start = p & ~0xfffUL;
    *size = 7UL << 32;
    return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr p) {
    INSIDE;
    EXPECT(attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID && p == 9UL << 40);
    *(unsigned long long *)data = 13UL << 40;
    return CUDA_SUCCESS;
}
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr p) {
    INSIDE;
    EXPECT(p == 9UL << 40);
    for (int i = 0; i < CU_IPC_HANDLE_SIZE; i++) handle->reserved[i] = i;
    return CUDA_SUCCESS;
}
CUresult cuIpcOpenMemHandle(CUdeviceptr *p, CUipcMemHandle handle, unsigned int flags) {
    INSIDE;
    EXPECT(flags == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    for (int i = 0; i < CU_IPC_HANDLE_SIZE; i++) EXPECT(handle.reserved[i] == i);
    *p = 11UL << 40;
    return CUDA_SUCCESS;
}
CUresult cuIpcCloseMemHandle(CUdeviceptr p) { INSIDE; EXPECT(p == 11UL << 40); return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : 0;
    return CUDA_SUCCESS;
}
long context_depth(void) { return depth; }
long context_of(void) { return pushed_for; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    (header,) = Path(sysconfig.get_path("purelib"), "nvidia").glob("*/include/cuda.h")
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Werror",
        f"-I{header.parent}",
        "driver.c",
        "-o",
        "driver.so",
    ]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "driver.so"


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> CudaDriver:
    load = ctypes.CDLL
    monkeypatch.setattr(ctypes, "CDLL", lambda name: load(str(library)))
    return CudaDriver()


def test_every_call_has_the_arguments_of_the_header(driver: CudaDriver) -> None:
    assert driver.cuda_version() == (13, 1)
    with driver.on(2):
        assert driver._lib.context_of() == 12
        driver.page_lock(5 << 40, 3 << 33)
        driver.page_unlock(5 << 40)
        driver.page_lock(5 << 40, 1 << 33, read_only=True)
        assert driver.allocation((9 << 40) + 100) == (9 << 40, 7 << 32)
        assert driver.allocation_number(9 << 40) == 13 << 40
        assert driver.export_memory(9 << 40) == bytes(range(64))
        assert driver.open_memory(bytes(range(64))) == 11 << 40
        driver.close_memory(11 << 40)
    assert driver._lib.context_depth() == 0


CALLS: dict[str, Callable[[CudaDriver], object]] = {
    "page_lock": lambda driver: driver.page_lock(5 << 40, 3 << 33),
    "page_unlock": lambda driver: driver.page_unlock(5 << 40),
    "allocation": lambda driver: driver.allocation(9 << 40),
    "allocation_number": lambda driver: driver.allocation_number(9 << 40),
    "export_memory": lambda driver: driver.export_memory(9 << 40),
    "open_memory": lambda driver: driver.open_memory(bytes(range(64))),
    "close_memory": lambda driver: driver.close_memory(11 << 40),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_fresh_thread_has_no_context_until_it_takes_one(driver: CudaDriver, name: str) -> None:
    with driver.on(2), ThreadPoolExecutor(1) as thread:
        with pytest.raises(CudaError, match=r"\(CUDA error 201\)"):
            thread.submit(CALLS[name], driver).result()

        def inside() -> None:
            with driver.on(3):
                assert driver._lib.context_of() == 13
                CALLS[name](driver)

        thread.submit(inside).result()
        assert driver._lib.context_of() == 12, "the other thread's own"


def test_a_refusal_is_the_drivers_own_text_and_leaves_the_context(driver: CudaDriver) -> None:
    with (
        pytest.raises(CudaError, match=r"^cuMemHostRegister_v2: out of memory \(CUDA error 2\)$"),
        driver.on(0),
    ):
        driver.page_lock(5 << 40, 1)
    assert driver._lib.context_depth() == 0
    with pytest.raises(CudaError, match=r"cuIpcCloseMemHandle: unknown error \(CUDA error 201\)"):
        driver.close_memory(11 << 40)


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(CudaError, match=r"no CUDA driver: libcuda.so.1"):
        CudaDriver()
