"""Logs of a person's own training: the record, its utilisation, its audit, its prediction and the nearest published results.

A reader of one format returns an `OwnLog`; `own_log_importer` turns the reader into a command. A log holds few of the conditions,
so the others are options. Nothing is published: the record is written only with --out, to a folder that the user names.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from tunemark.collector.audit.load import audited_record, load_evidence
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import Finding, audit, select
from tunemark.collector.commands.audit import print_finding
from tunemark.collector.commands.terminal import AsJson, chosen, print_json, print_table, say
from tunemark.collector.importers.import_io import LogProblem, refuse_existing, write_out
from tunemark.collector.importers.trainer_log import LARGEST_NUMBER, write_records
from tunemark.collector.importers.trainer_output import contradictions
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult
from tunemark.schema.vocabulary import Checkpointing, Method, Padding, PublishedStatus, SoftwareLevel

if TYPE_CHECKING:
    from tunemark.collector.predict.estimate import Throughput
    from tunemark.collector.predict.fit import Combination, Missing, Observed

# The predictor needs numpy, which --help does not.
# ruff: noqa: PLC0415

OWN_SOURCE = "999"
"""Source of a record that is no part of a document."""
WARM_UP = 10
"""First logged steps that are not part of the rate, if there are at least as many others."""
NEAREST = 6
LOSSES = 10
"""Most logged losses that the loss at the start and at the end is the mean of: a quarter of all, if that is less."""
GIVEN = ("samples_per_s", "step_time_s")
"""Figures of the log that need no derivation."""
FULL_ROWS = "Rows are full, so tokens follow from rows and their length."

# A log and the conditions of its training -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stated:
    """Conditions of a training, from options or from the files of a log; None if unknown."""

    model: str | None = None
    method: str | None = None
    accelerator: str | None = None
    devices: int | None = None
    micro_batch: int | None = None
    gradient_accumulation: int | None = None
    sequence_length: int | None = None
    packing: bool | None = None
    padding: str | None = None
    precision: str | None = None
    lora_rank: int | None = None
    checkpointing: str | None = None
    software: str | None = None
    dataset: str | None = None

    def over(self, other: "Stated") -> "Stated":
        """Return these conditions; each one that is None comes from the other conditions."""
        names = [each.name for each in fields(self)]
        return Stated(**{name: getattr(other, name) if getattr(self, name) is None else getattr(self, name) for name in names})


OPTIONS = {
    "model": "--model",
    "method": "--method",
    "accelerator": "--accelerator",
    "devices": "--devices",
    "micro_batch": "--micro-batch",
    "gradient_accumulation": "--accumulate",
    "sequence_length": "--seq",
}
"""Condition that speed is compared under -> its option."""


@dataclass(slots=True)
class OwnLog:
    """The figures of one training, and everything in its log that could not be used."""

    file: str
    trainer: str
    """Name of the software that wrote the log."""
    claims: dict[str, Claim] = field(default_factory=dict)
    stated: Stated = field(default_factory=Stated)
    """Conditions in the log itself."""
    losses: list[float] = field(default_factory=list)
    """Logged training losses in order."""
    device_rate: Claim | None = None
    """Tokens per second of one device, where the log has no total."""
    finished: bool = True
    not_a_number: str | None = None
    """The place of a loss that is not a number."""
    notes: list[str] = field(default_factory=list)
    problems: list[LogProblem] = field(default_factory=list)
    unused: set[str] = field(default_factory=set)
    """Fields of the log that no quantity or condition corresponds to."""

    def problem(self, line: int | None, reason: str, *, noted: bool = False, file: str | None = None) -> None:
        """Add a problem of a line."""
        self.problems.append(LogProblem(file or self.file, line, reason, noted))

    def number(self, value: object, place: str, line: int | None = None) -> float | None:
        """Return a figure of the log as a finite number; anything else is None and a problem that names the place."""
        try:
            number = math.nan if isinstance(value, bool) or value is None else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
        self.problem(line, f"{place} is {str(value)[:40]!r}, not a finite number; left out")
        return None

    def claim(self, quantity: str, value: float, *, printed: str | None = None, note: str | None = None, signed: bool = False) -> None:
        """Add a figure. Negative amounts are a problem; `signed` figures, such as losses, may have any sign."""
        if value < 0 and not signed:
            self.problem(None, f"{quantity} is {value:g}, not an amount; left out")
            return
        self.claims[quantity] = Claim(value=value, printed=printed or f"{value:.12g}", note=note)

    def loss(self, value: object, place: str, line: int | None = None) -> None:
        """Add a logged training loss. A loss that is not finite means that the training diverged."""
        if isinstance(value, str) and value.lower() in {"nan", "inf", "-inf", "infinity", "-infinity"}:
            value = float(value)
        if isinstance(value, float) and not math.isfinite(value):
            self.not_a_number = self.not_a_number or f"{place}{f' in line {line}' if line else ''} is {value}"
            return
        number = self.number(value, place, line)
        if number is not None:
            self.losses.append(number)


# The record -------------------------------------------------------------------------------------------


def record_of(log: OwnLog, given: Stated, facts: FactBase, result_id: str) -> PublishedResult:
    """Return the record of a training. Options count more than the files of the log; contradictions are noted.

    Raises TunemarkError if the method is stated nowhere, or a card or word is unknown.
    """
    stated = given.over(log.stated)
    for name, option in OPTIONS.items():
        mine, logged = getattr(given, name), getattr(log.stated, name)
        if mine is not None and logged is not None and mine != logged:
            log.problem(None, f"{option} is {mine}, and the log states {logged}; the option is used", noted=True)
    if stated.method is None:
        raise TunemarkError("--method", "", f"the log does not contain the fine-tuning method; give one of {', '.join(Method)}")
    conditions = _conditions(log, stated, given, facts)
    _add_figures(log, stated, conditions)
    reason = f"The training diverged: {log.not_a_number}." if log.not_a_number else None if log.finished else "The training did not end."
    return PublishedResult(
        id=result_id,
        source=result_id[:3],
        section=f"Log of {log.trainer}",
        origin=Origin(kind="document"),
        labels={name: text for name in ("model", "accelerator") if (text := getattr(stated, name))},
        conditions=conditions,
        claims=dict(sorted(log.claims.items())),
        status=PublishedStatus.FAILED if log.not_a_number else PublishedStatus.OK if log.finished else PublishedStatus.PARTIAL,
        note=" ".join([*([reason] if reason else []), *log.notes]) or None,
    )


def _conditions(log: OwnLog, stated: Stated, given: Stated, facts: FactBase) -> Conditions:
    settings: dict[str, str | int | bool] = {"data_parallel": stated.devices} if stated.devices else {}
    if stated.lora_rank is not None:
        settings["lora_r"] = stated.lora_rank
    if stated.software is not None:
        settings["software"] = stated.software
    if stated.checkpointing is not None:
        recomputed = chosen("--checkpointing", stated.checkpointing, Checkpointing)
        settings["gradient_checkpointing"] = "selective" if recomputed is Checkpointing.SELECTIVE else recomputed is Checkpointing.FULL
    padding = None if stated.padding is None else chosen("--padding", stated.padding, Padding)
    # Without a statement rows need not be full: the collators of these trainers pad to the longest row of a batch.
    dynamic = padding is None and not stated.packing
    replicas = ("all devices are data-parallel",) if (stated.devices or 1) > 1 else ()
    from_log = [name for name in OPTIONS if getattr(given, name) is None and getattr(log.stated, name) is not None]
    return Conditions(
        model=_model_key(log, stated.model, facts, given=given.model is not None),
        method=chosen("--method", stated.method or "", Method),
        accelerator=facts.accelerator(stated.accelerator).key if stated.accelerator else None,
        accelerator_count=stated.devices,
        micro_batch=stated.micro_batch,
        gradient_accumulation=stated.gradient_accumulation,
        sequence_length=stated.sequence_length,
        packing=stated.packing,
        padding=Padding.DYNAMIC if dynamic else padding,
        precision=stated.precision,
        dataset=stated.dataset,
        settings=settings,
        from_repository=tuple(f"{name}, from the log" for name in from_log),
        assumed=(*replicas, *(("rows are padded to the longest of their batch",) if dynamic else ())),
    )


def _model_key(log: OwnLog, name: str | None, facts: FactBase, *, given: bool) -> str | None:
    """Return the card of a model. A name in the log, which may be a path, need not have one; a name in an option must."""
    try:
        return facts.model(name).key if name else None
    except TunemarkError:
        if given:
            raise
        log.problem(None, f"the model {name!r} has no card; give --model", noted=True)
        return None


def _add_figures(log: OwnLog, stated: Stated, conditions: Conditions) -> None:
    """Add the figures that follow from conditions and from the losses."""
    resumed = False
    for note in contradictions(log.claims):
        # The Trainer times one session, and counts the steps and tokens of all of them.
        resumed, advice = True, f"{note} A resumed training: its tokens and steps give no rate."
        log.claims.pop("tokens", None)
        log.notes.append(advice)
        log.problem(None, advice, noted=True)
    rate = log.device_rate
    if rate is not None and stated.devices is None:
        raise TunemarkError("--devices", "", "the log has tokens per second of one device; give the number of devices")
    if rate is not None and stated.devices is not None:
        note = f"{rate.printed} of one device x {stated.devices}. {rate.note or ''}".strip()
        log.claim("tokens_per_s", rate.value * stated.devices, note=note)
    if log.losses:
        count = max(1, min(LOSSES, len(log.losses) // 4))
        first, last = log.losses[:count], log.losses[-count:]
        log.claim("loss_start", sum(first) / len(first), note=f"Mean of the first {count} logged losses.", signed=True)
        if "train_loss" not in log.claims:
            log.claim("train_loss", sum(last) / len(last), note=f"Mean of the last {count} logged losses.", signed=True)
    steps, seconds = (log.claims.get(name) for name in ("steps", "train_time_s"))
    full = stated.packing or conditions.padding in {Padding.STATIC, Padding.NONE}
    if full and not resumed and "step_time_s" not in log.claims and steps and seconds and steps.value:
        note = f"{seconds.printed} s over {steps.printed} steps. {FULL_ROWS}"
        log.claim("step_time_s", seconds.value / steps.value, printed=f"{seconds.value / steps.value:.6g}", note=note)
    if not full and not resumed and "tokens" not in log.claims and "tokens_per_s" not in log.claims:
        # Rows may be shorter than --seq, so no rate of tokens may follow from rows and a step time.
        step = log.claims.pop("step_time_s", None)
        if step is not None:
            log.claim("steps_per_s", 1 / step.value, printed=f"{1 / step.value:.6g}", note=step.note)
        fix = "have the trainer count tokens, or give --packed or --padding static if all rows are full"
        log.problem(None, f"no count of tokens, and rows need not be full; for tokens per second {fix}", noted=True)


# Judgement --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A result of the collection near the training."""

    id: str
    accelerator: str
    devices: int
    model: str
    method: str
    software: str
    tokens_per_s: float
    tokens_per_s_per_device: float
    mfu: float | None


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of the training's MFU among results of the collection."""

    among: str
    results: int
    """Results with an MFU."""
    below: int
    """Results with a lower MFU than the training."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the collection says about a training."""

    derived: dict[str, tuple[float | None, str]]
    """Rates and utilisation: quantity -> value and calculation, or None and the reason."""
    findings: tuple[Finding, ...]
    prediction: "Throughput | Missing"
    neighbours: tuple[Neighbour, ...]
    places: tuple[Place, ...]


def judge(result: PublishedResult, level: SoftwareLevel, facts: FactBase) -> Judgement:
    """Return utilisation, findings, prediction and neighbours of a record. The prediction is made without the record."""
    from tunemark.collector.predict.calibration_rows import calibrate
    from tunemark.collector.predict.derived_figures import add_derived_figures
    from tunemark.collector.predict.estimate import distance, predict
    from tunemark.collector.predict.fit import Missing, fit, without_copies

    evidence = load_evidence(facts.root.parent, facts)
    others = tuple(other for other in evidence.results if other.id != result.id)
    records = tuple(record for record in evidence.records if record.id != result.id)
    evidence = replace(evidence, results=(*others, audited_record(result, facts)), records=(*records, result))
    findings = audit(evidence)
    calibration = calibrate(facts.root.parent, facts, evidence, findings)
    observed = calibration.by_result
    rows: dict[str, list[dict[str, Any]]] = {
        "result_rows": [{"result_id": key} for key in observed if key != result.id],
        "result_facts": [],
    }
    own: dict[str, Any] = {"result_id": result.id} | {name: result.claims[name].value for name in GIVEN if name in result.claims}
    rows["result_rows"].append(own)
    add_derived_figures(rows, observed, calibration.refused, evidence, findings)
    mfu = {row["result_id"]: row["mfu"] for row in rows["result_rows"] if row.get("mfu") is not None}
    derived = {row["name"]: (own[row["name"]], row["reason"]) for row in rows["result_facts"] if row["result_id"] == result.id}
    known = without_copies(row for key, row in observed.items() if key != result.id)
    config = _combination(result, observed.get(result.id), level, facts)
    if config is None:
        missing = Missing("accelerator, model, row length or method is not stated, or its method is not covered")
        return Judgement(derived, select(findings, records=[result.id]), missing, (), ())
    fitted = fit(known)
    nearest = sorted(fitted.rows, key=lambda row: distance(row, config))[:NEAREST]
    return Judgement(
        derived,
        select(findings, records=[result.id]),
        predict(fitted, config),
        tuple(_neighbour(row, mfu) for row in nearest),
        tuple(_places(mfu.pop(result.id, None), config, known, mfu)),
    )


def _combination(result: PublishedResult, observed: "Observed | None", level: SoftwareLevel, facts: FactBase) -> "Combination | None":
    """Return the configuration to predict, with any training loop of the level; None if it is not stated."""
    from tunemark.collector.predict.fit import Combination

    if observed is not None:
        return replace(observed.config, level=level, stack="", release="")
    conditions = result.conditions.model_copy(update={"micro_batch": result.conditions.micro_batch or 1})
    shape, accelerator = published_shape(conditions, facts, None), facts.accelerators.get(conditions.accelerator or "")
    if shape is None or accelerator is None:
        return None
    return Combination(accelerator, conditions.accelerator_count or 1, shape, level)


def _neighbour(row: "Observed", mfu: dict[str, float]) -> Neighbour:
    config, rate = row.config, row.tokens_per_s
    names = (row.id, config.accelerator.name, config.devices, config.shape.model.name, config.shape.method.value, config.software)
    return Neighbour(*names, rate, rate / config.devices, mfu.get(row.id))


def _places(own: float | None, config: "Combination", rows: "tuple[Observed, ...]", mfu: dict[str, float]) -> Iterator[Place]:
    if own is None:
        return
    same_method = [row for row in rows if row.config.shape.method is config.shape.method and row.id in mfu]
    same_device = [row for row in same_method if row.config.accelerator.key == config.accelerator.key]
    method = config.shape.method.value
    for among, group in ((f"{method} on {config.accelerator.name}", same_device), (f"{method} on any accelerator", same_method)):
        if group:
            yield Place(among, len(group), sum(mfu[row.id] < own for row in group))


# The command ------------------------------------------------------------------------------------------

Reader = Callable[[Path], OwnLog]


def own_log_importer(reader: Reader) -> Callable[..., None]:
    """Return the command of a reader: its help text and first argument are those of the reader; the options are shared."""

    def command(
        log: Path,
        *,
        model: Annotated[str | None, typer.Option("--model", help="Model card or alias.", show_default=False)] = None,
        method: Annotated[str | None, typer.Option("--method", help="full, lora, qlora or peft.", show_default=False)] = None,
        accelerator: Annotated[str | None, typer.Option("--accelerator", help="Accelerator card or alias.", show_default=False)] = None,
        devices: Annotated[int | None, typer.Option("--devices", min=1, help="Devices used.", show_default=False)] = None,
        micro_batch: Annotated[
            int | None,
            typer.Option("--micro-batch", min=1, help="Rows of one forward and backward on one device.", show_default=False),
        ] = None,
        accumulate: Annotated[
            int | None, typer.Option("--accumulate", min=1, help="Micro-steps in an optimizer step.", show_default=False)
        ] = None,
        sequence_length: Annotated[int | None, typer.Option("--seq", min=1, help="Tokens in a row.", show_default=False)] = None,
        packed: Annotated[
            bool | None, typer.Option("--packed/--not-packed", help="Several documents share a row.", show_default=False)
        ] = None,
        padding: Annotated[str | None, typer.Option("--padding", help="none, static or dynamic.", show_default=False)] = None,
        precision: Annotated[
            str | None, typer.Option("--precision", help="Format of matrix products, such as bf16.", show_default=False)
        ] = None,
        rank: Annotated[int | None, typer.Option("--rank", min=1, help="Rank of the adapters.", show_default=False)] = None,
        checkpointing: Annotated[
            str | None, typer.Option("--checkpointing", help="none, selective or full; needed for HFU.", show_default=False)
        ] = None,
        dataset: Annotated[str | None, typer.Option("--dataset", help="Name of the training data.", show_default=False)] = None,
        software: Annotated[
            str | None,
            typer.Option("--software", help="plain, tuned (fused kernels or compile) or vendor. Default: plain.", show_default=False),
        ] = None,
        out: Annotated[
            Path | None,
            typer.Option("--out", help="File of the record (`run.json`), or folder of published results.", show_default=False),
        ] = None,
        source: Annotated[str, typer.Option("--source", help="Three digits of the record's source.")] = OWN_SOURCE,
        number: Annotated[int, typer.Option("--number", min=1, max=LARGEST_NUMBER, help="Number of the record in it.")] = 1,
        as_json: AsJson = False,
    ) -> None:
        given = Stated(
            *(model, method and method.lower(), accelerator, devices, micro_batch, accumulate, sequence_length, packed, padding),
            *(precision, rank, checkpointing, software, dataset),
        )
        _import(reader, log, given, out, f"{source}-{number:03d}", as_json=as_json)

    command.__doc__ = reader.__doc__
    argument = next(iter(reader.__annotations__.values()))
    command.__annotations__["log"] = argument
    return command


def _import(reader: Reader, path: Path, given: Stated, out: Path | None, result_id: str, *, as_json: bool) -> None:
    source = result_id.partition("-")[0]
    if len(source) != 3 or not (source.isascii() and source.isdigit()):  # noqa: PLR2004 - three digits
        raise TunemarkError("--source", source, "a source has three digits, such as 999")
    log, facts = reader(path), FactBase.of_project()
    level: SoftwareLevel = chosen("--software", given.software or log.stated.software or "plain", get_args(SoftwareLevel))
    result = record_of(log, given, facts, result_id)
    for problem in log.problems:
        say(str(problem))
    if log.unused:
        say(f"{log.file}: not used: {', '.join(sorted(log.unused))}")
    if out is not None:
        _write(out, result)
    judgement = judge(result, level, facts)
    if as_json:
        print_json(_as_json(log, result, level, judgement))
    else:
        _print(log, result, level, judgement)
    raise typer.Exit(Exit.OK if all(problem.noted for problem in log.problems) else Exit.INVALID)


def _write(out: Path, result: PublishedResult) -> None:
    """Write the record to a file, or to a folder of published results with the document of its source."""
    if out.suffix != ".json":
        write_records(out, [result])
        return
    refuse_existing(out)
    write_out(out, canonical_json(result))
    say(f"wrote {out}")


# Output -----------------------------------------------------------------------------------------------


def _rate(judgement: Judgement) -> float | None:
    return judgement.derived.get("tokens_per_s", (None, ""))[0]


def _as_json(log: OwnLog, result: PublishedResult, level: SoftwareLevel, judgement: Judgement) -> dict[str, Any]:
    from tunemark.collector.predict.fit import Missing

    predicted = judgement.prediction
    rate = _rate(judgement)
    prediction: dict[str, Any] = {"software": level}
    if isinstance(predicted, Missing):
        prediction["no_data"] = predicted.reason
    else:
        times = None if rate is None else rate / predicted.tokens_per_s.value
        prediction |= {"tokens_per_s": asdict(predicted.tokens_per_s), "unseen": list(predicted.unseen), "measured_over_predicted": times}
    return {
        "record": result.model_dump(mode="json"),
        "derived": {name: {"value": value, "calculation": text} for name, (value, text) in judgement.derived.items()},
        "findings": [{"rule": finding.rule} | asdict(finding) for finding in judgement.findings],
        "prediction": prediction,
        "nearest": [asdict(neighbour) for neighbour in judgement.neighbours],
        "places": [asdict(place) for place in judgement.places],
        "losses": log.losses,
        "problems": [asdict(problem) for problem in log.problems],
        "not_used": sorted(log.unused),
    }


def _print(log: OwnLog, result: PublishedResult, level: SoftwareLevel, judgement: Judgement) -> None:
    figures = [
        (QUANTITIES[name].label, QUANTITIES[name].text(claim.value), claim.printed, claim.note) for name, claim in result.claims.items()
    ]
    print_table(["figure", "value", "in the log", "note"], figures, title=f"{result.id}: {log.trainer}, {log.file}, {result.status.value}")
    typer.echo("")
    derived = [(QUANTITIES[name].label, QUANTITIES[name].text(value), text) for name, (value, text) in judgement.derived.items()]
    print_table(["derived", "value", "calculation"], derived)
    unstated = [option for name, option in OPTIONS.items() if getattr(result.conditions, RECORD_FIELD.get(name, name)) is None]
    if unstated:
        say(f"not stated: {', '.join(unstated)}")
    typer.echo("")
    for finding in judgement.findings:
        print_finding(finding)
    if not judgement.findings:
        typer.echo("No finding of the audit. No finding does not mean verified.\n")
    _print_prediction(level, judgement)


RECORD_FIELD = {"devices": "accelerator_count"}
"""Condition -> field of the record, where the names differ."""


def _print_prediction(level: SoftwareLevel, judgement: Judgement) -> None:
    from tunemark.collector.predict.estimate import LEVEL
    from tunemark.collector.predict.fit import Missing

    predicted = judgement.prediction
    if isinstance(predicted, Missing):
        typer.echo(f"No prediction: {predicted.reason}.")
    else:
        tokens, rate = predicted.tokens_per_s, _rate(judgement)
        low, value, high = (formats.significant(number) for number in (tokens.low, tokens.value, tokens.high))
        typer.echo(f"Predicted with {level} software: {value} tokens/s, {LEVEL:.0%} interval {low} to {high}.")
        if rate is not None:
            place = "inside" if tokens.low <= rate <= tokens.high else "below" if rate < tokens.low else "above"
            typer.echo(
                f"This training: {formats.significant(rate)} tokens/s, {rate / tokens.value:.2f} x the prediction, {place} the interval."
            )
    for place_among in judgement.places:
        typer.echo(f"MFU is higher than that of {place_among.below} of {place_among.results} results of {place_among.among}.")
    if judgement.neighbours:
        columns = ["nearest result", "accelerator", "devices", "model", "method", "software", "tokens/s", "per device", "MFU"]
        rows = [(*list(asdict(each).values())[:-1], QUANTITIES["mfu"].text(each.mfu)) for each in judgement.neighbours]
        typer.echo("")
        print_table(columns, rows)
