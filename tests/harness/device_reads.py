"""Counts how often the host reads a tensor of the device."""

from torch.utils._python_dispatch import TorchDispatchMode


class Syncs(TorchDispatchMode):
    """Counts operators whose result the host reads: on a device each of them waits for its queue."""

    READ = frozenset(
        {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero", "aten::_unique2", "aten::masked_select"}
    )

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name().partition(".")[0] in self.READ:
            self.seen.append(function.name())
        return function(*args, **(kwargs or {}))
