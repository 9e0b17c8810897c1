"""The input path against its peers: rows a second from files to batches that a model can take.

    python benchmarks/input.py [--rows 1000000] [--samples 5] [--json PATH] [--memory] [--growth]
        [--markdown docs/performance.md] [--plot docs/input-growth.svg]

13 numbers and 26 texts a row, batches of 4,096, two cores. All variants take turns in one process (same rows,
same cores, same allocator), each timed from the start of its iterator to its last batch; figures are medians
of the samples in which other processes took least of the machine. CPU time a row is shown beside them: it is
the figure to compare where the machine was shared. Peers get their best configuration: parallel calls for
both cores, deterministic order, autotune off, and no stacking of their 39 columns into blocks.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

from trainer import process

process.prepare()  # the allocator settings of a training run, for peers and ours alike

import input_data  # noqa: E402
import input_memory  # noqa: E402
import input_report  # noqa: E402
import tensorflow as tf  # noqa: E402

from benchmarks.measuring import to_last  # noqa: E402
from trainer.data.encode import Encoder  # noqa: E402
from trainer.data.pipeline import Pipeline  # noqa: E402
from trainer.data.source import Source, Unit, open_rows  # noqa: E402
from trainer.features import Features, fit  # noqa: E402

BATCH = 4096
MAX_OTHERS = 0.15  # cores taken by other processes, above which a sample counts as disturbed


@dataclass
class Variant:
    """One way to read rows.

    Attributes:
        name: what the table calls it.
        run: reads all rows; returns (rows, seconds to the last batch).
        samples: (rows a second, cores taken by other processes).
        cpu: CPU microseconds a row of each sample, all threads together.
    """

    name: str
    run: Callable[[], tuple[int, float]]
    samples: list[tuple[float, float]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def kept(self) -> list[float]:
        """Returns the undisturbed samples, or the least disturbed half where most are disturbed."""
        ordered = sorted(self.samples, key=lambda sample: sample[1])
        clean = [rate for rate, others in ordered if others <= MAX_OTHERS]
        return clean if len(clean) >= 3 else [rate for rate, _ in ordered[: max(3, len(ordered) // 2)]]

    @property
    def rate(self) -> float:
        """Rows a second."""
        return statistics.median(self.kept())

    @property
    def disturbed(self) -> int:
        """Samples in which other processes took part of the machine."""
        return sum(others > MAX_OTHERS for _, others in self.samples)


def machine_seconds() -> float:
    """Returns CPU seconds that all processes of the machine have used."""
    with open("/proc/stat") as text:
        user, nice, system, _, _, irq, soft, *_ = map(int, text.readline().split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    times = os.times()
    return times.user + times.system


def sample(variant: Variant, expected: int) -> None:
    """Times a variant once.

    Raises:
        RuntimeError: it didn't give all rows.
    """
    gc.collect()
    wall, machine, own = time.perf_counter(), machine_seconds(), own_seconds()
    rows, seconds = variant.run()
    wall = time.perf_counter() - wall
    others = max(0.0, (machine_seconds() - machine) - (own_seconds() - own)) / wall
    if rows != expected:
        raise RuntimeError(f"{variant.name} gave {rows} rows, expected {expected}")
    variant.samples.append((rows / seconds, others))
    variant.cpu.append((own_seconds() - own) / rows * 1e6)


# --- variants -----------------------------------------------------------------------------------------


def valid_rows(batch: dict[str, tf.Tensor]) -> int:
    return int(batch["valid"].numpy().sum())


def options(dataset: tf.data.Dataset) -> tf.data.Dataset:
    fixed = tf.data.Options()
    fixed.autotune.enabled = False
    fixed.deterministic = True
    return dataset.with_options(fixed)


def ours(source: Source, encoder: Encoder, shuffle: bool) -> Callable[[], tuple[int, float]]:
    pipeline = Pipeline(source, encoder, batch_size=BATCH, cache="none", shuffle=shuffle)
    pipeline.prepare()
    return lambda: to_last(pipeline.training(0, pipeline.steps_per_epoch), valid_rows)


def decode_encode(source: Source, encoder: Encoder, threads: int) -> Callable[[], tuple[int, float]]:
    """Arrow decoding and encoding without TensorFlow: one after the other, or units in two threads."""
    if threads == 1:
        return lambda: to_last(source.batches(encoder.columns), lambda batch: len(encoder(batch).numeric))

    def rows_of(unit: Unit) -> int:
        return sum(len(encoder(batch).numeric) for batch in source.read(unit, encoder.columns))

    def run() -> tuple[int, float]:
        with ThreadPoolExecutor(threads) as pool:
            return to_last(pool.map(rows_of, source.units()), lambda rows: rows)

    return run


def first_epoch(source: Source, encoder: Encoder) -> Callable[[], tuple[int, float]]:
    def run() -> tuple[int, float]:
        begin = time.perf_counter()
        pipeline = Pipeline(source, encoder, batch_size=BATCH)
        pipeline.prepare()
        loading = time.perf_counter() - begin
        rows, seconds = to_last(pipeline.training(0, pipeline.steps_per_epoch), valid_rows)
        return rows, loading + seconds

    return run


def second_epoch(source: Source, encoder: Encoder) -> Callable[[], tuple[int, float]]:
    pipeline = Pipeline(source, encoder, batch_size=BATCH)
    pipeline.prepare()
    steps = pipeline.steps_per_epoch
    return lambda: to_last(pipeline.training(steps, 2 * steps), valid_rows)


def record_spec(numbers: int, categories: int) -> dict[str, tf.io.FixedLenFeature]:
    spec = {"label": tf.io.FixedLenFeature([], tf.int64)}
    spec |= {f"n{i}": tf.io.FixedLenFeature([], tf.float32) for i in range(numbers)}
    return spec | {f"c{i}": tf.io.FixedLenFeature([], tf.string) for i in range(categories)}


def record_files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.iterdir())


def peer_lookup(folder: Path, features: Features, numbers: int, categories: int) -> Callable[[], Any]:
    """TFRecord as people read it well: batch, parse the batch, look up each text column."""
    spec = record_spec(numbers, categories)
    layers = {
        item.name: tf.keras.layers.StringLookup(vocabulary=list(item.vocabulary))
        for item in features.fitted
        if item.config.kind == "categorical"
    }

    def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
        parsed = tf.io.parse_example(records, spec)
        return {name: layers[name](value) if name in layers else value for name, value in parsed.items()}

    dataset = tf.data.TFRecordDataset(record_files(folder)).batch(BATCH)
    dataset = options(dataset.map(parse, num_parallel_calls=2).prefetch(2))
    return lambda: to_last(dataset, lambda batch: len(batch["label"]))


def peer_record_by_record(folder: Path, numbers: int, categories: int) -> Callable[[], Any]:
    spec = record_spec(numbers, categories)
    dataset = tf.data.TFRecordDataset(record_files(folder))
    dataset = dataset.map(lambda record: tf.io.parse_single_example(record, spec), num_parallel_calls=2)
    dataset = options(dataset.batch(BATCH).prefetch(2))
    return lambda: to_last(dataset, lambda batch: len(batch["label"]))


def peer_csv(folder: Path) -> Callable[[], Any]:
    """make_csv_dataset, which parses only: no text becomes an id."""
    dataset = tf.data.experimental.make_csv_dataset(
        record_files(folder), BATCH, label_name="label", num_epochs=1, shuffle=False, num_parallel_reads=2
    )
    dataset = options(dataset)
    return lambda: to_last(dataset, lambda batch: len(batch[1]))


# --- other measurements -------------------------------------------------------------------------------


def stalls(source: Source, encoder: Encoder, passes: int, pass_seconds: float) -> tuple[float, float]:
    """Times the end of many passes: until the iterator is gone, over the time to its last batch.

    Returns:
        Largest and median of the passes in which other processes took least of the machine.
    """
    pipeline = Pipeline(source, encoder, batch_size=BATCH, cache="memory", shuffle=False)
    _, once = to_last(pipeline.evaluation(), lambda _: 0)
    dataset = pipeline.training(0, pipeline.steps_per_epoch * max(1, round(pass_seconds / once)))
    found = []
    for _ in range(passes):
        machine, own, begin = machine_seconds(), own_seconds(), time.perf_counter()
        _, last = to_last(dataset, lambda _: 0)
        wall = time.perf_counter() - begin
        others = ((machine_seconds() - machine) - (own_seconds() - own)) / wall
        found.append((others, wall / last))
    clean = [ratio for others, ratio in found if others <= MAX_OTHERS]
    kept = (
        clean if len(clean) >= passes // 2 else [ratio for _, ratio in sorted(found)[: max(1, passes // 2)]]
    )
    return max(kept), statistics.median(kept)


# --- the run ------------------------------------------------------------------------------------------


def setting(
    folder: Path, kind: str, rows: int, files: int, arguments: argparse.Namespace
) -> tuple[Path, Source]:
    size = (arguments.numbers, arguments.categories)
    path = input_data.write(folder, kind, rows, files, *size, arguments.vocabulary)
    config = input_data.config(path, *size)
    return path, open_rows(str(path), config, labelled=True)


def compare(arguments: argparse.Namespace, folder: Path) -> tuple[list[input_report.Line], list[Variant]]:
    """Runs all variants in turn and returns the ratios."""
    rows, few = arguments.rows, max(BATCH, arguments.rows // 20)
    some = max(BATCH, rows // 5)
    size = (arguments.numbers, arguments.categories)
    parquet_path, once = setting(folder, "parquet", rows, 4, arguments)
    features = fit(input_data.config(parquet_path, *size), once.batches())
    (folder / "features.json").write_text(features.to_json())
    encoder = Encoder(features)

    # Samples of about two seconds: to build a dataset takes a tenth of one, and a run does it once.
    def repeated(kind: str, count: int, files: int, times: int) -> tuple[Path, Source]:
        path, _ = setting(folder, kind, count, files, arguments)
        path = input_data.links(folder, path, times)
        return path, open_rows(str(path), input_data.config(path, *size), labelled=True)

    _, parquet = repeated("parquet", rows, 4, 4)
    _, csv = repeated("csv", some, 4, 3)
    record_path, records = repeated("tfrecord", some, 4, 2)
    few_csv, _ = repeated("csv", few, 2, 2)
    few_records, _ = repeated("tfrecord", few, 2, 1)

    variants = {
        "decode+encode": (
            Variant("Parquet: decode + encode, no TensorFlow", decode_encode(parquet, encoder, 2)),
            4 * rows,
        ),
        "in turn": (
            Variant("Parquet: decode + encode, one after the other", decode_encode(parquet, encoder, 1)),
            4 * rows,
        ),
        "parquet": (Variant("Parquet: batches", ours(parquet, encoder, False)), 4 * rows),
        "shuffled": (Variant("Parquet: batches, shuffled", ours(parquet, encoder, True)), 4 * rows),
        "first": (Variant("Parquet: first epoch, cache=memory", first_epoch(parquet, encoder)), 4 * rows),
        "second": (Variant("cache=memory: second epoch", second_epoch(parquet, encoder)), 4 * rows),
        "csv": (Variant("CSV: batches", ours(csv, encoder, False)), 3 * some),
        "records": (Variant("TFRecord: batches", ours(records, encoder, False)), 2 * some),
        "lookup": (
            Variant("peer: TFRecord, parse_example, StringLookup", peer_lookup(record_path, features, *size)),
            2 * some,
        ),
        "single": (
            Variant("peer: TFRecord, parse_single_example", peer_record_by_record(few_records, *size)),
            few,
        ),
        "make_csv": (Variant("peer: make_csv_dataset", peer_csv(few_csv)), 2 * few),
    }
    for variant, expected in variants.values():  # traces, page cache, code: not counted
        sample(variant, expected)
        variant.samples.clear()
        variant.cpu.clear()
    for _ in range(arguments.samples):
        for variant, expected in variants.values():
            sample(variant, expected)
    rate = {name: variant.rate for name, (variant, _) in variants.items()}
    cpu = {name: statistics.median(variant.cpu) for name, (variant, _) in variants.items()}

    def ratio(name: str, above: str, below: str, goal: float) -> input_report.Line:
        detail = f"{rate[above] / 1e3:,.0f} k / {rate[below] / 1e3:,.0f} k rows/s"
        detail += f"; CPU time a row: {cpu[below] / cpu[above]:.3g} times less"
        return input_report.Line(name, rate[above] / rate[below], goal, True, detail)

    faster = max(("decode+encode", "in turn"), key=lambda name: rate[name])
    stall, usual = stalls(once, encoder, arguments.passes, arguments.pass_seconds)
    lines = [
        ratio("Parquet / TFRecord + parse_example + StringLookup", "parquet", "lookup", 7),
        ratio("Parquet / make_csv_dataset", "parquet", "make_csv", 25),
        ratio("Parquet / decode + encode without TensorFlow", "parquet", faster, 0.75),
        ratio("CSV / make_csv_dataset", "csv", "make_csv", 6),
        ratio("TFRecord / parsing record by record", "records", "single", 10),
        ratio("shuffled / unshuffled", "shuffled", "parquet", 0.75),
        ratio("second epoch from memory / first", "second", "first", 3),
        input_report.Line(
            "end of pass: wall / time to last batch",
            stall,
            1.02,
            False,
            f"largest of {arguments.passes} passes; median {usual:.4f}",
        ),
    ]
    return lines, [variant for variant, _ in variants.values()]


def memory(arguments: argparse.Namespace, folder: Path) -> input_report.Line:
    path, _ = setting(folder, "parquet", arguments.rows, 4, arguments)
    folders = (input_data.links(folder, path, 1), input_data.links(folder, path, 10))
    return input_memory.compare(*folders, folder / "features.json", arguments.numbers, arguments.categories)


def growth(arguments: argparse.Namespace, folder: Path) -> Iterator[input_report.Growth]:
    """Measures how the rate goes with the number of columns and the size of the vocabularies."""
    cases = [(*size, 10_000) for size in ((13, 0), (0, 26), (13, 26), (52, 104))]
    cases += [(13, 26, 100), (13, 26, 1_000_000)]
    for numbers, categories, largest in cases:
        case = argparse.Namespace(
            **vars(arguments) | {"numbers": numbers, "categories": categories, "vocabulary": largest}
        )
        rows = arguments.rows // (4 if numbers + categories > 60 else 1)
        path, source = setting(folder, "parquet", rows, 4, case)
        encoder = Encoder(fit(input_data.config(path, numbers, categories), source.batches()))
        streamed = Variant("streamed", ours(source, encoder, False))
        cached = Variant("cached", second_epoch(source, encoder))
        for number in range(arguments.samples + 1):
            for variant in (streamed, cached):
                sample(variant, rows)
                if not number:
                    variant.samples.clear()
                    variant.cpu.clear()
        cpu = [statistics.median(variant.cpu) for variant in (streamed, cached)]
        yield input_report.Growth(numbers + categories, largest, streamed.rate, cached.rate, *cpu)


def report(
    arguments: argparse.Namespace,
    variants: list[Variant],
    lines: list[input_report.Line],
    grown: list[input_report.Growth],
) -> None:
    """Prints what was measured so far, and writes the files that were asked for."""
    text = input_report.markdown(tf.__version__, variants, lines, grown)
    print("\n" + text, flush=True)
    if arguments.markdown:
        input_report.insert(arguments.markdown, text)
    if arguments.plot and grown:
        input_report.plot(arguments.plot, grown)
    if arguments.json:
        found = [
            {
                "name": line.name,
                "value": line.value,
                "goal": line.goal,
                "holds": line.holds,
                "detail": line.detail,
            }
            for line in lines
        ]
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the Parquet files")
    parser.add_argument("--numbers", type=int, default=input_data.NUMBERS, help="numeric columns")
    parser.add_argument("--categories", type=int, default=input_data.CATEGORIES, help="text columns")
    parser.add_argument(
        "--vocabulary", type=int, default=10_000, help="distinct values of the largest text columns"
    )
    parser.add_argument("--samples", type=int, default=5, help="timed samples of each variant")
    parser.add_argument("--passes", type=int, default=50, help="passes looked at for a stall at their end")
    parser.add_argument("--pass-seconds", type=float, default=0.3, help="length of such a pass")
    parser.add_argument("--memory", action="store_true", help="compare the memory of 1x and 10x rows too")
    parser.add_argument(
        "--growth", action="store_true", help="print the table of columns and vocabularies too"
    )
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument(
        "--markdown", type=Path, help="write the tables into this page, between its two marks"
    )
    parser.add_argument("--plot", type=Path, help="with --growth: draw it into this SVG file")
    parser.add_argument(
        "--folder", default="/tmp/trainer-benchmark", help="where the rows are written and kept"
    )
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    allocator = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))
    }
    cores = len(os.sched_getaffinity(0))
    print(f"TensorFlow {tf.__version__}, {cores} cores, allocator: {allocator or 'as in a training run'}")
    lines, variants = compare(arguments, folder)
    report(arguments, variants, lines, [])  # now, in case that the rest is stopped
    if arguments.memory:
        lines.append(memory(arguments, folder))
        report(arguments, variants, lines, [])
    if arguments.growth:
        grown: list[input_report.Growth] = []
        for case in growth(arguments, folder):
            grown.append(case)
            report(arguments, variants, lines, grown)
    return 0 if all(line.holds for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
