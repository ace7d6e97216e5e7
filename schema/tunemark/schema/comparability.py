"""Comparability: the conditions in which results must agree to share a ranking.

See definitions#comparability. Results that differ in a key are listed separately, with the keys that differ.
"""

import hashlib
from collections.abc import Mapping

COMPARABILITY_KEYS: dict[str, str] = {
    "model": "the same model",
    "task": "the same task",
    "method": "the same fine-tuning method",
    "dataset": "the same dataset or token source",
    "sequence_length": "the same sequence length",
    "padding": "the same padding",
    "packing": "the same packing, with or without borders between the documents of a row",
    "global_batch": "the same rows in an optimizer step",
    "precision": "the same class of number format",
    "optimizer": "the same optimizer",
    "step_definition": "the same meaning of a step",
}


def comparability_group(conditions: Mapping[str, object]) -> str | None:
    """Return the name of a result's comparability group, or None if a condition is unknown: an unknown condition agrees with nothing.

    Packed documents have borders unless `document_borders` is False. Without borders each token attends to more positions.
    """
    values = [conditions.get(key) for key in COMPARABILITY_KEYS]
    if any(value is None for value in values):
        return None
    if conditions["packing"] and conditions.get("document_borders") is False:
        values.append("without borders")
    return "/".join(str(value) for value in values)


CONFIGURATION_KEYS = (
    *("comparability_group", "accelerator", "accelerator_printed", "accelerator_count", "backend", "strategy"),
    *("micro_batch", "attention", "fused_kernels", "compile", "gradient_checkpointing", "weights", "software"),
)
"""Columns in which runs agree if they are repeats of one configuration. The device's own name tells devices without a card apart."""


def configuration(row: Mapping[str, object], *, any_software: bool = False) -> str | None:
    """Return the name of a run's configuration, or None without a comparability group.

    With `any_software`, runs with other versions of the software have the same name.
    """
    if row.get("comparability_group") is None:
        return None
    values = [str(row.get(key)) for key in CONFIGURATION_KEYS if not (any_software and key == "software")]
    # Names of configurations are addresses of pages. A newer setting is added only where it is used, so that older addresses stay.
    if row.get("fp8") not in {None, "none"}:
        values.append(f"fp8 {row['fp8']}")
    return hashlib.sha256("\n".join(values).encode()).hexdigest()[:12]
