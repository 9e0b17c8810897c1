"""The entry point of a training job: argv -> config -> run. Adopters: leave.

`python -m trainer.task --config FILE [--key=value ...]` is what the service starts on every machine, and
`python -m trainer train ...` is the same.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Sequence

from trainer import dataset, environment, flags, logs, process
from trainer.errors import EXIT_FAILED, EXIT_INTERRUPTED, UserError

log = logging.getLogger("trainer")

EXIT_KEYBOARD = 130
EXIT_PIPE = 141  # whoever read the output has gone, as in `... | head -1`


def train(argv: Sequence[str]) -> int:
    """Trains as the command line says, and returns the exit code."""
    arguments = flags.parse(argv)
    arguments = dataclasses.replace(arguments, config=dataset.apply(arguments.config))
    if arguments.print_config:
        from trainer import outputs

        print(outputs.resolved_yaml(arguments.config), end="")
        return 0
    me = environment.service()
    logs.setup(on_service=me.on_service, label=me.label, debug=arguments.debug)
    if warning := environment.lost_with_machine(environment.paths(arguments.config), me):
        log.warning(warning)
    environment.clean_tf_config()  # TensorFlow reads TF_CONFIG as soon as it makes a strategy
    if me.role == "evaluator":
        with process.quiet_import(arguments.debug):
            from trainer import evaluator
        evaluator.run(arguments.config)
        return 0
    with process.quiet_import(arguments.debug):
        from trainer import run
    run.train(arguments.config, fresh=arguments.fresh, debug=arguments.debug)
    return 0


def guard(command: Callable[[Sequence[str]], int | None], argv: Sequence[str]) -> int:
    """Runs a command with logs set up and turns how it ends into an exit code.

    Exit codes are an API of the service: 0 ends the whole job well, 1 and 2 are not worth a retry, and 143
    (SIGTERM after a checkpoint) means that the same command goes on from there.

    Args:
        command: takes the arguments and returns an exit code; None counts as 0.
        argv: its arguments.

    Returns:
        The exit code; a mistake of the user's is told in one entry without a traceback, anything else in
        one entry with it.
    """
    debug = any(token in ("--debug", "--debug=true", "--debug=1") for token in argv)
    process.prepare(debug=debug)
    logs.setup(on_service=environment.on_service(), debug=debug)
    try:
        return command(argv) or 0
    except UserError as error:
        log.log(logging.WARNING if error.exit_code == EXIT_INTERRUPTED else logging.ERROR, "%s", error)
        if debug:
            log.debug("raised here", exc_info=True)
        return error.exit_code
    except BrokenPipeError:
        if process.output_is_read():  # another pipe or connection
            log.critical("BrokenPipeError (a bug, or a failure of the machine)", exc_info=True)
            return EXIT_FAILED
        return EXIT_PIPE
    except KeyboardInterrupt:
        log.error("interrupted from the keyboard: the same command goes on from the last checkpoint")
        return EXIT_KEYBOARD
    except Exception as error:
        log.critical("%s (a bug, or a failure of the machine)", type(error).__name__, exc_info=True)
        return EXIT_FAILED
    finally:
        process.output_is_read()  # else Python complains of a closed pipe when it ends


def main(argv: Sequence[str] | None = None) -> int:
    """Trains; `argv` are the arguments after the program's name."""
    return guard(train, sys.argv[1:] if argv is None else argv)


if __name__ == "__main__":
    sys.exit(main())
