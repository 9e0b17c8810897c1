"""CSV files: quotes, line breaks inside quotes, byte order marks, CRLF, gzip. Adopters: leave.

All columns are read as text; `cast.py` makes numbers of them. Text in quotes and without is the same, so `""`
is missing as an empty field is.
"""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pacsv

from trainer.data.cast import TEXT
from trainer.data.files import DataFile, TextStream
from trainer.data.formats import BadRow, Bounds, Part, ReadOptions, ranges
from trainer.data.formats.csv_records import Quotes, find_start
from trainer.data.nested import duplicates
from trainer.errors import UserError

_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"
_BLOCK = 4 << 20  # bytes that Arrow parses at a time; a record can't be longer


class CsvReader:
    """One CSV file."""

    optional_columns = False
    typed = False

    def __init__(self, file: DataFile, options: ReadOptions) -> None:
        self._file = file
        self._options = options
        self._csv = options.csv
        with file.open_text() as stream:
            start = stream.read(1 << 16)
        if start.startswith(_UTF16) or b"\x00" in start[:200]:
            raise UserError(f"{file.path}: is not UTF-8 text; save it as UTF-8")
        if not start.removeprefix(_BOM).strip():
            raise UserError(f"{file.path}: the file holds no text")
        first = self._first_record(start.removeprefix(_BOM))
        if self._csv.header:
            self._names = [name.strip() for name in first]
            if duplicates(self._names):
                raise UserError(
                    f"{file.path}: the header names the column {duplicates(self._names)[0]!r} twice"
                )
        else:
            self._names = list(self._csv.column_names)
            if not self._names:
                raise UserError("data.csv.header=false needs data.csv.column_names")
            if len(first) != len(self._names):
                raise UserError(
                    f"{file.path}:1: has {len(first)} fields, "
                    f"but data.csv.column_names has {len(self._names)}"
                )
        self._parts = ranges.parts(file)
        self._starts = ranges.Starts(
            self._parts, functools.partial(find_start, self._file, self._csv.delimiter)
        )
        self._records: dict[int, int] = {}  # part -> its records, those that were skipped included

    def _first_record(self, start: bytes) -> list[str]:
        try:
            text = start.decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(start) - 4:  # not just a letter cut at the end of what was read
                line = start.count(b"\n", 0, error.start) + 1
                raise UserError(
                    f"{self._file.path}:{line}: is not UTF-8 text; save the file as UTF-8"
                ) from error
            text = start[: error.start].decode("utf-8")
        try:
            for record in csv.reader(io.StringIO(text, newline=""), delimiter=self._csv.delimiter):
                if record:
                    return record
        except csv.Error as error:
            raise UserError(f"{self._file.path}: the first line can't be read: {error}") from error
        return []

    def schema(self) -> dict[str, pa.DataType]:
        return dict.fromkeys(self._names, pa.string())

    def parts(self) -> list[Part]:
        return list(self._parts)

    def bounds(self, part: Part, column: str) -> Bounds | None:
        return None

    def read(
        self, part: Part, columns: Sequence[str], bad: BadRow
    ) -> Iterator[tuple[pa.RecordBatch, Sequence[int] | int]]:
        start, stop = self._starts.of(part.place)
        if start == stop:
            return
        header = int(self._csv.header and not start)
        broken: list[int] = []  # records with too few or too many fields, by number
        problem: list[UserError] = []

        def ragged(row: pacsv.InvalidRow) -> str:
            # Arrow counts from 1, the header included; without threads it always has the number.
            number = part.first_row + (row.number or 0) - 1 - header
            try:
                bad(number, f"has {row.actual_columns} fields, expected {row.expected_columns}")
            except UserError as error:  # Arrow would swallow it
                problem.append(error)
                return "error"
            broken.append(number)
            return "skip"

        kinds = {name: TEXT if self._options.wanted.get(name) == TEXT else pa.string() for name in columns}
        stream = _Checked(ranges.open_text(self._file, self._parts, start, stop), self._csv.delimiter)
        done = part.first_row
        try:
            with pacsv.open_csv(
                pa.PythonFile(stream, mode="r"),
                read_options=pacsv.ReadOptions(
                    use_threads=False,
                    block_size=_BLOCK,
                    column_names=self._names,
                    skip_rows_after_names=header,
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=self._csv.delimiter, newlines_in_values=True, invalid_row_handler=ragged
                ),
                convert_options=pacsv.ConvertOptions(
                    include_columns=list(columns),
                    column_types=kinds,
                    null_values=list(self._csv.na_values),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            ) as reader:
                seen = 0
                for batch in reader:
                    rows, seen, done = _numbers(batch.num_rows, done, broken, seen)
                    yield batch, rows
        except StopIteration:
            pass
        except (pa.ArrowException, OSError, ValueError) as error:
            if problem:
                raise problem[0] from None
            raise UserError(self._explain(str(error), done)) from error
        finally:
            stream.close()
        if stop == self._file.size and stream.inside_quotes():
            raise UserError(
                f"{self._file.path}: the file ends inside a quoted field (cut short, or a stray quote?)"
            )
        self._records[part.place.index] = done - part.first_row + len(broken) - seen

    def _row_of_file(self, row: int) -> int | None:
        """Returns the number of a row in the whole file, from 0; None where parts before it can't be read."""
        index, number = ranges.split_number(row)
        for before in self._parts[:index]:
            if before.place.index not in self._records:
                try:
                    for _ in self.read(before, self._names[:1], lambda row, reason: None):
                        pass
                except UserError:
                    return None
            number += self._records.get(before.place.index, 0)
        return number

    def _explain(self, message: str, row: int) -> str:
        done = self._row_of_file(row)
        message = message.strip().splitlines()[0][:200]
        column = re.search(r"column #(\d+)", message)
        if "UTF8" in message or "UTF-8" in message:
            where = self._not_utf8()
            named = (
                f" (column {self._names[int(column[1])]!r})"
                if column and int(column[1]) < len(self._names)
                else ""
            )
            return f"{where}: is not UTF-8 text{named}; save the file as UTF-8"
        if "straddling" in message:
            return (
                f"{self._file.path}: a record after row {done} is longer than {_BLOCK >> 20} MB; "
                "is a quote left open?"
            )
        return f"{self._file.path}: can't be read as CSV after row {done}: {message}"

    def _not_utf8(self) -> str:
        line = 0
        with self._file.open_text() as stream:
            for line, text in enumerate(_lines(stream), start=1):
                try:
                    text.decode("utf-8")
                except UnicodeDecodeError:
                    return f"{self._file.path}:{line}"
        return self._file.path

    def locate(self, row: int) -> str:
        """Returns file:line of a record, by reading the file up to it (only messages need it)."""
        index, wanted = ranges.split_number(row)
        start, stop = self._starts.of(self._parts[index].place)
        number = -1 - int(self._csv.header and not start)
        line = 1
        if start:
            with ranges.open_text(self._file, self._parts, 0, start) as before:
                line += sum(1 for _ in _lines(before))
        with ranges.open_text(self._file, self._parts, start, stop) as stream:
            texts = (text.decode("utf-8", "replace") for text in _lines(stream))
            reader = csv.reader(texts, delimiter=self._csv.delimiter)
            first = line
            try:
                for record in reader:
                    if record:
                        number += 1
                    if number == wanted:
                        return f"{self._file.path}:{line}"
                    line = first + reader.line_num
            except csv.Error:
                pass
        number_of_file = self._row_of_file(row)
        return f"{self._file.path}" + ("" if number_of_file is None else f", row {number_of_file + 1}")


class _Checked(io.RawIOBase):
    """The text of a CSV file without its byte order mark, for Arrow; keeps an eye on the quotes."""

    def __init__(self, text: TextStream | ranges.ByteRange, delimiter: str) -> None:
        self._text = text
        self._quotes = Quotes(delimiter)
        self._begun = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        data = self._text.read(size)
        if not self._begun:
            self._begun = True
            data = data.removeprefix(_BOM) or self._text.read(size)
        self._quotes.follow(data)
        return data

    def close(self) -> None:
        self._text.close()
        super().close()

    def inside_quotes(self) -> bool:
        """Returns whether what was read ends inside a quoted field, which Arrow takes for its end."""
        return self._quotes.inside


def _lines(stream: TextStream | ranges.ByteRange) -> Iterator[bytes]:
    """Yields the lines of a stream with their ends."""
    rest = b""
    first = True
    while True:
        data = stream.read(1 << 20)
        if not data:
            break
        if first:
            data = data.removeprefix(_BOM)
            first = False
        lines = (rest + data).splitlines(keepends=True)
        rest = lines.pop() if lines else b""
        yield from lines
    if rest:
        yield rest


def _numbers(rows: int, done: int, broken: list[int], seen: int) -> tuple[Sequence[int] | int, int, int]:
    """Returns the row numbers of a batch, with the skipped records left out.

    Args:
        rows: rows of the batch.
        done: number of the first record that may be in it.
        broken: numbers of all skipped records so far, ascending.
        seen: how many of them lie before `done`.

    Returns:
        (numbers of the rows, new `seen`, new `done`).
    """
    if seen == len(broken):
        return done, seen, done + rows
    numbers: list[int] = []
    while len(numbers) < rows:
        if seen < len(broken) and broken[seen] == done:
            seen += 1
        else:
            numbers.append(done)
        done += 1
    return numbers, seen, done
