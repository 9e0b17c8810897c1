"""What the processes of a job must agree in, and how one's end is put for the others. Adopters: leave."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

from trainer.config import Config
from trainer.environment import Service
from trainer.errors import EXIT_FAILED, LostError, UserError
from trainer.outputs import differing_keys

_MAY_DIFFER = ("output_dir", "data.cache_dir")  # folders of the machine


def hello(config: Config, me: Service) -> dict[str, Any]:
    """Returns what a worker says of itself when it meets the chief."""
    return {
        "kind": "hello",
        "rank": me.worker_index,
        "hosts": list(me.hosts),
        "versions": {name: metadata.version(name) for name in ("tensorflow", "keras")},
        "config": config.model_dump(mode="json"),
    }


def contradiction(name: str, theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    """Returns what is not the same in two processes of a job, as a sentence, or "".

    Args:
        name: of the other process.
        theirs: its `hello`.
        mine: the chief's own.
    """
    if theirs["hosts"] != mine["hosts"]:
        return f"TF_CONFIG: cluster: {name} has {theirs['hosts']}, the chief {mine['hosts']}"
    for package, version in mine["versions"].items():
        if theirs["versions"].get(package) != version:
            other = theirs["versions"].get(package)
            return f"{name} runs {package} {other}, the chief {version}: give all workers one image"
    changed = differing_keys(mine["config"], theirs["config"], free=_MAY_DIFFER)
    if changed:
        more = f"; and {len(changed) - 3} more" if len(changed) > 3 else ""
        return f"{name} was started with another config than the chief ({'; '.join(changed[:3])}{more})"
    return ""


def told(error: BaseException) -> dict[str, Any]:
    """Returns an error as a message to the other processes."""
    if isinstance(error, UserError):
        whole = getattr(error, "names_process", False)
        return {"kind": "failed", "message": str(error), "code": error.exit_code, "whole": whole}
    text = f"{type(error).__name__}: {error} (a bug, or a failure of the machine: see its own log)"
    return {"kind": "failed", "message": text, "code": EXIT_FAILED, "whole": False}


def failure(message: str, code: int) -> UserError:
    """Returns what a process failed with, in words that name it."""
    error = lost(message)
    error.exit_code = code
    return error


def lost(message: str) -> LostError:
    """Returns the loss of a process, in words that name it."""
    error = LostError(message)
    error.names_process = True
    return error


def is_exchange(error: BaseException) -> bool:
    """Tells whether an error is one of TensorFlow's about an exchange between processes."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return False
    kinds = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError", "InternalError",
             "UnknownError", "FailedPreconditionError")  # fmt: skip
    return isinstance(error, tuple(getattr(tf.errors, kind) for kind in kinds))
