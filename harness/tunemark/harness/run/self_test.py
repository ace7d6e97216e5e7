"""Self-test of torch on each device: a few seconds in a separate process per device, and the fix if it fails.

The process multiplies square matrices forward and backward in the format of the run, compares one row with the CPU's result,
and prints its answer as JSON. A crash, a hang or a missing package is an answer too.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from tunemark.harness.plan.machine import Machine
from tunemark.harness.run.run_outcome import describe, judge
from tunemark.harness.vendors.protocol import DeviceUnavailable, vendor_of
from tunemark.schema.vocabulary import Backend, Dtype

MODULE = "tunemark.harness.run.self_test"
WORK_S = 5.0
LIMIT_S = 180.0
"""For imports on a cold disk, and for the first kernels."""
PRODUCTS = 3
"""One matrix product forward and two backward."""
TOLERANCE = {Dtype.FP32: 1e-4, Dtype.TF32: 1e-2, Dtype.BF16: 5e-2, Dtype.FP16: 1e-2}
"""Largest difference from the CPU's fp32 result, relative to its spread, that rounding may cause."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The answer of one device."""

    device: int
    """Place among the visible devices."""
    name: str
    passed: bool | None
    """None if the device was not tested, with the reason in `problem`."""
    dtype: str
    """Number format of the products."""
    flop_per_s: float | None = None
    """Rate of the products, with their backward pass."""
    seconds: float | None = None
    """Time of the products."""
    problem: str | None = None
    fix: str | None = None


Answer = dict[str, Any]
"""`flop_per_s` and `seconds`, or `message` and `fix`."""
Ask = Callable[[Backend, int, Dtype, int], Answer]
"""Test the device at a place of a family in a number format, with this many CPU threads. A test has a scripted one."""


def self_tests(machine: Machine, dtype: Dtype, ask: Ask | None = None) -> list[SelfTest]:
    """Test all visible devices at the same time; return one answer per device, in their order."""
    ask = ask or ask_process
    cores = min(machine.cpu_usable_cores, machine.cpu_physical_cores or machine.cpu_usable_cores)

    def test(place: int) -> SelfTest:
        here = partial(SelfTest, place, machine.devices[place].name, dtype=dtype.value)
        if vendor_of(machine.backend).probe_size is None:
            return here(passed=None, problem="not tested: its compiler would need minutes for the first product")
        answer = ask(machine.backend, place, dtype, cores)
        if "message" in answer:
            return here(passed=False, problem=answer["message"], fix=answer["fix"])
        return here(passed=True, flop_per_s=answer["flop_per_s"], seconds=answer["seconds"])

    with ThreadPoolExecutor(len(machine.devices)) as pool:
        return list(pool.map(test, range(len(machine.devices))))


def ask_process(backend: Backend, place: int, dtype: Dtype, threads: int) -> Answer:
    """Run the self-test in a process and return its answer, or the cause if it gives none."""
    command = [sys.executable, "-m", MODULE, backend.value, str(place), dtype.value, str(threads)]
    variables = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, env=variables)  # noqa: S603 - our own module
    except subprocess.TimeoutExpired:
        return {"message": f"no answer after {LIMIT_S:g} s", "fix": "end other processes on the device, or restart its driver"}
    lines = done.stdout.decode(errors="replace").splitlines()
    if lines and lines[-1].startswith("{"):
        answer: Answer = json.loads(lines[-1])
        return answer
    output = done.stderr.decode(errors="replace").strip()
    meaning = judge(output)
    last = output.splitlines()[-1][:300] if output else "it printed nothing"
    fix = meaning[1] if meaning else "reinstall torch for this device, and its driver"
    return {"message": f"the process ended with code {done.returncode}: {last}", "fix": fix}


# In the process


def main() -> None:
    """Test the device that the arguments name, and print the answer."""
    backend, place, dtype, threads = sys.argv[1:]
    try:
        answer = work(Backend(backend), int(place), Dtype(dtype), int(threads), WORK_S)
    except BaseException as error:  # noqa: BLE001 - any failure is an answer
        found = describe(error)
        # The message of a device that cannot be used ends with its own fix.
        known = isinstance(error, DeviceUnavailable)
        answer = {"message": str(error) if known else found["message"], "fix": None if known else found["fix"]}
    sys.stdout.write(json.dumps(answer) + "\n")


def work(backend: Backend, place: int, dtype: Dtype, threads: int, seconds: float) -> Answer:
    """Multiply matrices forward and backward for some seconds, and return the rate. Raise an error if a result is wrong."""
    import torch  # noqa: PLC0415 - only the process needs it

    vendor = vendor_of(backend)
    device, size = vendor.device.open(threads, place), vendor.probe_size or 1
    torch.set_float32_matmul_precision("high" if dtype is Dtype.TF32 else "highest")
    kind = {Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16}.get(dtype, torch.float32)
    own = torch.Generator().manual_seed(0)
    # On the host, so that the CPU has the same numbers.
    hosts = [torch.randn(size, size, generator=own).to(kind) for _ in range(2)]
    left, right = (host.to(device.torch_name, copy=True).requires_grad_() for host in hosts)
    expected = hosts[0][:1].float() @ hosts[1].float()
    difference = float(((left @ right)[:1].detach().cpu().float() - expected).abs().max() / expected.std())
    if not difference <= TOLERANCE[dtype]:
        return {"message": f"a matrix product differs from the CPU's by {difference:.1e} of its spread", "fix": WRONG}
    rounds, started_s = 0, time.monotonic()
    while time.monotonic() - started_s < seconds:
        left.grad = right.grad = None
        (left @ right).float().square().mean().backward()
        device.synchronise()
        rounds += 1
    elapsed_s = time.monotonic() - started_s
    if not all(bool(torch.isfinite(matrix.grad).all()) and bool(torch.count_nonzero(matrix.grad)) for matrix in (left, right)):
        return {"message": "a backward pass gives gradients that are zero or not finite", "fix": WRONG}
    return {"flop_per_s": PRODUCTS * rounds * 2 * size**3 / elapsed_s, "seconds": elapsed_s}


WRONG = "install a release of torch that supports this device; if the error remains, the device may be faulty"


if __name__ == "__main__":
    main()
