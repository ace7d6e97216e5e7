-- What the page of a result shows beside its row of listed_results: its headlines with their meaning, its verdicts, conditions and history.
-- Lists of facts have the columns name, value, note and perhaps href, as templates show them.

create or replace temp macro in_sentence(label) as case when regexp_matches(label, '^.[A-Z]') then label else lower(label[1]) || label[2:] end;
create or replace temp macro labels_in_sentence(keys) as array_to_string(list_transform(keys, lambda key: in_sentence(quantity_label(key))), ', ');

-- The conditions of a result in the order of its page: those that can change a rate are `compared`, and `own` ones are known of measured results only.
create temp table condition_names as
select row_number() over () as position, * from (values
    ('model', 'Model', false, false), ('method', 'Method', false, false), ('task', 'Task', true, false), ('accelerator', 'Accelerator', false, false),
    ('accelerator_count', 'Device count', false, false), ('instance', 'Instance', true, false), ('backend', 'Backend', true, true),
    ('strategy', 'Strategy', true, true), ('dataset', 'Dataset', true, false), ('sequence_length', 'Sequence length', true, false),
    ('padding', 'Padding', true, false), ('packing', 'Packing', true, false), ('micro_batch', 'Micro-batch', true, false),
    ('gradient_accumulation', 'Gradient accumulation', true, false), ('global_batch', 'Global batch', true, false),
    ('precision', 'Precision', true, false), ('quantisation', 'Quantisation', true, true), ('optimizer', 'Optimizer', true, false),
    ('step_definition', 'Meaning of a step', true, false), ('weights', 'Weights', true, true), ('parameters', 'Parameters', false, false),
    ('trainable_parameters', 'Trainable parameters', false, false), ('steps', 'Steps', false, false), ('epochs', 'Epochs', false, false)
) as names(condition, label, compared, own);

-- The known conditions of each result as text.
create temp table result_conditions as
select result_id, position, condition, label, compared, value as shown
from (unpivot (
    select
        result_id, coalesce(model_name, model) as model, method(method) as method, task_name(task) as task,
        coalesce(accelerator_name, accelerator) as accelerator, format('{:,}', accelerator_count) as accelerator_count, instance, backend, strategy,
        dataset, format('{:,}', sequence_length) as sequence_length, padding, case when packing then 'yes' when not packing then 'no' end as packing,
        format('{:,}', micro_batch) as micro_batch, format('{:,}', gradient_accumulation) as gradient_accumulation,
        format('{:,}', global_batch) as global_batch, precision, quantisation, optimizer, words(step_definition) as step_definition, weights,
        format('{:,}', parameters) as parameters, format('{:,}', trainable_parameters) as trainable_parameters, format('{:,}', steps) as steps,
        format('{:g}', epochs) as epochs
    from listed_results
) on columns(* exclude result_id) into name condition value value) join condition_names using (condition);

-- The conditions on a result's page, with a note on each that its source does not state itself.
create temp table condition_facts as
select
    c.result_id, c.label as name, c.shown as value,
    coalesce(f.reason, case when c.condition = 'accelerator' and r.accelerator_printed <> r.accelerator_name then 'printed: ' || r.accelerator_printed end) as note,
    case c.condition when 'model' then 'models/' || r.model when 'accelerator' then 'accelerators/' || r.accelerator end as href
from result_conditions c
join listed_results r using (result_id)
left join result_facts f on f.result_id = c.result_id and f.topic = 'conditions' and f.name = c.condition
order by c.result_id, c.position;

create temp table unknown_conditions as
select r.result_id, 'Not ' || case r.source when 'measured' then 'recorded' else 'stated' end || ': ' || string_agg(lower(n.label), ', ' order by n.position) || '.' as text
from listed_results r join condition_names n on r.source = 'measured' or not n.own
anti join result_conditions c on c.result_id = r.result_id and c.condition = n.condition
group by r.result_id, r.source;

-- The figures at the top of a page, in their order, with one sentence about the meaning of each.
create temp table headline_keys as
select row_number() over () as position, key
from unnest(['tokens_per_s', 'samples_per_s', 'mfu', 'peak_memory_bytes', 'cost', 'step_time_s', 'train_time_s']) as keys(key);

create temp table headlines as
with figures as (
    select result_id, key, figure
    from listed_results unpivot include nulls (figure for key in (tokens_per_s, samples_per_s, mfu, peak_memory_bytes, step_time_s, train_time_s))
), described as (
    select
        f.result_id, f.key, f.figure, r.reading[f.key] as reading,
        case f.key when 'tokens_per_s' then tokens_per_s_shown when 'samples_per_s' then samples_per_s_shown else quantity_text(f.key, f.figure) end as shown,
        case f.key
            when 'tokens_per_s' then '1M tokens take ' || duration(1e6 / f.figure) || case when accelerator_count > 1 then ', ' || significant(f.figure / accelerator_count) || ' per device' else '' end
            when 'samples_per_s' then '1,000 samples take ' || duration(1e3 / f.figure)
            when 'mfu' then 'Model arithmetic as a share of the dense peak of the accelerator'
            when 'peak_memory_bytes' then 'Highest memory of one device' || coalesce(', ' || percent(f.figure / memory_gib / 1024 ** 3) || ' of its ' || format('{:g}', memory_gib) || ' GiB', '')
            when 'step_time_s' then 'One' || case when step_definition = 'optimizer_step' and global_batch > 0 then ' optimizer step of ' || whole(global_batch) || ' rows' else ' step' end
            else rtrim(split_part(quantity_meaning(f.key), '. ', 1), '.')
        end || '.' as meaning,
        -- Of a measured MFU the peaks: fp8 has another one than bf16.
        case when r.source <> 'measured' then d.reason when f.key = 'mfu' then split_part(d.reason, ': ', 2) end as derived,
        case f.key
            when 'tokens_per_s' then '95% interval ' || nullif(shown_interval(tokens_per_s_low, tokens_per_s_high), '')
            when 'samples_per_s' then '95% interval ' || nullif(shown_interval(samples_per_s_low, samples_per_s_high), '')
            when 'peak_memory_bytes' then 'Method: ' || peak_memory_method
            when 'step_time_s' then 'p5 ' || quantity_text(f.key, step_time_p5_s) || ', p95 ' || quantity_text(f.key, step_time_p95_s) || coalesce(', CV ' || percent1(step_time_cv), '')
        end as certainty,
        (
            select arg_min(l.verdict, (l.severity, l.finding)) from listed_findings l
            where l.record = f.result_id and (l.verdict = 'impossible' or (l.verdict = 'suspicious' and l.is_first))
                and list_contains(case when len(l.quantities) > 0 then l.quantities else l.conditions end, f.key)
        ) as verdict
    from figures f
    join listed_results r using (result_id)
    left join accelerators a using (accelerator)
    left join result_facts d on d.result_id = f.result_id and d.topic = 'derived' and d.name = f.key
    where f.figure is not null or r.reading[f.key] is not null
), cheapest as (
    select result_id, min(usd_per_1m_tokens) as usd_per_1m_tokens, min(usd_per_1k_samples) as usd_per_1k_samples,
        arg_min(provider, (usd_per_1m_tokens, provider, instance)) filter (usd_per_1m_tokens is not null) as of_tokens,
        arg_min(provider, (usd_per_1k_samples, provider, instance)) filter (usd_per_1k_samples is not null) as of_samples
    from costs where kind = 'on_demand' group by all
), costed as (
    -- Costs follow from the rate: of an impossible or unfinished result they mean nothing.
    select
        r.result_id, case when r.usd_per_1m_tokens is not null then 'cost_per_1m_tokens_usd' else 'cost_per_1k_samples_usd' end as quantity,
        coalesce(r.usd_per_1m_tokens, r.usd_per_1k_samples) as usd, case when r.usd_per_1m_tokens is not null then c.usd_per_1m_tokens else c.usd_per_1k_samples end as least,
        case when r.usd_per_1m_tokens is not null then of_tokens else of_samples end as provider, r.offer
    from listed_results r left join cheapest c using (result_id)
    where not r.last and usd is not null
)
select result_id, position, key, quantity_label(key) as name, case when figure is null then reading else shown end as value,
    case when figure is null then 'The document does not define it: see the readings.' else concat_ws(' ',
        'The audit calls this figure ' || verdict || '.', meaning, coalesce('Derived: ' || nullif(derived, '') || '.', nullif(certainty, '') || '.'),
        case when reading is not null then 'The printed figure is ambiguous.' end
    ) end as note
from described join headline_keys using (key)
union all
select result_id, position, key, quantity_label(quantity), quantity_text(quantity, usd),
    'On the default price basis: ' || offer || '.' || case when least < usd then ' Cheapest on-demand offer: ' || quantity_text(quantity, least) || ' at ' || provider(provider) || '.' else '' end
from costed join headline_keys on key = 'cost'
order by result_id, position;

create temp table unknown_headlines as
select result_id, 'Unknown: ' || string_agg(case key when 'cost' then key else in_sentence(quantity_label(key)) end, ', ' order by key = 'cost', position) || '.' as text
from (select result_id, position, key from listed_results, headline_keys) anti join headlines using (result_id, key)
group by result_id;

-- The figures at the top of the page of an MLPerf entry.
create temp table entry_headlines as
with shown as (
    select result_id, 1 as position, 'Time to target' as name, duration(time_to_target_s) as value,
        'median of all runs; a run that missed the target counts as longer than any other; '
            || coalesce('interval of at least 95%, by order statistics, ' || time_interval, 'too few runs for an interval') as note
    from mlperf_entries
    union all
    select result_id, 2, 'MLPerf score', duration(mlperf_score_s),
        'mean without the fastest and the slowest run, times the scaling factor of the entry; a run that misses the target counts as the slowest'
    from mlperf_entries
    union all
    select result_id, 3, 'Samples/s', rate(samples_per_s, samples_per_s_low, samples_per_s_high),
        case when packing and sequence_length is not null then 'a sample is a packed sequence of ' || whole(sequence_length) || ' tokens' else 'samples as counted in the logs' end
            || '; while training; ' || coalesce('95% interval over the runs ' || nullif(shown_interval(samples_per_s_low, samples_per_s_high), ''), 'no interval')
    from mlperf_entries
    union all
    select h.result_id, 3 + h.position, h.name, h.value, h.note from headlines h semi join mlperf_entries using (result_id) where h.key in ('mfu', 'cost')
    union all
    select result_id, 20, 'Accelerators', whole(accelerator_count), concat_ws(', ', accelerator_name, on_machines) from mlperf_entries
    union all
    select result_id, 21, 'Runs at the target', reached_shown, 'runs of the entry with a time to target' from mlperf_entries
)
select * replace (coalesce(value, '–') as value) from shown order by result_id, position;

-- A line for each verdict on a result, worst first: two titles of findings, and the heading that lists them.
create temp table verdict_lines as
with titles as (
    select record as result_id, verdict, severity, title || case when verdict = 'impossible' then coalesce(' (' || nullif(labels_in_sentence(quantities), '') || ')', '') else '' end as title,
        min(finding) as first
    from listed_findings group by all
), lines as (
    select result_id, verdict, severity, list(title order by first, title) as titles, null as readings from titles group by all
    union all
    select result_id, 'ambiguous', 4, []::varchar[], 'several readings of ' || labels_in_sentence(map_keys(reading)) from listed_results where cardinality(reading) > 0
)
select
    result_id, verdict, case when count(*) filter (readings is null) > 0 then 'audit-findings' else 'readings' end as anchor,
    sentence_case(concat_ws('; ', nullif(array_to_string(max(titles)[:2], '; '), ''), case when max(len(titles)) > 2 then max(len(titles)) - 2 || ' more' end, max(readings))) as text
from lines group by result_id, verdict, severity order by result_id, severity;

-- Figures that are no headlines of a result, and of an MLPerf entry those that are no headlines of entries.
create temp table more_figures as
with figures as (
    select result_id, trust, key, figure, evaluation_rows, case key when 'accuracy' then accuracy_se when 'eval_loss' then eval_loss_se end as error
    from listed_results unpivot (
        figure for key in (step_time_s, epoch_time_s, wall_s, model_memory_bytes, loss_start, train_loss, eval_loss, accuracy, energy_per_run_j, energy_per_sample_j)
    )
)
select
    f.result_id, list_position(['step_time_s', 'epoch_time_s', 'wall_s', 'model_memory_bytes', 'loss_start', 'train_loss', 'eval_loss', 'accuracy', 'energy_per_run_j', 'energy_per_sample_j'], key) as position,
    quantity_label(key) as name, quantity_text(key, figure) as value,
    case
        when trust = 'converted' then d.reason
        when error is not null then 'standard error ' || case key when 'accuracy' then fixed1(100 * error) || ' points' else format('{:.2g}', error) end
            || ' of ' || evaluation_rows || ' rows; differences below two standard errors are not significant'
    end as note
from figures f left join result_facts d on d.result_id = f.result_id and d.topic = 'derived' and d.name = f.key
where trust = 'converted' and key in ('step_time_s', 'eval_loss', 'energy_per_run_j', 'energy_per_sample_j')
    or trust <> 'converted' and key not in ('step_time_s', 'energy_per_run_j', 'energy_per_sample_j')
union all
select result_id, 20, 'Evaluation rows', whole(evaluation_rows), null from listed_results where trust <> 'converted' and evaluation_rows is not null
union all
select result_id, 21, 'Padding efficiency', percent1(padding_efficiency), 'real tokens as a share of slots'
from listed_results where trust <> 'converted' and padding_efficiency is not null
order by result_id, position;

-- Runs of the same configuration with any version of the software, oldest first, of results with several.
create temp table run_history as
with runs as (
    select *, configuration_of_any_software(to_json(r)) as same from listed_results r where source = 'measured' and not failed
)
select
    here.result_id, run.* exclude (result_id), moment(run.started_us) as measured_on,
    case when run.result_id = here.result_id then 'this result' else run.result_id end as measured_on_small,
    case when run.result_id <> here.result_id then 'results/' || run.result_id end as measured_on_href,
    left(run.harness_commit, 7) as harness_version_small,
    run.tokens_per_s / lag(run.tokens_per_s) over (partition by here.result_id order by run.started_us, run.result_id) - 1 as change
from runs here join runs run using (same)
qualify count(*) over (partition by here.result_id) > 1
order by here.result_id, run.started_us, run.result_id;

-- At most ten finished results with a rate beside each result: of its comparability group, else of the same model, method and devices.
create temp table peers as
with usable as (
    select * from listed_results where not last and (tokens_per_s is not null or samples_per_s is not null)
), pairs as (
    select r.result_id, p.result_id as peer
    from listed_results r join usable p using (comparability_group)
    union
    select r.result_id, p.result_id as peer
    from listed_results r join usable p using (model, method, accelerator, accelerator_count)
    where r.source <> 'measured'
)
select
    pairs.result_id, pairs.peer, 'results/' || pairs.peer as peer_href, 'compare' as beside, 'compare#' || pairs.result_id || ',' || pairs.peer as beside_href,
    p.tokens_per_s, p.tokens_per_s_shown, p.tokens_per_s_small, p.samples_per_s, p.samples_per_s_shown, p.samples_per_s_small,
    p.devices || ', ' || case when p.source <> 'measured' then p.source_title else concat_ws('; ', 'measured on ' || p.started_on, p.changed) end as peer_small,
    coalesce(p.comparability_group = r.comparability_group, false) as same_group,
    row_number() over (
        partition by pairs.result_id
        order by not same_group, r.sequence_length is null or r.sequence_length is distinct from p.sequence_length,
            (r.model is distinct from p.model)::integer + (r.task is distinct from p.task)::integer + (r.method is distinct from p.method)::integer + (r.dataset is distinct from p.dataset)::integer + (r.sequence_length is distinct from p.sequence_length)::integer + (r.padding is distinct from p.padding)::integer + (r.packing is distinct from p.packing)::integer + (r.global_batch is distinct from p.global_batch)::integer + (r.precision is distinct from p.precision)::integer + (r.optimizer is distinct from p.optimizer)::integer + (r.step_definition is distinct from p.step_definition)::integer,
            peer
    ) as nearness
from pairs
join listed_results r using (result_id)
join usable p on p.result_id = pairs.peer
where pairs.peer <> pairs.result_id
qualify nearness <= 10;

-- The other results on a result's page, with the known conditions that differ, and the ratio of the rate that most of them have.
create temp table comparable_results as
with different as (
    select p.result_id, p.peer, list(lower(mine.label) || ' ' || theirs.shown order by mine.position) as conditions
    from peers p
    join result_conditions mine on mine.result_id = p.result_id and mine.compared
    join result_conditions theirs on theirs.result_id = p.peer and theirs.condition = mine.condition and theirs.shown <> mine.shown
    group by all
), rates as (
    select
        r.result_id,
        case when (r.tokens_per_s is not null, count(p.tokens_per_s)) >= (r.samples_per_s is not null, count(p.samples_per_s)) then 'tokens_per_s' else 'samples_per_s' end as rate,
        case rate when 'tokens_per_s' then any_value(r.tokens_per_s) else any_value(r.samples_per_s) end as own_rate
    from listed_results r join peers p using (result_id) group by r.result_id, r.tokens_per_s, r.samples_per_s
)
select
    p.*, rate, case rate when 'tokens_per_s' then p.tokens_per_s else p.samples_per_s end / own_rate as relative_speed,
    coalesce(array_to_string(conditions[:3], '; ') || case when len(conditions) > 3 then '; ' || len(conditions) - 3 || ' more' else '' end, 'none') as differing
from peers p join rates using (result_id) left join different d on d.result_id = p.result_id and d.peer = p.peer
order by result_id, nearness;

-- How to run each result again: a measured one by its request, another by the workload card of its task and method with the nearest model and length.
create temp table reproductions as
with sizes as (
    select model, ln(parameters) as size from models where parameters > 0
), nearest as (
    select
        r.result_id, w.*, w.model = r.model as same_model, case when same_model then 0 else abs(ws.size - rs.size) + 0.01 end as distance
    from listed_results r
    join listed_workloads w on w.method = r.method and w.task = r.task
    left join sizes rs on rs.model = r.model
    left join sizes ws on ws.model = w.model
    where r.source <> 'measured' and distance < ln(2)
    qualify row_number() over (partition by r.result_id order by distance, abs(ln(w.sequence_length / r.sequence_length)) nulls first, w.workload) = 1
), settings as (
    select n.result_id,
        any_value(case when same_model and list_contains(learned_positions(), m.family) and r.sequence_length > m.context_length then 'No command is printed: the source states rows of ' || whole(r.sequence_length) || ' tokens, and this model has positions for ' || whole(m.context_length) || '.' end) as too_long,
        string_agg(' --set ' || field || '=' || stated, '' order by place) filter (stated <> own) as options,
        string_agg(words(split_part(field, '.', 2)), ', ' order by place) filter (stated is null) as unstated
    from nearest n join results r using (result_id) left join models m on m.model = n.model, lateral (values
        (1, 'data.sequence_length', r.sequence_length, n.sequence_length), (2, 'batch.micro_batch', r.micro_batch, n.micro_batch),
        (3, 'batch.gradient_accumulation', r.gradient_accumulation, n.gradient_accumulation)
    ) as compared(place, field, stated, own)
    group by all
), facts as (
    select
        result_id, map_from_entries(list((topic || '/' || name, value))) as fact,
        -- The first place that the source gives for its configuration.
        arg_min(case when contains(value, '/') then value else reason end, name) filter (topic = 'origin' and (contains(value, '/') or contains(reason, '/'))) as reference
    from result_facts where topic in ('requested', 'plan', 'entry', 'origin') group by all
)
select
    r.result_id, s.title as document, s.authors, s.published_on, s.read_on, s.url, s.origin_repository,
    list_max(regexp_extract_all(s.published_on, '\b(?:19|20)\d\d\b')) as published_in, left(coalesce(s.read_on::varchar, r.started_on), 4) as year,
    case when r.source <> 'measured' then coalesce(fact['entry/folder'], reference, s.origin_repository, r.section, '–') end as origin, web_link(s.url) as origin_href,
    case when r.source = 'measured' then fact['requested/command']
        when too_long is null then 'tunemark run ' || n.workload || case when same_model then coalesce(options, '') else '' end || case when r.accelerator_count <> n.devices then ' --devices ' || r.accelerator_count else '' end
    end as command,
    case when r.harness_commit <> '' then ['git checkout ' || r.harness_commit, 'make setup-run'] else [] end as before,
    w.title as workload, 'workloads/' || w.workload as workload_href,
    list_filter(case
        when r.source = 'measured' then [
            'Measured with ' || nullif(r.software, '') || '. All versions are in the full record.',
            case when fact['plan/model.local'] = 'true' then 'The weights came from a local directory, whose path is not recorded: replace DIRECTORY.' end,
            case when fact['plan/data.source'] = 'file' then 'The data is a local file; its SHA-256 is ' || fact['plan/data.sha256'] || '.' end,
            case when r.nodes <> 1 then 'Run it on each machine, with node_rank and rendezvous of its own in --set.' end
        ]
        when n.workload is null then ['No workload card is near this result.']
        when too_long is not null then [too_long]
        when not same_model then ['No workload card has this model; the nearest has ' || n.model || '.']
        else [
            'The nearest workload card, with the conditions that the source states.',
            'The source does not state ' || unstated || ': the card''s value is used.',
            case when r.dataset <> n.dataset then 'The source trains on ' || r.dataset || ', the card on ' || n.dataset || '.' end
        ]
    end, lambda note: note is not null) as notes
from listed_results r
left join facts using (result_id) left join nearest n using (result_id) left join settings using (result_id)
left join sources s on s.source = r.source
left join workloads w on w.workload = case when r.source = 'measured' then r.workload else n.workload end;

-- Offers for the accelerator of a result: the default basis, the instance of the run, and the cheapest others.
create temp table result_offers as
select
    c.*, coalesce(case when instances > 1 then whole(instances) || chr(160) || '×' || chr(160) end, '') || c.instance as instance_shown,
    concat_ws(', ', provider(c.provider), c.region, case when c.price = r.price then 'default basis' end, case when c.instance = r.instance then 'used for this run' end) as instance_small,
    cast(c.effective_on as varchar) as dated, replace(dated, '-', '‑') as dated_shown, if(c.dated_by = 'inferred', 'inferred', '') as dated_small, known_on_mark as dated_mark, 'accelerators/' || r.accelerator || '#prices' as dated_href,
    count(*) over (partition by result_id) as number
from costs c join listed_results r using (result_id) join (select price, known_on_mark from listed_prices) p on p.price = c.price where not r.last
qualify row_number() over (
    partition by result_id order by c.price is distinct from r.price, c.instance is distinct from r.instance, c.usd_per_hour, c.provider, c.instance, c.kind, c.region, c.price
) <= 12
order by result_id, c.price is distinct from r.price, c.instance is distinct from r.instance, c.usd_per_hour, c.provider, c.instance, c.kind, c.region, c.price;

-- The versions of torch and transformers of each result, with the number of minor releases behind the newest one that is known.
create temp table software_ages as
with versions as (
    select result_id, name, value, regexp_extract(value, '^v?(\d+)\.(\d+)(?:\.\d+)*(?:[+.-].*)?$', ['major', 'minor']) as minor
    from result_facts where topic = 'packages' and name in ('torch', 'transformers')
), seen as (
    select distinct name, minor.major::integer as major, minor.minor::integer as minor from versions where minor.major <> ''
    union
    select library, regexp_extract(version, '^(\d+)\.(\d+)', 1)::integer, regexp_extract(version, '^(\d+)\.(\d+)', 2)::integer
    from releases where library in ('torch', 'transformers') and released_on <= (select as_of from collection)
), aged as (
    select v.result_id, v.name, v.value, count(s.name) as behind, max((s.major, s.minor)) as newest
    from versions v left join seen s on s.name = v.name and (s.major, s.minor) > (v.minor.major::integer, v.minor.minor::integer)
    where v.minor.major <> '' group by all
)
select result_id, name || ' ' || value || case behind when 0 then ', the newest minor release' when 1 then ', 1 minor release behind ' || newest[1] || '.' || newest[2]
    else ', ' || behind || ' minor releases behind ' || newest[1] || '.' || newest[2] end as text
from aged order by result_id, name;

-- The evaluations and the runs of MLPerf entries.
create temp table loss_curves as
select c.*, seconds / 60 as minutes, eval_loss as loss, case when r.time_to_target_s is not null then 'reached the target' else 'no time to target' end as reached
from run_curves c left join runs r on r.result_id = c.result_id and r.run = c.run order by c.result_id, c.run, evaluation;

create temp table entry_runs as
select *, 'Run ' || run as run_shown, file as run_small, status <> 'ok' as last, case status when 'ok' then 'ok' else 'failed' end as status_badge,
    case status when 'ok' then 'reached' when 'missed' then 'missed the target' else words(status) end as status_shown
from runs order by result_id, status <> 'ok', run;
