"""Checks that training is right, made before it is timed: a speed counts only when they pass."""

import gc
import math
from collections.abc import Iterator
from typing import Any

from tunemark.harness.vendors import Device
from tunemark.harness.worker.data import MicroBatch, Sample, Shape, micro_batches
from tunemark.harness.worker.models import TORCH_DTYPES, switch_to_evaluation
from tunemark.schema.records.plan import Plan
from tunemark.schema.statistics.intervals import weighted_mean
from tunemark.schema.vocabulary import Backend, Dtype, Method, Padding, Strategy, Task

SHARDED = (Strategy.FSDP2, Strategy.ZERO3)
NOISE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
"""Largest difference of logits, relative to their spread, that rounding may cause: kernels may change with nothing."""
ZERO_AT_FIRST = ("lora_B", "lora_embedding_A")
"""The matrix of an adapter that peft fills with zeros: of a linear layer the second, of an embedding the first."""


def check(plan: Plan, model: Any, device: Device, batch: MicroBatch) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a torch module
    """Yield the gates of a plan as `submission.gates` holds them, the state of random numbers unchanged."""
    import torch  # noqa: PLC0415

    if plan.device.strategy in SHARDED:
        why = f"the model is sharded by {plan.device.strategy.value}; run the workload on one device for this check"
        yield from ({"name": name, "passed": None, "detail": why} for name in ("adapter_gradient", "packed_documents"))
        return
    model.to(device.torch_name)
    tensors = to_device(batch.tensors, device.torch_name)
    with torch.random.fork_rng(devices=[device.torch_name] if device.torch_name.startswith("cuda") else []):
        yield adapter_gradient(plan, model, tensors)
        yield packed_documents(plan, model, tensors)


def to_device(value: Any, name: str) -> Any:  # noqa: ANN401 - tensors in dictionaries
    """Return tensors, also those in nested dictionaries, on a device, without waiting."""
    if isinstance(value, dict):
        return {key: to_device(inner, name) for key, inner in value.items()}
    return value.to(name, non_blocking=True)


def adapter_gradient(plan: Plan, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Check that a backward pass reaches every weight that is to be trained, and every adapter with a value other than zero."""
    import torch  # noqa: PLC0415

    model(**tensors).loss.backward()
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    without = [name for name, parameter in trained if parameter.grad is None]
    # Of an adapter's two matrices, the one that is not zero has no gradient while the other still is.
    matters = [parameter for name, parameter in trained if plan.method is Method.FULL or any(zero in name for zero in ZERO_AT_FIRST)]
    arrived = sum(parameter.grad is not None and bool(torch.count_nonzero(parameter.grad)) for parameter in matters)
    model.zero_grad(set_to_none=True)
    enough = arrived == len(matters) if plan.method is not Method.FULL else arrived > 0
    what = "adapters" if plan.method is not Method.FULL else "weights"
    return {
        "name": "adapter_gradient",
        "passed": not without and enough and bool(matters),
        "detail": f"a gradient reaches {arrived} of {len(matters)} {what}" + (f"; none exists for {without[0]}" if without else ""),
    }


def packed_documents(plan: Plan, model: Any, tensors: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - a torch module
    """Change every token of a row's first document and look at the logits of the second: they may not change."""
    import torch  # noqa: PLC0415

    gate = {"name": "packed_documents", "passed": None}
    if not plan.data.packing:
        return gate | {"detail": "documents are not packed"}
    if not plan.data.document_borders:
        return gate | {"detail": "packed documents see each other, as the plan says"}
    borders = (tensors["position_ids"][0] == 0).nonzero().flatten().tolist()
    if len(borders) < 2:  # noqa: PLR2004 - two documents are needed to tell them apart
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
        "passed": difference <= NOISE[plan.precision.compute.value],
        "detail": f"another first document changes the logits of the second by {difference:.1e} of their spread",
    }


# MOVE: was tunemark.harness.worker.gates: Quality on held-out rows, after training and outside of the measured window.


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


# MOVE: was tunemark.harness.worker.gates: The matrix rate that this very device reaches, measured in a moment before and after training. A device that is throttled, shared or a poor specimen is seen here; MAFU is measured against it (definitions.md, 9).

SIZES = {Backend.CPU: 1024, Backend.FAKE: 64, Backend.MPS: 4096}
LARGE = 8192
ROUNDS = 5
PRODUCTS = 4


def matrix_rate(device: Device, backend: Backend, dtype: Dtype) -> dict[str, Any] | None:
    """Return `dtype`, `size` and `flop_per_s`, the best of five rounds of products of square matrices; None when they find no memory.

    None on Neuron devices too: of equal products in one graph its compiler keeps a single one, and the rate would be a multiple.
    """
    if backend is Backend.NEURON:
        return None
    import torch  # noqa: PLC0415

    size = SIZES.get(backend, LARGE)
    best_s = float("inf")
    try:
        # Random numbers of its own: training is the same with and without a probe.
        own = torch.Generator(device=device.torch_name).manual_seed(0)
        kind = {"dtype": getattr(torch, TORCH_DTYPES[dtype]), "device": device.torch_name}
        left, right = (torch.randn(size, size, generator=own, **kind) for _ in range(2))
        product = left @ right
        for _ in range(ROUNDS):
            device.synchronise()
            started_s = device.now()
            for _ in range(PRODUCTS):
                torch.matmul(left, right, out=product)
            device.synchronise()
            best_s = min(best_s, device.now() - started_s)
    except (RuntimeError, MemoryError):
        return None
    finally:
        left = right = product = None
        gc.collect()
    # A scripted clock may stand still.
    return {"dtype": dtype.value, "size": size, "flop_per_s": 2 * size**3 * PRODUCTS / best_s} if best_s > 0 else None
