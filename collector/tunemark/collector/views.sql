-- The database: tables that are loaded, and the views that every reader uses.
-- It is a cache and can always be rebuilt from data/ and submissions/.
-- Units are in the names; shares are 0 to 1; unknown is NULL.

create table collection (                   -- this loading of the database: one row
    as_of date not null                     -- the day of collecting, or that of `collect --as-of`: prices are those of this day
);

-- Facts ---------------------------------------------------------------------------------------------

create table accelerators (                 -- cards of data/accelerators
    accelerator varchar primary key,        -- key of the card
    name varchar not null,
    vendor varchar not null,
    architecture varchar,
    aliases varchar[] not null,             -- names under which devices report themselves and documents call it
    unit varchar not null,                  -- device | chip | core: what one of it is
    memory_gib double,
    memory_bandwidth_gb_s double,
    peak_bf16_tflops double,                -- dense
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
    read_on date,                           -- day on which these facts were read
    unverified varchar[] not null,          -- columns that were not read at a source
    notes varchar
);

create table models (                       -- cards of data/models
    model varchar primary key,
    name varchar not null,
    aliases varchar[] not null,             -- names that documents and mirrors call it
    family varchar not null,
    parameters bigint,
    matrix_parameters bigint,               -- N_mm: weights in matrix products, head once, active experts only
    hidden_size integer not null,
    intermediate_size integer not null,
    layers integer not null,
    attention_heads integer not null,
    key_value_heads integer not null,
    head_dim integer not null,
    vocabulary integer not null,
    context_length integer not null,
    sliding_window integer,                 -- attention span in tokens, where it is limited
    sliding_window_every integer,           -- every so-many-th layer is limited; NULL where that is all or none
    experts integer,
    active_experts integer,
    hub_id varchar,
    gated boolean,
    source varchar not null,
    read_on date,                           -- day on which these facts were read
    notes varchar
);

create table workloads (                    -- cards of data/workloads
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
    matrix varchar,                         -- the card whose cells it is one of; NULL for a card of its own
    weights varchar not null,               -- random | pretrained
    optimizer varchar not null,
    compute varchar not null,               -- auto takes bf16 where the device has it
    padding varchar not null,
    packing boolean not null,
    attention varchar not null,
    gradient_checkpointing varchar not null,
    fused_kernels varchar not null,
    compile varchar not null,
    lora varchar,                           -- rank, alpha and adapted layers
    quantisation varchar,                   -- how frozen weights are stored, for qlora
    devices integer not null,
    strategy varchar not null,              -- auto takes DDP on several devices
    offload varchar not null,
    tensor_parallel integer not null,
    pipeline_parallel integer not null,
    not_stated varchar[] not null           -- settings that the source does not give and that were chosen here
);

create table workload_axes (                -- settings of workloads that their source varied
    workload varchar not null,
    position integer not null,
    field varchar not null,                 -- dotted path in the card, or paths of what was changed together
    choices varchar[] not null,             -- what it was set to; each is a run of the standard division
    primary key (workload, position)
);

create table support (                      -- what each device family can be asked for, data/support.json
    backend varchar not null,
    position integer not null,              -- order of the features
    feature varchar not null,
    supported boolean not null,
    reason varchar,                         -- why not, and what to do instead
    needs varchar,                          -- a package that it needs
    primary key (backend, feature)
);

create table prices (                       -- the price book, data/prices
    price varchar primary key,              -- provider/instance/region/kind/date; /earlier-1 where another catalogue of that day replaced it
    provider varchar not null,
    instance varchar not null,
    accelerator varchar not null,
    accelerator_count double not null,
    vcpus integer,
    memory_gib double,
    region varchar,
    kind varchar not null,                  -- on_demand | spot | reserved | owned
    usd_per_hour double not null,           -- for the whole instance
    effective_on date not null,
    dated_by varchar not null,              -- provider | catalog | inferred
    source varchar not null,
    notes varchar
);

-- Documents -----------------------------------------------------------------------------------------

create table sources (                      -- documents whose results are imported
    source varchar primary key,             -- '000' to '004', or a round such as 'mlperf-v5.1'
    title varchar not null,
    authors varchar,
    published_on varchar,
    read_on date,                           -- day on which it was read
    url varchar,
    origin_repository varchar,
    summary varchar not null,
    caveats varchar[] not null
);

create table document_tables (              -- their tables
    source varchar not null,
    table_id varchar not null,
    position integer not null,              -- order in the document
    title varchar not null,
    columns varchar[] not null,
    primary key (source, table_id)
);

create table document_cells (               -- cells of those tables
    source varchar not null,
    table_id varchar not null,
    row_number integer not null,            -- from 1
    column_number integer not null,         -- from 1
    template varchar not null,              -- text with references such as {003-001/peak_memory_bytes}
    result_ids varchar[] not null,          -- results and statements it refers to
    primary key (source, table_id, row_number, column_number)
);

create table statements (                   -- rows of documents that are not results
    statement_id varchar primary key,
    source varchar not null,
    section varchar not null,
    note varchar
);

create table claims (                       -- printed figures of results and statements
    record_id varchar not null,             -- result_id or statement_id
    quantity varchar not null,              -- key of the registry of quantities
    value double not null,                  -- in the unit of the quantity
    printed varchar not null,               -- exactly as printed
    note varchar,
    primary key (record_id, quantity)
);

create table readings (                     -- all meanings of an ambiguous figure
    record_id varchar not null,
    quantity varchar not null,
    meaning varchar not null,
    value double not null
);

create table labels (                       -- words of a row, exactly as printed
    record_id varchar not null,
    label varchar not null,
    printed varchar not null,
    primary key (record_id, label)
);

-- Results -------------------------------------------------------------------------------------------

create table result_rows (                  -- one row each; read the view `results`
    result_id varchar primary key,          -- '003-001', or the content hash of a submission
    source varchar not null,                -- '000' to '004', 'measured', or a round such as 'mlperf-v5.1'
    trust varchar not null,                 -- published | converted | measured | reproduced
    division varchar,                       -- standard | open, for measured results
    workload varchar,                       -- card, for measured results
    section varchar,                        -- place in the document, for published results
    model varchar,                          -- card
    task varchar,
    method varchar not null,
    accelerator varchar,                    -- card
    accelerator_printed varchar,            -- as reported by the device or printed by the document
    accelerator_count integer,              -- on all machines together
    nodes integer,                          -- machines; NULL when not stated, taken as one
    instance varchar,
    backend varchar,                        -- cpu | cuda | ..., for measured results
    strategy varchar,                       -- single | ddp | ..., for measured results
    status varchar not null,                -- ok | oom | claimed | crash | ...
    message varchar,                        -- what happened, where it did not end well
    fix varchar,                            -- what to do about it
    started_at timestamptz,                 -- for measured results
    dataset varchar,
    sequence_length integer,
    padding varchar,
    packing boolean,
    micro_batch integer,
    gradient_accumulation integer,
    global_batch integer,
    precision varchar,
    optimizer varchar,
    step_definition varchar,                -- optimizer_step | ambiguous
    weights varchar,                        -- random | pretrained, for measured results
    steps integer,
    epochs double,
    step_time_s double,
    step_time_p5_s double,
    step_time_p95_s double,
    step_time_cv double,
    tokens_per_s double,                    -- real tokens, all devices
    tokens_per_s_low double,                -- 95% interval
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
    time_to_target_s double,                -- median of the runs, for converted results
    time_to_target_low_s double,            -- interval of at least 95%
    time_to_target_high_s double,
    loss_start double,
    train_loss double,
    eval_loss double,
    eval_loss_se double,                    -- its standard error
    accuracy double,
    accuracy_se double,                     -- its standard error: a difference within two of them is none
    evaluation_rows bigint,
    stable boolean,                         -- steady window found, for measured results
    steady_steps integer,
    steady_verdict varchar,
    attention varchar,                      -- effective kernel, as are the next four; for measured results
    fused_kernels varchar,
    compile varchar,
    gradient_checkpointing varchar,
    process_group varchar,                  -- collectives of several processes, such as nccl
    study_id varchar,                       -- series that the run is a part of
    study_kind varchar,                     -- sweep | frontier | ab | repeat
    study_point varchar,                    -- which point, arm or repeat
    study_position integer,                 -- order in which it ran, from 1
    gates varchar,                          -- passed | failed: checks that training is right; NULL when none applied
    compile_overhead_s double,              -- what compiling took beyond median steps
    flop_per_step double,                   -- model FLOPs of a mean steady step, all devices
    model_flop_per_s double,                -- all devices, recomputed ones left out
    mfu double,                             -- against the sum of dense peaks; reasons are in result_facts, topic derived
    mfu_palm double,                        -- FLOPs as PaLM counts them, on slots
    hfu double,                             -- recomputed FLOPs included
    mafu double,                            -- against the better of the two matrix rates below
    probe_flop_per_s double,                -- matrix rate in a probe before training, all devices
    probe_after_flop_per_s double,          -- the same after training
    predicted_memory_bytes double,          -- peak of the allocator as the memory model has it
    energy_source varchar,                  -- counter | integrated | none
    energy_j double,                        -- all devices, idle power included, over energy_window_s
    energy_window_s double,
    energy_per_step_j double,
    energy_per_sample_j double,
    energy_per_1k_tokens_j double,
    slowest_rank integer,                   -- the straggler among several processes
    rank_behind double,                     -- how much longer its own work takes than the median of all
    rankable boolean not null,              -- may share a ranking with comparable results
    comparability_group varchar,            -- equal for results that may be compared; NULL when a key is unknown
    parameters bigint,
    trainable_parameters bigint,
    harness_version varchar,
    harness_commit varchar,
    file varchar not null,                  -- path in the repository
    sha256 varchar not null,                -- of that file
    note varchar
);

create table steps (                        -- of measured results
    result_id varchar not null,
    step integer not null,                  -- from 1
    label varchar not null,                 -- warmup | steady
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

create table phases (                       -- of measured results; they sum to wall_s
    result_id varchar not null,
    position integer not null,
    phase varchar not null,
    duration_s double not null,
    share double not null,
    primary key (result_id, phase)
);

create table step_events (                  -- of measured results: why a step's time is no measure of the steady state
    result_id varchar not null,
    step integer not null,
    kind varchar not null,                  -- compile | allocator_growth
    amount bigint not null                  -- graphs, or bytes
);

create table effective (                    -- of measured results: what was asked for, and what really ran
    result_id varchar not null,
    position integer not null,
    setting varchar not null,
    requested varchar not null,
    effective varchar not null,
    agrees boolean,                         -- NULL where the two are named differently
    primary key (result_id, setting)
);

create table gates (                        -- of measured results: checks that training is right
    result_id varchar not null,
    gate varchar not null,                  -- adapter_gradient | packed_documents | loss_band
    passed boolean,                         -- NULL when it did not apply
    detail varchar not null,
    primary key (result_id, gate)
);

create table ranks (                        -- of measured results: processes on several devices
    result_id varchar not null,
    rank integer not null,
    own_work_s double,                      -- median over the steady window, before gradients are exchanged: no other rank can delay it
    behind double,                          -- how much longer that is than the median of all ranks
    slowest boolean not null,
    device_allocated_bytes bigint,
    device_reserved_bytes bigint,
    host_rss_bytes bigint,
    primary key (result_id, rank)
);

create table device_use (                   -- of measured results: devices over the steady window, sampled from outside
    result_id varchar not null,
    device integer not null,
    samples integer not null,
    busy_mean double,                       -- share of time in which something ran on it
    busy_peak double,
    power_mean_w double,
    power_peak_w double,
    clock_mean_mhz double,
    clock_min_mhz double,
    temperature_peak_c double,
    memory_used_peak_bytes bigint,          -- other processes included
    memory_used_before_bytes bigint,
    throttle_reasons varchar[] not null,
    primary key (result_id, device)
);

create table flops (                        -- of measured results: FLOPs of a mean steady step by class, all devices
    result_id varchar not null,
    position integer not null,
    class varchar not null,                 -- forward_matmul | ... | recompute
    flop double not null,
    formula varchar not null,
    primary key (result_id, class)
);

create table memory_lines (                 -- of measured results: memory predicted beside measured, one device
    result_id varchar not null,
    position integer not null,
    line varchar not null,
    kind varchar not null,                  -- state: weighed tensors | peak: of the allocator | part: predicted only
    predicted_bytes bigint,
    measured_bytes bigint,
    note varchar not null,
    primary key (result_id, line)
);

create table runs (                         -- of converted results, one row for each log
    result_id varchar not null,
    run integer not null,                   -- from 1
    file varchar not null,                  -- name of the log
    status varchar not null,                -- ok | aborted | incomplete
    seed bigint,
    init_s double,                          -- before the clock of the benchmark starts
    time_to_target_s double,                -- NULL when the target was not reached
    samples bigint,                         -- training samples until the end
    samples_per_s double,                   -- while training, evaluation left out
    primary key (result_id, run)
);

create table run_curves (                   -- evaluations of those runs
    result_id varchar not null,
    run integer not null,
    evaluation integer not null,            -- from 1
    samples bigint not null,                -- training samples seen before it
    seconds double not null,                -- since the clock of the benchmark started
    eval_loss double not null,
    primary key (result_id, run, evaluation)
);

create table result_facts (                 -- environment, settings and derived figures of results, one row each
    result_id varchar not null,
    topic varchar not null,                 -- derived | conditions | environment | packages | plan | settings | memory | model | ...
    name varchar not null,
    value varchar,
    reason varchar,                         -- why it is so, how it was derived, or why it is null
    primary key (result_id, topic, name)
);

create table warnings (                     -- doubts about measured results
    result_id varchar not null,
    doubt varchar not null,
    message varchar not null
);

create table audit_rules (                  -- the rules of the audit
    rule varchar primary key,
    family varchar not null,
    title varchar not null,                 -- what it looks for
    why varchar not null,                   -- from first principles
    verdicts varchar[] not null             -- those it can give
);

create table findings (                     -- what those rules found, `tunemark audit`
    finding integer primary key,            -- from 1, in the order of the audit
    rule varchar not null,
    verdict varchar not null,               -- impossible | inconsistent | suspicious | ambiguous
    record_ids varchar[] not null,          -- results and statements that it is about, its subject first
    claim varchar not null,                 -- what they claim, as printed
    calculation varchar not null,           -- written out, with its numbers
    numbers varchar not null                -- the numbers used, as JSON
);

create table throughput_model (             -- parameters of the model that predicts throughput, learnt from accepted results
    parameter varchar primary key,          -- kind and level, such as `factor: matmul`
    kind varchar not null,                  -- factor of a term of the roofline | effect of software, generation, ... | slope
    level varchar not null,
    value double not null,                  -- times longer
    low double not null,                    -- 90% interval
    high double not null,
    rows integer not null,                  -- results that speak of it
    meaning varchar not null
);

create table throughput_errors (            -- each result beside its prediction from results without its accelerator, or without its model
    left_out varchar not null,              -- accelerator | model
    result_id varchar not null,
    left_out_group varchar not null,        -- which one: a card of an accelerator, or the shape of a model
    stack varchar not null,                 -- whose software: a document, mlperf, measured
    model varchar not null,
    method varchar not null,
    accelerator varchar not null,
    accelerator_count integer not null,
    tokens_per_s double not null,           -- of the result, all devices
    predicted_tokens_per_s double,          -- NULL where nothing similar was left
    predicted_low double,                   -- 90% interval
    predicted_high double,
    error double,                           -- predicted over that of the result, less 1
    covered boolean,                        -- whether the interval holds the result
    no_data varchar,                        -- why there is no prediction
    same varchar[] not null,                -- results with the same digits at the same combination: no further evidence
    primary key (left_out, result_id)
);

create table throughput_refused (           -- results with a rate from which nothing is learnt
    result_id varchar primary key,
    reason varchar not null
);

create table memory_errors (                -- published peaks of memory beside predictions
    result_id varchar primary key,
    model varchar not null,
    method varchar not null,
    accelerator varchar,
    accelerator_count integer not null,
    published_bytes double not null,        -- read as `reading` says
    predicted_bytes double not null,        -- by `tunemark estimate`
    formula_004_bytes double not null,      -- by the formula of document 004
    accelerate_bytes double,                -- by `accelerate estimate-memory`, where it gives a figure
    error double not null,                  -- predicted over published, less 1
    reading varchar                         -- how the document's figures are read
);

create table load_problems (                -- files that were not loaded, with the reason
    file varchar not null,
    field varchar not null,
    value varchar not null,
    fix varchar not null
);

-- Views ---------------------------------------------------------------------------------------------

-- Each finding once for each record that it is about.
create view record_findings as
select unnest(record_ids) as record_id, finding, rule, family, title, verdict, claim, calculation
from findings
left join audit_rules using (rule);

-- All results with readable names. Start here.
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

-- How good predictions of throughput are, by what was left out and by software; `all` is every row.
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

-- Series of measured results: sweeps, frontiers, A/B comparisons, repeats.
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

-- For each instance, region and kind the newest price that has begun on `collection.as_of`: answers do not depend on the day of asking.
create view current_prices as
select * from prices
where effective_on <= coalesce((select max(as_of) from collection), current_date)
qualify row_number() over (partition by provider, instance, region, kind order by effective_on desc, price) = 1;

-- What each result costs on each offer that can hold it: whole instances. A result on one machine needs one instance
-- with enough accelerators; one on several machines needs an instance for each, with enough for its share.
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

-- The on-demand offer of each result: on its own instance where that is known and has a price, else the cheapest.
create view cheapest_costs as
select * from costs
where kind = 'on_demand'
qualify row_number() over (partition by result_id order by same_instance desc, usd_per_hour, provider, instance, region) = 1;
