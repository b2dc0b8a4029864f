"""Deletion vectors: which rows of a data file are deleted (Delta protocol, "Deletion Vectors" and "Deletion Vector Format").

A vector is a 64-bit Roaring bitmap of row positions in the file, from 0. It is stored in a file of the table (``u``: named by
a UUID), in a file at an absolute path (``p``) or in the log itself (``i``).
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from airflow_delta.exceptions import DeltaFileNotFoundException, DeltaLogCorruptedException
from airflow_delta.lazy_patterns import lazy_pattern
from airflow_delta.log.actions.actions import DeletionVectorDescriptor
from airflow_delta.log.storage.factory import sibling

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from airflow_delta.log.storage.base import LogStore

UUID_RELATIVE, ABSOLUTE, INLINE = "u", "p", "i"

_VERSION = 1
_MAGIC = 1681511377
_MAGIC_NOT_PORTABLE = 1681511376
_FRAME = 4  # bytes of the size field before the data, and of the checksum after it
_UUID_LENGTH = 20
_MAX_ROW = (1 << 63) - 1
_MAX_INT = (1 << 31) - 1  # offset and size are 32-bit integers (protocol)
_RANGES_AT_ONCE = 32
_GAP = 1 << 16
"""Vectors with a gap of at most this many bytes between them are read with one request."""
_MAX_RANGE = 16 << 20
_MAX_BYTES_PER_ROW = 32
"""A row alone in its container takes 26: two keys, two headers, an offset and the row itself."""
_MAX_FIXED_BYTES = 1 << 16
"""Magic number, count, and the empty bitmaps that Delta's writer adds for unused high halves."""
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: digit for digit, letter in enumerate(_ALPHABET)}
_SCHEME = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL = lazy_pattern(r"^file:/+", re.IGNORECASE)


# -- reading ------------------------------------------------------------------------------------------------------------------


def read_deletion_vector(store: LogStore, descriptor: DeletionVectorDescriptor, *, num_records: int | None = None) -> BitMap64:
    """Return the positions of the rows that a vector marks as deleted.

    :param store: storage of the table.
    :param num_records: number of rows in the data file, if its statistics say.
    """
    return read_deletion_vectors(store, [descriptor], [num_records])[0]


def read_deletion_vectors(
    store: LogStore, descriptors: Sequence[DeletionVectorDescriptor], num_records: Sequence[int | None] | None = None
) -> list[BitMap64]:
    """Return several vectors, in the given order. Only their own bytes are read, neighbours with one request.

    They stay compressed bitmaps, so memory depends on the size of a vector, not on the number of rows it marks.

    :param num_records: number of rows in each data file, if its statistics say.
    :raises DeltaFileNotFoundException: if the file of a vector is missing.
    :raises DeltaLogCorruptedException: if a vector is damaged.
    """
    rows = num_records if num_records is not None else [None] * len(descriptors)
    bitmaps: dict[int, BitMap64] = {}
    in_files: dict[str, list[int]] = {}
    for position, (descriptor, count) in enumerate(zip(descriptors, rows, strict=True)):
        _check_claims(store, descriptor, count)
        if descriptor.storage_type == INLINE:
            bitmaps[position] = _bitmap(store, descriptor, _inline_data(store, descriptor), count)
        else:
            in_files.setdefault(vector_path(store, descriptor), []).append(position)
    ranges = [found for path, positions in in_files.items() for found in _ranges(path, positions, descriptors)]
    for start in range(0, len(ranges), _RANGES_AT_ONCE):
        some = ranges[start : start + _RANGES_AT_ONCE]
        for part, content in zip(some, _read_ranges(store, some), strict=True):
            if part.start == 0 and content[:1] != bytes([_VERSION]):
                raise _damaged(store, part.path, f"the file has format version {content[:1].hex() or 'none'}, not {_VERSION}")
            for position in part.vectors:
                descriptor = descriptors[position]
                data = _framed_data(store, part.path, descriptor, content, (descriptor.offset or 0) - part.start)
                bitmaps[position] = _bitmap(store, descriptor, data, rows[position])
    return [bitmaps[position] for position in range(len(descriptors))]


def _check_claims(store: LogStore, descriptor: DeletionVectorDescriptor, num_records: int | None) -> None:
    """Refuse a descriptor that cannot be true, before anything is read or decoded."""
    where = descriptor.unique_id[:80]
    size, marked = descriptor.size_in_bytes, descriptor.cardinality
    if not (0 <= size <= _MAX_INT and 0 <= (descriptor.offset or 0) <= _MAX_INT and marked >= 0):
        raise _damaged(store, where, f"the log claims {size} bytes at offset {descriptor.offset} and {marked} rows")
    if num_records is not None and marked > num_records:
        raise _damaged(store, where, f"the log says that {marked} rows are deleted, but the file has {num_records} (numRecords)")
    if size > _MAX_FIXED_BYTES + _MAX_BYTES_PER_ROW * marked:
        raise _damaged(store, where, f"the log says {size} bytes, far more than {marked} deleted rows can take")


class _Range(NamedTuple):
    """Bytes of a file that hold vectors.

    :param vectors: positions in the list of descriptors.
    """

    path: str
    start: int
    end: int
    vectors: list[int]


def _ranges(path: str, positions: list[int], descriptors: Sequence[DeletionVectorDescriptor]) -> list[_Range]:
    """Return the ranges of a file to read; the first one starts at 0 if its vector is near the beginning."""
    found: list[_Range] = []
    for position in sorted(positions, key=lambda position: descriptors[position].offset or 0):
        start = descriptors[position].offset or 0
        end = start + 2 * _FRAME + descriptors[position].size_in_bytes
        last = found[-1] if found else None
        if last is not None and start - last.end <= _GAP and end - last.start <= _MAX_RANGE:
            found[-1] = last._replace(end=max(last.end, end), vectors=[*last.vectors, position])
        else:
            found.append(_Range(path, 0 if not found and start <= _GAP else start, end, [position]))
    return found


def vector_path(store: LogStore, descriptor: DeletionVectorDescriptor) -> str:
    """Return where a vector's file is: a key relative to the table root, or a path or URI outside of it; not URL-encoded.

    :raises DeltaLogCorruptedException: if the descriptor is not valid.
    """
    value = descriptor.path_or_inline_dv
    if descriptor.storage_type == UUID_RELATIVE:
        try:
            name = uuid.UUID(bytes=z85_decode(value[-_UUID_LENGTH:]))
        except ValueError as error:
            raise _damaged(store, value, f"its name is not a UUID ({error})") from error
        prefix = value[:-_UUID_LENGTH]
        return f"{prefix}/{_file_name(name)}" if prefix else _file_name(name)
    if descriptor.storage_type == ABSOLUTE:
        path = _LOCAL.sub("/", unquote(value))
        root = store.local_root or store.root
        return path[len(root) + 1 :] if path.startswith(f"{root}/") else path
    raise _damaged(store, value, f"its storage type is {descriptor.storage_type!r}, not one of u, p, i")


def _file_name(name: uuid.UUID) -> str:
    return f"deletion_vector_{name}.bin"


def _elsewhere(path: str) -> bool:
    return path.startswith("/") or _SCHEME.match(path) is not None


def _read_ranges(store: LogStore, ranges: Sequence[_Range]) -> list[bytes]:
    """Return the bytes of some ranges, fewer where a file ends; reads an object store concurrently."""
    stores: dict[str, LogStore] = {}

    def read(part: _Range) -> bytes:
        directory, _, name = part.path.rpartition("/")
        own = stores.get(directory) if _elsewhere(part.path) else None
        try:
            return (own or store).read_range(name if own is not None else part.path, part.start, part.end - part.start)
        except FileNotFoundError as error:
            raise _missing(store, part.path) from error

    for part in ranges:
        directory = part.path.rpartition("/")[0]
        if _elsewhere(part.path) and directory not in stores:
            stores[directory] = sibling(store, directory)
    if store.local_root is not None or len(ranges) < 2:
        return [read(part) for part in ranges]
    with ThreadPoolExecutor(len(ranges), thread_name_prefix="delta-vectors") as pool:
        return list(pool.map(read, ranges))


def _missing(store: LogStore, path: str) -> DeltaFileNotFoundException:
    return store.error(
        DeltaFileNotFoundException,
        f"The deletion vector file {path} of table {store.root} is missing, so the deleted rows are unknown "
        "(DELTA_DELETION_VECTOR_FILE_NOT_FOUND). It was deleted outside Delta, or by a VACUUM with a retention shorter than this "
        "read. Read a newer version, or restore the file from a backup.",
    )


def _damaged(store: LogStore, path: str, reason: str) -> DeltaLogCorruptedException:
    return store.error(
        DeltaLogCorruptedException,
        f"The deletion vector {path} of table {store.root} is damaged: {reason}. Restore the file from a backup, or restore the "
        "table to a version before the rows were deleted.",
    )


def _framed_data(store: LogStore, path: str, descriptor: DeletionVectorDescriptor, content: bytes, start: int) -> bytes:
    where = f"{path} at offset {descriptor.offset or 0}"
    end = start + _FRAME + descriptor.size_in_bytes
    if len(content) < end + _FRAME:
        raise _damaged(store, where, "the file ends before the vector does (DELTA_DELETION_VECTOR_SIZE_MISMATCH)")
    size, data = int.from_bytes(content[start : start + _FRAME], "big"), content[start + _FRAME : end]
    if size != descriptor.size_in_bytes:
        raise _damaged(
            store, where, f"the log says {descriptor.size_in_bytes} bytes, the file {size} (DELTA_DELETION_VECTOR_SIZE_MISMATCH)"
        )
    if zlib.crc32(data) != int.from_bytes(content[end : end + _FRAME], "big"):
        raise _damaged(store, where, "its checksum does not match (DELTA_DELETION_VECTOR_CHECKSUM_MISMATCH)")
    return data


def _inline_data(store: LogStore, descriptor: DeletionVectorDescriptor) -> bytes:
    try:
        data = z85_decode(descriptor.path_or_inline_dv[: -(-descriptor.size_in_bytes // 4) * 5])
    except ValueError as error:
        raise _damaged(store, descriptor.path_or_inline_dv[:80], str(error)) from error
    if len(data) < descriptor.size_in_bytes:
        raise _damaged(
            store,
            descriptor.path_or_inline_dv[:80],
            f"the log says {descriptor.size_in_bytes} bytes, but holds {len(data)} (DELTA_DELETION_VECTOR_SIZE_MISMATCH)",
        )
    return data[: descriptor.size_in_bytes]


def _bitmap(store: LogStore, descriptor: DeletionVectorDescriptor, data: bytes, num_records: int | None) -> BitMap64:
    from pyroaring import BitMap64

    where = descriptor.unique_id[:80]
    magic = int.from_bytes(data[:4], "little")
    if magic != _MAGIC:
        kind = "the non-portable format" if magic == _MAGIC_NOT_PORTABLE else f"an unknown format (magic number {magic})"
        raise _damaged(store, where, f"it is in {kind}")
    try:
        bitmap = BitMap64.deserialize(data[4:])
    except Exception as error:  # pyroaring does not document which
        raise _damaged(store, where, f"it is not a Roaring bitmap ({error})") from error
    if len(bitmap) != descriptor.cardinality:
        raise _damaged(
            store,
            where,
            f"the log says that {descriptor.cardinality} rows are deleted, but the vector marks {len(bitmap)} "
            "(DELTA_DELETION_VECTOR_CARDINALITY_MISMATCH)",
        )
    if bitmap and num_records is not None and bitmap.max() >= num_records:
        raise _damaged(store, where, f"it marks row {bitmap.max()}, but the file has {num_records} rows (numRecords)")
    if bitmap and bitmap.max() > _MAX_ROW:
        raise _damaged(store, where, f"it marks row {bitmap.max()}, which no file can have")
    return bitmap


# -- writing ------------------------------------------------------------------------------------------------------------------


def write_deletion_vectors(store: LogStore, directory: str, bitmaps: Sequence[BitMap64]) -> list[DeletionVectorDescriptor]:
    """Write vectors into one new file and return their descriptors in the same order.

    :param directory: directory for the file, relative to the table root (for example an attempt's); empty for the root itself.
    """
    data = [serialize(bitmap) for bitmap in bitmaps]
    name = uuid.uuid4()
    relative = f"{directory.strip('/')}{z85_encode(name.bytes)}"
    content = bytearray([_VERSION])
    descriptors = []
    for bitmap, part in zip(bitmaps, data, strict=True):
        descriptors.append(
            DeletionVectorDescriptor(
                storage_type=UUID_RELATIVE,
                path_or_inline_dv=relative,
                offset=len(content),
                size_in_bytes=len(part),
                cardinality=len(bitmap),
            )
        )
        content += struct.pack(">I", len(part)) + part + struct.pack(">I", zlib.crc32(part))
    if bitmaps:
        prefix = directory.strip("/")
        store.put(f"{prefix}/{_file_name(name)}" if prefix else _file_name(name), bytes(content))
    return descriptors


def inline_deletion_vector(bitmap: BitMap64) -> DeletionVectorDescriptor:
    """Return the descriptor of a vector stored in the log itself; for a few rows."""
    data = serialize(bitmap)
    return DeletionVectorDescriptor(
        storage_type=INLINE,
        path_or_inline_dv=z85_encode(data + bytes(-len(data) % 4)),
        size_in_bytes=len(data),
        cardinality=len(bitmap),
    )


def serialize(bitmap: BitMap64) -> bytes:
    """Return the bytes of a vector: magic number and the portable form of the bitmap, runs compressed."""
    compact = bitmap.copy()
    compact.run_optimize()
    return struct.pack("<I", _MAGIC) + bytes(compact.serialize())


# -- Z85 ----------------------------------------------------------------------------------------------------------------------


def z85_encode(data: bytes) -> str:
    """Encode bytes as text, five characters for each four bytes (ZeroMQ RFC 32).

    :raises ValueError: if the length is not a multiple of four.
    """
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not a multiple of four")
    letters: list[str] = []
    for (number,) in struct.iter_unpack(">I", data):
        group = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            group.append(_ALPHABET[digit])
        letters += reversed(group)
    return "".join(letters)


def z85_decode(text: str) -> bytes:
    """Decode the text of :func:`z85_encode`.

    :raises ValueError: if the text is not valid Z85.
    """
    if len(text) % 5:
        raise ValueError(f"{len(text)} characters are not a multiple of five")
    result = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for letter in text[start : start + 5]:
            if letter not in _DIGITS:
                raise ValueError(f"{letter!r} is not a Z85 character")
            number = number * 85 + _DIGITS[letter]
        if number >= 1 << 32:
            raise ValueError(f"{text[start : start + 5]!r} is too large")
        result += struct.pack(">I", number)
    return bytes(result)
