{{ config(
    materialized='incremental',
    incremental_strategy='lethe',
    post_hook='{{ lethe_remember() }}',
    meta={'lethe_table': 'shop.orders'},
) }}
-- Only batches that changed are read and counted again. A batch that was taken back disappears.
select batch_id, count(*) as orders, max(id) as newest
from {{ lethe_rows() }}
group by batch_id
