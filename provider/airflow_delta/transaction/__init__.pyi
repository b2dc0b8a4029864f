from airflow_delta.transaction.commit.hooks import CheckpointHook as CheckpointHook
from airflow_delta.transaction.commit.hooks import ChecksumHook as ChecksumHook
from airflow_delta.transaction.commit.hooks import CommittedTransaction as CommittedTransaction
from airflow_delta.transaction.commit.hooks import PostCommitHook as PostCommitHook
from airflow_delta.transaction.commit.hooks import last_commit_version_in_session as last_commit_version_in_session
from airflow_delta.transaction.commit.optimistic_transaction import OptimisticTransaction as OptimisticTransaction
from airflow_delta.transaction.commit.start_transaction import start_transaction as start_transaction
from airflow_delta.transaction.commit.start_transaction import with_new_transaction as with_new_transaction
from airflow_delta.transaction.commit.stats import CommitStats as CommitStats
from airflow_delta.transaction.commit.stats import TransactionObserver as TransactionObserver
from airflow_delta.transaction.operations import Operation as Operation
from airflow_delta.transaction.policy import AutoCompactionRequest as AutoCompactionRequest
from airflow_delta.transaction.policy import CommitOutcome as CommitOutcome
from airflow_delta.transaction.policy import CommitPolicy as CommitPolicy
from airflow_delta.transaction.prepare.isolation import IsolationLevel as IsolationLevel

__all__ = [
    "AutoCompactionRequest",
    "CheckpointHook",
    "ChecksumHook",
    "CommitOutcome",
    "CommitPolicy",
    "CommitStats",
    "CommittedTransaction",
    "IsolationLevel",
    "Operation",
    "OptimisticTransaction",
    "PostCommitHook",
    "TransactionObserver",
    "last_commit_version_in_session",
    "start_transaction",
    "with_new_transaction",
]
