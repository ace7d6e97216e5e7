-- Tables that several pages show, made once when the site opens the database. Formats such as interval() are declared in columns.py.
-- A column x_small is shown below x, x_shown instead of x, x_mark beside it; see columns.cell.

create temp table listed_results as
with rate_verdicts as (
    select
        record_ids[1] as result_id,
        case when bool_or(verdict = 'inconsistent') then 'inconsistent' else 'suspicious' end as rate_verdict,
        string_agg(distinct sentence_case(title), '; ' order by sentence_case(title)) as rate_reason
    from findings join audit_rules using (rule)
    where verdict in ('inconsistent', 'suspicious')
        and list_has_any(quantities, ['tokens_per_s', 'samples_per_s', 'step_time_s', 'train_time_s'])
    group by all
), ambiguous_figures as (
    select record_id as result_id, map_from_entries(list((quantity, shown) order by quantity)) as reading
    from (
        select record_id, quantity, string_agg(quantity_text(quantity, value), ' or ' order by value, meaning) as shown
        from (select distinct record_id, quantity, value, min(meaning) as meaning from readings group by all)
        group by all
    )
    group by all
), overrides as (
    select result_id, string_agg(words(replace(name, 'batch.', '')) || ' ' || value, ', ' order by name) as changed
    from result_facts where topic = 'overrides' group by all
)
select
    r.* exclude (started_at) replace (replace(peak_memory_method, 'torch.cuda.max_memory_allocated', 'torch, peak allocated') as peak_memory_method),
    case when model_name is null then model_printed end as model_name_shown,
    coalesce(pretraining, false) as pretraining,
    quantisation, changed, -- settings of a measured run that differ from its workload card
    epoch_us(r.started_at) as started_us,
    strftime(r.started_at, '%Y-%m-%d') as started_on,
    r.failed or r.impossible as last,
    coalesce(rate_verdict, '') as rate_verdict,
    rate_reason,
    coalesce(accelerator_name, 'accelerator unknown') || coalesce(chr(160) || '×' || chr(160) || accelerator_count, '') as devices,
    result_id as devices_small,
    case when failed then 'failed' else status end as status_badge,
    u.reason as not_used,
    case when not starts_with(u.reason, 'the audit') then 'not used for predictions: ' || u.reason end as not_used_small, -- findings of the audit are shown as such
    case when coalesce(fp8, 'none') = 'none' then coalesce(narrow_printed, nullif(block_format, '') || if(trust = 'converted', ', assumed', '')) end as narrow, -- the format of products in fewer than 16 bits, unless `changed` has it
    concat_ws('; ', 'target in ' || duration(time_to_target_s), rate_reason, not_used_small) as status_small,
    case when impossible then 'impossible' else rate_verdict end as status_mark,
    case when impossible or rate_verdict <> '' then 'results/' || result_id || '#audit-findings' end as status_mark_href,
    coalesce(reading, map {}) as reading,
    case when step_time_s is null then reading['step_time_s'] end as step_time_s_small,
    case when reading['step_time_s'] is not null then 'ambiguous' end as step_time_s_mark,
    rate(tokens_per_s, tokens_per_s_low, tokens_per_s_high) as tokens_per_s_shown,
    case when tokens_per_s is null then reading['tokens_per_s'] else concat_ws('; ', nullif(shown_interval(tokens_per_s_low, tokens_per_s_high), ''), narrow) end as tokens_per_s_small,
    case when reading['tokens_per_s'] is not null then 'ambiguous' end as tokens_per_s_mark,
    rate(samples_per_s, samples_per_s_low, samples_per_s_high) as samples_per_s_shown,
    case when samples_per_s is null then reading['samples_per_s'] else concat_ws('; ', nullif(shown_interval(samples_per_s_low, samples_per_s_high), ''), narrow) end as samples_per_s_small,
    case when reading['samples_per_s'] is not null then 'ambiguous' end as samples_per_s_mark,
    case when peak_memory_bytes is null then reading['peak_memory_bytes'] else r.peak_memory_method end as peak_memory_bytes_small,
    case when reading['peak_memory_bytes'] is not null then 'ambiguous' end as peak_memory_bytes_mark,
    case when price_instances * billed_count > coalesce(accelerator_units, r.accelerator_count) * 1.001 then 'bills ' || whole(price_instances * billed_count) || ' devices' end as billed,
    concat_ws('; ', nullif(offer(price_instances, price_provider, price_instance, price_kind, dated), ''), billed) as offer,
    case when usd_per_1k_samples is not null then offer end as usd_per_1k_samples_small,
    case when usd_per_1m_tokens is not null then offer end as usd_per_1m_tokens_small,
    trust_label(trust, source) as trust_shown,
    trust as trust_badge,
    trust_meaning(trust, source) as trust_explained,
    concat_ws(', ', coalesce(model_name, model_printed, 'Model unknown'), case method when 'full' then 'full fine-tuning' else method(method) end, 'fp8 ' || nullif(fp8, 'none'), devices) as title,
    case when failed then 'Failed: ' || words(status) else coalesce('Time to target ' || duration(time_to_target_s) || '; ', '') || coalesce(nullif(array_to_string(list_transform(list_filter([
        {'key': 'tokens_per_s', 'value': tokens_per_s}, {'key': 'samples_per_s', 'value': samples_per_s}, {'key': 'step_time_s', 'value': step_time_s},
        {'key': 'peak_memory_bytes', 'value': peak_memory_bytes}, {'key': 'mfu', 'value': mfu}, {'key': 'train_time_s', 'value': train_time_s},
        {'key': 'epoch_time_s', 'value': epoch_time_s}, {'key': 'accuracy', 'value': accuracy}, {'key': 'eval_loss', 'value': eval_loss}, {'key': 'train_loss', 'value': train_loss}
    ], lambda figure: figure.value is not null)[:4], lambda figure: quantity_label(figure.key) || ' ' || quantity_text(figure.key, figure.value)), '; '), ''), 'No figures')
        || case when impossible then '. The audit refutes a figure' else '' end end || '. ' || trust_explained as summary, -- the first figures of a result, or why it failed
    division as trust_small,
    case when source = 'measured' then workload else source end as origin,
    case when source <> 'measured' then 'documents/' || source else 'workloads/' || workload end as origin_href,
    case when source <> 'measured' then section else concat_ws('; ', started_on, changed) end as origin_small,
    row_number() over (order by failed, impossible, source <> 'measured', coalesce(epoch_us(r.started_at), 0) desc, result_id) as place
from results_with_costs r
left join rate_verdicts using (result_id)
left join ambiguous_figures using (result_id)
left join (select result_id, reason from throughput_refused) u using (result_id)
left join (select result_id, value as narrow_printed from result_facts where topic = 'conditions' and name = 'precision' and regexp_matches(value, '(?i)(fp|float)[48]')) using (result_id)
left join (select result_id, block_format from known_rates) using (result_id)
left join overrides using (result_id)
left join (select price, accelerator_count as billed_count, dated from current_prices) using (price)
left join (select record_id as result_id, printed as model_printed from labels where label = 'model') using (result_id)
left join (select distinct result_id, true as pretraining from result_facts where topic = 'settings' and name = 'task' and value = 'pre-training steps') using (result_id)
left join (select result_id, effective as quantisation from effective where setting = 'quantisation') using (result_id)
-- A run that tests an installation is listed until another workload is measured later: a demo shows its own.
where coalesce(r.workload not in (select workload from workloads where tier = 'smoke') or r.started_at > (select max(started_at) from results join workloads using (workload) where tier <> 'smoke'), true)
order by place;

-- The numbers that pages state about the whole database. A page with a count of its own would differ from the others one day.
create temp table totals as
select
    counted.*,
    results + (select count(*) from statements) as records,
    with_finding + (select count(distinct statement_id) from statements, findings where list_contains(record_ids, statement_id)) as records_with_finding,
    (select count(*) from findings) as findings,
    (select count(*) from sources) as sources,
    (select count(*) from sources where source in (select source from results where trust = 'converted')) as rounds,
    (select count(*) from sources where source not in (select source from results where trust = 'converted')) as documents,
    (select count(*) from prices) as prices,
    (select count(distinct result_id) from throughput_errors) as used,
    (select count(*) from throughput_refused) as not_used,
    (select string_agg(percent(error) || ' with ' || level || ' software' || if(level = 'plain', ', the default', ''), ', ' order by level)
        from (select level, median(abs(error)) as error from throughput_errors where left_out = 'source' and error is not null group by all)) as errors
from (
    select
        count(*) as results,
        count(*) filter (r.source = 'measured') as measured,
        count(*) filter (trust in ('measured', 'reproduced') and unit <> 'cpu') as on_accelerators,
        count(*) filter (trust = 'published') as published,
        count(*) filter (trust = 'converted') as converted,
        count(*) filter (impossible) as impossible,
        count(*) filter (findings > 0) as with_finding,
        count(distinct accelerator) as accelerators,
        count(distinct model) as models
    from listed_results r left join accelerators using (accelerator)
) as counted;

-- The highest rate and the lowest cost by accelerator, model and method, of results that finished. A rate about which the audit has a finding
-- counts only where there is no other, and is marked.
create temp table best_rates as
with usable as (
    select *, tokens_per_s / accelerator_count as each
    from listed_results
    where not last and tokens_per_s > 0 and accelerator is not null and model is not null
    qualify rate_verdict = '' or bool_and(rate_verdict <> '') over (partition by accelerator, model, method(method))
)
select
    accelerator, any_value(accelerator_name) as accelerator_name,
    model, any_value(model_name) as model_name,
    method(method) as method,
    count(*) as results,
    min(result_id) as first_result,
    max(each) as best_rate,
    significant(best_rate) as best_rate_shown,
    arg_max(concat_ws(', ', trust_shown, accelerator_count || if(accelerator_count > 1, ' devices', ' device')), (each, result_id)) as best_from,
    arg_max(concat_ws('; ', 'sequence length ' || whole(sequence_length), narrow, changed, rate_reason, not_used_small), (each, result_id)) as best_from_small,
    arg_max(rate_verdict, (each, result_id)) as best_rate_mark,
    'results/' || arg_max(result_id, (each, result_id)) as best_rate_href,
    min(usd_per_1m_tokens) as best_cost,
    quantity_text('cost_per_1m_tokens_usd', best_cost) as best_cost_shown,
    arg_min(offer, (usd_per_1m_tokens, result_id)) filter (usd_per_1m_tokens is not null) as best_offer,
    'results/' || arg_min(result_id, (usd_per_1m_tokens, result_id)) filter (usd_per_1m_tokens is not null) as best_cost_href
from usable
group by all;

-- All prices with the name of their accelerator; those in force are `newest`.
create temp table listed_prices as
select
    p.* replace (cast(p.effective_on as varchar) as effective_on),
    coalesce(a.name, p.accelerator) as accelerator_name,
    coalesce(a.unit, '') as unit,
    p.usd_per_hour / p.accelerator_count as each_usd,
    c.price is not null as newest,
    provider(p.provider) as instance_small,
    words(p.kind) as kind_shown,
    cast(p.effective_on as varchar) as known_on,
    nullif(c.dated[13:], '') as known_on_mark,
    concat_ws(', ', known_on, known_on_mark, case when p.dated_by = 'catalog' then 'undated catalogue' end) as dated,
    case p.dated_by
        when 'provider' then 'day of the price list'
        when 'catalog' then 'day on which a catalogue without dates was read'
        else 'inferred from earlier and later price lists'
    end || case when newest then '' else '; not the newest' end as known_on_small,
    short_commits(p.source) as source_shown,
    web_link(p.source) as source_href,
    p.notes as source_small,
    format('{:.3g} {}{}', p.accelerator_count, case when a.unit = 'cpu' then 'socket' else 'accelerator' end, case when p.accelerator_count > 1 then 's' else '' end) as size
from prices p
left join accelerators a using (accelerator)
left join current_prices c using (price);

-- Additions to the data with the day of each, newest first: for the feed, and for the page of changes.
create temp table additions as
select strftime(make_timestamp(started_us), '%Y-%m-%dT%H:%M:%S') as day, 'results/' || result_id as path, 'Result: ' || title as title, summary
from listed_results where source = 'measured' and started_us is not null
union all
select cast(read_on as varchar), 'documents/' || s.source, 'Source: ' || s.title, whole(count(r.result_id)) || ' result' || case when count(r.result_id) = 1 then '' else 's' end || '. ' || s.summary
from sources s left join results r using (source) where read_on is not null group by s.source, read_on, s.title, s.summary
union all
select effective_on, 'cost#' || provider || '-' || effective_on, 'Prices: ' || whole(count(*)) || ' price' || case when count(*) = 1 then '' else 's' end || ' from ' || provider(provider) || ', in force from ' || effective_on,
    'Accelerators: ' || array_to_string(list_sort(list(distinct accelerator_name)), ', ') || '.'
from listed_prices group by provider, effective_on
order by day desc, path;

-- Series of runs with a page, and the workloads with one.
create temp table listed_series as from studies semi join listed_results using (study_id);
create temp table listed_workloads as from workloads where tier <> 'smoke' or workload in (select workload from listed_results);

-- Rounds of MLPerf Training that were published and are not imported.
create temp table newer_rounds as
from releases where library = 'MLPerf Training' and version not in (select substr(source, 8) from results where starts_with(source, 'mlperf-')) order by released_on;

-- What a reader has to know about an accelerator before choosing it; NULL for most.
create or replace temp macro unit_note(trains, devices_per_unit) as nullif(concat_ws(', ', case when not trains then 'inference only' end, case when devices_per_unit > 1 then devices_per_unit || ' devices each' end), '');

-- Accelerators with a page: those with a result or a price.
create temp table listed_accelerators as
select * from accelerators
where accelerator in (select accelerator from listed_results) or accelerator in (select accelerator from prices)
order by vendor, name, accelerator;

-- Findings about each record, worst first, with the place of each finding's rule and records.
create temp table listed_findings as
with places as (
    select result_id as record, source, 'results/' || result_id as href from listed_results
    union all
    select statement_id, source, 'documents/' || source || '#' || statement_id from statements
), about as (
    select f.finding, numbered.record, numbered.place
    from findings f, (select unnest(f.record_ids) as record, generate_subscripts(f.record_ids, 1) as place) as numbered
), records as (
    select finding, list({'record': record, 'href': coalesce(href, '')} order by place) as records
    from about left join places using (record)
    group by finding
)
select
    f.finding,
    f.verdict,
    list_position(['impossible', 'inconsistent', 'suspicious', 'ambiguous'], f.verdict) as severity,
    about.record,
    about.place = 1 as is_first,
    f.record_ids,
    f.quantities,
    f.conditions,
    f.claim,
    f.calculation,
    r.rule,
    r.family,
    r.why,
    sentence_case(r.title) as title,
    'audit/index#rule-' || r.rule as rule_href,
    p.source,
    p.href,
    list_filter(records, lambda each: each.record <> about.record) as others
from findings f
join about using (finding)
join records using (finding)
join audit_rules r using (rule)
left join places p on p.record = about.record
order by severity, finding, about.place;

-- Time and cost of a million tokens: documents with at least three priced results of one model, method and sequence length on two accelerators.
create temp table token_fronts as
with priced as (
    select *, 1e6 / tokens_per_s as seconds
    from listed_results
    where not last and trust = 'published' and rate_verdict = '' and tokens_per_s > 0 and model is not null and sequence_length is not null
        and usd_per_1m_tokens is not null
)
select
    model,
    any_value(model_name) as model_name,
    method,
    sequence_length,
    source,
    count(*) as results,
    min(seconds) as fastest_s,
    arg_min(usd_per_1m_tokens, (seconds, usd_per_1m_tokens, result_id)) as fastest_usd,
    arg_min(result_id, (seconds, usd_per_1m_tokens, result_id)) as fastest_id,
    arg_min(devices, (seconds, usd_per_1m_tokens, result_id)) as devices,
    arg_min(coalesce(narrow, ''), (seconds, usd_per_1m_tokens, result_id)) as fastest_small,
    arg_min(coalesce(narrow, ''), (usd_per_1m_tokens, seconds, result_id)) as cheapest_small,
    min(usd_per_1m_tokens) as cheapest_usd,
    arg_min(seconds, (usd_per_1m_tokens, seconds, result_id)) as cheapest_s,
    arg_min(result_id, (usd_per_1m_tokens, seconds, result_id)) as cheapest_id,
    arg_min(devices, (usd_per_1m_tokens, seconds, result_id)) as cheapest_devices
from priced
group by model, method, sequence_length, source
having count(*) >= 3 and count(distinct accelerator) >= 2;

-- Converted results with the facts of their entry, and the runs that reached the target.
create temp table mlperf_entries as
with facts as (
    select result_id, map_from_entries(list((topic || '/' || name, value))) as fact
    from result_facts
    where topic in ('entry', 'system', 'derived') and value is not null
    group by all
), counts as (
    select result_id, count(*) as runs, count(time_to_target_s) as reached from runs group by all
)
select
    r.* exclude (tokens_per_s_shown),
    coalesce(fact['entry/label'], '') as label,
    fact['entry/round'] as round,
    coalesce(r.division, fact['entry/division']) as entry_division,
    fact['entry/submitter'] as submitter,
    fact['system/name'] as system,
    fact['system/availability'] as availability,
    coalesce(r.nodes, try_cast(fact['system/nodes'] as integer)) as machines,
    try_cast(fact['derived/time_to_target.fastest_s'] as double) as fastest_s,
    try_cast(fact['derived/time_to_target.slowest_s'] as double) as slowest_s,
    try_cast(fact['entry/target_eval_loss'] as double) as target,
    coalesce(runs, 0) as runs, coalesce(reached, 0) as reached,
    reached || ' of ' || runs as reached_shown,
    model_flop_per_s / accelerator_count as each_flop_per_s,
    case when machines is null then 'machines unknown' when machines = 1 then 'on one machine' else 'on ' || whole(machines) || ' machines' end as on_machines,
    duration(time_to_target_low_s) || ' to ' || duration(time_to_target_high_s) as time_interval
from listed_results r
left join facts using (result_id)
left join counts using (result_id)
where trust = 'converted';

-- Rows of the tables of source documents, rebuilt digit for digit from what the records printed. A cell of `cells` is `c1`, `c2`, ...: its template refers
-- to a printed figure or label as `{record/name}`. Each row links each of its results once; impossible and suspicious figures are marked.
create temp table printed_rows as
with printed as (
    select record_id || '/' || name as reference, arg_max(printed, rank) as printed
    from (select record_id, label as name, printed, 1 as rank from labels union all select record_id, quantity, printed, 2 from claims) group by all
), marks as (
    select record || '/' || name as reference, arg_min(verdict, severity) as verdict, any_value(href) as href
    from listed_findings, unnest(case when len(quantities) > 0 then quantities else conditions end) as about(name)
    where verdict = 'impossible' or (verdict = 'suspicious' and is_first and len(quantities) > 0)
    group by all
), parts as (
    select
        source, table_id, row_number, column_number, unnest(regexp_split_to_array(template, '\{[^{}/]+/[^{}/]+\}')) as part,
        unnest(regexp_extract_all(template, '\{([^{}/]+/[^{}/]+)\}', 1)) as reference, generate_subscripts(regexp_split_to_array(template, '\{[^{}/]+/[^{}/]+\}'), 1) as place
    from document_cells
), texts as (
    select
        source, table_id, row_number, column_number, string_agg(part || coalesce(p.printed, '{' || reference || '}', ''), '' order by place) as text,
        arg_min(m.verdict, (m.verdict, place)) as mark, arg_min(m.href || case when contains(m.href, '#') then '' else '#audit-findings' end, (m.verdict, place)) as mark_href
    from parts left join printed p using (reference) left join marks m using (reference) group by all
), links as (
    select source, table_id, row_number, column_number, arg_min(result_id, place) as result_id
    from (
        from (select source, table_id, row_number, column_number, unnest(result_ids) as result_id, generate_subscripts(result_ids, 1) as place from document_cells)
        semi join results using (result_id)
        qualify min(column_number) over (partition by source, table_id, row_number, result_id) = column_number
    ) group by all
)
select
    t.source, t.table_id, r.row_number,
    map_from_entries(flatten(list([
        ('c' || number, coalesce(nullif(text, ''), ' ')), ('c' || number || '_href', 'results/' || result_id), ('c' || number || '_mark', mark), ('c' || number || '_mark_href', mark_href)
    ]))) as cells
from document_tables t
join (select distinct source, table_id, row_number from document_cells) r using (source, table_id), unnest(range(1, len(t.columns) + 1)) as numbers(number)
left join texts c on c.source = t.source and c.table_id = t.table_id and c.row_number = r.row_number and c.column_number = number
left join links l on l.source = t.source and l.table_id = t.table_id and l.row_number = r.row_number and l.column_number = number
group by all order by t.source, t.table_id, r.row_number;
