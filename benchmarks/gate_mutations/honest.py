"""Honest submissions that the gate must accept: second runs, other machines and software, failures, and studies.

Each is a run of its own, with step times drawn for it. They are judged in a checkout in which the bases are committed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gate_mutations.bases import Content, base, identity_of
from gate_mutations.simulated import COMMIT, H100, PACKAGES, Ending, Gpu, Scenario, gpu_machine, machine_of, simulate, step_time
from tunemark.harness.plan.options import Options
from tunemark.harness.run.record import Superseded
from tunemark.schema.formats import GIB
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.records.submission import DeviceFacts, Harness
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Backend

CPU_OPTIONS = {
    "lora": Options(),
    "bert": Options(),
    "fsdp": Options(max_steps=60, devices=2, strategy="fsdp2"),
    "qlora": Options(max_steps=60, overrides=("method=qlora",)),
}
DEVICE_SERIES = Path(__file__).with_name("device_series.json")
LAST = datetime(2026, 11, 22, 16, 0, 12, 90_441, tzinfo=UTC)
"""Start of the last of these runs."""
OLDER = PACKAGES | {
    "torch": "2.9.1",
    "transformers": "4.57.1",
    "peft": "0.17.1",
    "accelerate": "1.10.1",
    "tokenizers": "0.22.1",
    "datasets": "4.3.0",
    "numpy": "2.3.4",
}


@dataclass(frozen=True)
class Honest:
    """An honest submission."""

    name: str
    make: Callable[[], Content]


def cpu(name: str, seed: int, **changes: Any) -> Content:
    """Return another run of a committed run on a CPU: the same work with the same seed, timed again. `speed` divides step times."""
    recorded, speed = base(name), changes.pop("speed", 1.0)
    machine = changes.pop("machine", machine_of(recorded))
    scenario = Scenario(
        recorded["plan"]["workload"],
        machine,
        CPU_OPTIONS[name],
        seed=seed,
        step_s=step_time(recorded) / speed,
        noise=0.03,
        recorded=recorded,
        started_at=LAST - timedelta(minutes=7 * seed),
        import_s=6.0,
    )
    return simulate(replace(scenario, **changes))


def cpu_machine(name: str, physical: int | None, logical: int, usable: int, memory_gib: float, **changes: Any) -> Machine:
    """Return a host without an accelerator."""
    memory = int(memory_gib * GIB)
    facts = {"cpu": name, "cpu_physical_cores": physical, "cpu_logical_cores": logical, "cpu_usable_cores": usable, "memory_bytes": memory}
    return machine_of(base("lora"), devices=(DeviceFacts(name=name, memory_bytes=memory),), **facts, **changes)


def gpu(seed: int, kind: Gpu = H100, workload: str = "lora-8b", count: int = 1, **changes: Any) -> Content:
    """Return a run on GPUs of one kind."""
    machine = changes.pop("machine", gpu_machine(kind, count))
    options = changes.pop("options", Options(max_steps=110, devices=count if count > 1 else None))
    started_at = LAST - timedelta(minutes=11 * seed)
    return simulate(replace(Scenario(workload, machine, options, seed=seed, gpu=kind, started_at=started_at), **changes))


def failed(status: str, message: str, fix: str, **more: Any) -> Ending:
    """Return an ending with a failure that the worker logs."""
    return Ending(failure={"status": status, "message": message, "fix": fix}, **more)


def stalls(every: int, factor: float) -> Callable[[np.ndarray], np.ndarray]:
    """Return a change of step times: each n-th takes longer."""
    return lambda times: np.where(np.arange(len(times)) % every == every - 1, times * factor, times)


def on(gpu_kind: Gpu, torch: str = PACKAGES["torch"], **changes: Any) -> dict[str, Any]:
    """Return the arguments of a run on another kind of GPU."""
    return {"kind": gpu_kind, "machine": gpu_machine(gpu_kind, packages=PACKAGES | {"torch": torch}), "options": SHORT, **changes}


def with_torch(version: str) -> dict[str, Any]:
    """Return the arguments of a run with another build of torch."""
    return {"machine": gpu_machine(packages=PACKAGES | {"torch": version})}


SHORT = Options(max_steps=60)
LONG = Options(max_steps=120)
READ_OUTPUT = "read the worker's output above; `tunemark doctor` shows this machine's software"
LOWER_RATE = "lower optimizer.learning_rate, or use a wider number format"
INTERRUPTED = {"ended_by": "interrupted", "exit_code": -15}
NEEDED = ("torch", "transformers", "peft", "accelerate", "tokenizers", "numpy")
TWO = {"workload": "full-1b", "count": 2, "hfu": 0.36}
Row = tuple[str, str, dict[str, Any]]
"""Name, the committed run on a CPU that is made again or an empty text for a run on GPUs, and what is different."""


def second_runs() -> list[Row]:
    """Return further runs of the same plan on the same machine."""
    oom = {name: base("oom")["outcome"][name] for name in ("status", "message", "fix")}
    two_rows = Options(overrides=("batch.micro_batch=2",))
    replacing = Superseded(identity_of("h100"), "the first run shared the GPU")
    return [
        *((f"a {which} run of {name}", name, {}) for which in ("second", "third") for name in CPU_OPTIONS),
        *((f"a {which} run of h100", "", {"options": LONG}) for which in ("second", "third")),
        ("a second run of ddp", "", {**TWO, "options": Options(max_steps=130, devices=2)}),
        ("a second run of oom", "", {"workload": "full-8b", "steps": 1, "options": two_rows, "ending": Ending(failure=oom)}),
        ("a second run with another seed", "", {"options": Options(max_steps=120, seed=7)}),
        ("a second run that replaces the first", "", {"options": LONG, "supersedes": replacing}),
    ]


def speeds() -> list[Row]:
    """Return slower, faster, noisier and disturbed runs."""
    limited = H100._replace(power_w=400.0, clock_mhz=1_410.0)
    suspended = {"before": lambda times: np.where(np.arange(len(times)) == 20, 60.0, times)}
    return [
        ("30% slower", "lora", {"speed": 0.7}),
        ("25% faster", "lora", {"speed": 1.25}),
        ("half as fast on a busy host, with its warning", "qlora", {"speed": 0.5, "foreign_cores": 1.0}),
        ("10% slower on the same GPU", "", {"hfu": 0.38}),
        ("15% faster on the same GPU", "", {"hfu": 0.48}),
        ("a tenth of the usual speed: each kernel waits for the host", "", {"hfu": 0.042, "options": Options(max_steps=40), "power": 0.2}),
        ("noise of 12% between steps", "fsdp", {"noise": 0.12}),
        ("hardly any noise", "", {"noise": 0.0004}),
        ("a stall in every 25th step: a file system that flushes", "", {"before": stalls(25, 1.6)}),
        ("a drift of 6%: it gets warm", "", {"before": lambda times: times * np.linspace(1, 1.06, len(times))}),
        ("one step of a minute: the host was suspended", "qlora", suspended),
        ("a power limit of 400 W", "", {"kind": limited, "hfu": 0.31, "power": 0.96, "probe": 0.5}),
        ("import of libraries from a network drive", "", {"import_s": 214.0}),
    ]


def software() -> list[Row]:
    """Return other libraries, interpreters, drivers and sources of the harness."""
    twelve, year_ago = (H100._replace(driver=driver) for driver in ("550.163.01", "570.124.06"))
    few = {name: PACKAGES[name] for name in NEEDED}
    return [
        ("older libraries", "", {"machine": gpu_machine(packages=OLDER, python="3.11.9")}),
        ("a nightly torch", "", with_torch("2.16.0.dev20261112+cu130")),
        ("a torch of a vendor's container", "", with_torch("2.10.0a0+b558c986e8.nv25.11")),
        ("torch built from source", "", with_torch("2.13.0a0+git4f2a91c")),
        ("transformers from its repository", "", {"machine": gpu_machine(packages=PACKAGES | {"transformers": "5.24.0.dev0"})}),
        ("CUDA 12 and its driver", "", {"kind": twelve, "machine": gpu_machine(twelve, packages=PACKAGES | {"torch": "2.9.1+cu126"})}),
        ("a driver of a year ago", "", {"machine": gpu_machine(year_ago, packages=OLDER | {"torch": "2.8.0+cu128"})}),
        (
            "a CUDA build of torch on a host without GPU",
            "lora",
            {"machine": machine_of(base("lora"), packages=PACKAGES | {"torch": "2.13.0+cu130"})},
        ),
        ("without the packages that this run does not need", "lora", {"machine": machine_of(base("lora"), packages=few)}),
        ("Python 3.13 on a newer kernel", "", {"machine": gpu_machine(python="3.13.7", os="Linux 6.17 x86_64")}),
        ("Python 3.11 on an old distribution", "", {"machine": gpu_machine(python="3.11.2", os="Linux 5.15 x86_64")}),
        ("installed from a wheel, no commit", "", {"harness": Harness(version="0.1.0")}),
        ("dirty source with its warning", "lora", {"harness": Harness(version="0.1.0", commit=COMMIT, dirty=True)}),
    ]


def endings() -> list[Row]:
    """Return runs that did not end as planned."""
    oom, silent = base("oom")["outcome"], {"before": lambda times: np.where(np.arange(len(times)) > 29, 999.0, times)}
    timeout, no_step = ({"ended_by": name, "exit_code": -15} for name in ("timeout", "no step"))
    blas = {"exit_code": 1, "output_tail": "OpenBLAS error: Memory allocation still failed after 10 retries, giving up."}
    watched = Options(max_steps=60, overrides=("method=qlora",), no_step_s=120.0)
    small = {"machine": machine_of(base("fsdp"), memory_bytes=2 * GIB), "steps": 0, "rss_bytes": int(1.78 * GIB) // 4096 * 4096}
    large = Options(overrides=("batch.micro_batch=64", "gradient_checkpointing=none"))
    flash = Options(overrides=("attention=flash_attention_2",))
    illegal = "AcceleratorError: CUDA error: an illegal memory access was encountered"

    def nan(value: str) -> Ending:
        return failed("nan", f"LossNotFinite: the loss became {value}", LOWER_RATE, not_finite=True)

    return [
        ("Ctrl-C after a third", "", {"steps": 37, "ending": Ending(finished=INTERRUPTED)}),
        ("Ctrl-C while the model is loaded", "", {"ending": Ending("load", finished=INTERRUPTED)}),
        ("timeout", "", {"options": Options(timeout_s=120.0, max_steps=110), "ending": Ending(at_s=120.3, finished=timeout)}),
        ("no step for two minutes", "qlora", {"options": watched, "ending": Ending(at_s=141.0, finished=no_step), **silent}),
        ("the time limit left too few steps", "bert", {"speed": 0.02, "options": Options(max_train_s=40.0), "steps": 12}),
        ("NaN at step 50", "", {"steps": 50, "ending": nan("nan")}),
        ("NaN at the first step", "lora", {"steps": 1, "ending": nan("inf")}),
        (
            "crash before the model was there",
            "",
            {"ending": failed("crash", "OSError: [Errno 5] Input/output error", READ_OUTPUT, phase="data")},
        ),
        ("out of memory while libraries are imported, under a memory limit", "lora", {"ending": Ending("import", finished=blas)}),
        ("crash in step 31: an illegal address", "", {"steps": 30, "ending": failed("crash", illegal, READ_OUTPUT)}),
        (
            "killed by the kernel for lack of host memory",
            "fsdp",
            {**small, "ending": Ending("load", finished={"exit_code": -9, "host_oom_kills": 1})},
        ),
        ("killed with a signal", "", {"steps": 61, "ending": Ending(finished={"exit_code": -6})}),
        (
            "the harness itself was killed; recovered from the log",
            "",
            {"steps": 18, "ending": Ending(finished={"ended_by": "parent killed", "exit_code": 0})},
        ),
        ("unsupported", "lora", {"options": flash, "refused": "flash attention: its kernels are for GPUs; use attention=sdpa"}),
        (
            "unsupported: more devices than there are",
            "",
            {"options": Options(devices=8), "refused": "8 devices are planned, and this machine has 1"},
        ),
        (
            "out of memory in the check before training",
            "",
            {"options": large, "ending": failed("oom_device", oom["message"], oom["fix"], phase="check")},
        ),
    ]


def machines() -> list[Row]:
    """Return other hosts and other devices, with and without a card."""
    eight = gpu_machine(count=8, cpu_physical_cores=112, cpu_logical_cores=224, cpu_usable_cores=224, memory_bytes=2_015 * GIB)
    hosts: dict[str, tuple[str, float, tuple[str, int | None, int, int, float]]] = {
        "one core, physical cores unknown": ("lora", 0.55, ("Intel(R) Xeon(R) Processor", None, 1, 1, 3.8)),
        "a server's CPU with a card": ("lora", 5.0, ("AMD EPYC 9654 96-Core Processor", 96, 192, 192, 755.3)),
        "eight cores of a desktop, two threads each": ("bert", 2.2, ("AMD Ryzen 7 5800X 8-Core Processor", 8, 16, 16, 31.3)),
        "a container with 4 of 64 cores": ("fsdp", 1.4, ("AMD EPYC 7763 64-Core Processor", 64, 128, 4, 503.7)),
        "a CPU that has no card": ("lora", 1.6, ("AMD Ryzen 5 3600 6-Core Processor", 6, 12, 12, 15.5)),
        "a CPU that is named with its graphics": ("bert", 1.6, ("AMD Ryzen 7 8845HS w/ Radeon 780M Graphics", 8, 16, 16, 27.2)),
    }
    volta = Gpu("Tesla V100-SXM2-32GB", 32_768, 300.0, 1_530.0, 125.0, "7.0", "570.124.06")
    instinct = Gpu("AMD Instinct MI300X", 196_592, 750.0, 2_100.0, 1_307.4, "gfx942", "6.14.14", Backend.ROCM)
    small = {"workload": "lora-1b"}
    return [
        *((name, recorded, {"speed": speed, "machine": cpu_machine(*host)}) for name, (recorded, speed, host) in hosts.items()),
        ("a host with swap, a bit of it used", "", {"machine": gpu_machine(swap_bytes=8 * GIB)}),
        ("clock five hours ahead", "", {"started_at": datetime.now(UTC) + timedelta(hours=5)}),
        ("an A100 with 80 GB", "", on(Gpu("NVIDIA A100-SXM4-80GB", 81_920, 400.0, 1_410.0, 312.0, "8.0"), hfu=0.5)),
        ("an A100 with 40 GB and PCIe", "", on(Gpu("NVIDIA A100-PCIE-40GB", 40_960, 250.0, 1_410.0, 312.0, "8.0"), hfu=0.43)),
        ("an H200", "", on(Gpu("NVIDIA H200", 143_771, 700.0, 1_980.0, 989.0, "9.0"), hfu=0.43)),
        ("an H100 with PCIe", "", on(Gpu("NVIDIA H100 PCIe", 81_559, 350.0, 1_755.0, 756.0, "9.0"), hfu=0.37)),
        ("a B200", "", on(Gpu("NVIDIA B200", 183_359, 1_000.0, 1_965.0, 2_250.0, "10.0"), hfu=0.36)),
        ("an L40S", "", on(Gpu("NVIDIA L40S", 46_068, 350.0, 2_520.0, 362.0, "8.9"), hfu=0.42)),
        ("an RTX 5090", "", on(Gpu("NVIDIA GeForce RTX 5090", 32_607, 575.0, 2_407.0, 209.5, "12.0"), hfu=0.6)),
        (
            "an RTX 4090 with QLoRA",
            "",
            on(Gpu("NVIDIA GeForce RTX 4090", 24_564, 450.0, 2_520.0, 165.2, "8.9"), hfu=0.5, workload="qlora-8b"),
        ),
        ("an RTX 3090", "", on(Gpu("NVIDIA GeForce RTX 3090", 24_576, 350.0, 1_695.0, 71.2, "8.6"), hfu=0.62, **small)),
        ("an L4", "", on(Gpu("NVIDIA L4", 23_034, 72.0, 2_040.0, 121.0, "8.9"), hfu=0.35, **small)),
        ("an A10G", "", on(Gpu("NVIDIA A10G", 23_028, 300.0, 1_710.0, 70.0, "8.6"), hfu=0.55, **small)),
        # CUDA 13 has no kernels for Volta.
        ("a V100, in fp16", "", on(volta, "2.9.1+cu126", hfu=0.3, **small)),
        ("an MI300X", "", on(instinct, "2.13.0+rocm7.1", hfu=0.33)),
        (
            "an RTX 3070 Ti, which has no card",
            "",
            on(Gpu("NVIDIA GeForce RTX 3070 Ti", 12_288, 290.0, 1_770.0, 51.0, "8.6"), hfu=0.6, **small),
        ),
        (
            "eight H100, one replica each",
            "",
            {"workload": "full-1b", "count": 8, "hfu": 0.33, "machine": eight, "options": Options(max_steps=60, devices=8)},
        ),
        ("two of eight GPUs of a machine", "", {**TWO, "machine": gpu_machine(count=8), "options": Options(max_steps=60, devices=2)}),
    ]


def options() -> list[Row]:
    """Return runs with other options, open settings, and runs of studies."""
    points = (
        ("a point of a sweep", ("batch.micro_batch=2",), "sweep", "batch.micro_batch=2", 2),
        ("an arm of an A/B test", ("lora.rank=32",), "ab", "b: lora.rank=32, pair 1", 2),
        (
            "a point of a frontier",
            ("data.sequence_length=4096", "batch.micro_batch=1"),
            "frontier",
            "data.sequence_length=4096, batch.micro_batch=1",
            1,
        ),
    )
    studies = [
        # Each point belongs to its own study.
        Study(kind=kind, study_id=f"3b1f20c9a{151 + number}", point=text, position=position, settings_sha256=f"{151 + number:064x}")
        for number, (_, _, kind, text, position) in enumerate(points)
    ]
    return [
        ("stopped by the precision of its interval", "", {"options": Options()}),
        ("stopped by the time limit", "", {"options": Options(max_train_s=200.0)}),
        ("twelve steps only, which is not ranked", "lora", {"options": Options(max_steps=12)}),
        ("no gates", "", {"options": Options(max_steps=60, gates=False)}),
        ("no probe", "", {"options": Options(max_steps=60, probe=False)}),
        ("strict timing", "", {"options": Options(max_steps=60, strict_timing=True)}),
        ("adapters saved at the end", "", {"options": Options(max_steps=60, save=True)}),
        *((f"open division: {one}", "", {"options": Options(max_steps=60, overrides=(one,))}) for one in OPEN),
        *((f"tuned division: {', '.join(many)}", "", {"options": Options(max_steps=60, overrides=many)}) for many in TUNED),
        *(
            (name, "", {"options": Options(max_steps=60, overrides=overrides), "study": study})
            for (name, overrides, *_), study in zip(points, studies, strict=True)
        ),
    ]


OPEN = (
    "lora.rank=64",
    "optimizer.learning_rate=0.0001",
    "data.sequence_length=2048",
    "batch.micro_batch=2",
    "optimizer.max_grad_norm=0.3",
    "batch.gradient_accumulation=16",
)
TUNED = (
    ("gradient_checkpointing=selective",),
    ("gradient_checkpointing=none",),
    ("compile=blocks",),
    ("attention=eager",),
    ("batch.micro_batch=2", "batch.gradient_accumulation=4"),
    ("batch.micro_batch=4", "batch.gradient_accumulation=2", "compile=blocks"),
)


def with_stack() -> Content:
    """Return a run on an H100 with the versions of the libraries that its torch uses."""
    content = gpu(199)
    content["environment"]["runtime"] = {"cuda": "13.0", "cudnn": "9.10.2", "nccl": "2.27.5"}
    return content


def honest() -> tuple[Honest, ...]:
    """Return all honest variants, each with a seed of its own."""
    rows = [row for kinds in (second_runs, speeds, software, endings, machines, options) for row in kinds()]
    made = [
        Honest(name, partial(cpu, recorded, seed, **changes) if recorded else partial(gpu, seed, **changes))
        for seed, (name, recorded, changes) in enumerate(rows, start=1)
    ]
    return (*made, Honest("versions of CUDA, cuDNN and NCCL", with_stack))


def device_series() -> Iterator[Honest]:
    """Yield runs with the step times of real accelerators, from public logs, scaled to the median step of the simulated run.

    The file holds microseconds; stamps that were printed in whole milliseconds are spread within them.
    """
    for number, series in enumerate(json.loads(DEVICE_SERIES.read_text(encoding="utf-8"))):
        stamps = np.asarray(series["step_us"]) / 1e6
        spread = series["resolution_us"] / 1e6 * np.random.default_rng(number).uniform(-0.5, 0.5, len(stamps))
        scaled = (stamps + spread) / np.median(stamps)
        kind, options = (("full-1b", 2, 0.36), ("lora-8b", 1, 0.42))[number % 2], Options(max_steps=len(scaled))
        yield Honest(
            f"{series['name']} ({number})",
            lambda scaled=scaled, kind=kind, options=options, number=number: gpu(
                300 + number,
                workload=kind[0],
                count=kind[1],
                hfu=kind[2],
                options=options.having(devices=kind[1] if kind[1] > 1 else None),
                started_at=LAST - timedelta(minutes=11 * number % 2_000),
                before=lambda times: scaled * np.median(times),
            ),
        )
