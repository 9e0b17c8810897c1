"""Which freed memory is kept for the next chunk of rows, once TensorFlow has its way. Adopters: leave."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

# mallopt(3): parameter numbers of glibc's malloc.h, and the largest value that M_MMAP_THRESHOLD may have.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_BYTES = 32 << 20


@functools.cache
def keep_freed_blocks() -> bool:
    """Lets freed blocks of up to 32 MiB be used again, and larger runs of free memory go back to the system.

    The first iterator of a generator dataset makes TensorFlow 2.21 set M_TRIM_THRESHOLD to 128 KiB, whatever
    was set at the start; from then on each chunk of rows is paged in anew, which costs a fifth of the input
    path's CPU time. Call it after that. With much more than 32 MiB the memory of a run creeps up for epochs.

    Returns:
        Whether it was done: not where MALLOC_* or GLIBC_TUNABLES say what the user wants, or without glibc.
    """
    chosen = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if chosen or not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _BYTES))
