"""Each threshold of the audit: a value just inside is accepted, and a value just outside is flagged."""

import pytest
from audit_factories import (
    A100,
    BERT,
    FULL,
    H100,
    OFF,
    ON,
    QLORA,
    accuracies,
    advice,
    claim,
    effect,
    evidence,
    formula,
    gb,
    offer,
    pair,
    result,
    several,
    stated,
    statement,
)

from tunemark.collector.audit.rule import all_rules

RULES = {rule.id: rule for rule in all_rules()}
GB = 1e9


def exact(value):
    """A figure that is printed with so many digits that its width does not matter."""
    return claim(value, f"{value:.9f}")


def peaks(first, second, **second_conditions):
    return [
        result(number, claims={"peak_memory_bytes": exact(size * GB)}, **conditions)
        for number, size, conditions in ((1, first, {}), (2, second, second_conditions))
    ]


def roof(factor):
    points = {"attained_flop_per_s": exact(1e13), "hfu": exact(0.1)}
    return evidence(
        result(claims=points),
        statement(
            {
                "kind": "roof",
                "accelerator": "aws-trainium1",
                "peak_flop_per_s": exact(1e14 * factor),
                "bandwidth_bytes_per_s": exact(8.2e11),
                "records": ["900-001"],
            }
        ),
    )


def rule_of_thumb(factor):
    terms = (("bytes", "byte", 1, 18 * GB * factor),)
    return evidence(
        result(claims={"peak_memory_bytes": exact(18 * GB)}),
        formula(*terms, quantity="peak_memory_bytes", unit="byte", records=["900-001"]),
    )


def requirements(factor):
    tables = {"accelerator": None, "accelerator_count": None}
    rows = [
        result(number, section=f"Table {number}", claims={"peak_memory_bytes": exact(size * GB)}, **tables)
        for number, size in ((1, 28), (2, 28 * factor))
    ]
    return evidence(*rows)


def slightly_higher(factor):
    return evidence(*several("train_loss", exact(1.0 * factor), exact(1.0)), pair("train_loss", relation="slightly higher"))


def scaled_memory(factor):
    few, many = peaks(30, 30 * factor, accelerator_count=4)
    return evidence(few, many)


def host_memory(share):
    return evidence(result(labels={"instance": "p4de.24xlarge"}, claims={"device_memory_each_bytes": exact(80 * 2**30 * (1 + share))}))


def printed_power(share):
    device = {"kind": "device", "accelerator": A100}
    return evidence(statement(device, claims={"tdp_w": exact(400 * (1 + share))}))


def short_run(steps=2, factor=1.3):
    figures = ((1, steps, 20.0 * factor), (2, 100, 20.0))
    return evidence(*(result(n, claims={"steps": float(count), "step_time_s": exact(time)}) for n, count, time in figures))


def batch_series(rates):
    return evidence(
        *(result(n, micro_batch=8 * n, claims={"eval_samples_per_s": exact(8 * n * rate)}, **BERT) for n, rate in enumerate(rates, start=1))
    )


def printed_ratio(share):
    return evidence(
        *several("train_time_s", exact(100.0), exact(450.0)),
        pair("train_time_s", change=claim(4.5 * (1 + share), f"{4.5 * (1 + share):.9f}x")),
    )


def relative_column(share):
    rows = ((1, 5_000.0, 1.0), (2, 4_000.0, 0.8 * (1 + share)))
    return evidence(*(result(n, claims={"tokens_per_s": exact(rate), "relative_speed": exact(speed)}) for n, rate, speed in rows))


def rates_and_times(share):
    rows = ((1, 200.0, 100.0), (2, 100.0 * (1 + share), 200.0))
    results = [result(n, claims={"samples_per_s_reported": exact(rate), "train_time_s": exact(time)}, **BERT) for n, rate, time in rows]
    return evidence(*results, pair("samples_per_s_reported", relation="higher"))


def repeated_run(steps):
    first = {"epochs": 3.0, "train_time_s": exact(480.0)}
    second = {"steps": float(steps), "total_steps": 12_000.0, "wall_s": exact(0.16 * steps)}
    return evidence(result(1, claims=first, **BERT), result(2, claims=second, **BERT))


def flops_in_gi(share):
    return evidence(result(claims={"total_flops": claim(1_470_300 * 2**30 * (1 + share), "1470300 GF")}))


def copied_figures(*names):
    values = {"step_time_s": exact(6.4), "peak_memory_bytes": exact(36 * GB)}
    return evidence(
        *(result(n, model=model, claims={name: values[name] for name in names}) for n, model in ((1, "llama-3-8b"), (2, "llama-3.1-8b")))
    )


def shared_digits(rate):
    rows = ((1, {}), (2, QLORA))
    return evidence(*(result(n, claims={"tokens_per_s": claim(rate)}, **method) for n, method in rows))


def same_accuracy(*accelerators):
    return evidence(
        *(result(n, accelerator=key, claims={"accuracy": claim(0.9465, "94.65%")}, **BERT) for n, key in enumerate(accelerators, start=1))
    )


def model_memory(share):
    return evidence(result(claims={"model_memory_bytes": exact(2 * 6_738_415_616 * (1 - share))}))


def slower_lora(factor):
    return evidence(result(1, claims={"tokens_per_s": exact(3_000 / factor)}), result(2, claims={"tokens_per_s": exact(3_000.0)}, **FULL))


def device_price(factor):
    return evidence(offer(2.79 * factor, provider="lambda", instance=None))


def instance_price(factor):
    return evidence(offer(40.96638 * factor, accelerators=8))


def scaled_rate(factor):
    rows = ((1, 1, 1_000.0), (2, 4, 4_000.0 * factor))
    return evidence(*(result(n, accelerator_count=count, claims={"tokens_per_s": exact(rate)}) for n, count, rate in rows))


def scaled_host_memory(factor):
    rows = ((1, 1, 0.05), (2, 4, 0.2 * factor))
    claims = [{"host_memory_peak_share": exact(share), "host_memory_total_bytes": exact(100 * GB)} for _, _, share in rows]
    return evidence(*(result(n, accelerator_count=count, claims=figures) for (n, count, _), figures in zip(rows, claims, strict=True)))


def smaller_device(memory_gib):
    """An RTX 4080 has 16 GiB and an RTX 4090 has 24."""
    advised = {"models": ["llama-2-7b"], "methods": ["qlora"], "says": "possible", "least": True}
    return evidence(
        result(1, accelerator=None, claims={"peak_memory_bytes": exact(memory_gib * 2.0**30)}, **QLORA),
        result(2, accelerator="nvidia-rtx-4080"),
        advice(accelerators=["nvidia-rtx-4090"], **advised),
    )


def advised_size(largest_b):
    """Llama 2 7B has 6.738 x 10^9 parameters, and 110 GB do not fit into 80 GiB."""
    row = result(accelerator=None, accelerator_count=None, claims={"peak_memory_bytes": exact(110 * GB)}, **FULL)
    return evidence(row, advice(parameters_to_b=largest_b, methods=["full"]))


def measured_effect(reduction):
    rows = ((1, 40 * (1 - reduction), ON), (2, 40, OFF))
    results = [result(n, claims={"peak_memory_bytes": exact(size * GB)}, settings=settings) for n, size, settings in rows]
    return evidence(*results, effect(low=0.3, high=0.4, records=["900-001", "900-002"]))


def samples_of_training(share):
    claims = {"samples_per_s_reported": exact(300.0 * (1 + share)), "epochs": 3.0, "train_time_s": exact(160.0)}
    return evidence(result(claims=claims, **BERT))


def profiled_mfu(factor):
    """4,000 tokens/s of the default run are 55.0% of the dense peak by the convention with the most work, as a full run."""
    share = 4_000 * 42.8653e9 / 312e12
    return evidence(result(claims={"mfu": exact(share * factor), "tokens_per_s": exact(4_000.0)}))


def h100_with_memory(gigabytes):
    return evidence(result(accelerator=H100, assumed=("accelerator",), claims={"peak_memory_bytes": exact(gigabytes * 2.0**30)}))


CASES = {
    "roofs agree within a quarter": ("roof", roof, 1.24, 1.26),
    "rules of thumb agree within a quarter": ("formula-values", rule_of_thumb, 1.24, 1.26),
    "tables agree within a quarter": ("memory-tables", requirements, 1.24, 1.26),
    "slightly means less than a quarter": ("words-against-figures", slightly_higher, 1.24, 1.26),
    "memory is higher above 5%": ("lora-memory", lambda factor: evidence(*peaks(60 * factor, 60, **FULL)), 1.045, 1.055),
    "memory per device may grow by 5%, gathered blocks and buffers": ("memory-with-devices", scaled_memory, 1.11, 1.115),
    "GB and GiB and rounding are 9% apart": ("instance-holds", host_memory, 0.085, 0.095),
    "bandwidth and power agree within 5%": ("device-data", printed_power, 0.045, 0.055),
    "a run of three steps is short": ("short-run", short_run, 4, 3),
    "a step of a short run may differ by 15%": ("short-run", lambda factor: short_run(factor=factor), 1.145, 1.155),
    "two batch sizes are no series": ("counter-not-rate", batch_series, (42.0, 42.0), (42.0, 42.0, 42.0)),
    "rates per row agree within 3%": ("counter-not-rate", batch_series, (42.0, 42.0, 43.5), (42.0, 42.0, 43.0)),
    "a ratio may differ by 0.4%": ("printed-change", printed_ratio, 0.0038, 0.0042),
    "a column may differ by 0.6%": ("relative-column", relative_column, 0.0058, 0.0062),
    "a ratio of rates may differ from times by 5%": ("words-against-figures", rates_and_times, -0.045, -0.055),
    "a run of 20 steps can be compared": ("same-run", repeated_run, 19, 20),
    "a figure is in another unit within 1%": ("flop-unit", flops_in_gi, 0.011, 0.009),
    "one equal figure is chance": (
        "copied-rows",
        lambda names: copied_figures(*names),
        ("step_time_s",),
        ("step_time_s", "peak_memory_bytes"),
    ),
    "two equal digits are chance": ("equal-rates", shared_digits, 4_600, 4_650),
    "two equal devices are chance": (
        "equal-quality",
        lambda keys: same_accuracy(*keys),
        (A100, H100),
        (A100, H100, "nvidia-t4"),
    ),
    "model memory agrees within 10%": ("model-memory", model_memory, 0.09, 0.1001),
    "a method is slower above 10%": ("slower-with-less-work", slower_lora, 1.098, 1.102),
    "prices of a device move by a factor of 2": ("price-scope", device_price, 1.95, 2.05),
    "prices of an instance move by 10%": ("price-scope", instance_price, 1.095, 1.105),
    "efficiency may exceed one by a quarter": ("scaling-efficiency", scaled_rate, 1.245, 1.255),
    "host memory may grow twice as fast as processes": ("host-memory-with-devices", scaled_host_memory, 1.95, 2.05),
    "differences are significant from two errors": ("significance", lambda second: accuracies(0.9430, second), 0.9270, 0.9280),
    "a device should have a tenth more memory": ("not-the-least", smaller_device, 14.6, 14.5),
    "a model may exceed an advised size by 2%": ("advice-and-tables", advised_size, 6.60, 6.61),
    "an effect may differ by five points": ("effect", measured_effect, 0.451 - 0.002, 0.451),
    "the last batch may repeat 1% of the rows": ("rate-times-time", samples_of_training, 0.0145, 0.0155),
    "a profile may beat the run by half": ("mfu-and-rate", profiled_mfu, 1.49, 1.51),
    "a device must have 90% of a printed peak": ("device-not-said", h100_with_memory, 89.5, 88.5),
}
"""What holds: rule, evidence by value, a value that is accepted, a value that is flagged."""


@pytest.mark.parametrize("name", CASES)
def test_a_value_inside_a_threshold_is_accepted_and_one_outside_is_flagged(name):
    rule, made, accepted, flagged = CASES[name]
    assert not list(RULES[rule].findings(made(accepted)))
    assert list(RULES[rule].findings(made(flagged)))


def plain_loras(*shares):
    """LoRA runs of plain software by source: shares of the dense peak."""
    return [
        result(number, source=source, claims={"tokens_per_s": exact(share * 312e12 / 28.0428544e9)})
        for source, of_source in shares
        for number, share in enumerate(of_source, start=1)
    ]


OTHERS = (("901", [0.44] * 7), ("902", [0.2] * 5 + [0.43, 0.44]), ("903", [0.1] * 4), ("904", [0.3] * 4))


@pytest.mark.parametrize(
    ("share", "others", "flagged"),
    [
        (0.45, OTHERS, False),
        (0.50, OTHERS, True),
        (0.70, OTHERS[:2], False),
        (0.85, OTHERS[:2], True),
        (0.70, (*OTHERS[:3], ("904", [0.99] * 4)), True),
    ],
    ids=[
        "as much as two sources reach",
        "more than a second source reaches",
        "too few sources: below the limit of practice",
        "too few sources: above the limit of practice",
        "one source alone raises no limit",
    ],
)
def test_a_rate_is_compared_with_what_two_other_sources_reach(share, others, flagged):
    (judged,) = plain_loras(("900", [share]))
    findings = list(RULES["utilisation"].findings(evidence(judged, *plain_loras(*others))))
    assert ("900-001" in {finding.records[0] for finding in findings}) == flagged


def test_results_of_the_same_source_set_no_limit():
    rows = plain_loras(("900", [0.75] * 20), *OTHERS)
    assert len(list(RULES["utilisation"].findings(evidence(*rows)))) >= 20


def test_a_series_of_lengths_measures_speed_and_pretraining_has_no_context():
    series = [result(number, sequence_length=length) for number, length in ((1, 4_096), (2, 8_192), (3, 16_384))]
    assert {finding.verdict.value for finding in RULES["context-length"].findings(evidence(*series))} == {"ambiguous"}
    assert {finding.verdict.value for finding in RULES["context-length"].findings(evidence(series[1]))} == {"suspicious"}
    built = result(1, sequence_length=8_192, settings={"task": "pre-training steps"})
    assert not list(RULES["context-length"].findings(evidence(built)))


def test_devices_are_compared_only_with_the_same_settings_and_no_larger_steps():
    rates = ((1, 1, 1_000.0, {}), (2, 4, 6_000.0, {"settings": {"compile": True}}), (3, 4, 6_000.0, {"global_batch": 64}))
    few, compiled, larger = (
        result(n, accelerator_count=count, claims={"tokens_per_s": exact(rate)}, **{"global_batch": 4, **more})
        for n, count, rate, more in rates
    )
    assert not list(RULES["scaling-efficiency"].findings(evidence(few, compiled)))
    assert not list(RULES["scaling-efficiency"].findings(evidence(few, larger)))


def test_a_claimed_utilisation_far_below_the_rate_is_flagged():
    claims = {"mfu": exact(0.1), "tokens_per_s": exact(4_000.0)}
    (finding,) = RULES["mfu-and-rate"].findings(evidence(result(claims=claims)))
    assert "times more than the claimed" in finding.calculation


@pytest.mark.parametrize(
    ("printed", "flagged"), [("A100", True), ("A100-SXM4-80GB", False), ("A100 40GB", False), ("DGX A100 80GB", False)]
)
def test_a_printed_name_must_tell_variants_apart(printed, flagged):
    row = result(claims={"tokens_per_s": 3_000.0}, labels={"accelerator": printed})
    assert bool(list(RULES["device-not-said"].findings(evidence(row)))) == flagged


def test_a_document_that_prints_its_utilisation_is_compared_with_the_limit_of_practice():
    (plain,) = plain_loras(("900", [0.7]))
    printed = plain.model_copy(update={"claims": {**plain.claims, "hfu": exact(0.69)}})
    for row, flagged in ((plain, True), (printed, False)):
        findings = RULES["utilisation"].findings(evidence(row, *plain_loras(*OTHERS)))
        assert ("900-001" in {finding.records[0] for finding in findings}) == flagged


def rates(*values, settings=ON, **conditions):
    return [result(n, claims={"tokens_per_s": exact(rate)}, settings=settings, **conditions) for n, rate in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("values", "flagged"),
    [
        ((3_000.0, 3_000.0, 3_000.0, 1_010.0), set()),
        ((3_000.0, 3_000.0, 3_000.0, 990.0), {"900-004"}),
        ((3_000.0, 3_000.0, 990.0), set()),
        ((4_000.0, 3_900.0, 4_100.0, 900.0, 950.0, 920.0), set()),
        ((4_000.0, 3_900.0, 4_100.0, 4_000.0, 3_950.0, 900.0, 950.0), {"900-006", "900-007"}),
    ],
    ids=["within three times", "beyond three times", "two siblings are too few", "half of the rows are company", "two of seven are not"],
)
def test_a_rate_is_compared_with_its_siblings(values, flagged):
    assert {finding.records[0] for finding in RULES["far-from-siblings"].findings(evidence(*rates(*values)))} == flagged


def test_siblings_have_the_same_device_and_similar_rows_but_other_settings_only_double_the_limit():
    slow = result(9, claims={"tokens_per_s": exact(700.0)}, settings=ON)
    flagged = RULES["far-from-siblings"].findings
    assert list(flagged(evidence(*rates(3_000.0, 3_000.0, 3_000.0), slow)))
    assert not list(flagged(evidence(*rates(3_000.0, 3_000.0, 3_000.0, settings=OFF), slow)))
    assert not list(flagged(evidence(*rates(3_000.0, 3_000.0, 3_000.0, accelerator=H100), slow)))
    assert not list(flagged(evidence(*rates(3_000.0, 3_000.0, 3_000.0, sequence_length=16_384), slow)))


def test_a_rate_without_a_known_peak_has_siblings_too():
    rows = rates(3_000.0, 3_000.0, 3_000.0, 300.0, accelerator=None)
    (finding,) = RULES["far-from-siblings"].findings(evidence(*rows))
    assert finding.records[0] == "900-004"


def test_trainers_count_rows_that_they_leave_out():
    """2,000 rows in 62 steps of 32: 16 rows are left out, and the rates count them."""
    claims = {"samples_per_s": exact(20.0), "steps_per_s": exact(0.62), "train_time_s": exact(100.0), "epochs": claim(0.98, "0.98")}
    row = result(claims=claims, micro_batch=32, model="bert-base-uncased", method="full", dataset="a set (2,000 rows)")
    assert not list(RULES["rows-of-a-step"].findings(evidence(row)))
    assert not list(RULES["rate-times-time"].findings(evidence(row)))


def test_a_price_for_one_device_does_not_pay_for_a_run_on_eight():
    row = result(accelerator_count=8)
    (finding,) = RULES["bill-for-all-devices"].findings(evidence(row, offer(5.12, used_for=["900-001"])))
    assert finding.records == ("900-S01", "900-001")
    assert not list(RULES["bill-for-all-devices"].findings(evidence(row, offer(40.97, accelerators=8, used_for=["900-001"]))))


def test_memory_that_the_driver_reports_contains_communication():
    used = claim(79.2 * 2**30, "79.2 GiB")
    row = result(accelerator_count=8, claims={"peak_memory_bytes": used, "device_memory_bytes": used})
    assert not list(RULES["communication-memory"].findings(evidence(row)))


def test_strategies_and_stated_losses_change_memory():
    ddp, fsdp = (
        result(n, claims={"peak_memory_bytes": gb(size)}, accelerator=key, settings={"strategy": name})
        for n, size, key, name in ((1, 60, A100, "ddp"), (2, 30, H100, "fsdp"))
    )
    assert not list(RULES["memory-across-devices"].findings(evidence(ddp, fsdp)))


def test_four_bit_products_have_no_known_peak():
    assert not list(RULES["utilisation"].findings(evidence(result(claims={"tokens_per_s": 14_000.0}, precision="NVFP4"))))


@pytest.mark.parametrize(("factor", "verdict"), [(1.95, "suspicious"), (2.05, "inconsistent")])
def test_rates_with_an_efficiency_above_two_are_inconsistent(factor, verdict):
    (finding,) = RULES["scaling-efficiency"].findings(scaled_rate(factor))
    assert finding.verdict.value == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.095, "suspicious"), (0.105, "inconsistent")])
def test_model_memory_on_two_devices_is_inconsistent_above_ten_percent(share, verdict):
    sizes = ((1, A100, 13.0), (2, H100, 13.0 * (1 + share)))
    rows = (result(n, accelerator=key, claims={"model_memory_bytes": exact(size * GB)}) for n, key, size in sizes)
    (finding,) = RULES["model-memory-across-devices"].findings(evidence(*rows))
    assert finding.verdict.value == verdict


def test_a_long_list_of_places_is_cut_after_five_lines():
    rows = [result(number, gradient_accumulation=32) for number in range(1, 9)]
    place = stated(1, 1).model_copy(
        update={"assertion": stated(1, 1).assertion.model_copy(update={"records": tuple(row.id for row in rows)})}
    )
    (finding,) = RULES["stated-twice"].findings(evidence(*rows, place))
    assert finding.calculation.count("; ") == 5
    assert finding.calculation.endswith("and 4 more like these")


@pytest.mark.parametrize(("first", "second", "flagged"), [("gemma-7b", "llama-2-13b", True), ("llama-3-8b", "llama-2-13b", False)])
def test_sources_are_compared_on_models_of_similar_size(first, second, flagged):
    rows = [
        result(1, source=source, model=model, claims={"tokens_per_s": exact(rate)})
        for source, model, rate in (("900", first, 1_800.0), ("901", second, 400.0))
    ]
    assert bool(list(RULES["cross-source"].findings(evidence(*rows)))) == flagged
