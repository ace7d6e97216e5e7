"""The matrix rate that this very device reaches, measured in a moment before and after training.

A device that is throttled, shared or a poor specimen is seen here; MAFU is measured against it (definitions.md, 9).
"""

import gc
from typing import Any

from tunemark.harness.devices import Device
from tunemark.harness.worker.models import TORCH_DTYPES
from tunemark.schema.vocabulary import Backend, Dtype

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
