from airflow_delta.job_groups import delta_job as delta_job
from airflow_delta.publication_groups import delta_publication as delta_publication
from airflow_delta.task_groups import delta_transaction as delta_transaction
from airflow_delta.tasks.stage.staging_path import staging_path as staging_path
from airflow_delta.version import __version__ as __version__
