"""The order of rows in each epoch: permutations and interleaving as pure arithmetic. Adopters: leave.

Everything here is a function of (seed, epoch) and row counts, so that a restarted run can go on at any row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def permutation(rows: int, *entropy: int) -> np.ndarray:
    """Returns a uniformly random order of `rows` rows.

    Sorts random 64-bit keys whose low bits are the row numbers, so that no two keys are equal and the result
    doesn't depend on the sorting algorithm. Only SeedSequence and the raw output of PCG64 are used, which
    NumPy keeps the same for ever (NEP 19); it gives no such promise for `Generator.permutation`.
    The order of two rows is biased where the random bits of their keys are equal: for 10 million rows, about
    45 of 5e13 pairs.

    Args:
        rows: number of rows, below 2**40.
        *entropy: what the order depends on, such as seed and epoch.

    Returns:
        int64 [rows], each of 0..rows-1 once.
    """
    if rows <= 0:
        return np.zeros(0, np.int64)
    keys = np.random.PCG64(np.random.SeedSequence(entropy)).random_raw(rows)
    mask = np.uint64((1 << int(rows).bit_length()) - 1)
    keys &= ~mask
    keys |= np.arange(rows, dtype=np.uint64)
    keys.sort()
    keys &= mask
    return keys.view(np.int64)


def interleave(
    counts: Sequence[int], order: Sequence[int], lanes: int, piece: int
) -> Iterator[tuple[int, int, int]]:
    """Deals units to lanes and takes a piece of each lane in turn, until every row was taken.

    Args:
        counts: rows of each unit.
        order: units in the order in which lanes take them up.
        lanes: units that are open at a time.
        piece: rows taken from a lane in its turn.

    Yields:
        (unit, start, stop): take rows start..stop of the unit.
    """
    waiting = iter([unit for unit in order if counts[unit] > 0])
    open_units = [
        [unit, 0] for _, unit in zip(range(lanes), waiting, strict=False)
    ]  # range first: zip drops none
    while open_units:
        still_open = []
        for unit, start in open_units:
            stop = min(start + piece, counts[unit])
            yield unit, start, stop
            if stop < counts[unit]:
                still_open.append([unit, stop])
            else:
                following = next(waiting, None)
                if following is not None:
                    still_open.append([following, 0])
        open_units = still_open


def cut(schedule: Iterator[tuple[int, int, int]], first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yields the part of a schedule of (unit, start, stop) that gives its rows first..last."""
    position = 0
    for unit, start, stop in schedule:
        if position >= last:
            return
        low, high = max(start, start + first - position), min(stop, start + last - position)
        position += stop - start
        if low < high:
            yield unit, low, high


def group(counts: Sequence[int], rows: int) -> list[list[int]]:
    """Puts small neighbouring units together, up to `rows` rows.

    Returns:
        Lists of unit numbers, in order; a unit of `rows` rows or more is a group of its own.
    """
    groups: list[list[int]] = []
    size = 0
    for unit, count in enumerate(counts):
        if groups and size + count <= rows:
            groups[-1].append(unit)
            size += count
        else:
            groups.append([unit])
            size = count
    return groups


def window(rows: int, index: int, count: int) -> tuple[int, int]:
    """Returns the rows first..stop of share `index` of `count` shares of rows, of equal size or one apart."""
    return index * rows // count, (index + 1) * rows // count


def within(counts: Sequence[int], first: int, stop: int) -> list[tuple[int, int, int]]:
    """Returns (unit, start, stop) of the rows first..stop, numbered as if all units were one."""
    return list(cut(interleave(counts, range(len(counts)), 1, max(counts, default=1) or 1), first, stop))
