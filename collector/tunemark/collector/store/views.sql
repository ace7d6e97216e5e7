-- The database: tables that are loaded, and the views that every reader uses.
-- It is a cache and can always be rebuilt from data/ and submissions/.
-- Units are in the names; shares are 0 to 1; unknown is NULL.

create table collection (
    as_of date not null
);
comment on table collection is 'this loading of the database: one row';
comment on column collection.as_of is 'the day of collecting, or that of `collect --as-of`: prices are those of this day';

-- Facts ---------------------------------------------------------------------------------------------

create table accelerators (
    accelerator varchar primary key,
    name varchar not null,
    vendor varchar not null,
    architecture varchar,
    aliases varchar[] not null,
    unit varchar not null,
    memory_gib double,
    memory_bandwidth_gb_s double,
    peak_bf16_tflops double,
    peak_fp16_tflops double,
    peak_tf32_tflops double,
    peak_fp32_tflops double,
    peak_fp8_tflops double,
    peak_int8_tops double,
    tdp_w double,
    interconnect_gb_s double,
    launch_year integer,
    msrp_usd double,
    source varchar not null,
    read_on date,
    unverified varchar[] not null,
    notes varchar
);
comment on table accelerators is 'cards of data/accelerators';
comment on column accelerators.accelerator is 'key of the card';
comment on column accelerators.aliases is 'names under which devices report themselves and documents call it';
comment on column accelerators.unit is 'device | chip | core: what one of it is';
comment on column accelerators.peak_bf16_tflops is 'dense';
comment on column accelerators.read_on is 'day on which these facts were read';
comment on column accelerators.unverified is 'columns that were not read at a source';

create table models (
    model varchar primary key,
    name varchar not null,
    aliases varchar[] not null,
    family varchar not null,
    parameters bigint,
    matrix_parameters bigint,
    hidden_size integer not null,
    intermediate_size integer not null,
    layers integer not null,
    attention_heads integer not null,
    key_value_heads integer not null,
    head_dim integer not null,
    vocabulary integer not null,
    context_length integer not null,
    sliding_window integer,
    sliding_window_every integer,
    experts integer,
    active_experts integer,
    hub_id varchar,
    gated boolean,
    source varchar not null,
    read_on date,
    notes varchar
);
comment on table models is 'cards of data/models';
comment on column models.aliases is 'names that documents and mirrors call it';
comment on column models.matrix_parameters is 'N_mm: weights in matrix products, head once, active experts only';
comment on column models.sliding_window is 'attention span in tokens, where it is limited';
comment on column models.sliding_window_every is 'every so-many-th layer is limited; NULL where that is all or none';
comment on column models.read_on is 'day on which these facts were read';

create table workloads (
    workload varchar primary key,
    title varchar not null,
    description varchar not null,
    tier varchar not null,
    source varchar not null,
    task varchar not null,
    model varchar not null,
    method varchar not null,
    dataset varchar not null,
    sequence_length integer not null,
    micro_batch integer not null,
    gradient_accumulation integer not null,
    learning_rate double not null,
    matrix varchar,
    weights varchar not null,
    optimizer varchar not null,
    compute varchar not null,
    padding varchar not null,
    packing boolean not null,
    attention varchar not null,
    gradient_checkpointing varchar not null,
    fused_kernels varchar not null,
    compile varchar not null,
    lora varchar,
    quantisation varchar,
    devices integer not null,
    strategy varchar not null,
    offload varchar not null,
    tensor_parallel integer not null,
    pipeline_parallel integer not null,
    not_stated varchar[] not null
);
comment on table workloads is 'cards of data/workloads';
comment on column workloads.matrix is 'the card whose cells it is one of; NULL for a card of its own';
comment on column workloads.weights is 'random | pretrained';
comment on column workloads.compute is 'auto takes bf16 where the device has it';
comment on column workloads.lora is 'rank, alpha and adapted layers';
comment on column workloads.quantisation is 'how frozen weights are stored, for qlora';
comment on column workloads.strategy is 'auto takes DDP on several devices';
comment on column workloads.not_stated is 'settings that the source does not give and that were chosen here';

create table workload_axes (
    workload varchar not null,
    position integer not null,
    field varchar not null,
    choices varchar[] not null,
    primary key (workload, position)
);
comment on table workload_axes is 'settings of workloads that their source varied';
comment on column workload_axes.field is 'dotted path in the card, or paths of what was changed together';
comment on column workload_axes.choices is 'what it was set to; each is a run of the standard division';

create table support (
    backend varchar not null,
    position integer not null,
    feature varchar not null,
    supported boolean not null,
    reason varchar,
    needs varchar,
    primary key (backend, feature)
);
comment on table support is 'what each device family can be asked for, data/support.json';
comment on column support.position is 'order of the features';
comment on column support.reason is 'why not, and what to do instead';
comment on column support.needs is 'a package that it needs';

create table prices (
    price varchar primary key,
    provider varchar not null,
    instance varchar not null,
    accelerator varchar not null,
    accelerator_count double not null,
    vcpus integer,
    memory_gib double,
    region varchar,
    kind varchar not null,
    usd_per_hour double not null,
    effective_on date not null,
    dated_by varchar not null,
    source varchar not null,
    notes varchar
);
comment on table prices is 'the price book, data/prices';
comment on column prices.price is 'provider/instance/region/kind/date; /earlier-1 where another catalogue of that day replaced it';
comment on column prices.kind is 'on_demand | spot | reserved | owned';
comment on column prices.usd_per_hour is 'for the whole instance';
comment on column prices.dated_by is 'provider | catalog | inferred';

-- Documents -----------------------------------------------------------------------------------------

create table sources (
    source varchar primary key,
    title varchar not null,
    authors varchar,
    published_on varchar,
    read_on date,
    url varchar,
    origin_repository varchar,
    summary varchar not null,
    caveats varchar[] not null
);
comment on table sources is 'documents whose results are imported';
comment on column sources.source is '''000'' to ''004'', or a round such as ''mlperf-v5.1''';
comment on column sources.read_on is 'day on which it was read';

create table document_tables (
    source varchar not null,
    table_id varchar not null,
    position integer not null,
    title varchar not null,
    columns varchar[] not null,
    primary key (source, table_id)
);
comment on table document_tables is 'their tables';
comment on column document_tables.position is 'order in the document';

create table document_cells (
    source varchar not null,
    table_id varchar not null,
    row_number integer not null,
    column_number integer not null,
    template varchar not null,
    result_ids varchar[] not null,
    primary key (source, table_id, row_number, column_number)
);
comment on table document_cells is 'cells of those tables';
comment on column document_cells.row_number is 'from 1';
comment on column document_cells.column_number is 'from 1';
comment on column document_cells.template is 'text with references such as {003-001/peak_memory_bytes}';
comment on column document_cells.result_ids is 'results and statements it refers to';

create table statements (
    statement_id varchar primary key,
    source varchar not null,
    section varchar not null,
    note varchar
);
comment on table statements is 'rows of documents that are not results';

create table claims (
    record_id varchar not null,
    quantity varchar not null,
    value double not null,
    printed varchar not null,
    note varchar,
    primary key (record_id, quantity)
);
comment on table claims is 'printed figures of results and statements';
comment on column claims.record_id is 'result_id or statement_id';
comment on column claims.quantity is 'key of the registry of quantities';
comment on column claims.value is 'in the unit of the quantity';
comment on column claims.printed is 'exactly as printed';

create table readings (
    record_id varchar not null,
    quantity varchar not null,
    meaning varchar not null,
    value double not null
);
comment on table readings is 'all meanings of an ambiguous figure';

create table labels (
    record_id varchar not null,
    label varchar not null,
    printed varchar not null,
    primary key (record_id, label)
);
comment on table labels is 'words of a row, exactly as printed';

-- Results -------------------------------------------------------------------------------------------

create table result_rows (
    result_id varchar primary key,
    source varchar not null,
    trust varchar not null,
    division varchar,
    workload varchar,
    section varchar,
    model varchar,
    task varchar,
    method varchar not null,
    accelerator varchar,
    accelerator_printed varchar,
    accelerator_count integer,
    nodes integer,
    instance varchar,
    backend varchar,
    strategy varchar,
    status varchar not null,
    message varchar,
    fix varchar,
    started_at timestamptz,
    dataset varchar,
    sequence_length integer,
    padding varchar,
    packing boolean,
    micro_batch integer,
    gradient_accumulation integer,
    global_batch integer,
    precision varchar,
    optimizer varchar,
    step_definition varchar,
    weights varchar,
    steps integer,
    epochs double,
    step_time_s double,
    step_time_p5_s double,
    step_time_p95_s double,
    step_time_cv double,
    tokens_per_s double,
    tokens_per_s_low double,
    tokens_per_s_high double,
    samples_per_s double,
    samples_per_s_low double,
    samples_per_s_high double,
    padding_efficiency double,
    peak_memory_bytes double,
    peak_memory_method varchar,
    model_memory_bytes double,
    train_time_s double,
    epoch_time_s double,
    wall_s double,
    time_to_target_s double,
    time_to_target_low_s double,
    time_to_target_high_s double,
    loss_start double,
    train_loss double,
    eval_loss double,
    eval_loss_se double,
    accuracy double,
    accuracy_se double,
    evaluation_rows bigint,
    stable boolean,
    steady_steps integer,
    steady_verdict varchar,
    attention varchar,
    fused_kernels varchar,
    compile varchar,
    gradient_checkpointing varchar,
    process_group varchar,
    study_id varchar,
    study_kind varchar,
    study_point varchar,
    study_position integer,
    gates varchar,
    compile_overhead_s double,
    flop_per_step double,
    model_flop_per_s double,
    mfu double,
    mfu_palm double,
    hfu double,
    mafu double,
    probe_flop_per_s double,
    probe_after_flop_per_s double,
    predicted_memory_bytes double,
    energy_source varchar,
    energy_j double,
    energy_window_s double,
    energy_per_step_j double,
    energy_per_sample_j double,
    energy_per_1k_tokens_j double,
    slowest_rank integer,
    rank_behind double,
    rankable boolean not null,
    comparability_group varchar,
    parameters bigint,
    trainable_parameters bigint,
    harness_version varchar,
    harness_commit varchar,
    file varchar not null,
    sha256 varchar not null,
    note varchar
);
comment on table result_rows is 'one row each; read the view `results`';
comment on column result_rows.result_id is '''003-001'', or the content hash of a submission';
comment on column result_rows.source is '''000'' to ''004'', ''measured'', or a round such as ''mlperf-v5.1''';
comment on column result_rows.trust is 'published | converted | measured | reproduced';
comment on column result_rows.division is 'standard | open, for measured results';
comment on column result_rows.workload is 'card, for measured results';
comment on column result_rows.section is 'place in the document, for published results';
comment on column result_rows.model is 'card';
comment on column result_rows.accelerator is 'card';
comment on column result_rows.accelerator_printed is 'as reported by the device or printed by the document';
comment on column result_rows.accelerator_count is 'on all machines together';
comment on column result_rows.nodes is 'machines; NULL when not stated, taken as one';
comment on column result_rows.backend is 'cpu | cuda | ..., for measured results';
comment on column result_rows.strategy is 'single | ddp | ..., for measured results';
comment on column result_rows.status is 'ok | oom | claimed | crash | ...';
comment on column result_rows.message is 'what happened, where it did not end well';
comment on column result_rows.fix is 'what to do about it';
comment on column result_rows.started_at is 'for measured results';
comment on column result_rows.step_definition is 'optimizer_step | ambiguous';
comment on column result_rows.weights is 'random | pretrained, for measured results';
comment on column result_rows.tokens_per_s is 'real tokens, all devices';
comment on column result_rows.tokens_per_s_low is '95% interval';
comment on column result_rows.time_to_target_s is 'median of the runs, for converted results';
comment on column result_rows.time_to_target_low_s is 'interval of at least 95%';
comment on column result_rows.eval_loss_se is 'its standard error';
comment on column result_rows.accuracy_se is 'its standard error: a difference within two of them is none';
comment on column result_rows.stable is 'steady window found, for measured results';
comment on column result_rows.attention is 'effective kernel, as are the next four; for measured results';
comment on column result_rows.process_group is 'collectives of several processes, such as nccl';
comment on column result_rows.study_id is 'series that the run is a part of';
comment on column result_rows.study_kind is 'sweep | frontier | ab | repeat';
comment on column result_rows.study_point is 'which point, arm or repeat';
comment on column result_rows.study_position is 'order in which it ran, from 1';
comment on column result_rows.gates is 'passed | failed: checks that training is right; NULL when none applied';
comment on column result_rows.compile_overhead_s is 'what compiling took beyond median steps';
comment on column result_rows.flop_per_step is 'model FLOPs of a mean steady step, all devices';
comment on column result_rows.model_flop_per_s is 'all devices, recomputed ones left out';
comment on column result_rows.mfu is 'against the sum of dense peaks; reasons are in result_facts, topic derived';
comment on column result_rows.mfu_palm is 'FLOPs as PaLM counts them, on slots';
comment on column result_rows.hfu is 'recomputed FLOPs included';
comment on column result_rows.mafu is 'against the better of the two matrix rates below';
comment on column result_rows.probe_flop_per_s is 'matrix rate in a probe before training, all devices';
comment on column result_rows.probe_after_flop_per_s is 'the same after training';
comment on column result_rows.predicted_memory_bytes is 'peak of the allocator as the memory model has it';
comment on column result_rows.energy_source is 'counter | integrated | none';
comment on column result_rows.energy_j is 'all devices, idle power included, over energy_window_s';
comment on column result_rows.slowest_rank is 'the straggler among several processes';
comment on column result_rows.rank_behind is 'how much longer its own work takes than the median of all';
comment on column result_rows.rankable is 'may share a ranking with comparable results';
comment on column result_rows.comparability_group is 'equal for results that may be compared; NULL when a key is unknown';
comment on column result_rows.file is 'path in the repository';
comment on column result_rows.sha256 is 'of that file';

create table steps (
    result_id varchar not null,
    step integer not null,
    label varchar not null,
    completed_at_s double not null,
    step_time_s double not null,
    slot_tokens bigint not null,
    real_tokens bigint not null,
    supervised_tokens bigint not null,
    documents bigint not null,
    rows bigint not null,
    loss double,
    primary key (result_id, step)
);
comment on table steps is 'of measured results';
comment on column steps.step is 'from 1';
comment on column steps.label is 'warmup | steady';

create table phases (
    result_id varchar not null,
    position integer not null,
    phase varchar not null,
    duration_s double not null,
    share double not null,
    primary key (result_id, phase)
);
comment on table phases is 'of measured results; they sum to wall_s';

create table step_events (
    result_id varchar not null,
    step integer not null,
    kind varchar not null,
    amount bigint not null
);
comment on table step_events is 'of measured results: why a step''s time is no measure of the steady state';
comment on column step_events.kind is 'compile | allocator_growth';
comment on column step_events.amount is 'graphs, or bytes';

create table effective (
    result_id varchar not null,
    position integer not null,
    setting varchar not null,
    requested varchar not null,
    effective varchar not null,
    agrees boolean,
    primary key (result_id, setting)
);
comment on table effective is 'of measured results: what was asked for, and what really ran';
comment on column effective.agrees is 'NULL where the two are named differently';

create table gates (
    result_id varchar not null,
    gate varchar not null,
    passed boolean,
    detail varchar not null,
    primary key (result_id, gate)
);
comment on table gates is 'of measured results: checks that training is right';
comment on column gates.gate is 'adapter_gradient | packed_documents | loss_band';
comment on column gates.passed is 'NULL when it did not apply';

create table ranks (
    result_id varchar not null,
    rank integer not null,
    own_work_s double,
    behind double,
    slowest boolean not null,
    device_allocated_bytes bigint,
    device_reserved_bytes bigint,
    host_rss_bytes bigint,
    primary key (result_id, rank)
);
comment on table ranks is 'of measured results: processes on several devices';
comment on column ranks.own_work_s is 'median over the steady window, before gradients are exchanged: no other rank can delay it';
comment on column ranks.behind is 'how much longer that is than the median of all ranks';

create table device_use (
    result_id varchar not null,
    device integer not null,
    samples integer not null,
    busy_mean double,
    busy_peak double,
    power_mean_w double,
    power_peak_w double,
    clock_mean_mhz double,
    clock_min_mhz double,
    temperature_peak_c double,
    memory_used_peak_bytes bigint,
    memory_used_before_bytes bigint,
    throttle_reasons varchar[] not null,
    primary key (result_id, device)
);
comment on table device_use is 'of measured results: devices over the steady window, sampled from outside';
comment on column device_use.busy_mean is 'share of time in which something ran on it';
comment on column device_use.memory_used_peak_bytes is 'other processes included';

create table flops (
    result_id varchar not null,
    position integer not null,
    class varchar not null,
    flop double not null,
    formula varchar not null,
    primary key (result_id, class)
);
comment on table flops is 'of measured results: FLOPs of a mean steady step by class, all devices';
comment on column flops.class is 'forward_matmul | ... | recompute';

create table memory_lines (
    result_id varchar not null,
    position integer not null,
    line varchar not null,
    kind varchar not null,
    predicted_bytes bigint,
    measured_bytes bigint,
    note varchar not null,
    primary key (result_id, line)
);
comment on table memory_lines is 'of measured results: memory predicted beside measured, one device';
comment on column memory_lines.kind is 'state: weighed tensors | peak: of the allocator | part: predicted only';

create table runs (
    result_id varchar not null,
    run integer not null,
    file varchar not null,
    status varchar not null,
    seed bigint,
    init_s double,
    time_to_target_s double,
    samples bigint,
    samples_per_s double,
    primary key (result_id, run)
);
comment on table runs is 'of converted results, one row for each log';
comment on column runs.run is 'from 1';
comment on column runs.file is 'name of the log';
comment on column runs.status is 'ok | aborted | incomplete';
comment on column runs.init_s is 'before the clock of the benchmark starts';
comment on column runs.time_to_target_s is 'NULL when the target was not reached';
comment on column runs.samples is 'training samples until the end';
comment on column runs.samples_per_s is 'while training, evaluation left out';

create table run_curves (
    result_id varchar not null,
    run integer not null,
    evaluation integer not null,
    samples bigint not null,
    seconds double not null,
    eval_loss double not null,
    primary key (result_id, run, evaluation)
);
comment on table run_curves is 'evaluations of those runs';
comment on column run_curves.evaluation is 'from 1';
comment on column run_curves.samples is 'training samples seen before it';
comment on column run_curves.seconds is 'since the clock of the benchmark started';

create table result_facts (
    result_id varchar not null,
    topic varchar not null,
    name varchar not null,
    value varchar,
    reason varchar,
    primary key (result_id, topic, name)
);
comment on table result_facts is 'environment, settings and derived figures of results, one row each';
comment on column result_facts.topic is 'derived | conditions | environment | packages | plan | settings | memory | model | ...';
comment on column result_facts.reason is 'why it is so, how it was derived, or why it is null';

create table warnings (
    result_id varchar not null,
    doubt varchar not null,
    message varchar not null
);
comment on table warnings is 'doubts about measured results';

create table audit_rules (
    rule varchar primary key,
    family varchar not null,
    title varchar not null,
    why varchar not null,
    verdicts varchar[] not null
);
comment on table audit_rules is 'the rules of the audit';
comment on column audit_rules.title is 'what it looks for';
comment on column audit_rules.why is 'from first principles';
comment on column audit_rules.verdicts is 'those it can give';

create table findings (
    finding integer primary key,
    rule varchar not null,
    verdict varchar not null,
    record_ids varchar[] not null,
    claim varchar not null,
    calculation varchar not null,
    numbers varchar not null,
    quantities varchar[] not null,
    conditions varchar[] not null
);
comment on table findings is 'what those rules found, `tunemark audit`';
comment on column findings.finding is 'from 1, in the order of the audit';
comment on column findings.verdict is 'impossible | inconsistent | suspicious | ambiguous';
comment on column findings.record_ids is 'results and statements that it is about, its subject first';
comment on column findings.claim is 'what they claim, as printed';
comment on column findings.calculation is 'written out, with its numbers';
comment on column findings.numbers is 'the numbers used, as JSON';
comment on column findings.quantities is 'claims that it refutes, such as step_time_s';
comment on column findings.conditions is 'conditions that it is about, such as context_length';

create table throughput_model (
    parameter varchar primary key,
    kind varchar not null,
    level varchar not null,
    value double not null,
    low double not null,
    high double not null,
    rows integer not null,
    meaning varchar not null
);
comment on table throughput_model is 'parameters of the model that predicts throughput, learnt from accepted results';
comment on column throughput_model.parameter is 'kind and level, such as `factor: matmul`';
comment on column throughput_model.kind is 'factor of a term of the roofline | effect of software, generation, ... | slope';
comment on column throughput_model.value is 'times longer';
comment on column throughput_model.low is '90% interval';
comment on column throughput_model.rows is 'results that speak of it';

create table throughput_errors (
    left_out varchar not null,
    result_id varchar not null,
    left_out_group varchar not null,
    stack varchar not null,
    model varchar not null,
    method varchar not null,
    accelerator varchar not null,
    accelerator_count integer not null,
    tokens_per_s double not null,
    predicted_tokens_per_s double,
    predicted_low double,
    predicted_high double,
    error double,
    covered boolean,
    no_data varchar,
    same varchar[] not null,
    primary key (left_out, result_id)
);
comment on table throughput_errors is 'each result beside its prediction from results without its accelerator, or without its model';
comment on column throughput_errors.left_out is 'accelerator | model';
comment on column throughput_errors.left_out_group is 'which one: a card of an accelerator, or the shape of a model';
comment on column throughput_errors.stack is 'whose software: a document, mlperf, measured';
comment on column throughput_errors.tokens_per_s is 'of the result, all devices';
comment on column throughput_errors.predicted_tokens_per_s is 'NULL where nothing similar was left';
comment on column throughput_errors.predicted_low is '90% interval';
comment on column throughput_errors.error is 'predicted over that of the result, less 1';
comment on column throughput_errors.covered is 'whether the interval holds the result';
comment on column throughput_errors.no_data is 'why there is no prediction';
comment on column throughput_errors.same is 'results with the same digits at the same combination: no further evidence';

create table throughput_refused (
    result_id varchar primary key,
    reason varchar not null
);
comment on table throughput_refused is 'results with a rate from which nothing is learnt';

create table memory_errors (
    result_id varchar primary key,
    model varchar not null,
    method varchar not null,
    accelerator varchar,
    accelerator_count integer not null,
    published_bytes double not null,
    predicted_bytes double not null,
    formula_004_bytes double not null,
    accelerate_bytes double,
    error double not null,
    reading varchar
);
comment on table memory_errors is 'published peaks of memory beside predictions';
comment on column memory_errors.published_bytes is 'read as `reading` says';
comment on column memory_errors.predicted_bytes is 'by `tunemark estimate`';
comment on column memory_errors.formula_004_bytes is 'by the formula of document 004';
comment on column memory_errors.accelerate_bytes is 'by `accelerate estimate-memory`, where it gives a figure';
comment on column memory_errors.error is 'predicted over published, less 1';
comment on column memory_errors.reading is 'how the document''s figures are read';

create table load_problems (
    file varchar not null,
    field varchar not null,
    value varchar not null,
    fix varchar not null
);
comment on table load_problems is 'files that were not loaded, with the reason';

-- Views ---------------------------------------------------------------------------------------------

create view record_findings as
select unnest(record_ids) as record_id, finding, rule, family, title, verdict, claim, calculation
from findings
left join audit_rules using (rule);
comment on view record_findings is 'Each finding once for each record that it is about.';

create view results as
select
    -- What the audit calls impossible is shown, and shares no ranking.
    r.* replace (r.rankable and not r.result_id in (select record_id from record_findings where verdict = 'impossible') as rankable),
    r.result_id in (select record_id from record_findings where verdict = 'impossible') as impossible,
    (select count(*) from record_findings f where f.record_id = r.result_id) as findings,
    coalesce(m.name, r.model) as model_name,
    coalesce(a.name, r.accelerator_printed) as accelerator_name,
    coalesce(s.title, 'Measured with the Tunemark harness') as source_title,
    case when r.status in ('ok', 'claimed', 'partial') then false else true end as failed,
    exists (select 1 from readings g where g.record_id = r.result_id) as ambiguous
from result_rows r
left join models m using (model)
left join accelerators a using (accelerator)
left join sources s on s.source = r.source;
comment on view results is 'All results with readable names. Start here.';

create view throughput_accuracy as
select
    left_out,
    case when grouping(stack) = 1 then 'all' else stack end as stack,
    count(error) as rows,
    count(*) - count(error) as no_data,
    median(abs(error)) as median_error,
    max(abs(error)) as worst_error,
    avg(covered::integer) as coverage
from throughput_errors
group by grouping sets ((left_out), (left_out, stack));
comment on view throughput_accuracy is 'How good predictions of throughput are, by what was left out and by software; `all` is every row.';

create view studies as
select
    study_id,
    any_value(study_kind) as study_kind,
    any_value(workload) as workload,
    any_value(accelerator_name) as accelerator_name,
    count(*) as runs,
    count(*) filter (where failed) as failed,
    count(distinct study_point) as points,
    min(started_at) as started_at,
    list(result_id order by study_position, result_id) as result_ids
from results
where study_id is not null
group by study_id;
comment on view studies is 'Series of measured results: sweeps, frontiers, A/B comparisons, repeats.';

create view current_prices as
select * from prices
where effective_on <= coalesce((select max(as_of) from collection), current_date)
qualify row_number() over (partition by provider, instance, region, kind order by effective_on desc, price) = 1;
comment on view current_prices is 'For each instance, region and kind the newest price that has begun on `collection.as_of`: answers do not depend on the day of asking.';

create view costs as
with offers as (
    select
        r.result_id,
        p.*,
        coalesce(r.nodes, 1) as instances,
        coalesce(r.nodes, 1) * p.usd_per_hour as hourly,
        coalesce(r.instance = p.instance, false) as same_instance,
        -- A sample of MLPerf is a packed row of several documents: its cost would stand beside the cost of documents.
        case when r.trust = 'converted' and r.packing then null else r.samples_per_s end as samples_per_s,
        r.tokens_per_s,
        r.epoch_time_s,
        coalesce(r.wall_s, r.train_time_s) as run_s
    from result_rows r
    join current_prices p
        on p.accelerator = r.accelerator
        and p.accelerator_count >= r.accelerator_count / coalesce(r.nodes, 1)
)
select
    result_id,
    price,
    provider,
    instance,
    region,
    kind,
    effective_on,
    dated_by,
    source as price_source,
    accelerator_count,
    same_instance,
    instances,
    hourly as usd_per_hour,
    hourly / 3600 / samples_per_s * 1e3 as usd_per_1k_samples,
    hourly / 3600 / samples_per_s * 1e6 as usd_per_1m_samples,
    hourly / 3600 / tokens_per_s * 1e6 as usd_per_1m_tokens,
    hourly / 3600 * epoch_time_s as usd_per_epoch,
    hourly / 3600 * run_s as usd_per_run
from offers;
comment on view costs is 'What each result costs on each offer that can hold it: whole instances. A result on one machine needs one instance with enough accelerators; one on several machines needs an instance for each, with enough for its share.';

create view cheapest_costs as
select * from costs
where kind = 'on_demand'
qualify row_number() over (partition by result_id order by same_instance desc, usd_per_hour, provider, instance, region) = 1;
comment on view cheapest_costs is 'The on-demand offer of each result: on its own instance where that is known and has a price, else the cheapest.';
