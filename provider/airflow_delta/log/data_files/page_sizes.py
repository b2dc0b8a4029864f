"""What decoding a row group takes, from the sizes that its pages declare, before any of them is decoded.

Compression and run lengths make a file of a few hundred bytes a gigabyte in memory. Footers and page headers tell
(``parquet.thrift``, ``PageHeader``): Arrow allocates what the header of a page declares, and as many values as it counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_delta.lazy_patterns import lazy_pattern

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MAX_BYTES = 256 << 20
"""Memory for the pages of a row group that are decoded at once, whatever the size of the file."""

MAX_FACTOR = 256
"""A row group may need this many times its compressed size."""

MAX_VALUES = 1 << 26
"""Values of lists and maps in one page, which may be those of one row, decoded together; more if they are stored as such."""

_VALUE_BYTES = 8
_LENGTH_BYTES = 4
_UNKNOWN = 16_384
_REFERENCES = (2, 8)  # PLAIN_DICTIONARY, RLE_DICTIONARY
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # types of pages
_ABOUT = {_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}  # which field tells of a page of this type

BATCH_BYTES = 1 << 30
SMALLEST_BATCH = 1024
_HEADER_BYTES = 512
_MAX_HEADER_BYTES = 16 << 20


class PageHeader(NamedTuple):
    """What the header of a page declares.

    :param length: bytes of the header itself.
    :param size: bytes of the page that follows, as stored.
    :param memory: bytes of the page once it is decompressed.
    :param encoding: of its values, as Parquet numbers them.
    :param is_dictionary: its values are those that other pages refer to.
    """

    length: int
    size: int
    memory: int
    num_values: int
    encoding: int
    is_dictionary: bool


class Chunk(NamedTuple):
    """What the pages of a column declare in a row group; without their headers, what the footer says of all together.

    :param path: in the file.
    :param stored: compressed bytes.
    :param repeated: it is in a list or a map.
    :param is_text: its values have different lengths.
    :param width: bytes of each value, of bytes that all have one length; 0 for others.
    :param num_values: of all pages.
    :param memory: bytes of its dictionary and its largest other page.
    :param most: values in one page.
    :param dictionary: bytes of its dictionary, of which one value may stand in all rows; more if that is not known.
    :param distinct: values in the dictionary; a quarter of a batch if that is not known.
    :param plain: bytes of the pages that hold values themselves.
    :param refers: all pages refer to the dictionary; a guess without headers.
    """

    path: str
    stored: int
    repeated: bool
    is_text: bool
    width: int
    num_values: int
    memory: int
    most: int
    dictionary: int
    distinct: int
    plain: int
    refers: bool


def declared(parquet: pq.ParquetFile, file: Any, group: int, names: Sequence[str] | None, *, headers: bool) -> list[Chunk]:
    """Return what the pages of some columns of a row group declare.

    :param file: the open file, for the headers of its pages.
    :param names: top-level columns; ``None`` for all.
    :param headers: read these headers; otherwise believe the footer.
    :raises ValueError: if a header cannot be read, or pages count fewer values than there are rows.
    """
    wanted, metadata = None if names is None else set(names), parquet.metadata
    schema, about = metadata.schema, metadata.row_group(group)
    num_rows, found = about.num_rows, []
    for at in range(about.num_columns):
        chunk = about.column(at)
        path = chunk.path_in_schema
        if wanted is not None and not _is_of(path, wanted):
            continue
        leaf, kind = schema.column(at), chunk.physical_type
        place = _Place(
            path,
            chunk.total_compressed_size,
            leaf.max_repetition_level > 0,
            kind == "BYTE_ARRAY",
            leaf.length if kind == "FIXED_LEN_BYTE_ARRAY" else 0,
        )
        found.append(_of_headers(file, chunk, place) if headers else _of_footer(chunk, place))
        if headers and found[-1].num_values < num_rows:
            raise ValueError(f"the pages of column {path} have {found[-1].num_values:,} values for {num_rows:,} rows")
    return found


class _Place(NamedTuple):
    """What the footer says of a column in a row group: the first fields of a :class:`Chunk`."""

    path: str
    stored: int
    repeated: bool
    is_text: bool
    width: int


def _of_footer(chunk: pq.ColumnChunkMetaData, place: _Place) -> Chunk:
    total, values = chunk.total_uncompressed_size, chunk.num_values
    return Chunk(
        *place,
        values,
        total,
        values,
        min(total, MAX_BYTES),
        _UNKNOWN,
        0,
        chunk.has_dictionary_page and total <= _LENGTH_BYTES * values,  # each value itself would take more
    )


def _of_headers(file: Any, chunk: pq.ColumnChunkMetaData, place: _Place) -> Chunk:
    dictionary = distinct = largest = most = plain = values = 0
    refers = True
    for header in _headers(file, chunk):
        if header.is_dictionary:  # of which not all footers tell
            dictionary, distinct = dictionary + header.memory, distinct + header.num_values
            continue
        largest, most, values = max(largest, header.memory), max(most, header.num_values), values + header.num_values
        if header.encoding not in _REFERENCES:
            plain, refers = plain + header.memory, False
    return Chunk(*place, values, dictionary + largest, most, dictionary, distinct, plain, refers and dictionary > 0)


def problem_of(chunks: Sequence[Chunk]) -> str | None:
    """Return why some columns of a row group are not decoded, ``None`` if they may be."""
    for chunk in chunks:
        allowed = max(MAX_VALUES, MAX_FACTOR * chunk.stored // _VALUE_BYTES)
        if chunk.repeated and chunk.most > allowed:
            return f"column {chunk.path} declares {chunk.most:,} values in one page, at most {allowed:,} are decoded"
    memory, stored = sum(chunk.memory for chunk in chunks), sum(chunk.stored for chunk in chunks)
    if memory <= max(MAX_BYTES, MAX_FACTOR * stored):
        return None
    return (
        f"its pages declare {memory >> 20:,} MiB in memory for {stored:,} stored bytes, at most {MAX_BYTES >> 20} MiB or "
        f"{MAX_FACTOR} times as much are decoded"
    )


def batch_rows(
    chunks: Sequence[Chunk],
    most: int,
    longest: Callable[[Chunk], int] | None = None,
    *,
    limit: int | None = None,
    least: int = SMALLEST_BATCH,
) -> int:
    """Return how many rows to decode at once: one value of a dictionary may stand in all of them.

    :param longest: returns the bytes of the longest value in a dictionary; asked only if the size of the dictionary decides.
    :param limit: bytes that they may take; default: :data:`BATCH_BYTES`.
    :param least: rows that are decoded at once however large they are.
    """
    limit = BATCH_BYTES if limit is None else limit
    texts = [chunk for chunk in chunks if chunk.is_text]
    plain = sum(chunk.plain for chunk in texts)
    each = sum(chunk.width for chunk in chunks)
    if plain > limit // 2:  # a row may have a page of it
        plain, each = 0, each + sum(min(chunk.plain, chunk.memory) for chunk in texts)

    def rows(lengths: Sequence[int]) -> int:
        taken = plain + each * most + sum(n * min(most, chunk.num_values) for n, chunk in zip(lengths, texts, strict=True))
        return most if taken <= limit else max(least, (limit - plain) // (each + sum(lengths)))

    found = rows([chunk.dictionary for chunk in texts])
    if found < most and longest is not None:
        found = rows([min(chunk.dictionary, longest(chunk)) if chunk.dictionary else 0 for chunk in texts])
    return min(most, found)


def value_bytes(chunk: Chunk) -> int:
    """Return about how much memory the values of a column take, if those of its dictionary occur equally often."""
    if not chunk.is_text:
        return max(_VALUE_BYTES, chunk.width) * chunk.num_values
    mean = chunk.dictionary // chunk.distinct if chunk.distinct else 0
    return max(chunk.plain, (_LENGTH_BYTES + mean) * chunk.num_values)


def _is_of(path: str, names: set[str]) -> bool:
    """Return whether a leaf is in one of the columns; names may contain dots, too."""
    at = len(path)
    while at >= 0:
        if path[:at] in names:
            return True
        at = path.rfind(".", 0, at)
    return False


def _headers(file: Any, chunk: pq.ColumnChunkMetaData) -> Iterator[PageHeader]:
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and (dictionary := chunk.dictionary_page_offset) and dictionary < at:
        at = dictionary
    end = at + chunk.total_compressed_size
    while at < end:
        header = _read_header(file, at)
        yield header
        at += header.length + header.size


def _read_header(file: Any, at: int) -> PageHeader:
    size = _HEADER_BYTES
    while True:
        data = file.read_at(size, at)
        try:
            return parse_header(data)
        except IndexError:
            if len(data) < size or size >= _MAX_HEADER_BYTES:
                raise ValueError(f"the header of a page at byte {at} is cut off") from None
            size *= 16  # statistics with long values


def parse_header(data: bytes) -> PageHeader:
    """Return what the header of a page at the start of some bytes declares (Thrift's compact protocol).

    :raises IndexError: if it does not end within them.
    :raises ValueError: if it is not a page header.
    """
    return _usual(data) or _any(data)


_NUMBER = rb"([\x80-\xff]{0,3}[\x00-\x7f])"
_USUAL = lazy_pattern(
    # Type, size in memory, size as stored, checksum; then number of values, encodings of these and of levels.
    rb"\x15\x00\x15%(n)b\x15%(n)b(?:\x15[\x80-\xff]{0,4}[\x00-\x7f]\x1c|\x2c)\x15%(n)b\x15([\x00-\x7f])"
    rb"\x15[\x00-\x7f]\x15[\x00-\x7f](?:(\x1c)|\x00\x00)" % {b"n": _NUMBER},
    re.DOTALL,
)
"""How most writers put the header of a page of data, up to its statistics or its end."""


def _usual(data: bytes) -> PageHeader | None:
    """Return a header of the usual form, in less than half of the time; ``None`` if it has another."""
    match = _USUAL.match(data)
    if match is None:
        return None
    at = match.end()
    if match[5]:
        while (head := data[at]) != 0:  # texts of less than 128 bytes, small numbers and booleans
            kind, length = head & 15, data[at + 1]
            if head < 16 or kind not in (1, 2, 6, 8) or (kind == 8 and length > 127):
                return None
            at += 1
            if kind == 8:
                at += length + 1
            elif kind == 6:
                while data[at] > 127:
                    at += 1
                at += 1
        if data[at + 1] or data[at + 2]:
            return None
        at += 3
    memory, size, values, encoding = (_varint(match[number], 0)[0] for number in (1, 2, 3, 4))
    if (memory | size | values | encoding) & 1:  # negative
        return None
    return PageHeader(at, size >> 1, memory >> 1, values >> 1, encoding >> 1, False)


def _any(data: bytes) -> PageHeader:
    found, length = _struct(data, 0, 0)
    memory, size = found.get(2), found.get(3)
    if not isinstance(memory, int) or not isinstance(size, int) or min(memory, size) < 0:
        raise ValueError("a page has no size")
    kind = found.get(1)
    if not isinstance(kind, int):
        raise ValueError("a page has no type")
    about = found.get(_ABOUT.get(kind, 0))
    about = about if isinstance(about, dict) else {}
    num_values, encoding = about.get(1), about.get(4 if kind == _DATA_V2 else 2)
    if isinstance(num_values, int) and num_values < 0:
        raise ValueError("a page has a negative number of values")
    return PageHeader(
        length,
        size,
        memory,
        num_values if isinstance(num_values, int) else 0,
        encoding if isinstance(encoding, int) else 0,
        kind == _DICTIONARY,
    )


# Each of the following returns a value and where the next one begins. There are thousands of headers to a gigabyte: a reader with
# a method for each byte takes six times as long.


_NUMBERS = (5, 6, 4)


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Read numbers and structs as such, other values as ``None``."""
    if depth > 8:
        raise ValueError("the header of a page is nested too deeply")
    found: dict[int, Any] = {}
    field = 0
    while (head := data[at]) != 0:
        at += 1
        kind = head & 15
        if head > 15:
            field += head >> 4
        else:
            field, at = _number(data, at)
        if kind in _NUMBERS:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _varint(data, at - 1)
            found[field] = (value >> 1) ^ -(value & 1)
        elif kind == 12:
            found[field], at = _struct(data, at, depth + 1)
        else:
            found[field], at = _other(data, at, kind)
    return found, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    value, shift = byte & 127, 7
    while byte > 127:
        if shift > 63:
            raise ValueError("a number in the header of a page is too long")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
    return value, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _other(data: bytes, at: int, kind: int) -> tuple[int | None, int]:
    match kind:
        case 1 | 2:
            return None, at
        case 3:
            return data[at], at + 1
        case 7 | 8:
            length, at = (8, at) if kind == 7 else _varint(data, at)
            if at + length > len(data):
                raise IndexError
            return None, at + length
    raise ValueError(f"the header of a page has a field of kind {kind}")
