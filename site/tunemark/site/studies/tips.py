"""Optimisation tips that documents print, each checked against all pairs of results that differ in this setting alone."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tunemark.schema.formats import counted
from tunemark.schema.statistics.intervals import one_more_run
from tunemark.site import tables, wording
from tunemark.site.ablation import Pair, Pool, Switch, accumulated, by_length, doubled, switched
from tunemark.site.charts import Chart
from tunemark.site.page import document_path, statement_path
from tunemark.site.pages.studies import (
    Evidence,
    Sentence,
    Study,
    ambiguous_caveat,
    document_means,
    listed,
    mean_over_documents,
    ranges,
    ratio,
    result_link,
    sentence,
    written,
)
from tunemark.site.studies.bert_tuning import SOURCE as BERT
from tunemark.site.studies.bert_tuning import evaluated_rows, padded, rounded
from tunemark.site.studies.methods import method_pairs
from tunemark.site.tables import Cell, Column, Row, Table

ORDER = 8
ENOUGH = 3
"""Documents that an interval for one more document needs."""
CONSISTENT, OWN_RESULTS, CONTRADICTED, UNDECIDED, EFFECT_ONLY, NO_DATA = (
    "consistent",
    "own results only",
    "contradicted",
    "undecided",
    "effect only",
    "no data",
)
VERDICTS = {
    CONTRADICTED: "the claim lies outside the range of all pairs",
    CONSISTENT: "the claim overlaps the range of the pairs, and all pairs show an effect in the same direction",
    OWN_RESULTS: "the same, but all pairs are from the document that prints the claim",
    UNDECIDED: "the pairs show effects in both directions, are too few, or show no significant effect",
    EFFECT_ONLY: "the effect of the tip is measured, but there is no claimed figure to compare",
    NO_DATA: "the tip is unmeasured, since no two results differ in this setting alone",
}
"""Verdict -> its meaning, in the order of the tables."""
SPEED, SAVED, GROWTH = "speed", "memory", "exponent"
CLAIM = re.compile(r"([0-9.]+)(?:-([0-9.]+))?(x|%) (speedup|throughput increase|slower|memory savings)(?! for )")
"""A printed effect on the speed or on the memory of a whole training, such as `30-40% memory savings`."""
EXPONENTS = {"quadratic": 2.0, "linear": 1.0}
"""Printed growth of memory -> exponent p of length^p."""


# Tips ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observation:
    """A comparison of results that gives no ratio of speed or memory."""

    verdict: str
    text: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Tip:
    """A tip, and the pairs of results that show its effect. A tip without switches, `find` and `observe` has no data."""

    advice: str
    statement: str | None
    """The statement that prints it."""
    switches: tuple[Switch, ...] = ()
    find: Callable[[Pool], Iterator[Pair]] | None = None
    """Finds pairs that no switch describes."""
    observe: Callable[[Evidence], Observation | None] | None = None
    """Compares results that have no ratio of speed or memory."""
    remark: str = ""
    """Describes the effect, unless it is the effect of switching a setting on."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect on one figure over all documents."""

    value: float
    low: float
    high: float
    """Lowest and highest pair."""
    documents: int
    pairs: int
    one_more: tuple[float, float] | None
    """95% interval for one more document; None with too few."""

    def origin(self, name: str) -> str:
        """Return the number of pairs, or of sweeps for an exponent, and of documents."""
        pairs = self.pairs
        unit = counted(pairs, "pair") if name != GROWTH else f"{pairs} sweep{'s' * (pairs != 1)} of three lengths"
        return f"{unit} in {counted(self.documents, 'document')}"

    def details(self, name: str) -> str:
        """Return the range of the pairs, their number and the interval."""
        show = _show(name)
        if self.pairs == 1:
            return self.origin(name)
        interval = f"; 95% interval for one more document {show(self.one_more[0])} to {show(self.one_more[1])}" if self.one_more else ""
        return f"{show(self.low)} to {show(self.high)}, {self.origin(name)}{interval}"


@dataclass(frozen=True, slots=True)
class Checked:
    """A tip with its pairs, its effects and the verdict on its claim."""

    tip: Tip
    printed: str
    pairs: tuple[Pair, ...]
    """The pairs from which the effects are computed."""
    others: tuple[Pair, ...]
    """Pairs on a CPU, if there are pairs on accelerators."""
    effects: Mapping[str, Effect]
    claims: Mapping[str, tuple[float, float]]
    observation: Observation | None

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict on each claimed figure that was measured."""
        made = {name: _verdict(name, self.effects[name], *claim) for name, claim in self.claims.items() if name in self.effects}
        document = (self.tip.statement or "").partition("-")[0]
        own = all(pair.source == document for pair in self.pairs)
        return {name: OWN_RESULTS if own and verdict == CONSISTENT else verdict for name, verdict in made.items()}

    @property
    def verdict(self) -> str:
        """The verdict on the tip: that of its worst claim."""
        if self.observation:
            return self.observation.verdict
        if not self.effects:
            return NO_DATA
        return max(self.verdicts.values(), key=(CONSISTENT, OWN_RESULTS, UNDECIDED, CONTRADICTED).index, default=EFFECT_ONLY)

    @property
    def rows(self) -> list[Row]:
        """The results behind the verdict."""
        return [row for pair in self.pairs for row in pair.rows] + list(self.observation.rows if self.observation else ())


def _verdict(name: str, effect: Effect, low: float, high: float) -> str:
    """Return the verdict on a claimed range of an effect."""
    overlap = effect.low <= high and low <= effect.high
    if overlap and (name == GROWTH or effect.low > 1 or effect.high < 1):
        return CONSISTENT
    return UNDECIDED if overlap or effect.pairs == 1 else CONTRADICTED


# Checks --------------------------------------------------------------------------------------------


def _full_to_qlora(pool: Pool) -> Iterator[Pair]:
    """Yield the pairs of full fine-tuning and QLoRA."""
    for pair in method_pairs(pool.evidence):
        if (pair.row["method"], pair.base["method"]) == ("qlora", "full"):
            yield Pair((pair.base,), (pair.row,), "full fine-tuning \N{RIGHTWARDS ARROW} QLoRA", pair.speed, pair.memory)


def _rounding(evidence: Evidence) -> Observation | None:
    """Return the effect of stochastic rounding on the accuracy."""
    pairs = rounded(evidence, evidence.results, evaluated_rows(evidence))
    if not pairs:
        return None
    significant = sum(difference.significant for _, difference in pairs)
    parts = [
        f"{100 * difference.difference:+.2f} percentage points (standard error {100 * difference.standard_error:.2f})"
        for _, difference in pairs
    ]
    text = (
        f"the accuracy with it minus the accuracy without it is {listed(parts)}; {significant} of {len(pairs)} differences are significant"
    )
    return Observation(EFFECT_ONLY if significant else UNDECIDED, text, tuple(row for row, _ in pairs))


def _fixed_length(evidence: Evidence) -> Observation | None:
    """Return the outcome of dynamic padding and of rows of a fixed length on Trainium."""
    failed, static = padded(evidence, evidence.of_source(BERT))
    if not failed or not static:
        return None
    text = f"{counted(len(failed), 'training run')} with dynamic padding failed, {len(static)} with rows of a fixed length succeeded"
    return Observation(EFFECT_ONLY, text, (*failed, *static))


def _level(level: int) -> frozenset[str | None]:
    """Return the compiler flags of an optimisation level, as document 001 prints them."""
    return frozenset({f"--model-type=transformer --optlevel={level}"})


OFF, ON = frozenset({None, "false", "none"}), frozenset({"true", "full"})
SIXTEEN = frozenset({"fp16", "bf16"})
LINKED = ("mixed_precision", "fp16", "bf16", "autocast_adapter_dtype")
"""Settings that restate the precision."""
TIPS = (
    Tip("Mixed precision instead of FP32", "004-S42", (Switch("precision", frozenset({"fp32"}), SIXTEEN, LINKED),)),
    Tip("16 bits instead of TF32", "004-S42", (Switch("precision", frozenset({"tf32"}), SIXTEEN, LINKED),)),
    Tip("Larger batches", "004-S83", find=doubled, remark="for each doubling of the micro-batch"),
    Tip("Gradient accumulation", "004-S49", find=accumulated, remark="in place of a larger micro-batch, for the same global batch"),
    Tip("Compiled models", "004-S43", (Switch("compile", OFF, frozenset({"true", "blocks, inductor"})),)),
    Tip(
        "Gradient checkpointing",
        "004-S44",
        (
            Switch("gradient_checkpointing", OFF, ON, ("reentrant",)),
            Switch("variant", frozenset({"Standard QLoRA"}), frozenset({"+ Gradient Checkpointing"})),
            Switch("variant", frozenset({"+ Double Quantization"}), frozenset({"+ Both"})),
        ),
    ),
    Tip("QLoRA instead of full fine-tuning", "004-S45", find=_full_to_qlora),
    Tip(
        "Double quantisation",
        "004-S72",
        (
            Switch("variant", frozenset({"Standard QLoRA"}), frozenset({"+ Double Quantization"})),
            Switch("variant", frozenset({"+ Gradient Checkpointing"}), frozenset({"+ Both"})),
        ),
    ),
    Tip("4-bit instead of 8-bit frozen weights", None, (Switch("quantisation", frozenset({"int8"}), frozenset({"4 bits"})),)),
    Tip(
        "Flash attention",
        "004-S46",
        (Switch("attention", frozenset({None, "eager"}), frozenset({"flash_attention_2", "flash_attention"})),),
        remark="with memory as the peak of the whole device",
    ),
    Tip("Shorter rows", "004-S47", find=by_length, remark="shown by the exponent p where memory grows as length^p"),
    Tip("Compiler level 2 instead of 1 on Trainium", "001-S20", (Switch("neuron_cc_flags", _level(1), _level(2)),)),
    Tip("Stochastic rounding on Trainium", "001-S42", observe=_rounding),
    Tip("Rows of a fixed length on Trainium", "001-S06", observe=_fixed_length),
    Tip("Keep utilisation above 80%", "004-S48"),
    Tip("Profile, start small, benchmark several configurations", "004-S49"),
)


def _checked(evidence: Evidence) -> list[Checked]:
    pool = Pool(evidence)
    known = evidence.catalogue.statement_sources
    return [_check(pool, tip) for tip in TIPS if tip.statement is None or tip.statement in known]


def _check(pool: Pool, tip: Tip) -> Checked:
    found = [pair for switch in tip.switches for pair in switched(pool, switch)]
    found += tip.find(pool) if tip.find else []
    chosen = [pair for pair in found if not pair.on_cpu] or found
    others = [pair for pair in found if pair not in chosen] if len(chosen) < len(found) else []
    reads: Mapping[str, Callable[[Pair], float | None]] = {
        SPEED: lambda pair: pair.speed,
        SAVED: lambda pair: pair.memory,
        GROWTH: lambda pair: pair.exponent,
    }
    effects = {name: effect for name, read in reads.items() if (effect := _effect(chosen, read))}
    printed = _printed(pool.evidence, tip.statement)
    observation = tip.observe(pool.evidence) if tip.observe else None
    return Checked(tip, printed, tuple(chosen), tuple(others), effects, _claims(printed), observation)


def _effect(pairs: Sequence[Pair], read: Callable[[Pair], float | None]) -> Effect | None:
    """Return the geometric mean over documents; pairs of one document are not independent of each other."""
    known = [(pair.source, value) for pair in pairs if (value := read(pair))]
    if not known:
        return None
    values = [value for _, value in known]
    means = document_means(known)
    interval = one_more_run(means) if len(means) >= ENOUGH else None
    return Effect(
        value=mean_over_documents(known),
        low=min(values),
        high=max(values),
        documents=len(means),
        pairs=len(known),
        one_more=(interval.low, interval.high) if interval else None,
    )


def _printed(evidence: Evidence, statement: str | None) -> str:
    """Return the effect or the claim that a statement prints; empty if it prints none."""
    labels = {label["label"]: label["printed"] for label in evidence.catalogue.labels.get(statement or "", ())}
    return labels.get("effect") or labels.get("claim") or ""


def _claims(printed: str) -> dict[str, tuple[float, float]]:
    """Return the claimed ranges of the effects, as ratios of the figure with the setting to that without it."""
    claims = {}
    for first, second, unit, what in CLAIM.findall(printed):
        # A printed 3.7% is 3.65 to 3.75%.
        half = 0.5 * 10.0 ** -len((second or first).partition(".")[2])
        low, high = float(first) - half, float(second or first) + half
        if what in {"speedup", "throughput increase"}:
            claims[SPEED] = (low, high) if unit == "x" else (1 + low / 100, 1 + high / 100)
        else:
            claims[SPEED if what == "slower" else SAVED] = (1 - high / 100, 1 - low / 100)
    for word, exponent in EXPONENTS.items():
        if word in printed.lower():
            claims[GROWTH] = (exponent, exponent)
    return claims


# The study -----------------------------------------------------------------------------------------


def study(evidence: Evidence) -> Study:
    """Return the study of optimisation tips."""
    checked = sorted(_checked(evidence), key=lambda each: list(VERDICTS).index(each.verdict))
    sentences = written([_summary(checked), *map(_finding, checked)])
    return Study(
        key="tips",
        title="Optimisation tips, checked against results",
        question="Which printed optimisation tips agree with results, how large are the effects, and which tips have no data?",
        sentences=sentences,
        tables=(_table(evidence, checked), _pair_table(checked)) if sentences else (),
        answers=1,
        draw=(lambda: _chart(checked),),
        method=(
            "A pair is two results of one document with the same model, accelerator and all other stated conditions and settings; only the setting of the tip differs. Repeats count as their geometric mean.",
            "The effect is the geometric mean of the ratios within each document, then across documents. Speed is tokens/s, or samples/s where a document prints no tokens/s. Memory is peak memory.",
            f"The range goes from the lowest to the highest pair. With {ENOUGH} or more documents there is also a 95% interval for one more document.",
            "The exponent is the p for which memory is a fixed part plus a part that grows as length^p. It is computed from sweeps of three lengths.",
            f"Verdicts. {'. '.join(f'{wording.sentence(verdict)}: {meaning}' for verdict, meaning in VERDICTS.items())}.",
            "Pairs on a CPU are in the list of pairs, but count only for tips without pairs on an accelerator.",
        ),
        caveats=(
            "Where a document does not state a setting, it counts as off.",
            "'Consistent' is weaker than 'confirmed': a wide range includes many claims.",
            "Only stored attention scores grow with the square of the length. Most documents do not state their attention kernel.",
            "Changing the micro-batch changes the global batch as well, so such pairs do not compare equal training runs.",
            *ambiguous_caveat(evidence, sentences),
        ),
    )


def _summary(checked: Sequence[Checked]) -> Sentence | None:
    number = {verdict: sum(each.verdict == verdict for each in checked) for verdict in VERDICTS}
    return sentence(
        f"Results agree with {number[CONSISTENT]} of {len(checked)} tips, contradict {number[CONTRADICTED]} and leave {number[UNDECIDED]} undecided. "
        f"{number[OWN_RESULTS]} more agree{'s' if number[OWN_RESULTS] == 1 else ''} only with results of the document that prints the tip. "
        f"{number[EFFECT_ONLY]} have a measured effect but claim no comparable figure. {number[NO_DATA]} ha{'s' if number[NO_DATA] == 1 else 've'} no data.",
        [row for each in checked for row in each.rows],
    )


def _show(name: str) -> Callable[[float], str]:
    return ratio if name != GROWTH else lambda value: f"{value:.2f}"


def _finding(each: Checked) -> Sentence | None:
    """Return the effect of a tip and the verdict on its claim."""
    if each.observation:
        printed = f" The document concludes: '{each.printed}'" if each.printed else ""
        return sentence(f"{each.tip.advice}: {each.observation.text}.{printed}", each.rows)
    if not each.effects:
        return None
    remark = f", {each.tip.remark}" if each.tip.remark else ""
    effects = [f"{name} {_show(name)(effect.value)} ({effect.details(name)})" for name, effect in each.effects.items()]
    claim = f" Verdict on the claim '{each.printed}': {_verdict_words(each)}." if each.verdicts else ""
    return sentence(f"{each.tip.advice}{remark}: {listed(effects)}.{claim}", each.rows)


def _verdict_words(each: Checked) -> str:
    """Return the verdict, by figure if the figures differ."""
    if len(set(each.verdicts.values())) > 1:
        return ", ".join(f"{verdict} for {name}" for name, verdict in each.verdicts.items())
    return each.verdict


def _table(evidence: Evidence, checked: Sequence[Checked]) -> Table:
    def claimed(each: Checked) -> Cell:
        statement = each.tip.statement
        if statement is None:
            return tables.text(None)
        source = evidence.catalogue.statement_sources[statement]
        return tables.text(each.printed or "no figure", small=f"document {source}", href=statement_path(source, statement))

    def effect(each: Checked, name: str) -> Cell:
        found = each.effects.get(name)
        if found is None:
            return tables.text(None)
        where = found.origin(name)
        small = where if found.pairs == 1 else f"{_show(name)(found.low)} to {_show(name)(found.high)}, {where}"
        return tables.text(_show(name)(found.value), small=small, sort=found.value)

    def verdict(each: Checked) -> Cell:
        parts = [f"{name}: {verdict}" for name, verdict in each.verdicts.items()] if len(set(each.verdicts.values())) > 1 else []
        growth = each.effects.get(GROWTH)
        parts += [f"exponent {_show(GROWTH)(growth.value)} ({growth.details(GROWTH)})"] if growth else []
        parts += [each.observation.text] if each.observation else []
        return tables.text(each.verdict, small="; ".join(parts))

    columns: list[Column[Checked]] = [
        Column("Tip", lambda each: tables.text(each.tip.advice, small=each.tip.remark)),
        Column("Claim", claimed),
        Column("Verdict", verdict),
        Column("Speed", lambda each: effect(each, SPEED), numeric=True),
        Column("Peak memory", lambda each: effect(each, SAVED), numeric=True),
    ]
    return tables.table("Tips", columns, checked, stacked=True)


def _pair_table(checked: Sequence[Checked]) -> Table:
    rows = [(each, pair) for each in checked for pair in (*each.pairs, *each.others)]
    columns: list[Column[tuple[Checked, Pair]]] = [
        Column("Tip", lambda item: tables.text(item[0].tip.advice, small=item[1].change)),
        Column("First result", lambda item: result_link(wording.devices(item[1].before[0]), item[1].before[0])),
        Column("Second result", lambda item: result_link(wording.devices(item[1].after[-1]), item[1].after[-1])),
        Column("Model", lambda item: tables.text(item[1].before[0]["model_name"], small=wording.method(item[1].before[0]))),
        Column("Speed", lambda item: tables.number(item[1].speed, ratio), numeric=True),
        Column("Peak memory", lambda item: tables.number(item[1].memory, ratio), numeric=True),
        Column(
            "Exponent",
            lambda item: tables.number(item[1].exponent, _show(GROWTH)),
            numeric=True,
            explained="p where memory grows as length^p.",
        ),
        Column(
            "Source", lambda item: tables.text(item[1].source, href=None if item[1].source == "measured" else document_path(item[1].source))
        ),
    ]
    return tables.table("Pairs", columns, rows, interactive=True, searchable=False)


def _chart(checked: Sequence[Checked]) -> Chart | None:
    """Return the effects on speed and memory with the ranges of their pairs."""
    values = [
        {
            "label": each.tip.advice,
            "x": round(effect.value, 4),
            "low": round(effect.low, 4),
            "high": round(effect.high, 4),
            "series": series,
        }
        for each in checked
        for name, series in ((SPEED, "speed"), (SAVED, "peak memory"))
        if (effect := each.effects.get(name))
    ]
    caption = "Speed and peak memory with a setting, divided by those without it, by tip. Points are geometric means over documents; lines go from the lowest to the highest pair."
    return ranges("effects", caption, values, "ratio (log scale)", "Figure")
