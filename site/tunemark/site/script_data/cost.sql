-- What cost.js computes costs from on the price basis that a reader chooses: all prices, and the results with their rates.
-- The rule by which an offer is chosen is translated from Python (script.py). See definitions#cost.
with rated as (
    select
        result_id, accelerator, accelerator_count as devices, coalesce(nullif(accelerator_units, 0), accelerator_count) as units,
        coalesce(nodes, 1) as nodes, model_name, method, sequence_length, trust, trust_shown as trust_label,
        samples_per_s, samples_per_s_low, samples_per_s_high, tokens_per_s, tokens_per_s_low, tokens_per_s_high, epoch_time_s, train_time_s, wall_s
    from listed_results
    where not last and accelerator is not null and units > 0 and coalesce(samples_per_s, tokens_per_s, epoch_time_s, train_time_s, wall_s) is not null
    order by result_id
), offered as (
    select
        accelerator, provider, provider_rank as rank, instance, region, kind, accelerator_count, usd_per_hour, effective_on || if(dated_by = 'catalog', ', undated catalogue', '') as effective_on, fabric is not null as fabric
    from listed_prices order by price desc
)
select
    (select cast(max(as_of) as varchar) from collection) as as_of,
    (select map_from_entries(list((accelerator, name) order by vendor, name, accelerator)) from accelerators semi join rated using (accelerator)) as accelerators,
    map_from_entries([(key, method(key)) for key in ['full', 'lora', 'qlora', 'peft']]) as methods,
    (select map_from_entries(list(distinct (provider, provider(provider)) order by (provider, provider(provider)))) from offered) as providers,
    (select list(o) from offered o) as prices_columns,
    (select list(r) from rated r) as results_columns
