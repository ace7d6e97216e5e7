"""The doctor reports a machine before anything runs on it."""

import platform

import pytest
import torch
import typer
from harness_making import gpus, make_machine, tunemark

from tunemark.harness.commands import doctor as commands
from tunemark.harness.commands.doctor import doctor, runnable, self_tests
from tunemark.harness.plan.resolve import Options, resolve, step_memory
from tunemark.harness.vendors.cuda import Cuda
from tunemark.harness.vendors.mps import Mps
from tunemark.harness.vendors.protocol import DeviceUnavailable
from tunemark.harness.vendors.rocm import Rocm
from tunemark.harness.vendors.xpu import Xpu
from tunemark.schema.records.submission import DeviceFacts
from tunemark.schema.vocabulary import Backend, Dtype


@pytest.mark.parametrize(("load", "said"), [(0.2, "little: 0.2"), (1.5, "stop other programs"), (None, "unknown")])
def test_other_work_on_the_host_is_named_before_it_disturbs_a_measurement(facts, capsys, load, said):
    commands._show(commands.report(facts, make_machine(cpu_usable_cores=2), load=load))
    shown = capsys.readouterr().out
    assert said in " ".join(shown.split())


def test_the_hub_is_asked_and_each_reason_is_printed_once(facts, monkeypatch, capsys):
    """An address where nothing listens is reported with the fix, before a run waits for retries."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    content = commands.report(facts, make_machine(packages={})) | {"hub": commands.hub()}
    commands._show(content)
    shown = " ".join(capsys.readouterr().out.split())
    assert "NOT reachable (http://127.0.0.1:9: " in shown
    assert shown.count("training needs torch") == 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert commands.hub() == "offline (HF_HUB_OFFLINE is set)"


OFFLOADED = "trainer-8k-llama-2-13b-full"


def test_processes_on_a_cpu_share_its_memory_and_offload_frees_none_of_it(facts):
    def row(gib):
        here = make_machine(memory_bytes=gib * 2**30, devices=(DeviceFacts(name="Plain CPU", memory_bytes=gib * 2**30),))
        return {row["workload"]: row for row in runnable(facts, here)}[OFFLOADED]

    small, large = row(64), row(256)
    assert small["memory_bytes"] == 32 * 2**30
    # Weights, gradients and two moments of 13 billion parameters, 2 bytes each, over two processes.
    assert small["needed_bytes"] == large["needed_bytes"] > 4 * 2 * 13e9 / 2
    assert (small["too_large"], large["too_large"]) == (True, False)
    assert small["memory_problem"].endswith("in each process, and each of the 2 processes has 32.0 GiB")
    assert large["memory_problem"] is None


def test_states_that_gpus_offload_must_fit_into_host_memory(facts):
    def memory(gib):
        here = gpus("NVIDIA H200", 2, gib=131, target="9.0", memory_bytes=gib and gib * 2**30)
        plan = resolve(OFFLOADED, facts, here, Options()).plan
        return step_memory(plan, facts.model(plan.model.key), here)

    assert memory(64).words == "needs about 97.0 GiB of host memory, and the host has 64.0 GiB"
    assert [memory(gib).too_large for gib in (64, 128, None)] == [True, False, False]


@pytest.mark.parametrize("command", ["run full-8b", "ab full-8b --a compile=none --b compile=blocks"])
def test_a_plan_that_does_not_fit_is_refused_before_anything_is_loaded_unless_forced(tmp_path, command):
    done = tunemark(*command.split(), "--steps", 40, "--out", tmp_path)
    assert done.returncode == 5
    assert "'full-8b': a step needs about " in done.stderr
    assert "--set force=true" in done.stderr
    assert not list(tmp_path.rglob("*.json"))


REQUIRED = dict.fromkeys(commands.REQUIRED, "1")


def test_a_working_device_has_its_rate_and_slow_workloads_have_the_time_of_their_products(facts, monkeypatch, capsys):
    asked = []

    def ask(*question):
        asked.append(question)
        return {"flop_per_s": 1e11}

    large = DeviceFacts(name="Plain CPU", memory_bytes=512 * 2**30)
    here = make_machine(memory_bytes=512 * 2**30, devices=(large,), packages=REQUIRED)
    monkeypatch.setattr(commands, "ask_process", ask)
    tests = self_tests(here, Dtype.FP32)
    assert asked == [(Backend.CPU, 0, Dtype.FP32, 2)]
    assert [(test["passed"], test["flop_per_s"], test["problem"]) for test in tests] == [(True, 1e11, None)]
    rows = {row["workload"]: row for row in runnable(facts, here, tests)}
    assert rows["smoke-lora"]["products_s"] < 1
    assert rows["full-1b"]["products_s"] > 3600
    assert runnable(facts, here)[0]["products_s"] is None
    monkeypatch.setattr(commands, "detect", lambda: here)
    doctor()
    printed = capsys.readouterr().out
    assert "works         device 0, Plain CPU: 100 GFLOP/s fp32" in printed
    hours = f"{rows['full-1b']['products_s'] / 3600:.0f} h"
    assert f"can run, slow full-1b: the matrix products of a step take about {hours} at the fp32 rate of the self-test" in printed


def test_each_gpu_is_tested_and_one_that_fails_is_named_with_the_fix(monkeypatch, capsys):
    two = gpus("NVIDIA H100 80GB HBM3", 2, gib=80, target="9.0", packages=REQUIRED)
    answers = {0: {"flop_per_s": 6e14}, 1: {"problem": "no kernel image is available", "fix": "install another build"}}
    monkeypatch.setattr(commands, "detect", lambda: two)
    monkeypatch.setattr(commands, "ask_process", lambda _, place, *__: answers[place])
    with pytest.raises(typer.Exit) as ended:
        doctor()
    assert ended.value.exit_code == 4
    printed = capsys.readouterr().out
    assert "works         device 0, NVIDIA H100 80GB HBM3: 600 TFLOP/s bf16" in printed
    assert "fails         device 1, NVIDIA H100 80GB HBM3: no kernel image is available; install another build" in printed


@pytest.mark.parametrize(
    ("device", "built", "words"),
    [
        (Cuda, None, "cannot use cuda:0: it is not built for CUDA; install a build that is; nvidia is "),
        (Cuda, "13.0", r"cannot use cuda:0: no luck; nvidia is .*, and 580 \(CUDA 13\) or 525 .* is needed: update"),
        (Rocm, "7.0", "cannot use cuda:0: no luck; amdgpu is .*, and 6.12 or newer is needed: .*/dev/kfd"),
        (Mps, None, r"cannot use mps:0: .*MPS.*; macOS is .*, and 14 or newer is needed: update it"),
        (Xpu, "20250302", rf"cannot use xpu:0: no luck; Linux is {platform.release()}, and 5.15 .* or newer is needed: install"),
    ],
)
def test_a_gpu_that_torch_cannot_use_has_the_reason_and_the_fix(monkeypatch, device, built, words):
    def fails():
        raise RuntimeError("no luck.")

    monkeypatch.setattr(torch.version, getattr(device, "build", "metal"), built, raising=False)
    monkeypatch.setattr(getattr(torch, getattr(device, "family", "mps")), "init", fails, raising=False)
    with pytest.raises(DeviceUnavailable, match=words):
        device.open(None)


def test_the_cpu_is_really_tested_and_a_wrong_product_is_found(monkeypatch):
    answer = commands.work(Backend.CPU, 0, Dtype.BF16, 1)
    assert answer["flop_per_s"] > 1e6
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: product(a, b) * (1.5 if len(a) > 1 else 1.0))
    assert "differs from the CPU's by" in commands.work(Backend.CPU, 0, Dtype.FP32, 1)["problem"]


def test_a_process_that_crashes_or_has_no_torch_is_an_answer(monkeypatch, tmp_path):
    (tmp_path / "crash.py").write_text("import os, sys; sys.stderr.write('Segmentation fault\\n'); os._exit(139)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(commands, "MODULE", "crash")
    assert commands.ask_process(Backend.CPU, 0, Dtype.FP32, 1)["problem"] == "the process ended with code 139: Segmentation fault"
    monkeypatch.setattr(commands, "MODULE", "not_there")
    assert "No module named not_there" in commands.ask_process(Backend.CPU, 0, Dtype.FP32, 1)["problem"]
    (tmp_path / "hang.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(commands, "MODULE", "hang")
    monkeypatch.setattr(commands, "LIMIT_S", 0.5)
    assert commands.ask_process(Backend.CPU, 0, Dtype.FP32, 1)["problem"] == "no answer after 0.5 s"
