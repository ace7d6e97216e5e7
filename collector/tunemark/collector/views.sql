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
    learning_rate double not null
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
    accuracy double,
    evaluation_rows bigint,
    stable boolean,                         -- steady window found, for measured results
    steady_steps integer,
    steady_verdict varchar,
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

create table load_problems (                -- files that were not loaded, with the reason
    file varchar not null,
    field varchar not null,
    value varchar not null,
    fix varchar not null
);

-- Views ---------------------------------------------------------------------------------------------

-- All results with readable names. Start here.
create view results as
select
    r.*,
    coalesce(m.name, r.model) as model_name,
    coalesce(a.name, r.accelerator_printed) as accelerator_name,
    coalesce(s.title, 'Measured with the Tunemark harness') as source_title,
    case when r.status in ('ok', 'claimed', 'partial') then false else true end as failed,
    exists (select 1 from readings g where g.record_id = r.result_id) as ambiguous
from result_rows r
left join models m using (model)
left join accelerators a using (accelerator)
left join sources s on s.source = r.source;

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
