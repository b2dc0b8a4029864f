from airflow_delta.publication_groups import delta_publication as delta_publication
from airflow_delta.task_groups import delta_transaction as delta_transaction
from airflow_delta.tasks.handle_check import staging_path as staging_path
from airflow_delta.version import __version__ as __version__

__all__ = ["__version__", "delta_publication", "delta_transaction", "staging_path"]
