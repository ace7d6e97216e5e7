"""The CPU: synchronous, its memory is the host's."""

from typing import Self

from tunemark.harness.devices.protocol import SynchronousDevice


class Cpu(SynchronousDevice):
    """Trains on CPU threads."""

    torch_name = "cpu"

    @classmethod
    def open(cls, threads: int | None) -> Self:
        """Limit torch to so many threads: more than cores only adds noise."""
        import torch  # noqa: PLC0415

        if threads is not None:
            torch.set_num_threads(threads)
        return cls()
