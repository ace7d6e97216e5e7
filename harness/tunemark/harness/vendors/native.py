"""Devices that a package of their vendor adds to torch: the tables of families.toml with `modules`, in our own training loop.

One class drives all of them, by torch's module of the device and by torch.accelerator; what a device lacks is found out when it is opened.
A test runs whole runs, of one and of two processes, on a device that it registers.
"""

import contextlib
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Self

from tunemark.harness.vendors import protocol
from tunemark.schema.vocabulary import NATIVE, TORCH_MODULES, Backend


class Native(protocol.Gpu):
    """Trains on one device of a package. Its name is not compared: not every module reports one."""

    draws_weights = pins_memory = False
    no_peaks = "the allocator of the device reports no peaks to torch"

    @classmethod
    def opened(cls, torch: Any, local_rank: int) -> Self:  # noqa: ANN401 - a module, imported late
        """Return the device of a process."""
        for module in cls.row.modules:
            import_module(module)
        api = functions(torch, cls.family)
        api.set_device(local_rank)
        return cls(torch, api, local_rank)

    def __init__(self, torch: Any, api: Any, local_rank: int = 0) -> None:  # noqa: ANN401 - modules, imported late
        super().__init__(torch, api, local_rank)
        torch.empty(1, device=self.torch_name)
        self.counted_by = TORCH_MODULES[Backend(self.family)]
        self.free_marks = api.Event is not None
        with contextlib.suppress(*protocol.UNSUPPORTED):
            torch.empty(1, pin_memory=True)
            self.pins_memory = True

    def seed(self, seed: int) -> None:
        """Seed all generators: torch itself seeds the device of a package, but not a Gaudi."""
        super().seed(seed)
        getattr(self._torch.get_device_module(self.family), "manual_seed_all", id)(seed)

    def memory(self) -> dict[str, dict[str, Any]]:
        """Return the allocator's peaks."""
        unknown = {"reserved": {"peak_bytes": None, "reason": self.row.no_reserved}} if self.row.no_reserved else {}
        return super().memory() | unknown


def functions(torch: Any, family: str) -> SimpleNamespace:  # noqa: ANN401 - a module, imported late
    """Return the functions that `Device` calls: those of torch's module of the device, else of torch.accelerator, else without effect."""
    own, common = torch.get_device_module(family), torch.accelerator
    known = {name: getattr(own, name, None) or getattr(common, name) for name in ("synchronize", "empty_cache")}
    known["set_device"] = getattr(own, "set_device", None) or common.set_device_index
    counters = common if TORCH_MODULES[Backend(family)] == "torch.accelerator" else own
    with contextlib.suppress(*protocol.UNSUPPORTED):
        counters.reset_peak_memory_stats()
        names = ("memory_stats", "reset_peak_memory_stats", "max_memory_allocated", "max_memory_reserved")
        known |= {name: getattr(counters, name) for name in names}
    events: tuple[Any, ...] = (partial(torch.Event, family), getattr(own, "Event", None))
    for event in events:
        with contextlib.suppress(*protocol.UNSUPPORTED):
            first, last = event(enable_timing=True), event(enable_timing=True)
            first.record()
            last.record()
            last.synchronize()
            if last.query() and first.elapsed_time(last) >= 0:
                known["Event"] = event
    return protocol.functions_of(**known)


def vendor(backend: Backend, **own: Any) -> protocol.Vendor:  # noqa: ANN401 - fields of a vendor
    """Return the vendor of such a device; `own` are fields of one that is found in its own way."""
    row = protocol.TABLE[backend]
    device = type("Native", (Native,), {"row": row, "family": backend.value})
    return protocol.vendor(backend, **{"find": partial(protocol.on_pci_bus, row)} | own, device=device)


VENDORS = [vendor(backend) for backend in NATIVE if protocol.TABLE[backend].chips]
