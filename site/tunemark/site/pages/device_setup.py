"""How to measure each device family: driver, packages, the exact commands, what is refused there, and what was never run."""

from collections.abc import Iterator
from dataclasses import dataclass

from tunemark.schema.vocabulary import Backend
from tunemark.site import tables, wording
from tunemark.site.page import Fact, Page
from tunemark.site.pages.device_coverage import unproven
from tunemark.site.queries import Catalogue
from tunemark.site.tables import Column, Row, Table

CRUMBS = (("Guide", "guide/index"),)
INSTALL = "pip install tunemark"
NEURON_INDEX = "https://pip.repos.neuron.amazonaws.com"
FIRST = ("tunemark doctor", "tunemark run smoke-lora", "tunemark run {workload}", "tunemark submit --dry-run")


@dataclass(frozen=True, slots=True)
class Setup:
    """What a contributor with one device family installs and types."""

    path: str
    """Last part of the page's path."""
    hardware: str
    driver: str
    driver_source: str
    """Address of the vendor's or PyTorch's page for the driver and the build of torch."""
    install: tuple[str, ...]
    """Shell commands, in order."""
    workload: str
    """The first standard workload that such a device should run."""
    telemetry: str
    """What reads the device during a run."""
    container: tuple[str, ...] = ()
    """Commands that build and start the container; empty without one."""
    several: str = ""
    """Command for several devices."""
    tune: bool = True
    """Whether `tunemark tune` has settings to try there."""


def container(image: str, command: str, *, devices: str = "", build: str = "") -> tuple[str, ...]:
    """Return the commands that build an image, check it, and measure in it. `devices` and `build` are options of docker."""
    start = " ".join(filter(None, ("docker run --rm", devices, f'-v "$PWD:/work" tunemark:{image}')))
    made = " ".join(filter(None, (f"docker build -f harness/containers/{image}.Containerfile", build, f"-t tunemark:{image} .")))
    return made, f"{start} doctor", f"{start} {command}"


SETUPS = {
    Backend.CUDA: Setup(
        path="nvidia",
        hardware="NVIDIA GPUs from compute capability 7.5 (T4, RTX 20). bf16 and FlashAttention need 8.0 (A100, RTX 30).",
        driver="580 or newer for torch 2.13 with CUDA 13; 525 or newer for a build with CUDA 12",
        driver_source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
        install=("pip install torch==2.13.0", "pip install 'tunemark[nvidia,qlora,distributed]'"),
        workload="lora-8b",
        telemetry="NVML: utilisation, memory, clocks, power, energy counter, temperature, throttling, other processes",
        container=container("cuda", "run lora-8b", devices="--gpus all --ipc=host"),
        several="tunemark run lora-70b --devices 8 --strategy fsdp2",
    ),
    Backend.ROCM: Setup(
        path="amd",
        hardware="AMD Instinct MI200 and MI300 series, Radeon PRO and Radeon GPUs that ROCm supports.",
        driver="amdgpu of the ROCm release of the torch build, or of a release that AMD lists as compatible",
        driver_source="https://rocm.docs.amd.com/en/latest/compatibility/compatibility-matrix.html",
        install=("pip install torch==2.13.0 --index-url ADDRESS   # PyTorch's index of builds for ROCm", INSTALL),
        workload="lora-8b",
        telemetry="amdsmi, which comes with ROCm: utilisation, memory, clocks, power, energy counter, temperature",
        container=container(
            "rocm",
            "run lora-8b",
            devices="--device /dev/kfd --device /dev/dri --group-add video --ipc=host",
            build="--build-arg TORCH_INDEX=ADDRESS",
        ),
        several="tunemark run lora-70b --devices 8 --strategy fsdp2",
    ),
    Backend.NEURON: Setup(
        path="aws-trainium",
        hardware="AWS Trainium: trn1 and trn2 instances. Two NeuronCores of a chip are two devices.",
        driver="aws-neuronx-dkms on the host; the compiler, runtime and tools of the same Neuron SDK",
        driver_source="https://awsdocs-neuron.readthedocs-hosted.com/en/latest/setup/index.html",
        install=(
            "# An environment of its own with Python 3.11, since optimum-neuron pins older libraries; torch comes from AWS' package index",
            f"pip install --extra-index-url {NEURON_INDEX} 'optimum-neuron[neuronx,training]==0.4.5' datasets psutil pydantic rich typer jinja2",
            "pip install --no-deps tunemark",
        ),
        workload="lora-1b",
        telemetry="neuron-monitor: utilisation and memory; no power",
        container=container("neuron", "run smoke-lora --steps 10", devices="--device /dev/neuron0"),
        several="tunemark run lora-8b --devices 32 --set devices.tensor_parallel=8",
        tune=False,
    ),
    Backend.XPU: Setup(
        path="intel",
        hardware="Intel Data Center GPU Max, Arc A and B series. GPUs inside processors are not used.",
        driver="Intel's GPU driver with Level Zero; xpu-smi for telemetry",
        driver_source="https://docs.pytorch.org/docs/stable/notes/get_start_xpu.html",
        install=("pip install torch==2.13.0 --index-url ADDRESS   # PyTorch's index of builds for XPU", INSTALL),
        workload="lora-1b",
        telemetry="xpu-smi: utilisation, memory, clock, power, energy counter, temperature",
        several="tunemark run lora-8b --devices 2 --strategy fsdp2",
    ),
    Backend.MPS: Setup(
        path="apple",
        hardware="Apple chips (M1 and newer) with macOS 14 or newer.",
        driver="none beside macOS",
        driver_source="https://developer.apple.com/metal/pytorch/",
        install=("pip install torch==2.13.0", INSTALL),
        workload="lora-1b",
        telemetry="none: macOS shows power and utilisation only to administrators",
    ),
    Backend.CPU: Setup(
        path="cpu",
        hardware="Any x86-64 or Arm processor. Cards with peaks exist for server and desktop processors.",
        driver="none",
        driver_source="https://pytorch.org/get-started/locally/",
        install=(INSTALL,),
        workload="smoke-full",
        telemetry="the operating system: memory, and busy cores of the run and of other processes; no power",
        container=container("cpu", "run smoke-lora"),
        several="tunemark run smoke-full --devices 2 --strategy fsdp2   # two processes over gloo",
    ),
}
"""Device family -> its setup, in the order of the guide."""


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield one page per device family."""
    for backend, setup in SETUPS.items():
        runs = catalogue.results_where(source="measured", backend=backend.value)
        context = {
            "setup": setup,
            "facts": _facts(setup, runs),
            "commands": [line.format(workload=setup.workload) for line in FIRST],
            "refused": _refused(catalogue, backend.value),
            "never_run": unproven(catalogue, backend.value) if backend is not Backend.CPU else [],
            "runs": len(runs),
        }
        yield Page(
            f"guide/measure-{setup.path}", f"Measure on {wording.backend(backend.value)}", "device_setup.md.j2", context, CRUMBS, wide=False
        )


def _facts(setup: Setup, runs: list[Row]) -> list[Fact]:
    succeeded = sum(row["status"] == "ok" for row in runs)
    evidence = (
        f"{succeeded:,} successful runs in this database"
        if succeeded
        else "never run on such a device; written from documentation and tested with stand-ins"
    )
    return [
        Fact("Hardware", setup.hardware),
        Fact("Driver", setup.driver, href=setup.driver_source),
        Fact("Telemetry", setup.telemetry),
        Fact("Evidence", evidence),
    ]


def _refused(catalogue: Catalogue, backend: str) -> Table | None:
    rows = [row for row in catalogue.support if row["backend"] == backend and not row["supported"]]
    columns: list[Column[Row]] = [
        Column("Feature", lambda row: tables.text(row["feature"])),
        Column("Why, and what to use instead", lambda row: tables.text(row["reason"])),
    ]
    return tables.table("Refused", columns, rows, searchable=False) if rows else None
