"""More broken job files: names, texts and values that the API's types allow and the service refuses."""

from __future__ import annotations

from broken_jobs import ARGS_END, CPU_IMAGE, STRUCTURE, Case, case

FLAG = "    - --data.reader_threads=8"
TRAINING = "us-docker.pkg.dev/vertex-ai/training/"
PACKAGE = "gs://my-bucket/packages/trainer-0.1.0.tar.gz"
ACCOUNT = "serviceAccount: trainer@my-project.iam.gserviceaccount.com"
ROWS = "bigqueryDestination: {outputUri: bq://my-project}"
PARENT = "parentCategoricalValues: {values: [adamw]}"


def env(*items: str) -> tuple[str, str]:
    """Returns the change that gives the CPU job environment variables."""
    lines = "".join(f"    - {item}\n" for item in items)
    return ARGS_END, ARGS_END.replace("\nsch", f"\n    env:\n{lines}sch")


NAMES: list[Case] = [
    # --- shape and counts ---
    case("wrong-type", "custom_job", "scheduling:", "- \nscheduling:"),
    case("wrong-type", "custom_job", "  replicaCount: 1\n", "  replicaCount: 1\n  replicaCount: 1\n"),
    case("wrong-type", "custom_job", "# One machine", "# One \x07machine"),
    case("wrong-type", "custom_job", "# One machine", "# One \x00machine"),
    case("wrong-type", "custom_job", "replicaCount: 1", "replicaCount: 99999999999999999999"),
    case("wrong-type", "spot", "acceleratorCount: 1", "acceleratorCount: .inf"),
    case("wrong-type", "custom_job", FLAG, f"{FLAG}\n    - "),
    case("wrong-type", "custom_job", FLAG, f"{FLAG}\n    - --epochs: 3"),
    case("wrong-type", "custom_job", "    args:", "    command: python -m trainer.task\n    args:"),
    case("wrong-type", "hp_tuning", "minValue: 1, maxValue: 5", "minValue: 1.5, maxValue: 5"),
    case(
        "one-of",
        "pipeline_managed_dataset",
        ROWS,
        f"{ROWS}\n  gcsDestination: {{outputUriPrefix: gs://my-bucket/x}}",
    ),
    case("replica-count", "multi_worker", "  replicaCount: 3\n", ""),
    case("replica-count", "custom_job", "  replicaCount: 1\n", ""),
    case("timeout-default", "custom_job", "timeout: 7200s", "timeout: 0s"),
    case("disk-size", "custom_job", "bootDiskSizeGb: 100", "bootDiskSizeGb: 64001"),
    case("arg-unknown", "custom_job", FLAG, f"{FLAG}\n    - --epochs 3"),
    # --- resources and accounts ---
    case("label", "pipeline", "{app: flights}", "{" + ", ".join(f"a{i}: b" for i in range(65)) + "}"),
    case("resource-name", "custom_job", ACCOUNT, "serviceAccount: trainer"),
    case("resource-name", "custom_job", ACCOUNT, "serviceAccount: someone@gmail.com"),
    case("resource-name", "custom_job", ACCOUNT, f"serviceAccount: {ACCOUNT.replace(': ', ':')}"),
    case("resource-name", "custom_job", "scheduling:", 'tensorboard: "1234567890"\nscheduling:'),
    case("resource-name", "custom_job", "scheduling:", "experiment: flights\nscheduling:"),
    case("resource-name", "private_network", "kmsKeyName: projects", "kmsKeyName: project"),
    case("resource-name", "private_network_psc", "/networkAttachments/", "/networks/"),
    case(
        "resource-name",
        "persistent_resource",
        "persistentResourceId: ",
        "persistentResourceId: projects/p/locations/us-central1/persistentResources/",
    ),
    case("resource-name", "pipeline", "modelToUpload:", "parentModel: flights\nmodelToUpload:"),
    case("resource-name", "pipeline", "modelToUpload:", "modelId: Flights\nmodelToUpload:"),
    case(
        "resource-name",
        "pipeline_managed_dataset",
        'datasetId: "1234567890123456789"',
        "datasetId: projects/p/locations/us-central1/datasets/1",
    ),
    case("model-alias", "pipeline", "[candidate]", "[my_alias]"),
    case("model-alias", "pipeline", "[candidate]", '["1"]'),
    case("secret", "custom_job", *env('{name: MIRROR, value: "https://user:hunter2@host/simple"}')),
    case("env-name", "custom_job", *env("{name: MODE}")),
    case("env-name", "custom_job", *env("{name: MODE, value: a}", "{name: MODE, value: b}")),
    case("env-reserved", "custom_job", *env("{name: AIP_TESTING_DATA_URI, value: gs://my-bucket/test}")),
    case(
        "nfs-network",
        "custom_job",
        "  replicaCount: 1\n",
        "  replicaCount: 1\n"
        "  lustreMounts: [{instanceIp: 10.0.0.2, volumeHandle: a/b/c, filesystem: f, mountPoint: d}]\n",
    ),
    # --- buckets and data ---
    case("bucket-name", "custom_job", "gs://my-bucket/runs/flights", "gs://My_Bucket/runs/flights"),
    case("bucket-name", "custom_job", "gs://my-bucket/flights/*", "gs://-my-bucket/flights/*"),
    case("output-not-gs", "custom_job", "gs://my-bucket/runs/flights", "gs://my-bucket/runs/*"),
    case("output-not-gs", "custom_job", "gs://my-bucket/runs/flights", "gs:/my-bucket/runs/flights"),
    case("data-unreadable", "custom_job", "gs://my-bucket/flights", "s3://my-bucket/flights"),
    case(
        "data-unreadable", "custom_job", "gs://my-bucket/flights/*.parquet", "bigquery://my-project.flights"
    ),
    case("data-local", "custom_job", "gs://my-bucket/flights", "/home/jupyter/flights"),
    case(
        "dataset-destination", "pipeline_managed_dataset", ROWS, "gcsDestination: {outputUriPrefix: /gcs/b/x}"
    ),
    case(
        "dataset-destination", "pipeline_managed_dataset", "bq://my-project", "bq://my-project.flights.rows"
    ),
    # --- images and programs ---
    case("image-name", "custom_job", CPU_IMAGE, f"https://{CPU_IMAGE}"),
    case("image-name", "custom_job", CPU_IMAGE, f'"{CPU_IMAGE} "'),
    case("image-name", "custom_job", CPU_IMAGE, CPU_IMAGE.replace("my-project", "My-Project")),
    case("image-name", "pipeline", "us-docker.pkg.dev/vertex-ai-r", "https://us-docker.pkg.dev/vertex-ai-r"),
    case("image-program", "custom_job", CPU_IMAGE, f"{TRAINING}tf-cpu.2-17.py310:latest"),
    case(
        "image-unknown", "custom_job", CPU_IMAGE, "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"
    ),
    case("image-unknown", "prebuilt_custom_job", "py310:latest", "py310:2024-09"),
    case("package-uri", "prebuilt_custom_job", PACKAGE, "dist/trainer-0.1.0.tar.gz"),
    case("package-uri", "prebuilt_custom_job", PACKAGE, "gs://my-bucket/packages/task.py"),
    case(
        "module-unknown", "prebuilt_custom_job", "pythonModule: trainer.task", "pythonModule: trainer/task.py"
    ),
    case("module-unknown", "prebuilt_custom_job", "pythonModule: trainer.task", "pythonModule: train.task"),
    case("module-unknown", "prebuilt_custom_job", "pythonModule: trainer.task", "pythonModule: trainer"),
    case(
        "module-unknown",
        "custom_job",
        "    args:",
        "    command: [python, -m, trainer.tsk]\n    args:",
    ),
    # --- the study ---
    case("parameter-range", "hp_tuning", "values: [adam, adamw]", "values: [adam, adamw, adam]"),
    case("parameter-range", "hp_tuning", "minValue: 1, maxValue: 5", "minValue: 1"),
    case("parameter-value", "hp_tuning", "[512, 1024, 2048, 4096]", "[512, 1024.5]"),
    case("parameter-parent", "hp_tuning", PARENT, "parentCategoricalValues: {values: [sgd]}"),
    case("parameter-parent", "hp_tuning", PARENT, "parentIntValues: {values: [1]}"),
    case("trials-parallel", "hp_tuning", "parallelTrialCount: 5", "parallelTrialCount: 60"),
    case("measurement-default", "hp_tuning", "  measurementSelectionType: BEST_MEASUREMENT\n", ""),
]
CASES = [*STRUCTURE, *NAMES]
