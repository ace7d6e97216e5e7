"""Support by device: the harness' support matrix, and the evidence from measured results."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tunemark.schema.vocabulary import VARLEN
from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue
from tunemark.site.tables import Cell, Column, Row, Table

CRUMBS = (("Guide", "guide/index"),)
HOST = ("cpu", "fake")
GPUS = ("cuda", "rocm", "xpu")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured result with the parts of its record that serve as evidence."""

    row: Row
    plan: dict[str, str]
    """Settings by dotted path."""
    warnings: frozenset[str]

    @property
    def succeeded(self) -> bool:
        """Return True if the run succeeded."""
        return bool(self.row["status"] == "ok")

    @property
    def on_device(self) -> bool:
        """Return True if the run used an accelerator."""
        return self.row["backend"] not in HOST

    def requested(self, name: str, default: str) -> bool:
        """Return True if the plan set `name` to something other than its default."""
        return self.plan.get(name, default) != default


Shows = Callable[[MeasuredRun], bool]
_ALLOCATOR = "memory_allocated"
BY_SUCCESS: dict[str, Shows] = {
    "FlashAttention 2": lambda run: run.row["attention"] == "flash_attention_2",
    "FlashAttention 3": lambda run: run.row["attention"] == "flash_attention_3",
    "Variable-length attention": lambda run: run.row["attention"] == VARLEN,
    "Flex attention": lambda run: run.row["attention"] == "flex_attention",
    "Liger fused kernels": lambda run: run.row["fused_kernels"] == "liger",
    "torch.compile on an accelerator": lambda run: run.on_device and (run.row["compile"] or "none") != "none",
    "QLoRA on a GPU": lambda run: run.row["backend"] in GPUS and run.row["method"] == "qlora",
    "Frozen weights in fp8": lambda run: run.on_device and run.row["fp8"] == "frozen weights",
    "Training in fp8": lambda run: run.on_device and run.row["fp8"] in {"tensorwise", "rowwise"},
    "fp16 on an accelerator": lambda run: run.on_device and run.row["precision"] == "fp16",
    "tf32": lambda run: run.row["precision"] == "tf32",
    "8-bit optimizer states on an accelerator": lambda run: run.on_device and "8bit" in (run.row["optimizer"] or ""),
    "Offload from an accelerator to host memory": lambda run: run.on_device and run.requested("device.offload", "none"),
    "Tensor parallel": lambda run: run.requested("device.tensor_parallel", "1"),
    "Pipeline parallel": lambda run: run.requested("device.pipeline_parallel", "1"),
    "NCCL or RCCL collectives": lambda run: run.row["process_group"] == "nccl",
    "Neuron collectives": lambda run: run.row["process_group"] == "xla",
    "oneCCL collectives": lambda run: run.row["process_group"] in {"ccl", "xccl"},
    "Several machines": lambda run: (run.row["nodes"] or 1) > 1,
    "Energy from the hardware counter": lambda run: run.row["energy_source"] == "counter",
    "Energy integrated from power": lambda run: run.row["energy_source"] == "integrated",
    "Throttling is detected": lambda run: "throttled" in run.warnings,
    "Other processes on a device are detected": lambda run: run.on_device and "busy_device" in run.warnings,
    "Peak memory from a device allocator": lambda run: _ALLOCATOR in (run.row["peak_memory_method"] or ""),
    "Predicted memory compared with a device allocator": lambda run: (
        run.row["predicted_memory_bytes"] is not None and _ALLOCATOR in (run.row["peak_memory_method"] or "")
    ),
    "MFU against a dense peak": lambda run: run.row["mfu"] is not None,
}
"""Shown by a successful run."""
BY_FAILURE: dict[str, Shows] = {
    "Out of memory on a device": lambda run: run.row["status"] == "oom_device",
    "Memory frontier of a device": lambda run: run.row["status"] == "oom_device" and run.row["study_kind"] == "frontier",
}
"""Shown by a run that ran out of memory."""


def proofs(backends: list[str]) -> dict[str, Shows]:
    """Return the features that only an accelerator can prove, each with a test of a run."""
    code = {f"The code for {wording.backend(key)}": _runs_on(key) for key in backends if key != "cpu"}
    return code | {name: _successful(shows) for name, shows in BY_SUCCESS.items()} | BY_FAILURE


def _runs_on(backend: str) -> Shows:
    return _successful(lambda run: bool(run.row["backend"] == backend))


def _successful(shows: Shows) -> Shows:
    return lambda run: run.succeeded and shows(run)


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the support matrix."""
    backends = list(dict.fromkeys(row["backend"] for row in catalogue.support))
    context = {
        "families": _families(catalogue, backends) if backends else None,
        "matrix": _matrix(catalogue, backends) if backends else None,
        "proofs": _proofs(catalogue, backends),
    }
    yield Page("guide/support", "What runs where", "support.md.j2", context, CRUMBS)


def _families(catalogue: Catalogue, backends: list[str]) -> Table:
    runs = {backend: catalogue.results_where(source="measured", backend=backend) for backend in backends}
    ok = {backend: sum(row["status"] == "ok" for row in rows) for backend, rows in runs.items()}
    columns: list[Column[str]] = [
        Column("Device family", lambda backend: tables.text(wording.backend(backend))),
        Column("Successful runs", lambda backend: tables.number(ok[backend]), numeric=True),
        Column("Failed runs", lambda backend: tables.number(len(runs[backend]) - ok[backend]), numeric=True),
        Column("Evidence", lambda backend: _evidence_cell(ok[backend])),
    ]
    return tables.table("Device families", columns, backends, stacked=True)


def _evidence_cell(runs: int) -> Cell:
    return Cell("measured", badge="measured", sort="measured") if runs else Cell("not yet run by us", badge="ambiguous", sort="never")


def _matrix(catalogue: Catalogue, backends: list[str]) -> Table:
    support = {(row["feature"], row["backend"]): row for row in catalogue.support}

    def backend_column(backend: str) -> Column[str]:
        return Column(wording.backend(backend), lambda feature: _support_cell(support.get((feature, backend))))

    columns: list[Column[str]] = [Column("Feature", tables.text), *map(backend_column, backends)]
    features = dict.fromkeys(row["feature"] for row in catalogue.support)
    return tables.table("Support matrix", columns, features, searchable=False, stacked=True)


def _support_cell(row: Row | None) -> Cell:
    if row is None:
        return tables.text(None)
    if row["supported"]:
        return Cell("yes", badge="ok", sort="yes", small=f"needs {row['needs']}" if row["needs"] else "")
    return Cell("no", badge="plain", sort="no", small=row["reason"] or "")


def _proofs(catalogue: Catalogue, backends: list[str]) -> Table:
    runs = list(_measured_runs(catalogue))
    counted = [(name, sum(map(shows, runs))) for name, shows in proofs(backends).items()]
    columns: list[Column[tuple[str, int]]] = [
        Column("Feature", lambda item: tables.text(item[0])),
        Column("Results that show it", lambda item: tables.number(item[1]), numeric=True),
        Column("Evidence", lambda item: _evidence_cell(item[1])),
    ]
    return tables.table("Features that must be shown on an accelerator", columns, counted)


def unproven(catalogue: Catalogue, backend: str) -> list[str]:
    """Return the features that only an accelerator can prove, and that no run of this device family has shown."""
    runs = [run for run in _measured_runs(catalogue) if run.row["backend"] == backend]
    return [name for name, shows in proofs([backend]).items() if not any(map(shows, runs))]


def _measured_runs(catalogue: Catalogue) -> Iterator[MeasuredRun]:
    for row in catalogue.results_where(source="measured"):
        facts, warnings = catalogue.facts.get(row["result_id"], ()), catalogue.warnings.get(row["result_id"], ())
        plan = {fact["name"]: str(fact["value"]) for fact in facts if fact["topic"] == "plan"}
        yield MeasuredRun(row, plan, frozenset(warning["kind"] for warning in warnings))
