"""What only an accelerator can prove, and which result shows it: tests of ours have stand-ins for these."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tunemark.site import tables, wording
from tunemark.site.page import Page
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

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


# MOVE: was tunemark.site.pages.device_coverage: What each device family can be asked for, from the harness' own table, and what no run of ours has shown yet.

CRUMBS = (("Guide", "guide/index"),)


def pages(catalogue: Catalogue) -> Iterator[Page]:
    """Yield the support matrix."""
    backends = list(dict.fromkeys(row["backend"] for row in catalogue.support))
    context = {
        "families": _families(catalogue, backends) if backends else None,
        "matrix": _matrix(catalogue, backends) if backends else None,
        "proofs": _proofs(catalogue, backends),
    }
    yield Page("guide/support", "What runs where", "support.md.j2", context, CRUMBS)


def _measured(catalogue: Catalogue) -> list[Row]:
    return catalogue.results_where(source="measured")


def _families(catalogue: Catalogue, backends: list[str]) -> Table:
    columns = [
        Column("Device family"),
        Column("Runs that ended well", numeric=True),
        Column("Other runs", numeric=True),
        Column("Evidence"),
    ]
    return tables.table("Device families", columns, (_family(catalogue, backend) for backend in backends))


def _family(catalogue: Catalogue, backend: str) -> Line:
    runs = [row for row in _measured(catalogue) if row["backend"] == backend]
    well = sum(row["status"] == "ok" for row in runs)
    return Line(
        (
            tables.text(wording.backend(backend)),
            Cell(str(well), sort=well),
            Cell(str(len(runs) - well), sort=len(runs) - well),
            _evidence(well),
        )
    )


def _evidence(well: int) -> Cell:
    return Cell("measured", badge="measured", sort="measured") if well else Cell("never run by us", badge="ambiguous", sort="never")


def _matrix(catalogue: Catalogue, backends: list[str]) -> Table:
    columns = [Column("Feature"), *(Column(wording.backend(backend)) for backend in backends)]
    cells = {(row["feature"], row["backend"]): row for row in catalogue.support}
    features = dict.fromkeys(row["feature"] for row in catalogue.support)
    lines = (Line((tables.text(feature), *(_cell(cells.get((feature, one))) for one in backends))) for feature in features)
    return tables.table("Support matrix", columns, lines, searchable=False, stacked=True)


def _cell(row: Row | None) -> Cell:
    if row is None:
        return tables.text(None)
    if row["supported"]:
        return Cell("yes", badge="ok", sort="yes", small=f"needs {row['needs']}" if row["needs"] else "")
    return Cell("no", badge="plain", sort="no", small=row["reason"] or "")


def _proofs(catalogue: Catalogue, backends: list[str]) -> Table:
    seen = list(shown(catalogue))
    proofs: dict[str, Shows] = {
        **{f"The code for {wording.backend(one)}": partial(_runs_on, one) for one in backends if one != "cpu"},
        **PROOFS,
    }
    columns = [Column("What"), Column("Results that show it", numeric=True), Column("Evidence")]
    return tables.table("What only an accelerator can prove", columns, (_proof(what, seen, shows) for what, shows in proofs.items()))


def _runs_on(backend: str, one: Shown) -> bool:
    return one.well and bool(one.row["backend"] == backend)


def _proof(what: str, seen: list[Shown], shows: Shows) -> Line:
    number = sum(shows(one) for one in seen)
    return Line((tables.text(what), Cell(str(number), sort=number), _evidence(number)))
