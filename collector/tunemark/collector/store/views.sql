-- The database: tables that `tunemark collect` fills, views for readers, and comments that describe both.
-- It is a cache that can always be rebuilt from data/ and submissions/.
-- Units are in the names; shares are 0 to 1; unknown is NULL.
-- FIELDS are the columns that columns.toml declares for a table, with the types and the meanings of their fields.

create table collection (
    as_of date not null,
    inputs_sha256 varchar,
    complete boolean
);
comment on table collection is 'When the database was built: one row.';
comment on column collection.as_of is 'Day of the current prices: the day of collecting, or `collect --as-of`.';
comment on column collection.inputs_sha256 is 'Hash of all files that the rows come from.';
comment on column collection.complete is 'True if no file had a problem or a note.';

-- Facts ---------------------------------------------------------------------------------------------

create table accelerators (
    FIELDS,
    peak_bf16_tflops double,
    peak_fp16_tflops double,
    peak_tf32_tflops double,
    peak_fp32_tflops double,
    peak_fp8_tflops double,
    peak_fp4_tflops double,
    peak_int8_tops double,
    cpu_cores integer,
    cpu_clock varchar,
    read_on date,
    primary key (accelerator)
);
comment on table accelerators is 'Cards of data/accelerators.';
comment on column accelerators.accelerator is 'Key of the accelerator.';
comment on column accelerators.peak_bf16_tflops is 'Dense peak, as are the other peaks.';
comment on column accelerators.cpu_cores is 'Physical cores of a CPU.';
comment on column accelerators.cpu_clock is 'Clocks from which the peak of a CPU is computed, and their kind.';
comment on column accelerators.read_on is 'Day on which the source was read.';

create table models (
    FIELDS,
    parameters bigint,
    matrix_parameters bigint,
    read_on date,
    primary key (model)
);
comment on table models is 'Cards of data/models.';
comment on column models.matrix_parameters is 'N_mm: weights in matrix products; head once, active experts only.';
comment on column models.read_on is 'Day on which the source was read.';

create table workloads (
    FIELDS,
    matrix varchar,
    lora varchar,
    quantisation varchar,
    primary key (workload)
);
comment on table workloads is 'Cards of data/workloads.';
comment on column workloads.matrix is 'Key of the matrix that this workload is a cell of; null otherwise.';
comment on column workloads.lora is 'Rank, alpha and adapted layers.';
comment on column workloads.quantisation is 'Storage format of frozen weights, for qlora.';

create table workload_axes (
    workload varchar not null,
    position integer not null,
    field varchar not null,
    choices varchar[] not null,
    primary key (workload, position)
);
comment on table workload_axes is 'Settings of workloads that their source varied.';
comment on column workload_axes.field is 'Dotted path in the card, or several paths changed together.';
comment on column workload_axes.choices is 'Values; each is a run of the standard division.';

create table support (
    backend varchar not null,
    position integer not null,
    feature varchar not null,
    supported boolean not null,
    reason varchar,
    needs varchar,
    primary key (backend, feature)
);
comment on table support is 'Features that each device family supports, from data/support.json.';
comment on column support.position is 'Order of the features.';
comment on column support.reason is 'Why the feature is not supported, and what to do instead.';
comment on column support.needs is 'Package that the feature needs.';

create table releases (
    library varchar not null,
    version varchar not null,
    released_on date not null,
    source varchar not null,
    primary key (library, version)
);
comment on table releases is 'Days on which final versions of libraries and rounds of MLPerf were published, from data/known/pypi.toml and releases.toml.';

create table gate_scores (
    position integer not null,
    kind varchar not null,
    family varchar not null,
    attempts integer not null,
    caught_everywhere integer not null,
    cases integer not null,
    cases_caught integer not null,
    named integer,
    primary key (kind, family)
);
comment on table gate_scores is 'Outcome of the examination of the checks of submissions and facts, from data/evaluations/gate.csv.';
comment on column gate_scores.kind is 'corruptions | facts | files | texts | honest | messages; with "kept back" for cases that the author of the checks did not see.';
comment on column gate_scores.family is 'What was attempted; of texts, the field.';
comment on column gate_scores.attempts is 'Corruptions, files, texts or submissions.';
comment on column gate_scores.caught_everywhere is 'Attempts that were refused on each submission that they apply to; for honest ones, those that were accepted.';
comment on column gate_scores.cases is 'Attempts times the submissions that they apply to.';
comment on column gate_scores.named is 'Caught cases in which a message names a wrong field; null if no field was expected.';

create table prices (
    FIELDS,
    price varchar,
    effective_on date not null,
    provider_rank integer,
    fabric varchar,
    primary key (price)
);
comment on table prices is 'The price book, data/prices.';
comment on column prices.price is 'provider/instance/region/kind/date.';
comment on column prices.provider_rank is 'Place of the provider in the list of the price basis, from 1; NULL if it is not part of it.';
comment on column prices.fabric is 'Training network between several nodes of this instance; NULL if none is known.';

-- Documents -----------------------------------------------------------------------------------------

create table sources (
    FIELDS,
    read_on date,
    primary key (source)
);
comment on table sources is 'Documents and benchmark rounds with imported results.';
comment on column sources.source is 'A document such as ''003'', or a round such as ''mlperf-v5.1''.';
comment on column sources.read_on is 'Day on which the source was read.';

create table document_tables (
    source varchar not null,
    table_id varchar not null,
    position integer not null,
    title varchar not null,
    columns varchar[] not null,
    rows varchar[][] not null,
    primary key (source, table_id)
);
comment on table document_tables is 'Tables of documents.';
comment on column document_tables.position is 'Order in the document.';
comment on column document_tables.rows is 'Cells of each row.';

create view document_cells as
select
    source, table_id, row_number, column_number, template,
    list_filter(ids, lambda id, place: list_position(ids, id) = place) as result_ids
from (
    select *, regexp_extract_all(template, '\{([0-9]{3}-S?[0-9]{2,3})/[^}]*\}', 1) as ids
    from (
        select source, table_id, row_number, generate_subscripts(cells, 1)::integer as column_number, unnest(cells) as template
        from (select source, table_id, generate_subscripts(rows, 1)::integer as row_number, unnest(rows) as cells from document_tables)
    )
);
comment on view document_cells is 'Cells of the tables of documents.';
comment on column document_cells.row_number is 'From 1.';
comment on column document_cells.column_number is 'From 1.';
comment on column document_cells.template is 'Text with references such as {003-001/peak_memory_bytes}.';
comment on column document_cells.result_ids is 'Results and statements that the cell refers to, in order, each once.';

create table statements (
    statement_id varchar primary key,
    source varchar not null,
    section varchar not null,
    note varchar
);
comment on table statements is 'Statements of documents that are not results.';

create table claims (
    record_id varchar not null,
    quantity varchar not null,
    value double not null,
    printed varchar not null,
    note varchar,
    primary key (record_id, quantity)
);
comment on table claims is 'Printed figures of results and statements.';
comment on column claims.record_id is 'result_id or statement_id.';
comment on column claims.quantity is 'Key of the registry of quantities.';
comment on column claims.value is 'Value in the unit of the quantity.';
comment on column claims.printed is 'The figure exactly as printed.';

create table readings (
    record_id varchar not null,
    quantity varchar not null,
    meaning varchar not null,
    value double not null
);
comment on table readings is 'All meanings of each ambiguous figure.';

create table labels (
    record_id varchar not null,
    label varchar not null,
    printed varchar not null,
    primary key (record_id, label)
);
comment on table labels is 'Words of a row, exactly as printed.';

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
    accelerator_units double,
    nodes integer,
    instance varchar,
    backend varchar,
    strategy varchar,
    software_level varchar,
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
    fp8 varchar,
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
    mlperf_score_s double,
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
    energy_per_run_j double,
    energy_per_step_j double,
    energy_per_sample_j double,
    energy_per_1k_tokens_j double,
    slowest_rank integer,
    rank_behind double,
    rankable boolean not null,
    comparability_group varchar,
    configuration varchar,
    software varchar,
    parameters bigint,
    trainable_parameters bigint,
    harness_version varchar,
    harness_commit varchar,
    file varchar not null,
    sha256 varchar not null,
    note varchar
);
comment on table result_rows is 'Results, one row each; query the view `results` instead.';
comment on column result_rows.result_id is '''003-001'', or the content hash of a submission.';
comment on column result_rows.source is 'A document such as ''003'', ''measured'', or a round such as ''mlperf-v5.1''.';
comment on column result_rows.software_level is 'How far the training loop is tuned: plain | tuned | vendor.';
comment on column result_rows.trust is 'published | converted | measured | reproduced';
comment on column result_rows.division is 'standard | tuned | open; measured results only. Ranks are within a division.';
comment on column result_rows.workload is 'Key of the workload; measured results only.';
comment on column result_rows.section is 'Place in the document; published results only.';
comment on column result_rows.model is 'Key of the model.';
comment on column result_rows.accelerator is 'Key of the accelerator.';
comment on column result_rows.accelerator_printed is 'Name reported by the device or printed in the document.';
comment on column result_rows.accelerator_count is 'Number of accelerators on all machines.';
comment on column result_rows.accelerator_units is 'Accelerators of a measured result, in the unit of the accelerator record (column `unit` of `accelerators`). For a CPU, the part of its cores that the run could use.';
comment on column result_rows.nodes is 'Number of machines; NULL if not stated, which counts as one.';
comment on column result_rows.backend is 'cpu | cuda | ...; measured results only.';
comment on column result_rows.strategy is 'single | ddp | ...; measured results only.';
comment on column result_rows.status is 'ok | oom | claimed | crash | ...';
comment on column result_rows.message is 'Error of a failed run.';
comment on column result_rows.fix is 'Suggested fix for a failed run.';
comment on column result_rows.started_at is 'Start of the run; measured results only.';
comment on column result_rows.step_definition is 'optimizer_step | ambiguous';
comment on column result_rows.weights is 'random | pretrained; measured results only.';
comment on column result_rows.tokens_per_s is 'Real tokens per second, all devices.';
comment on column result_rows.tokens_per_s_low is 'Lower end of the 95% interval, as for the next columns.';
comment on column result_rows.time_to_target_s is 'Median of the runs; converted results only.';
comment on column result_rows.time_to_target_low_s is 'Lower end of an interval of at least 95%.';
comment on column result_rows.mlperf_score_s is 'Official score: mean without the fastest and the slowest run, times the scaling factor; MLPerf entries only.';
comment on column result_rows.eval_loss_se is 'Standard error of eval_loss.';
comment on column result_rows.accuracy_se is 'Standard error of accuracy; differences within two of them are not significant.';
comment on column result_rows.stable is 'True if a steady window was found; measured results only.';
comment on column result_rows.attention is 'Effective attention kernel; this column and the next four: measured results only.';
comment on column result_rows.process_group is 'Library for collectives of several processes, such as nccl.';
comment on column result_rows.study_id is 'Series that the run is part of.';
comment on column result_rows.study_kind is 'sweep | frontier | ab | repeat | tune';
comment on column result_rows.study_point is 'Point, arm or repeat within the series.';
comment on column result_rows.study_position is 'Order of the run in the series, from 1.';
comment on column result_rows.gates is 'Correctness checks of training: passed | failed; NULL if none applied.';
comment on column result_rows.compile_overhead_s is 'Time that compiling steps took beyond the median step.';
comment on column result_rows.flop_per_step is 'Model FLOPs of a mean steady step, all devices.';
comment on column result_rows.model_flop_per_s is 'Model FLOPs per second, all devices, without recomputed ones.';
comment on column result_rows.mfu is 'Model FLOPs utilisation: share of the dense peaks of all devices; result_facts (topic derived) has the reason for a NULL.';
comment on column result_rows.mfu_palm is 'MFU with FLOPs as PaLM counts them, on slots.';
comment on column result_rows.hfu is 'MFU with recomputed FLOPs.';
comment on column result_rows.mafu is 'Share of the better of the two probe rates below.';
comment on column result_rows.probe_flop_per_s is 'Matrix rate of a probe before training, all devices.';
comment on column result_rows.probe_after_flop_per_s is 'The same after training.';
comment on column result_rows.predicted_memory_bytes is 'Peak of the allocator, predicted by the memory model.';
comment on column result_rows.energy_source is 'counter | integrated | none';
comment on column result_rows.energy_j is 'Energy of all devices over energy_window_s, idle power included.';
comment on column result_rows.energy_per_run_j is 'Median over the runs from start to target, of the nodes and switches that the submitter measured; MLPerf entries with power logs only.';
comment on column result_rows.slowest_rank is 'The slowest of several processes.';
comment on column result_rows.rank_behind is 'Own work of the slowest rank / median of all ranks - 1.';
comment on column result_rows.rankable is 'True if the result may be ranked with comparable results.';
comment on column result_rows.comparability_group is 'Equal for results that may be compared; NULL if a key is unknown.';
comment on column result_rows.configuration is 'Equal for repeats of one configuration; rankable measured results only.';
comment on column result_rows.software is 'Versions of the libraries that train; measured results only.';
comment on column result_rows.file is 'Path in the repository.';
comment on column result_rows.sha256 is 'Hash of the file.';

create table configurations (
    configuration varchar primary key,
    runs integer not null,
    submitters integer not null,
    tokens_per_s double not null,
    tokens_per_s_low double,
    tokens_per_s_high double,
    between_run_cv double,
    reproduced boolean not null,
    result_ids varchar[] not null
);
comment on table configurations is 'Repeats of measured results, pooled. Rankings are of configurations.';
comment on column configurations.runs is 'Rankable results of the configuration.';
comment on column configurations.submitters is 'Number of submitters: authors of the commits that added the results.';
comment on column configurations.tokens_per_s is 'Geometric mean over the runs.';
comment on column configurations.tokens_per_s_low is 'Lower end of the 95% interval for one more run; NULL for a single run.';
comment on column configurations.between_run_cv is 'Coefficient of variation between runs; NULL for a single run.';
comment on column configurations.reproduced is 'True if the mean rates of two submitters agree within 5%.';

create table step_logs (
    result_id varchar primary key,
    label varchar[] not null,
    completed_at_s double[] not null,
    step_time_s double[] not null,
    slot_tokens bigint[] not null,
    real_tokens bigint[] not null,
    supervised_tokens bigint[] not null,
    documents bigint[] not null,
    rows bigint[] not null,
    loss double[] not null
);
comment on table step_logs is 'Step logs of measured results, a list for each column of steps.';
create view steps as
select
    result_id, generate_subscripts(label, 1)::integer as step, unnest(label) as label, unnest(completed_at_s) as completed_at_s,
    unnest(step_time_s) as step_time_s, unnest(slot_tokens) as slot_tokens, unnest(real_tokens) as real_tokens,
    unnest(supervised_tokens) as supervised_tokens, unnest(documents) as documents, unnest(rows) as rows, unnest(loss) as loss
from step_logs;
comment on view steps is 'Steps of measured results.';
comment on column steps.step is 'From 1.';
comment on column steps.label is 'warmup | steady';

create table phases (
    result_id varchar not null,
    position integer not null,
    phase varchar not null,
    duration_s double not null,
    share double not null,
    primary key (result_id, phase)
);
comment on table phases is 'Phases of measured results; they sum to wall_s.';

create table step_events (
    result_id varchar not null,
    step integer not null,
    kind varchar not null,
    amount bigint not null
);
comment on table step_events is 'Events of measured results that exclude a step from the steady state.';
comment on column step_events.kind is 'compile | allocator_growth | allocator_retry';
comment on column step_events.amount is 'Number of graphs, or bytes.';

create table effective (
    result_id varchar not null,
    position integer not null,
    setting varchar not null,
    requested varchar not null,
    effective varchar not null,
    agrees boolean,
    primary key (result_id, setting)
);
comment on table effective is 'Requested and effective settings of measured results.';
comment on column effective.agrees is 'True if both are the same; NULL if the two use different names.';

create table gates (
    result_id varchar not null,
    gate varchar not null,
    passed boolean,
    detail varchar not null,
    primary key (result_id, gate)
);
comment on table gates is 'Correctness checks of the training in measured results.';
comment on column gates.gate is 'adapter_gradient | packed_documents | loss_band';
comment on column gates.passed is 'NULL if the check did not apply.';

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
comment on table ranks is 'Processes of measured results on several devices.';
comment on column ranks.own_work_s is 'Median time over the steady window before gradients are exchanged; other ranks cannot delay it.';
comment on column ranks.behind is 'Own work / median of all ranks - 1.';

create table device_use (
    FIELDS,
    result_id varchar not null,
    memory_used_peak_bytes bigint,
    memory_used_before_bytes bigint,
    throttle_share double,
    why_unknown varchar[],
    primary key (result_id, node, device)
);
comment on table device_use is 'Devices of measured results over the steady window, sampled from outside the process.';
comment on column device_use.throttle_share is 'Share of time with the most frequent throttle reason; null without reasons, and in older records.';
comment on column device_use.why_unknown is 'Null column and the reason, such as `errors: NVML: Not Supported`.';

create table flops (
    result_id varchar not null,
    position integer not null,
    class varchar not null,
    flop double not null,
    formula varchar not null,
    primary key (result_id, class)
);
comment on table flops is 'FLOPs of a mean steady step of measured results by class, all devices.';
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
comment on table memory_lines is 'Predicted and measured memory of measured results, one device.';
comment on column memory_lines.kind is 'state: measured tensors | peak: peak of the allocator | part: predicted only.';

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
comment on table runs is 'Runs of converted results, one row per log.';
comment on column runs.run is 'From 1.';
comment on column runs.file is 'Name of the log.';
comment on column runs.status is 'ok | missed | aborted | incomplete';
comment on column runs.init_s is 'Time before the clock of the benchmark starts.';
comment on column runs.time_to_target_s is 'NULL if the target was not reached.';
comment on column runs.samples is 'Training samples until the end.';
comment on column runs.samples_per_s is 'Rate while training, without evaluation.';

create table run_logs (
    result_id varchar not null,
    run integer not null,
    samples bigint[] not null,
    seconds double[] not null,
    eval_loss double[] not null,
    primary key (result_id, run)
);
comment on table run_logs is 'Evaluations of the runs of converted results, a list for each column of run_curves.';
create view run_curves as
select
    result_id, run, generate_subscripts(samples, 1)::integer as evaluation, unnest(samples) as samples, unnest(seconds) as seconds,
    unnest(eval_loss) as eval_loss
from run_logs;
comment on view run_curves is 'Evaluations of the runs of converted results.';
comment on column run_curves.evaluation is 'From 1.';
comment on column run_curves.samples is 'Training samples before the evaluation.';
comment on column run_curves.seconds is 'Time since the clock of the benchmark started.';

create table result_facts (
    result_id varchar not null,
    topic varchar not null,
    name varchar not null,
    value varchar,
    reason varchar,
    primary key (result_id, topic, name)
);
comment on table result_facts is 'Environment, settings and derived figures of results, one row each.';
comment on column result_facts.topic is 'derived | conditions | environment | packages | plan | settings | memory | model | ...';
comment on column result_facts.reason is 'Reason, formula, or why the value is null.';

create table warnings (
    result_id varchar not null,
    kind varchar not null,
    message varchar not null
);
comment on table warnings is 'Warnings about measured results.';

create table audit_rules (
    rule varchar primary key,
    family varchar not null,
    title varchar not null,
    why varchar not null,
    verdicts varchar[] not null
);
comment on table audit_rules is 'Rules of the audit.';
comment on column audit_rules.title is 'Error that the rule looks for.';
comment on column audit_rules.why is 'The reason for the rule, from first principles.';
comment on column audit_rules.verdicts is 'Verdicts that the rule can give.';

create table findings (
    finding integer primary key,
    rule varchar not null,
    verdict varchar not null,
    record_ids varchar[] not null,
    claim varchar not null,
    calculation varchar not null,
    quantities varchar[] not null default [],
    conditions varchar[] not null default []
);
comment on table findings is 'Findings of the audit; see `tunemark audit`.';
comment on column findings.finding is 'From 1, in the order of the audit.';
comment on column findings.verdict is 'impossible | inconsistent | suspicious | ambiguous';
comment on column findings.record_ids is 'Results and statements concerned; the subject is first.';
comment on column findings.claim is 'Claim of the records, as printed.';
comment on column findings.calculation is 'The calculation with its numbers.';
comment on column findings.quantities is 'Keys of the refuted claims, such as step_time_s.';
comment on column findings.conditions is 'Names of the conditions concerned, such as context_length.';

create table throughput_model (
    parameter varchar primary key,
    kind varchar not null,
    level varchar not null,
    mean double not null,
    value double not null,
    low double not null,
    high double not null,
    rows integer not null,
    meaning varchar not null
);
comment on table throughput_model is 'Parameters of the throughput model, fitted to accepted results.';
comment on column throughput_model.parameter is 'Kind and level, such as `factor: matmul`.';
comment on column throughput_model.kind is 'factor of a term of the roofline | effect of software, generation, ... | slope';
comment on column throughput_model.mean is 'Mean in log space.';
comment on column throughput_model.value is 'Factor by which it lengthens the time per token.';
comment on column throughput_model.low is 'Lower end of the 90% interval.';
comment on column throughput_model.rows is 'Number of results that depend on it.';

create table throughput_errors (
    left_out varchar not null,
    result_id varchar not null,
    left_out_group varchar not null,
    stack varchar not null,
    level varchar not null,
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
    active_parameters bigint not null,
    peak_flop_per_s double,
    primary key (left_out, result_id)
);
comment on table throughput_errors is 'Each result and its prediction from results without its accelerator, or without its model.';
comment on column throughput_errors.left_out is 'source | accelerator | model';
comment on column throughput_errors.left_out_group is 'Source, card of the accelerator, or shape of the model, that was left out.';
comment on column throughput_errors.level is 'How far the software is tuned: plain, tuned or vendor.';
comment on column throughput_errors.stack is 'Software: a document, mlperf, or measured.';
comment on column throughput_errors.tokens_per_s is 'Rate of the result, all devices.';
comment on column throughput_errors.predicted_tokens_per_s is 'NULL if nothing similar was left.';
comment on column throughput_errors.predicted_low is 'Lower end of the 90% interval.';
comment on column throughput_errors.error is 'Predicted rate / rate of the result - 1.';
comment on column throughput_errors.covered is 'True if the interval contains the result.';
comment on column throughput_errors.no_data is 'Why there is no prediction.';
comment on column throughput_errors.active_parameters is 'Parameters that a token passes through.';
comment on column throughput_errors.peak_flop_per_s is 'Dense peak of all devices in the format of the products; NULL if the card has none.';
comment on column throughput_errors.same is 'Other results that repeat this rate for the same configuration. They add no evidence.';

create table throughput_refused (
    result_id varchar primary key,
    reason varchar not null
);
comment on table throughput_refused is 'Results with a rate that is not used for calibration.';

create table throughput_covariances (
    parameter varchar not null,
    other varchar not null,
    covariance double not null,
    primary key (parameter, other)
);
comment on table throughput_covariances is 'Covariances of the parameters of the throughput model, in log space, that predictions for any software of a level, or of a stack, depend on; none of two training loops.';
comment on column throughput_covariances.parameter is 'The first of both parameters in alphabetical order, or the same.';
comment on column throughput_covariances.covariance is 'Their covariance; the variance for the same parameter.';

create table known_rates (
    result_id varchar primary key,
    architecture varchar not null,
    encoder boolean not null,
    method varchar not null,
    sequence_length integer not null,
    accelerator varchar not null,
    vendor varchar not null,
    generation varchar not null,
    devices integer not null,
    level varchar not null,
    tokens_per_s double not null,
    offload boolean not null,
    experts integer not null,
    vocabulary integer not null,
    block_format varchar not null,
    trust varchar not null,
    suspicious boolean not null
);
comment on table known_rates is 'The results that the throughput model is fitted to, without copies: the evidence of each recommendation.';
comment on column known_rates.architecture is 'The numbers of the model that determine the time per token.';
comment on column known_rates.encoder is 'True for a model without a language head.';
comment on column known_rates.generation is 'Vendor and architecture of the accelerator.';
comment on column known_rates.level is 'How far the software is tuned: plain | tuned | vendor';
comment on column known_rates.tokens_per_s is 'Rate of all devices.';
comment on column known_rates.offload is 'True if weights or states wait in the memory of the host.';
comment on column known_rates.experts is 'Experts of each block of the model; 0 without a mixture.';
comment on column known_rates.vocabulary is 'Words of the model: models with the same blocks may have another vocabulary.';
comment on column known_rates.block_format is 'Format below 16 bits in which its blocks multiply; empty without one.';
comment on column known_rates.suspicious is 'True if the audit calls the rate suspicious: it is then no evidence of an option.';

create table memory_errors (
    result_id varchar not null,
    quantity varchar not null,
    model varchar not null,
    method varchar not null,
    accelerator varchar,
    accelerator_count integer not null,
    published_bytes double not null,
    predicted_bytes double not null,
    predicted_low double not null,
    predicted_high double not null,
    error double not null,
    covered boolean not null,
    reading varchar,
    parameters bigint not null,
    trained_parameters bigint not null,
    master_weights boolean not null,
    shards double not null,
    primary key (result_id, quantity)
);
comment on table memory_errors is 'Published peaks of memory and their predictions.';
comment on column memory_errors.quantity is '`allocated` (live tensors), `reserved` (by the allocator) or `in use` (on the device, as nvidia-smi shows it).';
comment on column memory_errors.published_bytes is 'Read as `reading` describes.';
comment on column memory_errors.predicted_bytes is 'By `tunemark estimate`.';
comment on column memory_errors.predicted_low is 'Lower end of the 90% interval.';
comment on column memory_errors.covered is 'True if the interval contains the published figure.';
comment on column memory_errors.error is 'Predicted / published - 1.';
comment on column memory_errors.reading is 'How the document''s figures are read.';
comment on column memory_errors.master_weights is 'True if a copy of the weights in fp32 is updated.';
comment on column memory_errors.shards is 'Devices over which the parameters are divided.';

create table memory_needs (
    model varchar not null,
    method varchar not null,
    stack varchar not null,
    sequence_length integer not null,
    least_bytes bigint not null,
    kept_bytes bigint not null,
    device_gib integer,
    primary key (model, method, stack)
);
comment on table memory_needs is 'Predicted memory of each model and method on one device with transformers'' Trainer and peft (hf), and with Unsloth: one row of tokens, adapters of rank 16.';
comment on column memory_needs.least_bytes is 'With gradient checkpointing.';
comment on column memory_needs.kept_bytes is 'Without gradient checkpointing.';
comment on column memory_needs.device_gib is 'Smallest usual memory of a device on which it is expected to run with gradient checkpointing; NULL if no single device has enough.';

create view largest_models as
with sizes as (select distinct device_gib as memory_gib from memory_needs where device_gib is not null)
select memory_gib, method, stack, arg_max(m.model, parameters) as model, max(parameters) as parameters, arg_max(least_bytes, parameters) as least_bytes, arg_max(sequence_length, parameters) as sequence_length
from sizes join memory_needs n on device_gib <= memory_gib join models m on m.model = n.model and hub_id is not null and context_length >= 8192 and family <> 'modernbert' and (stack = 'hf' or coalesce(experts, 0) = 0)
group by memory_gib, method, stack order by memory_gib, parameters;
comment on view largest_models is 'For each method and stack, the largest model of the hub, of decoders with a context of 8,192 tokens or more, that is expected to run on one device of this memory, as in memory_needs; with Unsloth, of those without experts.';
comment on column largest_models.memory_gib is 'Memory of a device, as names of cards have it.';

create view rule_errors as
with memory as (
    select 'Tunemark' as rule, 'tunemark estimate' as formula, 'guide/definitions' as source, predicted_bytes as predicted, e.* from memory_errors e
    union all select 'formula of document 004', 'parameters x bytes x 20 (full), 4 (LoRA) or 2 (QLoRA)', 'document 004',
        parameters * case method when 'full' then 40 when 'lora' then 8 else 1 end, e.* from memory_errors e
    -- The command prints this under "Training using Adam" for bf16, and nothing for 4 bits.
    union all select 'accelerate estimate-memory', '2 x the model in fp32', 'accelerate 1.15, commands/estimate.py',
        case when method <> 'qlora' then 8 * parameters end, e.* from memory_errors e
    union all select 'LLaMA-Factory''s table', 'GB per billion parameters: 8 or 18 (full), 2 (LoRA), 0.5 (QLoRA)', 'https://github.com/hiyouga/LLaMA-Factory, README, Hardware Requirement',
        parameters * case when method = 'lora' then 2 when method = 'qlora' then 0.5 when master_weights then 18 else 8 end, e.* from memory_errors e
    union all select '16 bytes per trained parameter', '16 x trained + 2 (or 0.5) x frozen, over the devices', 'Rajbhandari et al. 2020, ZeRO, section 3.1, https://arxiv.org/abs/1910.02054',
        (16 * trained_parameters + parameters * case method when 'full' then 0 when 'lora' then 2 else 0.5 end) / shards, e.* from memory_errors e
), speed_rules(rule, formula, source, full_flop, adapter_flop, peak_share) as (values
    ('6 N D at 35% of the peak', '6 N FLOPs per token', 'https://blog.eleuther.ai/transformer-math/', 6.0, 6.0, 0.35),
    ('6 N D at 45% of the peak', '6 N FLOPs per token', 'https://blog.eleuther.ai/transformer-math/', 6.0, 6.0, 0.45),
    ('8 N D at 48% of the peak', '8 N FLOPs per token with recomputation, 140 to 163 TFLOP/s on A100', 'Narayanan et al. 2021, section 5, https://arxiv.org/abs/2104.04473', 8.0, 8.0, 0.48),
    ('4 N D for adapters at 40% of the peak', '4 N FLOPs per token without weight gradients, 6 N for full fine-tuning', 'follows from Hu et al. 2021, https://arxiv.org/abs/2106.09685', 6.0, 4.0, 0.40),
    ('LoRA saves 90% of the compute', '0.6 N FLOPs per token at 40% of the peak; LoRA and QLoRA only', 'https://aitecknews.com/en/articles/2026-07-04-why-lora-achieves-90-compute-savings-without-sacrificing-tas', null, 0.6, 0.40)
), speed as (
    select 'Tunemark' as rule, 'its source left out' as formula, 'guide/predictions' as source, predicted_tokens_per_s as predicted, e.* from throughput_errors e
    union all select rule, formula, source, peak_share * peak_flop_per_s / (case method when 'full' then full_flop else adapter_flop end * active_parameters), e.*
    from throughput_errors e cross join speed_rules
)
select 'memory' as kind, rule, formula, source, result_id, quantity, method, predicted, published_bytes as published, predicted / published - 1 as error from memory where predicted is not null
union all
select 'speed', rule, formula, source, result_id, 'tokens/s', method, predicted, tokens_per_s, predicted / tokens_per_s - 1 from speed
where left_out = 'source' and predicted_tokens_per_s is not null and predicted is not null;
comment on view rule_errors is 'Predictions of public calculators, rules of thumb and our own models for the same published results.';
comment on column rule_errors.kind is 'memory: bytes of a device; speed: tokens/s of all devices.';
comment on column rule_errors.formula is 'As the source states it; where it is ambiguous, the reading that fits the results best.';
comment on column rule_errors.source is 'Where the rule is published.';
comment on column rule_errors.error is 'Predicted / published - 1.';

create table load_problems (
    file varchar not null,
    field varchar not null,
    value varchar not null,
    fix varchar not null
);
comment on table load_problems is 'Files that were not loaded, with the reason.';

-- Views ---------------------------------------------------------------------------------------------

create view record_findings as
select unnest(record_ids) as record_id, finding, rule, family, title, verdict, claim, calculation, quantities, conditions
from findings
left join audit_rules using (rule);
comment on view record_findings is 'Findings, once for each record concerned.';

create view impossible_records as
select distinct record_id
from record_findings
where verdict = 'impossible' and (
    list_has_any(quantities, ['tokens_per_s', 'tokens', 'samples_per_s', 'step_time_s', 'train_time_s', 'epoch_time_s'])
    or list_has_any(conditions, ['model', 'task', 'method', 'dataset', 'sequence_length', 'padding', 'packing', 'global_batch', 'precision', 'optimizer', 'accelerator', 'accelerator_count'])
);
comment on view impossible_records is 'Records whose rate or time, or a condition that rankings compare, the audit calls impossible. Other figures do not count.';

create view results as
select
    -- Results whose rate, or a condition of their comparison, the audit calls impossible are shown but never ranked.
    r.* replace (r.rankable and not r.result_id in (select record_id from impossible_records) as rankable),
    r.result_id in (select record_id from impossible_records) as impossible,
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

create view figures as
with stored as (
    unpivot (
        select
            result_id as record_id,
            columns(['step_time_s', 'tokens_per_s', 'samples_per_s', 'peak_memory_bytes', 'train_time_s', 'epoch_time_s', 'wall_s', 'loss_start', 'train_loss', 'eval_loss', 'accuracy', 'mfu', 'hfu', 'energy_per_run_j'])
        from result_rows
    ) on columns(* exclude (record_id)) into name quantity value value
), known as (
    select record_id, quantity, value from stored
    union all
    select record_id, quantity, value from claims anti join stored using (record_id, quantity)
), marks as (
    select record.record_id, figure.quantity, bool_or(f.verdict = 'impossible') as impossible
    from findings f, unnest(f.record_ids) as record(record_id), unnest(f.quantities) as figure(quantity)
    where f.verdict = 'impossible' or (f.verdict = 'suspicious' and record.record_id = f.record_ids[1])
    group by all
)
select known.*, coalesce(impossible, false) as impossible, impossible is not null as doubted
from known
left join marks using (record_id, quantity);
comment on view figures is 'Figures of results and statements: the stored column, or the printed claim if there is none.';
comment on column figures.impossible is 'True if the audit calls the figure impossible.';
comment on column figures.doubted is 'True if the audit calls the figure impossible, or suspicious by itself.';

create view stated as
with claim_maps as (
    select
        record_id,
        map_from_entries(list((quantity, value))) as claim,
        map_from_entries(list((quantity, printed))) as printed
    from claims
    group by record_id
), label_maps as (
    select record_id, map_from_entries(list((label, printed))) as label from labels group by record_id
)
select coalesce(c.record_id, l.record_id) as record_id, claim, printed, label
from claim_maps c
full join label_maps l using (record_id);
comment on view stated is 'All that a document states about a result, or in a statement: maps by quantity and by label.';
comment on column stated.claim is 'Printed figures in the unit of the quantity, such as claim[''mfu''].';
comment on column stated.printed is 'The same figures as printed.';
comment on column stated.label is 'Words, such as label[''model''].';

create view usable_results as
with figure_maps as (
    select
        record_id,
        map_from_entries(list((quantity, value) order by quantity) filter (not impossible)) as figure,
        list(quantity order by quantity) filter (doubted) as doubted
    from figures
    group by record_id
)
select
    r.* exclude (started_at),
    figure,
    coalesce(doubted, []) as doubted,
    claim,
    printed,
    label,
    coalesce(r.model_name, label['model']) as model_label,
    coalesce(accelerator_name, 'accelerator unknown') || coalesce(chr(160) || '×' || chr(160) || accelerator_count, '') as devices,
    coalesce(figure['peak_memory_bytes'], case when accelerator_count = 1 then figure['device_memory_total_bytes'] end) as memory_bytes
from results r
left join figure_maps f on f.record_id = r.result_id
left join stated s on s.record_id = r.result_id
where not r.failed and not r.impossible;
comment on view usable_results is 'Results from which findings are drawn: they succeeded, and the audit calls neither their rate nor a condition impossible.';
comment on column usable_results.figure is 'Figures that the audit does not call impossible: figure[''mfu''] is the stored column, or the printed claim if there is none.';
comment on column usable_results.doubted is 'Quantities that the audit calls suspicious or impossible.';
comment on column usable_results.claim is 'As in `stated`, and so are the next two columns.';
comment on column usable_results.model_label is 'Name of the model, or as printed.';
comment on column usable_results.devices is 'Accelerator with its number, for readers.';
comment on column usable_results.memory_bytes is 'Peak memory of a device. On one device, a total over all devices counts as well.';

create view throughput_accuracy as
select
    left_out,
    case when grouping(stack) = 1 then coalesce(level, 'all') else stack end as stack,
    count(error) as rows,
    count(*) - count(error) as no_data,
    median(abs(error)) as median_error,
    max(abs(error)) as worst_error,
    avg(covered::integer) as coverage
from throughput_errors
group by grouping sets ((left_out), (left_out, level), (left_out, stack));
comment on view throughput_accuracy is 'Accuracy of throughput predictions by left-out property and by software: all of it, that of each level, and each loop.';

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
with today as (select coalesce((select max(as_of) from collection), current_date) as day)
select
    prices.*,
    cast(effective_on as varchar) || case when day - effective_on > OLD_PRICE_DAYS then ', ' || (day - effective_on) || ' days old' else '' end as dated
from prices, today
where effective_on <= day
qualify row_number() over (partition by provider, instance, region, kind order by effective_on desc, price) = 1;
comment on view current_prices is 'The newest price in force on `collection.as_of` for each instance, region and kind.';

create view cost_seconds as
select
    result_id,
    accelerator,
    instance,
    coalesce(nodes, 1) as instances,
    coalesce(accelerator_units, accelerator_count) / instances as units,
    1e3 / samples_per_s as seconds_per_1k_samples,
    1e3 / samples_per_s_high as seconds_per_1k_samples_low,
    1e3 / nullif(samples_per_s_low, 0) as seconds_per_1k_samples_high,
    1e6 / samples_per_s as seconds_per_1m_samples,
    1e6 / tokens_per_s as seconds_per_1m_tokens,
    1e6 / tokens_per_s_high as seconds_per_1m_tokens_low,
    1e6 / nullif(tokens_per_s_low, 0) as seconds_per_1m_tokens_high,
    epoch_time_s as seconds_per_epoch,
    train_time_s as seconds_per_training,
    wall_s as seconds_per_run
from result_rows;
comment on view cost_seconds is 'Seconds for which the instances of each result are rented, for each figure of cost. A cost is this time multiplied by the price.';
comment on column cost_seconds.units is 'Accelerators that each instance needs; a fraction for a part of a CPU.';

create view costs as
select
    s.result_id,
    p.* exclude (accelerator, notes, vcpus, memory_gib, dated) replace (instances * p.usd_per_hour as usd_per_hour) rename (source as price_source),
    coalesce(s.instance = p.instance, false) as same_instance,
    p.accelerator_count > OVERSIZED * units * (1 + FRACTION_TOLERANCE) as oversized,
    instances,
    columns('seconds_(per_.*)') * instances * p.usd_per_hour / 3600 as 'usd_\1'
from cost_seconds s
join current_prices p
    on p.accelerator = s.accelerator
    and p.accelerator_count >= units * (1 - FRACTION_TOLERANCE)
    and (instances = 1 or p.fabric is not null);
comment on view costs is 'Cost of each result on each offer that can hold it, in whole instances. A result on one machine needs one instance with enough accelerators. A result on several machines needs an instance per machine, with enough accelerators for its share and a training fabric.';
comment on column costs.same_instance is 'True if the result names this instance.';
comment on column costs.oversized is 'True if the instance has more than twice the accelerators that are needed.';
comment on column costs.usd_per_1k_samples_low is 'At the upper end of the 95% interval of the rate; NULL without an interval. The other low and high columns are alike.';
comment on column costs.usd_per_training is 'Training only.';
comment on column costs.usd_per_run is 'End to end, with loading, compiling and evaluations.';

create view first_offers as
select * from costs
qualify row_number() over (
    partition by result_id, kind
    order by kind = 'on_demand' and provider_rank is null, oversized, usd_per_hour, accelerator_count, provider, instance, coalesce(region, '')
) = 1;
comment on view first_offers is 'The cheapest offer per result and kind of price. On-demand prices of providers that are not part of the price basis come last, and before them oversized instances.';

create view basis_costs as
select * from first_offers
where kind = 'on_demand' and provider_rank is not null;
comment on view basis_costs is 'Cost of each result on the default basis: the cheapest on-demand list price. Rankings and tables use it.';

create view results_with_costs as
select
    r.* replace (r.started_at at time zone 'UTC' as started_at),
    c.* exclude (result_id, provider_rank, dated_by, price_source, accelerator_count, fabric, same_instance, oversized, usd_per_1m_samples)
    rename (
        provider as price_provider, instance as price_instance, region as price_region, kind as price_kind,
        effective_on as price_effective_on, instances as price_instances
    )
from results r
left join basis_costs c using (result_id);
comment on view results_with_costs is 'All results: conditions, figures, utilisation, and the cost on the default price basis. Published as `results`.';


create view rankings as
with ranked as (
    select
        r.result_id,
        r.workload,
        r.comparability_group,
        r.division,
        coalesce(r.configuration, r.result_id) as configuration,
        coalesce(c.runs, 1) as runs,
        coalesce(c.tokens_per_s_low, r.tokens_per_s_low, r.tokens_per_s) as low,
        coalesce(c.tokens_per_s_high, r.tokens_per_s_high, r.tokens_per_s) as high
    from results r
    left join configurations c on c.configuration = r.configuration
    where r.source = 'measured' and r.rankable and not r.failed and r.tokens_per_s is not null and r.comparability_group is not null
), configured as (
    select distinct on (workload, comparability_group, division, configuration) * from ranked order by result_id desc
)
select
    r.result_id,
    r.runs,
    1 + count(*) filter (other.low > own.high) as best,
    count(*) - count(*) filter (other.high < own.low) as worst
from ranked r
join configured own on own.workload = r.workload and own.comparability_group = r.comparability_group and own.division is not distinct from r.division and own.configuration = r.configuration
join configured other on other.workload = r.workload and other.comparability_group = r.comparability_group and other.division is not distinct from r.division
group by r.result_id, r.runs;
comment on view rankings is 'Rank of each rankable result by tokens/s, within its workload, comparability group and division. Repeats of a configuration share a rank. `best` and `worst` differ where 95% intervals overlap: those for one more run, or that of a single run.';

-- Meanings of columns that are neither a registered quantity nor described beside their table --------

comment on column results.task is 'What is trained, such as causal_lm.';
comment on column results.method is 'Fine-tuning method: full | lora | qlora | peft.';
comment on column results.instance is 'Instance of a cloud provider.';
comment on column results.dataset is 'Dataset or token source.';
comment on column results.sequence_length is 'Tokens per row, including padding.';
comment on column results.padding is 'How rows are padded.';
comment on column results.packing is 'True if several documents share a row.';
comment on column results.micro_batch is 'Rows per forward and backward pass on one device.';
comment on column results.gradient_accumulation is 'Micro-steps per optimizer step.';
comment on column results.global_batch is 'Rows per optimizer step, over all devices.';
comment on column results.precision is 'Number format of the matrix products.';
comment on column results.fp8 is 'Which matrices of the blocks multiply in fp8: `frozen weights`, or torchao''s recipe for trained ones; `none` if none do.';
comment on column results.optimizer is 'Optimizer as stated or used.';
comment on column results.step_time_p5_s is '5th percentile of the step times in the steady window.';
comment on column results.step_time_p95_s is '95th percentile of the step times in the steady window.';
comment on column results.step_time_cv is 'Coefficient of variation of the step times in the steady window.';
comment on column results.padding_efficiency is 'Real tokens as a share of all slots in a batch.';
comment on column results.peak_memory_method is 'How the peak memory was measured.';
comment on column results.time_to_target_high_s is 'Upper end of the interval.';
comment on column results.evaluation_rows is 'Rows evaluated: as recorded; for a published evaluation, the test set of its dataset, if its size is known.';
comment on column results.steady_steps is 'Steps in the steady window.';
comment on column results.steady_verdict is 'Reason why there is or is not a steady window.';
comment on column results.fused_kernels is 'Fused kernels that the run used: `liger`, `chunked loss` without whole logits, or `none`.';
comment on column results.compile is 'What is compiled with torch.compile.';
comment on column results.gradient_checkpointing is 'What is recomputed in the backward pass.';
comment on column results.energy_window_s is 'Duration over which the energy was measured.';
comment on column results.harness_version is 'Version of the Tunemark harness.';
comment on column results.harness_commit is 'Commit of the Tunemark harness.';
comment on column results.note is 'Remarks about the result.';
comment on column results.impossible is 'True if the audit refutes the rate, the time or a condition of comparison. Such results are never ranked.';
comment on column results.findings is 'Number of findings of the audit.';
comment on column results.model_name is 'Name of the model.';
comment on column results.accelerator_name is 'Name of the accelerator, or the name that the document prints.';
comment on column results.source_title is 'Title of the source.';
comment on column results.failed is 'True if the run did not finish.';
comment on column results.ambiguous is 'True if a figure has several readings.';

comment on column results_with_costs.price_provider is 'Provider of that offer.';
comment on column results_with_costs.price_instance is 'Instance of that offer.';
comment on column results_with_costs.price_region is 'Region of that offer.';
comment on column results_with_costs.price_kind is 'Kind of price; the default basis is the cheapest on-demand list price.';
comment on column results_with_costs.price_effective_on is 'Day on which the price is known to apply.';
comment on column results_with_costs.price_instances is 'Number of instances that the result needs.';

comment on column accelerators.name is 'Display name.';
comment on column accelerators.vendor is 'Vendor.';
comment on column accelerators.memory_gib is 'Memory in GiB.';
comment on column accelerators.peak_fp16_tflops is 'Dense peak in fp16, TFLOP/s.';
comment on column accelerators.peak_tf32_tflops is 'Dense peak in tf32, TFLOP/s.';
comment on column accelerators.peak_fp32_tflops is 'Dense peak in fp32, TFLOP/s.';
comment on column accelerators.peak_fp8_tflops is 'Dense peak in fp8, TFLOP/s.';
comment on column accelerators.peak_fp4_tflops is 'Dense peak in fp4, TFLOP/s.';
comment on column accelerators.peak_int8_tops is 'Dense peak in int8, TOP/s.';
comment on column accelerators.launch_year is 'Year of launch.';
comment on column accelerators.source is 'Source of these facts.';
comment on column accelerators.notes is 'Remarks.';

comment on column models.model is 'Key of the model.';
comment on column models.key_value_heads is 'Key and value heads.';
comment on column models.head_dim is 'Width of a head, without rotary_head_dim.';
comment on column models.experts is 'Number of experts in a mixture; null for dense models.';
comment on column models.active_experts is 'Experts per token; null for dense models.';
comment on column models.source is 'Source of these facts.';
comment on column models.notes is 'Remarks.';

comment on column workloads.workload is 'Key of the workload.';
comment on column workloads.model is 'Key of the model.';

comment on column prices.provider is 'Company that rents out the instance.';
comment on column prices.instance is 'Instance of a cloud provider.';
comment on column prices.accelerator is 'Key of the accelerator.';
comment on column prices.vcpus is 'Virtual CPUs of the instance.';
comment on column prices.effective_on is 'Day on which the price is known to apply.';

comment on column findings.rule is 'Key of the audit rule.';

comment on column sources.url is 'Address of the source.';

comment on column current_prices.dated is 'Day of the price, with its age on `collection.as_of` if that is above OLD_PRICE_DAYS days.';
comment on column costs.result_id is 'Key of the result.';
comment on column costs.price is 'Price that the cost columns use, a key of `prices`; null if no offer fits.';
comment on column costs.price_source is 'Source of the price.';
comment on column costs.instances is 'Number of instances that the result needs.';
comment on column costs.usd_per_hour is 'Hourly price of all instances of the result, or of the whole instance in `prices`.';
comment on column costs.usd_per_1k_samples is 'Cost of 1,000 samples.';
comment on column costs.usd_per_1m_samples is 'Cost of a million samples.';
comment on column costs.usd_per_1m_tokens is 'Cost of a million tokens.';
comment on column costs.usd_per_epoch is 'Cost of one pass over the data.';


comment on column claims.note is 'Remarks about the result.';

comment on column readings.record_id is 'Key of the result or statement.';
comment on column readings.quantity is 'Quantity of the ambiguous figure.';
comment on column readings.meaning is 'What the figure means in this reading.';
comment on column readings.value is 'Value in this reading, in the unit of the quantity.';

comment on column result_facts.result_id is 'Key of the result.';
comment on column result_facts.name is 'Name of the fact.';
comment on column result_facts.value is 'Value as text.';

comment on column steps.result_id is 'Key of the result.';

comment on column runs.result_id is 'Key of the result.';

comment on column run_curves.result_id is 'Key of the result.';

comment on column audit_rules.rule is 'Key of the audit rule.';

create view method_pairs as
with stated as (
    select
        *,
        row(
            model_label, source, section, accelerator, accelerator_count, dataset, padding, packing, precision, micro_batch, attention,
            strategy, gradient_checkpointing, fused_kernels, compile, software, offload
        ) as sweep,
        row(sweep, sequence_length) as conditions
    from usable_results
    left join (select result_id, max(value) as offload from result_facts where topic = 'settings' and name like '%offload%' group by all) using (result_id)
    where method in ('full', 'lora', 'qlora') and accelerator is not null and model_label is not null
), single as (
    -- Of several results of a method, the one counts whose document prints the plain name of the method.
    select *
    from (select *, count(*) over (partition by conditions, method) as number from stated)
    where number = 1 or replace(lower(label['method']), '-', '') = method
    qualify count(*) over (partition by conditions, method) = 1
)
select
    r.result_id,
    b.result_id as base_result_id,
    r.method,
    b.method as base_method,
    r.model_label,
    r.source,
    r.section,
    r.accelerator_name,
    r.accelerator_count,
    r.devices,
    r.sequence_length,
    r.micro_batch,
    r.sweep,
    r.memory_bytes,
    b.memory_bytes as base_memory_bytes,
    case when not list_contains(r.doubted || b.doubted, 'peak_memory_bytes') then r.memory_bytes / b.memory_bytes end as memory_ratio,
    case when not list_has_any(r.doubted || b.doubted, ['tokens_per_s', 'samples_per_s', 'step_time_s']) then
        coalesce(r.figure['tokens_per_s'] / b.figure['tokens_per_s'], r.figure['samples_per_s'] / b.figure['samples_per_s'])
    end as speed_ratio
from single r
join single b using (conditions)
where (r.method, b.method) in (('lora', 'full'), ('qlora', 'lora'), ('qlora', 'full'));
comment on view method_pairs is 'Two results of one document that differ only in the method: QLoRA, LoRA or full fine-tuning.';
comment on column method_pairs.sweep is 'Equal for pairs that differ only in their sequence length.';
comment on column method_pairs.speed_ratio is 'Ratio of tokens/s, or of samples/s if a document has no tokens/s. It and the ratio of memory are NULL if the audit calls a figure suspicious.';

create view speed_ups as
with known as (
    select
        r.*,
        quantity,
        preference,
        of_time,
        figure[quantity] as value,
        row(
            model_label, source, method, accelerator, dataset, sequence_length, padding, packing, precision, micro_batch, optimizer, attention,
            gradient_checkpointing, fused_kernels, compile, weights, software,
            case when not of_time then section end, case when not of_time then strategy end
        ) as conditions
    from usable_results r,
        (values ('tokens_per_s', 1, false), ('samples_per_s', 2, false), ('train_time_s', 1, true), ('wall_s', 2, true), ('epoch_time_s', 3, true)) as q(quantity, preference, of_time)
    where figure[quantity] > 0 and accelerator is not null and accelerator_count > 0 and model_label is not null and trust <> 'converted'
), families as (
    select conditions, of_time, quantity
    from known
    group by conditions, of_time, quantity, preference
    having count(*) > 1 and count(distinct accelerator_count) = count(*)
        and (not of_time or (count(epochs) = count(*) and count(dataset) = count(*) and count(distinct epochs) = 1))
    qualify row_number() over (partition by conditions, of_time order by preference) = 1
), compared as (
    select
        result_id,
        first(result_id) over family as base_result_id,
        model_label,
        method,
        source,
        section,
        accelerator,
        accelerator_name,
        accelerator_count,
        first(accelerator_count) over family as base_accelerator_count,
        devices,
        first(devices) over family as base_devices,
        quantity,
        of_time,
        value,
        first(value) over family as base_value,
        case when of_time then base_value / value else value / base_value end as speed_up
    from known
    join families using (conditions, of_time, quantity)
    window family as (partition by conditions, of_time order by accelerator_count)
)
select *, speed_up / (accelerator_count / base_accelerator_count) as efficiency, efficiency > 1.05 as superlinear
from compared
where result_id <> base_result_id;
comment on view speed_ups is 'Results that differ only in the number of accelerators, each compared with the result on the fewest.';
comment on column speed_ups.of_time is 'True if the times of training runs with the same epochs and dataset are compared, not rates. The runs may be described in different sections of a document.';
comment on column speed_ups.efficiency is 'Speed-up divided by the ratio of the device counts.';
comment on column speed_ups.superlinear is 'True for an efficiency above 105%: another condition must differ, so findings do not use it.';

create view named_costs as
select * from costs
where same_instance and kind = 'on_demand' and instances = 1
qualify row_number() over (partition by result_id order by usd_per_hour, region, price) = 1;
comment on view named_costs is 'Cost of each result on the instance that it names, at the cheapest on-demand list price.';
