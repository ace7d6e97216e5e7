"""The recommendation: limits by the pessimistic end, order by the middle, and never an option without evidence."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunemark.schema import recommendation_words as words
from tunemark.schema.facts.cards import AcceleratorCard
from tunemark.schema.formats import TIMES
from tunemark.schema.recommendation import NODES, OBJECTIVES, OWN, Answer, Offer, Question, Rate, Without, offers_of, places_of, recommend


def rate(accelerator: str, tokens_per_s: float | None, devices: int = 1, **other: object) -> Rate:
    low, high = (None, None) if tokens_per_s is None else (tokens_per_s * 0.8, tokens_per_s * 1.25)
    usual = {"method": "lora", "sequence_length": 2048, "software": "plain", "memory": "fits", "needed_bytes": 2**34, "memory_bytes": 2**35}
    usual |= {"evidence": "none" if tokens_per_s is None else "predicted", "tokens_per_s_low": low, "tokens_per_s_high": high}
    return Rate(accelerator=accelerator, devices=devices, tokens_per_s=tokens_per_s, **usual | other)  # type: ignore[arg-type]


def offer(accelerator: str, usd: float, devices: int = 1, provider: str = "cloud", **other: object) -> Offer:
    name = {"provider_name": provider.title()}
    return Offer(accelerator, accelerator.upper(), devices, provider, f"{devices}x-{accelerator}", "on_demand", usd, **name | other)  # type: ignore[arg-type]


RATES = [rate("slow", 1_000.0), rate("fast", 8_000.0), rate("large", 60_000.0, 8), rate("new", None, reason="no accepted result on it")]
OFFERS = [offer("slow", 1.0), offer("fast", 4.0), offer("large", 40.0, 8), offer("new", 0.1)]
QUESTION = Question("lora", 36_000_000, 2048, startup_s=0)


def test_time_is_tokens_by_rate_and_cost_is_hours_by_the_price_of_whole_instances() -> None:
    best = recommend(QUESTION, RATES, OFFERS).best
    assert (best.rate.accelerator, best.seconds, best.usd) == ("fast", 4_500.0, 5.0)
    assert (best.seconds_low, best.seconds_high) == pytest.approx((3_600.0, 5_625.0))
    assert (best.usd_low, best.usd_high) == pytest.approx((4.0, 6.25))


def test_each_objective_has_its_own_first_option() -> None:
    first = {name: recommend(replace(QUESTION, objective=name), RATES, OFFERS).ranked[0].rate.accelerator for name in OBJECTIVES}
    assert first == {"cheapest": "fast", "fastest": "large", "value": "large"}


def test_an_option_without_a_rate_is_never_ranked_and_says_why() -> None:
    answer = recommend(QUESTION, RATES, OFFERS)
    assert [one.accelerator for one in answer.no_data] == ["new"]
    assert answer.no_data[0].reason == "no accepted result on it"
    assert words.unknown(answer) == "No answer for NEW (no accepted result on it)."


def test_a_price_of_another_kind_is_shown_for_what_is_named_and_not_ranked_beside_those_asked_for() -> None:
    offers = [*OFFERS, *(replace(offer(name, 1.0), kind="spot") for name in ("rare", "fast"))]
    answer = recommend(replace(QUESTION, accelerators=("fast", "rare")), [*RATES, rate("rare", 1_000.0)], offers)
    assert [(option.offer.accelerator, option.offer.kind) for option in answer.ranked] == [("fast", "on_demand")]
    assert [(option.offer.accelerator, option.limits) for option in answer.may_exceed] == [("rare", ("price",))]


def test_results_are_no_reason_to_take_another_method_on_the_same_hardware() -> None:
    lora, qlora = (
        rate("fast", 1_000.0),
        replace(rate("fast", 990.0), method="qlora", evidence="near", results=1, result_ids=("r",), trust="published"),
    )
    answer = recommend(replace(QUESTION, method="any"), [replace(lora, evidence="predicted"), qlora], OFFERS)
    assert answer.ranked[0].rate.method == "lora"


def test_where_no_provider_has_the_kind_of_price_asked_for_another_one_is_shown_and_named() -> None:
    question = replace(QUESTION, accelerators=("rare",))
    answer = recommend(question, [rate("rare", 8_000.0)], [*OFFERS, replace(offer("rare", 1.0), kind="marketplace")])
    assert words.place(answer.best) == "1x-rare at Cloud, marketplace"
    assert "another one is shown. Prices of a marketplace are those" in words.startup(question, answer)


def test_an_answer_says_its_speed_and_what_a_million_tokens_cost_without_start_up() -> None:
    best = recommend(replace(QUESTION, startup_s=600.0), RATES, OFFERS).best
    assert words.speed(best) == "Speed: 8,000 tokens/s, $0.139 per 1M tokens, without start-up."
    # The certainty is that of the speed, however long the start-up.
    badges = {words.badge(best), words.badge(recommend(QUESTION, RATES, OFFERS).ranked[0])}
    assert badges == {("predicted", "predicted, within a factor of 1.2")}


def test_evidence_names_the_speed_of_its_own_results_and_hardware_without_any() -> None:
    own = {"evidence": "direct", "results": 2, "measured_low": 5_000.0, "measured_high": 6_100.0}
    near, never = (recommend(QUESTION, [rate("fast", 8_000.0, **more)], OFFERS).ranked[0] for more in (own, {"seen": False}))
    assert words.evidence(near).endswith("and number of devices: 5,000 to 6,100 tokens/s with plans and software of their own.")
    assert words.evidence(never) == "Predicted: no such model has an accepted result on this accelerator with such software."


def test_only_limits_that_are_likely_exceeded_are_said_to_be() -> None:
    question = replace(QUESTION, deadline_s=4_600.0, budget_usd=4.9)
    said = words.headline(question, recommend(question, RATES, OFFERS))
    assert said.startswith("No option meets all limits. The closest, FAST ")
    assert "), probably exceeds the budget and may exceed the deadline:" in said


def test_a_budget_is_kept_by_the_upper_end_of_the_interval() -> None:
    certain, likely, over = (recommend(replace(QUESTION, budget_usd=usd), RATES, OFFERS) for usd in (6.26, 6.24, 4.9))
    assert [option.rate.accelerator for option in certain.ranked] == ["fast"]
    assert [option.rate.accelerator for option in likely.may_exceed] == ["fast", "large"][:1]
    assert likely.ranked == ()
    assert over.exceeding[0].exceeds == ("budget",)


def test_what_does_not_fit_is_never_ranked_and_tight_memory_stands_apart() -> None:
    rates = [rate("slow", None, memory="no", reason="does not fit: 2 GiB short"), rate("fast", 8_000.0, memory="unsure"), *RATES[2:]]
    answer = recommend(QUESTION, rates, OFFERS)
    assert [one.accelerator for one in answer.too_large] == ["slow"]
    assert [option.limits for option in answer.may_exceed] == [("memory",)]
    assert [option.rate.accelerator for option in answer.ranked] == ["large"]


@pytest.mark.parametrize(("trust", "kept"), [("predicted", ["fast", "slow"]), ("published", ["slow"]), ("measured", [])])
def test_the_trust_wanted_decides_which_rates_count(trust: str, kept: list[str]) -> None:
    rates = [rate("slow", 1_000.0, evidence="direct", trust="published", results=2, result_ids=("a", "b")), RATES[1]]
    answer = recommend(replace(QUESTION, trust=trust), rates, OFFERS[:2])  # type: ignore[arg-type]
    assert [option.rate.accelerator for option in answer.ranked] == kept
    assert len(answer.no_data) == 2 - len(kept)


def test_the_best_option_with_results_is_named_beside_a_prediction_that_is_cheaper() -> None:
    rates = [rate("slow", 1_000.0, evidence="direct", trust="published", results=1, result_ids=("a",)), RATES[1]]
    answer = recommend(QUESTION, rates, OFFERS[:2])
    assert answer.picks["proven"] == 1
    assert any(line.startswith("Best with results: SLOW \N{MULTIPLICATION SIGN} 1") for line in words.alternatives(QUESTION, answer))


def test_a_faster_option_at_about_the_same_cost_is_first_unless_it_costs_more_at_the_rates_of_its_results() -> None:
    def first(results: float) -> str:
        direct = {"evidence": "direct", "own_spread": 1.25, "results": 1}
        ran = [
            rate(name, speed, measured_low=low, measured_high=low, **direct) for name, speed, low in (("a", 1e3, 8e2), ("b", 2e3, results))
        ]
        return recommend(QUESTION, ran, [offer("a", 1.0), offer("b", 2.1)]).best.rate.accelerator

    assert (first(1.6e3), first(1.2e3)) == ("b", "a")


def test_a_hair_of_time_does_not_outweigh_cost() -> None:
    rates = [rate(name, speed, evidence="direct", own_spread=1.25) for name, speed in (("a", 1_000.0), ("b", 1_001.0))]
    assert recommend(QUESTION, rates, [offer("a", 1.0), offer("b", 1.05)]).best.rate.accelerator == "a"


@pytest.mark.parametrize(("doubt", "why"), [({"memory": "probably"}, 2), ({"seen": False}, 3), ({}, 4)])
@pytest.mark.parametrize("usd", [1.1, 1.5])
def test_a_doubtful_option_is_first_only_if_it_is_clearly_cheaper_and_has_results(usd: float, doubt: dict[str, object], why: int) -> None:
    first = "doubtful" if usd > 1.1 and why != 3 else "known"
    rates = [rate("doubtful", 1_000.0, own_spread=1.25, **doubt), rate("known", 1_000.0, own_spread=1.25, evidence="near")]
    answer = recommend(QUESTION, rates, [offer("doubtful", 1.0), offer("known", usd)])
    assert answer.best.rate.accelerator == first
    cheapest = [
        line
        for line in words.alternatives(QUESTION, answer)
        if line.startswith("Cheapest, best value (time and cost weighed alike): DOUBTFUL")
    ]
    why_later = words.LATER[why].format("no result")
    assert [line.endswith(f"; it comes later because {why_later}.") for line in cheapest] == [True] * (first == "known")


def test_within_error_a_job_of_a_week_comes_after_one_of_a_day() -> None:
    rates = [rate("slow", 60.0, own_spread=1.25), rate("fast", 600.0, own_spread=1.25)]
    answer = recommend(QUESTION, rates, [offer("slow", 0.1), offer("fast", 1.2)])
    assert answer.best.rate.accelerator == "fast"
    assert f"; it comes later because {words.LATER[0]}." in words.alternatives(QUESTION, answer)[0]


@pytest.mark.parametrize(("times", "first"), [(1, "new"), (4, "known")])
def test_an_accelerator_without_results_is_first_if_it_is_surely_cheaper_and_the_best_value(times: int, first: str) -> None:
    rates = [rate("new", 1_000.0, seen=False), rate("known", times * 1_000.0, evidence="near")]
    answer = recommend(QUESTION, rates, [offer("new", 1.0), offer("known", 1.5 * times)])
    assert answer.best.rate.accelerator == first


def test_several_instances_are_not_first_if_a_single_one_is_within_error() -> None:
    rates = [rate("a", 1_000.0, own_spread=1.25), rate("a", 2_100.0, 2, own_spread=1.25)]
    answer = recommend(QUESTION, rates, [replace(offer("a", 1.0), fabric=True)])
    assert [option.instances for option in answer.ranked] == [1, 2]
    assert answer.picks["cheapest"] == 1


def test_several_instances_are_rented_only_where_a_fabric_joins_them() -> None:
    rates = [rate("large", 60_000.0 * nodes, 8 * nodes) for nodes in NODES]
    alone, joined = (recommend(QUESTION, rates, [offer("large", 40.0, 8, fabric=fabric)]) for fabric in (False, True))
    assert [option.instances for option in alone.ranked] == [1]
    short = recommend(replace(QUESTION, tokens=1e6), rates, [offer("large", 40.0, 8, fabric=True)])
    assert [option.instances for option in short.ranked] == [1]
    assert sorted(option.instances for option in joined.ranked) == list(NODES)
    limited = recommend(replace(QUESTION, most_devices=16), rates, [offer("large", 40.0, 8, fabric=True)])
    assert sorted(option.devices for option in limited.ranked) == [8, 16]


def test_options_whose_intervals_overlap_without_what_they_share_have_a_range_of_ranks() -> None:
    rates = [rate(name, middle, own_spread=1.25) for name, middle in (("slow", 1_000.0), ("fast", 1_100.0), ("large", 100.0))]
    offers = [*(offer(name, 1.0) for name in ("slow", "fast", "large")), offer("slow", 1.01)]
    ranks = [(option.rank_low, option.rank_high) for option in recommend(QUESTION, rates, offers).ranked]
    assert ranks == [(1, 3), (1, 2), (2, 3), (4, 4)], "a dearer offer of the same plan comes after the cheaper one"


def test_at_most_two_of_the_first_five_have_the_same_accelerator() -> None:
    rates = [rate("fast", 8_000.0), *(rate(f"other{number}", 500.0) for number in range(4))]
    offers = [offer("fast", 1.0 + number / 10, provider=f"cloud{number}") for number in range(5)]
    ranked = recommend(QUESTION, rates, [*offers, *(offer(f"other{number}", 1.0) for number in range(4))]).ranked
    assert [option.rate.accelerator for option in ranked[:5]].count("fast") == 2
    assert len(ranked) == 9


def test_a_price_that_is_old_is_shown_with_its_day_and_age() -> None:
    old, new = (recommend(QUESTION, RATES, [offer("fast", 4.0, effective_on=day)]) for day in ("2026-01-01, 90 days old", "2026-01-01"))
    assert "1x-fast at Cloud, $4.00/h on 2026-01-01, 90 days old)" in words.headline(QUESTION, old)
    assert "1x-fast at Cloud, $4.00/h)" in words.headline(QUESTION, new)


@pytest.mark.parametrize(("usd_per_hour", "price", "cost"), [(0.1, "$0.100/h", "about $1.00"), (0.0, "free", "at no cost.")])
def test_own_hardware_stands_beside_rented_hardware(usd_per_hour: float, price: str, cost: str) -> None:
    own = Offer("slow", "SLOW", 1, OWN, "SLOW", "owned", usd_per_hour)
    answer = recommend(replace(QUESTION, own=(own,)), RATES, OFFERS)
    assert answer.best.offer is own
    assert f"Use SLOW {TIMES} 1 (own hardware, {price}): about 10 h (8 h 00 min to 12 h), {cost}" in words.headline(QUESTION, answer)


def test_rates_are_needed_for_the_hardware_of_the_offers_that_the_question_allows() -> None:
    own, fabric = offer("slow", 0.0, 3, provider=OWN), replace(offer("large", 20.0, 8), fabric=True)
    question = replace(QUESTION, own=(own,), accelerators=("large",), most_devices=16)
    assert places_of(question, [fabric, offer("fast", 4.0)]) == [("large", 8), ("large", 16), ("slow", 3)]


def test_missing_data_names_the_software_that_has_rates() -> None:
    rates = [*RATES, rate("new", 900.0, software="vendor"), rate("new", 900.0, software="tuned"), rate("new", None, software="other")]
    reason = "no accepted result on it; there are rates with tuned or vendor software"
    assert words.unknown(recommend(QUESTION, rates, OFFERS)) == f"No answer for NEW ({reason})."
    strict = replace(QUESTION, trust="measured")
    assert "software" not in words.unknown(recommend(strict, rates, OFFERS))


def test_missing_data_is_listed_by_reason() -> None:
    missing = [Without(f"a{number}", f"A{number}", "lora", 1, "one reason") for number in range(8)]
    missing += [Without(f"b{number}", f"B{number}", "lora", 1, f"reason {number}") for number in range(7)]
    assert words.unknown(Answer(no_data=tuple(missing))) == (
        "No answer for A0, A1, A2, A3, A4, A5 and 2 more (one reason); B0 (reason 0); B1 (reason 1); "
        "B2 (reason 2); B3 (reason 3); B4 (reason 4); B5, B6 (for other reasons: name one to see its own)."
    )


def test_what_does_not_fit_is_named_with_its_largest_number_also_if_more_devices_fit() -> None:
    def too_small(accelerator: str, count: int, lacks: str) -> Rate:
        return rate(accelerator, None, count, evidence="none", memory="no", reason=f"does not fit: each device lacks {lacks}")

    rates = [too_small("big", 1, "9.00 GiB"), too_small("big", 2, "4.00 GiB"), rate("big", 1_000, 4), too_small("small", 1, "12.0 GiB")]
    answer = recommend(QUESTION, rates, [offer("big", 1.0, count) for count in (1, 2, 4)] + [offer("small", 1.0)])
    assert [option.rate.devices for option in answer.ranked] == [4]
    lacking = f"Does not fit: BIG {TIMES} 2 (each device lacks 4.00 GiB), SMALL {TIMES} 1 (each device lacks 12.0 GiB)."
    assert words.not_fitting(QUESTION, answer) == lacking


def test_the_energy_of_an_option_is_that_of_its_accelerators_at_their_power_limit() -> None:
    question = replace(QUESTION, tokens=3_600_000, startup_s=0)
    two = recommend(question, [rate("a", 1_000, 2)], [offer("a", 1.0, 2, watts=500.0)]).ranked[0]
    assert two.energy_kwh == pytest.approx(1.0)
    shown = "Energy: 1.00 kWh in all, at most 1.25 kWh, and 0.278 kWh for 1M tokens of training, at the power limit of 2 accelerators of 500 W each"
    assert words.energy(two) == f"{shown}; host and cooling not included."
    unknown = recommend(question, [rate("a", 1_000)], [offer("a", 1.0)]).ranked[0]
    assert words.energy(unknown) == "Energy: the power limit of A is not known."


def test_of_each_instance_the_cheapest_region_is_offered() -> None:
    card = AcceleratorCard.model_construct(key="fast", name="FAST", vendor="ACME", unit="device", tdp_w=None)
    row = {"provider": "cloud", "instance": "a", "kind": "on_demand", "accelerator": "fast", "accelerator_count": 1.0, "usd_per_hour": 3.0}
    row |= {"region": "west", "dated": "2026-01-01", "fabric": None, "provider_rank": 1}
    rows = [
        row,
        row | {"region": "east", "usd_per_hour": 2.0},
        row | {"instance": "half", "accelerator_count": 0.5},
        row | {"instance": "b", "provider_rank": None},
    ]
    assert [(one.instance, one.region, one.usd_per_hour) for one in offers_of(rows, {"fast": card})] == [("a", "east", 2.0)]


limits = st.none() | st.floats(0.01, 1e6)


@given(tokens=st.floats(1e3, 1e12), deadline=limits, budget=limits, objective=st.sampled_from(OBJECTIVES), startup=st.floats(0, 3_600))
def test_no_ranked_option_exceeds_a_limit_and_more_data_never_costs_less(tokens, deadline, budget, objective, startup) -> None:  # type: ignore[no-untyped-def]
    question = Question("lora", tokens, 2048, objective=objective, deadline_s=deadline, budget_usd=budget, startup_s=startup)
    answer = recommend(question, RATES, OFFERS)
    for option in answer.ranked:
        assert option.seconds_low <= option.seconds <= option.seconds_high <= (deadline or math.inf)
        assert option.usd_low <= option.usd <= option.usd_high <= (budget or math.inf)
    every = (*answer.ranked, *answer.may_exceed, *answer.exceeding)
    assert len(every) == 3
    double = recommend(replace(question, tokens=2 * tokens, deadline_s=None, budget_usd=None), RATES, OFFERS)
    costs = {option.rate.accelerator: option.usd for option in double.ranked}
    assert all(costs[option.rate.accelerator] >= option.usd for option in every)


@given(price=st.floats(0.01, 100))
def test_a_cheaper_price_never_ranks_lower(price: float) -> None:
    def place(usd: float) -> int:
        ranked = recommend(QUESTION, RATES, [offer("slow", usd), *OFFERS[1:]]).ranked
        return next(number for number, option in enumerate(ranked) if option.rate.accelerator == "slow")

    assert place(price / 2) <= place(price)


def test_at_equal_cost_and_time_the_method_that_needs_less_memory_comes_first() -> None:
    full = rate("slow", 1_000.0, method="full", needed_bytes=2**35)
    answer = recommend(replace(QUESTION, method="any"), [full, rate("slow", 1_000.0)], OFFERS)
    assert [option.rate.method for option in answer.ranked] == ["lora", "full"]


def test_no_data_names_what_has_rates() -> None:
    rates = [
        *(rate("slow", None, software=level, reason="none") for level in ("plain", "vendor")),
        rate("slow", 900.0, method="qlora"),
        rate("slow", 900.0, software="tuned", trust="published", evidence="direct"),
        rate("slow", 900.0, software="tuned", method="full"),
        rate("elsewhere", 900.0, method="full"),
    ]
    offers = [offer("slow", 1.0)]
    assert words.headline(QUESTION, recommend(QUESTION, rates, offers)).endswith("for QLoRA, or with tuned software (`--software`).")
    vendor = replace(QUESTION, software="vendor")
    assert words.headline(vendor, recommend(vendor, rates, offers)).endswith("There are predictions with tuned software (`--software`).")
    strict = replace(QUESTION, trust="published")
    assert words.headline(strict, recommend(strict, rates, offers)).endswith("There are predictions with tuned software (`--software`).")


def test_an_own_machine_that_has_no_rate_says_why() -> None:
    own = replace(offer("large", 0.0, 4, provider=OWN), kind="owned")
    question = replace(QUESTION, own=(own,))
    without = [rate("large", None, 4, reason="no accepted result")]
    assert words.own_hardware(question, recommend(question, without, [])) == [
        f"Your LARGE {TIMES} 4: it fits (16.0 GiB of 32.0 GiB), and its speed is not known: no accepted result."
    ]
    few = replace(question, most_devices=2)
    assert words.own_hardware(few, recommend(few, without, [])) == [f"Your LARGE {TIMES} 4: the question allows at most 2 devices."]
    vendor = replace(question, software="vendor")
    assert words.own_hardware(vendor, recommend(vendor, without, [])) == [
        f"Your LARGE {TIMES} 4: there is no result with vendor software on it."
    ]


def test_a_machine_of_ones_own_is_given_its_plan_unless_it_is_the_answer() -> None:
    own = replace(offer("slow", 5.0, provider=OWN), kind="owned")
    question = replace(QUESTION, own=(own,))
    [line] = words.own_hardware(question, recommend(question, RATES, OFFERS))
    assert line.startswith(f"Your SLOW {TIMES} 1: place 3 of 4") or ": place " in line
    assert "Memory fits: 16.0 GiB" in line
    assert "micro-batch of" in line
    assert words.own_hardware(question, recommend(question, RATES, [])) == []


def test_methods_that_fit_are_named_where_another_does_not() -> None:
    own = replace(offer("slow", 0.5, provider=OWN), kind="owned")
    question = replace(QUESTION, method="full", own=(own,))
    large = replace(rate("slow", None, memory="no", reason="does not fit: each device lacks 8.00 GiB"), method="full")
    rates = [large, replace(rate("slow", 900.0), method="lora"), replace(rate("slow", None, memory="no"), method="qlora")]
    answer = recommend(question, rates, [])
    assert words.own_hardware(question, answer) == [f"Your SLOW {TIMES} 1: does not fit: each device lacks 8.00 GiB; LoRA fits."]
