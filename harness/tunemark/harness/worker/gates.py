"""Measurements around training: gates before it, the device's matrix rate before and after, held-out quality at the end.

A speed counts only when the gates pass.
"""

import gc
import math
from collections.abc import Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

from tunemark.harness.vendors.protocol import Device, vendor_of
from tunemark.harness.worker.data import MicroBatch, Shape, micro_batches, to_device
from tunemark.harness.worker.models import switch_to_evaluation, torch_dtype
from tunemark.schema.records.plan import Plan
from tunemark.schema.statistics.intervals import weighted_mean
from tunemark.schema.synthetic_data import Sample
from tunemark.schema.vocabulary import PACKING_NOISE, SHARDED_WEIGHTS, Backend, Dtype, Method, Padding, Task

GATES = ("adapter_gradient", "packed_documents")
ZERO_AT_FIRST = ("lora_B", "lora_embedding_A")
"""The adapter matrices that peft initialises with zeros: the second one of a linear layer, the first one of an embedding."""
ROUND_S = 0.02
"""Least time of a round of products: between rounds, the host waits for the device."""
PROBE_S = 0.5
"""Least time of all rounds: a device lowers its clocks for power and heat only after some tenths of a second."""


def check(plan: Plan, model: Any, device: Device, batch: MicroBatch) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a torch module
    """Yield the gates of a plan as `submission.gates` holds them. The random number generators are left unchanged."""
    if plan.device.strategy in SHARDED_WEIGHTS:
        why = f"the model is sharded by {plan.device.strategy.value}; run the workload on one device for this check"
        yield from ({"name": name, "passed": None, "detail": why} for name in GATES)
        return
    model.to(device.torch_name)
    tensors = to_device(batch.tensors, device.torch_name)
    kind, cuda = torch.device(device.torch_name).type, device.torch_name.startswith("cuda")
    # As in training: some attention kernels take 16 bits only.
    precision = torch.autocast(kind, torch_dtype(plan.precision.compute)) if plan.autocast else nullcontext()
    with torch.random.fork_rng(devices=[device.torch_name] if cuda else []), precision:
        yield adapter_gradient(plan, model, tensors)
        yield packed_documents(plan, model, tensors)


def adapter_gradient(plan: Plan, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Check that a backward pass reaches every trained weight, and every adapter with a nonzero gradient; return the gate."""
    model(**tensors).loss.backward()
    full = plan.method is Method.FULL
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    without = [name for name, parameter in trained if parameter.grad is None]
    # While one of an adapter's two matrices is zero, the other one has no gradient.
    relevant = [parameter for name, parameter in trained if full or any(zero in name for zero in ZERO_AT_FIRST)]
    reached = sum(parameter.grad is not None and bool(torch.count_nonzero(parameter.grad)) for parameter in relevant)
    model.zero_grad(set_to_none=True)
    enough = reached > 0 if full else reached == len(relevant)
    missing = f"; none exists for {without[0]}" if without else ""
    return {
        "name": "adapter_gradient",
        "passed": not without and enough and bool(relevant),
        "detail": f"a gradient reaches {reached} of {len(relevant)} {'weights' if full else 'adapters'}{missing}",
    }


def packed_documents(plan: Plan, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Check that the logits of a row's second document do not change with the tokens of the first; return the gate."""
    gate = {"name": "packed_documents", "passed": None}
    if not plan.data.packing:
        return gate | {"detail": "documents are not packed"}
    if not plan.data.document_borders:
        return gate | {"detail": "packed documents attend to each other, as planned"}
    borders = (tensors["position_ids"][0] == 0).nonzero().flatten().tolist()
    if len(borders) < 2:  # noqa: PLR2004 - two documents are needed
        return gate | {"detail": "the first row holds one document only"}
    start, end = [*borders, tensors["position_ids"].shape[1]][1:3]
    training = model.training
    switch_to_evaluation(model)
    changed = tensors["input_ids"].clone()
    changed[0, :start] = (changed[0, :start] + 1) % int(model.get_input_embeddings().weight.shape[0])
    rest = {name: value for name, value in tensors.items() if name not in {"input_ids", "labels"}}
    with torch.no_grad():
        before, after = (model(input_ids=ids, **rest).logits[0, start:end].float() for ids in (tensors["input_ids"], changed))
    model.train(training)
    difference = float((before - after).abs().max() / before.std())
    return gate | {
        "passed": difference <= PACKING_NOISE[plan.precision.compute.value],
        "detail": f"another first document changes the logits of the second by {difference:.1e} of their spread",
    }


def matrix_rate(device: Device, backend: Backend, dtype: Dtype) -> dict[str, Any] | None:
    """Return `dtype`, `size` and `flop_per_s` of products of square matrices over at least half a second; None without memory for them.

    The rate is the median of all rounds, which a short burst or a short disturbance does not change. It reveals a device that
    is throttled, shared or slower than others of its kind. MAFU is measured against it (definitions#mfu).
    """
    size = vendor_of(backend).probe_size
    if size is None:
        return None
    rates: list[float] = []
    try:
        # A generator of its own: training is the same with and without a probe.
        place = device.torch_name if device.draws_weights else "cpu"
        own = torch.Generator(device=place).manual_seed(0)
        drawn = (torch.randn(size, size, generator=own, dtype=torch_dtype(dtype), device=place) for _ in range(2))
        left, right = (matrix.to(device.torch_name) for matrix in drawn)
        product = left @ right
        products, probed_s = 1, 0.0
        while probed_s < PROBE_S or not rates:
            device.synchronise()
            started_s = device.now()
            for _ in range(products):
                torch.matmul(left, right, out=product)
            device.synchronise()
            round_s = device.now() - started_s
            if round_s <= 0:
                # A scripted clock does not advance.
                return None
            probed_s += round_s
            if round_s < ROUND_S:
                # Too short a round counts for the time, and the next one is longer.
                products = max(products + 1, round(products * ROUND_S / round_s))
            else:
                rates.append(2 * size**3 * products / round_s)
    except (RuntimeError, MemoryError):
        return None
    finally:
        left = right = product = None
        gc.collect()
    return {"dtype": dtype.value, "size": size, "flop_per_s": median(rates)}


def evaluate(plan: Plan, model: Any, shape: Shape, device: Device, samples: list[Sample]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Return mean loss on held-out rows, weighted by supervised tokens, its standard error, and the accuracy of a classifier."""
    # One held-out document per row: packing would drop those that do not fill a row.
    if plan.data.packing:
        plan = plan.model_copy(update={"data": plan.data.model_copy(update={"packing": False, "padding": Padding.DYNAMIC})})
    classified = plan.model.task is Task.SEQUENCE_CLASSIFICATION
    switch_to_evaluation(model)
    losses, supervised, correct, rows = [], [], 0, 0
    with torch.no_grad():
        for batch in micro_batches(plan, iter(samples), shape):
            tensors = to_device(batch.tensors, device.torch_name)
            output = model(**tensors)
            losses.append(float(output.loss))
            supervised.append(batch.counts.supervised_tokens)
            rows += batch.counts.rows
            if classified:
                correct += int((output.logits.argmax(dim=-1) == tensors["labels"]).sum())
    loss, error = weighted_mean(losses, supervised)
    return {
        "rows": rows,
        "loss": loss if math.isfinite(loss) else None,
        "loss_standard_error": error if error is not None and math.isfinite(error) else None,
        "accuracy": correct / rows if classified else None,
    }
