"""Checks of the model that ran: its size against its card, its states and memory against its size, its speed against the device.

Every figure is derived a second time from the plan and the cards, with the ledgers of `schema.physics`, and compared.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from tunemark.schema.facts.cards import AcceleratorCard, ModelCard
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import flop_per_s
from tunemark.schema.physics.architecture import block_linears
from tunemark.schema.physics.memory_states import EIGHT_BIT_BLOCK, NF4_BLOCK, SCALES_BLOCK, count_weights, fp8_scales
from tunemark.schema.physics.memory_states import Weights as WeightCounts
from tunemark.schema.physics.training_shape import BYTES, TrainingShape, shape_of_plan, shape_problem
from tunemark.schema.physics.utilisation import TERA, executed_peak, flops_of_steps, part_of_card, probed_flop_per_s
from tunemark.schema.records.effective import OPTIMIZER_CLASSES, SHORT_NAMES
from tunemark.schema.records.submission import ModelFacts, Submission
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.vocabulary import (
    BLOCK_OFFSET,
    BLOCK_SCALES,
    DEEPSPEED,
    FP8_SCALES,
    SCALES_OF_BLOCK_SCALES,
    SHARDED_STATES,
    SHARDED_WEIGHTS,
    Backend,
    Dtype,
    Method,
    Status,
    Strategy,
    Weights,
)

COUNT_TOLERANCE = 0.01
"""Parameters of a checkpoint and of its card may differ in a bias or a buffer."""
BYTE_FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "uint8", "tf32")
SCALES = 4 / 64 * 1.1
"""Bytes of scales by quantised weight, without double quantisation."""
STATE_BYTES = {"adamw": (3.8, 8.5), "adamw_8bit": (1.9, 8.5), "paged_adamw_8bit": (0.0, 8.5), "sgd": (0.0, 0.0), "adafactor": (0.0, 4.2)}
"""Bytes of optimizer states by trained weight: two moments of 16 or 32 bits, of 8 bits for large tensors, none (the harness's SGD has no
momentum), or factors, which are one number a weight for the narrowest matrices."""
SMALL_STATES = 2**16
"""Bytes for numbers of steps, one for each tensor, and for blocks that are not full."""
SAVED_BESIDE = 2**22
"""Bytes of the headers of saved tensors and their settings."""
FP32_BYTES = 4
PADDED = 1.05
"""Largest shard over the mean: shards are padded to whole rows."""
SMALLEST_IN_8_BITS, EIGHT_BIT_TABLES = 4_096, 2_048
"""Weights of a tensor from which bitsandbytes keeps its moments in 8 bits, and bytes of the two tables of values beside them."""
FLOOR_TOLERANCE = 0.95
WARMUP_STEPS, SURELY_SAMPLED_S = 10, 2.0
PEAK_TOLERANCE = 1.05
"""Dense peaks are given for a nominal clock; some devices boost a little above it."""
PROBE_TOLERANCE = 1.5
"""Training over the matrix rate of the probe. The probe may be disturbed, and training is never much faster than large products."""
LOWEST_PROBE = 0.01
"""Probe over the dense peak below which the device is another one."""
FEW_DIGITS = 4
HIGHEST_PROBE, STACKED_BITS = 0.92, 1_024
"""Probe over the dense peak of devices with stacked memory, which power limits before the clock of their peak."""
HIGHEST_KNOWN, LOWEST_KNOWN = 0.8, 0.005
"""Executed FLOP/s over the dense peak, of all known training."""
OWN_TOLERANCE, TRAFFIC_TOLERANCE = 1.25, 1.25
"""Own work is timed on another clock than steps; caches of a device may keep a part of what is read twice."""
USUAL_OVER_PROBE = {Backend.CPU: 0.7}
"""Training over the matrix rate of the probe, usually at most; 1 on other devices. Of all committed runs it is below 0.65."""
LAUNCH_S = 0.02
"""Time of a layer's kernels in one micro-batch from which launching does not explain it."""
REACHABLE, REACHABLE_STACKED, LATE_MARK = 0.9, 0.85, 3.0
"""Largest training rate over the dense peak: of any device, and of one with stacked memory, whose power limit keeps it below the clock of
its peak (the best known is below 0.8). Factor for a single step: a late time mark lengthens one step and shortens the next."""
CORE_FLOP_PER_S = {Dtype.FP32: 1e12}
FASTEST_CORE = 1e13
"""FLOP/s above any core of a CPU, in fp32 with vectors and in other formats with matrix units."""
X86, X86_FLOP_PER_CYCLE = re.compile("x86_64|AMD64"), 64
"""Two multiply-adds on vectors of sixteen fp32 numbers: AVX-512 with two units, the widest of x86."""
CLOCKS = (("Xeon|EPYC", 4.5e9), ("", 6.2e9))
"""Highest clock of all cores of servers under such products, and of any x86 CPU that is sold."""
PROBE_SIZES, PROBE_SIZE = {Backend.CPU: 1_024, Backend.MPS: 4_096}, 8_192
FASTEST_DEVICE = 2e16
"""FLOP/s above any device of today, in any format of training."""
SLOW_S, SLOWEST_SHARE = 60.0, 0.0005
"""A step takes no longer than this plus its work at this share of the rate: waiting and launching take seconds, not hours."""


def model_problems(submission: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield each fact about model, memory and speed that the plan and the cards rule out."""
    model = facts.models.get(submission.plan.model.key)
    card = facts.accelerators.get(submission.plan.device.accelerator or "")
    if submission.outcome.status is Status.OK:
        for name in ("model", "effective", "utilisation"):
            # A short steady window may lie between two samples.
            sampled = name != "utilisation" or sum(submission.trace.step_times_s[WARMUP_STEPS:]) > SURELY_SAMPLED_S
            if getattr(submission, name) is None and sampled:
                yield Problem(name, "null", "a successful run records it; keep the original record")
    yield from _probe(submission, card)
    if submission.model is None or model is None or shape_problem(submission.plan, model) is not None:
        return
    shape = shape_of_plan(submission.plan, model)
    weights = count_weights(shape)
    yield from _parameters(submission, submission.model, shape, model)
    yield from _stored(submission, submission.model, weights, model)
    yield from _states(submission, submission.model, shape)
    yield from _saved(submission, submission.model, model)
    yield from _speed(submission, model, card)


def _parameters(s: Submission, ran: ModelFacts, shape: TrainingShape, card: ModelCard) -> Iterator[Problem]:
    weights = count_weights(replace(shape, tensor_parallel=1))
    base, adapters = weights.plain + weights.quantised, weights.adapters
    labels = s.plan.model.labels
    head = (labels + 1) * card.hidden_size + labels if labels else 0
    # A classifier of a language model has no output projection, and peft keeps a frozen copy of a trained head.
    embedding = card.vocabulary * card.hidden_size if labels and not card.tied_embeddings and card.family != "bert" else 0
    # Random weights of a language model are made from the card, to the parameter.
    tolerance = 0.0 if s.plan.model.weights is Weights.RANDOM and not labels else COUNT_TOLERANCE
    low, high = (base + adapters - embedding) * (1 - tolerance), (base + 2 * head + adapters) * (1 + tolerance)
    if not low <= ran.parameters <= high:
        fix = f"the card {card.key} has {base:,}{f' and the adapters {adapters:,}' if adapters else ''}; another model ran, or the count is wrong"
        yield Problem("model.parameters", f"{ran.parameters:,}", fix)
    if labels and s.plan.model.weights is Weights.RANDOM and low <= ran.parameters <= high:
        # With or without a bias, and with the frozen copy that peft keeps.
        own, copied = ran.parameters - (base + adapters - embedding), (1,) if shape.method is Method.FULL else (1, 2)
        if own not in {copies * (labels * card.hidden_size + bias) for copies in copied for bias in (0, labels)}:
            fix = f"{own:,} more than the card {card.key} has; a head of {labels} classes has {labels * card.hidden_size + labels:,}"
            yield Problem("model.parameters", f"{ran.parameters:,}", fix)
    if ran.trainable_parameters > ran.parameters:
        fix = f"more than all {ran.parameters} parameters; count tied ones once in both"
        yield Problem("model.trainable_parameters", str(ran.trainable_parameters), fix)
    elif shape.method is Method.FULL and ran.trainable_parameters != ran.parameters:
        fix = f"full fine-tuning trains all {ran.parameters:,} parameters"
        yield Problem("model.trainable_parameters", f"{ran.trainable_parameters:,}", fix)
    elif shape.method is not Method.FULL and not adapters * 0.99 <= ran.trainable_parameters <= (adapters + head) * 1.01:
        fix = f"adapters of rank {shape.lora_rank} on {', '.join(shape.lora_targets)} have {adapters:,} weights"
        yield Problem("model.trainable_parameters", f"{ran.trainable_parameters:,}", fix)
    if (ran.adapter_bytes > 0) != (shape.method is not Method.FULL):
        yield Problem(
            "model.adapter_bytes", str(ran.adapter_bytes), f"plan.method is {shape.method.value!r}; only lora and qlora have adapters"
        )
    elif ran.adapter_bytes:
        size = _trained_size(s)
        low, high = (0.99 * size, 1.01 * size * PADDED) if size else (1.9, 4.2)
        whole = _shards(s) if s.plan.device.strategy is Strategy.FSDP2 and ran.optimizer_state_bytes is not None else 1
        if not low * adapters / _shards(s) <= ran.adapter_bytes <= high * adapters / whole:
            fix = f"{adapters:,} weights of adapters take {f'{size:g}' if size else '2 or 4'} bytes each"
            yield Problem("model.adapter_bytes", str(ran.adapter_bytes), fix)


def _trained_size(s: Submission) -> float | None:
    """Return the bytes of a trained weight, if all have one format."""
    formats = {SHORT_NAMES.get(name.removeprefix("torch.")) for name in s.effective.trainable_dtypes} if s.effective else set()
    only = next(iter(formats)) if len(formats) == 1 else None
    return BYTES[Dtype(only)] if only else None


def _shards(s: Submission) -> int:
    return s.plan.device.count if s.plan.device.strategy in SHARDED_WEIGHTS else s.plan.device.tensor_parallel


def _stored(s: Submission, ran: ModelFacts, weights: WeightCounts, model: ModelCard) -> Iterator[Problem]:
    """Yield weights whose bytes or formats are not those of the plan."""
    stored, quantised = sum(ran.parameter_bytes.values()), s.plan.method is Method.QLORA
    planned, strategy, in_fp8 = s.plan.precision.parameters, s.plan.device.strategy, s.plan.model.frozen_weights == "fp8"
    each = BYTES[Dtype.FP8 if in_fp8 else Dtype.NF4]
    whole = (ran.parameters - weights.adapters - weights.quantised) * BYTES[planned] + weights.quantised * each
    scales = 4 * fp8_scales(model) if in_fp8 else weights.quantised * SCALES
    low, high = whole + 2 * weights.adapters, whole + 4 * weights.adapters + scales
    if s.plan.device.offload == "none":
        # FSDP2 pads each shard. ZeRO 3 holds some parameters whole while it counts.
        low = low * 0.99 / _shards(s)
        # A run that ended before its last step was weighed before it was sharded.
        sharded = s.plan.device.count if strategy is Strategy.FSDP2 and ran.optimizer_state_bytes is not None else 1
        high = high * 1.01 / sharded * (PADDED if _shards(s) > 1 else 1.0)
        if not low <= stored <= high:
            form = "4 bits" if quantised else "fp8" if in_fp8 else planned.value
            fix = f"{ran.parameters:,} parameters in {form} take between {low:,.0f} and {high:,.0f} bytes"
            yield Problem("model.parameter_bytes", f"{stored:,}", fix)
    if planned.value not in ran.parameter_bytes:
        yield Problem(
            "model.parameter_bytes", ", ".join(ran.parameter_bytes), f"plan.precision.parameters is {planned.value!r}; none has it"
        )
    unknown = [name for name in ran.parameter_bytes if name not in (*BYTE_FORMATS, FP8_SCALES) and "4-bit blocks" not in name]
    if unknown:
        yield Problem("model.parameter_bytes", repr(unknown[0]), f"is not a number format; known are {', '.join(BYTE_FORMATS)}")
    exact = {"fp8": weights.quantised, FP8_SCALES: 4 * fp8_scales(model)} if in_fp8 else {"fp8": 0, FP8_SCALES: 0}
    for name, size in exact.items():
        stored = ran.parameter_bytes.get(name, 0)
        if stored != size:
            fix = f"plan.model.frozen_weights is {s.plan.model.frozen_weights!r}; the matrices of the blocks then take {size:,} bytes"
            yield Problem(f"model.parameter_bytes.{name}", f"{stored:,}", fix)
    if not quantised and ("uint8" in ran.parameter_bytes or any("4-bit" in name for name in ran.parameter_bytes)):
        yield Problem(
            "model.parameter_bytes", "4-bit blocks", f"plan.method is {s.plan.method.value!r}; only qlora stores weights in 4 bits"
        )
    if quantised and not ("uint8" in ran.parameter_bytes and BLOCK_SCALES in ran.parameter_bytes):
        fix = "qlora stores the matrices of the blocks as uint8, with the scales of their blocks"
        yield Problem("model.parameter_bytes", ", ".join(ran.parameter_bytes), fix)
    elif quantised:
        yield from _scales(s, ran, weights, model)


def _scales(s: Submission, ran: ModelFacts, weights: WeightCounts, model: ModelCard) -> Iterator[Problem]:
    """Yield four-bit weights and scales of other sizes than follow from their blocks. Scales are attributes, which nothing shards."""
    double = s.plan.quantisation is not None and s.plan.quantisation.double
    matrices = [linear.inputs * linear.outputs for linear in block_linears(model)] * model.layers
    # Experts may be stored together, which changes only how many blocks are partly filled.
    scales = [-(-size // NF4_BLOCK) for size in matrices] if model.experts is None else [weights.quantised // NF4_BLOCK]
    exact = model.experts is None and sum(matrices) == weights.quantised
    expected = {
        "uint8": weights.quantised / 2,
        BLOCK_SCALES: sum(scales) * (1 if double else 4),
        SCALES_OF_BLOCK_SCALES: 4 * sum(-(-count // SCALES_BLOCK) for count in scales) if double else 0,
        BLOCK_OFFSET: 4 * len(matrices) if double else 0,
    }
    shards, listed = _shards(s), BLOCK_OFFSET in ran.parameter_bytes
    for name, size in expected.items():
        stored = ran.parameter_bytes.get(name, 0)
        slack = 0.02 * size if exact else 0.05 * size + SMALL_STATES
        if name == BLOCK_OFFSET and not (listed and exact):
            continue
        if not (size - slack) / shards - 1 <= stored <= size + slack:
            fix = f"{weights.quantised:,} weights in blocks of {NF4_BLOCK}, scales {'quantised too' if double else 'in fp32'}, have {size:,.0f}"
            yield Problem(f"model.parameter_bytes.{name}", f"{stored:,}", fix)


def _reached(s: Submission, model: ModelCard) -> float:
    """Return the share of the trained weights that surely have a gradient: experts may have none, or weights that the gate names."""
    gate = next((gate.detail for gate in s.gates if gate.name == "adapter_gradient"), "")
    found = re.match(r"a gradient reaches (\d+) of (\d+) ", gate)
    return 1.0 if model.experts is None and (found is None or found[1] == found[2]) else 0.5


def _eight_bit(shape: TrainingShape, ran: ModelFacts) -> float:
    """Return the bytes of the states of bitsandbytes' 8-bit AdamW: two bytes a weight, scales and two tables for a large tensor."""
    if shape.adapted:
        tensors = [shape.lora_rank * width for linear in shape.adapted for width in (linear.inputs, linear.outputs)] * shape.model.layers
    else:
        embeddings = 1 if shape.model.tied_embeddings else 2
        blocks = [linear.weights for linear in block_linears(shape.model)] * shape.model.layers
        tensors = [*blocks, *[shape.model.vocabulary * shape.model.hidden_size] * embeddings]
    large = [size for size in tensors if size >= SMALLEST_IN_8_BITS]
    rest = max(0, ran.trainable_parameters - sum(large))
    return sum(2 * size * (1 + 4 / EIGHT_BIT_BLOCK) + EIGHT_BIT_TABLES for size in large) + 8 * rest


def _states(s: Submission, ran: ModelFacts, shape: TrainingShape) -> Iterator[Problem]:
    """Yield gradients and optimizer states that a run with these weights cannot have."""
    if s.outcome.status is not Status.OK or not len(s.trace):
        return
    strategy, trained, count = s.plan.device.strategy, ran.trainable_parameters, s.plan.device.count
    shards, size = count if strategy in SHARDED_STATES else 1, _trained_size(s)
    gradients, states = ran.gradient_bytes, ran.optimizer_state_bytes
    neuron, own = s.plan.device.backend is Backend.NEURON, count if strategy is Strategy.FSDP2 else 1
    if gradients is None:
        if strategy not in DEEPSPEED and not neuron:
            yield Problem("model.gradient_bytes", "null", "only DeepSpeed and Neuron hide their gradients; a run that trained has them")
    else:
        width = (
            (0.99 * _reached(s, shape.model) * size, 1.01 * size)
            if size and strategy not in DEEPSPEED
            else (1.9 * FLOOR_TOLERANCE, 4.1 * 1.01)
        )
        if not width[0] * trained / own <= gradients <= width[1] * trained / own * (PADDED if own > 1 else 1.0):
            fix = f"{trained:,} trained weights{f' / {own}' if own > 1 else ''} have gradients of {f'{size:g}' if size else '2 or 4'} bytes each"
            yield Problem("model.gradient_bytes", str(gradients), fix)
    low, high = STATE_BYTES[s.plan.optimizer.name]
    if size and s.plan.optimizer.name == "adamw":
        low, high = 2 * size * _reached(s, shape.model), 2 * size
    elif "8bit" in s.plan.optimizer.name:
        high = _eight_bit(shape, ran) / trained
        low = 0.0 if s.plan.optimizer.name.startswith("paged") else 2.0 * _reached(s, shape.model)
    ran_as = s.effective.optimizer.split()[-1] if s.effective else ""
    if ran_as == OPTIMIZER_CLASSES["sgd"] and strategy not in DEEPSPEED:
        low, high = STATE_BYTES["sgd"]
    if s.plan.optimizer.master_weights:
        # Two moments and the weight itself, all in fp32.
        low, high = 12.0, 12.6
    if strategy in DEEPSPEED or s.plan.device.offload != "none":
        # States of DeepSpeed include master weights, and may be on the host.
        whole = s.plan.device.offload == "none" and size == FP32_BYTES and s.plan.optimizer.name == "adamw"
        low, high = (low, high) if whole else (0.0, high + 4)
    if states is None:
        if not neuron:
            yield Problem("model.optimizer_state_bytes", "null", "a successful run has read the states of its optimizer")
    elif (
        not low * trained / shards * 0.99
        <= states
        <= high * trained / (shards if strategy in DEEPSPEED else own) * 1.01 * (PADDED if shards > 1 else 1.0) + SMALL_STATES
    ):
        fix = f"{s.plan.optimizer.name} keeps {low:g} to {high:g} bytes for each of {trained:,} trained weights{f' / {shards}' if shards > 1 else ''}"
        yield Problem("model.optimizer_state_bytes", str(states), fix)


def _saved(s: Submission, ran: ModelFacts, model: ModelCard) -> Iterator[Problem]:
    """Yield saved weights of another size than those that are saved: the trained ones, or all without adapters."""
    size = _trained_size(s)
    if s.saved_bytes is None or size is None or s.plan.device.tensor_parallel > 1:
        return
    written = size * ran.trainable_parameters
    # Formats of weights that are tied store them once or twice.
    high = written + (size * model.vocabulary * model.hidden_size if s.plan.method is Method.FULL else 0)
    if not 0.97 * written <= s.saved_bytes <= 1.03 * high + SAVED_BESIDE:
        fix = f"{ran.trainable_parameters:,} trained weights of {size:g} bytes were saved, {written:,.0f} bytes"
        yield Problem("saved_bytes", f"{s.saved_bytes:,}", fix)


# Speed


def _probe(s: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    probe, compute = s.probe, s.plan.precision.compute
    succeeded = s.outcome.status is Status.OK
    if probe is None:
        if succeeded and s.plan.measurement.probe and s.plan.device.backend is not Backend.NEURON and _has_room(s):
            yield Problem("probe", "null", "plan.measurement.probe is true; a successful run has it")
        return
    if not s.plan.measurement.probe:
        yield Problem("probe", f"{probe.size}", "plan.measurement.probe is false; such a run has none")
    if succeeded and probe.after_flop_per_s is None and _has_room(s):
        yield Problem("probe.after_flop_per_s", "null", "a successful run probes the device after training too")
    size = PROBE_SIZES.get(s.plan.device.backend, PROBE_SIZE)
    if probe.size != size:
        yield Problem("probe.size", str(probe.size), f"the probe of this back end multiplies matrices of {size} rows")
    if probe.dtype is not compute:
        fix = f"plan.precision.compute is {compute.value!r}; the probe must use the format of the run"
        yield Problem("probe.dtype", repr(probe.dtype.value), fix)
    if probe.before_flop_per_s == probe.after_flop_per_s:
        fix = "is the rate before training too, to the digit; each is a median of times"
        yield Problem("probe.after_flop_per_s", flop_per_s(probe.before_flop_per_s), fix)
    peak, part = (card.peak_tflops.get(probe.dtype), part_of_card(s, card)) if card else (None, None)
    # The cores of a CPU may run above the clock of its peak.
    headroom = card.cpu.headroom() if card and card.cpu else 1.0
    known = card is not None and peak is not None and part is not None and headroom is not None
    core = _fastest_core(s) * s.environment.cpu_usable_cores
    unknown = core if s.plan.device.backend is Backend.CPU else FASTEST_DEVICE
    most = part * peak * headroom * TERA if known and part and peak and headroom else unknown
    for name in ("before_flop_per_s", "after_flop_per_s"):
        rate = getattr(probe, name)
        if rate is not None and rate > most * PEAK_TOLERANCE:
            dense = (
                f"the dense peak of {card.name}, {most / TERA:g} TFLOP/s {probe.dtype.value}" if card and known else "any device of today"
            )
            fix = f"above {dense}; the probe did not wait for the device, or the device is another one"
            yield Problem(f"probe.{name}", flop_per_s(rate), fix)
        elif rate is not None and known and card and not card.cpu and rate < most * LOWEST_PROBE:
            fix = f"below {LOWEST_PROBE:.0%} of the dense peak of {card.name}; the unit is wrong, or the device is another one"
            yield Problem(f"probe.{name}", flop_per_s(rate), fix)
        elif rate is not None and rate < 1e8:  # noqa: PLR2004 - no core of today is that slow in large products
            yield Problem(f"probe.{name}", flop_per_s(rate), "no device multiplies matrices that slowly; check the unit")


def _fastest_core(s: Submission) -> float:
    """Return FLOP/s in the compute format that no core of this CPU reaches: FLOP per cycle x clock, for fp32 on x86."""
    if s.plan.precision.compute is not Dtype.FP32 or not X86.search(s.environment.os):
        return CORE_FLOP_PER_S.get(s.plan.precision.compute, FASTEST_CORE)
    return X86_FLOP_PER_CYCLE * next(clock for maker, clock in CLOCKS if re.search(maker, s.environment.cpu))


def _has_room(s: Submission) -> bool:
    """Return True if the memory of the device left room for a probe."""
    memory, total = s.memory, max((device.memory_bytes or 0 for device in s.environment.devices), default=0)
    peak = memory.device_reserved.peak_bytes or memory.device_used.peak_bytes or 0
    return not total or peak < 0.9 * total


def _speed(s: Submission, model: ModelCard, card: AcceleratorCard | None) -> Iterator[Problem]:
    """Yield steps that are faster than the peak of the devices, or slower than any working device."""
    times, flops = np.asarray(s.trace.step_times_s), flops_of_steps(s, model)
    if not flops.sum():
        return
    peak, probed = executed_peak(s, model, card), probed_flop_per_s(s).value
    headroom = (card.cpu.headroom() or inf) if card and card.cpu else 1.0
    reachable = 1.0 if card and card.cpu else REACHABLE_STACKED if _is_stacked(card) else REACHABLE
    limits = [(peak * reachable * headroom, f"{reachable:.0%} of the dense peak of the devices")] if peak else []
    if probed:
        limits.append((probed * PROBE_TOLERANCE, f"{PROBE_TOLERANCE:g} times the matrix rate in the probe"))
    limits.append((FASTEST_DEVICE * s.plan.device.count, "any device of today"))
    # A mark may come a little late, so that the next step seems short.
    rates, mean = flops / times, float(flops.sum() / times.sum())
    most, what = min(limits)
    claims = (
        (mean, 1.0, "over all steps"),
        (float(np.median(rates)), 1.0, "in most steps"),
        (float(rates.max()), LATE_MARK, "in one step"),
    )
    claim = next(((shown, which) for shown, factor, which in claims if shown > factor * most), None)
    if claim is not None:
        shown, which = claim
        fix = f"the model needs {flop_per_s(shown)} {which}, more than {what}, {flop_per_s(most)}; check the units and the clock"
        yield Problem("trace.completed_at_s", f"{float(np.median(times)):.3g} s per step", fix)
    yield from _own_work(s, flops, most, what)
    yield from _micro_steps(s, flops, most, what)
    yield from _traffic(s, card)
    known = probed or peak
    slowest = SLOW_S * s.plan.batch.gradient_accumulation + (float(flops.mean()) / (known * SLOWEST_SHARE) if known else 3_600.0)
    if float(np.median(times)) > slowest:
        fix = f"its {flop_per_s(float(flops.mean())).removesuffix('/s')} take at most {slowest:,.0f} s even at {SLOWEST_SHARE:.2%} of the rate of the device"
        yield Problem("trace.completed_at_s", f"{float(np.median(times)):.3g} s per step", fix)


def _is_stacked(card: AcceleratorCard | None) -> bool:
    """Return True for a device with stacked memory, as servers have."""
    return card is not None and (card.memory_bus_bits or 0) >= STACKED_BITS


def _own_work(s: Submission, flops: NDArray[np.float64], most: float, what: str) -> Iterator[Problem]:
    """Yield a rank whose own work is faster than its device: it computes its share of all products of a step in it."""
    share, count = float(flops.sum()) / s.plan.device.count, s.plan.device.count
    for index, rank in enumerate(s.ranks if len(s.ranks) == count and s.plan.batch.data_parallel == count else ()):
        own_s = sum(rank.own_work_s)
        if len(rank.own_work_s) == len(flops) and own_s and share / own_s > most / count * OWN_TOLERANCE:
            fix = f"its part of the model needs {flop_per_s(share / own_s)}, more than a device of {what}, {flop_per_s(most / count)}"
            yield Problem(f"ranks.{index}.own_work_s", f"{own_s:.3g} s", fix)


def _micro_steps(s: Submission, flops: NDArray[np.float64], most: float, what: str) -> Iterator[Problem]:
    """Yield micro-steps that are faster than the devices: they compute all products of their steps."""
    starts = (s.trace.started_at_s, *s.trace.completed_at_s)
    timed = [(work, inside[-1] - start) for work, start, inside in zip(flops, starts, s.trace.micro_completed_at_s, strict=False) if inside]
    spent_s = sum(seconds for _, seconds in timed)
    if spent_s > 0 and (rate := float(sum(work for work, _ in timed)) / spent_s) > most * OWN_TOLERANCE:
        fix = f"their products need {flop_per_s(rate)}, more than {what}, {flop_per_s(most)}"
        yield Problem("trace.micro_completed_at_s", f"{spent_s:.3g} s in {len(timed)} steps", fix)


def _traffic(s: Submission, card: AcceleratorCard | None) -> Iterator[Problem]:
    """Yield micro-steps and updates in less time than reading their weights, gradients and states once takes."""
    ran, plan = s.model, s.plan
    bandwidth = card.memory_bandwidth_gb_s if card is not None and not card.cpu else None
    whole = plan.device.strategy in {Strategy.SINGLE, Strategy.DDP} and plan.device.offload == "none" and plan.device.tensor_parallel == 1
    if ran is None or bandwidth is None or not whole or plan.optimizer.name.startswith("paged"):
        return
    per_s, starts = bandwidth * 1e9 / TRAFFIC_TOLERANCE, (s.trace.started_at_s, *s.trace.completed_at_s)
    ends = [
        (end - inside[-1], end - start)
        for start, end, inside in zip(starts, starts[1:], s.trace.micro_completed_at_s, strict=False)
        if inside
    ]
    # An update reads gradients, and reads and writes the trained weights and their states.
    update_s = (
        (ran.gradient_bytes or 0) + 2 * (_trained_size(s) or 0) * ran.trainable_parameters + 2 * (ran.optimizer_state_bytes or 0)
    ) / per_s
    if ends and float(np.median([after for after, _ in ends])) < update_s:
        fix = f"an update moves its weights, gradients and states through memory, which takes {update_s:.2g} s"
        yield Problem("trace.micro_completed_at_s", f"{float(np.median([after for after, _ in ends])):.2g} s of update", fix)
    # The forward and the backward pass of each micro-batch read all weights.
    passes_s = 2 * plan.batch.gradient_accumulation * sum(ran.parameter_bytes.values()) / per_s + update_s
    typical_s = float(np.median(s.trace.step_times_s))
    if typical_s < passes_s:
        fix = f"its micro-steps read all weights twice, which takes {passes_s:.2g} s"
        yield Problem("trace.completed_at_s", f"{typical_s:.3g} s per step", fix)


def unlikely_speed(s: Submission, facts: FactBase) -> Iterator[Problem]:
    """Yield speeds that are possible, but that no known training has: a reason to ask for a second run."""
    for name in ("before_flop_per_s", "after_flop_per_s") if s.probe else ():
        rate = getattr(s.probe, name)
        if rate is not None and rate == float(f"{rate:.{FEW_DIGITS - 1}e}"):
            yield Problem(f"probe.{name}", flop_per_s(rate), f"a quotient of a measured time has more than {FEW_DIGITS} digits")
    model, card = facts.models.get(s.plan.model.key), facts.accelerators.get(s.plan.device.accelerator or "")
    peak = executed_peak(s, model, card)
    reached = probed_flop_per_s(s).value
    usual = USUAL_OVER_PROBE.get(s.plan.device.backend, 1.0)
    if reached and model is not None and len(s.trace) and shape_problem(s.plan, model) is None:
        trained = float(flops_of_steps(s, model).sum()) / sum(s.trace.step_times_s)
        if trained > usual * reached:
            fix = f"large products reached {flop_per_s(reached)} in the probe, and training usually reaches {usual:.0%} of that at most"
            yield Problem("trace.completed_at_s", f"{flop_per_s(trained)} in training", fix)
    # Graphics cards may clock above the clock of their peak.
    if _is_stacked(card) and peak and reached and reached > HIGHEST_PROBE * peak:
        fix = f"no large products on such a device are known above {HIGHEST_PROBE:.0%} of its dense peak"
        yield Problem("probe.before_flop_per_s", f"{reached / peak:.0%} of the dense peak", fix)
    if (
        model is None
        or card is None
        or card.cpu
        or not peak
        or s.outcome.status is not Status.OK
        or shape_problem(s.plan, model) is not None
    ):
        return
    times, flops = np.asarray(s.trace.step_times_s), flops_of_steps(s, model)
    # Launching takes the time of small models, and copying that of offloaded ones.
    launched_s = LAUNCH_S * model.layers * s.plan.batch.gradient_accumulation * s.plan.device.count
    share = float(np.median(flops)) / float(np.median(times)) / peak
    if share > HIGHEST_KNOWN:
        yield Problem(
            "trace.completed_at_s", f"{share:.0%} of the dense peak", f"no training on a GPU is known above {HIGHEST_KNOWN:.0%} of it"
        )
    elif share < LOWEST_KNOWN and float(np.median(times)) > launched_s and s.plan.device.offload == "none":
        fix = f"no training without offloading is known below {LOWEST_KNOWN:.1%} of it, if its steps take longer than {launched_s:.3g} s"
        yield Problem("trace.completed_at_s", f"{share:.2%} of the dense peak", fix)
