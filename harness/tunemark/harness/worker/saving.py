"""Saving what was trained: gathered from all processes, written by the first one until it is on the disk, and removed."""

import os
import shutil
from pathlib import Path
from typing import Any

from tunemark.harness.worker.engines import Engine


def save(engine: Engine, folder: Path, *, rank: int) -> int:
    """Write adapters, or the whole model where there are none, as safetensors; return the bytes that the first process wrote.

    All processes take part: each gives its part, and waits until the first has written all.

    Raises
    ------
    RuntimeError
        When nothing was written.

    """
    state, written = engine.gathered(), 0
    if rank == 0:
        try:
            write(engine.bare, state, folder)
            written = on_disk(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not written:
            msg = "saving wrote no weights"
            raise RuntimeError(msg)
    engine.accelerator.wait_for_everyone()
    return written


def write(model: Any, state: dict[str, Any] | None, folder: Path) -> None:  # noqa: ANN401 - a torch module
    """Write a model, or the adapters of one, as its library does; `state` holds its weights where the model itself does not."""
    # Left to itself peft asks the hub whether the vocabulary was changed.
    further = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(folder, state_dict=state, **further)


def on_disk(folder: Path) -> int:
    """Wait until the weights in a folder are on the disk, and return their bytes: until then they may be in memory only."""
    size = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        size += path.stat().st_size
    return size
