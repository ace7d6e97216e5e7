"""Run modules in processes forked from one that has imported the libraries: importing them takes longer than a short run.

A run still has a process of its own, its worker another one, and torchrun starts several of them where the plan says so: each has
its own memory, log, signals and exit code. Only start-up is not tested: interpreters, command lines and imports, and variables
that libraries read when they are imported.

`serve SOCKET OWNER` is the warm process, which lasts as long as its owner. `ask SOCKET MODULE ARGUMENTS` asks it to run a module, gives it
its own environment, folder and files, forwards signals, and ends with the exit code.
"""

import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

IMPORTS = (
    "deepspeed",
    "peft",
    "torch.distributed.run",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "tunemark.harness.commands.run",
    "tunemark.harness.run.launch",
    "tunemark.harness.worker.engines",
    "tunemark.harness.worker.entry",
    "tunemark.harness.worker.loop",
)
OPTIONAL = {"deepspeed"}
"""Libraries that are not in every environment. Accelerate imports DeepSpeed in every run where it is installed."""
MODULES = {"tunemark.harness.worker.entry", "torch.distributed.run", "accelerate.commands.launch", "sharding_process"}
"""Modules that forked processes start by forking again. Every other command starts as usual."""
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ask(address, arguments):
    """Run `MODULE ARGUMENTS` with this process's environment, folder and files; return the exit code."""
    with socket.socket(socket.AF_UNIX) as warm:
        warm.connect(address)
        socket.send_fds(warm, [b"."], [0, 1, 2])
        warm.sendall(json.dumps([arguments, dict(os.environ), str(Path.cwd())]).encode())
        warm.shutdown(socket.SHUT_WR)
        with warm.makefile() as answers:
            pid = int(next(answers))
            for number in FORWARDED:
                signal.signal(number, lambda sent, _: os.kill(pid, sent))
            return int(next(answers))


def serve(address, owner):
    """Import the libraries, then fork for each request until the owner is gone."""
    import gc
    import importlib
    import importlib.util
    import shutil
    import threading

    import psutil

    # Inductor would start a process per core, each of which imports torch.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ["HF_HUB_OFFLINE"] = "1"
    subprocess.Popen = ForkingPopen
    for name in IMPORTS:
        if name not in OPTIONAL or importlib.util.find_spec(name):
            importlib.import_module(name)
    name_callers_quickly()
    # A collection in a forked process would copy all pages with objects of the libraries.
    gc.freeze()
    assert threading.active_count() == 1, "other threads would be missing after a fork"
    children = set()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(0.2)
        while psutil.pid_exists(owner):
            children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
            try:
                asked, _ = listener.accept()
            except TimeoutError:
                continue
            pid = os.fork()
            if not pid:
                listener.close()
                keep(asked)
            children.add(pid)
            asked.close()
    shutil.rmtree(Path(address).parent)
    Path(f"{Path(address).parent}.lock").unlink(missing_ok=True)


def name_callers_quickly():
    """Let torchrun read the name of a calling function from its frame.

    It names each event of its rendezvous so. `inspect.stack`, which it uses, searches all imported modules for the source of each frame:
    seconds where all libraries are imported.
    """
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    if hasattr(dynamic_rendezvous, "get_method_name"):
        dynamic_rendezvous.get_method_name = lambda depth=2: sys._getframe(depth).f_code.co_name


def keep(asked):
    """Fork the process of a request; answer with its number, and at last with its exit code."""
    asked.settimeout(None)
    _, files, _, _ = socket.recv_fds(asked, 1, 3)
    with asked.makefile() as request:
        arguments, environment, folder = json.load(request)
    pid = os.fork()
    if not pid:
        os.chdir(folder)
        run_module(arguments, environment, files)
    # The reader of its output waits until nobody can write to it.
    os.closerange(0, 3)
    for file in files:
        os.close(file)
    asked.sendall(f"{pid}\n".encode())
    hung_up = select.poll()
    hung_up.register(asked, 0)
    done, status = 0, 0
    while not done:
        if hung_up.poll(20):
            # The asking process was killed, such as by the time limit of its test.
            os.kill(pid, signal.SIGTERM)
            os._exit(1)
        done, status = os.waitpid(pid, os.WNOHANG)
    asked.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def run_module(arguments, environment, files):
    """Run `MODULE ARGUMENTS` as the main program of this process, with its first three files, and end it."""
    import runpy
    import tempfile
    import traceback

    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir, code = None, 0
    for number in FORWARDED:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    name, *sys.argv[1:] = arguments
    sys.modules.pop(name, None)
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a program
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class ForkingPopen(subprocess.Popen):
    """A `Popen` that forks this process for `python -m MODULE` of a known module, where the real one would start a new program."""

    def _execute_child(self, args, *details):
        words = [word for word in args if word != "-u"]
        if words[:2] != [sys.executable, "-m"] or words[2] not in MODULES:
            super()._execute_child(args, *details)
            return
        given = inspect.signature(super()._execute_child).bind(args, *details).arguments
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            if given["start_new_session"]:
                os.setsid()
            ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
            files = [os.dup(number if end == -1 else end) for number, end in enumerate(ends)]
            run_module(words[2:], given["env"] or dict(os.environ), files)
        self._child_created = True
        self._close_pipe_fds(*(given[end] for end in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))


if __name__ == "__main__":
    role, address, *rest = sys.argv[1:]
    if role == "ask":
        os._exit(ask(address, rest))
    serve(address, int(rest[0]))
