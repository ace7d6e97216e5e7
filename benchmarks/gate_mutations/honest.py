"""Honest submissions that the gate must accept: second runs, other machines and software, failures, and studies.

Each is a run of its own, with step times drawn for it. They are judged in a checkout in which the bases are committed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from gate_mutations.bases import Content, base, identity_of
from gate_mutations.simulated import COMMIT, H100, PACKAGES, Ending, Gpu, Scenario, gpu_machine, machine_of, simulate, step_time
from tunemark.harness.plan.options import Options
from tunemark.harness.run.record import Superseded
from tunemark.schema.formats import GIB
from tunemark.schema.plan.machine import Machine
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


def second_runs() -> Iterator[Honest]:
    """Yield further runs of the same plan on the same machine."""
    for seed, name in enumerate(("lora", "bert", "fsdp", "qlora"), start=1):
        yield Honest(f"a second run of {name}", lambda name=name, seed=seed: cpu(name, seed))
        yield Honest(f"a third run of {name}", lambda name=name, seed=seed: cpu(name, seed + 10))
    yield Honest("a second run of h100", lambda: gpu(21, options=Options(max_steps=120)))
    yield Honest("a third run of h100", lambda: gpu(22, options=Options(max_steps=120)))
    yield Honest("a second run of ddp", lambda: gpu(23, workload="full-1b", count=2, hfu=0.36, options=Options(max_steps=130, devices=2)))
    yield Honest(
        "a second run of oom",
        lambda: gpu(
            24,
            workload="full-8b",
            steps=1,
            options=Options(overrides=("batch.micro_batch=2",)),
            ending=Ending(failure={k: base("oom")["outcome"][k] for k in ("status", "message", "fix")}),
        ),
    )
    yield Honest("a second run with another seed", lambda: gpu(25, options=Options(max_steps=120, seed=7)))
    yield Honest(
        "a second run that replaces the first",
        lambda: gpu(26, options=Options(max_steps=120), supersedes=Superseded(identity_of("h100"), "the first run shared the GPU")),
    )


def speeds() -> Iterator[Honest]:
    """Yield slower, faster, noisier and disturbed runs."""
    yield Honest("30% slower", lambda: cpu("lora", 31, speed=0.7))
    yield Honest("25% faster", lambda: cpu("lora", 32, speed=1.25))
    yield Honest("half as fast on a busy host, with its warning", lambda: cpu("qlora", 33, speed=0.5, foreign_cores=1.0))
    yield Honest("10% slower on the same GPU", lambda: gpu(34, hfu=0.38))
    yield Honest("15% faster on the same GPU", lambda: gpu(35, hfu=0.48))
    yield Honest(
        "a tenth of the usual speed: each kernel waits for the host", lambda: gpu(36, hfu=0.042, options=Options(max_steps=40), power=0.2)
    )
    yield Honest("noise of 12% between steps", lambda: cpu("fsdp", 37, noise=0.12))
    yield Honest("hardly any noise", lambda: gpu(38, noise=0.0004))
    yield Honest("a stall in every 25th step: a file system that flushes", lambda: gpu(39, before=stalls(25, 1.6)))
    yield Honest("a drift of 6%: it gets warm", lambda: gpu(40, before=lambda times: times * np.linspace(1, 1.06, len(times))))
    yield Honest(
        "one step of a minute: the host was suspended",
        lambda: cpu("qlora", 41, before=lambda times: np.where(np.arange(len(times)) == 20, 60.0, times)),
    )
    yield Honest(
        "a power limit of 400 W", lambda: gpu(42, H100._replace(power_w=400.0, clock_mhz=1_410.0), hfu=0.31, power=0.96, probe=0.5)
    )
    yield Honest("import of libraries from a network drive", lambda: gpu(43, import_s=214.0))


def software() -> Iterator[Honest]:
    """Yield other libraries, interpreters, drivers and sources of the harness."""
    yield Honest("older libraries", lambda: gpu(51, machine=gpu_machine(packages=OLDER, python="3.11.9")))
    yield Honest("a nightly torch", lambda: gpu(52, machine=gpu_machine(packages=PACKAGES | {"torch": "2.16.0.dev20261112+cu130"})))
    yield Honest(
        "a torch of a vendor's container",
        lambda: gpu(53, machine=gpu_machine(packages=PACKAGES | {"torch": "2.10.0a0+b558c986e8.nv25.11"})),
    )
    yield Honest("torch built from source", lambda: gpu(54, machine=gpu_machine(packages=PACKAGES | {"torch": "2.13.0a0+git4f2a91c"})))
    yield Honest(
        "transformers from its repository", lambda: gpu(55, machine=gpu_machine(packages=PACKAGES | {"transformers": "5.24.0.dev0"}))
    )
    yield Honest(
        "CUDA 12 and its driver",
        lambda: gpu(
            56,
            H100._replace(driver="550.163.01"),
            machine=gpu_machine(H100._replace(driver="550.163.01"), packages=PACKAGES | {"torch": "2.9.1+cu126"}),
        ),
    )
    yield Honest(
        "a driver of a year ago",
        lambda: gpu(57, machine=gpu_machine(H100._replace(driver="570.124.06"), packages=OLDER | {"torch": "2.8.0+cu128"})),
    )
    yield Honest(
        "a CUDA build of torch on a host without GPU",
        lambda: cpu("lora", 58, machine=machine_of(base("lora"), packages=PACKAGES | {"torch": "2.13.0+cu130"})),
    )
    yield Honest(
        "without the packages that this run does not need",
        lambda: cpu(
            "lora",
            59,
            machine=machine_of(
                base("lora"),
                packages={name: PACKAGES[name] for name in ("torch", "transformers", "peft", "accelerate", "tokenizers", "numpy")},
            ),
        ),
    )
    yield Honest("Python 3.13 on a newer kernel", lambda: gpu(60, machine=gpu_machine(python="3.13.7", os="Linux 6.17 x86_64")))
    yield Honest("Python 3.11 on an old distribution", lambda: gpu(61, machine=gpu_machine(python="3.11.2", os="Linux 5.15 x86_64")))
    yield Honest("installed from a wheel, no commit", lambda: gpu(62, harness=Harness(version="0.1.0")))
    yield Honest("dirty source with its warning", lambda: cpu("lora", 63, harness=Harness(version="0.1.0", commit=COMMIT, dirty=True)))


def endings() -> Iterator[Honest]:
    """Yield runs that did not end as planned."""
    yield Honest("Ctrl-C after a third", lambda: gpu(71, steps=37, ending=Ending(finished={"ended_by": "interrupted", "exit_code": -15})))
    yield Honest(
        "Ctrl-C while the model is loaded", lambda: gpu(72, ending=Ending("load", finished={"ended_by": "interrupted", "exit_code": -15}))
    )
    yield Honest(
        "timeout",
        lambda: gpu(
            73,
            options=Options(timeout_s=120.0, max_steps=110),
            ending=Ending(at_s=120.3, finished={"ended_by": "timeout", "exit_code": -15}),
        ),
    )
    yield Honest(
        "no step for two minutes",
        lambda: cpu(
            "qlora",
            74,
            options=Options(max_steps=60, overrides=("method=qlora",), no_step_s=120.0),
            before=lambda times: np.where(np.arange(len(times)) > 29, 999.0, times),
            ending=Ending(at_s=141.0, finished={"ended_by": "no step", "exit_code": -15}),
        ),
    )
    yield Honest("the time limit left too few steps", lambda: cpu("bert", 75, speed=0.02, options=Options(max_train_s=40.0), steps=12))
    yield Honest(
        "NaN at step 50",
        lambda: gpu(
            76,
            steps=50,
            ending=failed(
                "nan", "LossNotFinite: the loss became nan", "lower optimizer.learning_rate, or use a wider number format", not_finite=True
            ),
        ),
    )
    yield Honest(
        "NaN at the first step",
        lambda: cpu(
            "lora",
            77,
            steps=1,
            ending=failed(
                "nan", "LossNotFinite: the loss became inf", "lower optimizer.learning_rate, or use a wider number format", not_finite=True
            ),
        ),
    )
    yield Honest(
        "crash before the model was there",
        lambda: gpu(
            78,
            ending=failed(
                "crash",
                "OSError: [Errno 5] Input/output error",
                "read the worker's output above; `tunemark doctor` shows this machine's software",
                phase="data",
            ),
        ),
    )
    yield Honest(
        "out of memory while libraries are imported, under a memory limit",
        lambda: cpu(
            "lora",
            79,
            ending=Ending(
                "import",
                finished={"exit_code": 1, "output_tail": "OpenBLAS error: Memory allocation still failed after 10 retries, giving up."},
            ),
        ),
    )
    yield Honest(
        "crash in step 31: an illegal address",
        lambda: gpu(
            80,
            steps=30,
            ending=failed(
                "crash",
                "AcceleratorError: CUDA error: an illegal memory access was encountered",
                "read the worker's output above; `tunemark doctor` shows this machine's software",
            ),
        ),
    )
    yield Honest(
        "killed by the kernel for lack of host memory",
        lambda: cpu(
            "fsdp",
            81,
            machine=machine_of(base("fsdp"), memory_bytes=2 * GIB),
            steps=0,
            rss_bytes=int(1.78 * GIB),
            ending=Ending("load", finished={"exit_code": -9, "host_oom_kills": 1}),
        ),
    )
    yield Honest("killed with a signal", lambda: gpu(82, steps=61, ending=Ending(finished={"exit_code": -6})))
    yield Honest(
        "the harness itself was killed; recovered from the log",
        lambda: gpu(83, steps=18, ending=Ending(finished={"ended_by": "parent killed", "exit_code": 0})),
    )
    yield Honest(
        "unsupported",
        lambda: cpu(
            "lora",
            84,
            options=Options(overrides=("attention=flash_attention_2",)),
            refused="flash attention: its kernels are for GPUs; use attention=sdpa",
        ),
    )
    yield Honest(
        "unsupported: more devices than there are",
        lambda: gpu(85, options=Options(devices=8), refused="8 devices are planned, and this machine has 1"),
    )
    yield Honest(
        "out of memory in the check before training",
        lambda: gpu(
            86,
            options=Options(overrides=("batch.micro_batch=64", "gradient_checkpointing=none")),
            ending=failed("oom_device", base("oom")["outcome"]["message"], base("oom")["outcome"]["fix"], phase="check"),
        ),
    )


def with_stack() -> Content:
    """Return a run on an H100 with the versions of the libraries that its torch uses."""
    content = gpu(199)
    content["environment"]["runtime"] = {"cuda": "13.0", "cudnn": "9.10.2", "nccl": "2.27.5"}
    return content


def machines() -> Iterator[Honest]:
    """Yield other hosts and other devices, with and without a card."""
    yield Honest("versions of CUDA, cuDNN and NCCL", with_stack)
    yield Honest(
        "one core, physical cores unknown",
        lambda: cpu("lora", 91, speed=0.55, machine=cpu_machine("Intel(R) Xeon(R) Processor", None, 1, 1, 3.8)),
    )
    yield Honest(
        "a server's CPU with a card",
        lambda: cpu("lora", 92, speed=5.0, machine=cpu_machine("AMD EPYC 9654 96-Core Processor", 96, 192, 192, 755.3)),
    )
    yield Honest(
        "eight cores of a desktop, two threads each",
        lambda: cpu("bert", 93, speed=2.2, machine=cpu_machine("AMD Ryzen 7 5800X 8-Core Processor", 8, 16, 16, 31.3)),
    )
    yield Honest(
        "a container with 4 of 64 cores",
        lambda: cpu("fsdp", 94, speed=1.4, machine=cpu_machine("AMD EPYC 7763 64-Core Processor", 64, 128, 4, 503.7)),
    )
    yield Honest(
        "a CPU that has no card",
        lambda: cpu("lora", 95, speed=1.6, machine=cpu_machine("AMD Ryzen 5 3600 6-Core Processor", 6, 12, 12, 15.5)),
    )
    yield Honest(
        "a CPU that is named with its graphics",
        lambda: cpu("bert", 98, speed=1.6, machine=cpu_machine("AMD Ryzen 7 8845HS w/ Radeon 780M Graphics", 8, 16, 16, 27.2)),
    )
    yield Honest("a host with swap, a bit of it used", lambda: gpu(96, machine=gpu_machine(swap_bytes=8 * GIB)))
    yield Honest("clock five hours ahead", lambda: gpu(97, started_at=datetime.now(UTC) + timedelta(hours=5)))
    kinds: dict[str, tuple[Gpu, str, float]] = {
        "an A100 with 80 GB": (Gpu("NVIDIA A100-SXM4-80GB", 81_920, 400.0, 1_410.0, 312.0, "8.0"), "lora-8b", 0.5),
        "an A100 with 40 GB and PCIe": (Gpu("NVIDIA A100-PCIE-40GB", 40_960, 250.0, 1_410.0, 312.0, "8.0"), "lora-8b", 0.43),
        "an H200": (Gpu("NVIDIA H200", 143_771, 700.0, 1_980.0, 989.0, "9.0"), "lora-8b", 0.43),
        "an H100 with PCIe": (Gpu("NVIDIA H100 PCIe", 81_559, 350.0, 1_755.0, 756.0, "9.0"), "lora-8b", 0.37),
        "a B200": (Gpu("NVIDIA B200", 183_359, 1_000.0, 1_965.0, 2_250.0, "10.0"), "lora-8b", 0.36),
        "an L40S": (Gpu("NVIDIA L40S", 46_068, 350.0, 2_520.0, 362.0, "8.9"), "lora-8b", 0.42),
        "an RTX 5090": (Gpu("NVIDIA GeForce RTX 5090", 32_607, 575.0, 2_407.0, 209.5, "12.0"), "lora-8b", 0.6),
        "an RTX 4090 with QLoRA": (Gpu("NVIDIA GeForce RTX 4090", 24_564, 450.0, 2_520.0, 165.2, "8.9"), "qlora-8b", 0.5),
        "an RTX 3090": (Gpu("NVIDIA GeForce RTX 3090", 24_576, 350.0, 1_695.0, 71.2, "8.6"), "lora-1b", 0.62),
        "an L4": (Gpu("NVIDIA L4", 23_034, 72.0, 2_040.0, 121.0, "8.9"), "lora-1b", 0.35),
        "an A10G": (Gpu("NVIDIA A10G", 23_028, 300.0, 1_710.0, 70.0, "8.6"), "lora-1b", 0.55),
        "a V100, in fp16": (Gpu("Tesla V100-SXM2-32GB", 32_768, 300.0, 1_530.0, 125.0, "7.0", "570.124.06"), "lora-1b", 0.3),
        "an MI300X": (Gpu("AMD Instinct MI300X", 196_592, 750.0, 2_100.0, 1_307.4, "gfx942", "6.14.14", Backend.ROCM), "lora-8b", 0.33),
        "an RTX 3070 Ti, which has no card": (Gpu("NVIDIA GeForce RTX 3070 Ti", 12_288, 290.0, 1_770.0, 51.0, "8.6"), "lora-1b", 0.6),
    }
    for seed, (name, (kind, workload, hfu)) in enumerate(kinds.items(), start=101):
        builds = {Backend.ROCM: "2.13.0+rocm7.1"}
        # CUDA 13 has no kernels for Volta.
        packages = PACKAGES | {"torch": "2.9.1+cu126" if kind.target == "7.0" else builds.get(kind.backend, PACKAGES["torch"])}
        yield Honest(
            name,
            lambda kind=kind, workload=workload, hfu=hfu, seed=seed, packages=packages: gpu(
                seed, kind, workload, hfu=hfu, machine=gpu_machine(kind, packages=packages), options=Options(max_steps=60)
            ),
        )
    yield Honest(
        "eight H100, one replica each",
        lambda: gpu(
            121,
            workload="full-1b",
            count=8,
            hfu=0.33,
            machine=gpu_machine(count=8, cpu_physical_cores=112, cpu_logical_cores=224, cpu_usable_cores=224, memory_bytes=2_015 * GIB),
            options=Options(max_steps=60, devices=8),
        ),
    )
    yield Honest(
        "two of eight GPUs of a machine",
        lambda: gpu(122, workload="full-1b", count=2, hfu=0.36, machine=gpu_machine(count=8), options=Options(max_steps=60, devices=2)),
    )


def options() -> Iterator[Honest]:
    """Yield runs with other options, open settings, and runs of studies."""
    yield Honest("stopped by the precision of its interval", lambda: gpu(131, options=Options()))
    yield Honest("stopped by the time limit", lambda: gpu(132, options=Options(max_train_s=200.0)))
    yield Honest("twelve steps only, which is not ranked", lambda: cpu("lora", 133, options=Options(max_steps=12)))
    yield Honest("no gates", lambda: gpu(134, options=Options(max_steps=60, gates=False)))
    yield Honest("no probe", lambda: gpu(135, options=Options(max_steps=60, probe=False)))
    yield Honest("strict timing", lambda: gpu(136, options=Options(max_steps=60, strict_timing=True)))
    yield Honest("adapters saved at the end", lambda: gpu(137, options=Options(max_steps=60, save=True)))
    for seed, setting in enumerate(
        (
            "lora.rank=64",
            "optimizer.learning_rate=0.0001",
            "data.sequence_length=2048",
            "batch.micro_batch=2",
            "optimizer.max_grad_norm=0.3",
            "batch.gradient_accumulation=16",
        ),
        start=141,
    ):
        yield Honest(
            f"open division: {setting}", lambda setting=setting, seed=seed: gpu(seed, options=Options(max_steps=60, overrides=(setting,)))
        )
    for seed, settings in enumerate(
        (
            ("gradient_checkpointing=selective",),
            ("gradient_checkpointing=none",),
            ("compile=blocks",),
            ("attention=eager",),
            ("batch.micro_batch=2", "batch.gradient_accumulation=4"),
            ("batch.micro_batch=4", "batch.gradient_accumulation=2", "compile=blocks"),
        ),
        start=161,
    ):
        yield Honest(
            f"tuned division: {', '.join(settings)}",
            lambda settings=settings, seed=seed: gpu(seed, options=Options(max_steps=60, overrides=settings)),
        )
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
    for seed, (name, overrides, kind, text, position) in enumerate(points, start=151):
        # Each point belongs to its own study.
        identity, settings = f"3b1f20c9a{seed}", f"{seed:064x}"
        options = Options(max_steps=60, overrides=overrides)
        study = Study(kind=kind, study_id=identity, point=text, position=position, settings_sha256=settings)
        yield Honest(name, lambda seed=seed, options=options, study=study: gpu(seed, options=options, study=study))


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
                options=replace(options, devices=kind[1] if kind[1] > 1 else None),
                started_at=LAST - timedelta(minutes=11 * number % 2_000),
                before=lambda times: scaled * np.median(times),
            ),
        )


def honest() -> tuple[Honest, ...]:
    """Return all honest variants."""
    return tuple(variant for kinds in (second_runs, speeds, software, endings, machines, options) for variant in kinds())
