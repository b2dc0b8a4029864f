from airflow_delta.spark.job import DeltaStage as DeltaStage
from airflow_delta.spark.job import delta_stage as delta_stage
from airflow_delta.spark.read import read_scan_plan as read_scan_plan
from airflow_delta.spark.stage import stage_dataframe as stage_dataframe
