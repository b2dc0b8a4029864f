"""Which errors end a publication for good, and which of them are looked into once more."""

from __future__ import annotations

import pytest

from airflow_delta import exceptions
from airflow_delta.publication import steps

FOR_GOOD = {
    "a conflict": exceptions.ConcurrentAppendException,
    "another's transaction in the log": exceptions.ConcurrentTransactionException,
    "a schema that does not fit": exceptions.SchemaMismatchException,
    "an audit that does not hold": exceptions.DeltaAuditFailedException,
    "a feature of the table": exceptions.DeltaUnsupportedTableFeatureException,
    "a protocol": exceptions.InvalidProtocolVersionException,
    "an operation that the table does not allow": exceptions.DeltaUnsupportedOperationException,
    "a table that takes only appends": exceptions.AppendOnlyException,
    "an outdated check": exceptions.ChecksOutdatedException,
}
AFTER_A_SECOND_LOOK = {
    "a staged file that is gone": exceptions.StagedFileException,
    "a version that is gone": exceptions.VersionNotFoundException,
    "a file that is gone": exceptions.DeltaFileNotFoundException,
}
NOT_YET = {
    "a lost race": exceptions.MaxCommitRetriesExceededException,
    "an unknown outcome": exceptions.CommitStateUnknownException,
    "a store without credentials for now": exceptions.CredentialsUnavailableException,
    "another publication": exceptions.PublicationPendingException,
    "a catalog that is away": exceptions.CatalogUnavailableException,
    "a log that cannot be read": exceptions.DeltaLogCorruptedException,
}


class _Table:
    """What the steps ask of a table before they act on an error of it."""

    uri = "/lake/orders"

    def __init__(self, kind: type[exceptions.DeltaError]) -> None:
        self.kind, self.looks = kind, 0

    def put(self) -> str:
        self.looks += 1
        raise self.kind("It went wrong.")


@pytest.mark.parametrize("kind", NOT_YET.values(), ids=NOT_YET)
def test_an_error_that_may_pass_is_raised_at_once(kind):
    table = _Table(kind)
    assert not kind.refuses_publication
    with pytest.raises(kind):
        steps._confirmed(_Table.put, table)
    assert table.looks == 1


@pytest.mark.parametrize("kind", [*FOR_GOOD.values(), *AFTER_A_SECOND_LOOK.values()], ids=[*FOR_GOOD, *AFTER_A_SECOND_LOOK])
def test_an_error_that_the_table_will_have_again_ends_it(kind):
    """What one wrong answer of the store explains as well is looked into twice."""
    table = _Table(kind)
    assert kind.refuses_publication
    with pytest.raises(kind):
        steps._confirmed(_Table.put, table)
    assert table.looks == (2 if issubclass(kind, (exceptions.StagingException, *AFTER_A_SECOND_LOOK.values())) else 1)
