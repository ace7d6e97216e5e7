"""The submissions that are corrupted: four committed runs of CPUs, and three simulated runs of GPUs."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from gate_mutations.simulated import H100, ROOT, Ending, Scenario, gpu_machine, simulate
from tunemark.harness.plan.resolve import Options
from tunemark.harness.run.run_log import FAILURES
from tunemark.schema.records.base import canonical_json, content_id

Content = dict[str, Any]
"""A submission as JSON content."""
COMMITTED = {
    "lora": "smoke-lora/20261124-cpu-64bd0b9a841b.json",
    "bert": "smoke-bert/20261124-cpu-ec27868fc8d5.json",
    "fsdp": "smoke-full/20261124-cpu-c46c5f3ac432.json",
    "qlora": "smoke-lora/20261124-cpu-358d046c1336.json",
}
OUT_OF_MEMORY = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 79.19 GiB of which 2.61 GiB is free. "
    "Including non-PyTorch memory, this process has 76.58 GiB memory in use."
)


@dataclass(frozen=True)
class Base:
    """A submission to corrupt."""

    name: str
    content: Content

    @property
    def traits(self) -> frozenset[str]:
        """Words for which corruptions it suits."""
        return frozenset(word for word, holds in TRAITS.items() if holds(self.content)) | {self.name}


TRAITS: dict[str, Callable[[Content], Any]] = {
    "any": lambda _: True,
    "ok": lambda c: c["outcome"]["status"] == "ok",
    "failed": lambda c: c["outcome"]["status"] != "ok",
    "cpu": lambda c: c["plan"]["device"]["backend"] == "cpu",
    "gpu": lambda c: c["plan"]["device"]["backend"] != "cpu",
    "one": lambda c: c["plan"]["device"]["count"] == 1,
    "ranks": lambda c: c["ranks"],
    "adapters": lambda c: c["plan"]["lora"],
    "full": lambda c: c["plan"]["method"] == "full",
    "packed": lambda c: c["plan"]["data"]["packing"],
    "rows": lambda c: not c["plan"]["data"]["packing"],
    "fixed": lambda c: c["plan"]["data"]["padding"] == "none",
    "causal": lambda c: c["plan"]["model"]["task"] == "causal_lm",
    "standard": lambda c: c["division"] == "standard",
    "tuned": lambda c: c["division"] == "tuned",
    "open": lambda c: c["division"] == "open",
    "evaluated": lambda c: c["evaluation"],
    "micro": lambda c: c["trace"].get("micro_completed_at_s"),
    "energy": lambda c: c["utilisation"] and c["utilisation"]["energy"]["joules"],
    "golden": lambda c: any(gate["name"] == "loss_band" and gate["passed"] for gate in c["gates"]),
    "checked": lambda c: any(gate["name"] == "adapter_gradient" and gate["passed"] for gate in c["gates"]),
    "counted": lambda c: c["plan"]["measurement"]["max_steps"] == c["outcome"]["last_good_step"],
}
"""A word, and the property of a submission that it stands for."""


def h100_lora(seed: int = 0) -> Content:
    """Return LoRA on an 8B model, on one H100."""
    return simulate(Scenario("lora-8b", gpu_machine(), Options(max_steps=120), seed=seed))


def two_h100(seed: int = 0) -> Content:
    """Return full fine-tuning of a 1.7B model on two H100, each with a replica."""
    started_at = datetime(2026, 11, 21, 10, 2, 41, 18_020, tzinfo=UTC)
    options = Options(max_steps=130, devices=2)
    return simulate(Scenario("full-1b", gpu_machine(count=2), options, seed=seed, hfu=0.36, started_at=started_at))


def out_of_memory(seed: int = 0) -> Content:
    """Return full fine-tuning of an 8B model with two rows, for which one H100 is too small: the second step fails."""
    rule = next(rule for rule in FAILURES if rule["status"] == "oom_device")
    failure = {"status": rule["status"], "message": OUT_OF_MEMORY, "fix": rule["fix"]}
    started_at = datetime(2026, 11, 21, 11, 31, 2, 700_501, tzinfo=UTC)
    options = Options(overrides=("batch.micro_batch=2",))
    return simulate(
        Scenario("full-8b", gpu_machine(), options, seed=seed, steps=1, gpu=H100, started_at=started_at, ending=Ending(failure=failure))
    )


@cache
def bases() -> tuple[Base, ...]:
    """Return all bases."""
    committed = {name: json.loads((ROOT / "submissions" / path).read_bytes()) for name, path in COMMITTED.items()}
    made = {"h100": h100_lora(), "ddp": two_h100(), "oom": out_of_memory()}
    return tuple(Base(name, content) for name, content in {**committed, **made}.items())


def base(name: str) -> Content:
    """Return a copy of a base's content."""
    return deepcopy(next(base.content for base in bases() if base.name == name))


def suiting(words: str) -> Iterator[Base]:
    """Yield the bases that have all of these traits; `!` before a word excludes it."""
    wanted = words.split()
    for candidate in bases():
        if all((word.lstrip("!") in candidate.traits) != word.startswith("!") for word in wanted):
            yield candidate


def file_name(content: Content) -> Path:
    """Return the place of a submission under `submissions/`, as the harness would name it."""
    device = content["plan"]["device"]["accelerator"] or content["plan"]["device"]["backend"]
    day = str(content["started_at"])[:10].replace("-", "")
    return Path(content["plan"]["workload"]) / f"{day}-{device}-{content_id(canonical_json(content))}.json"


def write(content: Content, root: Path) -> Path:
    """Write a submission in canonical form to its place in a checkout, and return its path."""
    path = root / "submissions" / file_name(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(canonical_json(content))
    return path


def identity_of(name: str) -> str:
    """Return the id of a base as a committed result."""
    return content_id(canonical_json(base(name)))
