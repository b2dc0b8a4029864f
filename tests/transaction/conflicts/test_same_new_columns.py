"""Two transactions that add columns at the same time: the same columns are added once, others conflict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_delta.exceptions import ConcurrentAppendException, MetadataChangedException
from airflow_delta.transaction import CommitPolicy, IsolationLevel, Operation
from airflow_delta.transaction.policy import ConflictOptions
from support.actions import add
from support.table import Table, metadata

NESTED = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}


def with_columns(*columns: tuple[str, Any], **options: Any) -> Any:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": dict(*more)}
        for name, kind, *more in (("value", "integer"), *columns)
    ]
    return metadata(schema_string=json.dumps({"type": "struct", "fields": fields}), **options)


def race(root: Path, own: Any, winner: Any, *, policy: CommitPolicy | None = None, **options: Any) -> Table:
    table = Table(root / "table")
    table.create(**options)
    transaction = table.log().start_transaction(policy=policy)
    table.commit(winner, add("theirs"))
    transaction.update_metadata(own)
    assert transaction.commit([add("ours")], Operation.write()) == 2
    return table


X, Y = ("X", "long"), ("Y", "date")


@pytest.mark.parametrize(
    ("own", "winner"),
    [
        ([X], [X]),
        ([X, Y], [X, Y]),
        ([("s", NESTED)], [("s", NESTED)]),
        ([X], [Y, X]),
        ([X], [X, ("c", "long", {"comment": "new"})]),
    ],
)
def test_the_same_new_columns_are_added_once(tmp_path: Path, own: list[Any], winner: list[Any]) -> None:
    table = race(tmp_path, with_columns(*own), with_columns(*winner))
    assert not any("metaData" in line for line in table.lines(2))
    snapshot = table.log().update()
    assert list(snapshot.schema.names) == ["value", *(name for name, *_ in winner)]
    assert {file.path for file in snapshot.add_files()} == {"ours", "theirs"}
    assert table.info(2)["isBlindAppend"] is True


@pytest.mark.parametrize(
    ("own", "winner", "changes"),
    [
        ([X], [("x", "long")], {}),
        ([X], [("X", "integer")], {}),
        ([X], [("X", "long", {"comment": "another"})], {}),
        ([X, Y], [X], {}),
        ([("s", NESTED)], [("s", {**NESTED, "fields": [*NESTED["fields"], {**NESTED["fields"][0], "name": "b"}]})], {}),
        ([X], [X, ("d", "long", {"CURRENT_DEFAULT": "7"})], {}),
        ([X], [X], {"description": "new"}),
        ([X], [X], {"configuration": {"user": "x"}}),
    ],
)
def test_anything_else_is_a_conflict(tmp_path: Path, own: list[Any], winner: list[Any], changes: dict[str, Any]) -> None:
    features = {"delta.feature.allowColumnDefaults": "supported"}
    changes = {**changes, "configuration": {**features, **changes.get("configuration", {})}}
    with pytest.raises(MetadataChangedException):
        race(
            tmp_path,
            with_columns(*own, configuration=features),
            with_columns(*winner, **changes),
            configuration=features,
        )


GROWN = {**NESTED, "fields": [*NESTED["fields"], {**NESTED["fields"][0], "name": "b"}]}
OTHER = {**NESTED, "fields": [*NESTED["fields"], {**NESTED["fields"][0], "name": "c"}]}
TWICE = {**GROWN, "fields": [*GROWN["fields"], {**NESTED["fields"][0], "name": "c"}]}


def in_list(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


@pytest.mark.parametrize("wrapped", [lambda kind: kind, in_list], ids=["struct", "list of structs"])
@pytest.mark.parametrize(
    ("own", "winner", "fits"),
    [
        ((GROWN,), (GROWN,), True),
        ((GROWN, X), (GROWN, X), True),
        ((GROWN,), (GROWN, X), True),
        ((GROWN,), (OTHER,), False),
        ((GROWN,), (TWICE,), False),
        ((GROWN, X), (GROWN,), False),
    ],
)
def test_new_fields_of_a_struct(tmp_path: Path, wrapped: Any, own: Any, winner: Any, fits: bool) -> None:
    """They are new columns as those of the table are."""
    before = with_columns(("s", wrapped(NESTED))).schema_string
    changed = (with_columns(("s", wrapped(kind)), *more) for kind, *more in (own, winner))
    if fits:
        table = race(tmp_path, *changed, schema_string=before)
        assert not any("metaData" in line for line in table.lines(2))
    else:
        with pytest.raises(MetadataChangedException):
            race(tmp_path, *changed, schema_string=before)


def test_two_that_change_more_than_columns_conflict(tmp_path: Path) -> None:
    both = with_columns(X, description="new")
    with pytest.raises(MetadataChangedException):
        race(tmp_path, both, both)


def test_deltas_rule_is_one_choice_away(tmp_path: Path) -> None:
    policy = CommitPolicy(conflicts=ConflictOptions(resolve_same_new_columns=False))
    with pytest.raises(MetadataChangedException):
        race(tmp_path, with_columns(X), with_columns(X), policy=policy)


@pytest.mark.parametrize("level", list(IsolationLevel)[:2])
def test_what_was_read_counts_as_ever(tmp_path: Path, level: IsolationLevel) -> None:
    table = Table(tmp_path / "table")
    table.create(configuration={} if level is IsolationLevel.WRITE_SERIALIZABLE else {"delta.isolationLevel": "Serializable"})
    transaction = table.log().start_transaction()
    transaction.read_whole_table()
    configuration = dict(transaction.metadata.configuration)
    table.commit(with_columns(X, configuration=configuration), add("theirs"))
    transaction.update_metadata(with_columns(X, configuration=configuration))
    with pytest.raises(ConcurrentAppendException):
        transaction.commit([add("ours")], Operation.write())


def test_a_second_winner_is_looked_at_as_by_any_append(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    table.create()
    transaction = table.log().start_transaction()
    table.commit(with_columns(X), add("theirs"))
    table.commit(with_columns(X, Y))
    transaction.update_metadata(with_columns(X))
    with pytest.raises(MetadataChangedException, match="schema"):
        transaction.commit([add("ours")], Operation.write())
