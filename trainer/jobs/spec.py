"""A job file as a typed model: its pools, args, scheduling, study, and the line of each. Adopters: leave.

A file holds what `gcloud ai custom-jobs create --config=` and `gcloud ai hp-tuning-jobs create --config=`
take, or a whole CustomJob, HyperparameterTuningJob or TrainingPipeline of the API, in camelCase or
snake_case. Positions of pools decide their roles, so an empty pool `{}` keeps its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.jobs.document import Value

CUSTOM_JOB, TUNING_JOB, PIPELINE = "CustomJob", "HyperparameterTuningJob", "TrainingPipeline"
ROLES = ("chief", "worker", "ps", "evaluator")  # of pools 0 to 3
TASKS = "gs://google-cloud-aiplatform/schema/trainingjob/definition/"
CUSTOM_TASK = TASKS + "custom_task_1.0.0.yaml"
TUNING_TASK = TASKS + "hyperparameter_tuning_task_1.0.0.yaml"
REDUCER_IMAGE = "vertex-ai-restricted/training/reductionserver"
WEEK = 7 * 24 * 3600.0  # the service's own timeout, in seconds


@dataclass(frozen=True)
class Pool:
    """One worker pool.

    Attributes:
        index: its position, which decides its role.
        value: where it stands in the file.
        empty: whether it is `{}`: its place is kept and no machine started.
        machine_type: machine type, or "".
        accelerator_type: accelerator type such as NVIDIA_TESLA_T4, or "".
        accelerator_count: accelerators of each replica.
        tpu_topology: such as 2x2, or "".
        replicas: number of machines; 1 where the file says nothing.
        image: image of the container, or the prebuilt one of a Python package.
        command: what replaces the image's ENTRYPOINT.
        args: arguments, as the program gets them.
        env: environment variables that the file sets.
        python_module: module of a Python package (`pythonPackageSpec`), or "".
        package_uris: its files.
        disk_type: boot disk type.
        disk_gb: boot disk size in GB.
    """

    index: int
    value: Value
    empty: bool = False
    machine_type: str = ""
    accelerator_type: str = ""
    accelerator_count: int = 0
    tpu_topology: str = ""
    replicas: int = 1
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    python_module: str = ""
    package_uris: tuple[str, ...] = ()
    disk_type: str = "pd-ssd"
    disk_gb: int = 100

    @property
    def name(self) -> str:
        """Its name in CLUSTER_SPEC, such as workerpool0."""
        return f"workerpool{self.index}"

    @property
    def role(self) -> str:
        """chief, worker, reducer (or ps) or evaluator."""
        if self.is_reducer:
            return "reducer"
        return ROLES[self.index] if self.index < len(ROLES) else f"pool {self.index}"

    @property
    def is_reducer(self) -> bool:
        """Whether its machines are reduction servers and not the trainer."""
        return "reductionserver" in self.image.replace("-", "").replace("_", "")

    @property
    def is_package(self) -> bool:
        """Whether it runs a Python package in a prebuilt container."""
        return self.value.get("pythonPackageSpec") is not None

    @property
    def is_tpu(self) -> bool:
        """Whether its machines are TPU VMs."""
        return self.accelerator_type.startswith("TPU") or self.machine_type.startswith(
            ("cloud-tpu", "ct", "tpu")
        )

    @property
    def container(self) -> str:
        """Name of the field that holds its program."""
        return "pythonPackageSpec" if self.is_package else "containerSpec"

    @property
    def runs_trainer(self) -> bool:
        """Whether its arguments are this trainer's flags."""
        if self.empty or self.is_reducer or self.value.get(self.container) is None:
            return False
        if self.is_package:
            return self.python_module in ("trainer.task", "trainer.__main__")
        if self.tunes:  # with flags of its own
            return False
        return not self.command or any(word.startswith("trainer") for word in self.command)

    @property
    def tunes(self) -> bool:
        """Whether its machines are the oracle and the workers of a keras-tuner study."""
        return "tune" in self.command and any(word.startswith("trainer") for word in self.command)

    def at(self, *keys: str | int) -> Value:
        """Returns where a field of it stands, or the nearest part of its path that is in the file."""
        return self.value.nearest(*keys)


@dataclass(frozen=True)
class Scheduling:
    """When and how often a job is tried.

    Attributes:
        value: where it stands; None when the file says nothing.
        timeout: seconds after which the service ends the job; None is its default of a week.
        restart_on_worker_restart: whether one restarted worker restarts all.
        strategy: STANDARD, SPOT, FLEX_START, or an old name.
        disable_retries: no retries, and no restart either.
        max_wait: seconds to wait for FLEX_START capacity.
    """

    value: Value | None = None
    timeout: float | None = None
    restart_on_worker_restart: bool = False
    strategy: str = "STANDARD"
    disable_retries: bool = False
    max_wait: float | None = None

    @property
    def restarts(self) -> bool:
        """Whether the service starts the whole job again when one worker was restarted."""
        return self.restart_on_worker_restart and not self.disable_retries


@dataclass(frozen=True)
class Parameter:
    """One hyperparameter of a study.

    Attributes:
        id: its id, which is the flag's name word for word.
        value: where it stands.
        kind: double, integer, discrete, categorical, or "" when the file doesn't say.
        low, high: bounds of a double or integer, both included.
        values: values of a discrete (floats) or categorical (texts).
        scale: scale type, or "".
        children: parameters that depend on its value.
    """

    id: str
    value: Value
    kind: str = ""
    low: float | None = None
    high: float | None = None
    values: tuple[Any, ...] = ()
    scale: str = ""
    children: tuple[Parameter, ...] = ()


@dataclass(frozen=True)
class Study:
    """A hyperparameter study.

    Attributes:
        value: where its spec stands.
        metrics: (metricId, goal, where it stands) of each metric.
        parameters: the parameters; `every_parameter` has those that depend on others too.
        algorithm: GRID_SEARCH, RANDOM_SEARCH, or "" for Bayesian optimisation.
        max_trials, parallel_trials, max_failed_trials: counts; None where the file doesn't say.
        measurement: BEST_MEASUREMENT, LAST_MEASUREMENT or "".
    """

    value: Value
    metrics: tuple[tuple[str, str, Value], ...] = ()
    parameters: tuple[Parameter, ...] = ()
    algorithm: str = ""
    max_trials: int | None = None
    parallel_trials: int | None = None
    max_failed_trials: int | None = None
    measurement: str = ""

    @property
    def every_parameter(self) -> list[Parameter]:
        """All parameters, each followed by those that depend on it."""
        found: list[Parameter] = []
        waiting = list(self.parameters)
        while waiting:
            parameter = waiting.pop(0)
            found.append(parameter)
            waiting = [*parameter.children, *waiting]
        return found


@dataclass(frozen=True)
class Job:
    """A job file.

    Attributes:
        file: its path.
        kind: CustomJob, HyperparameterTuningJob or TrainingPipeline.
        gcloud: whether gcloud's --config takes it as it is.
        root: the whole file, with the API's JSON names.
        spec: the job's spec in it: what a CustomJob's jobSpec holds.
        pools: the worker pools, empty ones too.
        scheduling: the scheduling.
        study: the study of a tuning job or tuning pipeline.
    """

    file: str
    kind: str
    gcloud: bool
    root: Value
    spec: Value
    pools: tuple[Pool, ...]
    scheduling: Scheduling
    study: Study | None = None

    @property
    def display_name(self) -> str:
        """The job's name: the file's own, else the file's name without its ending."""
        return (
            str(self.root.of("displayName", default="")) or os.path.splitext(os.path.basename(self.file))[0]
        )

    @property
    def labels(self) -> dict[str, str]:
        """The job's labels."""
        found: dict[str, str] = self.root.of("labels", default={})
        return found

    @property
    def kms_key(self) -> str:
        """The customer's own encryption key, or ""."""
        return str(self.root.of("encryptionSpec", "kmsKeyName", default=""))

    @property
    def service_account(self) -> str:
        """Whom the job runs as, or "" for the service's default."""
        return str(self.spec.of("serviceAccount", default=""))

    @property
    def network(self) -> str:
        """The peered VPC network, or ""."""
        return str(self.spec.of("network", default=""))

    @property
    def network_attachment(self) -> str:
        """The PSC interface's network attachment, or ""."""
        return str(self.spec.of("pscInterfaceConfig", "networkAttachment", default=""))

    @property
    def base_output(self) -> str:
        """The base output folder without trailing slash, or "": no AIP_MODEL_DIR is set then."""
        return str(self.spec.of("baseOutputDirectory", "outputUriPrefix", default="")).rstrip("/")

    @property
    def tensorboard(self) -> str:
        """The managed TensorBoard, or ""."""
        return str(self.spec.of("tensorboard", default=""))

    @property
    def persistent_resource(self) -> str:
        """Id of the persistent resource that the job runs on, or ""."""
        return str(self.spec.of("persistentResourceId", default=""))

    @property
    def active_pools(self) -> list[Pool]:
        """The pools that start machines."""
        return [pool for pool in self.pools if not pool.empty]

    @property
    def training_pools(self) -> list[Pool]:
        """The pools whose machines train together: 0 and 1."""
        return [pool for pool in self.active_pools if pool.index < 2]

    @property
    def workers(self) -> int:
        """Machines that train together, the chief among them."""
        return sum(pool.replicas for pool in self.training_pools)

    @property
    def is_tpu(self) -> bool:
        """Whether it trains on TPUs."""
        return any(pool.is_tpu for pool in self.active_pools)

    def request(self) -> dict[str, Any]:
        """Returns the job as the API's JSON: a CustomJob, HyperparameterTuningJob or TrainingPipeline."""
        whole: dict[str, Any] = self.root.plain
        if self.gcloud and self.kind == CUSTOM_JOB:
            whole = {"jobSpec": whole}
        return {"displayName": self.display_name, **whole}
