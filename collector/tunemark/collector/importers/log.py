"""The log of a person's own training against the collection: its figures, utilisation, audit, prediction and nearest published results."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tunemark.collector.audit.load import audited_record, load_evidence
from tunemark.collector.audit.published_shape import published_shape
from tunemark.collector.audit.rule import Finding, audit, select
from tunemark.collector.commands.audit import print_finding
from tunemark.collector.commands.options import named_accelerators, named_as, named_model
from tunemark.collector.importers.import_io import Request, option_of, write_out
from tunemark.collector.importers.log_formats import read_log
from tunemark.collector.importers.own_log import SETTINGS, OwnLog, Stated, devices_of, record_of
from tunemark.collector.store.database import columns_of
from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.quantities import QUANTITIES
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.vocabulary import SoftwareLevel
from tunemark.terminal import print_json, print_table, say

if TYPE_CHECKING:
    from tunemark.collector.predict.fit import Observed
    from tunemark.schema.throughput import Combination

# The predictor needs numpy, which --help does not.
# ruff: noqa: PLC0415

OWN_SOURCE = "999"
"""Source of a record that is no part of a document."""
NEAREST = 6
GIVEN = ("samples_per_s", "step_time_s")
"""Figures of the log that need no derivation."""


def log(request: Request) -> None:
    """Read the log of a training, and compare it with the collection: figures, utilisation, audit, prediction, nearest results.

    Reads `trainer_state.json` of the Hugging Face Trainer and of TRL, output folders of LLaMA-Factory, logs of torchtune, histories exported
    from Weights & Biases (CSV or JSON lines), and the text that a trainer prints; `-` is standard input. A second file may be
    the configuration (YAML) of axolotl or LLaMA-Factory, which states the conditions. A setting counts more than a condition in the log.
    A record is written only with `--out`, such as `run.json`.
    """
    given, facts = {name: SETTINGS[name](option_of(name), text) for name, text in request.known(SETTINGS).items()}, FactBase.of_project()
    # Names are checked before the log is read.
    for card, count in named_accelerators(facts, [given["accelerator"]]) if "accelerator" in given else ():
        if count not in {None, given.setdefault("devices", count or 1)}:
            raise TunemarkError("--devices", given["devices"], f"differs from {count} in the name of the accelerator; give one of them")
        given["accelerator"] = card.key
    devices_of(given, facts)
    if "model" in given:
        with named_as(option_of("model")):
            model = named_model(facts, given["model"])
        given["model"], facts = model.key, facts if model.key in facts.models else replace(facts, own_models=(model,))
    configurations = [file for file in request.files if file.suffix in {".yml", ".yaml"}]
    logs = [file for file in request.files if file not in configurations]
    if len(logs) != 1 or len(configurations) > 1:
        raise TunemarkError("FILE", ", ".join(map(str, request.files)), "give one log, and at most one configuration (YAML) of its trainer")
    trainings = read_log(logs[0], *configurations)
    answers = [_answer(each, given, facts, f"{OWN_SOURCE}-{number:03d}") for number, each in enumerate(trainings, start=1)]
    for problem in trainings[0].problems:
        say(str(problem))
    unused = sorted({name for each in trainings for name in each.unused})
    if unused:
        say(f"{trainings[0].file}: not used: {', '.join(unused)}")
    if request.out is not None:
        _write(request.out, [result for result, _ in answers])
    if request.as_json:
        print_json([answer for _, answer in answers])
    else:
        for answer in answers:
            _print(*answer)
    raise typer.Exit(Exit.OK if all(problem.noted for problem in trainings[0].problems) else Exit.INVALID)


def _answer(training: OwnLog, given: Stated, facts: FactBase, result_id: str) -> tuple[PublishedResult | None, dict[str, Any]]:
    """Return the record of a training and what the collection says about it, as data; without a method, its figures alone."""
    stated, result, judged = training.stated | given, None, dict[str, Any]()
    if "method" in stated:
        result = record_of(training, given, facts, result_id)
        judged = judge(result, stated.get("software", "plain"), facts)
    answer: dict[str, Any] = {
        "title": f"{training.trainer}, {training.file}",
        "figures": {name: claim.model_dump(mode="json") for name, claim in (result or training).claims.items()},
        "losses": training.losses,
        "not_used": sorted(training.unused),
        "problems": [asdict(problem) for problem in training.problems],
    }
    return result, answer | ({"record": result.model_dump(mode="json")} if result else {}) | judged


# Judgement --------------------------------------------------------------------------------------------


def judge(result: PublishedResult, level: SoftwareLevel, facts: FactBase) -> dict[str, Any]:
    """Return utilisation, findings, prediction and neighbours of a record. The prediction is made without the record."""
    from tunemark.collector.predict.calibration_rows import calibrate
    from tunemark.collector.predict.derived_figures import Derivation
    from tunemark.collector.predict.estimate import distance, predict, unseen
    from tunemark.collector.predict.fit import fit, without_copies
    from tunemark.schema.physics.work import Missing

    evidence = load_evidence(facts.root.parent, facts)
    results = evidence.by_id | {result.id: audited_record(result, facts)}
    records = {record.id: record for record in evidence.records} | {result.id: result}
    evidence = replace(evidence, results=tuple(results.values()), records=tuple(records.values()))
    findings = audit(evidence)
    calibration = calibrate(facts.root.parent, facts, evidence, findings)
    observed = calibration.by_result
    derivation = Derivation(observed, calibration.refused, evidence, findings)
    stated = {name: result.claims[name].value for name in GIVEN if name in result.claims}
    figures = {name: figure for name, figure in derivation.figures(evidence.by_id[result.id]).items() if name not in stated}
    derived = {name: {"value": value, "calculation": calculation} for name, (value, calculation) in figures.items()}
    config, prediction = _combination(result, observed.get(result.id), level, facts), dict[str, Any](software=level)
    judged: dict[str, Any] = {"derived": derived, "findings": [asdict(finding) for finding in select(findings, records=[result.id])]}
    judged |= {"prediction": prediction, "nearest": []}
    if config is None:
        prediction["no_data"] = "accelerator, model, row length or method is not stated, or its method is not covered"
        return judged
    fitted = fit(without_copies(row for key, row in observed.items() if key != result.id))
    predicted, rate = predict(fitted, config), figures.get("tokens_per_s", (None, ""))[0]
    if isinstance(predicted, Missing):
        prediction["no_data"] = predicted.reason
    else:
        new = unseen(fitted.known, config.accelerator, config.shape.model, config.level)
        times = None if rate is None else rate / predicted.value
        prediction |= {"tokens_per_s": asdict(predicted), "unseen": list(new), "measured_over_predicted": times}
    for row in sorted(fitted.rows, key=lambda row: distance(row, config))[:NEAREST]:
        mfu = derivation.figures(evidence.by_id[row.id]).get("mfu", (None, ""))[0] if row.id in evidence.by_id else None
        each = row.tokens_per_s / row.config.devices
        judged["nearest"].append(columns_of("nearest", row) | {"tokens_per_s_per_device": each, "mfu": mfu})
    return judged


def _combination(result: PublishedResult, observed: "Observed | None", level: SoftwareLevel, facts: FactBase) -> "Combination | None":
    """Return the configuration to predict, with any training loop of the level; None if it is not stated."""
    from tunemark.schema.throughput import Combination

    if observed is not None:
        return replace(observed.config, level=level, stack="", release="")
    conditions = result.conditions.model_copy(update={"micro_batch": result.conditions.micro_batch or 1})
    shape, accelerator = published_shape(conditions, facts, None), facts.accelerators.get(conditions.accelerator or "")
    if shape is None or accelerator is None:
        return None
    return Combination(accelerator, conditions.accelerator_count or 1, shape, level)


# Output -----------------------------------------------------------------------------------------------


def _write(out: Path, results: list[PublishedResult | None]) -> None:
    if results[0] is None:
        raise TunemarkError("--method", "", "a record needs the fine-tuning method: full, lora, qlora or peft")
    if len(results) > 1:
        raise TunemarkError("--out", str(out), f"the log has {len(results)} trainings; keep the lines of one")
    if out.exists():
        raise TunemarkError("--out", str(out), "already exists; use another name, or remove it first")
    write_out(out, canonical_json(results[0]))
    say(f"wrote {out}; `tunemark audit {out}` checks it")


def _print(result: PublishedResult | None, answer: Mapping[str, Any]) -> None:
    def text(name: str, value: float | None) -> str:
        return QUANTITIES[name].text(value)

    figures = [(QUANTITIES[name].label, text(name, one["value"]), one["printed"], one["note"]) for name, one in answer["figures"].items()]
    title = answer["title"] if result is None else f"{result.id}: {answer['title']}, {result.status.value}"
    print_table(["figure", "value", "in the log", "note"], figures, title=title)
    if result is None:
        say("give --method for utilisation, audit, prediction and the nearest results")
        return
    typer.echo("")
    derived = [(QUANTITIES[name].label, text(name, one["value"]), one["calculation"]) for name, one in answer["derived"].items()]
    print_table(["derived", "value", "calculation"], derived)
    needed = ("model", "accelerator", "accelerator_count", "micro_batch", "gradient_accumulation", "sequence_length")
    unstated = [name for name in needed if getattr(result.conditions, name) is None]
    if unstated:
        say(f"not stated: {', '.join(unstated)}")
    typer.echo("")
    for finding in answer["findings"]:
        print_finding(Finding(**finding))
    if not answer["findings"]:
        typer.echo("No finding of the audit. No finding does not mean verified.\n")
    _print_prediction(answer["prediction"])
    if answer["nearest"]:
        columns = ["nearest result", "accelerator", "devices", "model", "method", "software", "tokens/s", "per device", "MFU"]
        typer.echo("")
        print_table(columns, [(*list(row.values())[:-1], text("mfu", row["mfu"])) for row in answer["nearest"]])


def _print_prediction(prediction: Mapping[str, Any]) -> None:
    if "no_data" in prediction:
        typer.echo(f"No prediction: {prediction['no_data']}.")
        return
    tokens, times = prediction["tokens_per_s"], prediction["measured_over_predicted"]
    low, value, high = (formats.significant(tokens[end]) for end in ("low", "value", "high"))
    typer.echo(f"Predicted with {prediction['software']} software: {value} tokens/s, 90% interval {low} to {high}.")
    if times is not None:
        rate = times * tokens["value"]
        place = "inside" if tokens["low"] <= rate <= tokens["high"] else "below" if rate < tokens["low"] else "above"
        typer.echo(f"This training: {formats.significant(rate)} tokens/s, {times:.2f} x the prediction, {place} the interval.")
