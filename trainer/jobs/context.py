"""What a check of a job file gets to see. Adopters: leave."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from trainer.jobs.document import Value, joined
from trainer.jobs.loading import Notes
from trainer.jobs.runconfig import RunConfig
from trainer.jobs.spec import Job, Pool

_UNCLEAR = ("chief-replicas", "chief-empty", "replica-count", "worker-accelerators", "container-missing")
DEFAULT_REGION = "us-central1"
_LOCATION = re.compile(r"(?:^|/)(?:locations|regions)/([a-z0-9-]+)(?:/|$)")


@dataclass(frozen=True)
class Policy:
    """What an organisation asks of every job; see configs/policy/default.yaml.

    Attributes:
        cmek: whether a customer-managed key is needed.
        perimeter: whether the data is in a VPC Service Controls perimeter.
        regions: the regions allowed; empty for all.
        file: where it is from.
    """

    cmek: bool = False
    perimeter: bool = False
    regions: tuple[str, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Context:
    """A job, and what it is checked against.

    Attributes:
        job: the job.
        notes: takes the findings.
        run: the run config that its arguments make.
        region: where it is to run.
        today: the date that images and accelerators are held against.
        policy: what the organisation asks for.
    """

    job: Job
    notes: Notes
    run: RunConfig
    region: str
    today: datetime.date
    policy: Policy = field(default_factory=Policy)

    def add(self, rule: str, at: Value, why: str, instead: str, field_name: str | None = None) -> None:
        """Notes a finding at a field that is there; `field_name` names another one."""
        self.notes.add(rule, at, why, instead, field_name)

    def noted(self, *rules: str) -> bool:
        """Returns whether a finding of one of these rules was noted; a name may begin several."""
        return any(finding.rule.startswith(rules) for finding in self.notes.findings)

    @property
    def machines_unclear(self) -> bool:
        """Whether the machines are wrong themselves, so that what follows from them says nothing."""
        return self.noted("accelerator-", "machine-", "tpu-topology", "tpu-pools", *_UNCLEAR)

    def add_in(self, rule: str, parent: Value, keys: tuple[str, ...], why: str, instead: str) -> None:
        """Notes a finding about a field below `parent`, whether it is there or not."""
        path = parent.path
        for key in keys:
            path = joined(path, key)
        self.notes.add(rule, parent.nearest(*keys), why, instead, path)

    def add_pool(self, rule: str, pool: Pool, keys: tuple[str, ...], why: str, instead: str) -> None:
        """Notes a finding about a field of a pool, whether it is there or not."""
        self.add_in(rule, pool.value, keys, why, instead)


def resources(job: Job) -> Iterator[tuple[Value, str]]:
    """Yields (field, region) of every resource that a job names by a path with a location."""
    places = [
        job.root.get("encryptionSpec", "kmsKeyName"),
        job.spec.get("tensorboard"),
        job.spec.get("experiment"),
        job.spec.get("experimentRun"),
        job.spec.get("pscInterfaceConfig", "networkAttachment"),
        job.root.get("parentModel"),
        job.root.get("modelToUpload", "encryptionSpec", "kmsKeyName"),
    ]
    for value in places:
        match = _LOCATION.search(str(value.data)) if value is not None else None
        if value is not None and match and match[1] != "global":
            yield value, match[1]


def region_of(job: Job) -> str:
    """Returns the region that the job's own resources name; without any, the default one."""
    return next((region for _, region in resources(job)), DEFAULT_REGION)
