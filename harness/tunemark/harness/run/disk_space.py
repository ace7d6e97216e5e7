"""Check before a run that the disk has space for its files: the submission, and files in the temporary folder."""

import shutil
import tempfile
from pathlib import Path

from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.files import project_root
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.training_shape import BYTES, shape_of_plan
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Weights

LOG_BYTES = 64 * formats.MIB
"""For the worker's log and output: some hundred bytes per step."""
HEADER_BYTES = formats.MIB
"""For the names and shapes of saved tensors."""


def temporary_bytes(plan: Plan, card: ModelCard) -> dict[str, int]:
    """Return the bytes that the processes of one machine write into the temporary folder, by purpose."""
    written = {"the worker's log": LOG_BYTES}
    if plan.quantisation is not None and plan.model.weights is Weights.RANDOM:
        processes = plan.device.count // plan.device.nodes
        purpose = "random weights, which are quantised as they are read" + (f", of {processes} processes" if processes > 1 else "")
        written[purpose] = processes * int(count_parameters(card).total * BYTES[plan.precision.parameters])
    if plan.measurement.save:
        count = shape_of_plan(plan, card).adapter_weights if plan.lora else count_parameters(card).total
        written[f"the saved {'adapters' if plan.lora else 'model'}"] = int(count * BYTES[plan.precision.parameters]) + HEADER_BYTES
    return written


def refuse_full_disk(plan: Plan, card: ModelCard) -> None:
    """Raise TunemarkError if the temporary folder has too little space for the files of a run."""
    folder, written = tempfile.gettempdir(), temporary_bytes(plan, card)
    needed, free = sum(written.values()), shutil.disk_usage(folder).free
    if free < needed:
        parts = " and ".join(f"{size:,} for {purpose}" for purpose, size in written.items())
        problem = f"has {free:,} bytes ({formats.gib(free)}) free, and the run needs {needed:,} ({formats.gib(needed)}): {parts}"
        fix = "free space there, or name a folder on a larger disk with TMPDIR=FOLDER"
        raise TunemarkError("TMPDIR", folder, f"{problem}; {fix}", exit_code=Exit.UNSUPPORTED)


def refuse_unwritable(out: Path | None) -> None:
    """Raise TunemarkError if no submission can be written to the folder."""
    folder = out or project_root() / "submissions"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise TunemarkError("--out", folder, f"cannot be written ({error.strerror}); name a folder of yours") from error
