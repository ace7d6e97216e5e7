"""Quantities and conditions of relations.toml about the run: its time line, outcome, processes, settings in effect, and data."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from math import log, sqrt
from typing import Any

import numpy as np

from tunemark.collector.gate.cross_file_checks import CLOCK
from tunemark.collector.gate.run_facts import Run
from tunemark.schema.errors import TunemarkError
from tunemark.schema.formats import GIB
from tunemark.schema.measurement_warnings import loss_band
from tunemark.schema.physics.architecture import adapted_linears, adapts_tokens
from tunemark.schema.physics.training_shape import unlike_the_card
from tunemark.schema.records.effective import OPTIMIZER_LIBRARIES, compared
from tunemark.schema.records.submission import RECOVERED
from tunemark.schema.records.trace import COUNT_COLUMNS, MOST_MICRO_STEPS, RankRecord
from tunemark.schema.statistics.comparison import arm_run
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
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
    Division,
    Dtype,
    Method,
    Padding,
    Phase,
    Status,
    Strategy,
    Task,
    WarningKind,
    Weights,
)

FIRST_RUN = datetime(2026, 11, 20, tzinfo=UTC)
"""The day of the first commit: no harness existed before."""
TORCH_WORDS = {"CUDA": {Backend.CUDA, Backend.ROCM}, "HIP": {Backend.ROCM}, "XPU": {Backend.XPU}, "MPS backend": {Backend.MPS}}
"""Back ends whose out-of-memory message in torch names this kind of device."""
KERNELS = {
    Backend.CPU: {"math", "flash"},
    Backend.CUDA: {"math", "flash", "efficient", "cudnn"},
    Backend.ROCM: {"math", "flash", "efficient"},
    Backend.XPU: {"math", "flash", "efficient", "overrideable"},
}
"""Kernels of torch's attention by back end."""
COLLECTIVES = {Backend.CPU: "gloo", Backend.CUDA: "nccl", Backend.ROCM: "nccl", Backend.XPU: "x?ccl", Backend.NEURON: "xla"}

QUANTITIES: dict[str, Callable[..., Any]] = {
    "latest_start": lambda _: datetime.now(tz=UTC) + CLOCK,
    "last_phase": lambda r: r.phases[-1],
    "last_phase_s": lambda r: r.s.timeline[-1].at_s,
    "last_step_s": lambda r: r.trace.completed_at_s[-1] if r.steps else None,
    "train_begins_late_s": lambda r: r.train_begins_s + 0.25 + 0.01 * r.trained_s if r.steps and r.train_begins_s is not None else None,
    "train_ends_early_s": lambda r: r.train_ends_s - 0.25 - 0.01 * r.trained_s if r.train_ends_s is not None else None,
    "waits": lambda r: (r.trace.data_wait_s or 0.0) > 0.1 * r.trained_s,
    "not_computing_s": lambda r: None if r.share is None else (1 - r.share) * float(r.times.sum()),
    "too_short": lambda r: r.rules.max_train_s is not None and planned_steps(r) is None and r.steps < RANKABLE_STEPS,
    "says_out_of_memory": lambda r: _says(r, r"out of memory|OutOfMemoryError|can.t allocate memory|cannot allocate memory"),
    "says_killed": lambda r: _says(r, r"kernel killed|oom.?killer|SIGKILL|lack of (host )?memory"),
    "names_no_device": lambda r: not any(f"{word} out of memory" in (r.s.outcome.message or "") for word in TORCH_WORDS),
    "named_total_gib": lambda r: _gib(r, r"total capacity of ([\d.]+) ([KMG]iB)"),
    "named_asked_gib": lambda r: _gib(r, r"ried to allocate ([\d.]+) ([KMG]iB)"),
    "last_device": lambda r: r.count // r.device.nodes - 1,
    "probed_after": lambda r: Phase.TRAIN in r.phases and Phase.PROBE in r.phases[r.phases.index(Phase.TRAIN) :],
    "own_steps": lambda _, rank: len(rank.own_work_s),
    "own_work_s": lambda _, rank: sum(rank.own_work_s),
    "usual_own_s": lambda _, rank: float(np.median(rank.own_work_s)) if rank.own_work_s else None,
    "core_seconds": lambda r: r.process.wall_s * r.environment.cpu_logical_cores * r.device.nodes,
    "recovered": lambda r: r.s.outcome.message == RECOVERED,
    "trial": lambda r: r.s.study is not None and r.s.study.kind in TRIES and "in a fresh process" not in r.s.study.point,
    "plan_compiles": lambda r: r.plan.model.compile != "none" and not r.neuron,
    "timed_micro_steps": lambda r: sum(map(len, r.trace.micro_completed_at_s)) or None,
    "shards": lambda r: r.device.strategy in SHARDED_STATES,
    "gates_listed_once": lambda r: len({gate.name for gate in r.s.gates}) == len(r.s.gates),
    "document_count": lambda r: sum(r.trace.documents),
    "mean_row_tokens": lambda r: sum(r.trace.real_tokens) / sum(r.trace.rows) if r.steps else None,
    "planned_evaluation_rows": lambda r: r.plan.data.evaluation_rows or None,
    "lowest_loss": lambda r: float(r.losses.min()) if len(r.losses) else None,
    "first_loss": lambda r: float(r.losses[0]) if len(r.losses) else None,
    "different_losses": lambda r: len(np.unique(r.losses)),
    "fall": lambda r: float(r.losses[0] - r.losses.min()) if len(r.losses) else None,
    "rise": lambda r: float(r.losses[1:].max() - r.losses[0]) if len(r.losses) > 1 else None,
    "steepest_fall": lambda r: max((before - after for before, after in pairwise(r.losses[:10].tolist())), default=None),
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


def silence_ends_s(r: Run) -> float | None:
    """Return when the watchdog surely ends a run without progress."""
    limit = r.rules.no_step_s
    return None if limit is None else r.last_s + 1.05 * max(4 * limit, 10 * float(r.times.max(initial=0.0))) + 20


def trained_for_limit_s(r: Run) -> float | None:
    """Return the seconds of training that count for its time limit, less those of steps that had begun."""
    if r.steps <= max(r.rules.min_steps, 1):
        return None
    return float(r.times[1:].sum() - sum(r.times[step - 1] for step in r.compile_steps - {1}) - 3 * r.times.max())


def longest_silence(r: Run) -> float | None:
    """Return the largest ratio of a step to the time that it may take."""
    if r.rules.no_step_s is None or r.steps < 2:  # noqa: PLR2004 - the first step compiles
        return None
    longest = np.maximum.accumulate(r.times)[:-1]
    return float((r.times[1:] / (1.05 * np.maximum(r.rules.no_step_s, 10 * longest) + 5)).max())


def compiled_first(r: Run) -> bool:
    """Return True if the first step compiled graphs for a cold cache."""
    return r.process.compile_cache == "cold" and 1 in r.compile_steps


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


def reached_a_limit(r: Run) -> bool:
    """Return True if the run reached one of its time limits."""
    few = r.steps < r.rules.min_warmup_steps + RANKABLE_STEPS
    silent_s, trained_s = r.process.wall_s - r.last_s, r.rules.max_train_s if few else None
    limits = ((r.rules.timeout_s, r.process.wall_s), (r.rules.no_step_s, silent_s), (trained_s, r.trained_s))
    return any(limit is not None and reached >= limit / 1.05 - 1 for limit, reached in limits)


def finite_to_its_end(r: Run) -> bool:
    """Return True if all losses are finite but the last one of a run that ended with it."""
    missing = [step for step, loss in enumerate(r.trace.loss, start=1) if loss is None]
    evaluated = r.s.evaluation is not None and r.s.evaluation.loss is None
    return missing == [r.steps] or evaluated if r.status is Status.NAN else not missing


def message_of_success(r: Run) -> bool | None:
    """Return True if a successful run says nothing, or that it has too few steps to be ranked."""
    message, after = r.s.outcome.message or "", max(0, r.steps - r.rules.min_warmup_steps)
    counted = re.match(r"not rankable: (\d+) steps? after warm-up", message)
    return int(counted[1]) == after < RANKABLE_STEPS if counted else not message and after >= RANKABLE_STEPS and r.s.outcome.fix is None


def _says(r: Run, pattern: str) -> bool:
    return re.search(pattern, r.s.outcome.message or "", re.IGNORECASE) is not None


def names_own_device(r: Run) -> bool:
    """Return True if the device that torch names as out of memory is one of the back end."""
    return all(r.backend in ends for word, ends in TORCH_WORDS.items() if f"{word} out of memory" in (r.s.outcome.message or ""))


def named_free_gib(r: Run) -> float | None:
    """Return the free memory by the message of torch."""
    return _gib(r, r"of which ([\d.]+) ([KMG]iB) is free")


def named_free_and_used_gib(r: Run) -> float | None:
    """Return free memory and that of the process by the message of torch."""
    free, used = named_free_gib(r), _gib(r, r"this process has ([\d.]+) ([KMG]iB)")
    return None if free is None or used is None else free + used


def named_used_bytes(r: Run) -> float | None:
    """Return the memory of the process by the message of torch."""
    used = _gib(r, r"this process has ([\d.]+) ([KMG]iB)")
    return None if used is None else used * GIB


def _gib(r: Run, pattern: str) -> float | None:
    found = re.search(pattern, r.s.outcome.message or "")
    return float(found[1]) / {"GiB": 1, "MiB": 2**10, "KiB": 2**20}[found[2]] if found else None


def named_device(r: Run) -> int | None:
    """Return the number of the device by the message of torch."""
    found = re.search(r"\bGPU (\d+) has a total", r.s.outcome.message or "")
    return int(found[1]) if found else None


def has_room(r: Run) -> bool:
    """Return True if the memory of the device left room for a probe."""
    peak = r.memory.device_reserved.peak_bytes or r.memory.device_used.peak_bytes or 0
    return r.cpu or not r.device_bytes or peak < 0.9 * r.device_bytes


# Processes


def longest_own_part(r: Run, rank: RankRecord) -> float | None:
    """Return the largest share of a step that is own work, beyond a late mark of 5 s."""
    return max(((own - 5) / float(whole) for own, whole in zip(rank.own_work_s, r.times, strict=False)), default=None)


def own_work_is_its_own(r: Run, rank: RankRecord) -> bool:
    """Return True if no earlier rank has exactly the same times."""
    return not rank.own_work_s or all(other is rank or other.own_work_s != rank.own_work_s for other in r.s.ranks)


def own_work_holds_micro_steps(r: Run, rank: RankRecord) -> bool | None:
    """Return True if the own work of the logging process holds its micro-steps before the last in most steps."""
    if rank.rank or not r.trace.micro_completed_at_s:
        return None
    starts = (r.trace.started_at_s, *r.trace.completed_at_s)
    steps = [step for step in zip(rank.own_work_s, starts, r.trace.micro_completed_at_s, strict=False) if len(step[2]) > 1]
    return sum(own < (inside[-2] - start) / 1.05 - 0.01 for own, start, inside in steps) <= len(steps) / 2


def sampled_cpu_s(r: Run) -> float | None:
    """Return the CPU time of the sampled busy cores; on a CPU, steps outside of the steady window do the same work."""
    if r.use is None or r.use.cpu_busy_mean is None:
        return None
    all_alike = r.cpu and r.ok and r.sampled_often
    return r.use.cpu_busy_mean * (r.trained_s if all_alike else min(r.use.samples * r.use.interval_s, r.trained_s))


def possible_cpu_s(r: Run) -> float | None:
    """Return the CPU time of the sampled busy cores, and of all usable ones in the rest of the run; samples leave compilers out."""
    if r.use is None or r.use.cpu_busy_mean is None or r.compiles or r.use.samples < 20:  # noqa: PLR2004 - enough for a mean
        return None
    window_s = r.use.samples * r.use.interval_s
    return r.use.cpu_busy_mean * window_s + max(0.0, r.process.wall_s - window_s) * r.environment.cpu_usable_cores


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


def first_position_of_pair(r: Run) -> int | None:
    """Return the first position of a pair of an A/B in its study."""
    arm = arm_run(r.s.study.point) if r.s.study else None
    return 2 * arm.pair - 1 if arm else None


# Settings in effect


def setting_not_as_planned(r: Run) -> str | None:
    """Return the first setting in effect that is not the plan's and has no warning, or an empty text."""
    if r.s.effective is None:
        return None
    told = {warning.message.partition(":")[0] for warning in r.s.warnings if warning.kind is WarningKind.FALLBACK}
    told -= {"optimizer"} | (set() if r.neuron else {"stochastic_rounding"})
    differing = (each for each in compared(r.plan, r.s.effective, r.trace) if each.agrees is False and each.setting not in told)
    return next((f"{each.setting}: {each.effective}" for each in differing), "")


def kernel_fits(r: Run) -> bool:
    """Return True if the kernel of attention runs on this device, in this format and with this mask."""
    ran = r.s.effective
    if ran is None or ran.attention_kernel is None:
        return True
    kernel, bordered = ran.attention_kernel, r.plan.data.packing and r.plan.data.document_borders
    known = kernel in ATTENTION_KERNELS.get(ran.attention, ())
    if not known or ran.attention != "sdpa":
        return known
    short = r.plan.precision.compute in {Dtype.BF16, Dtype.FP16} and not (r.card and r.card.architecture in BEFORE_AMPERE)
    fits = not r.gpu or ((kernel != "flash" or not bordered) and (kernel not in {"flash", "cudnn"} or short))
    return ran.compile == "none" and kernel in KERNELS.get(r.backend, {kernel}) and fits


def optimizer_of_harness(r: Run) -> bool:
    """Return True if the class of the optimizer comes from the library that the harness takes it from."""
    library, _, name = r.s.effective.optimizer.rpartition(" ") if r.s.effective else ("", "", "")
    return library in {"", OPTIMIZER_LIBRARIES[name]} if name in OPTIMIZER_LIBRARIES else r.device.strategy in DEEPSPEED or r.neuron


def collectives_of_back_end(r: Run) -> bool:
    """Return True if the collectives are those of the back end; beside those of GPUs, gloo may serve tensors of the host."""
    own, stated = COLLECTIVES.get(r.backend, "none"), (r.s.effective.process_group if r.s.effective else None) or ""
    windows = "nccl" in stated and r.environment.os.startswith("Windows")
    return not windows and (not stated or re.fullmatch(rf"{own}|cpu:gloo,\w+:{own}", stated) is not None)


def engine_of_strategy(r: Run) -> bool:
    """Return True if the engine that shards is that of the strategy."""
    stated = r.s.effective.sharding if r.s.effective else None
    return stated is None or ("FSDP" in stated) == (r.device.strategy is Strategy.FSDP2)


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


def compute_exists(r: Run) -> bool:
    """Return True if products run in the format of the plan or of a weight."""
    ran = r.s.effective.compute if r.s.effective else None
    return ran is None or r.s.model is None or ran in {r.plan.precision.compute.value, *r.s.model.parameter_bytes}


def quantised_as_stored(r: Run) -> bool:
    """Return True if weights are quantised exactly if their blocks have scales."""
    ran = r.s.effective.quantisation if r.s.effective else None
    return ran is None or r.s.model is None or ran.startswith(("nf4", "fp4")) == any("4-bit" in name for name in r.s.model.parameter_bytes)


def gradient_gate(r: Run) -> str | None:
    """Return the observation of the check of gradients."""
    gate = r.gate("adapter_gradient")
    return gate.detail if gate else None


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
        return relevant == len(adapted_linears(r.model, r.plan.lora.target_modules)) * r.model.layers
    except TunemarkError:
        return False


def packed_gate(r: Run) -> str | None:
    """Return the observation of the check of packed documents."""
    gate = r.gate("packed_documents")
    return gate.detail if gate else None


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


def wrong_counts(r: Run) -> int:
    """Return the number of steps whose counts do not follow from packing, padding and task."""
    data, slots, real, supervised, documents, rows = r.plan.data, *(np.asarray(getattr(r.trace, name)) for name in COUNT_COLUMNS)
    if data.packing:
        whole, pieces = rows * data.sequence_length, real - supervised
        # A row cuts at most one document in two at each of its ends.
        several = (pieces < rows) | (pieces > documents + 2 * rows) | (documents > pieces)
        return int(((slots != whole) | (real != whole) | (several if data.document_borders else pieces != rows)).sum())
    wrong = (documents != rows) | (supervised != (real - rows if r.plan.model.task is Task.CAUSAL_LM else rows)) | (real > slots)
    wrong |= slots > rows * data.sequence_length
    if data.padding is Padding.STATIC:
        wrong |= slots != rows * data.sequence_length
    elif data.padding is Padding.NONE:
        wrong |= real != slots
    elif r.plan.batch.gradient_accumulation == 1 and r.count == 1:
        wrong |= slots % np.maximum(1, rows) != 0
    return int(wrong.sum())


def many_rows(r: Run) -> bool:
    """Return True if enough rows were trained for a mean."""
    return sum(r.trace.rows) >= 50  # noqa: PLR2004 - a standard error of a seventh of the spread


def least_evaluation_loss(r: Run) -> float | None:
    """Return the loss of rows that are classified wrongly, which is ln 2 at least."""
    held_out = r.s.evaluation
    return None if held_out is None or held_out.accuracy is None else (1 - held_out.accuracy) * log(2)


def most_evaluation_loss(r: Run) -> float | None:
    """Return the highest mean loss at an accuracy: below ln(labels) where a row is right, and 30 nats where it is wrong."""
    held_out, labels = r.s.evaluation, r.plan.model.labels
    return (
        None
        if held_out is None or held_out.accuracy is None or not labels
        else 0.9 * log(labels) * held_out.accuracy + (1 - held_out.accuracy) * 30
    )


def broken_rows(r: Run) -> float | None:
    """Return the distance of the correct rows from a whole number, over all rows."""
    held_out = r.s.evaluation
    if held_out is None or held_out.accuracy is None:
        return None
    correct = held_out.accuracy * held_out.rows
    return abs(correct - round(correct)) / held_out.rows


# Losses


def some_steps(r: Run) -> bool:
    """Return True if a few steps have a loss."""
    return len(r.losses) >= 5  # noqa: PLR2004 - equal by chance is out of the question


def learns_nothing(r: Run) -> bool:
    """Return True for a learning rate that changes no weight in 16 bits or 32 bits."""
    return some_steps(r) and r.plan.optimizer.learning_rate < 1e-9  # noqa: PLR2004 - below the resolution of fp32


def diverges(r: Run) -> bool:
    """Return True for AdamW whose updates are larger than the weights of any model; the schedule may begin at zero."""
    settings = r.plan.optimizer
    adamw = settings.name.endswith(("adamw", "adamw_8bit"))
    return adamw and settings.learning_rate >= 1 and len(r.losses) > 3 + settings.warmup_steps


def chance(r: Run) -> float | None:
    """Return the loss of a uniform guess, for weights that are those of the card."""
    if r.model is None or unlike_the_card(r.plan) is not None:
        return None
    return log(r.plan.model.labels) if r.plan.model.labels else log(r.model.vocabulary)


def highest_first_loss(r: Run) -> float | None:
    """Return the highest loss of the first step.

    Logits of random weights with a spread of 0.02 add half their variance to the loss of a uniform guess; pretrained weights and new
    heads may begin 8 nats above it.
    """
    uniform, random = chance(r), r.plan.model.weights is Weights.RANDOM and not r.plan.model.labels
    if uniform is None or r.model is None:
        return None
    return 1.05 * uniform + (0.5 * 0.02**2 * 1.5 * r.model.hidden_size + 0.1 if random else 8.0)


def lowest_first_loss(r: Run) -> float | None:
    """Return the lowest loss of the first step of a language model with random weights."""
    uniform = chance(r)
    return 0.85 * uniform if uniform is not None and r.plan.model.weights is Weights.RANDOM and not r.plan.model.labels else None


def steepest_possible(r: Run) -> float | None:
    """Return the largest fall of the loss that an update of random weights can make, with half a nat by which batches differ.

    AdamW moves each weight by about the learning rate, so that an update changes a logit by at most about the rate x width for the head and
    for each block; x alpha for adapters, which are that much narrower.
    """
    uniform = lowest_first_loss(r)
    if uniform is None or r.model is None or not r.plan.optimizer.name.endswith(("adamw", "adamw_8bit")):
        return None
    width = r.plan.lora.alpha if r.plan.lora else r.model.hidden_size
    return r.plan.optimizer.learning_rate * width * (1 + r.model.layers) + 0.5


def loss_of_random_tokens(r: Run) -> float | None:
    """Return the lowest mean loss of a step on uniformly random tokens: their entropy, less five standard errors and rounding of bf16."""
    data = r.plan.data
    endless = data.source is DataSource.SYNTHETIC and data.name in UNIFORM and data.training_rows is None
    if not endless or r.model is None or r.plan.model.labels or not r.steps:
        return None
    # The loss of a token deviates by 2 nats at most.
    return log(r.model.vocabulary - SPECIAL_TOKENS) - 5 * 2.0 / sqrt(max(1, min(r.trace.supervised_tokens))) - 0.02


def losses_in_band(r: Run) -> bool | None:
    """Return False if the losses of an unchecked run are outside the band of its workload."""
    if r.plan.workload not in r.facts.workloads:
        return None
    return loss_band(r.facts.golden_losses(r.plan.workload), r.plan, r.trace, changed=r.s.division is Division.OPEN).passed
