"""Submissions in which everything follows from the plan, as in a real run: the gate derives it all again."""

import json
import random
from collections.abc import Callable
from math import ceil, log
from typing import Any

import numpy as np

from tunemark.schema.derive import derive
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.workloads import shared_settings
from tunemark.schema.measurement_warnings import loss_band, warnings_of_record
from tunemark.schema.physics.architecture import adapted_linears
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import count_weights
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.plan.machine import Machine
from tunemark.schema.plan.resolve import resolve
from tunemark.schema.records.division import division_of
from tunemark.schema.records.plan import Plan, Requested
from tunemark.schema.records.submission import DeviceFacts, Submission
from tunemark.schema.records.trace import StepTrace
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import MEMORY_TOOLS, Backend, Checkpointing, Method, Strategy, Task

FIRST_STEP_S, STEP_S, JITTER_S = 0.3, 0.05, 0.002
VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}
VERSIONS |= {"peft": "0.21.2", "bitsandbytes": "0.50.2", "deepspeed": "0.19.8", "nvidia-ml-py": "13.615.71"}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
PEAK_METHOD = "peak resident memory of the worker's processes (ru_maxrss, and every 0.2 s)"
SWAP_METHOD = "VmSwap of the worker's processes every 0.2 s"
USED_METHOD = "every 0.1 s, minus what was in use before the run"


def settle(content: dict[str, Any], facts: FactBase, steps: int, *, asked: Callable[[str], bool]) -> None:
    """Fill in everything that follows from the plan, the environment and the number of steps, unless a test asked for it."""
    try:
        plan = Plan.model_validate_json(json.dumps(content["plan"]))
        shape = shape_of_plan(plan, facts.models[plan.model.key])
    except (ValueError, KeyError, TunemarkError):
        # Such a plan is what the test is about.
        return
    if steps and not asked("plan.measurement.max_steps"):
        content["plan"]["measurement"]["max_steps"] = steps
    draw = random.Random(content["run_id"])  # noqa: S311 - repeatable, not secret
    _declare(content, plan, facts, asked)
    ended = content["outcome"]["status"]
    after = max(0, steps - plan.measurement.min_warmup_steps)
    if ended == "ok" and after < RANKABLE_STEPS and not asked("outcome.message"):
        content["outcome"] |= {
            "message": f"not rankable: {after} steps after warm-up, and a rank needs {RANKABLE_STEPS}",
            "fix": "train longer",
        }
    if not asked("trace"):
        content["trace"] = trace_of(plan, facts, steps, draw)
    weights = count_weights(shape)
    adapters, base = weights.adapters, weights.plain + weights.quantised
    head = plan.model.labels * (shape.model.hidden_size + 1) if plan.model.labels else 0
    trained = adapters or base + head
    stored = BYTES.get(plan.precision.parameters.value, 4)
    shards = plan.device.count if plan.device.strategy in {Strategy.FSDP2, Strategy.ZERO3} else 1
    scales = {"scales of 4-bit blocks": weights.quantised // 64, "scales of scales of 4-bit blocks": weights.quantised // 64 // 64}
    quantised = {"uint8": weights.quantised // 2, **scales} if plan.method is Method.QLORA else {}
    formats = {plan.precision.parameters.value: (weights.plain + adapters + head) * stored // shards, **quantised}
    content["model"] = content["model"] and {
        "parameters": base + adapters + head,
        "trainable_parameters": trained,
        "parameter_bytes": formats,
        "adapter_bytes": adapters * stored // shards,
        "gradient_bytes": trained * stored // shards,
        "optimizer_state_bytes": {"sgd": 0, "adamw_8bit": int(2.06 * trained)}.get(plan.optimizer.name, 2 * trained * stored) // shards,
    }
    held = sum(formats.values()) + 3 * trained * stored // shards
    _memory(content, plan, max(held, int(estimate_memory(shape).peak_allocated / 1.2)), asked)
    _times(content, plan, asked)
    content.setdefault("effective", effective_of(plan) if steps else None)
    if plan.device.count > 1 and steps and not asked("ranks"):
        times = np.diff([content["trace"]["started_at_s"], *content["trace"]["completed_at_s"]])
        own = [[float(f"{time * (0.9 + 0.05 * draw.random()):.6f}") for time in times] for _ in range(plan.device.count)]
        content["ranks"] = [{"rank": rank, "own_work_s": own_s} for rank, own_s in enumerate(own)]
    overridden = content["division"] == "open"
    if not asked("gates"):
        content["gates"] = _gates(content, plan, facts, shape, overridden) if steps and plan.measurement.gates else []
    if plan.measurement.probe and steps and not asked("probe"):
        rate = _probe_rate(content, plan, facts, shape)
        content["probe"] = {
            "dtype": plan.precision.compute.value,
            "size": 1024 if plan.device.backend is Backend.CPU else 8192,
            "before_flop_per_s": rate,
            "after_flop_per_s": rate * 0.99,
        }
        content["probe"]["after_flop_per_s"] = content["probe"]["after_flop_per_s"] if ended == "ok" else None


def warn(content: dict[str, Any]) -> None:
    """Add the warnings that follow from the record."""
    try:
        submission = Submission.model_validate_json(json.dumps(content))
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            found = [warning.model_dump(mode="json") for warning in warnings_of_record(submission, derive(submission))]
    except (ValueError, ArithmeticError, IndexError):
        return
    listed = {warning["kind"] for warning in content["warnings"]}
    content["warnings"] += [warning for warning in found if warning["kind"] not in listed]


def trace_of(plan: Plan, facts: FactBase, steps: int, draw: random.Random, start: float = 4.0) -> dict[str, Any]:
    """Return steps of about 50 ms with a first one of 300 ms; losses that follow the reference ones."""
    rows, tokens = plan.batch.global_batch, plan.data.sequence_length
    times = [FIRST_STEP_S, *(STEP_S + draw.random() * JITTER_S for _ in range(1, steps))][:steps]
    ends = np.round(start + np.cumsum(times), 6).tolist() if steps else []
    supervised = rows * (tokens - 1) if plan.model.task is Task.CAUSAL_LM else rows
    golden = facts.golden_losses(plan.workload) if plan.workload in facts.workloads else None
    card = facts.models[plan.model.key]
    known = {1: log(plan.model.labels or card.vocabulary), **(golden.losses if golden else {400: log(card.vocabulary) - 1})}
    losses = np.interp(np.arange(1, steps + 1) - 2, list(known), list(known.values()))
    columns = {"slot_tokens": rows * tokens, "real_tokens": rows * tokens, "supervised_tokens": supervised, "documents": rows, "rows": rows}
    return {
        "started_at_s": start,
        "completed_at_s": ends,
        **{name: [value] * steps for name, value in columns.items()},
        "loss": [round(float(loss) * (1 + 2e-3 * draw.random()), 6) for loss in losses],
    }


def effective_of(plan: Plan) -> dict[str, Any]:
    """Return the settings in effect when nothing fell back."""
    several, quantised = plan.device.count > 1, plan.quantisation
    sharding = {Strategy.FSDP2: "torch FSDPModule"} | {
        strategy: f"DeepSpeed ZeRO stage {strategy.value[-1]}" for strategy in (Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3)
    }
    on = "cuda" if plan.device.backend in {Backend.CUDA, Backend.ROCM} else "cpu"
    checkpointing = plan.model.gradient_checkpointing
    trained = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[plan.precision.parameters.value]
    return {
        "attention": plan.model.attention,
        "fused_kernels": plan.model.fused_kernels,
        "compile": plan.model.compile,
        "gradient_checkpointing": checkpointing.value if checkpointing is not Checkpointing.SELECTIVE else "selective",
        "compute": plan.precision.compute.value,
        "quantisation": f"{quantised.format}{', double' if quantised.double else ''}" if quantised else "none",
        "optimizer": {"adamw": "torch AdamW", "sgd": "torch SGD", "adamw_8bit": "bitsandbytes AdamW8bit"}.get(plan.optimizer.name, "torch"),
        "parameters_on": [on],
        "optimizer_states_on": [on],
        "trainable_dtypes": [trained],
        "processes": plan.device.count,
        "process_group": ("nccl" if on == "cuda" else "gloo") if several else None,
        "sharding": sharding.get(plan.device.strategy),
    }


def requested_of(plan: Plan, facts: FactBase) -> dict[str, Any]:
    """Return a request that gives the settings of a plan."""
    card, rules, device = facts.workloads[plan.workload], plan.measurement, plan.device
    apart = {"weights", "data.source", "data.name", "devices.count", "devices.strategy", "devices.offload", "compute", "method"}
    sets = [f"method={plan.method.value}"] if plan.method is not card.method else []
    changed = (
        s for s in shared_settings(plan, card) if s.field not in apart and s.run not in (s.card, None) and not isinstance(s.run, dict)
    )
    sets += [f"{setting.field}={setting.run if isinstance(setting.run, str) else json.dumps(setting.run)}" for setting in changed]
    if plan.precision.compute.value != card.compute:
        sets.append(f"compute={plan.precision.compute.value}")
    groups = ("tensor_parallel", "pipeline_parallel")
    sets += [f"devices.{name}={getattr(device, name)}" for name in groups if getattr(device, name) != getattr(card.devices, name)]
    requested = {
        "workload": plan.workload,
        "overrides": sets,
        "weights": plan.model.weights.value if plan.model.weights is not card.weights else "card",
        "data": f"{plan.data.source.value}:{plan.data.name}" if plan.data.source is not card.data.source else "card",
        "data_sha256": plan.data.sha256,
        "seed": rules.seed,
        "max_steps": rules.max_steps,
        "epochs": rules.epochs,
        "max_train_s": rules.max_train_s,
        "until_ci": rules.until_relative_ci,
        "timeout_s": rules.timeout_s,
        "no_step_s": rules.no_step_s,
        "strict_timing": rules.timing == "strict",
        **{name: getattr(rules, name) for name in ("probe", "gates", "save", "cold")},
        "backend": device.backend.value,
        "devices": device.count,
        "strategy": device.strategy.value if device.count > 1 else None,
        "offload": device.offload if device.offload != card.devices.offload else None,
        "nodes": device.nodes,
    }
    return Requested.model_validate(requested).model_dump(mode="json")


def _resolve(content: dict[str, Any], facts: FactBase, asked: Callable[[str], bool]) -> None:
    """Give the record the request of its plan and what follows from it, where a test has not asked for another."""
    if asked("requested"):
        return
    try:
        plan = Plan.model_validate_json(json.dumps(content["plan"]))
        content["requested"] = requested_of(plan, facts)
        resolved = resolve(Requested.model_validate(content["requested"]), facts, machine_of(content, facts))
    except (KeyError, ValueError, TunemarkError):
        return
    if not asked("plan.reasons"):
        content["plan"]["reasons"] = dict(resolved.plan.reasons)
    for name in ("threads", "launcher"):
        if not asked(f"plan.device.{name}"):
            content["plan"]["device"][name] = getattr(resolved.plan.device, name)
    if not asked("overrides"):
        content["overrides"] = [override.model_dump(mode="json") for override in resolved.overrides]
    if not asked("division"):
        content["division"] = division_of(resolved.plan, resolved.overrides).value


def machine_of(content: dict[str, Any], facts: FactBase) -> Machine:
    """Return the machine of a record's content."""
    e = content["environment"]
    family = facts.support.families[e["backend"]]
    names = ("os", "python", "packages", "cpu", "cpu_physical_cores", "cpu_logical_cores", "cpu_usable_cores", "memory_bytes")
    devices = tuple(DeviceFacts.model_validate(device) for device in e["devices"])
    return Machine(
        backend=Backend(e["backend"]), family=family, backend_reason=family.found_by, devices=devices, **{n: e[n] for n in names}
    )


def _declare(content: dict[str, Any], plan: Plan, facts: FactBase, asked: Callable[[str], bool]) -> None:
    """List the overrides of a run in division open, and the packages and devices that its plan needs."""
    environment = content["environment"]
    if not asked("environment.os"):
        environment["os"] = "Linux 6.1 x86_64"
    if not asked("environment.packages"):
        extra = {"peft": plan.method is not Method.FULL, "bitsandbytes": plan.method is Method.QLORA or "8bit" in plan.optimizer.name}
        extra["nvidia-ml-py"] = plan.device.backend is Backend.CUDA
        extra["deepspeed"] = plan.device.strategy in {Strategy.ZERO1, Strategy.ZERO2, Strategy.ZERO3}
        environment["packages"] = {name: version for name, version in VERSIONS.items() if extra.get(name, True)}
    if not asked("environment.backend"):
        environment["backend"] = plan.device.backend.value
    if plan.device.backend is Backend.CPU:
        if not asked("environment.cpu"):
            environment["cpu"] = environment["devices"][0]["name"]
        _resolve(content, facts, asked)
        return
    card = facts.accelerators.get(plan.device.accelerator or "")
    for device in environment["devices"]:
        if device.get("memory_bytes") is None and card is not None and card.memory_gib:
            part = card.cores_per_unit if plan.device.backend is Backend.NEURON and card.cores_per_unit else 1
            device["memory_bytes"] = int(card.memory_gib * 0.99 / part * 2**14) * 2**16
    _resolve(content, facts, asked)


def _memory(content: dict[str, Any], plan: Plan, held: int, asked: Callable[[str], bool]) -> None:
    if asked("memory"):
        return
    memory = content["memory"]
    for name, method in (("host_rss", PEAK_METHOD), ("host_swap", SWAP_METHOD)):
        if memory[name]["peak_bytes"] is not None:
            memory[name]["method"] = method
    if not content["trace"]["loss"]:
        return
    for name in ("device_allocated", "device_reserved", "device_used"):
        memory[name] = dict(memory[name])
    if plan.device.backend in {Backend.CUDA, Backend.ROCM}:
        for name, factor in (("device_allocated", 1.2), ("device_reserved", 1.3), ("device_used", 1.4)):
            method = f"{MEMORY_TOOLS[plan.device.backend]} {USED_METHOD}" if name == "device_used" else f"torch.cuda.max_memory_{name[7:]}"
            memory[name] = {"peak_bytes": int(held * factor) // 2**21 * 2**21, "method": method, "reason": None}
    elif plan.device.backend is Backend.CPU:
        memory["host_rss"]["peak_bytes"] = max(memory["host_rss"]["peak_bytes"], int(held * 1.2) + 300_000_000)


def _times(content: dict[str, Any], plan: Plan, asked: Callable[[str], bool]) -> None:
    """Give the time line, the process and the telemetry the times of the trace."""
    trace, ended = content["trace"], content["outcome"]["status"] == "ok"
    if not trace["completed_at_s"]:
        if not asked("process"):
            content["process"] |= {"user_s": 0.5, "system_s": 0.1}
        if not asked("timeline"):
            phases = ("import", "data", "load", "check", "probe", "train")
            content["timeline"] = [{"phase": phase, "at_s": 0.5 * number} for number, phase in enumerate(phases)]
            if not asked("outcome.phase") and not asked("outcome"):
                content["outcome"]["phase"] = "train"
            if not asked("process"):
                content["process"]["wall_s"] = 3.0
        return
    start, end = trace["started_at_s"], trace["completed_at_s"][-1]
    if not asked("timeline"):
        marks = [("import", 0.0), ("data", start - 1.5), ("load", start - 1.2), ("check", start - 0.9), ("probe", start - 0.5)]
        after = [("probe", end + 0.0003), ("eval", end + 0.5), ("teardown", end + 0.6)] if ended else []
        evaluates = plan.measurement.evaluate
        marks += [("train", start), *(mark for mark in after if mark[0] != "eval" or evaluates)]
        content["timeline"] = [{"phase": phase, "at_s": round(at_s, 6)} for phase, at_s in marks]
        if not asked("outcome.phase"):
            content["outcome"]["phase"] = marks[-1][0]
    if not asked("process"):
        wall_s = round(end + (1.0 if ended else 0.2), 6)
        cores = content["environment"]["cpu_logical_cores"]
        content["process"] |= {"wall_s": wall_s, "user_s": round(min(0.9 * wall_s * cores, 2 + (end - start)), 3), "system_s": 0.2}
    if content["utilisation"] is None and not asked("utilisation") and ended and len(trace["loss"]) > 10:
        samples = ceil((end - start) / 0.2)
        content["utilisation"] = {
            "samples": samples,
            "interval_s": 0.2,
            "cpu_busy_mean": 0.9,
            "cpu_busy_peak": 1.0,
            "foreign_cpu_busy_mean": 0.02,
        }


def _gates(content: dict[str, Any], plan: Plan, facts: FactBase, shape: Any, overridden: bool) -> list[dict[str, Any]]:
    sharded = plan.device.strategy in {Strategy.FSDP2, Strategy.ZERO3}
    neuron = plan.device.backend is Backend.NEURON
    reached = len(adapted_linears(shape.model, plan.lora.target_modules)) * shape.model.layers if plan.lora else 39
    detail = f"a gradient reaches {reached} of {reached} {'adapters' if plan.lora else 'weights'}"
    gradient = {
        "name": "adapter_gradient",
        "passed": None if sharded or neuron else True,
        "detail": f"the model is sharded by {plan.device.strategy.value}" if sharded else detail,
    }
    applies = plan.data.packing and plan.data.document_borders and not sharded and not neuron
    packed = {"name": "packed_documents", "passed": True if applies else None, "detail": "documents are not packed"}
    golden = facts.golden_losses(plan.workload) if plan.workload in facts.workloads else None
    band = loss_band(golden, plan, StepTrace.model_validate(content["trace"]), changed=overridden)
    return [gradient, packed, band.model_dump(mode="json")]


def _probe_rate(content: dict[str, Any], plan: Plan, facts: FactBase, shape: Any) -> float:
    card = facts.accelerators.get(plan.device.accelerator or "")
    peak = card.peak_tflops.get(plan.precision.compute) if card else None
    if peak and card and plan.device.backend is not Backend.CPU:
        return 0.7e12 * peak
    weights = count_weights(shape)
    trace = content["trace"]
    tokens = sum(trace["real_tokens"]) / (trace["completed_at_s"][-1] - trace["started_at_s"])
    return max(2e11, 9.0 * (weights.plain + weights.quantised) * tokens / plan.device.count)
