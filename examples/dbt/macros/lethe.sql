{# Models that follow a table of Lethe batch by batch. Copy this file to your project. Such a model is configured with

     materialized='incremental', incremental_strategy='lethe', post_hook='{{ "{{ lethe_remember() }}" }}',
     meta={'lethe_table': 'shop.orders', 'batch_column': 'batch_id'}

   reads `{{ "{{ lethe_rows() }}" }}`, and keeps the batch column. #}

{# The rows of the batches that changed since the last run. In the first run, and with --full-refresh: all rows. #}
{% macro lethe_rows() -%}
  read_parquet('{{ lethe_changes() }}/rows.parquet')
{%- endmacro %}

{# Replay what changed: forget these batches, also those that were taken back, and add what they have now. Without progress, as
   of a table that was made in another way, everything was read: forget all. #}
{% macro get_incremental_lethe_sql(arguments) %}
  {%- set column = config.get('meta').get('batch_column', 'batch_id') %}
  {%- set columns = arguments['dest_columns'] | map(attribute='quoted') | join(', ') %}
  delete from {{ arguments['target_relation'] }} where {{ lethe_since() }} is null;
  delete from {{ arguments['target_relation'] }} as kept
  using read_parquet('{{ lethe_changes() }}/batches.parquet') as changed
  where kept.{{ column }} is not distinct from changed.batch_id;
  insert into {{ arguments['target_relation'] }} ({{ columns }}) select {{ columns }} from {{ arguments['temp_relation'] }}
{% endmacro %}

{# Store the snapshot up to which the model has read, in the transaction of the model. #}
{% macro lethe_remember() %}
  insert or replace into {{ lethe_progress() }}
  select '{{ model.unique_id }}', snapshot_id from read_parquet('{{ lethe_changes() }}/snapshot.parquet')
{% endmacro %}

{# The folder with the changes, the same during one run of a model. #}
{% macro lethe_changes() %}
  {%- if not execute %}{{ return('') }}{% endif %}
  {%- set table = config.get('meta')['lethe_table'], config.get('meta').get('batch_column', 'batch_id') %}
  {%- do run_query('create table if not exists ' ~ lethe_progress() ~ ' (model varchar primary key, snapshot_id bigint)') %}
  {%- set found = run_query("select lethe_changes('" ~ table[0] ~ "', '" ~ table[1] ~ "', "
      ~ (lethe_since() if is_incremental() else 'null') ~ ", '" ~ model.unique_id ~ ' ' ~ invocation_id ~ "')") %}
  {{- return(found.columns[0].values()[0]) }}
{%- endmacro %}

{# The snapshot up to which the model has read; null: none. #}
{% macro lethe_since() %}
  {{- return("(select snapshot_id from " ~ lethe_progress() ~ " where model = '" ~ model.unique_id ~ "')") }}
{%- endmacro %}

{% macro lethe_progress() %}{{ return(target.schema ~ '.lethe_progress') }}{% endmacro %}
