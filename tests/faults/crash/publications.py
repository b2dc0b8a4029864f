"""Tasks of a publication of two tables: the scenario's own, which decides, and `second`, which is checked by a task."""

from __future__ import annotations

from airflow_delta.exceptions import DeltaError, PublicationUndoneException
from airflow_delta.log import DeltaLog
from airflow_delta.publication import Member, PublicationOptions, abort_tables, open_publications, publish_tables, settle
from faults.crash import tasks
from faults.crash.run import Run
from publication.judge import judge_rows, judge_states, judge_versions
from publication.lake import LakeTable
from publication.points import killed

NEW = 77


def second(run: Run) -> LakeTable:
    return LakeTable(run.work / "second")


def prepare(run: Run) -> None:
    """Both tables, with two versions and one."""
    tasks.two_versions()(run)
    second(run).fill([10, 20])


def start(run: Run) -> None:
    """Begin both transactions."""
    tasks.start()(run)
    run.push("handle2", second(run).begin(transaction_key="run"))


def stage(run: Run) -> None:
    """Append to the first table, and replace rows of the second."""
    tasks.stage()(run)
    run.push("staged2", second(run).stage_ids(run.pulled("handle2"), [NEW], replaces="part = 'a'"))


def _members(run: Run) -> list[Member]:
    return [
        Member(log=run.log(name), handle=run.pulled(f"handle{number}"), staged=[run.pulled(f"staged{number}")])
        for name, number in (("table", ""), ("second", "2"))
    ]


def _publish(run: Run) -> str:
    options = PublicationOptions(anchor=str(run.table), patience=0.0)
    try:
        result = publish_tables(_members(run), attempt=run.attempt, options=options, open_table=DeltaLog.for_table)
    except PublicationUndoneException:
        return "undone"
    return result.outcome


def commit(run: Run) -> None:
    """Publish; what the logs say is what the task says."""
    run.push("result", {"outcome": _publish(run)})


def killed_after_the_plan(run: Run) -> None:
    """Before it has claimed the staged files: they may go at once."""
    killed(lambda: _publish(run), "plan second", "after")


def killed_after_the_decision(run: Run) -> None:
    killed(lambda: _publish(run), "published table", "after")


def refused_late(run: Run) -> None:
    """A foreign writer changes the second table after the decision."""
    killed_after_the_decision(run)
    second(run).add_property()


def settle_all(run: Run) -> None:
    """Bring what is open to its end, as the command line does."""
    for name in ("table", "second"):
        log = run.log(name)
        for found in open_publications(log):
            settle(log, found.publication, DeltaLog.for_table, patience=0.0)


def abort(run: Run) -> None:
    """Abort both transactions."""
    members = [Member(log=member.log, handle=member.handle) for member in _members(run)]
    run.push("result", {"outcome": abort_tables(members, open_table=DeltaLog.for_table).outcome})


def commit_is_refused(run: Run) -> None:
    try:
        outcome = _publish(run)
    except DeltaError:
        return
    raise AssertionError(f"an aborted publication is {outcome}")


def check(*, published: bool) -> tasks.Task:
    """Return a task that judges both logs, and the rows of the second table."""

    def task(run: Run) -> None:
        tables = [LakeTable(run.table), second(run)]
        logs = {table.uri: table.entries() for table in tables}
        wrong = [*judge_states(logs), *judge_rows(tables[1], logs[tables[1].uri])]
        wrong += [gap for table in tables for gap in judge_versions(table.uri, logs[table.uri])]
        assert not wrong, wrong
        assert tables[1].ids() == ([NEW] if published else [10, 20])
        assert not any(open_publications(table.log()) for table in tables)

    return task
