"""`tunemark doctor` and `tunemark workloads`: this machine, the workloads it can run, what is missing, and a self-test of its devices."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import typer

from tunemark.harness.commands.run import option
from tunemark.harness.plan.resolve import Options, detect, hub, resolve, step_memory
from tunemark.harness.run.run_log import describe, judge
from tunemark.harness.vendors.protocol import DeviceUnavailable, vendor_of
from tunemark.schema import formats
from tunemark.schema.errors import Exit
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.physics.flops import flops_ledger
from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.plan.resolve import missing_card
from tunemark.schema.records.trace import TORCH_NAMES
from tunemark.schema.vocabulary import PACKAGES, Backend, Dtype
from tunemark.terminal import AsJson, print_json, print_table

app = typer.Typer(rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})
REQUIRED = ("torch", "transformers", "peft", "accelerate")
SLOW_STEP_S = 30.0
"""Workloads whose step takes longer are called slow."""
BUSY_SHARE = 0.25
"""Share of the usable cores above which other work disturbs a measurement."""


@app.command()
def doctor(
    *,
    self_test: Annotated[bool, option("--self-test/--no-self-test", "Test torch on each device with matrix products.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show this machine, the workloads it can run, and what is missing.

    Exit codes: 0 ok; 4 a required package is missing, or the self-test of a device failed.

    Examples
    --------
    - `tunemark doctor`
    - `tunemark doctor --no-self-test --json`
    """
    # Read before the self-test, which adds load.
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    facts, machine = FactBase.of_project(), detect()
    complete = all(package in machine.packages for package in REQUIRED)
    tests = self_tests(machine, formats_of(facts, machine)[0]) if self_test and complete else []
    content = report(facts, machine, tests, load) | ({"hub": hub()} if self_test else {})
    if as_json:
        print_json(content)
    else:
        _show(content)
    if not complete or any(test["passed"] is False for test in tests):
        raise typer.Exit(Exit.UNSUPPORTED)


def _show(content: dict[str, Any]) -> None:
    tests = content["self_tests"]
    print_table(("", "this machine"), _machine(content))
    for test in tests:
        verdict = {True: ("works", "green"), False: ("fails", "red"), None: ("not tested", None)}[test["passed"]]
        rate = f"{formats.flop_per_s(test['flop_per_s'])} {test['dtype']}" if test["flop_per_s"] else ""
        problem = "; ".join(filter(None, (test["problem"], test["fix"])))
        _line(*verdict, f"device {test['device']}, {test['name']}: {rate or problem}")
    refused: dict[str, list[str]] = {}
    for row in content["workloads"]:
        verdict, why, step_s = ("can run", "green"), row["title"], row["products_s"] or 0.0
        if row["reason"] is not None:
            refused.setdefault(row["reason"], []).append(row["workload"])
            continue
        if row["too_large"]:
            verdict, why = ("too large", "yellow"), row["memory_problem"]
        elif step_s > SLOW_STEP_S:
            # The self-test is too short for more digits than whole hours.
            takes = f"{step_s / formats.HOUR_S:,.0f} h" if step_s >= formats.HOUR_S else formats.estimated_duration(step_s)
            verdict = ("can run, slow", "yellow")
            why = f"the matrix products of a step take about {takes} at the {tests[0]['dtype']} rate of the self-test"
        _line(*verdict, f"{row['workload']}: {why}")
    for reason, names in refused.items():
        _line("cannot run", "red", f"{', '.join(names)}: {reason}")
    if missing := ", ".join(content["missing_required"]):
        _line("missing", "red", f"{missing}; run `pip install 'tunemark[run]'`, or `make setup-run` in a checkout")


def _line(verdict: str, colour: str | None, text: str) -> None:
    typer.echo(f"  {typer.style(f'{verdict:13}', fg=colour)} {text}")


def _machine(content: dict[str, Any]) -> list[tuple[str, str]]:
    machine, load, usable = content["machine"], content["load"], content["machine"]["cpu_usable_cores"]
    swap = f"{formats.gib(machine['swap_bytes'])} of swap" if machine["swap_bytes"] else "no swap"
    other = "unknown: this system reports no load"
    if load is not None:
        other = f"{load:.1f} runnable threads on {usable:g} cores in the last minute"
        busy = load > BUSY_SHARE * usable
        other = f"{other}: stop other programs before you measure" if busy else f"little: {other}"
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    rows = {
        "device": f"{len(machine['devices'])} x {machine['devices'][0]['name']} ({machine['backend']}: {machine['backend_reason']})",
        "catalogue": content["catalogue"],
        "compute": ", ".join(machine["compute_dtypes"]),
        "host": f"{machine['cpu']}, {usable} of {machine['cpu_logical_cores']} hardware threads, {formats.gib(machine['memory_bytes'])}, {swap}",
        "other work": other,
        "disk": f"{formats.gib(machine['free_disk_bytes'])} free here",
        "software": f"{machine['os']}, Python {machine['python']}, {packages}",
        "not installed": ", ".join(content["missing_optional"]) or "nothing",
        "model hub": f"{content['hub']}; used only for pretrained weights and hub data",
    }
    return list(rows.items())


@app.command()
def workloads(*, as_json: AsJson = False) -> None:
    """List the standard workloads.

    Examples
    --------
    - `tunemark workloads`
    - `tunemark workloads --json`
    """
    cards = FactBase.of_project().workloads
    if as_json:
        print_json([card.model_dump(mode="json") for card in cards.values()])
        return
    rows = [
        (
            card.key,
            card.tier,
            card.model,
            card.method.value,
            f"{card.data.sequence_length} x {card.batch.micro_batch * card.batch.gradient_accumulation}",
            card.title,
        )
        for card in cards.values()
    ]
    print_table(("workload", "tier", "model", "method", "tokens x rows", "title"), rows)


def runnable(facts: FactBase, machine: Machine, tests: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return a row per workload: the reason why this machine cannot run it, or None, and the bytes that a step needs and has.

    The memory model predicts `needed_bytes`, or None. `memory_bytes` is that of a device, or a process's share of host memory, or
    host memory if offloaded states do not fit there. `memory_problem` names both if the step does not fit.
    `products_s` is the time of a step's FLOPs at the rate of the slowest self-test, in its number format; None without one.
    """
    rows = []
    rate = min((test["flop_per_s"] for test in tests if test["flop_per_s"]), default=None)
    for key, workload in facts.workloads.items():
        resolved, products_s = resolve(key, facts, machine, Options()), None
        plan, card = resolved.plan, facts.model(resolved.plan.model.key)
        memory = step_memory(plan, card, machine)
        if rate and not shape_problem(plan, card):
            products_s = flops_ledger(shape_of_plan(plan, card)).executed * plan.batch.gradient_accumulation / rate
        row: dict[str, Any] = {"workload": key, "title": workload.title, "reason": resolved.unsupported, "products_s": products_s}
        sizes = {"needed_bytes": memory.needed, "memory_bytes": memory.has}
        rows.append(row | sizes | {"too_large": memory.too_large, "memory_problem": memory.words if memory.too_large else None})
    return rows


def formats_of(facts: FactBase, machine: Machine) -> tuple[Dtype, ...]:
    """Return the number formats of the devices' matrix units, fastest first."""
    card = facts.recognise_device(machine.devices[0].name, machine.backend)
    generation = machine.family.generation(machine.devices[0].target, card.architecture if card else None)
    return generation.formats(machine.family.formats) if generation else machine.family.formats


def report(facts: FactBase, machine: Machine, tests: Sequence[dict[str, Any]] = (), load: float | None = None) -> dict[str, Any]:
    """Return the report as plain data: the machine, its load in runnable threads, missing packages, hub access, self-tests, workloads."""
    card = facts.recognise_device(machine.devices[0].name, machine.backend)
    catalogue = missing_card(machine.devices[0].name, machine.backend)
    if card:
        peaks = ", ".join(f"{dtype.value} {peak:g}" for dtype, peak in card.peak_tflops.items())
        # The peaks of a CPU are for a clock and a number of cores.
        cpu = f" with {card.cpu.cores} cores {card.cpu.clock_words()}" if card.cpu and peaks else ""
        catalogue = f"{card.key}: {f'dense peak in TFLOP/s: {peaks}' if peaks else 'its peak is unknown'}{cpu}"
    return {
        "machine": machine.model_dump(exclude={"family", "runtime"}) | {"compute_dtypes": formats_of(facts, machine)},
        "accelerator": card.key if card else None,
        "catalogue": catalogue,
        "load": load,
        "missing_required": [package for package in REQUIRED if package not in machine.packages],
        "missing_optional": [package for package in PACKAGES if package not in machine.packages and package not in REQUIRED],
        "hub": "not tested",
        "self_tests": list(tests),
        "workloads": runnable(facts, machine, tests),
    }


# The self-test: the matrix rate, as a run probes it, in a separate process per device, and the fix if it fails.
# The process multiplies square matrices, compares one row with the CPU's result, and prints its answer as JSON. A crash or a hang is an
# answer too.

MODULE = "tunemark.harness.commands.doctor"
LIMIT_S = 180.0
"""For imports on a cold disk, and for the first kernels."""
TOLERANCE = {Dtype.FP32: 1e-4, Dtype.TF32: 1e-2, Dtype.BF16: 5e-2, Dtype.FP16: 1e-2}
"""Largest difference from the CPU's fp32 result, relative to its spread, that rounding may cause."""
WRONG = "install a release of torch that supports this device; if the error remains, the device may be faulty"


def self_tests(machine: Machine, dtype: Dtype) -> list[dict[str, Any]]:
    """Test all visible devices at the same time; return a row for each, in their order.

    `passed` is None for a device that was not tested, with the reason in `problem`. `flop_per_s` is the rate of products.
    """
    cores = min(machine.cpu_usable_cores, machine.cpu_physical_cores or machine.cpu_usable_cores)

    def test(place: int) -> dict[str, Any]:
        row = {"device": place, "name": machine.devices[place].name, "dtype": dtype}
        row |= dict.fromkeys(("passed", "flop_per_s", "problem", "fix"))
        if vendor_of(machine.backend).probe_size is None:
            return row | {"problem": "not tested: its compiler would need minutes for the first product"}
        answer = ask_process(machine.backend, place, dtype, cores)
        return row | {"passed": "problem" not in answer} | answer

    with ThreadPoolExecutor(len(machine.devices)) as pool:
        return list(pool.map(test, range(len(machine.devices))))


def ask_process(backend: Backend, place: int, dtype: Dtype, threads: int) -> dict[str, Any]:
    """Run the self-test in a process; return its `flop_per_s`, or `problem` and `fix`."""
    command = [sys.executable, "-m", MODULE, backend.value, str(place), dtype.value, str(threads)]
    variables = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False, env=variables)  # noqa: S603 - our own module
    except subprocess.TimeoutExpired:
        return {"problem": f"no answer after {LIMIT_S:g} s", "fix": "end other processes on the device, or restart its driver"}
    lines = done.stdout.decode(errors="replace").splitlines()
    if lines and lines[-1].startswith("{"):
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    output = done.stderr.decode(errors="replace").strip()
    meaning = judge(output)
    last = output.splitlines()[-1][:300] if output else "it printed nothing"
    fix = meaning[1] if meaning else "reinstall torch for this device, and its driver"
    return {"problem": f"the process ended with code {done.returncode}: {last}", "fix": fix}


def main() -> None:
    """Test the device that the arguments name, in the process of its own, and print the answer."""
    backend, place, dtype, threads = sys.argv[1:]
    try:
        answer = work(Backend(backend), int(place), Dtype(dtype), int(threads))
    except DeviceUnavailable as error:
        # Its message ends with its own fix.
        answer = {"problem": str(error)}
    except BaseException as error:  # noqa: BLE001 - any failure is an answer
        found = describe(error)
        answer = {"problem": found["message"], "fix": found["fix"]}
    sys.stdout.write(json.dumps(answer) + "\n")


def work(backend: Backend, place: int, dtype: Dtype, threads: int) -> dict[str, Any]:
    """Multiply matrices, and return the rate, or the problem if a result is wrong."""
    import torch  # noqa: PLC0415 - only the process needs it

    from tunemark.harness.worker.loop import matrix_rate  # noqa: PLC0415

    vendor = vendor_of(backend)
    device, size = vendor.device.open(threads, place), vendor.probe_size or 1
    torch.set_float32_matmul_precision("high" if dtype is Dtype.TF32 else "highest")
    own = torch.Generator().manual_seed(0)
    # On the host, so that the CPU has the same numbers.
    hosts = [torch.randn(size, size, generator=own).to(getattr(torch, TORCH_NAMES[dtype])) for _ in range(2)]
    left, right = (host.to(device.torch_name) for host in hosts)
    expected = hosts[0][:1].float() @ hosts[1].float()
    difference = float(((left @ right)[:1].cpu().float() - expected).abs().max() / expected.std())
    if not difference <= TOLERANCE[dtype]:
        return {"problem": f"a matrix product differs from the CPU's by {difference:.1e} of its spread", "fix": WRONG}
    rate = matrix_rate(device, backend, dtype)
    return {"flop_per_s": rate["flop_per_s"]} if rate else {"problem": "no memory for two matrices", "fix": "end other processes there"}


if __name__ == "__main__":
    main()
