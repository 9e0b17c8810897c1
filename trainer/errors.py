"""The one exception that a user is meant to read. Adopters: leave."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

EXIT_USER_ERROR = 2  # bad flag, config, data or folder: running the same command again can't help
EXIT_FAILED = 1  # training failed (a loss that is not finite, the parity gate): not worth a retry
EXIT_LOST = 134  # a worker is gone or all of them hang: as after SIGABRT, the service tries the job again
EXIT_INTERRUPTED = 143  # SIGTERM, after a checkpoint was saved: run the same command again

_ALIKE = 0.6  # below, "run" would mean "train"


class UserError(Exception):
    """A mistake that its reader can mend, told in one sentence.

    The entry points print the message alone (no traceback) and exit with `exit_code`.
    """

    exit_code = EXIT_USER_ERROR


class TrainingError(UserError):
    """Training went wrong in a way that the data or the settings explain; nothing is exported."""

    exit_code = EXIT_FAILED


class LostError(UserError):
    """Another process of the job is missing, or nothing moves any more; the same command goes on."""

    exit_code = EXIT_LOST
    names_process = False  # whether the message says which process it speaks of


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the closest of `valid` in any case, or "" when none is close."""
    valid = list(valid)
    close = difflib.get_close_matches(name, valid, n=1, cutoff=_ALIKE)
    if not close:
        small = {item.lower(): item for item in reversed(valid)}
        close = [small[item] for item in difflib.get_close_matches(name.lower(), small, n=1, cutoff=_ALIKE)]
    return f"; did you mean {close[0]!r}?" if close else ""


def nearest_file(path: str, names: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the file of a folder that a path most likely means, or "".

    Folder and ending, which most files share, don't make two names alike. The only file with the right ending
    is proposed whatever its name.

    Args:
        path: the path that isn't there.
        names: the names in its folder.
    """
    folder, name = os.path.split(path)
    stem, ending = os.path.splitext(name)
    stems = {os.path.splitext(other)[0]: other for other in names if os.path.splitext(other)[1] == ending}
    close = list(stems) if len(stems) == 1 else difflib.get_close_matches(stem, stems, n=1, cutoff=_ALIKE)
    return f"; did you mean {os.path.join(folder, stems[close[0]])!r}?" if close else ""
