"""The one exception that a user is meant to read. Adopters: leave."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_USER_ERROR = 2  # bad flag, config, data or folder: running the same command again can't help
EXIT_FAILED = 1  # training failed (a loss that is not finite, the parity gate): not worth a retry
EXIT_INTERRUPTED = 143  # SIGTERM, after a checkpoint was saved: run the same command again


class UserError(Exception):
    """A mistake that its reader can mend, told in one sentence.

    The entry points print the message alone (no traceback) and exit with `exit_code`.
    """

    exit_code = EXIT_USER_ERROR


class TrainingError(UserError):
    """Training went wrong in a way that the data or the settings explain; nothing is exported."""

    exit_code = EXIT_FAILED


def nearest(name: str, valid: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the closest of `valid`, or an empty string."""
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
