"""Three tables that a publication changes, its puts, and whoever may come after a worker was killed at one of them."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_delta.log import DeltaLog
from airflow_delta.publication import Member, PublicationAbort, abort_tables, get_versions, open_publications, settle
from publication.lake import LakeTable, again, publish_all

PART = "part = 'a'"
NAMES = ("first", "second", "third")
PUTS = [
    *(f"plan {name}" for name in NAMES),
    "intent second",
    "intent third",
    "published first",
    "published second",
    "published third",
]
DECISION = PUTS.index("published first")


@dataclass
class World:
    """Three tables, a publication that replaces rows of the first two and appends to the third, and who may come next."""

    tables: list[LakeTable]
    members: list[Member]

    def publish(self) -> object:
        return publish_all(self.members, anchor=self.tables[0].uri)

    def abort(self) -> PublicationAbort:
        return abort_tables([again(member) for member in self.members], open_table=DeltaLog.for_table)

    def clean_up(self) -> None:
        """Settle whatever is found on any table."""
        for table in self.tables:
            for found in open_publications(table.log()):
                settle(table.log(), found.publication, DeltaLog.for_table, patience=0.0)

    def publish_another(self) -> None:
        """Another publication that appends to the tables in another order; its Dag file names them all."""
        members = [table.member("other", [900], part="z") for table in self.tables]
        publish_all(members, anchor=self.tables[2].uri)

    def shown(self) -> int:
        """Return on how many tables the publication is, as delta-rs reads them."""
        return sum(77 in table.ids() for table in self.tables)

    def check(self) -> None:
        """Check that it is everywhere once, or nowhere and nothing is missing."""
        for number, table in enumerate(self.tables):
            ids = [n for n in table.ids() if n != 900]
            kept = [1, 2, 3] if number == 2 else []
            assert ids == ([*kept, 77] if self.shown() else [1, 2, 3])
            assert table.states().count("published") <= 2  # and the other's
        assert self.shown() in (0, 3)
        vector = get_versions({name: table.log() for name, table in zip(NAMES, self.tables, strict=True)})
        assert vector.versions == {name: table.log().update().version for name, table in zip(NAMES, self.tables, strict=True)}
