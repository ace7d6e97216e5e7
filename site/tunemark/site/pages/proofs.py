"""What only an accelerator can prove, and which result shows it: tests of ours have stand-ins for these."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tunemark.site.queries import Catalogue, Row

HOST = ("cpu", "fake")
GPUS = ("cuda", "rocm", "xpu")


@dataclass(frozen=True, slots=True)
class Shown:
    """A measured result, however it ended, as far as it may show something."""

    row: Row
    plan: dict[str, str]
    """Settings by dotted path."""
    doubts: frozenset[str]

    @property
    def well(self) -> bool:
        """Return whether it ended well."""
        return bool(self.row["status"] == "ok")

    @property
    def on_device(self) -> bool:
        """Return whether an accelerator computed."""
        return self.row["backend"] not in HOST

    def asked(self, name: str, nothing: str) -> bool:
        """Return whether a setting of the plan was another one than `nothing`."""
        return self.plan.get(name, nothing) != nothing


Shows = Callable[[Shown], bool]
OF_GOOD_RUNS: dict[str, Shows] = {
    "FlashAttention 2": lambda one: one.row["attention"] == "flash_attention_2",
    "FlashAttention 3": lambda one: one.row["attention"] == "flash_attention_3",
    "Flex attention": lambda one: one.row["attention"] == "flex_attention",
    "Liger's fused kernels": lambda one: one.row["fused_kernels"] == "liger",
    "torch.compile on an accelerator": lambda one: one.on_device and (one.row["compile"] or "none") != "none",
    "QLoRA on a GPU": lambda one: one.row["backend"] in GPUS and one.row["method"] == "qlora",
    "fp16 on an accelerator": lambda one: one.on_device and one.row["precision"] == "fp16",
    "tf32": lambda one: one.row["precision"] == "tf32",
    "8-bit optimizer states on an accelerator": lambda one: one.on_device and "8bit" in (one.row["optimizer"] or ""),
    "Offload from an accelerator to host memory": lambda one: one.on_device and one.asked("device.offload", "none"),
    "Tensor parallel": lambda one: one.asked("device.tensor_parallel", "1"),
    "Pipeline parallel": lambda one: one.asked("device.pipeline_parallel", "1"),
    "Collectives of NCCL or RCCL": lambda one: one.row["process_group"] == "nccl",
    "Collectives of Neuron": lambda one: one.row["process_group"] == "xla",
    "Collectives of oneCCL": lambda one: one.row["process_group"] in {"ccl", "xccl"},
    "Several machines": lambda one: (one.row["nodes"] or 1) > 1,
    "Energy from the hardware's counter": lambda one: one.row["energy_source"] == "counter",
    "Energy integrated from power": lambda one: one.row["energy_source"] == "integrated",
    "Lowered clocks are noticed": lambda one: "throttled" in one.doubts,
    "Processes of others on a device are noticed": lambda one: one.on_device and "busy_device" in one.doubts,
    "Peak memory of a device's allocator": lambda one: "memory_allocated" in (one.row["peak_memory_method"] or ""),
    "Memory predicted beside a device's allocator": lambda one: (
        one.row["predicted_memory_bytes"] is not None and "memory_allocated" in (one.row["peak_memory_method"] or "")
    ),
    "MFU against a dense peak": lambda one: one.row["mfu"] is not None,
}
OF_OTHER_RUNS: dict[str, Shows] = {
    "Out of memory on a device": lambda one: one.row["status"] == "oom_device",
    "The frontier of a device's memory": lambda one: one.row["status"] == "oom_device" and one.row["study_kind"] == "frontier",
}
"""What a run shows by ending in another way."""
PROOFS: dict[str, Shows] = {what: lambda one, shows=shows: one.well and shows(one) for what, shows in OF_GOOD_RUNS.items()} | OF_OTHER_RUNS
"""What only an accelerator can prove -> whether a result shows it."""


def shown(catalogue: Catalogue) -> Iterator[Shown]:
    """Yield all measured results."""
    for row in catalogue.results_where(source="measured"):
        facts, doubts = catalogue.facts.get(row["result_id"], ()), catalogue.warnings.get(row["result_id"], ())
        plan = {fact["name"]: str(fact["value"]) for fact in facts if fact["topic"] == "plan"}
        yield Shown(row, plan, frozenset(warned["doubt"] for warned in doubts))
