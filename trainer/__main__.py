"""`python -m trainer VERB`: one name for every command. Adopters: add verbs of your own to VERBS."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from trainer import process, task
from trainer.errors import UserError, nearest


@dataclass(frozen=True)
class Verb:
    """One command.

    Attributes:
        module: module that has it; imported when the verb is used, so that the others stay fast.
        function: takes the arguments after the verb and returns an exit code or None.
        description: its doc line.
    """

    module: str
    function: str
    description: str


VERBS = {
    "train": Verb("trainer.task", "train", "Train, evaluate, export and report, as a config file says."),
    "evaluate": Verb("trainer.evaluate", "main", "Evaluate an exported model on a split or other rows."),
    "predict": Verb("trainer.predict", "main", "Write an exported model's predictions for rows."),
    "tune": Verb("trainer.tuning.command", "main", "Search hyperparameters here, by a study file."),
    "check": Verb("trainer.jobs.check", "main", "Find what is wrong with job files, offline."),
    "cost": Verb("trainer.jobs.cost", "main", "Estimate what a job or a study costs."),
    "local": Verb("trainer.jobs.local", "main", "Run a job file on this machine, a process a replica."),
    "package": Verb("trainer.jobs.package", "main", "Pack the trainer for the prebuilt containers."),
    "submit": Verb("trainer.jobs.submit", "main", "Send a job to the training service."),
}


def usage() -> str:
    """Returns the list of verbs."""
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {verb.description}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            "usage: python -m trainer VERB [--KEY=VALUE ...]",
            "",
            *lines,
            "",
            "python -m trainer VERB --help tells more.",
        ]
    )


def run(argv: Sequence[str]) -> int | None:
    """Runs the verb that `argv` begins with; without one, prints the verbs.

    Raises:
        UserError: an unknown verb.
    """
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(usage())
        return 0
    name, *rest = argv
    if name not in VERBS:
        hint = nearest(name, VERBS) or f"; expected one of {', '.join(VERBS)}"
        raise UserError(f"unknown verb {name!r}{hint}")
    verb = VERBS[name]
    with process.quiet_import("--debug" in rest):
        module = importlib.import_module(verb.module)
    result: int | None = getattr(module, verb.function)(rest)
    return result


def main() -> int:
    """Runs the command line."""
    return task.guard(run, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
