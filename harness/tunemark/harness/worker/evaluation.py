"""Quality on held-out rows, after training and outside of the measured window."""

import math
from typing import Any

from tunemark.harness.devices import Device
from tunemark.harness.worker.batches import Shape, micro_batches
from tunemark.harness.worker.gates import to_device
from tunemark.harness.worker.models import switch_to_evaluation
from tunemark.harness.worker.synthetic import Sample
from tunemark.schema.records.plan import Plan
from tunemark.schema.statistics.intervals import weighted_mean
from tunemark.schema.vocabulary import Padding, Task


def evaluate(plan: Plan, model: Any, shape: Shape, device: Device, samples: list[Sample]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Return mean loss, weighted by supervised tokens, with its standard error, and for classification the share of right rows."""
    import torch  # noqa: PLC0415

    # Held-out documents are looked at one a row: packed, those that fill no row would be left out.
    if plan.data.packing:
        plan = plan.model_copy(update={"data": plan.data.model_copy(update={"packing": False, "padding": Padding.DYNAMIC})})
    switch_to_evaluation(model)
    losses, supervised, correct, rows = [], [], 0, 0
    with torch.no_grad():
        for batch in micro_batches(plan, iter(samples), shape):
            tensors = to_device(batch.tensors, device.torch_name)
            output = model(**tensors)
            losses.append(float(output.loss))
            supervised.append(batch.counts.supervised_tokens)
            rows += batch.counts.rows
            if plan.model.task is Task.SEQUENCE_CLASSIFICATION:
                correct += int((output.logits.argmax(dim=-1) == tensors["labels"]).sum())
    classified = plan.model.task is Task.SEQUENCE_CLASSIFICATION
    loss, error = weighted_mean(losses, supervised)
    return {
        "rows": rows,
        "loss": loss if math.isfinite(loss) else None,
        "loss_standard_error": error if error is not None and math.isfinite(error) else None,
        "accuracy": correct / rows if classified else None,
    }
