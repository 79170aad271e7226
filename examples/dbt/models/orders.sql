-- Other models need nothing of Lethe.
select sum(orders)::bigint as orders, count(*) as batches from {{ ref('orders_by_batch') }}
