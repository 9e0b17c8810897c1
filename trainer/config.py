"""The typed run config: every key with its type, default and one doc line. Adopters: add keys here.

A config is a YAML file (with `base:` inheritance) and then flags; see `flags.py` for how the two are
put together. This module is plain pydantic and imports no TensorFlow.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainer.config_features import Feature, Section, Texts

QUERY_SOURCE = "bigquery://query"  # the result of data.query
# In 2.17 the reader of tensorflow-io loads, opens a session, and crashes the process at the first row.
READER_TENSORFLOW = "2.16"
Task = Literal["binary", "multiclass", "regression", "multilabel"]


# --- data -------------------------------------------------------------------------------------------


class CsvConfig(Section):
    delimiter: str = Field(",", min_length=1, max_length=1, description="Character between two fields.")
    header: bool = Field(True, description="Whether the first line of each file names the columns.")
    column_names: Texts = Field((), description="Column names for files without a header.")
    na_values: Texts = Field(
        ("", "NA", "N/A", "null", "NULL", "nan", "NaN"),
        description="Texts that mean a missing value, after blanks around them are dropped.",
    )


class SplitConfig(Section):
    by: Literal["time", "hash", "column", "paths"] = Field(
        "hash", description="How rows are dealt to train, validation and test."
    )
    column: str | None = Field(
        None,
        description="Column that decides: a time, a key to hash (default: data.key), or the split's name; "
        "not for by=paths.",
    )
    validation_from: str | None = Field(
        None, description="by=time: first moment (ISO 8601, or a number) of the validation split."
    )
    test_from: str | None = Field(None, description="by=time: first moment of the test split.")
    validation_fraction: float = Field(0.1, ge=0, lt=1, description="by=hash: share of the validation split.")
    test_fraction: float = Field(0.1, ge=0, lt=1, description="by=hash: share of the test split.")
    salt: str = Field("", description="by=hash: another salt deals another split of the same rows.")
    train_value: str = Field("training", description="by=column: value that marks the train split.")
    validation_value: str = Field("validation", description="by=column: value of the validation split.")
    test_value: str = Field("test", description="by=column: value of the test split.")
    validation_source: Texts = Field((), description="by=paths: source of the validation split.")
    test_source: Texts = Field((), description="by=paths: source of the test split.")

    @model_validator(mode="after")
    def _complete(self) -> SplitConfig:
        if self.by in ("time", "column", "hash") and self.column is None:
            or_key = ", or data.key" if self.by == "hash" else ""
            raise ValueError(
                f"split by {self.by} needs 'column': the name of the column that decides{or_key}"
            )
        if self.by == "time" and self.validation_from is None:
            raise ValueError("split by time needs 'validation_from': first moment of the validation split")
        if self.by == "paths" and not self.validation_source:
            raise ValueError("split by paths needs 'validation_source'")
        if self.by == "hash" and self.validation_fraction + self.test_fraction >= 1:
            raise ValueError(
                "validation_fraction + test_fraction must be below 1: nothing is left to train on"
            )
        return self


class DataConfig(Section):
    source: Texts = Field(
        ...,
        min_length=1,
        description="Files, folders or globs (local or gs://), or bigquery://project.dataset.table; "
        "bigquery://query is the result of data.query, and what stands here where that is given alone.",
    )
    query: str | None = Field(
        None,
        min_length=1,
        description="BigQuery: SELECT statement whose result is read; it is run once, when the run starts.",
    )
    format: Literal["auto", "parquet", "csv", "jsonl", "avro", "arrow", "tfrecord"] = Field(
        "auto", description="File format; auto goes by the file name."
    )
    csv: CsvConfig = Field(default_factory=CsvConfig, description="How CSV files are written.")
    split: SplitConfig = Field(..., description="How rows are dealt to train, validation and test.")
    key: str | None = Field(
        None, description="Column that names a row; passed through to predictions, never a feature."
    )
    weight: str | None = Field(None, description="Column with the weight of each row in loss and metrics.")
    limit_rows: int = Field(0, ge=0, description="Read at most this many rows of each split; 0 reads all.")
    cache: Literal["none", "memory", "disk"] = Field(
        "memory", description="Where encoded rows are kept after the first pass."
    )
    cache_dir: str | None = Field(
        None, description="Folder of the disk cache; default: in the output folder."
    )
    shuffle: bool = Field(True, description="Whether training rows are shuffled anew each epoch.")
    shuffle_rows: int = Field(
        262_144, ge=1, description="Rows that are mixed at a time when the cache is not in memory."
    )
    chunk_rows: int = Field(65_536, ge=1, description="Rows that are read and encoded at a time.")
    reader_threads: int = Field(2, ge=1, le=256, description="Files, parts of files or streams read at once.")
    sharding: Literal["batches", "rows"] = Field(
        "batches",
        description="Several workers: with batches each reads all rows and keeps its slice of every batch, "
        "so that figures are the same on any number of workers; with rows each reads its own share alone.",
    )
    on_bad_record: Literal["fail", "skip"] = Field(
        "fail", description="What to do with a row that can't be read as the features ask."
    )
    leak_checks: bool = Field(
        True, description="Look for rows or keys in two splits, and for columns that give the label away."
    )
    max_bad_records: int = Field(100, ge=0, description="on_bad_record=skip: fail after this many.")
    row_restriction: Texts = Field(
        (),
        description="BigQuery: condition on the rows, as in WHERE; several open a session each and must not "
        "overlap.",
    )
    project: str | None = Field(
        None,
        min_length=1,
        description="BigQuery: project that is billed; default: GOOGLE_CLOUD_PROJECT, CLOUD_ML_PROJECT_ID, "
        "else the table's.",
    )
    streams: int = Field(
        0, ge=0, le=1000, description="BigQuery: most streams of a session; 0 lets the service choose."
    )
    snapshot: str | None = Field(
        None,
        min_length=1,
        description="BigQuery: moment (ISO 8601) as of which the table is read; default: start of the run.",
    )
    reader: Literal["storage", "tensorflow-io"] = Field(
        "storage",
        description=f"BigQuery: what reads rows; tensorflow-io is for TensorFlow {READER_TENSORFLOW} alone.",
    )
    compression: Literal["lz4", "zstd", "none"] = Field(
        "lz4", description="BigQuery: how rows are compressed on their way."
    )
    retry_seconds: float = Field(
        600.0, gt=0, description="BigQuery: give up on a stream that gave no row for this long."
    )

    @model_validator(mode="before")
    @classmethod
    def _query_is_a_source(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("query") and "source" not in values:
            return {**values, "source": (QUERY_SOURCE,)}
        return values

    @model_validator(mode="after")
    def _query_or_source(self) -> DataConfig:
        if self.query is not None and self.source != (QUERY_SOURCE,):
            raise ValueError(
                f"data.query takes the place of data.source: leave one of the two out, or set source to "
                f"{QUERY_SOURCE}"
            )
        if self.query is None and QUERY_SOURCE in self.source:
            raise ValueError(f"source {QUERY_SOURCE} is the result of data.query, which is not given")
        return self

    @model_validator(mode="before")
    @classmethod
    def _split_by_key(cls, values: object) -> object:
        """Lets a split by hash go by data.key where it names no column."""
        if not isinstance(values, dict) or not values.get("key") or not isinstance(values.get("split"), dict):
            return values
        split = values["split"]
        if split.get("by", "hash") != "hash" or split.get("column") is not None:
            return values
        return {**values, "split": {**split, "column": values["key"]}}


class LabelConfig(Section):
    column: str | tuple[str, ...] = Field(
        ..., description="Label column; task multilabel takes several 0/1 columns."
    )
    classes: Texts = Field(
        (), description="Class names in output order; default: the sorted values of the train split."
    )
    missing: Literal["drop", "fail"] = Field(
        "drop", description="Rows without a label: drop them (counted in the log) or fail."
    )


# --- model and training -----------------------------------------------------------------------------


class ModelConfig(Section):
    name: Literal["linear", "dnn", "wide_deep", "dcn"] = Field("dcn", description="Architecture.")
    hidden_units: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (256, 128), description="Widths of the hidden layers."
    )
    activation: Literal[
        "relu",
        "gelu",
        "silu",
        "swish",
        "selu",
        "elu",
        "leaky_relu",
        "mish",
        "softplus",
        "tanh",
        "sigmoid",
        "linear",
    ] = Field("relu", description="Activation of the hidden layers.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Share of hidden units dropped in training.")
    batch_norm: bool = Field(False, description="Batch normalisation after each hidden layer.")
    cross_layers: int = Field(2, ge=1, le=16, description="dcn: number of cross layers.")
    embedding_dim: int = Field(16, ge=1, description="Width of the fused embedding table.")
    l2: float = Field(0.0, ge=0, description="L2 penalty on dense kernels.")
    embedding_l2: float = Field(0.0, ge=0, description="L2 penalty on the embedding rows of each batch.")


class EarlyStoppingConfig(Section):
    patience: int = Field(
        0, ge=0, description="Stop after this many epochs without improvement; 0 never stops."
    )
    min_delta: float = Field(0.0, ge=0, description="Smaller changes are no improvement.")


class ScheduleConfig(Section):
    name: Literal["constant", "cosine", "linear", "exponential"] = Field(
        "constant", description="Shape of the learning rate over the run's steps, after the warm-up."
    )
    warmup_steps: int = Field(0, ge=0, description="Steps over which the rate rises from zero.")
    final_fraction: float = Field(0.0, ge=0, le=1, description="Rate at the end as a share of learning_rate.")
    plateau_patience: int = Field(
        0, ge=0, description="Lower the rate after this many epochs without improvement; 0 never."
    )
    plateau_factor: float = Field(0.5, gt=0, lt=1, description="Factor of each lowering on a plateau.")


class TrainingConfig(Section):
    batch_size: int = Field(
        1024, ge=1, description="Global batch: rows of one optimizer step, over all replicas."
    )
    epochs: int = Field(3, ge=1, description="Passes over the train split.")
    steps_per_epoch: int | None = Field(
        None, ge=1, description="Steps of an epoch; default: one pass. More than a pass repeats the rows."
    )
    max_steps: int | None = Field(None, ge=1, description="Stop after this many steps, whatever epochs says.")
    optimizer: Literal["adam", "adamw", "sgd", "adagrad"] = Field("adam", description="Optimizer.")
    learning_rate: float = Field(
        1e-3,
        gt=0,
        description="Learning rate (peak, with a schedule) of the global batch: replicas don't change it.",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="sgd: momentum of the dense weights.")
    weight_decay: float = Field(0.0, ge=0, description="adamw: decoupled weight decay of the dense weights.")
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig, description="Learning rate over time.")
    clip_norm: float | None = Field(None, gt=0, description="Clip the global norm of the gradients.")
    accumulate: int = Field(1, ge=1, description="Cut each batch into this many parts, to save memory.")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="Label smoothing of classification losses.")
    class_weights: dict[str, float] = Field(
        default_factory=dict, description="Weight of each class in the training loss, by class name."
    )
    mixed_precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = Field(
        "float32", description="Number format of the computations; weights stay float32."
    )
    jit_compile: Literal["auto", "true", "false"] = Field(
        "false", description="Compile the step with XLA; auto does so on one GPU or a TPU."
    )
    steps_per_call: int = Field(0, ge=0, description="Steps inside one call of the graph; 0 chooses.")
    monitor: str = Field("val_loss", description="Metric that picks the best checkpoint and stops early.")
    monitor_mode: Literal["auto", "min", "max"] = Field(
        "auto", description="Whether lower or higher is better; auto knows the metrics of this trainer."
    )
    objective: str | None = Field(
        None,
        min_length=1,
        description="Metric reported to a tuning study, named as the study names it; default: monitor.",
    )
    objective_last: Literal["final", "best", "last"] = Field(
        "final",
        description="Last value reported to a study: final (the exported model's, measured anew), best (of "
        "the epochs) or last (the last epoch's).",
    )
    early_stopping: EarlyStoppingConfig = Field(
        default_factory=EarlyStoppingConfig, description="When to stop before the last epoch."
    )
    nonfinite_rollbacks: int = Field(
        0, ge=0, description="Times to go back to the last good checkpoint after a loss that is not finite."
    )

    @model_validator(mode="after")
    def _divides(self) -> TrainingConfig:
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size {self.batch_size} does not divide into accumulate={self.accumulate} parts"
            )
        return self


class CheckpointConfig(Section):
    every_steps: int = Field(0, ge=0, description="Save after this many steps; 0 saves by time alone.")
    every_seconds: float = Field(
        60.0, ge=0, description="Save when this long has passed; 0 saves by steps alone."
    )
    keep: int = Field(3, ge=2, description="Checkpoints kept besides the best one.")


class StrategyConfig(Section):
    name: Literal["auto", "one_device", "mirrored", "multi_worker_mirrored", "tpu"] = Field(
        "auto", description="tf.distribute strategy; auto goes by what the process sees."
    )
    cpu_replicas: int = Field(
        1, ge=1, le=64, description="Logical CPU devices, to try replicas without GPUs."
    )
    expect_gpus: int | None = Field(None, ge=0, description="Fail unless TensorFlow sees this many GPUs.")
    gpu_memory_growth: bool = Field(True, description="Let TensorFlow take GPU memory as it needs it.")
    deterministic: bool = Field(True, description="Ask TensorFlow for the same bits in each run.")
    communication: Literal["auto", "ring", "nccl"] = Field(
        "auto", description="Several workers: how sums cross the network; auto: nccl between GPUs, else ring."
    )
    pack_megabytes: float = Field(
        0.0, ge=0, description="Several workers: gradients of one message; 0: all of a step in one."
    )
    exchange_in: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Several replicas: number format in which gradients cross between them."
    )
    join_seconds: float = Field(
        1800.0, gt=0, description="Several workers: wait this long at the start for those that are missing."
    )
    lost_seconds: float = Field(
        120.0, ge=1, description="Several workers: one that gives no sign of life for this long is lost."
    )
    stall_seconds: float = Field(
        1800.0, ge=0, description="End the process if no training step finishes in this time; 0 never."
    )


class ExportConfig(Section):
    examples_signature: bool = Field(
        True, description="Write a second SavedModel for tf.Example records too."
    )
    parity_rows: int = Field(512, ge=1, description="Raw rows that the parity gate compares.")
    parity_tolerance: float = Field(1e-5, gt=0, description="Largest difference that the parity gate allows.")


class ReportConfig(Section):
    slice_by: Texts = Field((), description="Columns by whose values the figures are broken down.")
    slice_values: int = Field(12, ge=1, description="Most frequent values shown of each such column.")
    importance_rows: int = Field(5000, ge=0, description="Rows for permutation importance; 0 leaves it out.")


class Config(Section):
    """One training run."""

    name: str = Field(..., pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="Name of the run.")
    task: Task = Field(..., description="What is predicted.")
    seed: int = Field(1, ge=0, lt=2**31, description="Seed of weights, shuffling and dropout.")
    output_dir: str = Field("", description="Folder of the run; default runs/<name>.")
    data: DataConfig = Field(..., description="Where the rows come from.")
    label: LabelConfig = Field(..., description="What is learned.")
    features: tuple[Feature, ...] = Field(..., min_length=1, description="What it is learned from.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The model.")
    training: TrainingConfig = Field(default_factory=TrainingConfig, description="How it is trained.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="When state is saved.")
    strategy: StrategyConfig = Field(default_factory=StrategyConfig, description="On what it is trained.")
    export: ExportConfig = Field(default_factory=ExportConfig, description="How it is exported.")
    report: ReportConfig = Field(default_factory=ReportConfig, description="What the report shows.")

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        names = [feature.name for feature in self.features]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"features: the name {name!r} is used twice")
        labels = (self.label.column,) if isinstance(self.label.column, str) else self.label.column
        if (self.task == "multilabel") != (len(labels) > 1):
            raise ValueError(f"label.column: task {self.task} can't have {len(labels)} label column(s)")
        for feature in self.features:
            if feature.kind == "cross":
                for part in feature.of:
                    if part not in names or part == feature.name:
                        raise ValueError(
                            f"features: cross {feature.name!r} combines the unknown feature {part!r}"
                        )
            elif feature.source_column in labels:
                raise ValueError(
                    f"features: {feature.name!r} reads the label column {feature.source_column!r}"
                )
            elif feature.source_column == self.data.key:
                raise ValueError(
                    f"features: {feature.name!r} reads data.key, which names a row and tells nothing"
                )
        classes = self.label.classes
        if len(set(classes)) < len(classes):
            raise ValueError(f"label.classes: a class is given twice in {', '.join(classes)}")
        if self.task == "binary" and classes and len(classes) != 2:
            raise ValueError(f"label.classes: task binary has two classes, got {len(classes)}")
        for name in self.training.class_weights:
            if classes and name not in classes:
                raise ValueError(
                    f"training.class_weights: no class {name!r} in label.classes ({', '.join(classes)})"
                )
        if self.training.class_weights and self.task not in ("binary", "multiclass"):
            raise ValueError(f"training.class_weights: task {self.task} has no classes to weigh")
        return self
