"""``on_conflict="restart"``: what is cleared, how often, and what becomes of the transaction that lost.

Tables, conflicts, Dags and requests are real. What Airflow does when it is asked is the business of ``tests/live``.
"""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import certifi
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG, BaseOperator, Connection, task_group
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from airflow_delta import delta_transaction, exceptions
from airflow_delta.contract.staging_directory import marked
from airflow_delta.log import DeltaLog
from airflow_delta.operators.stage import DeltaStageFilesOperator
from airflow_delta.operators.transaction import DeltaCommitOperator, DeltaStartTransactionOperator
from airflow_delta.table.commit.publish import publish
from airflow_delta.table.stage.stage_view import open_stage
from airflow_delta.table.stage.write.collect import collect_files
from airflow_delta.table.start.begin import begin
from airflow_delta.tasks.ended import is_aborted
from airflow_delta.tasks.identity import new_transaction_id
from airflow_delta.tasks.restart import checks, restart, tasks_again
from airflow_delta.tasks.restart.clearing import _base_url, _verify, clear_with_downstream
from airflow_delta.tasks.trust.definition_mark import definition_mark
from support.running_tasks import context
from support.state_store import TaskStateStore


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch, outside_of_the_task_runner):
    monkeypatch.setattr(tasks_again, "WAIT_FOR_END", 0.0)


@pytest.fixture
def cleared(outside_of_the_task_runner):
    """The runs that tasks asked their supervisor to clear."""
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, OKResponse, TriggerDagRun

    asked = []

    def send(message):
        if not isinstance(message, TriggerDagRun):
            return ErrorResponse(error=ErrorType.CONNECTION_NOT_FOUND)
        asked.append(message)
        return OKResponse(ok=True)

    outside_of_the_task_runner.others = send
    return asked


class World:
    """A table, and a Dag whose only transaction overwrites it."""

    def __init__(self, path: Path, **commit):
        self.uri = str(path)
        self.store = TaskStateStore()
        self.try_number = 1
        self.run_of(begin(self.log, transaction_key="first"), "append")
        self.dag = DAG("a_dag", schedule=None)
        with self.dag, delta_transaction("txn", table=self.uri, on_conflict="restart", **commit) as self.txn:
            DeltaStageFilesOperator(task_id="stage", path="rows", mode="overwrite")

    @property
    def log(self) -> DeltaLog:
        return DeltaLog.for_table(self.uri)

    def begin(self, key):
        """Begin a transaction as the start task of this run would."""
        return begin(
            self.log, transaction_key=f"a_dag/txn/a_run/{key}", transaction_id=new_transaction_id(context(self.txn.start))
        )

    def staged(self, handle, mode, task_id="txn.stage"):
        directory = Path(self.uri, "staged", handle.transaction_id, "rows")
        directory.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64())}), directory / "part-0.parquet")
        attempt = marked("1-00000000", definition_mark(handle))
        return collect_files(open_stage(self.log, handle, task_id=task_id, attempt=attempt), path="rows", mode=mode)

    def run_of(self, handle, mode):
        return publish(self.log, handle, [self.staged(handle, mode)], attempt="1-00000000")

    def lost_transaction(self):
        """A transaction that overwrites the table, and an append by another one meanwhile."""
        handle = self.begin("mine")
        staged = self.staged(handle, "overwrite")
        self.run_of(begin(self.log, transaction_key=f"other-{handle.transaction_id}"), "append")
        return handle, staged

    def commit(self, handle, staged, **kwargs):
        definition = self.txn.commit
        own = {"on_conflict": "restart", "max_restarts": definition.max_restarts, "restart_conn_id": definition.restart_conn_id}
        operator = DeltaCommitOperator(
            task_id="txn.commit", transaction=handle.to_dict(), staged=[staged.to_dict()], **{**own, **kwargs}
        )
        running = context(definition, try_number=self.try_number, task_state_store=self.store)
        self.try_number += 1
        return operator.execute(running)

    def conflict(self, **kwargs):
        handle, staged = self.lost_transaction()
        with pytest.raises(exceptions.ConcurrentAppendException) as raised:
            self.commit(handle, staged, **kwargs)
        return handle, raised.value


@pytest.fixture
def world(tmp_path):
    return World(tmp_path / "table")


class TestOfARun:
    def test_the_run_is_cleared_and_the_lost_transaction_is_aborted(self, world, cleared):
        handle, _ = world.conflict()
        (message,) = cleared
        assert (message.dag_id, message.run_id, message.reset_dag_run) == ("a_dag", "a_run", True)
        directory = Path(world.uri, "staged", handle.transaction_id)
        assert {path.name for path in directory.rglob("*") if path.is_file()} == {"_aborted", "_commit-0", "_commit-1"}
        assert world.store.kept[tasks_again.STATE_KEY]["restarts"] == 1

    def test_no_conflict_clears_nothing(self, world, cleared):
        handle = world.begin("mine")
        assert world.commit(handle, world.staged(handle, "overwrite"))["version"] == 1
        assert not cleared
        assert tasks_again.STATE_KEY not in world.store.kept

    def test_fails_by_default(self, world, cleared):
        world.conflict(on_conflict="fail")
        assert not cleared
        assert tasks_again.STATE_KEY not in world.store.kept

    def test_the_number_of_restarts_is_bounded(self, world, cleared):
        for _ in range(4):
            world.conflict()
        assert len(cleared) == 3
        # Who clears the start task by hand afterwards has all of them again.
        world.conflict()
        assert len(cleared) == 4

    @pytest.mark.parametrize("dies", ["before the abort", "before the clear"])
    def test_a_retry_goes_on_with_a_restart_that_was_killed(self, world, cleared, monkeypatch, dies):
        class Killed(BaseException):
            pass

        def die(*_):
            raise Killed

        name = {
            "before the abort": "airflow_delta.table.abort.abort",
            "before the clear": f"{restart.__name__}.reset_run",
        }
        handle, staged = world.lost_transaction()
        with monkeypatch.context() as patched:
            patched.setattr(name[dies], die)
            with pytest.raises(Killed):
                world.commit(handle, staged)
        assert not cleared
        with pytest.raises(exceptions.TransactionAbortedException):
            world.commit(handle, staged)
        assert len(cleared) == 1
        assert world.store.kept[tasks_again.STATE_KEY]["restarts"] == 1, "it is the same restart"

    def test_a_commit_gives_the_restarts_back(self, world, cleared):
        world.conflict()
        handle = world.begin("mine")
        world.commit(handle, world.staged(handle, "overwrite"))
        assert world.store.kept[tasks_again.STATE_KEY] == {"restarts": 0}

    def test_bounded_without_a_memory(self, world, cleared):
        for _ in range(8):
            world.store.clear()
            world.conflict()
        assert len(cleared) == 4  # tries 1 to 4: one more than with a memory, and then none

    def test_runs_that_were_cleared_by_hand_are_no_restarts(self, world, cleared):
        for number in range(8):
            handle = world.begin(f"mine-{number}")
            world.commit(handle, world.staged(handle, "overwrite"))
        world.conflict()
        assert len(cleared) == 1

    def test_a_commit_does_not_fail_over_the_count(self, world, cleared):
        world.conflict()

        def refuse(key, value):
            raise RuntimeError("the API server is away")

        world.store.set = refuse
        handle = world.begin("mine")
        assert world.commit(handle, world.staged(handle, "overwrite"))["version"] == 2

    def test_a_note_that_cannot_be_left_does_not_hide_the_conflict(self, world, cleared, monkeypatch):
        def refuse(self, *, key, value):
            raise RuntimeError("the API server is away")

        monkeypatch.setattr(RuntimeTaskInstance, "xcom_push", refuse)
        world.conflict()
        assert len(cleared) == 1

    def test_a_task_that_was_told_to_stop_restarts_nothing(self, world, cleared, monkeypatch):
        given = DeltaCommitOperator._publish

        def ended(self, *args):
            try:
                return given(self, *args)
            finally:
                self.on_kill()

        monkeypatch.setattr(DeltaCommitOperator, "_publish", ended)
        handle, _ = world.conflict()
        assert not cleared
        assert tasks_again.STATE_KEY not in world.store.kept
        assert not Path(world.uri, "staged", handle.transaction_id, "_aborted").exists()

    def test_none_at_all(self, world, cleared):
        world.conflict(max_restarts="0")
        assert not cleared

    def test_an_attempt_that_airflow_has_given_up_restarts_nothing(self, world, cleared):
        def refuse(key, value):
            raise RuntimeError("the task instance is gone")

        world.store.set = refuse
        handle, staged = world.lost_transaction()
        with pytest.raises(RuntimeError, match="gone"):
            world.commit(handle, staged)
        assert not cleared
        assert not Path(world.uri, "staged", handle.transaction_id, "_aborted").exists()

    def test_a_request_that_fails_leaves_the_conflict(self, world, monkeypatch):
        def refuse(*_):
            raise OSError("not now")

        monkeypatch.setattr(restart, "reset_run", refuse)
        _, error = world.conflict()
        assert "on_conflict='restart'" in error.message

    @pytest.mark.parametrize("arguments", [{"on_conflict": "again"}, {"max_restarts": "many"}, {"max_restarts": -1}])
    def test_refused(self, world, arguments):
        handle = world.begin("mine")
        with pytest.raises(exceptions.DeltaIllegalArgumentException):
            world.commit(handle, world.staged(handle, "overwrite"), **arguments)


class TestScope:
    @staticmethod
    def of(dag, commit, map_index=-1):
        ti = SimpleNamespace(map_index=map_index)
        return restart.restart_scope({"dag": dag, "ti": ti}, commit)

    def test_tasks_after_the_commit_belong_to_it(self):
        with DAG("d", schedule=None) as dag:
            with delta_transaction("txn", table="/t") as txn:
                DeltaStageFilesOperator(task_id="stage")
            txn >> BaseOperator(task_id="after")
        assert self.of(dag, txn.commit) == restart.RestartScope("txn.start", -1, is_whole_run=True)

    @pytest.mark.parametrize("before", [True, False])
    def test_tasks_before_or_beside_it_do_not(self, before):
        with DAG("d", schedule=None) as dag:
            other = BaseOperator(task_id="other")
            with delta_transaction("txn", table="/t") as txn:
                DeltaStageFilesOperator(task_id="stage")
            if before:
                other >> txn
        assert self.of(dag, txn.commit) == restart.RestartScope("txn.start", -1, is_whole_run=False)

    def test_one_instance_of_a_mapped_group(self):
        with DAG("d", schedule=None) as dag:

            @task_group
            def each(table):
                with delta_transaction("txn", table=table):
                    DeltaStageFilesOperator(task_id="stage")

            each.expand(table=["/a", "/b"])
        scope = self.of(dag, dag.task_dict["each.txn.commit"], map_index=1)
        assert (scope.markers, scope.is_whole_run) == ([["each.txn.start", 1]], False)

    def test_a_handle_of_unknown_origin(self):
        with DAG("d", schedule=None) as dag:
            commit = DeltaCommitOperator(task_id="commit", transaction={"a": 1}, staged=[])
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="0 tasks"):
            self.of(dag, commit)

    def test_a_start_that_is_expanded_by_itself(self):
        with DAG("d", schedule=None) as dag:
            starts = DeltaStartTransactionOperator.partial(task_id="start").expand(table=["/a", "/b"])
            commit = DeltaCommitOperator(task_id="commit", transaction=starts.output, staged=[])
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="mapped on its own"):
            self.of(dag, commit)

    def test_more_than_the_run_needs_a_connection(self, world):
        with world.dag:
            BaseOperator(task_id="beside")
        handle = world.begin("mine")
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="restart_conn_id"):
            world.commit(handle, world.staged(handle, "overwrite"))

    def test_a_dag_whose_runs_no_task_may_trigger_needs_one_too(self, world, cleared):
        handle = world.begin("another")
        world.dag.allowed_run_types = [DagRunType.MANUAL, DagRunType.OPERATOR_TRIGGERED]
        world.commit(handle, world.staged(handle, "overwrite"))
        world.dag.allowed_run_types = [DagRunType.MANUAL]
        handle, staged = world.lost_transaction()
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="allowed_run_types"):
            world.commit(handle, staged)
        assert not cleared


class Api:
    """An HTTP server that answers as Airflow's REST API does, and notes what it was asked."""

    def __init__(self):
        self.asked, self.answers = [], []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.asked.append((self.path, body, self.headers.get("Authorization")))
                status, answer = api.answers.pop(0) if api.answers else (200, api.usual(self.path, body))
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @staticmethod
    def usual(path, body):
        if path.endswith("/auth/token"):
            return {"access_token": f"token of {body['username']}"}
        (task,) = body["task_ids"]
        return {"task_instances": [{"task_id": task if isinstance(task, str) else task[0]}]}


@pytest.fixture
def api(monkeypatch):
    server = Api()
    monkeypatch.setattr("airflow_delta.tasks.restart.clearing._PAUSE", 0.0)

    def connection(**fields):
        value = {"conn_type": "http", "host": server.url, **fields}
        monkeypatch.setenv("AIRFLOW_CONN_AIRFLOW_API", json.dumps(value))

    server.connection = connection
    connection(login="dags", password="secret")
    yield server
    server.server.shutdown()
    server.server.server_close()


class TestRestApi:
    @staticmethod
    def clear(task="txn.start"):
        return clear_with_downstream("airflow_api", dag_id="my dag/1", run_id="run", tasks=[task])

    def test_clears_the_start_task_with_everything_after_it(self, api):
        assert self.clear() == ["txn.start"]
        (token_path, login, _), (path, body, authorization) = api.asked
        assert (token_path, login) == ("/auth/token", {"username": "dags", "password": "secret"})
        assert path == "/api/v2/dags/my%20dag%2F1/clearTaskInstances"
        assert authorization == "Bearer token of dags"
        assert body == {
            "dry_run": False,
            "dag_run_id": "run",
            "task_ids": ["txn.start"],
            "include_downstream": True,
            "only_failed": False,
            "reset_dag_runs": True,
        }

    def test_one_instance_of_a_mapped_group(self, api):
        self.clear(["each.txn.start", 3])
        assert api.asked[-1][1]["task_ids"] == [["each.txn.start", 3]]

    def test_a_token_instead_of_a_user(self, api):
        api.connection(password="a token")
        self.clear()
        ((_, _, authorization),) = api.asked
        assert authorization == "Bearer a token"

    def test_below_a_path(self, api):
        api.connection(host=f"{api.url}/airflow/", password="a token")
        self.clear()
        assert api.asked[0][0].startswith("/airflow/api/v2/")

    def test_a_busy_server_is_asked_again(self, api):
        api.connection(password="a token")
        api.answers = [(503, {}), (502, {})]
        self.clear()
        assert len(api.asked) == 3

    def test_a_refusal_is_final_and_does_not_show_the_password(self, api):
        api.answers = [(401, {"detail": "Invalid credentials"})]
        with pytest.raises(OSError, match=r"401: .*Invalid credentials") as raised:
            self.clear()
        assert len(api.asked) == 1
        assert "secret" not in str(raised.value)

    def test_a_server_that_is_not_there(self, api):
        api.connection(host="http://127.0.0.1:9", password="a token")
        with pytest.raises(OSError, match="REST API failed: POST"):
            self.clear()

    def test_an_answer_without_the_task(self, api):
        api.connection(password="a token")
        api.answers = [(200, {"task_instances": []})]
        with pytest.raises(OSError, match="cleared no task"):
            self.clear()

    @pytest.mark.parametrize("fields", [{"host": ""}, {"host": "http://a"}, {"host": "http://a", "login": "dags"}])
    def test_connections_that_lack_something(self, api, fields):
        api.connection(**fields)
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="airflow_api"):
            self.clear()

    @pytest.mark.parametrize(
        ("uri", "url"),
        [
            ("http://u:p@airflow:8080", "http://airflow:8080"),
            ("http://u:p@airflow:8080/https", "https://airflow:8080"),
            ("https://u:p@airflow.example.com", "https://airflow.example.com"),
            ("http://https://u:p@airflow.example.com:8080", "https://airflow.example.com:8080"),
        ],
    )
    def test_connections_that_are_uris(self, uri, url):
        assert _base_url(Connection.from_uri(uri, conn_id="a"), "a") == url

    def test_the_port_beside_a_url(self):
        assert _base_url(Connection(conn_id="a", host="https://a/airflow/", port=8443), "a") == "https://a:8443/airflow"
        assert _base_url(Connection(conn_id="a", host="https://a:1/airflow", port=8443), "a") == "https://a:1/airflow"

    def test_certificates(self):
        def verify(extra):
            return _verify(Connection(conn_id="a", extra=json.dumps(extra)))

        assert (verify({}), verify({"verify": False}), verify({"verify": "False"})) == (True, False, False)
        assert isinstance(verify({"verify": certifi.where()}), ssl.SSLContext)
        with pytest.raises(OSError, match="No such file"):
            verify({"verify": "/no/such/file"})

    def test_a_conflict_asks_for_it(self, tmp_path, api, cleared):
        api.connection(password="a token")
        world = World(tmp_path / "table", restart_conn_id="airflow_api")
        world.conflict()
        assert [body["task_ids"] for _, body, _ in api.asked] == [["txn.start"]]
        assert not cleared


class TestChecksAgain:
    """What ``on_outdated`` clears, and how often."""

    OUTDATED = exceptions.ChecksOutdatedException("Not published.", checks=(("txn.audit", -1), ("each.look", 2)))

    def again(self, world, **given):
        task = DeltaCommitOperator(task_id="txn.commit", transaction=None, staged=None, **given)
        return checks.check_again(task, context(world.txn.commit, task_state_store=world.store))

    def test_the_checks_are_cleared_with_everything_after_them(self, world, api, cleared, capfd):
        api.connection(password="a token")
        api.answers = [(200, {"task_instances": [{"task_id": "txn.audit"}, {"task_id": "each.look"}]})] * 5
        for _ in range(3):
            handle = world.begin("mine")
            self.again(world, on_outdated="check_again", restart_conn_id="airflow_api", max_restarts=2).after(
                self.OUTDATED, handle
            )
        assert [body["task_ids"] for _, body, _ in api.asked] == [["txn.audit", ["each.look", 2]]] * 2
        assert "2 restarts were not enough" in "".join(capfd.readouterr())
        assert not is_aborted(world.log, handle)
        assert not cleared

    def test_a_later_try_does_not_take_it_for_a_restart(self, world, api, cleared):
        """The transaction goes on: only a restart that was counted for it is brought to its end."""
        api.answers = [
            (200, {"access_token": "t"}),
            (200, {"task_instances": [{"task_id": "txn.audit"}, {"task_id": "each.look"}]}),
        ]
        handle = world.begin("mine")
        staged = world.staged(handle, "append")
        self.again(world, on_outdated="check_again", restart_conn_id="airflow_api").after(self.OUTDATED, handle)
        assert world.store.kept[tasks_again.STATE_KEY] == {"restarts": 1}
        world.commit(handle, staged)
        assert (world.log.update().version, world.store.kept[tasks_again.STATE_KEY]) == (1, {"restarts": 0})
        assert not cleared

    @pytest.mark.parametrize(
        ("given", "asks"),
        [
            ({}, False),
            ({"on_conflict": "restart"}, False),
            ({"on_conflict": "restart", "restart_conn_id": "airflow_api"}, True),
            ({"on_conflict": "restart", "restart_conn_id": "airflow_api", "on_outdated": "fail"}, False),
            ({"on_outdated": "check_again", "restart_conn_id": "airflow_api"}, True),
        ],
    )
    def test_the_default(self, world, given, asks):
        assert (self.again(world, **given) is not None) == asks

    def test_without_a_connection(self, world):
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match=r"'txn.commit' clears single tasks.*restart_conn_id"):
            self.again(world, on_outdated="check_again")
        with pytest.raises(exceptions.DeltaIllegalArgumentException, match="on_outdated"):
            self.again(world, on_outdated="{{ 'again' }}")


def test_arguments_of_the_group():
    arguments = {"on_conflict": "restart", "max_restarts": 5, "restart_conn_id": "api", "on_outdated": "fail"}
    with DAG("d", schedule=None), delta_transaction("txn", table="/t", **arguments) as txn:
        DeltaStageFilesOperator(task_id="stage")
    assert {name: getattr(txn.commit, name) for name in arguments} == arguments
    assert arguments.keys() <= set(DeltaCommitOperator.template_fields)
