"""A warm worker: a process that has imported the libraries, and forks a worker for each try of a series.

Importing takes longer than a short run. A forked worker is a process of its own: the memory, the patches of libraries, the failure
and the limits of a try end with it, and the warm process goes on. Runs that are ranked start in fresh processes.

The warm process reads one request per line on standard input, and answers with the number of the worker and then with its end.
"""

import contextlib
import gc
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from tunemark.harness.plan.resolve import Resolved
from tunemark.harness.run.process import Ended, FreshWorker, WorkerProcess, environment, run_environment, worker_environment
from tunemark.harness.run.run_log import MAXRSS_UNIT, OUTPUT_FILE
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend

READY_WITHIN_S = 180.0
FORKS = (Backend.CPU, Backend.CUDA, Backend.ROCM)
"""Device families whose libraries can be imported before a fork and opened after it."""
IMPORTED = (
    *("accelerate", "peft", "transformers", "torch"),
    *(f"tunemark.harness.worker.{name}" for name in ("data", "engines", "entry", "gates", "levers", "loop", "models")),
)
ONLY_CHECK_DEVICES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Libraries ask at import if there is a device; torch must answer without opening it, since an open device cannot be forked.
See `capabilities_from_child` for what else they ask."""


def cold_reason(plan: Plan) -> str | None:
    """Return the reason why a plan needs a fresh process, or None if it can run in a forked one."""
    if sys.platform != "linux":
        return f"processes are not forked on {sys.platform}"
    if plan.device.backend not in FORKS:
        return f"the libraries of {plan.device.backend.value} devices cannot be forked"
    if plan.device.count > 1:
        return "several processes are started by a launcher"
    return "its compile caches must be new" if plan.measurement.cold else None


ENTRY_BYTES = 8
"""Size of an entry of /proc/self/pagemap."""
MAP_FIELDS = 5
"""Fields of a line of /proc/self/maps before the name of the file."""
PRESENT_FILE_PAGE = 0b1010_0000
"""Bits 63 and 61 of an entry: the page is present, and of a file."""
POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14."""


# In the process of the command


class WarmWorker:
    """Starts workers for tries. The warm process begins with the first one, and begins again after it was lost."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._unusable: str | None = None
        """Why this machine cannot fork workers; found at the first start."""

    def spawn(self, resolved: Resolved, folder: Path) -> WorkerProcess:
        """Start the worker of a plan, forked if possible, else in a fresh process."""
        if cold_reason(resolved.plan) is None and self._unusable is None:
            server = self._running(resolved.plan)
            if server is not None:
                variables = worker_environment(resolved.plan, folder)
                return ForkedWorker(server, {"folder": str(folder), "limit": resolved.limit_memory_bytes, "environment": variables})
        return FreshWorker(resolved, folder)

    def give_up(self, reason: str) -> None:
        """End the warm process for good: all further workers are fresh."""
        self.close()
        self._unusable = reason
        _say_unusable(reason)

    def close(self) -> None:
        """End the warm process."""
        server, self._server = self._server, None
        if server is not None:
            _pipes(server)[0].close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(timeout=2)
            server.kill()
            server.wait()
            _pipes(server)[1].close()

    def _running(self, plan: Plan) -> "subprocess.Popen[bytes] | None":
        """Return the warm process once it is ready; None if it cannot serve on this machine, with a message that says why."""
        if self._server is not None and self._server.poll() is None:
            return self._server
        self.close()
        server = self._server = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # An interactive Ctrl-C reaches only the command, which ends the worker of the try.
            start_new_session=True,
            env=warm_environment(plan),
        )
        _ask(server, {"backend": plan.device.backend.value})
        answer = _answer(server, READY_WITHIN_S)
        self._unusable = "it did not start" if answer is None else answer["unusable"]
        if self._unusable is None:
            return server
        self.give_up(self._unusable)
        return None


def warm_environment(plan: Plan) -> dict[str, str]:
    """Return the environment of the warm process: with the settings of the device family, which libraries may read at import."""
    only_check = ONLY_CHECK_DEVICES if plan.device.backend is not Backend.CPU else {}
    return environment(plan.device) | run_environment(plan, Path()) | only_check


def _say_unusable(reason: str) -> None:
    from tunemark.harness.run.show import say  # noqa: PLC0415 - the warm process shows nothing, and its memory is measured

    say(f"no warm worker: {reason}; each try starts a process")


class ForkedWorker:
    """A worker that a warm process has forked."""

    warm = True

    def __init__(self, server: "subprocess.Popen[bytes]", request: dict[str, Any]) -> None:
        self._server, self._ended = server, None
        _ask(server, request)
        answer = _answer(server, READY_WITHIN_S)
        if answer is None:
            msg = "the warm worker was lost before it could fork"
            raise OSError(msg)
        self.pid: int = answer["pid"]

    def poll(self) -> Ended | None:
        """Return the worker's end, or None while it runs. If the warm process was lost, the worker is ended too."""
        if select.select([_pipes(self._server)[1]], [], [], 0)[0]:
            answer = _answer(self._server, 0.0)
            if answer is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
                return Ended(-signal.SIGKILL, 0.0, 0.0, 0)
            return Ended(*answer["ended"])
        return None


def _pipes(server: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    if server.stdin is None or server.stdout is None:
        msg = "the warm worker was started without pipes"
        raise ValueError(msg)
    return server.stdin, server.stdout


def _ask(server: "subprocess.Popen[bytes]", request: dict[str, Any]) -> None:
    # A server that was lost does not answer, which is handled there.
    with contextlib.suppress(BrokenPipeError):
        _pipes(server)[0].write(json.dumps(request).encode() + b"\n")


def _answer(server: "subprocess.Popen[bytes]", within_s: float) -> Any:  # noqa: ANN401 - any JSON value
    """Return the next answer, or None if the warm process has ended or does not answer in time."""
    answers = _pipes(server)[1]
    line = answers.readline() if select.select([answers], [], [], within_s)[0] else b""
    return json.loads(line) if line.endswith(b"\n") else None


# In the warm process


def serve() -> None:
    """Import the libraries, then fork a worker for each request until the command has closed the pipe."""
    answers = os.dup(1)
    # What libraries print must not be read as an answer.
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def answer(content: dict[str, Any]) -> None:
        os.write(answers, json.dumps(content).encode() + b"\n")

    requests = iter(sys.stdin.buffer.readline, b"")
    answer({"unusable": unusable_reason(Backend(json.loads(next(requests))["backend"]))})
    loaded = resident_file_pages()
    # The collector would touch, and so copy, the pages of all imported objects in each worker.
    gc.freeze()
    for line in requests:
        pid = os.fork()
        if not pid:
            os.close(answers)
            populate(loaded)
            become_worker(json.loads(line))
        answer({"pid": pid})
        _, status, usage = os.wait4(pid, 0)
        answer({"ended": [os.waitstatus_to_exitcode(status), usage.ru_utime, usage.ru_stime, usage.ru_maxrss * MAXRSS_UNIT]})


def unusable_reason(backend: Backend) -> str | None:
    """Import the libraries. Return the reason why their processes cannot be forked, or None."""
    import importlib  # noqa: PLC0415 - only in the warm process
    import threading  # noqa: PLC0415

    try:
        with contextlib.nullcontext() if backend is Backend.CPU else capabilities_from_child():
            for name in IMPORTED:
                importlib.import_module(name)
    except ImportError as error:
        return f"a library could not be imported ({error})"
    if threading.active_count() > 1:
        return "a library has started threads, which a fork would lose"
    if backend is Backend.CPU:
        return None
    import torch  # noqa: PLC0415

    pid = os.fork()
    if not pid:
        # True in a child whose parent has opened the device.
        os._exit(int(torch.cuda._is_in_bad_fork()))  # noqa: SLF001 - torch's own check before it opens a device
    return "a library has opened the device at import" if os.waitpid(pid, 0)[1] else None


@contextlib.contextmanager
def capabilities_from_child() -> Iterator[None]:
    """Let `torch.cuda.get_device_capability` answer without opening the device in this process.

    bitsandbytes and torchao, which peft imports where they are installed, ask for compute capabilities at import. A child opens the
    devices for the answers, and ends.
    """
    import torch  # noqa: PLC0415 - only in the warm process

    answers, question = os.pipe()
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            found = [torch.cuda.get_device_capability(number) for number in range(torch.cuda.device_count())]
            os.write(question, json.dumps(found).encode())
        os._exit(0)
    os.close(question)
    with os.fdopen(answers, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    known = [tuple(capability) for capability in json.loads(content or b"[]")]

    def answer(device: Any = None) -> tuple[int, int]:  # noqa: ANN401 - torch's signature: a number, a name or an object
        device = torch.device(device) if isinstance(device, str) else device
        # The context manager `torch.cuda.device` holds its number in `idx`.
        major, minor = known[getattr(device, "idx", getattr(device, "index", device)) or 0]
        return major, minor

    original = torch.cuda.get_device_capability
    # Without answers a library that asks opens the device, and each try starts a process.
    torch.cuda.get_device_capability = answer if known else original
    try:
        yield
    finally:
        torch.cuda.get_device_capability = original


def resident_file_pages() -> list[tuple[int, int]]:
    """Return address and length of the pages of files, such as libraries, that this process has in memory.

    A fork does not copy them, so the resident memory of a forked worker would lack those that importing has read. Empty where the
    system does not list them.
    """
    page, ranges = os.sysconf("SC_PAGE_SIZE"), list[tuple[int, int]]()
    with contextlib.suppress(OSError), Path("/proc/self/pagemap").open("rb", buffering=0) as entries:
        for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            addresses, *_, name = line.split(maxsplit=5) if len(line.split(maxsplit=5)) > MAP_FIELDS else (line, "")
            if not name.startswith("/"):
                continue
            first, last = (int(address, 16) for address in addresses.split("-"))
            entries.seek(first // page * ENTRY_BYTES)
            flags = entries.read((last - first) // page * ENTRY_BYTES)
            for number in range(len(flags) // ENTRY_BYTES):
                # The highest byte of an entry: present, and a page of a file or shared memory.
                if flags[number * ENTRY_BYTES + ENTRY_BYTES - 1] & PRESENT_FILE_PAGE != PRESENT_FILE_PAGE:
                    continue
                address = first + number * page
                if ranges and sum(ranges[-1]) == address:
                    ranges[-1] = ranges[-1][0], ranges[-1][1] + page
                else:
                    ranges.append((address, page))
    return ranges


def populate(ranges: list[tuple[int, int]]) -> None:
    """Map pages of files that are in memory into this process."""
    import ctypes  # noqa: PLC0415 - only in a forked worker

    advise = ctypes.CDLL(None).madvise
    for address, length in ranges:
        advise(ctypes.c_void_p(address), ctypes.c_size_t(length), POPULATE_READ)


def become_worker(request: dict[str, Any]) -> NoReturn:
    """Turn a forked process into a worker: its own session, output, environment and memory limit."""
    import resource  # noqa: PLC0415 - only in a forked worker

    from tunemark.harness.worker import entry  # noqa: PLC0415

    code = 1
    try:
        os.setsid()
        output = os.open(Path(request["folder"]) / OUTPUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(file, number)
        os.environ.update(request["environment"])
        if request["limit"] is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (request["limit"], request["limit"]))
        sys.argv = [entry.__name__, request["folder"]]
        code = entry.main()
    except BaseException:  # noqa: BLE001 - the parent reads it from the output of the run
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
