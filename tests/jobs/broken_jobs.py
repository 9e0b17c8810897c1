"""Broken job files: each is a shipped one with a small change, and breaks one rule."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.jobs.context import Policy

JOBS = Path(__file__).parents[2] / "configs" / "jobs"
POOL_OF_CPUS = """- machineSpec: {machineType: n1-standard-8}
  replicaCount: 2
  containerSpec:
    imageUri: us-central1-docker.pkg.dev/my-project/trainer/trainer-cpu:0.1.0
    args:
    - --config=configs/flights.yaml  # in the image, below /app
    - --data.source=gs://my-bucket/flights/*.parquet
    - --data.reader_threads=8
"""
RESTART = "scheduling: {timeout: 7200s, restartJobOnWorkerRestart: true}"
REDUCERS = """- machineSpec: {machineType: n1-highcpu-16}
  replicaCount: 20
  containerSpec:
    imageUri: us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver:latest
"""
REDUCTION = "multi_worker_reduction_server"
CPU_IMAGE = "us-central1-docker.pkg.dev/my-project/trainer/trainer-cpu:0.1.0"
GPU_IMAGE = "us-central1-docker.pkg.dev/my-project/trainer/trainer-gpu:0.1.0"
ARGS_END = "    - --data.reader_threads=8\nscheduling"
OUTPUT = "baseOutputDirectory: {outputUriPrefix: gs://my-bucket/runs/flights}\n"

WORKER_ARGS = """    args:
    - --config=configs/flights.yaml
    - --data.source=gs://my-bucket/flights/*.parquet
    - --data.reader_threads=8
    - --batch_size=8192
    - --learning_rate=0.003
    - --strategy.expect_gpus=2
"""
PSC = """  pscInterfaceConfig:
    networkAttachment: projects/my-project/regions/us-central1/networkAttachments/training
    dnsPeeringConfigs:
    - {domain: internal.example., targetProject: my-project, targetNetwork: training}
"""
PACKAGE_ON_TPU = (
    "    imageUri: us-central1-docker.pkg.dev/my-project/trainer/trainer-tpu:0.1.0  # make image-tpu\n",
    "    executorImageUri: us-docker.pkg.dev/vertex-ai/training/tf-tpu.2-15.cp310:latest\n"
    "    packageUris: [gs://my-bucket/packages/trainer-0.1.0.tar.gz]\n    pythonModule: trainer.task\n",
    "containerSpec:",
    "pythonPackageSpec:",
    "--config=configs/flights.yaml",
    "--config=gs://my-bucket/configs/flights.yaml",
)
_STUDY = (JOBS / "hp_tuning.yaml").read_text()
PARAMETERS = _STUDY[_STUDY.index("  parameters:") : _STUDY.index("  measurementSelectionType")]
WHOLE = "the whole file"
LAST = "only the last: "
TODAY = datetime.date(2025, 6, 1)  # the prebuilt images had their support then


@dataclass(frozen=True)
class Case:
    """A broken job file.

    Attributes:
        rule: the rule that it breaks.
        text: the file.
        options: more arguments of `check`.
        also: a second rule that can't but be broken with it, or "".
    """

    rule: str
    text: str
    options: dict[str, Any] = field(default_factory=dict)
    also: str = ""


def case(rule: str, name: str, *changes: str, also: str = "", **options: Any) -> Case:
    """Makes a case from a shipped job file and (old, new) texts; an old text must be there as it stands."""
    text = (JOBS / f"{name}.yaml").read_text()
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if old == WHOLE:
            text = new
        elif old.startswith(LAST):
            before, found, after = text.rpartition(old.removeprefix(LAST))
            assert found, f"{name} has no {old}"
            text = before + new + after
        else:
            assert old in text, f"{name} has no {old!r}"
            text = text.replace(old, new)
    return Case(rule, text, {"today": TODAY, **options}, also)


STRUCTURE: list[Case] = [
    # --- shape ---
    case("no-job", "custom_job", WHOLE, "name: flights\nepochs: 3\n"),
    case("no-job", "custom_job", WHOLE, "# nothing\n"),
    case("unknown-field", "custom_job", "replicaCount: 1", "replicas: 1"),
    case("unknown-field", "custom_job", "machineType: n1", "machineTyp: n1"),
    case("unknown-field", "custom_job", "workerPoolSpecs:", "workerPoolSpec:"),
    case("unknown-field", "private_network", "labels:", "label:"),
    case("wrong-type", "custom_job", "- --data.reader_threads=8", "- --data.reader_threads=8\n    - 3"),
    case("wrong-type", "custom_job", "timeout: 7200s", "timeout: 7200"),
    case("wrong-type", "custom_job", "timeout: 7200s", "timeout: 2h"),
    case("wrong-type", "custom_job", "replicaCount: 1", "replicaCount: one"),
    case(
        "wrong-type", "multi_worker", "restartJobOnWorkerRestart: true", 'restartJobOnWorkerRestart: "true"'
    ),
    case("wrong-type", "custom_job", OUTPUT, "baseOutputDirectory: gs://my-bucket/runs/flights\n"),
    case(
        "wrong-type",
        "custom_job",
        "- machineSpec: {machineType: n1-standard-8}\n  ",
        "  machineSpec: {machineType: n1-standard-8}\n  ",
    ),
    case("wrong-type", "custom_job", "scheduling: {timeout: 7200s}", "scheduling: {timeout: 7200s"),
    case("unknown-value", "multi_gpu", "NVIDIA_L4", "NVIDIA_TESLA_L4"),
    case("unknown-value", "spot", "strategy: SPOT", "strategy: spot"),
    case("unknown-value", "hp_tuning", "goal: MAXIMIZE", "goal: MAX"),
    case("output-only", "private_network", "labels:", "state: JOB_STATE_RUNNING\nlabels:"),
    case(
        "one-of",
        "hp_tuning",
        "learning_rate\n    scaleType: UNIT_LOG_SCALE\n",
        "learning_rate\n    scaleType: UNIT_LOG_SCALE\n    categoricalValueSpec: {values: [a]}\n",
    ),
    case("snake-case", "custom_job", "replicaCount: 1", "replica_count: 1"),
    case("task-definition", "pipeline", "custom_task_1.0.0.yaml", "custom_task_2.0.0.yaml"),
    case("display-name", "pipeline", "displayName: flights-pipeline", f"displayName: {'flights-' * 20}"),
    case("label", "pipeline", "labels: {app: flights}", "labels: {app: Flights}"),
    # --- pools ---
    case(
        "pools-missing",
        "custom_job",
        WHOLE,
        "workerPoolSpecs: []\nscheduling: {timeout: 60s}\n"
        "serviceAccount: trainer@my-project.iam.gserviceaccount.com\n" + OUTPUT,
    ),
    case("chief-empty", "custom_job", "workerPoolSpecs:\n", "workerPoolSpecs:\n- {}\n"),
    case("chief-replicas", "multi_worker", "replicaCount: 1", "replicaCount: 5"),
    case("replica-count", "multi_worker", "replicaCount: 3", "replicaCount: 0"),
    case("pool-count", "custom_job", "scheduling", "- {}\n- {}\n- {}\n- {}\nscheduling"),
    case("machine-missing", "custom_job", "- machineSpec: {machineType: n1-standard-8}", "- machineSpec: {}"),
    case(
        "container-missing",
        "multi_worker",
        LAST + "  containerSpec:",
        "  diskSpec:",
        LAST + f"    imageUri: {GPU_IMAGE}\n",
        "",
        LAST + WORKER_ARGS,
        "    bootDiskSizeGb: 100\n",
    ),
    case("image-missing", "custom_job", f"imageUri: {CPU_IMAGE}", "command: [python, -m, trainer.task]"),
    case(
        "package-incomplete",
        "prebuilt_custom_job",
        "    packageUris: [gs://my-bucket/packages/trainer-0.1.0.tar.gz]\n",
        "",
    ),
    case(
        "container-kinds",
        "prebuilt_multi_worker",
        LAST + "pythonPackageSpec",
        "containerSpec",
        LAST + "executorImageUri",
        "imageUri",
        LAST
        + "    packageUris: [gs://my-bucket/packages/trainer-0.1.0.tar.gz]\n    pythonModule: trainer.task\n",
        "",
    ),
    case("container-images", "multi_worker", LAST + "trainer-gpu:0.1.0", "trainer-gpu:0.2.0"),
    case("worker-args", "multi_worker", LAST + "--learning_rate=0.003", "--learning_rate=0.3"),
    case(
        "worker-accelerators",
        "multi_worker",
        LAST + "acceleratorCount: 2",
        "acceleratorCount: 1",
        "    - --strategy.expect_gpus=2\n",
        "",
    ),
    case("worker-machines", "multi_worker", LAST + "n1-standard-16", "n1-standard-8"),
    case(
        "parameter-servers",
        "custom_job",
        "scheduling: {timeout: 7200s}",
        f"- {{}}\n{POOL_OF_CPUS}scheduling: {{timeout: 7200s}}",
    ),
    case(
        "evaluator",
        "custom_job",
        "scheduling: {timeout: 7200s}",
        f"- {{}}\n- {{}}\n{POOL_OF_CPUS}scheduling: {{timeout: 7200s}}",
    ),
    # --- TPUs ---
    case("tpu-pools", "tpu", "replicaCount: 1", "replicaCount: 2"),
    case("tpu-topology", "tpu", "tpuTopology: 2x2", "tpuTopology: 3x3"),
    case("tpu-topology", "tpu_v3", "acceleratorCount: 8", "acceleratorCount: 12"),
    case("tpu-tensorflow", "tpu", "ct5lp-hightpu-4t", "ct6e-standard-4t"),
    case("tpu-pod", "tpu", "tpuTopology: 2x2", "tpuTopology: 4x4"),
    case("tpu-package", "tpu", *PACKAGE_ON_TPU),
    case("tpu-package", "tpu_v3", *PACKAGE_ON_TPU),
    case("strategy", "tpu", "    - --strategy.name=tpu\n", ""),
    # --- reduction servers ---
    case(
        "reducer-pool",
        "custom_job",
        "scheduling: {timeout: 7200s}",
        f"- {{}}\n- {{}}\n{REDUCERS}scheduling: {{timeout: 7200s}}",
    ),
    case(
        "reducer-image",
        REDUCTION,
        "vertex-ai-restricted/training/reductionserver:latest",
        "vertex-ai/training/reductionserver:latest",
    ),
    case(
        "reducer-accelerator",
        REDUCTION,
        "- machineSpec: {machineType: n1-highcpu-16}",
        "- machineSpec: {machineType: n1-highcpu-16, acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: 1}",
    ),
    case(
        "reducer-program",
        REDUCTION,
        "reductionserver:latest",
        "reductionserver:latest\n    args: [--threads=4]",
    ),
    case(
        "reducer-gpus",
        "custom_job",
        "scheduling: {timeout: 7200s}",
        f"{POOL_OF_CPUS}{REDUCERS}{RESTART}",
        "--data.reader_threads=8",
        "--batch_size=1026",
    ),
    case("reducer-one-machine", "multi_gpu", "scheduling:", f"- {{}}\n{REDUCERS}scheduling:"),
    case("reducer-bandwidth", REDUCTION, "replicaCount: 13", "replicaCount: 12"),
    # --- machines ---
    case("machine-type", "custom_job", "n1-standard-8", "n1-standard-12"),
    case("accelerator-count-missing", "spot", "    acceleratorCount: 1\n", ""),
    case(
        "accelerator-builtin",
        "persistent_resource",
        "    acceleratorType: NVIDIA_L4\n    acceleratorCount: 1\n",
        "",
    ),
    case("accelerator-machine", "spot", "n1-standard-8", "e2-standard-8"),
    case(
        "accelerator-count",
        "spot",
        "acceleratorCount: 1",
        "acceleratorCount: 3",
    ),
    case("accelerator-ended", "spot", "NVIDIA_TESLA_T4", "NVIDIA_TESLA_K80"),
    case("accelerator-region", "spot", "us-central1-docker", "europe-west6-docker", region="europe-west6"),
    case("region", "custom_job", "us-central1-docker", "us-central9-docker", region="us-central9"),
    case("disk-type", "custom_job", "bootDiskType: pd-ssd", "bootDiskType: pd-sdd"),
    case("disk-size", "custom_job", "bootDiskSizeGb: 100", "bootDiskSizeGb: 50"),
    # --- the run's config ---
    case(
        "config-missing",
        "custom_job",
        "    - --config=configs/flights.yaml  # in the image, below /app\n",
        "",
    ),
    case(
        "config-relative",
        "prebuilt_custom_job",
        "--config=gs://my-bucket/configs/flights.yaml",
        "--config=configs/flights.yaml",
    ),
    case("config-not-here", "custom_job", "configs/flights.yaml", "configs/elsewhere.yaml"),
    case("arg-unknown", "custom_job", "--data.reader_threads=8", "--data.reader_treads=8"),
    case("arg-unknown", "custom_job", "--data.reader_threads=8", "-e=8"),
    case("arg-value", "custom_job", "--data.reader_threads=8", "--data.reader_threads=many"),
    case("arg-value", "custom_job", "--data.reader_threads=8", "--data.reader_threads=0"),
    case(
        "config-invalid", "custom_job", "--data.reader_threads=8", "--batch_size=1000\n    - --accumulate=16"
    ),
    case("args-too-long", "custom_job", "--data.reader_threads=8", f"--name={'x' * 100_001}"),
    case("batch-size", "multi_worker", "--batch_size=8192", "--batch_size=1020"),
    case(
        "strategy",
        "multi_gpu",
        "--strategy.expect_gpus=4",
        "--strategy.expect_gpus=4\n    - --strategy.name=one_device",
    ),
    case("strategy", "custom_job", "--data.reader_threads=8", "--strategy.name=multi_worker_mirrored"),
    case("expect-gpus", "multi_gpu", "--strategy.expect_gpus=4", "--strategy.expect_gpus=8"),
    case(
        "jit-compile",
        "multi_gpu",
        "--strategy.expect_gpus=4",
        "--strategy.expect_gpus=4\n    - --jit_compile=true",
    ),
    case("data-local", "custom_job", "    - --data.source=gs://my-bucket/flights/*.parquet\n", ""),
    case("reader-tensorflow", "custom_job", "--data.reader_threads=8", "--data.reader=tensorflow-io"),
    case(
        "reader-tensorflow", "prebuilt_custom_job", "--data.reader_threads=8", "--data.reader=tensorflow-io"
    ),
    case("output-missing", "custom_job", OUTPUT, ""),
    case("output-not-gs", "custom_job", "gs://my-bucket/runs/flights", "/gcs/my-bucket/runs/flights"),
    case("output-local", "custom_job", "--data.reader_threads=8", "--output_dir=runs/here"),
    case(
        "checkpoints-lost",
        "spot",
        "baseOutputDirectory: {outputUriPrefix: gs://my-bucket/runs/flights-spot}\n",
        "",
    ),
    # --- the study ---
    case("metric-missing", "hp_tuning", "  metrics:\n  - {metricId: val_auc, goal: MAXIMIZE}\n", ""),
    case(
        "metric-several",
        "hp_tuning",
        "goal: MAXIMIZE}",
        "goal: MAXIMIZE}\n  - {metricId: val_loss, goal: MINIMIZE}",
    ),
    case("metric-name", "hp_tuning", "metricId: val_auc", "metricId: val auc"),
    case("metric-unknown", "hp_tuning", "metricId: val_auc", "metricId: val_f1"),
    case("metric-objective", "hp_tuning", "metricId: val_auc", "metricId: val_accuracy"),
    case("metric-goal", "hp_tuning", "goal: MAXIMIZE", "goal: MINIMIZE"),
    case("parameters-missing", "hp_tuning", PARAMETERS, ""),
    case("parameter-unknown", "hp_tuning", "parameterId: learning_rate", "parameterId: learn_rate"),
    case("parameter-unknown", "hp_tuning", "parameterId: batch_size", "parameterId: buckets"),
    case(
        "parameter-twice",
        "hp_tuning",
        "parameterId: optimizer",
        "parameterId: optimizer\n    categoricalValueSpec: {values: [sgd]}\n"
        "  - parameterId: training.optimizer",
        "maxTrialCount: 50",
        "maxTrialCount: 60",
    ),
    case("parameter-spec", "hp_tuning", "    doubleValueSpec: {minValue: 1.0e-4, maxValue: 1.0e-2}\n", ""),
    case(
        "parameter-type",
        "hp_tuning",
        "integerValueSpec: {minValue: 1, maxValue: 5}",
        "doubleValueSpec: {minValue: 1, maxValue: 5}",
    ),
    case("parameter-value", "hp_tuning", "values: [adam, adamw]", "values: [adam, adamw, lamb]"),
    case("parameter-value", "hp_tuning", "minValue: 1, maxValue: 5", "minValue: 1, maxValue: 50"),
    case(
        "parameter-range",
        "hp_tuning",
        "minValue: 1.0e-4, maxValue: 1.0e-2",
        "minValue: 1.0e-2, maxValue: 1.0e-4",
    ),
    case("parameter-range", "hp_tuning", "[512, 1024, 2048, 4096]", "[1024, 512]"),
    case(
        "parameter-scale",
        "hp_tuning",
        "cross_layers\n    scaleType: UNIT_LINEAR_SCALE\n    integerValueSpec: {minValue: 1, maxValue: 5}",
        "dropout\n    scaleType: UNIT_LOG_SCALE\n    doubleValueSpec: {minValue: 0, maxValue: 0.5}",
    ),
    case(
        "parameter-scale",
        "hp_tuning",
        "parameterId: optimizer",
        "parameterId: optimizer\n    scaleType: UNIT_LINEAR_SCALE",
    ),
    case(
        "parameter-parent",
        "hp_tuning",
        "maxValue: 1.0e-2}",
        "maxValue: 1.0e-2}\n    conditionalParameterSpecs:\n    - parentDiscreteValues: {values: [0.001]}\n"
        "      parameterSpec: {parameterId: momentum, doubleValueSpec: {minValue: 0, maxValue: 0.9}}",
        "maxTrialCount: 50",
        "maxTrialCount: 60",
    ),
    case(
        "parameter-batch",
        "hp_tuning",
        "acceleratorCount: 1",
        "acceleratorCount: 2",
        "expect_gpus=1",
        "expect_gpus=2",
        "[512, 1024, 2048, 4096]",
        "[512, 1023]",
    ),
    case("grid-double", "hp_tuning", "studySpec:\n", "studySpec:\n  algorithm: GRID_SEARCH\n"),
    case("study-unsupported", "hp_tuning", "studySpec:\n", "studySpec:\n  observationNoise: HIGH\n"),
    case("study-unsupported", "hp_tuning", "maxValue: 1.0e-2}", "maxValue: 1.0e-2, defaultValue: 1.0e-3}"),
    case("trials-missing", "hp_tuning", "maxTrialCount: 50\n", ""),
    case("trials-parallel", "hp_tuning", "parallelTrialCount: 5", "parallelTrialCount: 50"),
    case("trials-blind", "hp_tuning", "parallelTrialCount: 5", "parallelTrialCount: 20"),
    case("trials-few", "hp_tuning", "maxTrialCount: 50", "maxTrialCount: 24"),
    case("trials-failed", "hp_tuning", "maxFailedTrialCount: 5\n", ""),
    case("trials-failed-many", "hp_tuning", "maxFailedTrialCount: 5", "maxFailedTrialCount: 60"),
    case(
        "tuning-tpu",
        "hp_tuning",
        "      machineType: n1-standard-8\n      acceleratorType: NVIDIA_TESLA_T4\n      acceleratorCount: 1",
        "      machineType: ct5lp-hightpu-4t\n      tpuTopology: 2x2",
        "trainer-gpu",
        "trainer-tpu",
        "expect_gpus=1",
        "name=tpu",
    ),
    # --- scheduling ---
    case(
        "retries-restart",
        "multi_worker",
        "restartJobOnWorkerRestart: true",
        "restartJobOnWorkerRestart: true\n  disableRetries: true",
    ),
    case("worker-restart", "multi_worker", "  restartJobOnWorkerRestart: true\n", ""),
    case("spot-retries", "spot", "restartJobOnWorkerRestart: true", "disableRetries: true"),
    case("tpu-pod", "tpu_v3", "acceleratorCount: 8", "acceleratorCount: 32"),
    case(
        "spot-tpu",
        "tpu",
        "tpuTopology: 2x2",
        "tpuTopology: 4x4",
        "timeout: 14400s",
        "timeout: 14400s, strategy: SPOT",
        also="tpu-pod",
    ),
    case(
        "flex-pools",
        "multi_worker",
        "NVIDIA_TESLA_T4\n    acceleratorCount: 2",
        "NVIDIA_L4\n    acceleratorCount: 1",
        "n1-standard-16",
        "g2-standard-16",
        LAST + "g2-standard-16",
        "g2-standard-12",
        "expect_gpus=2",
        "expect_gpus=1",
        "  restartJob",
        "  strategy: FLEX_START\n  restartJob",
        also="worker-machines",
    ),
    case(
        "flex-reducers",
        REDUCTION,
        "restartJobOnWorkerRestart: true",
        "restartJobOnWorkerRestart: true\n  strategy: FLEX_START",
    ),
    case("flex-accelerator", "spot", "strategy: SPOT", "strategy: FLEX_START"),
    case("flex-timeout", "multi_gpu", "timeout: 14400s", "timeout: 700000s, strategy: FLEX_START"),
    case("wait-strategy", "custom_job", "timeout: 7200s", "timeout: 7200s, maxWaitDuration: 600s"),
    case("old-strategy", "custom_job", "timeout: 7200s", "timeout: 7200s, strategy: ON_DEMAND"),
    case("timeout-default", "custom_job", "scheduling: {timeout: 7200s}\n", ""),
    case("persistent-strategy", "persistent_resource", "timeout: 7200s", "timeout: 7200s, strategy: SPOT"),
    # --- images ---
    case("image-unknown", "prebuilt_custom_job", "tf-cpu.2-17.py310", "tf-cpu.2-18.py310"),
    case("image-unknown", "pipeline", "tf_opt-cpu.nightly", "tf3-cpu.2-20"),
    case("image-unknown", "prebuilt_custom_job", "us-docker.pkg.dev/vertex-ai", "gcr.io/cloud-aiplatform"),
    case(
        "image-ended",
        "prebuilt_custom_job",
        "timeout: 7200s",
        "timeout: 7201s",
        today=datetime.date(2026, 11, 30),
    ),
    case("image-latest", "custom_job", "trainer-cpu:0.1.0", "trainer-cpu:latest"),
    case("image-latest", "custom_job", "trainer-cpu:0.1.0", "trainer-cpu"),
    case("image-device", "multi_gpu", "trainer-gpu:", "trainer-cpu:"),
    case("image-device", "prebuilt_multi_gpu", "tf-gpu.2-17", "tf-cpu.2-17"),
    case("image-idle", "custom_job", "trainer-cpu:", "trainer-gpu:"),
    case("image-tensorflow", "prebuilt_custom_job", "tf-cpu.2-17.py310", "tf-cpu.2-14.py310"),
    case("image-tensorflow", "custom_job", "trainer-cpu:0.1.0", "trainer-cpu:tf2.18"),
    case(
        "image-region",
        "custom_job",
        f"imageUri: {CPU_IMAGE}",
        "imageUri: europe-west4-docker.pkg.dev/my-project/trainer/trainer-cpu:0.1.0",
    ),
    case(
        "executor-image",
        "prebuilt_custom_job",
        "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest",
        CPU_IMAGE,
    ),
    case("serving-missing", "pipeline", "modelToUpload:\n  displayName: flights\n", "modelToUpload:\n"),
    case(
        "serving-older",
        "pipeline",
        "vertex-ai-restricted/prediction/tf_opt-cpu.nightly",
        "vertex-ai/prediction/tf2-cpu.2-15",
    ),
    case(
        "artifact-elsewhere",
        "pipeline",
        "modelToUpload:\n",
        "modelToUpload:\n  artifactUri: gs://my-bucket/old/model\n",
    ),
    case(
        "dataset-destination",
        "pipeline_managed_dataset",
        "  bigqueryDestination: {outputUri: bq://my-project}\n",
        "",
    ),
    # --- accounts, secrets, networks, regions ---
    case(
        "other-region",
        "private_network",
        "locations/us-central1/tensorboards",
        "locations/europe-west4/tensorboards",
    ),
    case(
        "bucket-region",
        "custom_job",
        "gs://my-bucket/runs/flights",
        "gs://my-bucket-europe-west4/runs/flights",
    ),
    case("default-account", "custom_job", "serviceAccount: trainer@my-project.iam.gserviceaccount.com\n", ""),
    case(
        "compute-account",
        "custom_job",
        "trainer@my-project.iam.gserviceaccount.com",
        "123456789-compute@developer.gserviceaccount.com",
    ),
    case(
        "tensorboard-account",
        "private_network",
        "  serviceAccount: trainer@my-project.iam.gserviceaccount.com\n",
        "",
    ),
    case(
        "tensorboard-output",
        "private_network",
        "  baseOutputDirectory: {outputUriPrefix: gs://my-bucket/runs/flights-private}\n",
        "",
        "--data.reader_threads=8",
        "--output_dir=gs://my-bucket/runs/flights",
    ),
    case(
        "secret",
        "custom_job",
        ARGS_END,
        ARGS_END.replace("\nsch", "\n    env:\n    - {name: DB_PASSWORD, value: hunter2}\nsch"),
    ),
    case(
        "secret",
        "custom_job",
        ARGS_END,
        ARGS_END.replace(
            "\nsch", "\n    env:\n    - {name: GOOGLE_APPLICATION_CREDENTIALS, value: /app/login.json}\nsch"
        ),
    ),
    case("secret", "custom_job", "--data.reader_threads=8", "--data.source=gs://b/service-account-key.json"),
    case(
        "env-name",
        "custom_job",
        ARGS_END,
        ARGS_END.replace("\nsch", "\n    env:\n    - {name: my-mode, value: fast}\nsch"),
    ),
    case(
        "env-reserved",
        "custom_job",
        ARGS_END,
        ARGS_END.replace("\nsch", "\n    env:\n    - {name: AIP_MODEL_DIR, value: gs://b/m}\nsch"),
    ),
    case(
        "env-keras",
        "custom_job",
        ARGS_END,
        ARGS_END.replace("\nsch", '\n    env:\n    - {name: TF_USE_LEGACY_KERAS, value: "1"}\nsch'),
    ),
    case("network-project", "private_network", "projects/123456789012/global", "projects/my-project/global"),
    case(
        "network-accelerator",
        "private_network_psc",
        "machineType: g2-standard-12\n      acceleratorType: NVIDIA_L4\n      acceleratorCount: 1",
        "machineType: a4-highgpu-8g\n      acceleratorType: NVIDIA_B200\n      acceleratorCount: 8",
        "expect_gpus=1",
        "expect_gpus=8",
        PSC,
        "  network: projects/1234/global/networks/training\n",
    ),
    case(
        "network-both",
        "private_network_psc",
        "  pscInterfaceConfig:",
        "  network: projects/1234/global/networks/training\n  pscInterfaceConfig:",
    ),
    case("dns-domain", "private_network_psc", "internal.example.", "internal.example"),
    case(
        "nfs-network",
        "custom_job",
        "  replicaCount: 1\n",
        "  replicaCount: 1\n  nfsMounts: [{server: 10.0.0.2, path: /data, mountPoint: data}]\n",
    ),
    case(
        "policy-cmek",
        "custom_job",
        "timeout: 7200s",
        "timeout: 7201s",
        policy=Policy(cmek=True, file="policy.yaml"),
    ),
    case(
        "policy-perimeter",
        "custom_job",
        "timeout: 7200s",
        "timeout: 7201s",
        policy=Policy(perimeter=True, file="policy.yaml"),
    ),
    case(
        "policy-region",
        "custom_job",
        "timeout: 7200s",
        "timeout: 7201s",
        policy=Policy(regions=("europe-west4",), file="policy.yaml"),
    ),
]
