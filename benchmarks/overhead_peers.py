"""The peers of the overhead benchmark, each in a process that imports nothing of Tunemark: a bare loop, and Hugging Face's Trainer.

    python overhead_peers.py {bare,trainer} FOLDER DEVICE

FOLDER holds `config.json` of the model and `batches.safetensors`. Each line on standard input is a number of steps; the answer is a line
with the seconds of each: CPU seconds of the process on a CPU, seconds of the device's queue elsewhere.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

Arm = Callable[[int], list[float]]
"""Runs a number of steps and returns the seconds of each."""
LEARNING_RATE = 1e-4


def serve(make: Callable[[], Arm]) -> None:
    """Make an arm, and run as many steps as each line of standard input says."""
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run = make()
    for line in sys.stdin:
        print(json.dumps(run(int(line))), file=answers, flush=True)


def model_in(folder: Path, device: str) -> Any:
    """Return the model of a folder, drawn from seed 0 in the format that its configuration names."""
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32).to(device)


def batches_in(folder: Path, device: str) -> list[dict[str, Any]]:
    """Return the micro-batches of a folder, on the device."""
    stacked = load_file(folder / "batches.safetensors", device=device)
    return [dict(zip(stacked, tensors, strict=True)) for tensors in zip(*stacked.values(), strict=True)]


def bare(folder: Path, device: str) -> Arm:
    """Return the loop of a tutorial, on batches that are on the device beforehand."""
    model, batches = model_in(folder, device), batches_in(folder, device)
    on_cpu, api = device == "cpu", torch.get_device_module(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def mark() -> Any:
        if on_cpu:
            return time.process_time()
        event = api.Event(enable_timing=True)
        event.record()
        return event

    def run(steps: int) -> list[float]:
        # As in the harness's loop, events go into the device's queue of work, so the host does not wait.
        marks = [mark()]
        for step in range(steps):
            model(**batches[step % len(batches)]).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            marks.append(mark())
        if not on_cpu:
            api.synchronize()
        return [after - before if on_cpu else before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]

    return run


class Stopwatch(transformers.TrainerCallback):
    """Notes the CPU seconds at the end of each step of a Trainer."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note the time."""
        self.times.append(time.process_time())


def trainer(folder: Path, device: str) -> Arm:
    """Return Hugging Face's Trainer. It cannot continue, so that each block creates another one."""
    from datasets import Dataset  # noqa: PLC0415

    model, batches = model_in(folder, device), batches_in(folder, device)
    rows = [row.tolist() for batch in batches * 4 for row in batch["input_ids"]]
    data = Dataset.from_dict({"input_ids": rows, "labels": rows})
    settings = {"optim": "adamw_torch_fused", "report_to": "none", "save_strategy": "no", "use_cpu": True, "logging_steps": 10}
    settings |= {"per_device_train_batch_size": len(batches[0]["input_ids"]), "dataloader_pin_memory": False}
    settings |= {"learning_rate": LEARNING_RATE, "disable_tqdm": True}

    def run(steps: int) -> list[float]:
        watch = Stopwatch()
        with tempfile.TemporaryDirectory() as out:
            arguments = transformers.TrainingArguments(out, max_steps=steps, **settings)
            transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[watch]).train()
        return [after - before for before, after in pairwise(watch.times)]

    return run


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    serve(lambda: {"bare": bare, "trainer": trainer}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]))
