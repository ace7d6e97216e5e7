"""Quantities of relations.toml that follow from shapes, peaks and capacities, by the ledgers of `schema.physics`."""

import re
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from tunemark.collector.gate.run_facts import STACKS, Run
from tunemark.schema.formats import GB
from tunemark.schema.physics.memory import NF4_BLOCK, count_weights, fp8_scales
from tunemark.schema.physics.training_shape import BYTES
from tunemark.schema.physics.utilisation import TERA, part_of_card
from tunemark.schema.vocabulary import BLOCK_SCALES, DEEPSPEED, FP8_SCALES, Backend, Dtype, Method, Phase, Strategy, Weights

FORMATS = ("fp32", "bf16", "fp16", "fp8", "int8", "uint8", "tf32")
SMALL_STATES = 2**16
"""Bytes for numbers of steps, one for each tensor, and for blocks that are not full."""
PADDED = 1.05
"""Largest shard over the mean: shards are padded to whole rows."""
PROBE_DISTURBED = 4.0
"""Training over the probe before which other work ran: an honest run on two cores with a load of 9 had 1.56."""
FASTEST_DEVICE = 2e16
"""FLOP/s above any device of today, in any format of training."""
FASTEST_CORE = 1e13
"""FLOP/s above any core of a CPU, with matrix units."""
STACK_BITS = 1_024
"""Width of the bus of one stack of memory."""
REACHABLE = {True: 0.85, False: 0.9}
"""Training over the dense peak, at most: stacked memory (True) comes with a power limit below the clock of the peak; the best known is below
0.8."""

Range = tuple[float, float] | None
"""The least and the most."""
QUANTITIES: dict[str, Callable[..., Any]] = {
    "stored_bytes": lambda r: sum(r.s.model.parameter_bytes.values()) if r.s.model else None,
    "probe_size": lambda r: {Backend.CPU: 1_024, Backend.MPS: 4_096}.get(r.backend, 8_192),
    "different_rates": lambda r: r.s.probe is None or r.s.probe.before_flop_per_s != r.s.probe.after_flop_per_s,
    "highest_probe": lambda r: _probe_peak(r) or (FASTEST_CORE * r.environment.cpu_usable_cores if r.cpu else FASTEST_DEVICE),
    "median_rate": lambda r: float(np.median(r.flops / r.times)) if r.flops.sum() else None,
    "best_rate": lambda r: float((r.flops / r.times).max()) if r.flops.sum() else None,
    "check_s": lambda r: sum(r.lasted(Phase.CHECK)) or None if any(gate.passed is not None for gate in r.s.gates) else None,
    "part_of_micro_step_s": lambda r: 0.2 * float(np.median(r.times)) / r.plan.batch.gradient_accumulation if r.steps else None,
    "least_load_s": lambda r: (
        r.s.model and r.card and r.card.memory_bandwidth_gb_s and QUANTITIES["stored_bytes"](r) / (r.card.memory_bandwidth_gb_s * GB)
    ),
    "load_s": lambda r: min(r.lasted(Phase.LOAD), default=None),
    "probe_s": lambda r: min(r.lasted(Phase.PROBE), default=None),
}
"""Name in relations.toml -> quantity or condition; those below are of several lines."""


# Sizes


def parameters(r: Run) -> Range:
    """Return the parameters of the model by its card: a classifier may have no output projection, and has a head."""
    if r.weights is None or r.model is None:
        return None
    labels = r.plan.model.labels or 0
    embedding = r.model.vocabulary * r.model.hidden_size if labels and not r.model.tied_embeddings else 0
    # Encoders have a pooler or a dense layer in their head, which the card counts.
    head = (labels + 1) * r.model.hidden_size + labels if labels else 0
    return (_whole(r) - embedding) * (1 - _tolerance(r)), (_whole(r) + 2 * head) * (1 + _tolerance(r))


def _whole(r: Run) -> int:
    weights = count_weights(replace(r.shape, tensor_parallel=1)) if r.shape else None
    return weights.plain + weights.quantised + weights.adapters if weights else 0


def _tolerance(r: Run) -> float:
    """Return the share by which a checkpoint may differ from its card in a bias or a buffer; random weights are made from the card."""
    return 0.0 if r.plan.model.weights is Weights.RANDOM and not r.plan.model.labels else 0.01


def adapter_bytes(r: Run) -> Range:
    """Return the bytes of adapters; a run that ended before its last step was weighed before it was sharded."""
    if r.weights is None:
        return None
    least = 0.99 * (r.trained_bytes or 1.9) * r.weights.adapters / r.weight_shards
    return least, 1.01 * PADDED * (r.trained_bytes or 4.2) * r.weights.adapters / _weighed_shards(r)


def _weighed_shards(r: Run) -> int:
    return r.own_shards if r.s.model and r.s.model.optimizer_state_bytes is not None else 1


def weight_bytes(r: Run) -> Range:
    """Return the bytes of all parameters, with the scales of quantised ones at most. ZeRO 3 holds some whole while it counts."""
    whole = _stored(r)
    if whole is None or r.weights is None or r.model is None:
        return None
    # One fp32 scale for each block of 64 weights.
    scales = 4 * fp8_scales(r.model) if r.plan.model.frozen_weights == "fp8" else r.weights.quantised * 4 / NF4_BLOCK * 1.1
    most = 1.01 * (whole + 4 * r.weights.adapters + scales) / _weighed_shards(r) * (PADDED if r.weight_shards > 1 else 1.0)
    return 0.99 * (whole + 2 * r.weights.adapters) / r.weight_shards, most


def _stored(r: Run) -> float | None:
    if r.weights is None or r.s.model is None or r.device.offload != "none":
        return None
    each = BYTES[Dtype.FP8 if r.plan.model.frozen_weights == "fp8" else Dtype.NF4]
    plain = r.s.model.parameters - r.weights.adapters - r.weights.quantised
    return plain * BYTES[r.plan.precision.parameters] + r.weights.quantised * each


def strange_format(r: Run) -> str | None:
    """Return the first number format of parameters that the plan does not store, or an empty text."""
    if r.s.model is None:
        return None
    stored, quantised = r.s.model.parameter_bytes, r.plan.method is Method.QLORA
    strange = [name for name in stored if name not in {*FORMATS, FP8_SCALES} and "4-bit blocks" not in name]
    strange += [name for name in stored if not quantised and (name == "uint8" or "4-bit" in name)]
    needed = {r.plan.precision.parameters.value, *(("uint8", BLOCK_SCALES) if quantised else ())}
    return next(iter([*strange, *(f"no {name}" for name in sorted(needed - set(stored)))]), "")


# Gradients, optimizer states and what is saved


def gradient_bytes(r: Run) -> Range:
    """Return the bytes of gradients: experts may have none, and weights that the gate names."""
    if r.s.model is None or r.weights is None:
        return None
    most = 1.01 * (_width(r) or 4.1) * (PADDED if r.own_shards > 1 else 1.0)
    return _trained(r, 0.99 * _reached(r) * (_width(r) or 1.8)) / r.own_shards, _trained(r, most) / r.own_shards


def state_bytes(r: Run) -> Range:
    """Return the bytes of optimizer states."""
    if r.s.model is None or r.weights is None:
        return None
    low, high = _state_widths(r)
    parts = r.state_shards if r.device.strategy in DEEPSPEED else r.own_shards
    most = 1.01 * _trained(r, high) / parts * (PADDED if r.state_shards > 1 else 1.0) + SMALL_STATES
    return 0.99 * _trained(r, low) / r.state_shards, most


def _trained(r: Run, width: float) -> float:
    return width * r.s.model.trainable_parameters if r.s.model else 0.0


def _width(r: Run) -> float | None:
    return None if r.device.strategy in DEEPSPEED else r.trained_bytes


def _reached(r: Run) -> float:
    """Return the share of the trained weights that surely have a gradient."""
    gate = r.gate("adapter_gradient")
    found = re.match(r"a gradient reaches (\d+) of (\d+) ", gate.detail if gate else "")
    return 1.0 if r.model and r.model.experts is None and (found is None or found[1] == found[2]) else 0.5


def _state_widths(r: Run) -> tuple[float, float]:
    """Return the least and most bytes of optimizer states by trained weight."""
    settings, size = r.plan.optimizer, r.trained_bytes
    low, high = STACKS["state_bytes"][settings.name]
    if size and settings.name == "adamw":
        low, high = 2 * size * _reached(r), 2 * size
    if settings.master_weights:
        # Two moments and the weight itself, all in fp32.
        low, high = 12.0, 12.6
    if r.device.strategy in DEEPSPEED or r.device.offload != "none":
        # States of DeepSpeed include master weights, and may be on the host.
        whole = r.device.offload == "none" and size == BYTES[Dtype.FP32] and settings.name == "adamw"
        low, high = (low, high) if whole else (0.0, high + 4)
    return low, high


def held_bytes(r: Run) -> float | None:
    """Return the weights, gradients and states that a step holds at once; ZeRO 3 holds part of them."""
    ran = r.s.model
    if ran is None or not r.steps or r.device.offload != "none" or r.weights is None:
        return None
    stored = sum(ran.parameter_bytes.values()) * (0.5 if r.device.strategy is Strategy.ZERO3 else 1.0)
    states = 0 if r.plan.optimizer.name.startswith("paged") else ran.optimizer_state_bytes or 0
    return stored + states + (ran.gradient_bytes or 0)


# Rates


def _probe_peak(r: Run) -> float | None:
    peak, part = (r.card.peak_tflops.get(r.s.probe.dtype), part_of_card(r.s, r.card)) if r.card and r.s.probe else (None, None)
    headroom = r.card.cpu.headroom() if r.card and r.card.cpu else 1.0
    return part * peak * headroom * TERA if peak and part and headroom else None


def highest_rate(r: Run) -> float | None:
    """Return the highest rate of training, in FLOP/s, on all devices.

    It is a share of the dense peak, several times the probe, or above any device of today. Training above the probe is doubted.
    """
    if not r.flops.sum():
        return None
    stacked = r.card is not None and (r.card.memory_bus_bits or 0) >= STACK_BITS
    headroom = (r.card.cpu.headroom() or inf) if r.card and r.card.cpu else REACHABLE[stacked]
    return min(r.peak * headroom if r.peak else inf, PROBE_DISTURBED * r.probed if r.probed else inf, FASTEST_DEVICE * r.count)


def micro_rate(r: Run) -> float | None:
    """Return the FLOP/s of the micro-steps, which compute all products of their steps."""
    starts = (r.trace.started_at_s, *r.trace.completed_at_s)
    timed = [(work, part[-1] - start) for work, start, part in zip(r.flops, starts, r.trace.micro_completed_at_s, strict=False) if part]
    spent_s = sum(seconds for _, seconds in timed)
    return float(sum(work for work, _ in timed)) / spent_s if spent_s else None
