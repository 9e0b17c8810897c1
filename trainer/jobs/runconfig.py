"""The run config that a job's arguments make, checked argument by argument. Adopters: leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from trainer import flags, schema, storage
from trainer.config import Config
from trainer.config_file import Node
from trainer.errors import UserError
from trainer.jobs.document import Value, joined
from trainer.jobs.loading import Notes
from trainer.jobs.spec import Job, Pool


@dataclass(frozen=True)
class Argument:
    """One flag of a job's arguments.

    Attributes:
        name: the flag without dashes.
        value: its value, or None.
        at: where it stands.
    """

    name: str
    value: str | None
    at: Value

    @property
    def text(self) -> str:
        """The flag in one word."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


@dataclass(frozen=True)
class RunConfig:
    """What a job's arguments make.

    Attributes:
        config: the run's config, or None when it can't be known.
        arguments: the flags of the chief.
        file: the local file that was read for --config, or None.
    """

    config: Config | None = None
    arguments: tuple[Argument, ...] = ()
    file: str | None = None

    def argument(self, leaf: str) -> Argument | None:
        """Returns the last argument that sets a key, by its full name."""
        for argument in reversed(self.arguments):
            try:
                if flags.find(argument.name).path == leaf:
                    return argument
            except UserError:
                continue
        return None


def arguments(pool: Pool, notes: Notes) -> list[Argument]:
    """Returns the flags of a pool's args, noting what is none."""
    args = pool.value.get(pool.container, "args")
    items = list(args.items()) if args else []
    found: list[Argument] = []
    while items:
        item = items.pop(0)
        try:
            ((name, value),) = flags.pairs([item.text])
        except UserError as error:
            notes.add("arg-unknown", item, str(error), "write --FLAG=VALUE")
            continue
        if value is None and items and not items[0].text.startswith("--"):
            value = items.pop(0).text
        found.append(Argument(name, value, item))
    return found


def local_twin(path: str, job_file: str) -> str | None:
    """Returns the local file that a job's --config most likely is a copy of, or None.

    A relative path is looked up from here and from the folders above the job file; of gs://BUCKET/a/b.yaml,
    /gcs/BUCKET/a/b.yaml and /app/a/b.yaml the endings with at least one folder are tried in the same way.
    """
    absolute = storage.is_remote(path) or os.path.isabs(path)
    if os.path.isabs(path) and os.path.exists(path):
        return path
    parts = [part for part in path.split("://")[-1].split("/") if part]
    names = ["/".join(parts[i:]) for i in range(1, len(parts) - 1)] if absolute else [path]
    folders = ["."]
    folder = os.path.dirname(os.path.abspath(job_file))
    while folder != os.path.dirname(folder):
        folders.append(folder)
        folder = os.path.dirname(folder)
    for name in names:
        for place in folders:
            candidate = os.path.normpath(os.path.join(place, name))
            if os.path.isfile(candidate):
                return candidate
    return None


def read(job: Job, notes: Notes, stand_in: str | None = None) -> RunConfig:
    """Returns the run config of the chief's arguments, noting every flag that doesn't fit.

    Args:
        job: the job.
        notes: told of each mistake.
        stand_in: local config file to use in place of the job's own.

    Raises:
        UserError: `stand_in` can't be read.
    """
    chief = job.pools[0] if job.pools else None
    if chief is None or not (chief.runs_trainer or chief.tunes):
        return RunConfig()
    given = arguments(chief, notes)
    known = {*flags.TRAIN}
    if chief.tunes:
        from trainer.tuning import command  # it stands on this package

        known |= {*command.OPTIONS}
        _study(job, given, notes)
    own = [argument for argument in given if argument.name.replace("-", "_") == "config"]
    if not own:
        at = chief.at(chief.container, "args")
        path = joined(joined(chief.value.path, chief.container), "args")
        notes.add("config-missing", at, "the trainer is not told its config", "write --config=FILE", path)
        return RunConfig(arguments=tuple(given))
    rest = [a for a in given if a.name.replace("-", "_") not in known]
    rest = [argument for argument in rest if _known(argument, notes)]
    files: list[str] = []
    for argument in own:
        file = stand_in or local_twin(argument.value or "", job.file)
        if file is None:
            notes.add(
                "config-not-here",
                argument.at,
                f"{argument.value} is not here, so that flags are checked by their own types alone",
                "name a local copy: check --config FILE",
            )
            _by_type(rest, notes)
            return RunConfig(arguments=tuple(given))
        files.append(file)
    return RunConfig(_load(files, own[0], rest, notes), tuple(given), files[-1])


def _study(job: Job, given: list[Argument], notes: Notes) -> None:
    """Notes what is wrong with the study file that a keras-tuner job names."""
    from trainer.tuning import study_file

    named = [argument for argument in given if argument.name == "study"]
    if not named:
        chief = job.pools[0]
        path = joined(joined(chief.value.path, chief.container), "args")
        at = chief.at(chief.container, "args")
        notes.add("config-missing", at, "tune is not told its study", "write --study=FILE", path)
        return
    file = local_twin(named[-1].value or "", job.file)
    if file is not None:
        try:
            study_file.load(file)
        except UserError as error:
            notes.add("config-invalid", named[-1].at, _one_line(error), "mend the study file")


def _known(argument: Argument, notes: Notes) -> bool:
    if argument.name.startswith("features.") and argument.name.count(".") > 1:
        return True  # the config knows its features
    try:
        flags.find(argument.name, flags.TRAIN)
    except UserError as error:
        problem, _, hint = str(error).partition("; ")
        flag, blank, text = argument.name.partition(" ")
        if blank:  # one item of the list is one argument, blanks and all
            problem, hint = f"--{argument.name!s} is one argument", f"write --{flag}={text.strip()}"
        notes.add("arg-unknown", argument.at, problem, hint or "write the full name of one key")
        return False
    return True


def _load(files: list[str], named: Argument, rest: list[Argument], notes: Notes) -> Config | None:
    try:
        return flags.load(files, [argument.text for argument in rest])
    except UserError as all_together:
        problems = all_together
    try:
        flags.load(files, [])
    except UserError as error:
        notes.add("config-invalid", named.at, _one_line(error), "mend the config file")
        return None
    blamed = False
    for argument in rest:
        try:
            flags.load(files, [argument.text])
        except UserError as error:
            notes.add("arg-value", argument.at, _one_line(error), f"mend --{argument.name}")
            blamed = True
    if not blamed:
        notes.add("config-invalid", named.at, _one_line(problems), "mend the arguments")
    good = [argument for argument in rest if argument.at.path not in {f.field for f in notes.findings}]
    try:
        return flags.load(files, [argument.text for argument in good])
    except UserError:
        return None


def _one_line(error: UserError) -> str:
    lines = str(error).splitlines()
    return lines[0] if len(lines) == 1 else f"{lines[0]} (and {len(lines) - 1} more)"


def _by_type(rest: list[Argument], notes: Notes) -> None:
    for argument in rest:
        if argument.name.startswith("features.") and argument.name.count(".") > 1:
            continue
        leaf = flags.find(argument.name)
        text = "true" if argument.value is None and leaf.annotation is bool else argument.value
        if text is None:
            notes.add("arg-value", argument.at, f"--{argument.name} needs a value", f"write {leaf.expected}")
        elif problem := mismatch(leaf, text):
            notes.add("arg-value", argument.at, problem, f"write {leaf.expected}")


def mismatch(leaf: schema.Leaf, text: str) -> str | None:
    """Returns what is wrong with a flag's text as the value of a key, or None when it fits.

    Lists are cut at commas, as on the command line. Rules that span several keys are not looked at.
    """
    takes_list = any(
        getattr(member, "__origin__", None) is tuple for member in schema.members(leaf.annotation)
    )
    value: Any = [Node(part.strip(), is_flag=True) for part in text.split(",")] if takes_list else text
    node = Node(value, is_flag=True)
    for part in reversed(leaf.path.split(".")):
        node = Node({part: node})
    reader = schema.Reader()
    found: Any = reader.section(node, Config)
    if reader.problems:
        return reader.problems[0].text
    for part in leaf.path.split("."):
        found = found[part]
    kind: Any = leaf.annotation
    if leaf.metadata:
        constrained = (leaf.annotation, *leaf.metadata)
        kind = Annotated[constrained]  # type: ignore[valid-type]
    try:
        TypeAdapter(kind).validate_python(found)
    except ValidationError:
        return f"Invalid {leaf.path}: got {text}, expected {leaf.expected}"
    return None


def trainer_pools(job: Job) -> Iterator[Pool]:
    """Yields the pools that run the trainer and train."""
    yield from (pool for pool in job.training_pools if pool.runs_trainer)
