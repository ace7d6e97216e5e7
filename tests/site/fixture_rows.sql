-- Rows that the records of the fixture cannot produce. A name in braces is a value of fixture_database.py.

update result_rows set file = '{HOSTILE}', comparability_group = null, padding = null, rankable = false where result_id = '{STRANGE}';
update result_rows set message = '{HOSTILE}' where result_id = '004-001';
update workloads set tier = 'reference', matrix = 'smoke', not_stated = ['seed', '{HOSTILE}'];
insert into workload_axes by name
    select 'smoke-lora' as workload, 1 as position, 'batch.micro_batch' as field, ['4', '{HOSTILE}'] as choices;
update accelerators set read_on = '2025-05-05' where accelerator = '{H100}';
update models set read_on = '2025-05-06' where model = 'llama-3.1-8b';
update effective set effective = '{HOSTILE}', agrees = null where setting = 'optimizer';
insert into ranks (result_id, rank, own_work_s, behind, slowest, host_rss_bytes) values
    ('{MEASURED}', 0, 0.030, -0.02, false, 1073741824),
    ('{MEASURED}', 1, 0.032, 0.02, true, 1073741824);

-- Results of one model, so that there is every kind of evidence; the throughput model has its priors.
delete from known_rates;
insert into known_rates by name select *, '32 blocks of 4096/14336, 32/8 heads of 128' as architecture, false as encoder, 2048 as sequence_length,
    '{H100}' as accelerator, 'NVIDIA' as vendor, 'NVIDIA Hopper' as generation, 'lora' as method, false as offload, 0 as experts, 128256 as vocabulary, '' as block_format, false as suspicious, 'published' as trust
from (values ('003-001', 1, 'plain', 5000.0), ('003-002', 8, 'plain', 38000.0), ('{MEASURED}', 1, 'tuned', 10000.0)) as made(result_id, devices, level, tokens_per_s);

-- Three rules and three findings: new audit rules do not change the pages.
delete from audit_rules where rule not in ('utilisation', 'stated-twice', 'link');
delete from findings where not (rule = 'utilisation' and verdict = 'impossible' or rule = 'stated-twice');
insert into findings by name
    select * replace (
        100 as finding, 'suspicious' as verdict, ['{STRANGE}'] as record_ids, '{HOSTILE}' as claim, '{HOSTILE}' as calculation
    ) from findings where rule = 'utilisation';

-- A prediction whose interval holds the result, one that misses it, and one without data.
delete from throughput_errors;
insert into throughput_errors (
    left_out, left_out_group, level, accelerator, accelerator_count, method, tokens_per_s, same, active_parameters,
    result_id, stack, model, predicted_tokens_per_s, predicted_low, predicted_high, error, covered, no_data
) select 'accelerator', '{H100}', 'plain', '{H100}', 1, 'lora', 2560, [], 8000000000, * from (values
    ('003-001', '003', 'llama-3.1-8b', 2816, 2400, 3300, 0.1, true, null),
    ('{MEASURED}', 'measured', 'llama-3.1-8b', 1280, 1000, 1600, -0.5, false, null),
    ('{SLOWER}', 'measured', '{HOSTILE}', null, null, null, null, null, '{HOSTILE}')
);
update throughput_refused set reason = '{HOSTILE}' where result_id = '{OTHER}';
delete from memory_errors where quantity = 'in use';
update memory_errors set quantity = 'reserved', published_bytes = 36e9, predicted_bytes = 37.8e9, error = 0.05;
create or replace view rule_errors as select 'memory' as kind, '{HOSTILE}' as rule, '{HOSTILE}' as formula, '{HOSTILE}' as source, result_id, quantity, method,
    72e9 as predicted, published_bytes as published, 1.0 as error from memory_errors
union all select 'memory', 'Tunemark', 'f', 's', result_id, quantity, method, predicted_bytes, published_bytes, error from memory_errors;
