"""What a workload says is to be done: its settings, its levers, and what its source varied."""

from tunemark.site import tables, wording
from tunemark.site.page import Fact, model_path
from tunemark.site.queries import Row
from tunemark.site.tables import Column, Line, Table


def facts(row: Row) -> list[Fact]:
    """Return model, samples, batch and optimizer of a workload."""
    return [
        Fact("Model", row["model"], href=model_path(row["model"])),
        Fact("Weights", row["weights"]),
        Fact("Task", wording.TASKS.get(row["task"], str(row["task"]))),
        Fact("Method", wording.method(row)),
        *([Fact("Adapters", row["lora"])] if row["lora"] else []),
        *([Fact("Frozen weights", row["quantisation"])] if row["quantisation"] else []),
        Fact("Data", row["dataset"]),
        Fact("Tokens in a row", wording.plain(row["sequence_length"])),
        Fact("Padding", "packed documents" if row["packing"] else row["padding"]),
        Fact("Micro-batch", wording.plain(row["micro_batch"]), "rows of one forward and backward on one device"),
        Fact("Gradient accumulation", wording.plain(row["gradient_accumulation"]), "micro-steps in an optimizer step"),
        Fact("Optimizer", wording.words(row["optimizer"])),
        Fact("Learning rate", wording.plain(row["learning_rate"])),
        Fact("Tier", row["tier"]),
        Fact("Card", f"data/workloads/{row['matrix'] or row['workload']}.toml"),
        Fact("Source", row["source"]),
    ]


def levers(row: Row) -> list[Fact]:
    """Return what changes speed and memory of a workload, and on which devices it is to run."""
    apart = row["tensor_parallel"] * row["pipeline_parallel"]
    return [
        Fact("Devices", wording.plain(row["devices"]), "each has its own rows; a card for one device runs on several as it is"),
        Fact("Strategy", row["strategy"], "auto: DDP on several devices" if row["strategy"] == "auto" else ""),
        *([Fact("Tensor x pipeline parallel", f"{row['tensor_parallel']} x {row['pipeline_parallel']}")] if apart > 1 else []),
        Fact("Offload", row["offload"]),
        Fact("Compute", row["compute"], "auto: bf16 where the device has it" if row["compute"] == "auto" else ""),
        Fact("Attention", wording.words(row["attention"])),
        Fact("Checkpointing", row["gradient_checkpointing"]),
        Fact("Fused kernels", row["fused_kernels"]),
        Fact("Compile", row["compile"]),
    ]


def axes(rows: list[Row]) -> Table | None:
    """Return the settings that the source varied; None when it varied none."""
    lines = (Line((tables.text(row["field"]), tables.text(", ".join(row["choices"])))) for row in rows)
    return tables.table("What the source varied", [Column("Setting"), Column("Values")], lines, searchable=False) if rows else None
