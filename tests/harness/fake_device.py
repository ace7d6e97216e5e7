"""A scripted device, whose clock follows a script, so that every measurement made with it is known beforehand; and counters of what operators read and allocate.

Work is really computed, on the CPU; only time and memory are scripted. Like a GPU it is asynchronous: a mark is reached
only after `lag` more marks, which shows that the harness does not wait inside the window.
"""

import weakref
from functools import partial
from itertools import chain, repeat

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tunemark.harness.vendors.protocol import AllocatorState, Device


class Fake(Device):
    """A device on which time passes only when work is marked: `marks` marks, of micro-steps and of the step, divide a step equally."""

    free_marks = True

    def __init__(self, step_times_s, *, marks=1, lag=2, peak_bytes=1_000_000):
        steps = chain(step_times_s, repeat(step_times_s[-1]))
        self._script = (step_s / marks for step_s in steps for _ in range(marks))
        self._clock_s, self._marks, self._waited_for = 0.0, [], 0
        self._lag, self._peak_bytes = lag, peak_bytes

    def now(self):
        return self._clock_s

    def synchronise(self):
        self._waited_for = len(self._marks)

    def stamp(self):
        self._clock_s += next(self._script)
        self._marks.append(self._clock_s)
        return len(self._marks) - 1

    def reached(self, stamp):
        done = stamp < self._waited_for or len(self._marks) - 1 - stamp >= self._lag
        return self._marks[stamp] if done else None

    def allocator(self):
        return AllocatorState(self._peak_bytes)

    def memory(self):
        return {kind: {"peak_bytes": self._peak_bytes, "method": "scripted"} for kind in ("allocated", "reserved")}


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


class LiveBytes(dict):
    """The bytes of all storages that operators allocate, and their peak."""

    peak = 0

    def free(self, key, _):
        del self[key]

    def watch(self, *given):
        """Return the mode in which they are counted; the storages of the given tensors are not."""
        known = [tensor.untyped_storage() for tensor in given]
        self.update({id(storage): (0, storage) for storage in known})

        class Watch(TorchDispatchMode):
            def __torch_dispatch__(_, function, types, args=(), kwargs=None):  # noqa: N805 - `self` is the outer one
                out = function(*args, **(kwargs or {}))
                for storage in (leaf.untyped_storage() for leaf in tree_leaves(out) if hasattr(leaf, "untyped_storage")):
                    self.setdefault(id(storage), (storage.nbytes(), weakref.ref(storage, partial(self.free, id(storage)))))
                self.peak = max(self.peak, sum(size for size, _ in self.values()))
                return out

        return Watch()
