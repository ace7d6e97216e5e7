-- What cost.js computes costs from on the price basis that a reader chooses: all prices, and the results with their times.
-- The rule by which an offer is chosen is translated from Python (script.py). See definitions#cost.
with rated as (
    select
        coalesce(accelerator_count, units * instances) as devices, model_name, method, sequence_length, trust, trust_shown as trust_label,
        s.* exclude (instance, seconds_per_1m_samples)
    from listed_results r join cost_seconds s using (result_id)
    where not last and s.accelerator is not null and units > 0 and coalesce(seconds_per_1k_samples, seconds_per_1m_tokens, seconds_per_epoch, seconds_per_training, seconds_per_run) is not null
    order by result_id
), offered as (
    select
        accelerator, provider, provider_rank is not null or kind <> 'on_demand' as listed, instance, region, kind, accelerator_count, usd_per_hour, effective_on, dated, fabric is not null as fabric
    from listed_prices order by price desc
)
select
    (select cast(max(as_of) as varchar) from collection) as as_of,
    (select map_from_entries(list((accelerator, name) order by vendor, name, accelerator)) from accelerators semi join rated using (accelerator)) as accelerators,
    map_from_entries([(key, method(key)) for key in ['full', 'lora', 'qlora', 'peft']]) as methods,
    (select map_from_entries(list(distinct (provider, provider(provider)) order by (provider, provider(provider)))) from offered) as providers,
    (select list(o) from offered o) as prices_columns,
    (select list(r) from rated r) as results_columns
