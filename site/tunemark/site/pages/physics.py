"""FLOPs, utilisation, energy and memory of a measured run, each figure with its formula or the reason why it is not known."""

from tunemark.schema.formats import MISSING, binary, flop
from tunemark.schema.quantities import QUANTITIES
from tunemark.site import tables, wording
from tunemark.site.queries import Catalogue, Row
from tunemark.site.tables import Cell, Column, Line, Table

UTILISATION = ("mfu", "hfu", "mafu", "mfu_palm", "model_flop_per_s")
ENERGY = ("energy_per_step_j", "energy_per_sample_j", "energy_per_1k_tokens_j")
CLASSES = {
    "forward_matmul": "Forward, matrices of the blocks",
    "forward_attention": "Forward, attention",
    "forward_head": "Forward, head",
    "forward_adapters": "Forward, adapters",
    "backward_input": "Backward, input gradients",
    "backward_weight": "Backward, weight gradients",
    "backward_head": "Backward, head",
    "backward_attention": "Backward, attention",
    "backward_adapters": "Backward, adapters",
    "recompute": "Recomputed activations",
}
FIGURES = [Column("Figure"), Column("Value", numeric=True), Column("How it is computed, or what is missing")]


def utilisation(catalogue: Catalogue, row: Row) -> Table | None:
    """Return MFU and its relatives, each with its formula in words."""
    return _figures(catalogue, row, UTILISATION, "Utilisation")


def energy(catalogue: Catalogue, row: Row) -> Table | None:
    """Return energy per step, sample and token; None where there is no energy."""
    return _figures(catalogue, row, ENERGY, "Energy") if row["energy_per_step_j"] is not None else None


def no_energy(catalogue: Catalogue, row: Row) -> str:
    """Return why there is no energy; empty where there is one."""
    return "" if row["energy_per_step_j"] is not None else _reasons(catalogue, row).get("energy_per_step_j", "")


def no_memory(catalogue: Catalogue, row: Row) -> str:
    """Return why memory could not be predicted; empty where it was."""
    return _reasons(catalogue, row).get("predicted_memory_bytes", "")


def _reasons(catalogue: Catalogue, row: Row) -> dict[str, str]:
    facts = catalogue.facts.get(row["result_id"], ())
    return {fact["name"]: fact["reason"] for fact in facts if fact["topic"] == "derived" and fact["reason"]}


def _figures(catalogue: Catalogue, row: Row, names: tuple[str, ...], title: str) -> Table | None:
    reasons = _reasons(catalogue, row)
    known = [name for name in names if name in reasons]
    lines = (Line((tables.text(QUANTITIES[name].label), tables.quantity(name, row[name]), Cell(reasons[name]))) for name in known)
    return tables.table(title, FIGURES, lines, searchable=False, stacked=True) if known else None


def flops(catalogue: Catalogue, row: Row) -> Table | None:
    """Return the FLOPs of a mean steady step by class, classes without work left out."""
    seen = [line for line in catalogue.seen("flops", row["result_id"]) if line["flop"]]
    if not seen:
        return None
    total = sum(line["flop"] for line in seen)
    columns = [Column("Work"), Column("FLOPs", numeric=True), Column("Share", numeric=True), Column("Formula")]
    lines = (
        Line(
            (
                tables.text(CLASSES.get(line["class"], line["class"])),
                Cell(flop(line["flop"]), sort=line["flop"]),
                Cell(f"{line['flop'] / total:.1%}", sort=line["flop"]),
                Cell(line["formula"]),
            )
        )
        for line in seen
    )
    return tables.table("FLOPs of a step", columns, lines, searchable=False, stacked=True)


def memory(catalogue: Catalogue, row: Row) -> Table | None:
    """Return predicted memory beside what was measured: peaks, and tensors that were weighed."""
    seen = [line for line in catalogue.seen("memory_lines", row["result_id"]) if line["kind"] != "part"]
    columns = [
        Column("Memory"),
        Column("Predicted", numeric=True),
        Column("Measured", numeric=True),
        Column("Predicted is off by", numeric=True),
        Column("How"),
    ]
    lines = (_memory_line(line) for line in sorted(seen, key=lambda line: line["kind"] != "peak"))
    return tables.table("Memory, predicted and measured", columns, lines, searchable=False, stacked=True) if seen else None


def memory_parts(catalogue: Catalogue, row: Row) -> Table | None:
    """Return what else the predicted peak is made of; nothing weighs these one by one."""
    seen = [line for line in catalogue.seen("memory_lines", row["result_id"]) if line["kind"] == "part"]
    columns = [Column("Part"), Column("Predicted", numeric=True), Column("Formula")]
    lines = (
        Line(
            (
                tables.text(wording.sentence(line["line"])),
                Cell(binary(line["predicted_bytes"]), sort=line["predicted_bytes"]),
                Cell(line["note"]),
            )
        )
        for line in seen
    )
    return tables.table("Parts of the predicted peak", columns, lines, searchable=False, stacked=True) if seen else None


def _memory_line(line: Row) -> Line:
    predicted, measured = line["predicted_bytes"], line["measured_bytes"]
    off = predicted / measured - 1 if predicted is not None and measured else None
    return Line(
        (
            tables.text(wording.sentence(line["line"])),
            Cell(MISSING if predicted is None else binary(predicted), sort=predicted),
            Cell(MISSING if measured is None else binary(measured), sort=measured),
            Cell(MISSING if off is None else f"{off:+.1%}", sort=off),
            Cell(line["note"]),
        )
    )
