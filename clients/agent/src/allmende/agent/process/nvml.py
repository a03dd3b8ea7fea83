"""NVIDIA's management library through ctypes: how many GPUs there are, which, and how busy. Never sets anything.

The six functions are of its interface since version 2, which its vendor keeps. Where the library is missing there are no GPUs.
"""

import ctypes
from typing import NamedTuple

LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96


class Utilization(ctypes.Structure):
    """`nvmlUtilization_t`: percent of the last sample period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Gpu(NamedTuple):
    """One GPU. `number` is its place in PCI order, as CUDA_VISIBLE_DEVICES takes it."""

    number: int
    model: str


class Nvml:
    """An open library.

    Raises:
        OSError: there is none, or no driver answers.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        self._check(self._library.nvmlInit_v2())
        count = ctypes.c_uint()
        self._check(self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        self._handles = [self._handle(index) for index in range(count.value)]

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs of this machine."""
        return tuple(Gpu(index, self._model(handle)) for index, handle in enumerate(self._handles))

    def busy_percent(self, index: int) -> int | None:
        """How busy a GPU was lately, 0 to 100; None: it does not say."""
        found = Utilization()
        if index >= len(self._handles) or self._library.nvmlDeviceGetUtilizationRates(self._handles[index], ctypes.byref(found)):
            return None
        return min(100, int(found.gpu))

    def close(self) -> None:
        """Let the library go."""
        self._library.nvmlShutdown()

    def _handle(self, index: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)))
        return handle

    def _model(self, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        self._check(self._library.nvmlDeviceGetName(handle, text, ctypes.c_uint(_NAME_BYTES)))
        return text.value.decode(errors="replace")

    def _check(self, code: int) -> None:
        if code:
            raise OSError(f"the NVIDIA management library answers with error {code}")
