"""Room in the temporary folder for what a run writes aside, looked at before any time is spent."""

import shutil
import tempfile

from tunemark.schema import formats
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.physics.architecture import count_parameters
from tunemark.schema.physics.training_shape import BYTES, shape_of_plan
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Weights

LOG_BYTES = 64 * 2**20
"""For the worker's log and output: some hundred bytes a step."""
HEADER_BYTES = 2**20
"""For the names and shapes of saved tensors."""


def temporary_bytes(plan: Plan, card: ModelCard) -> dict[str, int]:
    """Return what the processes of one machine write into the temporary folder, in bytes by name."""
    written = {"the worker's log": LOG_BYTES}
    if plan.quantisation is not None and plan.model.weights is Weights.RANDOM:
        processes = plan.device.count // plan.device.nodes
        each = int(count_parameters(card).total * BYTES[plan.precision.parameters])
        written["random weights, which are quantised as they are read" + (f", of {processes} processes" if processes > 1 else "")] = (
            processes * each
        )
    if plan.measurement.save:
        count = shape_of_plan(plan, card).adapter_weights if plan.lora else count_parameters(card).total
        written[f"the {'adapters' if plan.lora else 'model'} to be saved"] = int(count * BYTES[plan.precision.parameters]) + HEADER_BYTES
    return written


def refuse_full_disk(plan: Plan, card: ModelCard) -> None:
    """Raise TunemarkError when the temporary folder cannot take what a run writes there."""
    folder, written = tempfile.gettempdir(), temporary_bytes(plan, card)
    needed, free = sum(written.values()), shutil.disk_usage(folder).free
    if free < needed:
        parts = " and ".join(f"{size:,} for {name}" for name, size in written.items())
        raise TunemarkError(
            "TMPDIR",
            folder,
            f"has {free:,} bytes ({formats.gib(free)}) free, and the run needs {needed:,} ({formats.gib(needed)}): {parts}; "
            "free space there, or name a folder on a larger disk with TMPDIR=FOLDER",
            exit_code=Exit.UNSUPPORTED,
        )
