-- What compare.js compares: the figures, the stated conditions and the objections of each finished result, and the cards. All arithmetic is in the script.
with shown_figures as (
    -- In the order of the page: kind of number, whether a missing interval is stated, and the figures from which one is always calculated.
    select row_number() over () as position, * from (values
        ('tokens_per_s', null, 'rate', true, []), ('tokens_per_s_device', 'Tokens/s per device', 'rate', true, ['tokens_per_s']),
        ('samples_per_s', null, 'rate', true, []), ('step_time_s', null, 'duration', false, []), ('mfu', null, 'percent', false, ['tokens_per_s', 'samples_per_s']),
        ('peak_memory_bytes', null, 'gib', false, []), ('cost_per_1m_tokens_usd', null, 'usd', true, ['tokens_per_s']),
        ('cost_per_1k_samples_usd', null, 'usd', true, ['samples_per_s']), ('time_to_target_s', 'Time to target', 'duration', true, []),
        ('epoch_time_s', null, 'duration', false, []), ('train_time_s', null, 'duration', false, [])
    ) as declared(key, label, kind, interval, sources)
), results_shown as (
    select
        r.*, e.level, c.tokens_per_s_low / c.tokens_per_s as pooled_low, c.tokens_per_s_high / c.tokens_per_s as pooled_high, pooled_low is not null and r.tokens_per_s > 0 as pooled,
        coalesce(nullif(case when pooled then c.runs else n.runs end, 0) || ' runs', 'one run') as covered
    from listed_results r
    left join (select result_id, any_value(level) as level from throughput_errors group by all) e using (result_id)
    left join (select result_id, count(*) as runs from runs group by all) n using (result_id)
    left join configurations c on c.configuration = r.configuration
    where not r.failed
), intervals as (
    select *,
        case when pooled then tokens_per_s * pooled_low else tokens_per_s_low end as low, case when pooled then tokens_per_s * pooled_high else tokens_per_s_high end as high
    from results_shown
), figures as (
    select result_id, f.key, f.figure
    from (
        select result_id, unnest([
            {'key': 'tokens_per_s', 'figure': [tokens_per_s, low, high]},
            {'key': 'tokens_per_s_device', 'figure': [tokens_per_s / accelerator_count, low / accelerator_count, high / accelerator_count]},
            {'key': 'samples_per_s', 'figure': [samples_per_s, case when not pooled then samples_per_s_low end, case when not pooled then samples_per_s_high end]},
            {'key': 'step_time_s', 'figure': [step_time_s, null, null]},
            {'key': 'mfu', 'figure': [mfu, null, null]},
            {'key': 'peak_memory_bytes', 'figure': [peak_memory_bytes, null, null]},
            {'key': 'cost_per_1m_tokens_usd', 'figure': [usd_per_1m_tokens, usd_per_1m_tokens_low, usd_per_1m_tokens_high]},
            {'key': 'cost_per_1k_samples_usd', 'figure': [usd_per_1k_samples, usd_per_1k_samples_low, usd_per_1k_samples_high]},
            {'key': 'time_to_target_s', 'figure': [time_to_target_s, time_to_target_low_s, time_to_target_high_s]},
            {'key': 'epoch_time_s', 'figure': [epoch_time_s, null, null]},
            {'key': 'train_time_s', 'figure': [train_time_s, null, null]}
        ]) as f
        from intervals
    )
    where f.figure[1] > 0
), own_objections as (
    -- Figures that the audit calls impossible or inconsistent, and those with several readings, are not compared.
    select record as result_id, key, verdict, rule as reason, verdict in ('impossible', 'inconsistent') as refuses, severity, min(finding) as place
    from (select *, unnest(quantities) as key from listed_findings where is_first) group by all
    union all
    select result_id, unnest(map_keys(reading)), 'ambiguous', 'several readings', true, 4, 1_000_000 from listed_results
), calculated as (
    select f.result_id, f.key, unnest(s.sources) as source from figures f join shown_figures s using (key)
    union
    select f.result_id, f.key, n.source
    from figures f
    join result_facts d on d.result_id = f.result_id and d.topic = 'derived' and d.name = f.key
    join (values
        ('tokens per second', 'tokens_per_s'), ('tokens/s', 'tokens_per_s'), ('samples per second', 'samples_per_s'), ('samples/s', 'samples_per_s'), ('step time', 'step_time_s')
    ) as n(words, source) on contains(d.reason, n.words) and n.source <> f.key
), objections as (
    select result_id, key, list({'verdict': verdict, 'reason': reason, 'refuses': refuses} order by severity, place) as objections
    from (
        from own_objections
        union all
        select distinct c.result_id, c.key, o.verdict, '', true, o.severity, 2_000_000
        from calculated c join own_objections o on o.result_id = c.result_id and o.key = c.source and o.refuses
    ) semi join shown_figures using (key)
    group by all
), objections_made as (
    select result_id, map_from_entries(list((key, objections))) as objections from objections group by result_id
), condition_labels as (
    select 1 as topic, position, condition as key, condition as name, label, 'column' as kind from condition_names where condition not in ('steps', 'epochs')
    union all
    select 2, row_number() over (), key, key, label, 'column' from (values
        ('attention', 'Attention'), ('fused_kernels', 'Fused kernels'), ('compile', 'Compilation'), ('gradient_checkpointing', 'Gradient checkpointing'),
        ('level', 'Software level'), ('work', 'FLOPs per token'), ('nodes', 'Nodes')
    ) as declared(key, label)
), device_facts as (
    from (values
        ('devices.0.application_clock_mhz', 'application clock in MHz'), ('devices.0.driver', 'driver'), ('devices.0.ecc', 'ECC'),
        ('devices.0.max_clock_mhz', 'highest clock in MHz'), ('devices.0.max_memory_clock_mhz', 'highest clock of the memory in MHz'),
        ('devices.0.pcie_generation', 'PCIe generation'), ('devices.0.pcie_width', 'PCIe lanes'), ('devices.0.power_limit_w', 'power limit in W'),
        ('memory_bytes', 'memory'), ('swap_bytes', 'swap space'), ('cpu', 'CPU'), ('cpu_logical_cores', 'logical cores of the CPU'),
        ('cpu_physical_cores', 'physical cores of the CPU'), ('cpu_usable_cores', 'usable cores of the CPU'), ('os', 'operating system'),
        ('container', 'container'), ('python', 'Python')
    ) as declared(name, label)
), fact_labels as (
    select
        t.position + 2 as topic, row_number() over (order by f.name) as position, f.topic || '.' || f.name as key, f.topic as of_topic, f.name,
        sentence_case(t.start || coalesce(d.label, replace(regexp_replace(setting(f.name), ' printed$', ''), 'lora ', 'LoRA '))) as label
    from (select distinct topic, name from result_facts) f
    join (values (1, 'settings', ''), (2, 'packages', 'Package: '), (3, 'system', 'System: '), (4, 'environment', 'Machine: '), (5, 'entry', 'Entry: ')) as t(position, topic, start) using (topic)
    left join device_facts d on f.topic = 'environment' and d.name = f.name
    -- Lengths of a run, on which its rates do not depend, names, and what columns say already.
    where not list_contains(case f.topic
        when 'settings' then ['steps', 'epochs', 'max_steps', 'num_steps', 'nodes'] when 'system' then ['accelerator_printed', 'accelerator_memory_printed', 'framework_printed', 'nodes', 'notes']
        when 'entry' then ['folder', 'source', 'label', 'division', 'benchmark', 'target_eval_loss'] else [] end, f.name)
        and (f.topic <> 'environment' or d.name is not null)
), printed_labels as (
    -- Labels of a printed row that state a condition; the others are its figures, its name or an opinion.
    select 9 as topic, row_number() over (order by label) as position, 'printed.' || label as key, label as name, 'Printed: ' || setting(label) as label
    from unnest([
        'accelerator_type', 'batch_size', 'command', 'configuration', 'data_parallel', 'ddp', 'device_type', 'experiment', 'finetuning_method', 'fsdp', 'fsdp_cpu_offload',
        'gradient_checkpointing', 'hardware', 'instance', 'kind', 'length', 'lora_targets', 'machine', 'mode', 'paddle_setup', 'parallelism', 'peft_method', 'quantization',
        'recipe', 'run', 'seqlen', 'sequence_length', 'setup', 'task', 'technique', 'techniques', 'test', 'topology', 'torch_setup', 'train_type', 'variant', 'zero'
    ]) as declared(label)
), stated as (
    select result_id, condition as key, case condition when 'dataset' then shown else recorded_value(shown) end as text, 1 as rank from result_conditions
    union all
    select result_id, key, recorded_value(value), 1
    from (unpivot (select result_id, attention, fused_kernels, compile, gradient_checkpointing, level, nodes::varchar as nodes from results_shown) on columns(* exclude result_id) into name key value value)
    union all
    select f.result_id, coalesce(c.key, l.key), case f.topic when 'settings' then recorded_value(recorded(f.topic, f.name, f.value)) else recorded(f.topic, f.name, f.value) end, 2
    from result_facts f join fact_labels l on l.of_topic = f.topic and l.name = f.name left join condition_labels c on f.topic = 'settings' and c.key = f.name
    where f.value is not null
    union all
    select record_id, key, printed, 1 from labels p join printed_labels l on l.name = p.label
), known_labels as (
    select topic, position, key, label from condition_labels
    union all
    select topic, position, key, label from fact_labels where not (of_topic = 'settings' and name in (select key from condition_labels))
    union all
    select topic, position, key, label from printed_labels
), conditions as (
    select result_id, map_from_entries(list((key, left(text, 120)) order by topic, position)) as conditions
    from (select result_id, key, arg_min(text, rank) as text from stated where text <> '' group by all) join known_labels using (key)
    group by result_id
), results_made as (
    select
        result_id as id, title, trust_shown as trust, accelerator, precision, level, accelerator_count as count, model_flop_per_s as flop_per_s,
        case when count(f.figure[2]) > 0 then any_value(covered) end as runs,
        case when hfu >= mfu and mfu > 0 then hfu / mfu end as recompute,
        case when impossible then true end as impossible,
        billed,
        map_from_entries(list((f.key, f.figure) order by s.position) filter (f.key is not null)) as figures,
        any_value(c.conditions) as conditions,
        any_value(o.objections) as objections
    from results_shown r
    left join figures f using (result_id)
    left join conditions c using (result_id)
    left join shown_figures s on s.key = f.key
    left join objections_made o using (result_id)
    group by all order by id
), cards as (
    select
        accelerator, name, vendor, architecture, case when trains then 'supported' else 'not supported: inference only' end as training, devices_per_unit, memory_gib, memory_bandwidth_gb_s,
        peak_bf16_tflops, peak_fp16_tflops, peak_tf32_tflops, peak_fp32_tflops, peak_fp8_tflops, peak_int8_tops, tdp_w, interconnect_gb_s, launch_year, p.each_usd as usd_per_hour, coalesce(p.offer, '') as offer,
        list_transform(unverified, lambda field: case when starts_with(field, 'peak_tflops.') then 'peak_' || field[13:] || case field[13:] when 'int8' then '_tops' else '_tflops' end else field end) as unverified
    from listed_accelerators left join (
        select accelerator, each_usd, 'on demand, ' || provider(provider) || ' ' || instance || ', ' || dated as offer from listed_prices
        where newest and kind = 'on_demand' and provider_rank is not null
        qualify row_number() over (partition by accelerator order by each_usd, accelerator_count, price) = 1
    ) p using (accelerator)
    order by vendor, name, accelerator
), card_rows as (
    from (values
        ('vendor', 'Vendor', 'text', ''), ('architecture', 'Architecture', 'text', ''), ('training', 'Training', 'text', ''), ('devices_per_unit', 'Devices per unit', 'whole', ''),
        ('memory_gib', 'Memory', 'number', 'GiB'), ('memory_bandwidth_gb_s', 'Memory bandwidth', 'number', 'GB/s'), ('peak_bf16_tflops', 'Dense bf16 peak', 'number', 'TFLOP/s'),
        ('peak_fp16_tflops', 'Dense fp16 peak', 'number', 'TFLOP/s'), ('peak_tf32_tflops', 'Dense tf32 peak', 'number', 'TFLOP/s'), ('peak_fp32_tflops', 'Dense fp32 peak', 'number', 'TFLOP/s'),
        ('peak_fp8_tflops', 'Dense fp8 peak', 'number', 'TFLOP/s'), ('peak_int8_tops', 'Dense int8 peak', 'number', 'TOP/s'), ('tdp_w', 'Power limit', 'number', 'W'),
        ('interconnect_gb_s', 'Link between devices', 'number', 'GB/s'), ('launch_year', 'Launched', 'whole', ''), ('usd_per_hour', 'Price per device and hour', 'usd', '')
    ) as declared(key, label, kind, unit)
)
select
    (select list(r) from results_made r) as results,
    (select list({'key': key, 'label': coalesce(label, quantity_label(key)), 'kind': kind, 'interval': interval} order by position) from shown_figures) as figures,
    (select map_from_entries(list((key, label) order by topic, position)) from known_labels where key = 'work' or key in (select key from stated semi join results_shown using (result_id))) as labels,
    (select map_from_entries(list((parameter, [value, low, high]))) from throughput_model where kind in ('level', 'slope')) as effects,
    (select map_from_entries(list((accelerator, c))) from cards c) as cards,
    (select list(c) from card_rows c) as card_rows
