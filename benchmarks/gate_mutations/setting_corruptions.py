"""Corruptions of what a submission says about machine, model, settings, gates, study and harness."""

from typing import Any

from gate_mutations.bases import Content
from gate_mutations.corruptions import CORRUPTIONS, corrupt, put
from tunemark.schema.formats import GIB

ENVIRONMENT = "environment|plan.device"
H100_CARD = "nvidia-h100-80gb-sxm"

# Hardware and software ------------------------------------------------------------------------------------------------------

put("hardware", "no devices", {"environment.devices": []}, "any")
put("hardware", "an H100 behind the CPU back end", {"environment.devices.*.name": "NVIDIA H100 80GB HBM3"}, "cpu", field=ENVIRONMENT)
put(
    "hardware",
    "an H100 behind the CPU back end, with its card",
    {
        "environment.devices.*.name": "NVIDIA H100 80GB HBM3",
        "environment.cpu": "NVIDIA H100 80GB HBM3",
        "plan.device.accelerator": H100_CARD,
    },
    "cpu",
    field=ENVIRONMENT,
)
put(
    "hardware",
    "an MI300X behind Neuron",
    {"environment.devices.*.name": "AMD Instinct MI300X", "environment.backend": "neuron", "plan.device.backend": "neuron"},
    "gpu",
    field=ENVIRONMENT,
)
put(
    "hardware",
    "an MI300X behind CUDA",
    {"environment.devices.*.name": "AMD Instinct MI300X", "plan.device.accelerator": "amd-mi300x"},
    "gpu",
    field=ENVIRONMENT,
)
put("hardware", "an H100 behind ROCm", {"environment.backend": "rocm", "plan.device.backend": "rocm"}, "gpu", field=ENVIRONMENT)
put(
    "hardware",
    "a GPU behind the back end for tests",
    {"environment.backend": "fake", "plan.device.backend": "fake"},
    "gpu",
    field=ENVIRONMENT,
)
put("hardware", "the plan's back end is not the environment's", {"environment.backend": "xpu"}, "any", field=ENVIRONMENT)
put("hardware", "catalogue device without its card, so that no peak holds", {"plan.device.accelerator": None}, "gpu", field=ENVIRONMENT)
put("hardware", "card of a faster device", {"plan.device.accelerator": "nvidia-b200"}, "gpu", field=ENVIRONMENT)
put("hardware", "card of a device that does not exist", {"plan.device.accelerator": "nvidia-h900-ultra"}, "any", field=ENVIRONMENT)
put(
    "hardware",
    "device name in look-alike letters escapes the catalogue",
    {"environment.devices.*.name": "NVIDIA Н100 80GB HBM3", "plan.device.accelerator": None},
    "gpu",
    field=ENVIRONMENT,
)
put(
    "hardware",
    "device name with a trailing blank escapes the catalogue",
    {"environment.devices.*.name": "NVIDIA H100 80GB HBM3 ", "plan.device.accelerator": None},
    "gpu",
    field=ENVIRONMENT,
)
put(
    "hardware",
    "device name with two blanks escapes the catalogue",
    {"environment.devices.*.name": "NVIDIA  H100 80GB HBM3", "plan.device.accelerator": None},
    "gpu",
    field=ENVIRONMENT,
)
put(
    "hardware",
    "device name with a zero-width space escapes the catalogue",
    {"environment.devices.*.name": "NVIDIA H100\u200b 80GB HBM3", "plan.device.accelerator": None},
    "gpu",
    field=ENVIRONMENT,
)
put(
    "hardware",
    "device name in full-width letters",
    {"environment.devices.*.name": "ＮＶＩＤＩＡ Ｈ１００", "plan.device.accelerator": None},
    "gpu",
    field=ENVIRONMENT,
)
put(
    "hardware",
    "a CPU device that is not the host's CPU",
    {"environment.devices.*.name": "AMD EPYC 9654 96-Core Processor"},
    "cpu",
    field=ENVIRONMENT,
)
put(
    "hardware", "memory of a CPU device that is not the host's", {"environment.devices.*.memory_bytes": 900 * GIB}, "cpu", field=ENVIRONMENT
)
put("hardware", "memory of an H100 80GB said to be 800 GiB", {"environment.devices.*.memory_bytes": 800 * GIB}, "gpu")
put(
    "hardware",
    "memory of an H100 80GB said to be 8 GiB",
    {"environment.devices.*.memory_bytes": 8 * GIB},
    "gpu",
    field="environment.devices|memory",
)
put("hardware", "memory of an H100 80GB said to be 141 GB", {"environment.devices.*.memory_bytes": 150_754_820_096}, "gpu")
put("hardware", "two GPUs of one machine with different memory", {"environment.devices.1.memory_bytes": 40 * GIB}, "ddp")
put("hardware", "two GPUs of one machine with different drivers", {"environment.devices.1.driver": "550.54.15"}, "ddp")
put(
    "hardware",
    "peak memory above capacity",
    {f"memory.device_{name}.peak_bytes": 90 * GIB for name in ("allocated", "reserved", "used")},
    "gpu",
    field="memory|ranks",
)
put(
    "hardware",
    "peak memory of 10 TB, capacity left out",
    {f"memory.device_{name}.peak_bytes": 10 * 10**12 for name in ("allocated", "reserved", "used")}
    | {"environment.devices.*.memory_bytes": None},
    "gpu",
    field="memory|environment.devices|ranks",
)
put(
    "hardware",
    "memory in use above capacity",
    {"utilisation.devices.*.memory_used_peak_bytes": 200 * GIB},
    "gpu",
    field="utilisation|memory",
)
put(
    "hardware",
    "memory in use below what the allocator reserved",
    {"utilisation.devices.*.memory_used_peak_bytes": GIB},
    "energy ok",
    field="utilisation|memory",
)
put(
    "hardware",
    "memory in use by the device below the allocator's peak",
    {"memory.device_used.peak_bytes": GIB},
    "gpu ok",
    field="memory|utilisation",
)
put(
    "hardware",
    "memory in use before the run above that during it",
    {"utilisation.devices.*.memory_used_before_bytes": 70 * GIB},
    "ok energy",
    field="utilisation|memory|warnings",
)
put(
    "hardware", "allocated above reserved", {"memory.device_allocated.peak_bytes": lambda size: size + 9 * GIB}, "gpu", field="memory|ranks"
)
put("hardware", "swap of 100 TB", {"environment.swap_bytes": 100 * 10**12}, "any")
put(
    "hardware",
    "swap used on a host without swap",
    {"memory.host_swap.peak_bytes": 30 * GIB, "environment.swap_bytes": 0},
    "any",
    field="memory.host_swap|environment.swap",
)
put("hardware", "more memory used than the host has", {"memory.host_rss.peak_bytes": 4 * 2**40}, "any", field="memory|environment.memory")
put("hardware", "a host with 1 MB of memory", {"environment.memory_bytes": 10**6}, "any", field="environment|memory")
put("hardware", "a host with 10 PB of memory", {"environment.memory_bytes": 10**16}, "any", field="environment|memory")
put(
    "hardware",
    "power limit of 5 kW on a 700 W board",
    {"environment.devices.*.power_limit_w": 5_000.0},
    "gpu",
    field="environment.devices|utilisation",
)
put(
    "hardware",
    "power limit of a tenth of a watt",
    {"environment.devices.*.power_limit_w": 0.1},
    "gpu",
    field="environment.devices|utilisation",
)
put("hardware", "power limit on a CPU, whose driver reports none", {"environment.devices.*.power_limit_w": 350.0}, "cpu")
put("hardware", "driver of a CPU", {"environment.devices.*.driver": "580.95.05"}, "cpu")
put(
    "hardware",
    "mean power above the board's",
    {
        "utilisation.devices.*.power_mean_w": 1_300.0,
        "utilisation.devices.*.power_peak_w": 1_400.0,
        "utilisation.energy.joules": lambda energy: energy * 2.1,
    },
    "energy",
    field="utilisation",
)
put(
    "hardware",
    "mean power above the highest",
    {"utilisation.devices.*.power_mean_w": 660.0, "utilisation.devices.*.power_peak_w": 400.0},
    "energy",
    field="utilisation",
)
put(
    "hardware",
    "idle power while every unit computes",
    {
        "utilisation.devices.*.power_mean_w": 71.0,
        "utilisation.devices.*.power_peak_w": 75.0,
        "utilisation.energy.joules": lambda energy: energy / 8.7,
    },
    "ok energy",
    field="utilisation",
)
put("hardware", "energy of 1 J beside a mean of 600 W", {"utilisation.energy.joules": 1.0}, "energy", field="utilisation|energy")
put(
    "hardware",
    "energy twice the mean power times the window",
    {"utilisation.energy.joules": lambda energy: energy * 2},
    "energy",
    field="utilisation|energy",
)
put(
    "hardware",
    "energy below idle",
    {
        "utilisation.energy.joules": lambda energy: energy / 20,
        "utilisation.devices.*.power_mean_w": lambda power: power / 20,
        "utilisation.devices.*.power_peak_w": lambda power: power / 20,
    },
    "energy",
    field="utilisation|energy",
)
put("hardware", "energy of one of two devices", {"utilisation.energy.joules": lambda energy: energy / 2}, "ddp", field="utilisation|energy")
put("hardware", "idle power above the power limit", {"utilisation.energy.idle_w": 5_000.0}, "energy", field="utilisation|energy")
put(
    "hardware",
    "energy over a window ten times the run",
    {"utilisation.energy.window_s": lambda window: window * 10, "utilisation.energy.joules": lambda energy: energy * 10},
    "energy",
    field="utilisation|energy",
)
put("hardware", "energy over a window of no time", {"utilisation.energy.window_s": 0.0}, "energy", field="utilisation|energy")
put(
    "hardware",
    "energy over a tenth of the window",
    {"utilisation.energy.window_s": lambda window: window / 10, "utilisation.energy.joules": lambda energy: energy / 10},
    "ok energy",
    field="utilisation|energy",
)
put(
    "hardware",
    "an energy counter of a CPU",
    {"utilisation.energy": {"source": "counter", "joules": 900.0, "window_s": 20.0, "idle_w": 30.0, "reason": None}},
    "ok cpu",
    field="utilisation|energy",
)
put("hardware", "clock of 20 GHz", {"utilisation.devices.*.clock_mean_mhz": 20_000.0}, "energy", field="utilisation")
put(
    "hardware",
    "clock of 2.9 GHz on a board that reaches 1,980 MHz",
    {"utilisation.devices.*.clock_mean_mhz": 2_900.0},
    "energy",
    field="utilisation",
)
put("hardware", "lowest clock above the mean", {"utilisation.devices.*.clock_min_mhz": 1_975.0}, "energy", field="utilisation")
put(
    "hardware",
    "no clock at full speed",
    {"utilisation.devices.*.clock_mean_mhz": 0.0, "utilisation.devices.*.clock_min_mhz": 0.0},
    "energy",
    field="utilisation",
)
put("hardware", "temperature of 300 degrees", {"utilisation.devices.*.temperature_peak_c": 300.0}, "energy", field="utilisation")
put("hardware", "temperature of deep space at 600 W", {"utilisation.devices.*.temperature_peak_c": -200.0}, "energy", field="utilisation")
put(
    "hardware",
    "device busy 0% at full speed",
    {"utilisation.devices.*.busy_mean": 0.0, "utilisation.devices.*.busy_peak": 0.0},
    "energy",
    field="utilisation",
)
put(
    "hardware",
    "device busier on average than at its highest",
    {"utilisation.devices.*.busy_mean": 0.99, "utilisation.devices.*.busy_peak": 0.4},
    "energy",
    field="utilisation",
)
put(
    "hardware",
    "busy cores above usable cores",
    {"utilisation.cpu_busy_mean": 4_000.0, "utilisation.cpu_busy_peak": 4_000.0},
    "ok",
    field="utilisation|environment",
)
put("hardware", "busiest moment below the mean", {"utilisation.cpu_busy_peak": 0.1}, "ok", field="utilisation")
put(
    "hardware",
    "no core busy in a run on the CPU",
    {"utilisation.cpu_busy_mean": 0.0, "utilisation.cpu_busy_peak": 0.0},
    "ok cpu",
    field="utilisation|process",
)
put(
    "hardware",
    "other processes busy on more cores than there are",
    {"utilisation.foreign_cpu_busy_mean": 900.0},
    "ok",
    field="utilisation|environment",
)
put("hardware", "more samples than fit into the run", {"utilisation.samples": 5_000_000}, "ok", field="utilisation")
put(
    "hardware",
    "figures of a device without time for its samples",
    {"utilisation.devices.*.samples": 3_000_000},
    "energy",
    field="utilisation",
)
put("hardware", "a mean of no samples", {"utilisation.samples": 0}, "ok", field="utilisation")
put("hardware", "samples taken every hour", {"utilisation.interval_s": 3_600.0}, "ok", field="utilisation")
put(
    "hardware",
    "use of a device that the run does not have",
    {"utilisation.devices.0.index": 7, "utilisation.devices.0.node": 3},
    "energy",
    field="utilisation",
)
put("hardware", "the same device twice among those that were used", {"utilisation.devices.1.index": 0}, "ddp", field="utilisation")
put("hardware", "use of one of two devices left out", {"utilisation.devices": lambda devices: devices[:1]}, "ddp", field="utilisation")
put("hardware", "use of the host taken out of a finished run", {"utilisation": None}, "ok", field="utilisation")
put(
    "hardware",
    "a throttle reason without its share",
    {"utilisation.devices.*.throttle_reasons": [], "utilisation.devices.*.throttle_shares": {"hw_slowdown": 0.9}},
    "energy",
    field="utilisation|warnings",
)
put(
    "hardware",
    "a throttle reason that no driver has",
    {"utilisation.devices.*.throttle_reasons": ["coffee_break"]},
    "energy",
    field="utilisation",
)
put("hardware", "driver 'banana'", {"environment.devices.*.driver": "banana"}, "gpu")
put("hardware", "driver 999.99", {"environment.devices.*.driver": "999.99"}, "gpu")
put("hardware", "a driver too old for the CUDA of this torch", {"environment.devices.*.driver": "418.67"}, "gpu", field="environment")
put("hardware", "CUDA runtime on a CPU run's machine", {"environment.runtime": {"cuda": "13.0"}}, "cpu")
put("hardware", "runtime of Neuron on a GPU", {"environment.runtime": {"neuronx-cc": "2.21.18209"}}, "gpu")
put("hardware", "runtime 'banana' with version 'split'", {"environment.runtime": {"banana": "split"}}, "any")
put("hardware", "torch 99.0", {"environment.packages.torch": "99.0"}, "any")
put("hardware", "torch 'latest'", {"environment.packages.torch": "latest"}, "any")
put("hardware", "a torch version that never was", {"environment.packages.torch": "2.13.7"}, "any")
put("hardware", "a torch without scaled dot product attention, which was used", {"environment.packages.torch": "1.9.0"}, "ok")
put("hardware", "a torch build for CPUs on a GPU", {"environment.packages.torch": "2.13.0+cpu"}, "gpu ok")
put("hardware", "a torch build for ROCm behind CUDA", {"environment.packages.torch": "2.13.0+rocm7.0"}, "gpu ok")
put("hardware", "transformers 0.0.0", {"environment.packages.transformers": "0.0.0"}, "any")
put("hardware", "transformers 55", {"environment.packages.transformers": "55"}, "any")
put("hardware", "peft of ten years from now", {"environment.packages.peft": "9.40.2"}, "any")
put("hardware", "no packages", {"environment.packages": {}}, "any")
put("hardware", "no torch among the packages", {"environment.packages": {"numpy": "2.4.6", "transformers": "5.23.0"}}, "any")
put("hardware", "a package that nobody knows", {"environment.packages.totally-legit-kernels": "1.0.0"}, "any")
put("hardware", "python 2.7", {"environment.python": "2.7.18"}, "any")
put("hardware", "python 3.99", {"environment.python": "3.99.0"}, "any")
put("hardware", "python 'hello'", {"environment.python": "hello"}, "any")
put("hardware", "an operating system 'banana'", {"environment.os": "banana"}, "any")
put("hardware", "macOS with CUDA", {"environment.os": "Darwin 25.1 arm64"}, "gpu", field=ENVIRONMENT)
put("hardware", "Linux 0.1 on a processor of the eighties", {"environment.os": "Linux 0.1 i386"}, "any")
put("hardware", "more usable than logical cores", {"environment.cpu_usable_cores": 4_096}, "any")
put("hardware", "more physical than logical cores", {"environment.cpu_physical_cores": 4_096}, "any")
put(
    "hardware",
    "ten million cores",
    {"environment.cpu_logical_cores": 10**7, "environment.cpu_usable_cores": 10**7, "environment.cpu_physical_cores": 10**7},
    "any",
    field="environment",
)
put(
    "hardware",
    "sixteen threads to a core",
    {"environment.cpu_physical_cores": 1, "environment.cpu_logical_cores": 512, "environment.cpu_usable_cores": 512},
    "any",
    field="environment",
)
put("hardware", "more threads than usable cores", {"plan.device.threads": 64}, "cpu")
put("hardware", "threads of a CPU in a run on a GPU", {"plan.device.threads": 4}, "gpu")
put("hardware", "a GPU as the host's CPU", {"environment.cpu": "NVIDIA H100 80GB HBM3"}, "gpu")
put("hardware", "a host without a name of its CPU", {"environment.cpu": "?"}, "any", field=ENVIRONMENT)
put("hardware", "8 devices planned, one listed", {"plan.device.count": 8}, "gpu one", field="environment|plan.device|ranks")
put(
    "hardware",
    "3 devices in 2 machines",
    {"plan.device.count": 3, "plan.device.nodes": 2},
    "any",
    field="plan.device|environment|ranks|batch",
)
put(
    "hardware",
    "two machines, one device each, and figures of one",
    {"plan.device.nodes": 2, "environment.devices": lambda devices: devices[:1]},
    "ddp",
    field="plan.device|environment|utilisation",
)
put("hardware", "strategy ddp on one device", {"plan.device.strategy": "ddp"}, "ok one", field="plan.device|effective")
put("hardware", "strategy single on two devices", {"plan.device.strategy": "single"}, "ranks", field="plan.device|effective")
put("hardware", "tensor_parallel 8 on one device", {"plan.device.tensor_parallel": 8}, "one", field="plan.device|plan.batch")
put("hardware", "pipeline_parallel 4 on two devices", {"plan.device.pipeline_parallel": 4}, "ranks", field="plan.device|plan.batch")
put("hardware", "a launcher of one process", {"plan.device.launcher": "torchrun"}, "one")
put("hardware", "two processes without a launcher", {"plan.device.launcher": None}, "ranks")
put("hardware", "offload on a CPU", {"plan.device.offload": "all"}, "cpu", field="plan.device|effective")


@corrupt("hardware", "qlora without bitsandbytes", "environment.packages|plan.method", "qlora")
def _(c: Content) -> None:
    del c["environment"]["packages"]["bitsandbytes"]


@corrupt("hardware", "adapters without peft", "environment.packages|plan.method", "ok adapters")
def _(c: Content) -> None:
    del c["environment"]["packages"]["peft"]


@corrupt("hardware", "a transformers model without transformers", "environment.packages", "ok")
def _(c: Content) -> None:
    del c["environment"]["packages"]["transformers"]


# The model ------------------------------------------------------------------------------------------------------------------

MODEL = "model|plan.model"
put("model", "parameters ten times the card's", {"model.parameters": lambda n: n * 10}, "any", field=MODEL)
put("model", "parameters one more than the card's", {"model.parameters": lambda n: n + 1}, "any", field=MODEL)
put("model", "parameters of a model half as deep", {"model.parameters": lambda n: n // 2}, "any", field=MODEL)
put("model", "more trained than all parameters", {"model.trainable_parameters": lambda n: n * 1_000}, "any", field=MODEL)
put("model", "one trained parameter", {"model.trainable_parameters": 1}, "ok", field=MODEL)
put("model", "a tenth of the weights trained in full fine-tuning", {"model.trainable_parameters": lambda n: n // 10}, "full", field=MODEL)
put(
    "model",
    "adapters of another rank",
    {name: (lambda n: n // 2) for name in ("model.trainable_parameters", "model.adapter_bytes", "model.gradient_bytes")},
    "ok adapters",
    field=MODEL,
)
put("model", "parameter bytes of 100", {"model.parameter_bytes": {"fp32": 100}}, "any", field=MODEL)
put(
    "model",
    "parameter bytes of another number format",
    {"model.parameter_bytes": lambda sizes: {"int8": sum(sizes.values())}},
    "any",
    field=MODEL,
)
put("model", "bytes of a number format that nobody has", {"model.parameter_bytes": lambda sizes: {**sizes, "fp1": 10}}, "any", field=MODEL)
put(
    "model",
    "parameter bytes twice the parameters",
    {"model.parameter_bytes": lambda sizes: {name: 2 * size for name, size in sizes.items()}},
    "any",
    field=MODEL,
)
put("model", "adapters in full fine-tuning", {"model.adapter_bytes": 1_000_000}, "full", field=MODEL)
put("model", "no adapters in a run with adapters", {"model.adapter_bytes": 0}, "ok adapters", field=MODEL)
put("model", "AdamW without any state", {"model.optimizer_state_bytes": 0}, "ok", field=MODEL)
put("model", "AdamW with states of a tenth of its weights", {"model.optimizer_state_bytes": lambda size: size // 20}, "ok", field=MODEL)
put("model", "optimizer states a hundred times the weights", {"model.optimizer_state_bytes": lambda size: size * 100}, "ok", field=MODEL)
put("model", "no gradient bytes in a run that trained", {"model.gradient_bytes": 0}, "ok", field=MODEL)
put("model", "gradients of the whole model in a run with adapters", {"model.gradient_bytes": 18_000_000_000}, "ok adapters", field=MODEL)
put(
    "model",
    "four-bit weights stored in 16 bits",
    {"model.parameter_bytes": {"fp32": 1_249_280, "bf16": 8_425_984}},
    "qlora",
    field="model|effective.quantisation|plan.quantisation",
)
put(
    "model",
    "four-bit weights without their scales",
    {"model.parameter_bytes": {"fp32": 5_452_800, "uint8": 1_581_056}},
    "qlora",
    field=MODEL,
)


# Plan against what ran ------------------------------------------------------------------------------------------------------


def ran(name: str, setting: str, value: Any, on: str = "ok", asked: str = "plan") -> None:
    """Register a difference between the plan and what ran, without the warning that the harness gives for one."""
    put("contradiction", name, {f"effective.{setting}": value}, on, field=f"effective.{setting}|{asked}|warnings")


ran("effective checkpointing full, plan none", "gradient_checkpointing", "full", "ok cpu")
ran("effective checkpointing none, plan full", "gradient_checkpointing", "none", "ok gpu")
ran("lora that ran in nf4", "quantisation", "nf4, double", "ok adapters !qlora")
ran("qlora that ran in 16 bits", "quantisation", "none", "qlora")
ran("trainable weights bf16, plan fp32", "trainable_dtypes", ["bfloat16"], "ok cpu")
ran("trainable weights fp32, plan bf16", "trainable_dtypes", ["float32"], "ok gpu")
ran("trained weights of no format", "trainable_dtypes", [])
ran("flash_attention_2 ran, plan sdpa", "attention", "flash_attention_2")
ran("eager attention ran, plan sdpa", "attention", "eager")
ran("a kernel that torch does not have", "attention_kernel", "warp_drive")
ran("a kernel without a mask for packed documents", "attention_kernel", "flash", "ok packed")
ran("liger ran, plan none", "fused_kernels", "liger")
ran("compiled blocks, plan none", "compile", "blocks, inductor")
ran("products in fp16, plan bf16", "compute", "fp16", "ok gpu")
ran("products in bf16, plan fp32", "compute", "bf16", "ok cpu")
ran("SGD ran, plan AdamW", "optimizer", "torch SGD")
ran("an optimizer that does not exist", "optimizer", "torch MiracleAdam")
ran("a world of 64 processes", "processes", 64)
ran("gloo group of one process", "process_group", "gloo", "ok one")
ran("no process group of two processes", "process_group", None, "ok ranks")
ran("NCCL between CPUs", "process_group", "nccl", "ok ranks cpu")
ran("ZeRO ran, plan single", "sharding", "DeepSpeed ZeRO stage 3", "ok one")
ran("no sharding, plan fsdp2", "sharding", None, "fsdp")
ran("FSDP ran, plan ddp", "sharding", "torch FSDPModule", "ddp")
ran("parameters in host memory, nothing offloaded", "parameters_on", ["cpu"], "ok gpu")
ran("parameters on a GPU, plan CPU", "parameters_on", ["cuda"], "ok cpu")
ran("optimizer states without memory", "optimizer_states_on", ["meta"])
ran("stochastic rounding of a device that is not Neuron", "stochastic_rounding", True)
put("contradiction", "effective settings taken out of an ok run", {"effective": None}, "ok", field="effective")
put("contradiction", "probe taken out though planned", {"probe": None}, "ok", field="probe|timeline|plan.measurement")
put("contradiction", "a probe that was not planned", {"plan.measurement.probe": False}, "ok", field="probe|timeline|plan.measurement")
put("contradiction", "probe of another number format", {"probe.dtype": "fp8"}, "any", field="probe")
put("contradiction", "probe of matrices with eight rows", {"probe.size": 8}, "any", field="probe")
put("contradiction", "probe without the measurement after training", {"probe.after_flop_per_s": None}, "ok", field="probe")
put("contradiction", "model facts taken out of an ok run", {"model": None}, "ok", field="model")
put("contradiction", "method lora without settings", {"plan.lora": None}, "adapters", field="plan.lora|plan.method|plan")
put(
    "contradiction",
    "adapter settings in full fine-tuning",
    {"plan.lora": {"rank": 16, "alpha": 32, "dropout": 0.0, "target_modules": ["q_proj"]}},
    "full",
    field="plan.lora|plan.method",
)
put(
    "contradiction",
    "qlora without a format of the weights",
    {"plan.quantisation": None},
    "qlora",
    field="plan.quantisation|plan.method|plan|model|effective",
)
put(
    "contradiction",
    "four-bit weights in a method that has none",
    {"plan.quantisation": {"format": "nf4", "double": True}},
    "any !qlora",
    field="plan.quantisation|plan.method",
)
put(
    "contradiction",
    "settings of Neuron on another device",
    {"plan.neuron": {"optimisation_level": 3, "stochastic_rounding": True}},
    "any",
    field="plan.neuron",
)
put(
    "contradiction",
    "adapters on a layer that the model does not have",
    {"plan.lora.target_modules": ["q_proj", "warp_proj"]},
    "adapters",
    field="plan.lora",
)
put("contradiction", "padding none with padded rows", {"plan.data.padding": "none"}, "bert", field="plan.data|trace")
put("contradiction", "padding static with rows of other widths", {"plan.data.padding": "static"}, "bert", field="plan.data|trace")
put("contradiction", "packed rows with one document each", {"plan.data.packing": True}, "ok rows causal", field="plan.data|trace|gates")
put(
    "contradiction",
    "rows of several documents though nothing is packed",
    {"plan.data.packing": False},
    "packed",
    field="plan.data|trace|gates",
)
put(
    "contradiction",
    "local weights and a hub id",
    {"plan.model.local": True, "plan.model.hub_id": "Qwen/Qwen3-8B", "plan.model.weights": "pretrained"},
    "any",
    field="plan.model",
)
put("contradiction", "a hub id of random weights", {"plan.model.hub_id": "Qwen/Qwen3-8B"}, "any", field="plan.model")
put(
    "contradiction",
    "pretrained weights from nowhere",
    {"plan.model.weights": "pretrained"},
    "any",
    field="plan.model|overrides|warnings|trace",
)
put("contradiction", "classes of a language model", {"plan.model.labels": 6}, "causal", field="plan.model")
put("contradiction", "a classifier without classes", {"plan.model.labels": None}, "bert", field="plan.model")
put("contradiction", "a tokenizer of pretrained weights for synthetic rows", {"plan.data.tokenizer": "model"}, "any", field="plan.data")
put("contradiction", "a file's hash for synthetic rows", {"plan.data.sha256": "ab" * 32}, "any", field="plan.data")
put("contradiction", "a file without its hash", {"plan.data.source": "file"}, "any", field="plan.data|overrides")
put(
    "contradiction",
    "weights stored in nf4 by a plan without quantisation",
    {"plan.precision.parameters": "nf4"},
    "any",
    field="plan.precision|effective|model",
)
put("contradiction", "fp8 products on a CPU", {"plan.precision.compute": "fp8"}, "cpu", field="plan.precision|effective|probe")
put(
    "contradiction",
    "a peak of the device's allocator on a CPU",
    {"memory.device_allocated": {"peak_bytes": 600_000_000, "method": "torch.cuda.max_memory_allocated", "reason": None}},
    "cpu",
    field="memory",
)
put(
    "contradiction",
    "a GPU whose allocator counts nothing",
    {"memory.device_allocated": {"peak_bytes": None, "method": None, "reason": "torch has no allocator for it that counts peaks"}},
    "ok gpu",
    field="memory|ranks",
)
put(
    "contradiction",
    "no resident memory of a run that trained",
    {"memory.host_rss": {"peak_bytes": None, "method": None, "reason": "no worker was started"}},
    "ok",
    field="memory",
)
put("contradiction", "a method of measurement that does not exist", {"memory.host_rss.method": "a guess"}, "any", field="memory")
put("contradiction", "a reason for each derived value taken out", {"plan.reasons": {}}, "any", field="plan.reasons")
put(
    "contradiction",
    "a reason for a field that does not exist",
    {"plan.reasons": lambda reasons: {**reasons, "device.colour": "requested with --colour"}},
    "any",
    field="plan.reasons",
)


# Standard and open division -------------------------------------------------------------------------------------------------

DECLARED = "overrides|division|plan"
for label, values, traits in (
    ("sequence length changed in standard", {"plan.data.sequence_length": 512}, "standard rows"),
    ("learning rate changed in standard", {"plan.optimizer.learning_rate": 0.03}, "standard"),
    ("optimizer changed in standard", {"plan.optimizer.name": "sgd"}, "standard"),
    ("weight decay changed in standard", {"plan.optimizer.weight_decay": 0.3}, "standard"),
    ("betas changed in standard", {"plan.optimizer.betas": [0.5, 0.6]}, "standard"),
    ("clipping switched off in standard", {"plan.optimizer.max_grad_norm": None}, "standard"),
    ("schedule changed in standard", {"plan.optimizer.scheduler": "cosine"}, "standard"),
    ("layer decay in standard", {"plan.optimizer.layer_decay": 0.5}, "standard"),
    (
        "checkpointing switched off in standard",
        {"plan.model.gradient_checkpointing": "none", "effective.gradient_checkpointing": "none"},
        "standard packed",
    ),
    (
        "checkpointing switched on in standard",
        {"plan.model.gradient_checkpointing": "full", "effective.gradient_checkpointing": "full"},
        "standard cpu",
    ),
    ("liger in standard", {"plan.model.fused_kernels": "liger", "effective.fused_kernels": "liger"}, "standard"),
    ("compiled blocks in standard", {"plan.model.compile": "blocks", "effective.compile": "blocks, inductor"}, "standard"),
    (
        "eager attention in standard",
        {"plan.model.attention": "eager", "effective.attention": "eager", "effective.attention_kernel": None},
        "standard",
    ),
    ("another model in standard", {"plan.model.key": "qwen3-0.6b"}, "standard"),
    ("pretrained weights in standard", {"plan.model.weights": "pretrained", "plan.model.hub_id": "Qwen/Qwen3-8B"}, "standard"),
    ("classes changed in standard", {"plan.model.labels": 2}, "bert"),
    ("half of the batch in standard", {"plan.batch.gradient_accumulation": 4, "plan.batch.global_batch": 4}, "h100"),
    ("rank 4 in standard", {"plan.lora.rank": 4}, "standard adapters"),
    ("adapters on two layers in standard", {"plan.lora.target_modules": ["q_proj", "v_proj"]}, "standard adapters"),
    (
        "products in fp16 in standard",
        {"plan.precision.compute": "fp16", "effective.compute": "fp16", "probe.dtype": "fp16"},
        "standard gpu",
    ),
    ("packed documents that see each other in standard", {"plan.data.document_borders": False}, "standard packed"),
    ("data set renamed in standard", {"plan.data.name": "my-tokens"}, "standard"),
    ("a thousand rows for an endless stream in standard", {"plan.data.training_rows": 1_000}, "standard"),
    ("no rows held out in standard", {"plan.data.evaluation_rows": 0, "plan.measurement.evaluate": False, "evaluation": None}, "bert"),
    ("steady rules lowered", {"plan.measurement.min_steady_steps": 2, "plan.measurement.min_steady_s": 0.1}, "any"),
    ("warm-up shortened", {"plan.measurement.min_warmup_steps": 0}, "any"),
    ("standard with an invented card hash", {"plan.workload_sha256": "5e" * 32}, "standard"),
    ("standard with an invented workload", {"plan.workload": "smoke-lora-easy"}, "standard"),
    ("standard with the name of another workload", {"plan.workload": "smoke-bert"}, "standard !bert"),
    ("another method in standard", {"plan.method": "full", "plan.lora": None}, "standard adapters"),
    ("offload in standard", {"plan.device.offload": "optimizer"}, "standard gpu"),
):
    put("overrides", label, values, traits, field=f"{DECLARED}|effective|workload")


def declares(name: str, overrides: list[dict[str, Any]], on: str = "standard", **values: Any) -> None:
    """Register a submission of the open division with these overrides; keyword arguments are further changes of the plan."""

    def change(content: Content) -> None:
        content["division"], content["overrides"] = "open", [*content["overrides"], *overrides]
        content["plan"] |= values

    corrupt("overrides", name, f"{DECLARED}|workload", on)(change)


SEED = [{"field": "seed", "card": 1, "run": 0}]
put("overrides", "overrides taken out, division standard", {"division": "standard", "overrides": []}, "open", field=DECLARED)
put("overrides", "division open without an override", {"division": "open"}, "standard", field=DECLARED)
put("overrides", "division standard with an override", {"overrides": SEED}, "standard", field=DECLARED)
put("overrides", "override says another value than the plan", {"overrides.0.run": "full"}, "open", field=DECLARED)
put("overrides", "override says another value than the card", {"overrides.0.card": "something else"}, "open", field=DECLARED)
put(
    "overrides",
    "an override that changes nothing",
    {"overrides.0.card": lambda _: "qlora", "overrides.0.run": lambda _: "qlora"},
    "qlora",
    field=DECLARED,
)
put("overrides", "override twice", {"overrides": lambda declared: [*declared, *declared]}, "open", field=DECLARED)
put(
    "overrides",
    "an invented card hash behind an override",
    {"plan.workload_sha256": "5e" * 32},
    "open",
    field="plan.workload|overrides|workload",
)
put("overrides", "a second change, not declared, behind an override", {"plan.optimizer.learning_rate": 0.5}, "open", field=DECLARED)
put(
    "overrides",
    "a shorter sequence, not declared, behind an override",
    {"plan.data.sequence_length": 64},
    "open",
    field=f"{DECLARED}|trace",
)
declares("override of a field that does not exist", [{"field": "optimizer.lucky_number", "card": 7, "run": 13}])
declares("override of the card's title", [{"field": "title", "card": "LoRA", "run": "LoRA, faster"}])
declares("an invented card hash behind an override of the seed", SEED, workload_sha256="5e" * 32)
declares("an invented workload behind an override of the seed", SEED, workload="lora-8b-turbo")
declares("override of a seed that the plan does not have", [{"field": "seed", "card": 1, "run": 999}])
declares("override of the rules of measurement", [{"field": "measurement.min_steady_steps", "card": 100, "run": 1}])
declares("a hundred overrides that change nothing", [{"field": "optimizer.epsilon", "card": 1e-8, "run": 1e-8}] * 99)


# Gates and warnings ---------------------------------------------------------------------------------------------------------

GATES, WARNINGS = "gates", "warnings"
PLACE = {"adapter_gradient": 0, "packed_documents": 1, "loss_band": 2}


def gate(name: str, which: str, detail: str | None, passed: bool | None, on: str) -> None:  # noqa: FBT001 - the three states of a gate
    """Register a changed gate."""
    values: dict[str, Any] = {f"gates.{PLACE[which]}.passed": passed}
    put("gates", name, values | ({f"gates.{PLACE[which]}.detail": detail} if detail else {}), on, field=GATES)


gate("adapter gradient passed with 0 of 28", "adapter_gradient", "a gradient reaches 0 of 28 adapters", True, "ok adapters")
gate("adapter gradient passed with half of the adapters", "adapter_gradient", "a gradient reaches 14 of 28 adapters", True, "ok adapters")
gate("adapter gradient of another model's adapters", "adapter_gradient", "a gradient reaches 9999 of 9999 adapters", True, "ok adapters")
gate("weights without a gradient in full fine-tuning, passed", "adapter_gradient", "a gradient reaches 0 of 73 weights", True, "bert ok")
gate("adapter gradient passed in words that nobody measured", "adapter_gradient", "looks good to me", True, "checked")
gate("adapter gradient does not apply on one device", "adapter_gradient", "not needed here", None, "checked ok")
gate(
    "a failed check of the gradient in a run without its warning",
    "adapter_gradient",
    "a gradient reaches 3 of 28 adapters",
    False,
    "ok adapters",
)
gate("packed documents said not to apply though packed", "packed_documents", "documents are not packed", None, "packed")
gate(
    "packed documents passed with a difference of 5",
    "packed_documents",
    "another first document changes the logits of the second by 5.0e+00 of their spread",
    True,
    "packed",
)
gate(
    "packed documents passed though none are packed",
    "packed_documents",
    "another first document changes the logits of the second by 1.0e-04 of their spread",
    True,
    "checked rows",
)
gate(
    "loss band passed where the trace says otherwise",
    "loss_band",
    "largest deviation from the reference losses: 0.01% at step 240 (allowed: 0%)",
    True,
    "ok !golden",
)
gate("loss band said not to apply where there are reference losses", "loss_band", "this workload has no reference losses", None, "golden")
gate(
    "loss band failed where the trace says it holds",
    "loss_band",
    "largest deviation from the reference losses: 90.00% at step 50 (allowed: 0%)",
    False,
    "golden",
)
gate(
    "loss band with a deviation that the trace does not have",
    "loss_band",
    "largest deviation from the reference losses: 0.00% at step 10 (allowed: 90%)",
    True,
    "golden",
)
put("gates", "one gate taken out", {"gates": lambda gates: gates[:1] + gates[2:]}, "ok", field=GATES)
put("gates", "all gates taken out", {"gates": []}, "ok", field=GATES)
put("gates", "a gate twice", {"gates": lambda gates: [*gates, gates[0]]}, "ok", field=GATES)
put("gates", "gates that the plan does not ask for", {"plan.measurement.gates": False}, "ok", field="gates|plan.measurement|timeline")


def unwarned(name: str, kind: str, values: dict[str, Any], on: str) -> None:
    """Register a circumstance of which the harness always warns, without its warning."""

    def keep(warnings: list[dict[str, str]]) -> list[dict[str, str]]:
        return [warning for warning in warnings if warning["kind"] != kind]

    put("gates", name, {**values, "warnings": keep}, on, field="warnings|" + "|".join(values))


unwarned("busy host without its warning", "busy_host", {"utilisation.foreign_cpu_busy_mean": 1.7}, "ok")
unwarned("dirty source without its warning", "dirty_source", {"harness.dirty": True}, "any")
unwarned("random weights without their warning", "random_weights", {}, "any")
unwarned("unknown device without its warning", "unknown_accelerator", {}, "cpu")
unwarned("wide interval without its warning", "wide_interval", {}, "bert")
unwarned("unstable run without its warning", "not_stable", {}, "fsdp")
unwarned("fallen matrix rate without its warning", "peak_fell", {"probe.after_flop_per_s": lambda rate: rate * 0.7}, "ok !lora")
unwarned("risen matrix rate without its warning", "peak_rose", {"probe.after_flop_per_s": lambda rate: rate * 3.9}, "cpu ok")
unwarned("too few steps without its warning", "few_steps", {}, "oom")
unwarned(
    "throttled half of the time without its warning",
    "throttled",
    {"utilisation.devices.*.throttle_reasons": ["hw_slowdown"], "utilisation.devices.*.throttle_shares": {"hw_slowdown": 0.5}},
    "energy",
)
unwarned(
    "a device in use before the run without its warning",
    "busy_device",
    {"utilisation.devices.*.memory_used_before_bytes": 9 * GIB, "utilisation.devices.*.memory_used_peak_bytes": 60 * GIB},
    "ok energy",
)
unwarned(
    "a slow rank without its warning",
    "straggler",
    {"ranks.1.own_work_s.*": lambda time: time * 1.12, "ranks.0.own_work_s.*": lambda time: time * 0.7},
    "ok ranks",
)
put("gates", "all warnings taken out", {"warnings": []}, "any", field=WARNINGS)
put("gates", "a warning of random weights in other words: none", {"warnings.*.message": "nothing to see"}, "any", field=WARNINGS)
put(
    "gates",
    "a warning of a failed gate that did not fail",
    {"warnings": lambda old: [*old, {"kind": "gate_failed", "message": "adapter_gradient: a gradient reaches 3 of 28"}]},
    "ok",
    field="warnings|gates",
)


# Studies --------------------------------------------------------------------------------------------------------------------


def study(name: str, kind: str, point: str, on: str = "ok", **more: Any) -> None:
    """Register a study that the run cannot belong to."""
    content = {"kind": kind, "study_id": "9c02fd7803f9", "point": point, "position": 1, "settings_sha256": "e4" * 32, **more}
    put("studies", name, {"study": content}, on, field="study")


study("kind ab for a point of a frontier", "ab", "data.sequence_length=128, batch.micro_batch=4")
study("kind frontier for an arm", "frontier", "a: compile=none, pair 1")
study("a point of another batch than the plan's", "sweep", "batch.micro_batch=512")
study("a point of a length that the plan does not have", "frontier", "data.sequence_length=65536, batch.micro_batch=1")
study("an arm with a setting that the plan does not have", "ab", "b: compile=blocks, pair 1")
study("an arm that is neither a nor b", "ab", "z: compile=none, pair 1")
study("a point of a setting that does not exist", "sweep", "batch.lucky_number=7")
study("the ten millionth run of a study", "repeat", "repeat 1", position=10_000_000)
study("a repeat of no plan", "repeat", "the good one")


# The harness ----------------------------------------------------------------------------------------------------------------

put("harness", "version 'banana'", {"harness.version": "banana"}, "any", field="harness")
put("harness", "version 99.0.0", {"harness.version": "99.0.0"}, "any", field="harness")
put("harness", "version 0.0.0", {"harness.version": "0.0.0"}, "any", field="harness")
put("harness", "a commit that does not exist", {"harness.commit": "deadbeef" * 5}, "any", field="harness")
put("harness", "a commit of zeros", {"harness.commit": "0" * 40}, "any", field="harness")
put("harness", "a clean checkout without a commit", {"harness.commit": None}, "any", field="harness")
put("harness", "a dirty checkout without a commit", {"harness.commit": None, "harness.dirty": True}, "any", field="harness")

__all__ = ["CORRUPTIONS"]
