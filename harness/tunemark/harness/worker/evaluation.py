"""Quality on held-out rows, after training and outside of the measured window."""

import math
from typing import Any

from tunemark.harness.devices import Device
from tunemark.harness.worker.batches import micro_batches
from tunemark.harness.worker.synthetic import Sample
from tunemark.schema.plan import Plan
from tunemark.schema.vocabulary import Task


def evaluate(plan: Plan, model: Any, device: Device, samples: list[Sample]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Return mean loss, weighted by supervised tokens, and for classification the share of rows classified correctly."""
    import torch  # noqa: PLC0415

    model.eval()
    loss_sum, supervised, correct = 0.0, 0, 0
    with torch.no_grad():
        for batch in micro_batches(plan, iter(samples)):
            tensors = {name: tensor.to(device.torch_name) for name, tensor in batch.tensors.items()}
            output = model(**tensors)
            loss_sum += float(output.loss) * batch.counts.supervised_tokens
            supervised += batch.counts.supervised_tokens
            if plan.model.task is Task.SEQUENCE_CLASSIFICATION:
                correct += int((output.logits.argmax(dim=-1) == tensors["labels"]).sum())
    classified = plan.model.task is Task.SEQUENCE_CLASSIFICATION
    loss = loss_sum / supervised
    return {"rows": len(samples), "loss": loss if math.isfinite(loss) else None, "accuracy": correct / len(samples) if classified else None}
