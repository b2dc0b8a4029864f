"""Deletion vectors: which rows of a data file are deleted (Delta protocol, "Deletion Vectors" and "Deletion Vector Format").

A vector is a 64-bit Roaring bitmap of row positions in the file, from 0. It lies in a file beside the data (``u``: named by a
UUID, relative to the table; ``p``: at an absolute path) or in the log itself (``i``).
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_delta.exceptions import DeltaFileNotFoundException, DeltaLogCorruptedException
from airflow_delta.log.actions import DeletionVectorDescriptor

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from airflow_delta.log.store import LogStore

UUID_RELATIVE, ABSOLUTE, INLINE = "u", "p", "i"

_VERSION = 1
_MAGIC = 1681511377
_MAGIC_NOT_PORTABLE = 1681511376
_FRAME = 4  # bytes of the size before the data, and of the checksum after it
_UUID_LENGTH = 20
_FILES_AT_ONCE = 32
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: digit for digit, letter in enumerate(_ALPHABET)}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LOCAL = re.compile(r"^file:/+", re.IGNORECASE)


# -- reading ------------------------------------------------------------------------------------------------------------------


def read_deletion_vector(store: LogStore, descriptor: DeletionVectorDescriptor) -> BitMap64:
    """Return the positions of the rows that a vector marks as deleted.

    :param store: storage of the table.
    :raises DeltaFileNotFoundException: the file that holds it is gone.
    :raises DeltaLogCorruptedException: it is damaged: size, checksum, format or cardinality are not what they have to be.
    """
    return read_deletion_vectors(store, [descriptor])[0]


def read_deletion_vectors(store: LogStore, descriptors: Sequence[DeletionVectorDescriptor]) -> list[BitMap64]:
    """Return several vectors in the order given; a file that holds many is read once.

    :raises DeltaFileNotFoundException: a file that holds one is gone.
    :raises DeltaLogCorruptedException: one is damaged.
    """
    by_file: dict[str, list[int]] = {}
    data: list[bytes] = [b""] * len(descriptors)
    for position, descriptor in enumerate(descriptors):
        if descriptor.storage_type == INLINE:
            data[position] = _inline_data(store, descriptor)
        else:
            by_file.setdefault(vector_path(store, descriptor), []).append(position)
    alone = [(path, positions[0]) for path, positions in by_file.items() if len(positions) == 1]
    if len(by_file) == 1 and alone:  # the only one of its file: the rest of the file is of no use
        [(path, position)] = alone
        descriptor = descriptors[position]
        start = descriptor.offset or 0
        found = _read(store, path, start, 2 * _FRAME + descriptor.size_in_bytes)
        data[position] = _framed_data(store, path, descriptor, found, 0)
    else:
        paths = list(by_file)
        for start in range(0, len(paths), _FILES_AT_ONCE):
            some = paths[start : start + _FILES_AT_ONCE]
            for path, content in zip(some, _read_files(store, some), strict=True):
                if content[:1] != bytes([_VERSION]):
                    raise _damaged(store, path, f"it has the version {content[:1].hex() or 'none'}, not {_VERSION}")
                for position in by_file[path]:
                    descriptor = descriptors[position]
                    data[position] = _framed_data(store, path, descriptor, content, descriptor.offset or 0)
    return [_bitmap(store, descriptor, part) for descriptor, part in zip(descriptors, data, strict=True)]


def vector_path(store: LogStore, descriptor: DeletionVectorDescriptor) -> str:
    """Return where a vector's file is: a key relative to the table root, or a path or URI when it is elsewhere; not URL-encoded.

    :raises DeltaLogCorruptedException: the descriptor is not one of the protocol.
    """
    value = descriptor.path_or_inline_dv
    if descriptor.storage_type == UUID_RELATIVE:
        try:
            name = uuid.UUID(bytes=z85_decode(value[-_UUID_LENGTH:]))
        except ValueError as error:
            raise _damaged(store, value, f"its name is no UUID ({error})") from error
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


def _read(store: LogStore, path: str, start: int, length: int) -> bytes:
    try:
        if _elsewhere(path):
            directory, _, name = path.rpartition("/")
            return store.sibling(directory).read_range(name, start, length)
        return store.read_range(path, start, length)
    except FileNotFoundError as error:
        raise _missing(store, path) from error


def _read_files(store: LogStore, paths: list[str]) -> list[bytes]:
    inside = [path for path in paths if not _elsewhere(path)]
    try:
        content = dict(zip(inside, store.read_many(inside), strict=True))
        for path in paths:
            if path not in content:
                directory, _, name = path.rpartition("/")
                content[path] = store.sibling(directory).read(name)
    except FileNotFoundError as error:
        gone = next((path for path in inside if store.head(path) is None), str(error))
        raise _missing(store, gone) from error
    return [content[path] for path in paths]


def _missing(store: LogStore, path: str) -> DeltaFileNotFoundException:
    return DeltaFileNotFoundException(
        f"The deletion vector file {path} of table {store.root} is not on storage, so it is not known which rows are deleted "
        "(DELTA_DELETION_VECTOR_FILE_NOT_FOUND). It was deleted behind the log's back, or by a VACUUM with a retention shorter "
        "than this read; read a newer version, or restore the file from a backup.",
        table=store.root,
    )


def _damaged(store: LogStore, path: str, reason: str) -> DeltaLogCorruptedException:
    return DeltaLogCorruptedException(
        f"The deletion vector {path} of table {store.root} is damaged: {reason}. Restore the file from a backup, or restore the "
        "table to a version before the rows were deleted.",
        table=store.root,
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
        data = z85_decode(descriptor.path_or_inline_dv)
    except ValueError as error:
        raise _damaged(store, descriptor.path_or_inline_dv[:80], str(error)) from error
    if len(data) < descriptor.size_in_bytes:
        raise _damaged(
            store,
            descriptor.path_or_inline_dv[:80],
            f"the log says {descriptor.size_in_bytes} bytes and holds {len(data)} (DELTA_DELETION_VECTOR_SIZE_MISMATCH)",
        )
    return data[: descriptor.size_in_bytes]


def _bitmap(store: LogStore, descriptor: DeletionVectorDescriptor, data: bytes) -> BitMap64:
    from pyroaring import BitMap64

    where = descriptor.unique_id[:80]
    magic = int.from_bytes(data[:4], "little")
    if magic != _MAGIC:
        kind = "the format that is not portable" if magic == _MAGIC_NOT_PORTABLE else f"no known format (magic number {magic})"
        raise _damaged(store, where, f"it is in {kind}")
    try:
        bitmap = BitMap64.deserialize(data[4:])
    except Exception as error:  # pyroaring does not say which
        raise _damaged(store, where, f"it is no Roaring bitmap ({error})") from error
    if len(bitmap) != descriptor.cardinality:
        raise _damaged(
            store,
            where,
            f"the log says that {descriptor.cardinality} rows are deleted, it marks {len(bitmap)} "
            "(DELTA_DELETION_VECTOR_CARDINALITY_MISMATCH)",
        )
    return bitmap


# -- writing ------------------------------------------------------------------------------------------------------------------


def write_deletion_vectors(
    store: LogStore, directory: str, bitmaps: Sequence[BitMap64], *, max_inline_size: int = 0
) -> list[DeletionVectorDescriptor]:
    """Write vectors, all into one new file, and return their descriptors in the same order.

    :param directory: directory of the file relative to the table root, for example of an attempt; empty for the root itself.
    :param max_inline_size: vectors of no more bytes than that go into the log; Delta itself keeps none there.
    """
    data = [serialize(bitmap) for bitmap in bitmaps]
    name = uuid.uuid4()
    relative = f"{directory.strip('/')}{z85_encode(name.bytes)}"
    content = bytearray([_VERSION])
    descriptors = []
    for bitmap, part in zip(bitmaps, data, strict=True):
        if len(part) <= max_inline_size:
            descriptors.append(inline_deletion_vector(bitmap))
            continue
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
    if len(content) > 1:
        prefix = directory.strip("/")
        store.put(f"{prefix}/{_file_name(name)}" if prefix else _file_name(name), bytes(content))
    return descriptors


def inline_deletion_vector(bitmap: BitMap64) -> DeletionVectorDescriptor:
    """Return a vector that lies in the log itself; for a few rows."""
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
    """Return bytes as text, five characters for four bytes (ZeroMQ RFC 32).

    :raises ValueError: the length is no multiple of four.
    """
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are no multiple of four")
    letters: list[str] = []
    for (number,) in struct.iter_unpack(">I", data):
        group = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            group.append(_ALPHABET[digit])
        letters += reversed(group)
    return "".join(letters)


def z85_decode(text: str) -> bytes:
    """Return the bytes that a text stands for.

    :raises ValueError: it is no such text.
    """
    if len(text) % 5:
        raise ValueError(f"{len(text)} characters are no multiple of five")
    result = bytearray()
    for start in range(0, len(text), 5):
        number = 0
        for letter in text[start : start + 5]:
            if letter not in _DIGITS:
                raise ValueError(f"the character {letter!r} is none of Z85")
            number = number * 85 + _DIGITS[letter]
        if number >= 1 << 32:
            raise ValueError(f"{text[start : start + 5]!r} is too large")
        result += struct.pack(">I", number)
    return bytes(result)
