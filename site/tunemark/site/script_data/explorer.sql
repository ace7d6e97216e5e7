-- What explorer.js filters and sorts: one row per result, as columns. Unknown values are null.
with recorded as (
    select
        result_id,
        max(value) filter (name = 'framework' and value <> '') as framework
    from result_facts
    group by all
), printed as (
    -- Printed names of accelerators without a card, without their count. Documents print one accelerator in several ways: the most frequent counts.
    select result_id, first_value(name) over (partition by key order by number desc, name) as name
    from (
        select
            result_id,
            case when regexp_matches(accelerator_name, ', | and ') then 'several accelerators' else nullif(regexp_replace(accelerator_name, '^\d+ ?[x×] ?', ''), '') end as name,
            regexp_replace(lower(regexp_replace(name, '^(NVIDIA|AMD|Intel\(R\)|Intel)\s+', '', 'i')), '[^a-z0-9]+', '', 'g') as key,
            count(*) over (partition by name) as number
        from listed_results where accelerator is null
    )
), shown as (
    select
        r.result_id as id,
        -- Failed and impossible results stay below the others; rates with a finding are marked, and last among these.
        (case when r.failed then 1 else 0 end | case when r.impossible then 2 else 0 end) as flags,
        nullif(array_to_string(list_filter(['tokens_per_s', 'samples_per_s', 'mfu', 'step_time_s', 'peak_memory_bytes'], lambda key: map_contains(reading, key)), ' '), '') as ambiguous,
        nullif(r.rate_verdict, '') as doubted,
        case when r.accelerator is null then p.name else r.accelerator_name end as accelerator,
        r.accelerator_count as devices,
        r.model_name as model,
        method(r.method) as method,
        r.sequence_length as row_length,
        nullif(r.quantisation, 'none') || ' frozen weights' as quantisation,
        r.tokens_per_s,
        r.samples_per_s,
        r.model_flop_per_s / r.accelerator_count as model_flop_per_s_per_device,
        r.mfu,
        r.step_time_s,
        r.peak_memory_bytes,
        r.usd_per_1k_samples,
        r.usd_per_1m_tokens,
        r.time_to_target_s,
        r.trust_shown as trust,
        r.software_level,
        case when r.source = 'measured' then 'Tunemark harness' else f.framework end as framework,
        -- Models below 20 million parameters only test the harness.
        case when r.failed then 'failed run' when r.impossible then 'impossible figure' when m.parameters < 20e6 then 'test of the harness'
            when r.pretraining then 'steps of pre-training' else 'fine-tuning' end as kind,
        words(r.status) as status,
        regexp_extract_all(case when r.source = 'measured' then r.started_on else s.published_on end, '\b20\d\d\b') as years,
        nullif(list_min(years) || case when list_min(years) < list_max(years) then ' to ' || list_max(years) else '' end, '') as year,
        r.source
    from listed_results r
    left join recorded f using (result_id)
    left join printed p using (result_id)
    left join models m using (model)
    left join sources s on s.source = r.source
    order by flags <> 0, doubted is not null, coalesce(model_flop_per_s_per_device, 0) desc, coalesce(r.tokens_per_s, 0) desc, id
), fields as (
    -- `shown` unless the reader chooses other columns; a `facet` is offered as a filter with counts.
    select key, coalesce(label, quantity_label(quantity)) as label, kind, shown, facet, coalesce(explained, quantity_meaning(quantity)) as explained
    from (values
        ('accelerator', null, 'Accelerator', 'text', true, true, 'Accelerator and device count; links to the result.'),
        ('devices', null, 'Devices', 'count', false, true, 'Number of accelerators of the run.'),
        ('model', null, 'Model', 'text', true, true, ''),
        ('method', null, 'Method', 'text', false, true, 'Fine-tuning method.'),
        ('row_length', null, 'Sequence length', 'count', false, true, 'Tokens of a row, padding included.'),
        ('quantisation', null, 'Quantisation', 'text', false, false, 'Format of frozen weights of a measured run, if it is not bf16 or fp32.'),
        ('tokens_per_s', 'tokens_per_s', null, 'rate', true, false, null),
        ('samples_per_s', 'samples_per_s', null, 'rate', false, false, null),
        ('model_flop_per_s_per_device', null, 'Model FLOP/s per device', 'flop_per_s', true, false, 'Model FLOPs per second of one device, without recomputed FLOPs. It depends less on the model than tokens/s.'),
        ('mfu', null, 'MFU', 'percent', false, false, 'Model FLOPs utilisation: without recomputed work.'),
        ('step_time_s', 'step_time_s', null, 'seconds', false, false, null),
        ('peak_memory_bytes', 'peak_memory_bytes', null, 'bytes', true, false, null),
        ('usd_per_1k_samples', 'cost_per_1k_samples_usd', null, 'usd', false, false, null),
        ('usd_per_1m_tokens', 'cost_per_1m_tokens_usd', null, 'usd', true, false, null),
        ('time_to_target_s', null, 'Time to target', 'seconds', false, false, 'Time to the target loss of MLPerf or of the workload.'),
        ('trust', null, 'Trust', 'text', true, true, 'The evidence behind the result.'),
        ('software_level', null, 'Software level', 'text', false, true, 'How far the training loop is tuned: plain, tuned (fused kernels or compile) or vendor.'),
        ('framework', null, 'Framework', 'text', false, true, 'Training framework as stated by the source.'),
        ('kind', null, 'Kind of run', 'text', false, true, 'Fine-tuning; or why a result is not evidence about fine-tuning.'),
        ('status', null, 'Status', 'text', false, true, ''),
        ('year', null, 'Year', 'text', false, true, 'Year of a measured run, else the year or years of the source.'),
        ('source', null, 'Source', 'text', false, true, 'The document or the MLPerf round, or a Tunemark run.')
    ) as declared(key, quantity, label, kind, shown, facet, explained)
)
select
    'tunemark.explorer/1' as format,
    (select list(f) from fields f) as fields,
    (select c from (select list(columns(* exclude years)) from shown) c) as columns,
    (select map_from_entries(list(distinct (source, source_title))) from listed_results) as titles
