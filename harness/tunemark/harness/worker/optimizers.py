"""Two forms of AdamW for bf16 weights that do not lose small updates to rounding."""

import hashlib
from itertools import groupby
from typing import Any

import torch

from tunemark.harness.run.run_log import describe, rank_of_this_process
from tunemark.harness.worker.models import bytes_here, local
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import DEVICE_ROUNDING_CHUNK, MASTER_CHUNK, ROUNDING_CHUNK, SHARDED_WEIGHTS

LOW_BITS = 16
"""Bits of an fp32 number that bf16 does not have: sign, exponent and 7 bits of the fraction are the same."""


class MasterAdamW(torch.optim.AdamW):  # type: ignore[misc] # its base class has no types
    """AdamW over fp32 copies of 16-bit weights, which are rounded after each update.

    Gradients are cast some at a time. Groups and states belong to the copies; gradients stay with the model's weights.
    """

    def __init__(self, groups: list[dict[str, Any]], **settings: Any) -> None:  # noqa: ANN401 - of torch's AdamW
        self._weights = [weight for group in groups for weight in group["params"]]
        copies = [{**group, "params": [weight.detach().float() for weight in group["params"]]} for group in groups]
        super().__init__(copies, **settings)
        self._masters = [copy for group in self.param_groups for copy in group["params"]]

    def step(self, closure: Any = None) -> None:  # noqa: ANN401, ARG002 - torch's signature
        """Update the copies, and round the weights from them."""
        chunk: list[Any] = []
        for weight, master in zip(self._weights, self._masters, strict=True):
            if weight.grad is not None:
                master.grad = weight.grad.float()
                chunk.append((weight, master))
            if sum(bytes_here(copy) for _, copy in chunk) >= 4 * MASTER_CHUNK:
                self._update(chunk)
                chunk = []
        self._update(chunk)

    def _update(self, chunk: list[Any]) -> None:
        """Update the copies that have a gradient, and free those gradients."""
        super().step()
        for weight, master in chunk:
            weight.data.copy_(master)
            master.grad = None
            # Counted with the states of the optimizer.
            self.state[master].setdefault("master", master)

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's signature
        """Free the gradients of the model's weights."""
        for weight in self._weights:
            weight.grad = None if set_to_none or weight.grad is None else weight.grad.zero_()


class StochasticAdamW(torch.optim.AdamW):  # type: ignore[misc] # its base class has no types
    """AdamW of bf16 weights that rounds each updated weight up or down at random, so that its expectation is the exact update.

    The update is computed in fp32. Both moments have the format of the weights, rounded to nearest, as torch keeps them.

    On a GPU a compiled kernel for each weight, called for some of them at once, reads and writes 14 bytes per weight: weight, gradient and moments once. It is compiled
    here, before training is timed. Without a working compiler, and on a CPU, the same operators run one after the other on parts
    of a weight.
    """

    def __init__(self, groups: list[dict[str, Any]], *, seed: int, compiled: bool | None = None, **settings: Any) -> None:  # noqa: ANN401 - of torch's AdamW
        super().__init__(groups, **settings)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        self._seed = seed
        self._numbers = {weight: number for number, weight in enumerate(weights)}
        self._keys: dict[Any, tuple[Any, ...]] = {}
        self._settings: dict[Any, StepSettings] = {}
        self._compiled: Any = None
        self._spare: list[Any] = []
        """Weights of no model, which fill the last call of the kernel."""
        self.eager_reason: str | None = None
        """Why a GPU updates weights operator by operator; None if it does not."""
        device = weights[0].device if weights else torch.device("cpu")
        if device.type in COMPILING if compiled is None else compiled:
            self._compile(device)

    def _compile(self, device: Any) -> None:  # noqa: ANN401 - a torch device
        """Compile the update on zeros. The kernel is tuned for many weights, and takes any number of rows."""
        try:
            from torch._inductor import config as inductor  # noqa: PLC0415 - it takes seconds, and only a compiler needs it

            # A kernel for each of several weights, of which no two have to be of one size.
            samples = tuple(zeros(SAMPLE_ROWS + number, device) for number in range(TOGETHER))
            keys = tuple(tuple(torch.zeros((), dtype=torch.int32, device=device) for _ in range(2)) for _ in samples)
            kernel = torch.compile(update_together, dynamic=True)
            # So few kernels need no further processes that compile, which would stay.
            with torch.no_grad(), inductor.patch(compile_threads=1):
                kernel(samples, StepSettings(device).tensors, keys)
            self._spare = [(zeros(2, device), bits) for bits in keys[1:]]
        except Exception as error:  # noqa: BLE001 - a missing C compiler, Triton or header each raise another one
            self.eager_reason = describe(error)["message"]
        else:
            self._compiled = kernel

    def step(self, closure: Any = None) -> None:  # noqa: ANN401, ARG002 - torch's signature
        """Update all weights that have a gradient. The host never waits for the device."""
        with torch.no_grad():
            for group in self.param_groups:
                weights = [weight for weight in group["params"] if weight.grad is not None]
                for weight in weights:
                    state = self.state[weight]
                    if not state:
                        state["step"], state["exp_avg"], state["exp_avg_sq"] = 0, torch.zeros_like(weight), torch.zeros_like(weight)
                    state["step"] += 1
                for number, same in groupby(weights, key=lambda weight: self.state[weight]["step"]):
                    self._update(group, number, list(same))

    def _update(self, group: dict[str, Any], number: int, weights: list[Any]) -> None:
        """Update the parts that this process holds of weights of one device, in a step that is the same for all."""
        device = local(weights[0]).device
        if device not in self._settings:
            self._settings[device] = StepSettings(device)
        settings = self._settings[device].of(group, number, self._seed)
        chunk, waiting = ROUNDING_CHUNK if device.type == "cpu" else DEVICE_ROUNDING_CHUNK, []
        for weight in weights:
            state = self.state[weight]
            tensors = [local(each).data.reshape(-1) for each in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"])]
            if weight not in self._keys:
                bits = (key(f"{name} {self._seed} {self._numbers[weight]}") for name in ("place", "order"))
                self._keys[weight] = tuple(torch.full((), value, dtype=torch.int32, device=device) for value in bits)
            keys, count = self._keys[weight], len(tensors[0])
            # The kernel takes two rows or more.
            done = count // ROW * ROW if self._compiled is not None and count >= 2 * ROW else 0
            if done:
                # The kernel would be compiled again for views of tensors with another number of dimensions. `data` is not a view for it.
                whole = tensors if done == count else [tensor[:done] for tensor in tensors]
                waiting.append((tuple(tensor.view(-1, ROW).data for tensor in whole), keys))
            for first in range(done, count, chunk):
                update(tuple(tensor[first : first + chunk] for tensor in tensors), settings, keys, first)
        for first in range(0, len(waiting), TOGETHER):
            some = waiting[first : first + TOGETHER]
            tensors_of, keys_of = zip(*some, *self._spare[: TOGETHER - len(some)], strict=True)
            self._compiled(tensors_of, settings, keys_of)


COMPILING = ("cuda", "xpu")
"""Kinds of device, by torch's name, whose kernels torch compiles. On a CPU the compiler needs longer than a short run."""
ROW = 16
"""Weights in a row of the compiled kernel: with a known divisor of their number, it reads and writes 16 bytes at a time."""
SAMPLE_ROWS = 2**16
"""Rows that the kernel is compiled with. Torch chooses the size of its blocks by them."""


TOGETHER = 4
"""Weights that one call of the compiled kernel updates. On a CPU, 400 weights take 14 ms of the host one by one, 7.7 ms so, and 6.4 ms eight
at a time, which takes twice as long to compile."""


def zeros(rows: int, device: Any) -> tuple[Any, ...]:  # noqa: ANN401 - torch tensors
    """Return a weight of this many rows with its gradient and moments, as the compiled kernel takes them."""
    made = tuple(torch.zeros((rows, ROW), dtype=torch.bfloat16, device=device) for _ in range(4))
    for tensor in made:
        torch._dynamo.mark_static(tensor, 1)  # noqa: SLF001 - it has no other name
    return made


def update_together(weights: tuple[tuple[Any, ...], ...], settings: tuple[Any, ...], keys: tuple[tuple[Any, ...], ...]) -> None:
    """Update several weights with their keys, as `update` does each."""
    for tensors, bits in zip(weights, keys, strict=True):
        update(tensors, settings, bits)


class StepSettings:
    """The numbers of an update as tensors on a device, so that another step or learning rate needs no other kernel and no copy."""

    def __init__(self, device: Any) -> None:  # noqa: ANN401 - a torch device
        self._known: list[float] = [0.0] * 7 + [0]
        kinds = [torch.float32] * 7 + [torch.int32]
        self.tensors = tuple(torch.zeros((), dtype=kind, device=device) for kind in kinds)

    def of(self, group: dict[str, Any], step: int, seed: int) -> tuple[Any, ...]:
        """Return the tensors, with the values of a group and a step: see `update`."""
        first, second = group["betas"]
        rate, decay = group["lr"], group["weight_decay"]
        size, root = rate / (1 - first**step), (1 - second**step) ** 0.5
        values = [1 - rate * decay, 1 - first, second, 1 - second, group["eps"], root, size, key(f"step {seed} {step}")]
        for number, value in enumerate(values):
            if self._known[number] != value:
                # Filling queues a kernel; copying a number from the host would wait.
                self.tensors[number].fill_(value)
        self._known = values
        return self.tensors


def update(tensors: tuple[Any, ...], settings: tuple[Any, ...], keys: tuple[Any, ...], first: int = 0) -> None:
    """Update bf16 weights and both moments in place, by the formula of AdamW (arXiv 1711.05101, algorithm 2) in fp32.

    `tensors` are weights, gradients, first and second moments: contiguous, with one shape. `settings` are those of `StepSettings`, and
    `keys` the two of the weight's random bits, shape () each. `first` is the place of the first number in the whole weight.
    Temporary tensors hold at most 16 bytes per weight.
    """
    weight, gradient, average, square = tensors
    keep, to_average, keep_square, to_square, epsilon, root, size, step_key = settings
    exact, change, mean, spread = weight.float(), gradient.float(), average.float(), square.float()
    mean.lerp_(change, to_average)
    spread.mul_(keep_square).add_(change.square_().mul_(to_square))
    del change
    average.copy_(mean)
    square.copy_(spread)
    exact.mul_(keep).sub_(mean.div_(spread.sqrt_().div_(root).add_(epsilon)).mul_(size))
    del mean, spread
    places = torch.arange(first, first + weight.numel(), dtype=torch.int32, device=weight.device).view(weight.shape)
    weight.copy_(rounded_stochastically(exact, random_bits(places, keys[0], keys[1] ^ step_key)))


def rounded_stochastically(exact: Any, bits: Any) -> Any:  # noqa: ANN401 - torch tensors
    """Return one of the two bf16 neighbours of each number, in fp32, with probabilities that make the expectation exact.

    bf16 keeps the upper 16 bits of an fp32 number. Adding 16 random bits carries into them with a probability equal to the dropped
    part of the fraction, in units of the last kept bit. Numbers that bf16 can represent do not change (arXiv 2006.00489).
    """
    # A GPU's NaN has all bits set: the carry would make it zero, and hide it.
    bits = bits.masked_fill(exact.isnan(), 0)
    bits += exact.view(torch.int32)
    bits &= -(1 << LOW_BITS)
    return bits.view(torch.float32)


def random_bits(places: Any, place_key: Any, order_key: Any) -> Any:  # noqa: ANN401 - torch tensors
    """Return 16 random bits for each place, as int32. `places` is overwritten.

    They are a function of the place and of two keys, so they are the same on every device, compiled or not. Each key selects an order of
    all 32-bit numbers. With one key alone, the bits of another weight or step would be the same ones in another order.
    """
    places ^= place_key
    scrambled(places)
    places ^= order_key
    return scrambled(places).bitwise_and_((1 << LOW_BITS) - 1)


def scrambled(numbers: Any) -> Any:  # noqa: ANN401 - torch tensors
    """Replace int32 numbers by a hash, in place: `lowbias32` of hash-prospector (https://github.com/skeeto/hash-prospector).

    It maps all 32-bit numbers one to one; a changed bit of its input changes each bit of its output with probability 1/2 +- 0.1%.
    """
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)), (16, 1)):
        # The shift of a signed number repeats its sign, which the mask removes.
        numbers ^= (numbers >> shift).bitwise_and_((1 << 32 - shift) - 1)
        if factor != 1:
            numbers *= factor
    return numbers


def key(name: str) -> int:
    """Return an int32 that differs between names at random."""
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=4).digest(), signed=True)


def rounding_seed(plan: Plan) -> int:
    """Return the seed of the random bits: the same for all replicas, so that they stay equal, and another for each shard of the weights."""
    shards = plan.device.strategy in SHARDED_WEIGHTS
    return plan.measurement.seed * plan.device.count + (rank_of_this_process() if shards else 0)
