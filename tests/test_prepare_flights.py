"""The script that makes the example's rows, on five flights written here."""

from __future__ import annotations

import datetime as dt
import json
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from scripts import prepare_flights as script

FLIGHTS = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,\
air_time,distance,hour,minute,time_hour
2013,2,1,1900,1905,-5,2100,2059,1,UA,7,N1,EWR,IAH,100,1400,19,5,2013-02-02T00:00:00Z
2013,1,31,517,515,2,830,814,16,UA,1545,N1,EWR,IAH,227,1400,5,15,2013-01-31T10:00:00Z
2013,1,31,533,529,4,850,835,15,DL,1714,NA,EWR,MIA,227,1416,5,29,2013-01-31T10:00:00Z
2013,1,31,NA,540,NA,NA,850,NA,AA,1141,N2,JFK,MIA,NA,1089,5,40,2013-01-31T10:00:00Z
2013,2,1,1,2359,2,400,345,15,B6,3,N3,JFK,BQN,190,1576,23,59,2013-02-02T04:00:00Z
"""
PLANES = """\
tailnum,year,type,manufacturer,model,engines,seats,speed,engine
N1,1999,Fixed wing multi engine,BOEING,737-824,2,149,NA,Turbo-fan
N2,NA,Fixed wing multi engine,AIRBUS,A320,2,182,NA,Turbo-fan
"""
WEATHER = """\
origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,2013,1,31,5,39.02,28.04,64.43,260,12.65858,NA,0,1011.9,10,2013-01-31T10:00:00Z
JFK,2013,1,31,5,37.94,26.96,62.21,230,10.35702,NA,0.01,NA,10,2013-01-31T10:00:00Z
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    with zipfile.ZipFile(folder / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", FLIGHTS)
    (folder / "planes.csv").write_text(PLANES)
    (folder / "weather.csv").write_text(WEATHER)
    return folder


@pytest.fixture
def rows(source: Path) -> dict[str, dict]:
    return {row["flight_id"]: row for row in script.build_table(source).to_pylist()}


def test_rows_are_sorted_and_named(source: Path) -> None:
    table = script.build_table(source)
    assert table["flight_id"].to_pylist() == [
        "2013-01-31-UA-1545-EWR",
        "2013-01-31-DL-1714-EWR",
        "2013-01-31-AA-1141-JFK",
        "2013-02-01-UA-7-EWR",
        "2013-02-01-B6-3-JFK",
    ]
    assert table.column_names == list(script.COLUMNS)


def test_late_is_more_than_fifteen_minutes_and_null_without_an_arrival(rows: dict[str, dict]) -> None:
    assert {key: row["late"] for key, row in rows.items()} == {
        "2013-01-31-UA-1545-EWR": True,  # 16 minutes
        "2013-01-31-DL-1714-EWR": False,  # 15 minutes
        "2013-01-31-AA-1141-JFK": None,  # cancelled
        "2013-02-01-UA-7-EWR": False,
        "2013-02-01-B6-3-JFK": False,
    }


def test_schedule(rows: dict[str, dict]) -> None:
    first = rows["2013-01-31-UA-1545-EWR"]
    assert (first["dep_minute"], first["arr_minute"], first["weekday"]) == (315, 494, 4)
    assert first["hour_departures"] == 2  # two flights leave EWR in that hour, one JFK
    assert rows["2013-01-31-AA-1141-JFK"]["hour_departures"] == 1
    assert rows["2013-02-01-B6-3-JFK"]["dep_minute"] == 23 * 60 + 59


def test_date_is_local_though_the_hour_is_utc(rows: dict[str, dict]) -> None:
    row = rows["2013-02-01-UA-7-EWR"]
    assert row["date"] == dt.date(2013, 2, 1)
    assert row["time_hour"] == dt.datetime(2013, 2, 2, tzinfo=dt.timezone.utc)


def test_plane_and_weather_are_joined_and_missing_stays_missing(rows: dict[str, dict]) -> None:
    first = rows["2013-01-31-UA-1545-EWR"]
    assert (first["plane_year"], first["manufacturer"], first["temp"]) == (1999, "BOEING", 39.02)
    assert first["wind_gust"] is None
    assert rows["2013-01-31-AA-1141-JFK"]["plane_year"] is None
    unknown = rows["2013-01-31-DL-1714-EWR"]
    assert unknown["tailnum"] is None  # "NA" in the file
    assert unknown["model"] is None
    assert rows["2013-02-01-B6-3-JFK"]["pressure"] is None  # no weather for that hour


def test_prepare_writes_a_file_a_month_once(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "data" / "flights"
    assert "5 flights in 2 files, 4 of them with a label, 25.0% late" in script.prepare(source, output)
    assert sorted(path.name for path in output.glob("*.parquet")) == [
        "flights-2013-01.parquet",
        "flights-2013-02.parquet",
    ]
    assert pq.read_table(output / "flights-2013-02.parquet").num_rows == 2
    before = {path: path.stat().st_mtime_ns for path in output.iterdir()}
    assert script.prepare(source, output).endswith("is up to date.")
    assert {path: path.stat().st_mtime_ns for path in output.iterdir()} == before
    assert [path.name for path in output.parent.iterdir()] == ["flights"]  # nothing half written is left


def test_prepare_again_after_a_change_of_the_source(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "flights"
    script.prepare(source, output)
    (source / "planes.csv").write_text(PLANES.replace("BOEING", "AIRBUS"))
    assert "5 flights" in script.prepare(source, output)
    assert "AIRBUS" in pq.read_table(output)["manufacturer"].to_pylist()


def test_prepare_leaves_other_peoples_files_alone(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "flights"
    script.prepare(source, output)
    (output / "mine.parquet").write_text("precious")
    (source / "planes.csv").write_text(PLANES + "\n")
    with pytest.raises(script.PrepareError, match="did not write"):
        script.prepare(source, output)
    assert (output / "mine.parquet").read_text() == "precious"


def test_prepare_keeps_the_old_files_when_the_new_ones_fail(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "flights"
    script.prepare(source, output)
    stamp = json.loads((output / script.STAMP).read_text())
    (source / "planes.csv").write_text("tailnum\n")
    with pytest.raises(KeyError):
        script.prepare(source, output)
    assert json.loads((output / script.STAMP).read_text()) == stamp
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_the_real_data(tmp_path: Path) -> None:
    """The figures that the config and the README name."""
    table = script.build_table(script.find_source())
    assert table.num_rows == 336_776
    assert table.num_rows - table["late"].null_count == 327_346
    assert len(set(table["flight_id"].to_pylist())) == table.num_rows
    assert table["temp"].null_count == 1573
