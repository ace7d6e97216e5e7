"""Runs that no machine made: a simulated log and simulated samples, turned into a submission by the harness's own code.

Step times follow from a stated share of the peak, with autocorrelated noise that is drawn for each run. Energy is the integral of
power, memory follows from the shapes of the model, and each other figure from the same run.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tunemark.collector.gate import derive
from tunemark.harness.plan.resolve import Options, Resolved, resolve
from tunemark.harness.run.launch import SteadinessJudge
from tunemark.harness.run.record import Finished, assemble, refused_run
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.run.telemetry import Moment, Sample, Telemetry
from tunemark.harness.vendors.protocol import Device, DeviceReading, Feature, vendor_of
from tunemark.schema import VERSION
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB, MIB
from tunemark.schema.physics.architecture import adapted_linears, block_linears, count_parameters
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.memory import count_weights, estimate_memory
from tunemark.schema.physics.training_shape import shape_of_plan
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.submission import DeviceFacts, Harness, Submission
from tunemark.schema.records.trace import OPTIMIZER_LIBRARIES, Study, optimizer_class
from tunemark.schema.vocabulary import BLOCK_OFFSET, BLOCK_SCALES, SCALES_OF_BLOCK_SCALES, VARLEN, Backend, Method, Strategy

ROOT = Path(__file__).parents[2]
FACTS = FactBase(ROOT / "data")
COMMIT = "85286baa645a7d93cfb5b6888c753c98dcd04ebf"
"""A commit of this project of the day before the simulated runs."""
PACKAGES = {
    "accelerate": "1.15.0",
    "bitsandbytes": "0.50.2",
    "datasets": "5.2.0",
    "numpy": "2.4.6",
    "nvidia-ml-py": "13.615.71",
    "peft": "0.21.2",
    "tokenizers": "0.23.3",
    "torch": "2.13.0",
    "transformers": "5.23.0",
}
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
CONTEXT_BYTES = 640 * MIB
"""Memory of a device outside the allocator: context and kernels."""
CALM = (frozenset[str](), 2619.0, frozenset[str]())
"""No reason to lower the clocks, the memory's clock in MHz, and no error."""


class Gpu(NamedTuple):
    """A GPU as its driver reports it."""

    name: str
    memory_mib: int
    power_w: float
    clock_mhz: float
    bf16_tflops: float
    """Dense peak."""
    target: str
    """Compute capability, or the gfx name."""
    driver: str = "580.95.05"
    backend: Backend = Backend.CUDA


H100 = Gpu("NVIDIA H100 80GB HBM3", 81_559, 700.0, 1_980.0, 989.0, "9.0")


def gpu_machine(gpu: Gpu = H100, count: int = 1, **changes: Any) -> Machine:
    """Return a host with some GPUs of one kind."""
    vendor = vendor_of(gpu.backend)
    device = DeviceFacts(name=gpu.name, memory_bytes=gpu.memory_mib * MIB, driver=gpu.driver, power_limit_w=gpu.power_w, target=gpu.target)
    machine = Machine(
        backend=gpu.backend,
        backend_reason=vendor.found_by,
        devices=(device,) * count,
        family=vendor.family,
        os="Linux 6.8 x86_64",
        python="3.12.11",
        packages=PACKAGES,
        cpu="Intel(R) Xeon(R) Platinum 8480+",
        cpu_physical_cores=26,
        cpu_logical_cores=52,
        cpu_usable_cores=52,
        memory_bytes=232 * GIB - 1_753_088,
        free_disk_bytes=800 * GIB,
        swap_bytes=0,
        indexes=tuple(range(count)),
    )
    return machine.model_copy(update=changes)


def machine_of(content: dict[str, Any], **changes: Any) -> Machine:
    """Return the machine of a recorded run on a CPU, whose memory is that of its host."""
    machine = derive.machine_of(Submission.model_validate_json(json.dumps(content)), FACTS)
    memory = changes.get("memory_bytes", machine.memory_bytes)
    devices = tuple(device.model_copy(update={"memory_bytes": memory}) for device in machine.devices)
    return machine.model_copy(update={"devices": devices, "free_disk_bytes": 100 * GIB, "swap_bytes": 0, **changes})


@dataclass(frozen=True)
class Ending:
    """How a simulated run ends, if not after its planned steps."""

    phase: str = "train"
    """The last phase that begins."""
    failure: dict[str, str] | None = None
    """The failure that the worker logs."""
    finished: dict[str, Any] = field(default_factory=dict)
    """What else the parent sees, such as `ended_by`."""
    at_s: float | None = None
    """Wall time at which the parent ends the worker: steps that would be complete later are not."""
    not_finite: bool = False
    """True if the last loss is not a finite number."""


@dataclass(frozen=True)
class Scenario:
    """A run to simulate."""

    workload: str
    machine: Machine
    options: Options = field(default_factory=Options)
    seed: int = 0
    """Seed of everything that varies between two runs of one plan."""
    hfu: float = 0.42
    """Share of the GPU's dense peak that all products use."""
    step_s: float | None = None
    """Median step time; null computes it from `hfu`."""
    noise: float = 0.004
    """Standard deviation of the logarithm of the step time."""
    steps: int | None = None
    """Completed steps; null for the planned ones."""
    ending: Ending | None = None
    recorded: dict[str, Any] | None = None
    """A recorded run of the same workload with the same seed: its losses, rows, model and quality are the same in a second run."""
    gpu: Gpu = H100
    started_at: datetime = datetime(2026, 11, 21, 9, 14, 7, 341_552, tzinfo=UTC)
    import_s: float = 11.0
    foreign_cores: float = 0.02
    rss_bytes: int | None = None
    """Peak resident memory; null computes it from the model."""
    refused: str | None = None
    """The reason why the harness refused the run."""
    probe: float = 0.71
    """Share of the peak that large products reach."""
    power: float = 0.87
    """Mean power as a share of the limit."""
    harness: Harness = field(default_factory=lambda: Harness(version=VERSION, commit=COMMIT, dirty=False))
    supersedes: dict[str, str] | None = None
    study: Study | None = None
    before: Callable[[np.ndarray], np.ndarray] = lambda times: times
    """Change of the step times, such as a stall."""


def simulate(scenario: Scenario) -> dict[str, Any]:
    """Return the submission of a simulated run as JSON content."""
    random = np.random.default_rng(np.random.SeedSequence([scenario.seed, *scenario.workload.encode()]))
    resolved = resolve(scenario.workload, FACTS, scenario.machine, scenario.options)
    run = _Simulation(scenario, resolved, random)
    finished = replace(refused_run(scenario.refused), started_at=scenario.started_at) if scenario.refused else run.finished()
    golden = FACTS.golden_losses(scenario.workload)
    submission = assemble(resolved, scenario.machine, finished, supersedes=scenario.supersedes, study=scenario.study, golden=golden)
    content: dict[str, Any] = json.loads(submission.model_dump_json())
    content["run_id"] = random.bytes(16).hex()
    content["harness"] = scenario.harness.model_dump(mode="json")
    dirty = [{"kind": "dirty_source", "message": "the checkout had uncommitted changes"}] if content["harness"]["dirty"] else []
    content["warnings"] = [warning for warning in content["warnings"] if warning["kind"] != "dirty_source"] + dirty
    return content


class _Simulation:
    """One run in the making."""

    def __init__(self, scenario: Scenario, resolved: Resolved, random: np.random.Generator) -> None:
        self.scenario, self.plan, self.random = scenario, resolved.plan, random
        self.card = FACTS.models[self.plan.model.key]
        self.on_cpu = self.plan.device.backend is Backend.CPU
        self.compiles = self.plan.model.compile != "none" or self.plan.model.attention == "flex_attention"
        self.log = RunLog()
        self.now = 0.0
        self.train_s = (0.0, 0.0)
        shape = shape_of_plan(self.plan, self.card)
        ledger = estimate_memory(shape)
        micro_steps = self.plan.batch.gradient_accumulation
        peak = scenario.gpu.bf16_tflops * 1e12
        self.step_s = scenario.step_s or flops_ledger(shape).executed * micro_steps / (peak * scenario.hfu)
        self.allocated = int(ledger.peak_allocated * 1.01) // 512 * 512
        # An allocation that does not fit leaves some of the device free.
        failed = bool(scenario.ending and scenario.ending.failure and scenario.ending.failure["status"] == "oom_device")
        room = scenario.gpu.memory_mib * MIB - int((0.46 + 2.61 * failed) * GIB) - CONTEXT_BYTES
        self.reserved = min(int(ledger.peak_reserved * 1.02), room) // (2 * MIB) * 2 * MIB
        self.allocated = min(self.allocated, self.reserved - 412 * MIB)

    def finished(self) -> Finished:
        """Return the evidence of the parent at the end of the run."""
        ending, log = self.scenario.ending, self.log
        for phase in self._phases():
            log.phases.append({"phase": phase, "at_s": self.now})
            getattr(self, f"_{phase}")()
            if ending and ending.phase == phase:
                break
        else:
            log.ended = True
        log.failure = {**ending.failure, "at_s": self.now} if ending and ending.failure else None
        wall_s = ending.at_s if ending and ending.at_s else self.now + 0.4 * self.random.uniform(0.9, 1.3)
        busy = self._busy_cores()
        rss = self._host_bytes()
        return Finished(
            log=log,
            telemetry=replace(self._device_samples(wall_s), samples=self._host_samples(wall_s, busy, rss)),
            started_at=self.scenario.started_at,
            wall_s=wall_s,
            user_s=busy * (self.train_s[1] - self.train_s[0]) * 0.93 + self._in(min(self.now, 12.0)) * 0.9,
            system_s=busy * (self.train_s[1] - self.train_s[0]) * 0.07 + self._in(min(self.now, 12.0)) * 0.1,
            max_rss_bytes=rss,
            **{"exit_code": 1 if log.failure else 0, **(ending.finished if ending else {})},
        )

    def _in(self, seconds: float) -> float:
        return seconds * self.random.uniform(0.97, 1.03)

    def _phases(self) -> list[str]:
        rules, sharded = self.plan.measurement, self.plan.device.strategy is Strategy.FSDP2
        probe = ["probe"] if rules.probe else []
        phases = ["import", "data", "load", *(["check"] if rules.gates else []), *(["load"] if sharded else [])]
        after = [*(["eval"] if rules.evaluate else []), *(["save"] if rules.save else [])]
        return [*phases, *probe, "train", *probe, *after, "teardown"]

    # The phases, each with what the worker logs in it

    def _import(self) -> None:
        self.now += self._in(self.scenario.import_s)

    def _data(self) -> None:
        self.now += self._in(0.09)

    def _load(self) -> None:
        size = count_parameters(self.card).total
        self.now += self._in(0.15 + size / (0.6e9 if size > 1e8 else 1e9))
        self.log.model = self._model(trained=False)

    def _check(self) -> None:
        self.now += self._in(0.4 + 2 * self.step_s / self.plan.batch.gradient_accumulation)
        self.log.gates = self._gates()

    def _probe(self) -> None:
        self.now += self._in(0.56)
        size = vendor_of(self.plan.device.backend).probe_size
        if self.scenario.recorded and self.on_cpu:
            # A faster CPU multiplies faster too.
            faster = step_time(self.scenario.recorded) / self.step_s
            rate = self.scenario.recorded["probe"]["before_flop_per_s"] * faster * self.random.uniform(0.97, 1.03)
        else:
            rate = self.scenario.gpu.bf16_tflops * 1e12 * self.scenario.probe * self.random.uniform(0.99, 1.01)
        when = "after" if self.log.steps else "before"
        if when == "after":
            rate = self.log.probe["before_flop_per_s"] * self.random.uniform(0.965, 0.985)
        self.log.probe |= {"dtype": self.plan.precision.compute.value, "size": size, f"{when}_flop_per_s": rate}

    def _train(self) -> None:
        begun, ending = self.now, self.scenario.ending
        self.log.effective = self._effective()
        self.log.started_at_s = self.now = begun + 3e-5
        durations = self._durations(self._step_count())
        self._log_steps(durations)
        if ending and ending.not_finite:
            self.log.steps[-1]["loss"] = None
            self.now += 0.002
        elif ending and ending.phase == "train":
            self.now += self._in(self.step_s * 0.4)
        elif self.plan.device.count > 1:
            self._report_ranks(durations[: len(self.log.steps)])
        if not ending or ending.failure:
            self.log.memory = self._peaks()
        if not ending or ending.phase != "train":
            self.log.model, self.log.effective = self._model(trained=True), self._effective(trained=True)
        self.train_s = (begun, self.now)
        self.now += 3e-5

    def _log_steps(self, durations: list[float]) -> None:
        """Log steps until the planned number, the parent's judgement that they are enough, or its end of the run."""
        judge, ends_s = SteadinessJudge(self.plan.measurement), (self.scenario.ending or Ending()).at_s or math.inf
        micro = 1 if self.on_cpu else self.plan.batch.gradient_accumulation
        count = len(durations)
        for duration, counts, loss in zip(durations, self._rows(count), self._losses(count), strict=True):
            if self.now + duration > ends_s or (self.scenario.steps is None and judge.sure(self.log)):
                break
            event: dict[str, Any] = {"completed_at_s": self.now + duration, "loss": loss, **counts}
            if micro > 1:
                shares = np.cumsum(self.random.normal(1.0, 0.002, micro))
                event["micro_completed_at_s"] = [self.now + duration * 0.992 * share / shares[-1] for share in shares]
            self.log.steps.append(event)
            self.now += duration
        if self.log.steps and not self.on_cpu:
            self.log.events.append({"step": 1, "what": "allocator_growth", "amount": self.reserved // 3 // MIB * MIB})

    def _eval(self) -> None:
        self.now += self._in(0.5)
        if self.scenario.recorded:
            self.log.evaluation = self.scenario.recorded["evaluation"]

    def _save(self) -> None:
        self.now += self._in(0.7)
        written = self.log.model["adapter_bytes"] if self.log.model else 0
        self.log.saved = {"bytes": (written or sum(self.log.model["parameter_bytes"].values() if self.log.model else ())) + 61_440}

    def _teardown(self) -> None:
        self.now += self._in(0.06)
        self.log.compile_cache = {"state": "cold" if self.compiles else "none", "reason": None}
        if self.compiles and self.log.steps:
            self.log.events.append({"step": 1, "what": "compile", "amount": 2})

    # Steps

    def _step_count(self) -> int:
        rules = self.plan.measurement
        limited = int((rules.max_train_s or 1e9) / self.step_s) if self.scenario.steps is None else self.scenario.steps
        return max(min(limited, rules.max_steps or limited), rules.min_steps if self.scenario.steps is None else 0)

    def _durations(self, count: int) -> list[float]:
        """Return autocorrelated log-normal step times; the first takes longer, and rows of other widths take their share."""
        noise, value = [], 0.0
        for draw in self.random.normal(0, 1, count):
            value = 0.3 * value + draw
            noise.append(value)
        times = self.step_s * np.exp(self.scenario.noise * np.array(noise))
        slots = np.array([row["slot_tokens"] for row in self._rows(count)], float)
        times = times * (0.4 + 0.6 * slots / slots.mean()) if count else times
        times[:1] *= self.random.uniform(1.25, 1.4)
        return [float(time) for time in self.scenario.before(times)]

    def _rows(self, count: int) -> list[dict[str, int]]:
        plan, recorded = self.plan, self.scenario.recorded
        if recorded:
            columns = {name: recorded["trace"][name] for name in ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")}
            return [{name: values[step % len(values)] for name, values in columns.items()} for step in range(count)]
        # Those after the first four million tokens are not compared.
        return [step._asdict() for step in islice(cycle(derive.expected_counts(plan, self.card.vocabulary, count)), count)]

    def _losses(self, count: int) -> list[float]:
        """Return the recorded losses, or those of random weights on random tokens: they fall to the logarithm of the vocabulary."""
        recorded = self.scenario.recorded
        if recorded:
            return (recorded["trace"]["loss"] * (count // max(1, len(recorded["trace"]["loss"])) + 1))[:count]
        spread, floor = 0.02 * self.card.hidden_size**0.5, np.log(self.card.vocabulary - 4)
        noise = self.random.normal(0, 1.1 / (self.plan.batch.global_batch * self.plan.data.sequence_length) ** 0.5, count)
        return [float(np.float32(floor + spread**2 / 2 * np.exp(-step / 60) + noise[step])) for step in range(count)]

    def _report_ranks(self, durations: list[float]) -> None:
        """Log each process: the slowest own work leaves a share of the step for the exchange."""
        count = self.plan.device.count
        own = np.array(durations)[:, None] * self.random.uniform(0.52 if self.on_cpu else 0.86, 0.6 if self.on_cpu else 0.88, (1, count))
        own *= self.random.normal(1, 0.01, own.shape)
        for rank in range(count):
            self.log.ranks.append(
                {
                    "rank": rank,
                    "own_work_s": [float(value) for value in own[:, rank]],
                    "device_allocated_bytes": None if self.on_cpu else self.allocated + 4096 * rank,
                    "device_reserved_bytes": None if self.on_cpu else self.reserved,
                    "host_rss_bytes": int(self._host_bytes() / count * 0.98) + 8192 * rank,
                }
            )

    # What is read from the model

    def _model(self, *, trained: bool) -> dict[str, Any]:
        plan, recorded = self.plan, self.scenario.recorded
        model = dict(recorded["model"]) if recorded and recorded["model"] else sizes_of(plan, self.card)
        if not trained:
            model |= {"gradient_bytes": None, "gradient_bytes_reason": "the run ended before its first step was complete"}
            states = "the run ended before its optimizer states were measured, which is after the last step"
            model |= {"optimizer_state_bytes": None, "optimizer_state_bytes_reason": states}
        return model

    def _attention_kernel(self) -> str | None:
        attention = self.plan.model.attention
        if attention == "sdpa" and not self.compiles:
            return "efficient" if self.plan.data.packing else "flash"
        return "flash" if attention == VARLEN else None

    def _effective(self, *, trained: bool = False) -> dict[str, Any]:
        plan = self.plan
        place = "cpu" if self.on_cpu else "cuda"
        sharding = {Strategy.FSDP2: "torch FSDPModule"}.get(plan.device.strategy)
        quantised = plan.quantisation
        return {
            "attention": plan.model.attention,
            "attention_kernel": self._attention_kernel(),
            "fused_kernels": plan.model.fused_kernels,
            "loss": plan.model.loss,
            "compile": "none" if plan.model.compile == "none" else f"{plan.model.compile}, inductor",
            "gradient_checkpointing": plan.model.gradient_checkpointing.value,
            "compute": plan.precision.compute.value,
            "quantisation": f"{quantised.format}{', double' if quantised.double else ''}" if quantised else "none",
            "optimizer": f"{OPTIMIZER_LIBRARIES[optimizer_class(plan)]} {optimizer_class(plan)}",
            "parameters_on": [place],
            "optimizer_states_on": [place] if trained else [],
            "stochastic_rounding": plan.rounds_stochastically,
            "trainable_dtypes": [TORCH_NAMES[plan.trained.value]],
            "processes": plan.device.count,
            "process_group": None if plan.device.count == 1 else "gloo" if self.on_cpu else "nccl",
            "sharding": sharding,
        }

    def _gates(self) -> list[dict[str, Any]]:
        plan, full = self.plan, self.plan.method is Method.FULL
        if plan.device.strategy in {Strategy.FSDP2, Strategy.ZERO3}:
            why = f"the model is sharded by {plan.device.strategy.value}; run the workload on one device for this check"
            return [{"name": name, "passed": None, "detail": why} for name in ("adapter_gradient", "packed_documents")]
        if self.scenario.recorded:
            return [gate for gate in self.scenario.recorded["gates"] if gate["name"] != "loss_band"]
        adapters = self.card.layers * len(plan.lora.target_modules) if plan.lora else tensors_of(self.card)
        reached = f"a gradient reaches {adapters} of {adapters} {'weights' if full else 'adapters'}"
        change = self.random.uniform(0, 0.004)
        packed = (
            {"passed": True, "detail": f"another first document changes the logits of the second by {change:.1e} of their spread"}
            if plan.data.packing
            else {"passed": None, "detail": "documents are not packed"}
        )
        return [{"name": "adapter_gradient", "passed": True, "detail": reached}, {"name": "packed_documents", **packed}]

    def _peaks(self) -> dict[str, Any]:
        if self.on_cpu:
            unknown = {"peak_bytes": None, "method": None, "reason": Device.no_peaks}
            return {"allocated": unknown, "reserved": unknown}
        peaks = {"allocated": self.allocated, "reserved": self.reserved}
        return {name: {"peak_bytes": size, "method": f"torch.cuda.max_memory_{name}", "reason": None} for name, size in peaks.items()}

    # Samples from outside the worker

    def _busy_cores(self) -> float:
        threads = (self.plan.device.threads or 1) * (self.plan.device.count if self.on_cpu else 1)
        busy = threads * self.random.uniform(0.86, 0.93) if self.on_cpu else self.plan.device.count * self.random.uniform(1.03, 1.08)
        # Cores that others use are not free for the run.
        return min(busy, self.scenario.machine.cpu_logical_cores - self.scenario.foreign_cores)

    def _host_bytes(self) -> int:
        if self.scenario.rss_bytes:
            return self.scenario.rss_bytes
        if self.scenario.recorded and len(self.log.phases) > 2:
            return int(self.scenario.recorded["memory"]["host_rss"]["peak_bytes"] * self._in(1.0)) // 4096 * 4096
        built = len(self.log.phases) > 2
        weights = count_parameters(self.card).total * BYTES[self.plan.precision.parameters.value] if built else 0
        return int((self.plan.device.count * 2.2 * GIB if built else 0.5 * GIB) + weights * 1.05) // 4096 * 4096

    def _host_samples(self, wall_s: float, busy: float, rss: int) -> list[Sample]:
        times = np.arange(0.2, wall_s, 0.2) + self.random.uniform(0, 0.01, len(np.arange(0.2, wall_s, 0.2)))
        cores = np.maximum(0, self.random.normal(busy, 0.03 * busy, len(times)))
        foreign = np.abs(self.random.normal(self.scenario.foreign_cores, 0.01, len(times)))
        sizes = (rss * np.minimum(1, 0.4 + times / wall_s)).astype(int) // 4096 * 4096
        return [
            Sample(float(at), int(size), 0, float(own), float(other))
            for at, size, own, other in zip(times, sizes, cores, foreign, strict=True)
        ]

    def _device_samples(self, wall_s: float) -> Telemetry:
        vendor, gpu = vendor_of(self.plan.device.backend), self.scenario.gpu
        if self.on_cpu:
            return Telemetry(reason=vendor.cannot[Feature.ENERGY])
        idle_w, count, held = gpu.power_w * 0.1, self.plan.device.count, 554 * MIB
        random, times = self.random, np.arange(0.1, wall_s, 0.1)
        training = (times > self.train_s[0] + 1) & (times < self.train_s[1])
        used = np.where(times > (self.log.phases[2]["at_s"] if len(self.log.phases) > 2 else wall_s), self.reserved + CONTEXT_BYTES, held)
        columns = []
        for device in range(count):
            level = gpu.power_w * self.scenario.power * random.uniform(0.97, 1.03)
            watts = np.where(training, np.minimum(gpu.power_w * 0.995, random.normal(level, gpu.power_w * 0.03, len(times))), idle_w)
            joules = 4.1e6 * (device + 1) + np.cumsum(watts * 0.1)
            clocks = np.where(
                training, np.minimum(gpu.clock_mhz, random.normal(gpu.clock_mhz * 0.88, 18, len(times)) // 15 * 15), gpu.clock_mhz
            )
            heat = np.where(training, 54 + 9 * (1 - np.exp(-(times - self.train_s[0]) / 40)), 38).round()
            columns.append((np.where(training, random.choice([0.99, 1.0], len(times), p=[0.1, 0.9]), 0.0), watts, clocks, heat, joules))
        moments = [
            Moment(
                float(at),
                tuple(DeviceReading(*(float(c[i]) for c in column[:4]), int(used[i]), float(column[4][i]), *CALM) for column in columns),
            )
            for i, at in enumerate(times)
        ]
        quiet = DeviceReading(0.0, idle_w, gpu.clock_mhz / 5, 34.0, held, 4.0e6, *CALM)
        before = [Moment(place / 10, (quiet,) * count) for place in range(5)]
        method = "amdsmi_get_gpu_memory_usage" if gpu.backend is Backend.ROCM else "nvmlDeviceGetMemoryInfo"
        return Telemetry([], tuple(range(count)), "", method, 0.1, before, moments, dict.fromkeys(range(count), 0))


# Sizes and rows that follow from the plan


def step_time(content: dict[str, Any]) -> float:
    """Return the median step time of a recorded run."""
    return float(np.median(np.diff([content["trace"]["started_at_s"], *content["trace"]["completed_at_s"]])))


def sizes_of(plan: Plan, card: Any) -> dict[str, Any]:
    """Return the counts of weights and the bytes of tensors, by their definitions."""
    weights, width = count_weights(shape_of_plan(plan, card)), BYTES[plan.trained.value]
    base, adapters = weights.plain + weights.quantised, weights.adapters
    trained, layers = adapters or base, [linear.inputs * linear.outputs for linear in block_linears(card)]
    tensors = card.layers * 2 * len(adapted_linears(card, plan.lora.target_modules)) if plan.lora else tensors_of(card)
    stored = {plan.precision.parameters.value: weights.plain * BYTES[plan.precision.parameters.value]}
    stored[plan.trained.value] = stored.get(plan.trained.value, 0) + adapters * width
    if plan.quantisation:
        # Half a byte a weight, a byte for 64 weights, and of each layer's constants 4 bytes for 256 and an offset.
        stored |= {
            "uint8": weights.quantised // 2,
            BLOCK_SCALES: weights.quantised // 64,
            SCALES_OF_BLOCK_SCALES: card.layers * sum(4 * -(-size // (64 * 256)) for size in layers),
            BLOCK_OFFSET: 4 * card.layers * len(layers),
        }
    return {
        "parameters": base + adapters,
        "trainable_parameters": trained,
        "parameter_bytes": stored,
        "adapter_bytes": adapters * width,
        "gradient_bytes": trained * width,
        "gradient_bytes_reason": None,
        "optimizer_state_bytes": 2 * trained * width + 4 * tensors,
        "optimizer_state_bytes_reason": None,
    }


def tensors_of(card: Any) -> int:
    """Return the number of tensors of a decoder: of a block its linear layers and norms, two more norms in Qwen3."""
    return card.layers * (len(block_linears(card)) + 2 + 2 * (card.family == "qwen3")) + 2 + (not card.tied_embeddings)
