"""Quantities and conditions of relations.toml about the run: its time line, outcome, processes, settings in effect, and data."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from math import log, sqrt
from typing import Any

import numpy as np

from tunemark.collector.gate.cross_file_checks import CLOCK
from tunemark.collector.gate.run_facts import Run
from tunemark.schema.errors import TunemarkError
from tunemark.schema.physics.architecture import adapted_linears, adapts_tokens
from tunemark.schema.records.effective import OPTIMIZER_LIBRARIES
from tunemark.schema.records.trace import MOST_MICRO_STEPS
from tunemark.schema.statistics.comparison import arm_run
from tunemark.schema.synthetic_data import SPECIAL_TOKENS, UNIFORM
from tunemark.schema.vocabulary import (
    ATTENTION_KERNELS,
    BEFORE_AMPERE,
    COMPILED_UPDATE,
    DEEPSPEED,
    PACKING_NOISE,
    SHARDED_STATES,
    SHARDED_WEIGHTS,
    TRIES,
    Backend,
    DataSource,
    Dtype,
    Method,
    Phase,
)

FIRST_RUN = datetime(2026, 11, 20, tzinfo=UTC)
"""The day of the first commit: no harness existed before."""
KERNELS = {
    Backend.CPU: {"math", "flash"},
    Backend.CUDA: {"math", "flash", "efficient", "cudnn"},
    Backend.ROCM: {"math", "flash", "efficient"},
    Backend.XPU: {"math", "flash", "efficient", "overrideable"},
}
"""Kernels of torch's attention by back end."""

FEW_LOSSES = 4
"""Losses that may all be equal by chance; of more, that is out of the question."""

QUANTITIES: dict[str, Callable[..., Any]] = {
    "latest_start": lambda _: datetime.now(tz=UTC) + CLOCK,
    "last_phase": lambda r: r.phases[-1],
    "last_phase_s": lambda r: r.s.timeline[-1].at_s,
    "last_step_s": lambda r: r.trace.completed_at_s[-1] if r.steps else None,
    "train_ends_early_s": lambda r: r.train_ends_s - 0.25 - 0.01 * r.trained_s if r.train_ends_s is not None else None,
    "says_out_of_memory": lambda r: _says(r, r"out of memory|OutOfMemoryError|can.t allocate memory|cannot allocate memory"),
    "says_killed": lambda r: _says(r, r"kernel killed|oom.?killer|SIGKILL|lack of (host )?memory"),
    "probed_after": lambda r: Phase.TRAIN in r.phases and Phase.PROBE in r.phases[r.phases.index(Phase.TRAIN) :],
    "own_steps": lambda _, rank: len(rank.own_work_s),
    "own_work_s": lambda _, rank: sum(rank.own_work_s),
    "own_work_is_its_own": lambda r, rank: not rank.own_work_s or sum(rank.own_work_s == each.own_work_s for each in r.s.ranks) == 1,
    "core_seconds": lambda r: r.process.wall_s * r.environment.cpu_logical_cores * r.device.nodes,
    "trial": lambda r: r.s.study is not None and r.s.study.kind in TRIES and "in a fresh process" not in r.s.study.point,
    "timed_micro_steps": lambda r: sum(map(len, r.trace.micro_completed_at_s)) or None,
    "gradient_gate": lambda r: (gate := r.gate("adapter_gradient")) and gate.detail,
    "packed_gate": lambda r: (gate := r.gate("packed_documents")) and gate.detail,
    "shards": lambda r: r.device.strategy in SHARDED_STATES,
    "all_rows_right": lambda r: bool(r.s.evaluation and r.s.evaluation.accuracy == 1),
    "loss_of_guessing": lambda r: log(r.plan.model.labels) if r.plan.model.labels else None,
    "planned_evaluation_rows": lambda r: r.plan.data.evaluation_rows or None,
    "lowest_loss": lambda r: float(r.losses.min()) if len(r.losses) else None,
    "different_losses": lambda r: len(np.unique(r.losses)) if len(r.losses) > FEW_LOSSES else None,
}
"""Name in relations.toml -> quantity or condition; those below are of several lines."""


# Time line


def first_start(r: Run) -> datetime:
    """Return the earliest time at which a run can have begun: with the first harness, and the launch of its device."""
    launched = datetime(r.card.launch_year, 1, 1, tzinfo=UTC) if r.card and r.card.launch_year else FIRST_RUN
    return max(launched, FIRST_RUN) - CLOCK


def phases_in_order(r: Run) -> bool:
    """Return True if the phases are those of the plan; a sharded model is loaded a second time, after its checks."""
    rules, split = r.rules, r.phases.index(Phase.TRAIN) if Phase.TRAIN in r.phases else len(r.phases)
    if r.neuron:
        return r.phases[0] is Phase.IMPORT and (not r.ok or r.phases[-1] is Phase.TEARDOWN)
    before = {Phase.IMPORT: True, Phase.DATA: True, Phase.LOAD: True, Phase.CHECK: rules.gates, Phase.PROBE: rules.probe}
    after = {Phase.PROBE: rules.probe, Phase.EVAL: rules.evaluate, Phase.SAVE: rules.save, Phase.TEARDOWN: True}
    expected = [
        *(phase for phase, planned in before.items() if planned),
        Phase.TRAIN,
        *(phase for phase, planned in after.items() if planned),
    ]
    observed = [*dict.fromkeys(r.phases[:split]), *r.phases[split:]]
    return observed == (expected if r.ok else expected[: len(observed)]) and (not r.steps or Phase.TRAIN in r.phases)


# Evaluation


def least_evaluation_loss(r: Run) -> float | None:
    """Return the loss of rows that are classified wrongly, which is ln 2 at least."""
    held_out = r.s.evaluation
    return None if held_out is None or held_out.accuracy is None else (1 - held_out.accuracy) * log(2)


def broken_rows(r: Run) -> float | None:
    """Return the distance of the correct rows from a whole number, over all rows."""
    held_out = r.s.evaluation
    if held_out is None or held_out.accuracy is None:
        return None
    correct = held_out.accuracy * held_out.rows
    return abs(correct - round(correct)) / held_out.rows


# Outcome


def planned_steps(r: Run) -> int | None:
    """Return the steps that the plan asks for; how many rows documents are packed into is unknown."""
    data = r.plan.data
    rows = None if data.packing else data.training_rows or (r.s.row_lengths.rows if r.s.row_lengths else None)
    return r.plan.planned_steps(rows)


def stopped_for_a_reason(r: Run) -> bool | None:
    """Return False if a successful run ended before its steps, its time limit and its interval."""
    planned = planned_steps(r)
    if not r.ok or not r.steps or (planned is not None and r.steps >= planned):
        return None
    rules, rate = r.rules, r.derived.tokens_per_s if r.derived else None
    out_of_time = rules.max_train_s is not None and r.steps >= rules.min_steps and r.trained_s >= rules.max_train_s / 1.05
    narrow = rules.until_relative_ci is not None and rate is not None and rate.relative_half_width <= 2 * rules.until_relative_ci
    return out_of_time or narrow or (rules.epochs is None and r.plan.data.source is not DataSource.SYNTHETIC)


def _says(r: Run, pattern: str) -> bool:
    return re.search(pattern, r.s.outcome.message or "", re.IGNORECASE) is not None


def has_room(r: Run) -> bool:
    """Return True if the memory of the device left room for a probe."""
    peak = r.memory.device_reserved.peak_bytes or r.memory.device_used.peak_bytes or 0
    return r.cpu or not r.device_bytes or peak < 0.9 * r.device_bytes


# Processes


def sampled_cpu_s(r: Run) -> float | None:
    """Return the CPU time of the sampled busy cores; on a CPU, steps outside of the steady window do the same work."""
    if r.use is None or r.use.cpu_busy_mean is None:
        return None
    all_alike = r.cpu and r.ok and r.sampled_often
    return r.use.cpu_busy_mean * (r.trained_s if all_alike else min(r.use.samples * r.use.interval_s, r.trained_s))


def compile_cache_of_plan(r: Run) -> bool:
    """Return True if the state of the compile cache is one that the plan can leave."""
    # DeepSpeed compiles its optimizer of the host.
    kernels = r.plan.model.fused_kernels != "none" or r.device.strategy in DEEPSPEED
    kernels |= r.plan.optimizer_rounds_stochastically and r.backend in COMPILED_UPDATE
    state = r.process.compile_cache
    if state == "warm" and r.rules.cold:
        return False
    if state in {"cold", "warm"}:
        return r.compiles or kernels
    return r.compiles if state is None else not (r.compiles and r.ok)


def from_hub(r: Run) -> bool:
    """Return True if weights, data or tokenizer come from a hub."""
    data = r.plan.data
    return r.plan.model.hub_id is not None or data.source is DataSource.HUB or data.tokenizer not in {"none", "word-level"}


def micro_steps_complete(r: Run) -> bool:
    """Return True if all steps, or the last ones of a long run, have the times of all micro-steps."""
    micro, accumulated, last = r.trace.micro_completed_at_s, r.plan.batch.gradient_accumulation, r.steps - 1
    first = next(step for step, inside in enumerate(micro) if inside)
    cut = first and sum(map(len, micro)) < MOST_MICRO_STEPS - accumulated
    return not cut and all(
        len(micro[step]) == accumulated or (step == last and (r.plan.data.finite or not r.ok)) for step in range(first, r.steps)
    )


def point_was_requested(r: Run) -> bool:
    """Return True if the point is one of its kind of study, and names settings that were requested."""
    if r.s.study is None:
        return True
    kind, point, asked = r.s.study.kind, r.s.study.point, r.s.requested
    arm, limit = arm_run(point), r"(, memory limited to (?!0\.0+ |-)[\d.]+ .+)?"
    patterns = {
        "frontier": rf"data\.sequence_length=\d+, batch\.micro_batch=\d+{limit}(, in a fresh process)?",
        "repeat": r".+, repeat \d+",
    }
    patterns |= {"sweep": r".*=.*", "tune": rf"(.*=.*|as given){limit}(, in a fresh process)?", "ab": ".+"}
    settings = arm.settings if arm else re.sub(r"(, repeat \d+|, memory limited to .+|, in a fresh process)$", "", point)
    options = {"devices.count": asked.devices, "devices.strategy": asked.strategy, "devices.offload": asked.offload}
    options |= {"seed": asked.seed, "weights": asked.weights}
    given = dict(assignment.split("=", 1) for assignment in asked.overrides) | {
        name: str(value) for name, value in options.items() if value
    }
    named = dict(re.findall(r"([a-z_]+(?:\.[a-z_]+)*)=([^,]+)", settings))
    return (arm is not None) == (kind == "ab") and re.fullmatch(patterns[kind], point) is not None and named.items() <= given.items()


# Settings in effect


def before_ampere(r: Run) -> bool:
    """Return True if the card has an architecture of NVIDIA before Ampere."""
    return r.card is not None and r.card.architecture in BEFORE_AMPERE


def kernel_fits(r: Run) -> bool:
    """Return True if the kernel of attention runs on this device, in this format and with this mask."""
    ran = r.s.effective
    if ran is None or ran.attention_kernel is None:
        return True
    kernel, bordered = ran.attention_kernel, r.plan.data.packing and r.plan.data.document_borders
    known = kernel in ATTENTION_KERNELS.get(ran.attention, ())
    if not known or ran.attention != "sdpa":
        return known
    short = r.plan.precision.compute in {Dtype.BF16, Dtype.FP16} and not before_ampere(r)
    fits = not r.gpu or ((kernel != "flash" or not bordered) and (kernel not in {"flash", "cudnn"} or short))
    return ran.compile == "none" and kernel in KERNELS.get(r.backend, {kernel}) and fits


def optimizer_of_harness(r: Run) -> bool:
    """Return True if the class of the optimizer comes from the library that the harness takes it from."""
    library, _, name = r.s.effective.optimizer.rpartition(" ") if r.s.effective else ("", "", "")
    return library in {"", OPTIMIZER_LIBRARIES[name]} if name in OPTIMIZER_LIBRARIES else r.device.strategy in DEEPSPEED or r.neuron


def parameters_in_place(r: Run) -> bool:
    """Return True if the parameters are on devices of the back end."""
    places = {"cpu", "cuda"} if r.gpu else {"cpu"} if r.cpu else None
    return r.s.effective is None or places is None or set(r.s.effective.parameters_on) <= places


def states_in_place(r: Run) -> bool:
    """Return True if the optimizer states are where the plan keeps them."""
    ran = r.s.effective
    if ran is None or not (r.cpu or r.gpu) or r.device.offload != "none":
        return True
    counted = r.s.model is not None and bool(r.s.model.optimizer_state_bytes)
    return set(ran.optimizer_states_on) <= ({"cuda"} if r.gpu else {"cpu"}) and (bool(ran.optimizer_states_on) or not counted)


def gradients_reach(r: Run) -> bool:
    """Return True if the verdict on gradients follows from its count, and the count from the plan."""
    gate, full = r.gate("adapter_gradient"), r.plan.method is Method.FULL
    sharded, found = (
        r.device.strategy in SHARDED_WEIGHTS,
        re.match(r"a gradient reaches (\d+) of (\d+) (weights|adapters)", gate.detail if gate else ""),
    )
    if gate is None or sharded or found is None:
        return gate is None or (
            sharded and gate.passed is None and gate.detail.startswith(f"the model is sharded by {r.device.strategy.value}")
        )
    reached, relevant = int(found[1]), int(found[2])
    enough = reached > 0 and (reached <= relevant if full else reached == relevant) and "none exists" not in gate.detail
    if gate.passed is not enough or reached > relevant or (found[3] == "weights") != full:
        return False
    if full or r.model is None or r.plan.lora is None or r.model.experts is not None or adapts_tokens(r.model, r.plan.lora.target_modules):
        return True
    try:
        return relevant == sum(linear.times() for linear in adapted_linears(r.model, r.plan.lora.target_modules))
    except TunemarkError:
        return False


def packing_checked(r: Run) -> bool:
    """Return True if the verdict on packed documents is the one that the plan and the measured difference give."""
    gate, data = r.gate("packed_documents"), r.plan.data
    if gate is None:
        return True
    if r.device.strategy in SHARDED_WEIGHTS:
        return gate.passed is None and (gate.detail.startswith(f"the model is sharded by {r.device.strategy.value}") or not data.packing)
    if not data.packing or not data.document_borders:
        return gate.passed is None and gate.detail.startswith("packed documents attend" if data.packing else "documents are not packed")
    difference = re.search(r"by (?<![-\d])([\d.e+-]+) of their spread", gate.detail)
    if difference is None or gate.passed is None:
        return gate.passed is None and "one document only" in gate.detail
    noise = PACKING_NOISE.get(r.plan.precision.compute.value, 1.0)
    return "-" not in difference[1].replace("e-", "") and gate.passed is (float(difference[1]) <= noise)


# Data


def wrong_rows(r: Run) -> int:
    """Return the number of steps with fewer rows than the batch; only the step at the end of finite data may be smaller."""
    rows = np.asarray(r.trace.rows)
    return int(((rows[:-1] if r.plan.data.finite else rows) < r.plan.batch.global_batch).sum())


# Losses


def loss_of_random_tokens(r: Run) -> float | None:
    """Return the lowest mean loss of a step on uniformly random tokens: their entropy, less five standard errors and rounding of bf16."""
    data = r.plan.data
    endless = data.source is DataSource.SYNTHETIC and data.name in UNIFORM and data.training_rows is None
    if not endless or r.model is None or r.plan.model.labels or not r.steps:
        return None
    # The loss of a token deviates by 2 nats at most.
    return log(r.model.vocabulary - SPECIAL_TOKENS) - 5 * 2.0 / sqrt(max(1, min(r.trace.supervised_tokens))) - 0.02
