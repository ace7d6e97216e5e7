"""Factories that default what does not matter to a test."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import cache
from itertools import chain, repeat
from pathlib import Path

import psutil
from filelock import FileLock

from tunemark.collector.gate.check import judge
from tunemark.harness.plan.resolve import Options, Order, resolve
from tunemark.harness.vendors.protocol import vendor_of
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.plan.capabilities import Machine
from tunemark.schema.plan.resolve import WHY
from tunemark.schema.records.base import flattened
from tunemark.schema.records.reading import read_record
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend

ROOT = Path(__file__).parents[2]
FACTS = FactBase(ROOT / "data")
LEVERS = ("gradient_checkpointing", "loss", "fused_kernels", "compile", "compile_mode", "sdpa_kernel", "frozen_weights", "fp8_training")
WARM_START = Path(__file__).with_name("warm_start.py")


def make_machine(**changes):
    plain = {"backend": Backend.CPU, "backend_reason": "no accelerator was found", "os": "Linux 6.1 x86_64", "python": "3.11.7"}
    plain |= {"devices": (DeviceFacts(name="Plain CPU", memory_bytes=8 * 2**30),), "packages": {"torch": "2.13.0"}, "cpu": "Plain CPU"}
    plain |= {"cpu_physical_cores": 2, "cpu_logical_cores": 4, "cpu_usable_cores": 4, "memory_bytes": 8 * 2**30}
    plain |= {"free_disk_bytes": 100 * 2**30} | changes
    formats, target = plain.pop("compute_dtypes", None), plain.pop("target", None)
    family = vendor_of(plain["backend"]).family
    plain["family"] = family.model_copy(update={"formats": formats}) if formats else family
    if target:
        plain["devices"] = tuple(device.model_copy(update={"target": target}) for device in plain["devices"])
    return Machine(**plain)


def gpus(name="A GPU that no card knows", count=1, *, gib=None, backend=Backend.CUDA, **changes):
    """Return a machine with some devices of one name, which are GPUs unless another family is named."""
    device = DeviceFacts(name=name, memory_bytes=gib and int(gib * 2**30))
    return make_machine(backend=backend, devices=(device,) * count, **changes)


def planned(workload, *settings, machine=None, **options):
    """Return what a workload resolves to with settings for `--set` and other options, on a plain CPU unless another machine is given."""
    return resolve(workload, FACTS, machine or make_machine(), Options(overrides=settings, **options))


@cache
def warm_process():
    """Return the address of the process that has imported the libraries (warm_start.py): one for all workers of the session."""
    session, owner = os.environ.get("PYTEST_XDIST_TESTRUNUID"), os.getppid()
    if session is None:
        session, owner = str(os.getpid()), os.getpid()
    folder = Path(tempfile.gettempdir()) / f"warm-{session}"
    address = folder / "socket"
    with FileLock(f"{folder}.lock"):
        if not address.exists():
            folder.mkdir(exist_ok=True)
            with (folder / "errors").open("w") as errors:
                process = subprocess.Popen([sys.executable, str(WARM_START), "serve", str(address), str(owner)], stderr=errors)
            while not address.exists():
                assert process.poll() is None, (folder / "errors").read_text()
                time.sleep(0.05)
    return str(address)


def warm(module, *arguments):
    """Return the command that runs a module in a process forked from the warm one."""
    return [sys.executable, "-S", str(WARM_START), "ask", warm_process(), module, *map(str, arguments)]


def cold(module, *arguments):
    """Return the command that runs a module as a person does."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def ran(command, env=None, timeout=240, **options):
    """Run a command to its end and return the finished process with its output as text; `env` is added to the environment."""
    words, env = [*map(str, command)], {**os.environ, **(env or {})}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout, env=env, **options)


def tunemark(*arguments, start=warm, env=None, **options):
    """Run the command line in a process of its own, forked from a warm one or started `cold`, and return the finished process."""
    return ran(start("tunemark", *arguments), env=env, **options)


def run_of(out, workload, *settings, start=warm, env=None, **options):
    """Run a workload with settings for `--set` and options such as `steps=3`; return the finished process and its one submission."""
    words = [word for each in settings for word in ("--set", each)]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", value]
    done = tunemark("run", workload, *words, "--out", out, start=start, env=env)
    return done, only_submission(out)


def trained_on(plan, card, folder=Path()):
    """Return the model of a plan on the CPU, and its micro-batches."""
    from tunemark.harness.vendors.cpu import Cpu
    from tunemark.harness.worker.data import load_samples, micro_batches
    from tunemark.harness.worker.models import build_model

    model = build_model(plan, card, None, None, folder, Cpu())
    return model, micro_batches(plan, load_samples(plan, card.vocabulary, None, None).training)


def worked(resolved, facts, device, folder):
    """Run the worker of a plan in this process on a scripted device; return its log."""
    from tunemark.harness.run.run_log import LogReader, LogWriter
    from tunemark.harness.worker.entry import run

    log = LogWriter(folder / "log.jsonl", spawned_at_s=0.0)
    log.event("phase", phase="import", at_s=0.0)
    run(Order(resolved=resolved, machine=make_machine(), card=facts.model("tiny-llama")), device, log, folder)
    log.event("end")
    return LogReader(folder / "log.jsonl").read()


def finished(log, **changes):
    """Return a worker that ended by itself after this log."""
    from tunemark.harness.run.record import refused_run

    wall_s = log.steps[-1]["completed_at_s"] + 1.0 if log.steps else 2.0
    return replace(refused_run("-"), **{"log": log, "wall_s": wall_s, "user_s": 1.0, "max_rss_bytes": 10**9, **changes})


def writer_of(temporary, log="log.jsonl"):
    """Return the process that writes a log of the one run with this temporary folder."""
    (path,) = temporary.glob(f"tunemark-*/{log}")
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(file.path == str(path) and file.mode == "a" for file in process.open_files()):
                return process
    raise AssertionError(f"no process writes {path}")


def only_submission(folder):
    """Return the one submission that a run has left in a folder, read and validated as the collector does."""
    (path,) = Path(folder).rglob("*.json")
    return read_record(path.read_bytes())


def problems_of(folder, facts):
    """Return the problems for which `tunemark validate` refuses the one submission of a folder, but for libraries loaded beforehand."""
    (path,) = Path(folder).rglob("*.json")
    verdict = judge(path, facts)
    return [problem for problem in (*verdict.problems, *verdict.outdated) if "importing the libraries" not in problem.fix]


def run_json(done):
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


class FakeMonitor:
    """A scripted monitor: reads its script line by line and repeats the last line, so that every summary is known beforehand."""

    tool = "the script"

    def __init__(self, script, pids=None):
        self._script = chain(script, repeat(script[-1])) if script else repeat(())
        self._pids = None if pids is None else tuple(pids)
        self.closed = False

    def read(self):
        return next(self._script)

    def processes(self):
        return self._pids

    def why(self, _place, figure):
        return f"{self.tool} has no {figure}"

    def close(self):
        self.closed = True


def changed_settings(plan, card):
    """Return the settings of a card that its plan has otherwise, as card and plan both hold them, with both values; `auto` fits any."""
    stated, planned = (dict(flattened(content.model_dump(mode="json"))) for content in (card, plan))
    places = {"method": "method", "model": "model.key", "compute": "precision.compute"}
    places |= {name: f"model.{name}" for name in ("task", "labels", "weights", "attention", *LEVERS)}
    places |= {field: field for field in stated if field.split(".")[0] in {"lora", "quantisation", "data", "batch", "optimizer"}}
    places |= {f"devices.{name}": f"device.{name}" for name in ("strategy", "offload")}
    places |= {"devices.count": "device.count"} if card.devices.count > 1 else {}
    if plan.needless_rounding:
        # What is not needed is left out, which is no change.
        planned["optimizer.stochastic_rounding"] = planned["optimizer.stochastic_rounding"] or stated["optimizer.stochastic_rounding"]
    if planned["model.attention"] not in WHY["packed_attention"]:
        stated["attention"] = stated["attention"].replace("auto", "a kernel for packed rows")
    pairs = {field: (stated[field], planned.get(place)) for field, place in places.items()}
    return {field: (before, after) for field, (before, after) in pairs.items() if before not in ("auto", after)}
