"""Random operations of both engines on one table: after every one both see the same table, and it holds the rows that it should.

The steps follow from the seed, which is part of the test's id; ``DELTA_SPARK_SEED`` adds another one.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from delta_spark.support import State, assert_same_state, delta_log, row_text, sql_name
from delta_spark.writer import Writer
from support.actions import column
from support.table import Table

STEPS = 10
SEEDS = (1, *(int(seed) for seed in os.environ.get("DELTA_SPARK_SEED", "").split()))
PARTITIONS = ("a", "b c", "ü%", None)
COLUMNS = [column("id", "long"), column("p", "string"), column("v", "double"), column("d", "date")]
DDL = "id BIGINT, p STRING, v DOUBLE, d DATE"

VARIANTS: dict[str, dict[str, str]] = {
    "plain": {},
    "deletion vectors": {"delta.enableDeletionVectors": "true"},
    "everything": {
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
        "delta.enableRowTracking": "true",
        "delta.enableInCommitTimestamps": "true",
        "delta.enableChangeDataFeed": "true",
        "delta.checkpointPolicy": "v2",
    },
}


class Game:
    """One table, the clients of both engines, and what its rows should be after a step of which that is known."""

    def __init__(self, delta: Any, path: Path, seed: int) -> None:
        self.delta = delta
        self.path = path
        self.name = sql_name(path)
        self.random = random.Random(seed)
        self.ours = Writer(path)
        self.flow = Table(path, delta)
        self.next_id = 0
        self.readable_from = 0
        self.last: State | None = None

    # -- rows -----------------------------------------------------------------------------------------------------------------

    def rows(self, count: int | None = None, partitions: Sequence[str | None] = PARTITIONS) -> list[dict[str, Any]]:
        found = []
        for _ in range(count or self.random.randint(1, 4)):
            self.next_id += 1
            found.append(
                {
                    "id": self.next_id,
                    "p": self.random.choice(partitions),
                    "v": self.random.choice([None, self.next_id / 4]),
                    "d": self.random.choice([None, dt.date(2024, 2, 1 + self.next_id % 28)]),
                }
            )
        return found

    def texts(self, rows: Sequence[dict[str, Any]]) -> list[str]:
        """Return rows as a read of the table shows them: columns that were added since are null."""
        names = [f["name"] for f in self.schema["fields"]]
        return [row_text({name: row.get(name) for name in names}) for row in rows]

    @property
    def schema(self) -> dict[str, Any]:
        return dict(json.loads(self.ours.metadata.schema_string))

    def frame(self, rows: Sequence[dict[str, Any]]) -> Any:
        return self.delta.createDataFrame([tuple(row.values()) for row in rows], DDL).coalesce(1)

    def sql(self, text: str) -> None:
        self.delta.sql(text.replace("TABLE_", self.name))

    def keep(self, condition: Callable[[str], bool] = lambda _text: True) -> list[str]:
        assert self.last is not None
        return [text for text in self.last.rows if condition(text)]

    # -- our steps: each returns the rows that the table should have, or None where only both engines are compared --------------

    def our_append(self) -> list[str]:
        rows = self.rows()
        self.ours.append(rows)
        return self.keep() + self.texts(rows)

    def our_append_once(self) -> list[str]:
        rows = self.rows()
        self.ours.append_once(rows, f"app-{self.random.randint(1, 3)}")
        return self.keep() + self.texts(rows)

    def our_overwrite(self) -> list[str]:
        rows = self.rows(6)
        self.ours.overwrite(rows)
        return self.texts(rows)

    def our_replace_where(self) -> list[str]:
        rows = self.rows(partitions=["a"])
        self.ours.replace_where("p = 'a'", rows)
        return self.keep(lambda text: "p='a'" not in text) + self.texts(rows)

    def our_overwrite_partitions(self) -> list[str]:
        rows = self.rows(partitions=["b c", None])
        self.ours.overwrite_partitions(rows)
        gone = {f"p={row['p']!r}" for row in rows}
        return self.keep(lambda text: not any(part in text for part in gone)) + self.texts(rows)

    def our_property(self) -> list[str]:
        self.ours.set_properties(**{f"our_{self.random.randint(1, 3)}": str(self.random.random())})
        return self.keep()

    def our_checkpoint(self) -> list[str]:
        self.ours.checkpoint()
        return self.keep()

    def our_staged_append(self) -> list[str]:
        rows = self.rows()
        self.flow.write(self.frame(rows))
        return self.keep() + self.texts(rows)

    def our_staged_replacement(self) -> list[str]:
        """A predicate on data: the rows that stay are copied."""
        limit = self.random.randint(1, self.next_id)
        rows = [{**row, "id": limit - number} for number, row in enumerate(self.rows(2))]
        self.flow.write(self.frame(rows), mode="overwrite", replace_where=f"id <= {limit}")
        return self.keep(lambda text: int(text.split(",")[0].removeprefix("id=")) > limit) + self.texts(rows)

    # -- Delta's steps --------------------------------------------------------------------------------------------------------

    def delta_append(self) -> list[str]:
        rows = self.rows()
        self.frame(rows).createOrReplaceTempView("rows_of_the_step")
        self.sql("INSERT INTO TABLE_ BY NAME SELECT * FROM rows_of_the_step")
        return self.keep() + self.texts(rows)

    def delta_delete(self) -> list[str]:
        rest, divisor = self.random.randint(0, 2), 3
        self.sql(f"DELETE FROM TABLE_ WHERE id % {divisor} = {rest}")
        return self.keep(lambda text: int(text.split(",")[0].removeprefix("id=")) % divisor != rest)

    def delta_update(self) -> None:
        self.sql(f"UPDATE TABLE_ SET v = id * 2, p = 'b c' WHERE id % 4 = {self.random.randint(0, 3)}")

    def delta_merge(self) -> None:
        self.frame(self.rows()).createOrReplaceTempView("rows_of_the_step")
        self.sql(
            "MERGE INTO TABLE_ t USING (SELECT id - 3 AS id, p, v, d FROM rows_of_the_step) s ON t.id = s.id "
            "WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET t.v = s.v "
            "WHEN NOT MATCHED THEN INSERT (id, p, v, d) VALUES (s.id, s.p, s.v, s.d)"
        )

    def delta_optimize(self) -> list[str]:
        self.sql("OPTIMIZE TABLE_")
        return self.keep()

    def delta_z_order(self) -> list[str]:
        self.sql("OPTIMIZE TABLE_ ZORDER BY (id, v)")
        return self.keep()

    def delta_property(self) -> list[str]:
        self.sql(f"ALTER TABLE TABLE_ SET TBLPROPERTIES ('theirs.{self.random.randint(1, 3)}' = '{self.random.random()}')")
        return self.keep()

    def delta_add_column(self) -> None:
        self.sql(f"ALTER TABLE TABLE_ ADD COLUMNS (more_{len(self.schema['fields'])} STRING)")

    def delta_vacuum(self) -> list[str]:
        self.sql("VACUUM TABLE_ RETAIN 0 HOURS")
        self.readable_from = self.ours.version
        return self.keep()

    def delta_restore(self) -> None:
        version = self.random.randint(self.readable_from, self.ours.version)
        self.sql(f"RESTORE TABLE TABLE_ TO VERSION AS OF {version}")

    def delta_checkpoint(self) -> list[str]:
        delta_log(self.delta, self.path).checkpoint()
        return self.keep()

    # -- the game -------------------------------------------------------------------------------------------------------------

    def check(self, label: str, expected: list[str] | None) -> None:
        self.last = assert_same_state(self.ours.log, self.delta, self.path, label=label)
        if expected is not None:
            assert self.last.rows == sorted(expected), label

    def play(self, steps: int) -> None:
        ours = [name for name in dir(self) if name.startswith("our_")]
        theirs = [name for name in dir(self) if name.startswith("delta_")]
        played: list[str] = []
        for number in range(steps):
            name = self.random.choice(ours if number % 2 else theirs)
            played.append(name)
            expected = getattr(self, name)()
            self.check(f"after {', '.join(played)}:", expected)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("creator", ["delta", "ours"])
def test_both_engines_see_the_same_after_every_step(delta, tmp_path, variant, creator, seed):
    game = Game(delta, tmp_path / "table", seed + 1000 * list(VARIANTS).index(variant))
    configuration = {"delta.checkpointInterval": "4", **VARIANTS[variant]}
    if creator == "delta":
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in configuration.items())
        game.sql(f"CREATE TABLE TABLE_ ({DDL}) USING delta PARTITIONED BY (p) TBLPROPERTIES ({properties})")
    else:
        game.ours.create(COLUMNS, partition_by=["p"], configuration=configuration)
    game.check("created:", [])
    game.check("first rows:", game.our_append())
    game.play(STEPS)


def test_the_game_notices_a_lost_row(delta, tmp_path):
    game = Game(delta, tmp_path / "table", 0)
    game.ours.create(COLUMNS, partition_by=["p"])
    game.check("created", [])
    expected = game.our_append()
    with pytest.raises(AssertionError):
        game.check("one row too many", [*expected, expected[0]])
