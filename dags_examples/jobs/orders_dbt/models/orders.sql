{{ config(materialized="external", location=env_var("DESTINATION"), options={"partition_by": "day"}) }}

SELECT *, ordered_at::DATE AS day
FROM read_csv(
    '{{ env_var("SOURCE") }}', columns={id: 'BIGINT', amount: 'DECIMAL(10, 2)', ordered_at: 'TIMESTAMPTZ'}
)
