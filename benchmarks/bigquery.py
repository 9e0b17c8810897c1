"""BigQuery rows to batches, against bare reading and against the reader of tensorflow-io.

    python benchmarks/bigquery.py [--rows 4000000] [--rounds 5] [--peer PYTHON] [--json PATH]

A local server (`tests/servers/bigquery.py`, a process of its own on the same two cores) hands out 40 numeric
columns, and 26 columns of text, as 4,096-row messages that it has encoded beforehand. All of ours take turns
in one process with the allocator settings of a training run, two streams at once, each timed from the start
of its iterator to its last batch; a ratio is the median over rounds of two neighbours' ratio, so that a slow
minute of the machine hits both. Bare reading decodes each message to Arrow and drops it.

The peer needs an environment of its own (TensorFlow 2.16 is the only one in which its reader runs):

    make venv-tfio

It reads fewer rows, as it takes longer; its figure is the best of its configurations.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])

from trainer import process  # noqa: E402

process.prepare()  # the allocator settings of a training run, for all of ours

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks.measuring import tell, to_last  # noqa: E402

FLOATS, INTEGERS, TEXTS = 13, 26, 26
MESSAGE_ROWS = 4096
PEER_SHARE = 40  # the peer reads one row in so many
EMULATOR = "BIGQUERY_STORAGE_EMULATOR_HOST"


# --- the server, in a process of its own --------------------------------------------------------------


def numbers(rows: int) -> pa.Table:
    """13 floats, 26 integers and a label: 40 columns, 320 bytes a row."""
    generator = np.random.default_rng(1)
    columns: dict[str, Any] = {"label": generator.integers(0, 2, rows)}
    columns |= {f"n{i}": generator.normal(0, 10, rows) for i in range(FLOATS)}
    columns |= {f"c{i}": generator.integers(0, 1000 * (i + 1), rows) for i in range(INTEGERS)}
    return pa.table(columns)


def texts(rows: int) -> pa.Table:
    """26 columns of text of 8 bytes, 1,000 different ones each, and a label."""
    generator = np.random.default_rng(2)
    columns: dict[str, Any] = {"label": generator.integers(0, 2, rows)}
    for column in range(TEXTS):
        words = pa.array([f"{column:02d}{word:06d}" for word in range(1000)])
        columns[f"t{column}"] = words.take(pa.array(generator.integers(0, 1000, rows)))
    return pa.table(columns)


def serve(rows: int) -> None:
    """Serves until the standard input ends; each line of it plans a failure of each stream."""
    import grpc

    from tests.servers.bigquery import BigQueryServer
    from tests.servers.bigquery_faults import Fault

    def halves(table: pa.Table) -> list[pa.Table]:
        middle = table.num_rows // 2
        return [table.slice(0, middle), table.slice(middle)]

    tables = {"bench.d.numbers": numbers(rows), "bench.d.texts": texts(rows)}
    tables["bench.d.few"] = tables["bench.d.numbers"].slice(0, rows // PEER_SHARE)
    stored = {name: halves(table) for name, table in tables.items()}
    with BigQueryServer(stored, message_rows=MESSAGE_ROWS, keep_encoded=True) as server:
        print(server.address, flush=True)
        for line in sys.stdin:
            for stream, share in enumerate(json.loads(line)):
                row = int(rows / 2 * share) // MESSAGE_ROWS * MESSAGE_ROWS
                server.faults.add(Fault(grpc.StatusCode.UNAVAILABLE, "cut", after_row=row, stream=stream))
            print("planned", flush=True)


class Server:
    """The server's process, seen from here."""

    def __init__(self, rows: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", "--rows", str(rows)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def plan(self, shares: list[float]) -> None:
        """Plans that each stream breaks once, after a share of its rows."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(shares) + "\n")
        self._process.stdin.flush()
        assert self._line() == "planned"

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def server(rows: int) -> Iterator[Server]:
    started = Server(rows)
    os.environ[EMULATOR] = started.address
    try:
        yield started
    finally:
        started.stop()


# --- variants -----------------------------------------------------------------------------------------


@dataclass
class Variant:
    """One way to read rows.

    Attributes:
        name: what the table calls it.
        run: reads all rows; returns (rows, seconds to the last batch).
        rates: rows a second, of each round.
        cpu: CPU microseconds a row, of each round; the server's are not in it.
    """

    name: str
    run: Callable[[], tuple[int, float]]
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def sample(variant: Variant, expected: int) -> None:
    """Times a variant once."""
    before = os.times()
    rows, seconds = variant.run()
    after = os.times()
    if rows != expected:
        raise RuntimeError(f"{variant.name} gave {rows} rows, expected {expected}")
    variant.rates.append(rows / seconds)
    variant.cpu.append((after.user + after.system - before.user - before.system) / rows * 1e6)


def make_config(table: str, names: list[str], kind: str, batch: int) -> Any:
    from trainer.config import Config

    more = {"indicator": False} if kind == "numeric" else {}
    return Config.model_validate(
        {
            "name": "bench",
            "task": "binary",
            "data": {
                "source": f"bigquery://bench.d.{table}",
                "split": {"by": "hash", "column": "label"},
                "compression": "none",
                "cache": "none",
            },
            "label": {"column": "label"},
            "features": [{"name": name, "kind": kind, **more} for name in names],
            "training": {"batch_size": batch},
        }
    )


def opened(table: str, names: list[str], kind: str) -> tuple[Any, Any]:
    """Returns a source that has been read once, and an encoder for it."""
    from trainer.data.encode import Encoder
    from trainer.data.source import open_rows
    from trainer.features import fit

    config = make_config(table, names, kind, 1024)
    source = open_rows(config.data.source, config, labelled=True)
    return source, Encoder(fit(config, source.batches()))


def ours(
    source: Any, encoder: Any, batch: int, before: Callable[[], None] | None = None
) -> Callable[[], Any]:
    """Returns what reads a source to batches of tensors."""
    import tensorflow as tf

    from trainer.data.pipeline import Pipeline

    pipeline = Pipeline(source, encoder, batch_size=batch, cache="none", shuffle=False)
    pipeline.prepare()

    def run() -> tuple[int, float]:
        if before is not None:
            before()
        dataset = pipeline.training(0, pipeline.steps_per_epoch)
        return to_last(dataset, lambda batch: int(tf.reduce_sum(batch["valid"])))

    return run


def bare(table: str, decode: str) -> Callable[[], Any]:
    """Returns what reads a table as fast as can be: each message to Arrow, and no more, two streams at once.

    Args:
        table: name of the table.
        decode: "wire" takes the Arrow message out of the response's bytes; "protobuf" parses them first.
    """
    from google.cloud.bigquery_storage_v1 import types

    from trainer.data.bigquery_client import Client
    from trainer.data.bigquery_stream import arrow_part

    client = Client(2)
    request = types.CreateReadSessionRequest(
        parent="projects/bench",
        read_session=types.ReadSession(
            table=f"projects/bench/datasets/d/tables/{table}", data_format=types.DataFormat.ARROW
        ),
        max_stream_count=2,
    )
    session = client.create(request)
    schema = pa.ipc.read_schema(pa.py_buffer(session.arrow_schema.serialized_schema))
    parse = type(types.ReadRowsResponse.pb(types.ReadRowsResponse())).FromString

    def message(response: bytes) -> pa.Buffer:
        if decode == "wire":
            return arrow_part(response)[0]
        return pa.py_buffer(parse(response).arrow_record_batch.serialized_record_batch)

    def read(name: str) -> int:
        rows = 0
        for response in client.read(name, 0, 600):
            rows += pa.ipc.read_record_batch(message(response), schema).num_rows
        return rows

    def run() -> tuple[int, float]:
        with ThreadPoolExecutor(2) as pool:
            return to_last(pool.map(read, [stream.name for stream in session.streams]), lambda rows: rows)

    run()  # the server encodes the messages of the session
    return run


def encoding(source: Any, encoder: Any) -> Callable[[], Any]:
    """Returns what encodes rows that are in memory already, in two threads."""
    batches = list(source.batches(encoder.columns))

    def run() -> tuple[int, float]:
        with ThreadPoolExecutor(2) as pool:
            return to_last(pool.map(encoder, batches), lambda blocks: len(blocks.numeric))

    return run


# --- the peer -----------------------------------------------------------------------------------------

_PEER = """
import json, os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import tensorflow as tf
from tensorflow_io.python.ops.bigquery_dataset_ops import BigQueryTestClient as Client
address, columns, rounds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
kinds = {"double": tf.float64, "int64": tf.int64}
fields = {name: {"output_type": kinds[kind]} for name, kind in columns.items()}
found = {}
for kind in ("AVRO", "ARROW"):
    for streams, block in ((1, 1), (2, 1), (2, 1024)):
        client = Client(address)
        session = client.read_session("projects/bench", "bench", "few", "d", fields,
                                      requested_streams=streams, data_format=getattr(Client.DataFormat, kind))
        if streams == 1:
            rows = session.read_rows(session.get_streams()[0])
        else:
            rows = session.parallel_read_rows(block_length=block, num_parallel_calls=2)
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = rows.batch(1024).prefetch(2).with_options(options)
        rates = []
        for _ in range(rounds + 1):  # the first one makes the server encode
            begin = last = time.perf_counter()
            count = 0
            for batch in dataset:
                count += int(batch["label"].shape[0])
                last = time.perf_counter()
            rates.append((count / (last - begin), count))
        found[f"{kind}, {streams} stream(s), block {block}"] = rates[1:]
print(json.dumps(found))
"""


def peer(python: str, address: str, rounds: int, expected: int) -> dict[str, list[float]]:
    """Returns rows a second of each configuration of the tensorflow-io reader."""
    columns = {one.name: str(one.type) for one in numbers(1).schema}
    done = subprocess.run(
        [python, "-c", _PEER, address, json.dumps(columns), str(rounds)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the peer ended with {done.returncode}: {done.stderr[-500:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    for name, rates in found.items():
        if any(count != expected for _, count in rates):
            raise RuntimeError(f"the peer ({name}) gave other than {expected} rows")
    return {name: [rate for rate, _ in rates] for name, rates in found.items()}


# --- the run ------------------------------------------------------------------------------------------


def ratio(variant: Variant, others: list[Variant]) -> float:
    """Returns the median over rounds of a variant's rate over the best of others in the same round."""
    rounds = zip(variant.rates, zip(*(other.rates for other in others), strict=True), strict=True)
    return statistics.median(mine / max(theirs) for mine, theirs in rounds)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows = arguments.rows // 2 * 2
    with server(rows) as local:
        names = [f"n{i}" for i in range(FLOATS)] + [f"c{i}" for i in range(INTEGERS)]
        source, encoder = opened("numbers", names, "numeric")
        words, word_encoder = opened("texts", [f"t{i}" for i in range(TEXTS)], "categorical")
        shares = np.random.default_rng(3)
        cut = lambda: local.plan(shares.uniform(0.2, 0.8, 2).tolist())  # noqa: E731
        variants = {
            "protobuf": Variant("40 numbers: bare, protobuf + Arrow", bare("numbers", "protobuf")),
            "wire": Variant("40 numbers: bare, wire slice + Arrow", bare("numbers", "wire")),
            "large": Variant("40 numbers: batches of 8,192", ours(source, encoder, 8192)),
            "cut": Variant("40 numbers: the same, each stream cut once", ours(source, encoder, 8192, cut)),
            "small": Variant("40 numbers: batches of 1,024", ours(source, encoder, 1024)),
            "texts": Variant("26 texts: batches of 8,192", ours(words, word_encoder, 8192)),
            "encoder": Variant("26 texts: the encoder alone", encoding(words, word_encoder)),
        }
        for _ in range(arguments.rounds):
            for variant in variants.values():
                sample(variant, rows)
        for variant in variants.values():
            rate, cpu = statistics.median(variant.rates), statistics.median(variant.cpu)
            print(f"{variant.name:45}{rate / 1e3:10,.0f} k rows/s {cpu:7.2f} us of CPU a row", flush=True)
        best = ratio(variants["large"], [variants["protobuf"], variants["wire"]])
        figures = [
            line("40 numbers, batches of 8,192, of bare reading", best, 0.4),
            line(
                "the same with a failure in each stream, of undisturbed",
                ratio(variants["cut"], [variants["large"]]),
                0.95,
            ),
            line("26 texts, of the encoder alone", ratio(variants["texts"], [variants["encoder"]]), None),
        ]
        python = arguments.peer or str(ROOT / ".venv-tfio" / "bin" / "python")
        if os.path.exists(python):
            found = peer(python, local.address, max(1, arguments.rounds // 2), rows // PEER_SHARE)
            for name, rates in found.items():
                print(f"tensorflow-io, {name:30}{statistics.median(rates) / 1e3:10,.1f} k rows/s")
            highest = max(max(rates) for rates in found.values())
            mine = statistics.median(variants["small"].rates)
            figures.append(line("40 numbers, batches of 1,024, of tensorflow-io", mine / highest, 15.0))
        else:
            print(f"tensorflow-io: not measured, there is no {python} (see the top of this file)")
    return figures


def line(name: str, value: float, goal: float | None) -> dict[str, Any]:
    shown = f">= {goal:g}" if goal is not None else "stated"
    return {
        "name": f"bigquery: {name}",
        "value": round(value, 3),
        "goal": shown,
        "holds": goal is None or value >= goal,
        "detail": f"{value:.2f} x",
    }


def main() -> int:
    """Runs from the command line; returns 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description="BigQuery rows to batches, measured against peers.")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", help="Python of an environment with tensorflow-io")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.rows)
        return 0
    figures = measure(arguments)
    return tell(figures, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
