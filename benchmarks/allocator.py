"""Memory that a process keeps for itself."""

from __future__ import annotations

import ctypes
import platform

MMAP_MAX, TRIM_THRESHOLD, ARENA_MAX = -4, -1, -8  # of mallopt


def keep_memory() -> bool:
    """Lets the allocator of glibc keep what was freed, as others do by default; returns whether it could be told.

    Otherwise the large arrays of a training step are given back to the system and asked for again in the next one, page
    by page, which costs every model time. From outside, these variables do the same:
    `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1099511627776 MALLOC_ARENA_MAX=1`.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) for option, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (ARENA_MAX, 1)))
