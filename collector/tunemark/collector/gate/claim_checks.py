"""Checks of what a record says about itself: its plan and cards, gates, losses, overrides, and its study.

A claim that follows from the record is derived again; one that is missing or that differs is a problem.
"""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from math import exp, log, sqrt
from typing import get_args

import numpy as np

from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import shared_settings
from tunemark.schema.measurement_warnings import loss_band
from tunemark.schema.physics.architecture import adapted_linears, adapts_tokens
from tunemark.schema.physics.training_shape import unlike_the_card
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import LoraSettings, Quantisation
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import Gate
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.comparison import arm_run
from tunemark.schema.synthetic_data import SPECIAL_TOKENS, UNIFORM
from tunemark.schema.vocabulary import (
    PACKING_NOISE,
    SHARDED_WEIGHTS,
    TRIES,
    Backend,
    DataSource,
    Division,
    Method,
    Status,
    Weights,
)

GATES = get_args(Gate.model_fields["name"].annotation)
NOT_PACKED, SHARDED_GATE = "documents are not packed", "the model is sharded by "
BORDERLESS = ("packed documents attend to each other", "the first row holds one document only", SHARDED_GATE)
"""How the detail of the gate packed_documents begins without a verdict."""
DIFFERENCE = re.compile(r"by ([\d.e+-]+) of their spread")
DEVIATION = re.compile(r"([\d.]+%) at step")
REACHED = re.compile(r"a gradient reaches (\d+) of (\d+) (weights|adapters)")
LEARNED_AT_ONCE, RANDOM_TOKENS = 0.5, 0.9
"""Loss after a few updates over the first; lowest loss on random tokens over the logarithm of their number."""
FIRST_LOSS = (0.85, 1.05, 8.0)
"""First loss over ln(vocabulary): at least, and at most this much times it; pretrained weights may begin this much above."""
SPREAD = 0.0004 * 0.75
"""Loss above chance of random weights by width: logits of weights of a spread of 0.02 have half their variance as excess."""
FEWEST_LOSSES = 5
EARLY, NOISE_OF_A_BATCH = 10, 0.5
"""First steps, and nats by which batches differ."""
MANY_LOSSES, FEW_DECIMALS, LEAST_TOKEN_SPREAD, FEW_MISSED = 20, 3, 0.08, 0.1
"""Losses that are no chance, their decimals at least, the spread of the losses of tokens (of all committed runs above 0.2), and the share
of the probability of wrong answers that is wrong, at least, of a classifier that knows how sure it is."""
NUMBERS, NEGATIVE = re.compile(r"\d+(?:\.\d+)?"), re.compile(r"(?<![\w.])-\d")
NO_LEARNING, LEARNED = 1e-9, 0.3
"""Learning rate that changes no loss, and a fall of the loss in nats that is not noise."""
TOKEN_LOSS_SPREAD, LOSS_ROUNDING = 2.0, 0.02
"""Standard deviation of the loss of a token, at most; bf16 rounds sums of losses."""
PLANNED_AT = {"seed": "measurement.seed", "devices.tensor_parallel": "device.tensor_parallel"}
PLANNED_AT |= {"devices.pipeline_parallel": "device.pipeline_parallel"}
"""Settings of a card that are no shared settings -> where a plan holds them."""
SCALED_BY_OPTIONS = ("stop.", "weights.from")
ADDED_SECTIONS = {"lora": LoraSettings().model_dump(mode="json"), "quantisation": Quantisation().model_dump(mode="json")}
"""Sections that a changed method adds to a card without them, with their defaults."""


def claim_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each claim that the record does not bear out."""
    model = facts.models.get(submission.plan.model.key)
    yield from _gates(submission, model, facts)
    yield from _losses(submission, model, facts)
    yield from _study(submission, facts)


def _gates(s: Submission, model: ModelCard | None, facts: FactBase) -> Iterator[Problem]:
    """Yield gates that are missing, repeated or not asked for, and verdicts that the record contradicts."""
    plan, names = s.plan, [gate.name for gate in s.gates]
    by_name: dict[str, Gate] = {gate.name: gate for gate in s.gates}
    for twice in sorted({name for name in names if names.count(name) > 1}):
        yield Problem("gates", repr(twice), "is listed twice; each check must have one verdict")
    if not plan.measurement.gates:
        if names:
            yield Problem("gates", ", ".join(names), "plan.measurement.gates is false; such a run has none")
        return
    if len(s.trace):
        for name in GATES:
            if name not in by_name:
                yield Problem(
                    "gates", f"no {name}", "a run that trained has a verdict of each of the three gates; keep the original record"
                )
    if plan.device.backend is Backend.NEURON:
        return
    gradient, packed, band = (by_name.get(name) for name in GATES)
    sharded = plan.device.strategy in SHARDED_WEIGHTS
    if gradient is not None:
        yield from _gradient_gate(s, gradient, model, sharded=sharded)
    for name, gate in (("adapter_gradient", gradient), ("packed_documents", packed)):
        if gate is not None and gate.detail.startswith(SHARDED_GATE):
            engine = gate.detail.removeprefix(SHARDED_GATE).partition(";")[0]
            if engine != plan.device.strategy.value:
                yield Problem(f"gates.{name}", repr(gate.detail), f"plan.device.strategy is {plan.device.strategy.value!r}")
    if packed is not None:
        applies = plan.data.packing and plan.data.document_borders and not sharded
        if packed.passed is not None and not applies:
            yield Problem("gates.packed_documents", str(packed.passed), "rows are not packed with borders on one device; it does not apply")
        if packed.passed is None and not packed.detail.startswith(BORDERLESS if plan.data.packing else (NOT_PACKED, SHARDED_GATE)):
            yield Problem("gates.packed_documents", repr(packed.detail), "is not what this check reports; keep the original record")
        difference = DIFFERENCE.search(packed.detail)
        if packed.passed is not None and difference is None:
            yield Problem("gates.packed_documents", repr(packed.detail), "a verdict states the difference that was measured")
        if NEGATIVE.search(packed.detail):
            yield Problem("gates.packed_documents", packed.detail, "the size of a difference is not negative")
        if packed.passed and difference and float(difference[1]) > PACKING_NOISE.get(plan.precision.compute.value, 1.0):
            yield Problem("gates.packed_documents", packed.detail, "so large a difference is not rounding; the check did not pass")
        if packed.passed is None and applies and "one document only" not in packed.detail:
            yield Problem("gates.packed_documents", "null", "plan.data.packing is true; such a run is checked")
    if band is not None and plan.workload in facts.workloads and len(s.trace):
        checked = loss_band(facts.golden_losses(plan.workload), plan, s.trace, changed=s.division is Division.OPEN)
        if checked.passed is not band.passed and not (band.passed is None and checked.passed is None):
            fix = f"the trace gives {checked.passed}: {checked.detail}; the verdict of a gate must match the trace"
            yield Problem("gates.loss_band", str(band.passed), fix)
        if any(pattern.search(band.detail) for pattern in (REACHED, DIFFERENCE)) or band.detail.startswith((NOT_PACKED, *BORDERLESS)):
            yield Problem("gates.loss_band", repr(band.detail), "is what another check reports; keep the original record")
        if band.passed is None and checked.passed is None and _kind(band.detail) != _kind(checked.detail):
            yield Problem("gates.loss_band", repr(band.detail), f"the record gives {checked.detail!r}")
        stated, found = (DEVIATION.search(gate.detail) for gate in (band, checked))
        if (stated and found and stated[1] != found[1]) or (
            checked.passed is not None and NUMBERS.findall(band.detail) != NUMBERS.findall(checked.detail)
        ):
            yield Problem("gates.loss_band", repr(band.detail), f"the trace gives {checked.detail!r}")


def _kind(detail: str) -> str:
    """Return the kind of reason for which losses were not compared: no reference losses, a short run, or other settings, in old words too."""
    return next((word for word in ("no reference losses", "ended before") if word in detail), "not compared")


def _gradient_gate(s: Submission, gate: Gate, model: ModelCard | None, *, sharded: bool) -> Iterator[Problem]:
    field, full = "gates.adapter_gradient", s.plan.method is Method.FULL
    if gate.passed is None:
        if not sharded:
            yield Problem(field, "null", f"plan.device.strategy is {s.plan.device.strategy.value!r}; only a sharded model is not checked")
        elif not gate.detail.startswith(SHARDED_GATE):
            yield Problem(field, repr(gate.detail), "is not what this check reports; keep the original record")
        return
    found = REACHED.match(gate.detail)
    if sharded or found is None:
        yield Problem(field, repr(gate.detail), "is not what this check reports; keep the original record")
        return
    reached, relevant = int(found[1]), int(found[2])
    enough = 0 < reached <= relevant if full else 0 < reached == relevant
    if gate.passed is not (enough and "none exists" not in gate.detail) or reached > relevant or (found[3] == "weights") != full:
        yield Problem(field, f"{gate.passed}, {reached} of {relevant}", "the verdict does not follow from what was observed")
    elif not full and model is not None and s.plan.lora is not None and model.experts is None:
        try:
            expected = len(adapted_linears(model, s.plan.lora.target_modules)) * model.layers
        except TunemarkError as error:
            yield Problem("plan.lora.target_modules", repr(error.value), error.fix)
            return
        if expected != relevant and not adapts_tokens(model, s.plan.lora.target_modules):
            yield Problem(field, f"{relevant} adapters", f"{model.key} has {expected} layers with an adapter")


def _losses(s: Submission, model: ModelCard | None, facts: FactBase) -> Iterator[Problem]:
    """Yield losses that random weights cannot begin with, that never change, or that are outside the band although nobody checked."""
    plan, losses = s.plan, [loss for loss in s.trace.loss if loss is not None]
    if not losses or model is None:
        return
    if len(losses) >= FEWEST_LOSSES and len(set(losses)) == 1:
        yield Problem("trace.loss", f"{losses[0]:g} in all steps", "training changes the loss; keep the original record")
    if plan.optimizer.learning_rate < NO_LEARNING and len(losses) >= FEWEST_LOSSES and losses[0] - min(losses) > LEARNED:
        fix = f"at a learning rate of {plan.optimizer.learning_rate:g} no weight changes enough for that"
        yield Problem("trace.loss", f"{losses[0]:g} to {min(losses):g}", fix)
    floor = _lowest_loss(s, model)
    below = next((step for step, loss in enumerate(s.trace.loss, start=1) if floor is not None and loss is not None and loss < floor), None)
    if below is not None:
        fix = f"random tokens cannot be predicted, by any weights: the mean loss of a step is above {floor:.3f}"
        yield Problem("trace.loss", f"{s.trace.loss[below - 1]:g} at step {below}", fix)
    if unlike_the_card(plan) is None:
        chance = log(plan.model.labels) if plan.model.labels else log(model.vocabulary)
        low, factor, more = FIRST_LOSS
        if plan.model.weights is Weights.RANDOM and not plan.model.labels:
            more = SPREAD * model.hidden_size + 0.1
        least = low * chance if plan.model.weights is Weights.RANDOM and not plan.model.labels else 0.0
        if not least <= losses[0] <= factor * chance + more:
            what = f"{plan.model.labels} classes" if plan.model.labels else f"{model.vocabulary} tokens"
            yield Problem(
                "trace.loss", f"{losses[0]:g} at step 1", f"{plan.model.weights.value} weights begin near ln({what}) = {chance:.2f}"
            )
        elif plan.model.weights is Weights.RANDOM and not plan.model.labels:
            early = min(losses[1:FEWEST_LOSSES], default=losses[0])
            if early < LEARNED_AT_ONCE * losses[0]:
                yield Problem("trace.loss", f"{early:g} within {FEWEST_LOSSES} steps", f"from {losses[0]:g}; no model learns that fast")
            yield from _too_steep(s, model, losses)
            if plan.data.name == "random-tokens" and min(losses) < RANDOM_TOKENS * chance:
                yield Problem("trace.loss", f"{min(losses):g}", f"random tokens cannot be learned; their loss stays near {chance:.2f}")
    if plan.workload in facts.workloads and not plan.measurement.gates and s.outcome.status is Status.OK:
        checked = loss_band(facts.golden_losses(plan.workload), plan, s.trace, changed=s.division is Division.OPEN)
        if checked.passed is False:
            yield Problem("trace.loss", checked.detail, "this run trained something else than its workload; run it with its gates")


def _too_steep(s: Submission, model: ModelCard, losses: list[float]) -> Iterator[Problem]:
    """Yield losses of random weights that fall faster than updates of this learning rate can make them.

    AdamW moves each weight by about the learning rate, so that an update changes a logit by at most about the rate x width for the head,
    and for each block; x alpha for adapters, which are that much narrower.
    """
    if not s.plan.optimizer.name.endswith(("adamw", "adamw_8bit")):
        return
    fall = max((before - after for before, after in pairwise(losses[:EARLY])), default=0.0)
    width = s.plan.lora.alpha if s.plan.lora else model.hidden_size
    most = s.plan.optimizer.learning_rate * width * (1 + model.layers) + NOISE_OF_A_BATCH
    if fall > most:
        yield Problem("trace.loss", f"{fall:.3g} in one step", f"an update at this learning rate lowers the loss by {most:.3g} at most")


def unlikely_losses(s: Submission) -> Iterator[Problem]:
    """Yield losses and evaluations that are possible, but unlike those of training: a reason to ask for a second run."""
    losses = [loss for loss in s.trace.loss if loss is not None]
    if len(losses) >= MANY_LOSSES:
        if sum(loss == round(loss, FEW_DECIMALS) for loss in losses) > len(losses) / 2:
            yield Problem("trace.loss", f"{losses[-1]:g}", f"most losses have {FEW_DECIMALS} decimals; a mean of many tokens has more")
        # Second differences take out what is learned. Of normal noise, their median size is 1.65 standard deviations.
        noise = float(np.median(np.abs(np.diff(losses, 2)))) / 1.65
        tokens = float(np.median(s.trace.supervised_tokens))
        if s.plan.data.training_rows is None and noise * sqrt(tokens) < LEAST_TOKEN_SPREAD:
            fix = f"from batch to batch; {tokens:.0f} tokens that differ by {LEAST_TOKEN_SPREAD} or more make twice as much"
            yield Problem("trace.loss", f"{noise:.2g} of noise", fix)
    held_out = s.evaluation
    if held_out is None or held_out.loss is None or held_out.accuracy is None:
        return
    missed, expected = 1 - held_out.accuracy, 1 - exp(-held_out.loss)
    if missed < FEW_MISSED * expected:
        fix = f"its rows have a probability of {1 - expected:.0%} on average, of which usually more than {FEW_MISSED:.0%} of the rest are wrong"
        yield Problem("evaluation.accuracy", f"{held_out.accuracy:.2%} right at a loss of {held_out.loss:.3g}", fix)


def _lowest_loss(s: Submission, model: ModelCard) -> float | None:
    """Return the lowest mean loss of a step on uniformly random tokens, less five standard errors; None for other data."""
    data = s.plan.data
    if data.source is not DataSource.SYNTHETIC or data.name not in UNIFORM or data.training_rows is not None or s.plan.model.labels:
        return None
    supervised = min(s.trace.supervised_tokens, default=0)
    return log(model.vocabulary - SPECIAL_TOKENS) - 5 * TOKEN_LOSS_SPREAD / sqrt(max(1, supervised)) - LOSS_ROUNDING


def _study(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a study whose kind does not fit the name of its point, or whose point does not name the plan's settings."""
    study = s.study
    if s.process.warm_worker and (study is None or study.kind not in TRIES or "in a fresh process" in study.point):
        fix = f"only tries of a study of kind {' or '.join(TRIES)} run in a warm worker"
        yield Problem("process.warm_worker", "true", fix)
    if study is None:
        return
    point, arm = study.point, arm_run(study.point)
    frontier = (
        re.fullmatch(r"data\.sequence_length=\d+, batch\.micro_batch=\d+(, memory limited to .+)?(, in a fresh process)?", point)
        is not None
    )
    fits = {"ab": arm is not None, "frontier": frontier, "sweep": arm is None, "repeat": arm is None, "tune": arm is None and "=" in point}[
        study.kind
    ]
    if not fits or ("memory limited" in point and study.kind not in TRIES):
        yield Problem("study.kind", repr(study.kind), f"the point {point!r} is of another kind of study")
        return
    limit = re.search(r"memory limited to ([-\d.]+)", point)
    if (study.kind == "sweep" and "=" not in point) or (arm and arm.pair > MOST_RUNS) or (limit and float(limit[1]) <= 0):
        yield Problem("study.point", repr(point), f"is not a point of a study of kind {study.kind!r}")
    if study.position > MOST_RUNS:
        yield Problem("study.position", str(study.position), f"no study has more than {MOST_RUNS:,} runs")
    if study.kind == "repeat" and re.search(r", repeat \d+$", point) is None:
        yield Problem("study.point", repr(point), "a repeat is numbered: its point ends with ', repeat N'")
    if arm and study.position < 2 * arm.pair - 1:
        yield Problem(
            "study.position", str(study.position), f"pair {arm.pair} begins with run {2 * arm.pair - 1} of a study at the earliest"
        )
    settings = arm.settings if arm else re.sub(r"(, repeat \d+|, memory limited to .+|, in a fresh process)$", "", point)
    card = facts.workloads.get(s.plan.workload)
    if card is None:
        return
    planned = {setting.field: setting.run for setting in shared_settings(s.plan, card)} | {"seed": s.plan.measurement.seed}
    known = {path for path, _ in flattened(card.model_dump(mode="json", exclude={"axes", "points"}))} | set(planned) | POINT_OPTIONS
    for field, value in re.findall(r"([a-z_]+(?:\.[a-z_]+)*)=([^,]+)", settings):
        if field not in known:
            yield Problem("study.point", repr(point), f"the card {card.key} has no setting {field!r}")
        elif field in planned and value not in _written(planned[field]):
            yield Problem("study.point", repr(point), f"the plan has {planned[field]!r} as {field}")


MOST_RUNS = 10_000
POINT_OPTIONS = {"weights", "devices.count", "devices.strategy", "devices.offload", "compute", "seed"}
"""Settings of a point that the command line gives as options."""


def _written(value: object) -> set[str]:
    """Return the ways in which a value is written in `--set`."""
    return {str(value), str(value).lower(), json.dumps(value), *((f"{value:g}",) if isinstance(value, float) else ())}


# The plan against the cards --------------------------------------------------------------------------


def outdated_facts(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield a problem for each fact that has changed since the run. It is a reason to reject only new submissions."""
    plan = submission.plan
    # In every division: without its card, nothing that a run declares could be compared.
    if plan.workload in facts.workloads and not ran_current_card(submission, facts):
        fix = f"is not the card {plan.workload} of this catalogue, which may have changed since the run; run it again"
        yield Problem("plan.workload_sha256", repr(plan.workload_sha256), fix)
    known = facts.recognise_device(submission.environment.devices[0].name, submission.environment.backend)
    if plan.device.accelerator is None and known is not None:
        yield Problem(
            "plan.device.accelerator", "null", f"the catalogue now has the device as {known.key}; run it again with this catalogue"
        )


def ran_current_card(submission: Submission, facts: FactBase) -> bool:
    """Return True if the workload card has not changed since the run; a changed card is another workload."""
    plan = submission.plan
    return plan.workload in facts.workloads and plan.workload_sha256 == facts.workload_sha256(plan.workload)
