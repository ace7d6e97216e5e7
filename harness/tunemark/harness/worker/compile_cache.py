"""The state of the compile cache on disk before the run (definitions#compile-overhead): cold, warm, or the reason why it is unknown."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunemark.harness.run.run_log import OUTPUT_FILE
from tunemark.harness.worker.levers import compiled_graphs
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend

NEURON_DEFAULT = "/var/tmp/neuron-compile-cache"  # noqa: S108 - where the Neuron SDK keeps it
NEURON_CACHE_FLAG = re.compile(r"--cache_dir[= ]\s*(\S+)")
"""In NEURON_CC_FLAGS, where it overrides NEURON_COMPILE_CACHE_URL."""
NEURON_HIT = b"Using a cached neff"
"""The Neuron SDK's message for a graph from its cache."""
EXTENSIONS = "TORCH_EXTENSIONS_DIR"
"""Folder of the extensions that libraries compile on first use, such as DeepSpeed's collectives."""


def fresh(folder: Path) -> dict[str, str]:
    """Return environment variables that move all compile caches to an empty folder of the run, which is removed with it."""
    flags = NEURON_CACHE_FLAG.sub("", os.environ.get("NEURON_CC_FLAGS", "")).strip()
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        EXTENSIONS: str(folder / "extensions"),
        "NEURON_COMPILE_CACHE_URL": str(folder / "neuron"),
        **({"NEURON_CC_FLAGS": flags} if "NEURON_CC_FLAGS" in os.environ else {}),
    }


def neuron_folder(environment: Mapping[str, str]) -> str:
    """Return the Neuron SDK's cache: a folder, or an address such as s3://."""
    named = NEURON_CACHE_FLAG.search(environment.get("NEURON_CC_FLAGS", ""))
    return named[1] if named else environment.get("NEURON_COMPILE_CACHE_URL") or NEURON_DEFAULT


@dataclass(frozen=True, slots=True)
class CacheWatch:
    """Looks at the cache before and after the run. Torch counts hits and misses itself."""

    neuron: str | None
    """The Neuron SDK's cache; None on other devices."""
    before: int | None
    """Graphs in it before the run; None where they cannot be counted."""
    output: Path
    extensions: int = 0
    """Compiled library extensions before the run."""

    @classmethod
    def of(cls, plan: Plan, folder: Path) -> "CacheWatch":
        """Start watching; `folder` is the run's."""
        place = neuron_folder(os.environ) if plan.device.backend is Backend.NEURON else None
        return cls(place, None if place is None else _graphs_in(place), folder / OUTPUT_FILE, compiled_extensions())

    def state(self) -> dict[str, Any]:
        """Return the state for the log: `cold` when anything was compiled, `warm` from the cache, `none` without compilation."""
        if self.neuron is None:
            return {"state": "cold" if compiled_extensions() > self.extensions else torch_state(), "reason": None}
        if not compiled_graphs():
            return {"state": "none", "reason": None}
        after = _graphs_in(self.neuron)
        if self.before is not None and after is not None and (after > self.before or not after):
            return {"state": "cold", "reason": None}
        hit = self.output.is_file() and NEURON_HIT in self.output.read_bytes()
        if hit and after is not None:
            return {"state": "warm", "reason": None}
        evidence = "some graphs came from it" if hit else "no hit was printed"
        if after is not None:
            evidence = "its folder did not grow, and the compiler printed no hit"
        return {"state": None, "reason": f"the Neuron SDK counts no hits and misses of its cache: {evidence}"}


def compiled_extensions() -> int:
    """Return the number of extensions that libraries have compiled for torch on this machine."""
    place = os.environ.get(EXTENSIONS)
    return sum(1 for _ in (Path(place) if place else Path.home() / ".cache" / "torch_extensions").rglob("*.so"))


def _graphs_in(place: str) -> int | None:
    """Return the number of compiled graphs in a folder; None for an address that is no folder of this machine."""
    return None if "://" in place else sum(1 for _ in Path(place).rglob("*.neff"))


def torch_state() -> str:
    """Return `warm` if every graph that torch compiled came from the cache, `cold` if not, `none` without compilation."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    counters = dynamo.counters["inductor"] if dynamo else {}
    misses = counters.get("fxgraph_cache_miss", 0) + counters.get("fxgraph_cache_bypass", 0)
    if misses:
        return "cold"
    if counters.get("fxgraph_cache_hit", 0):
        return "warm"
    # With its cache turned off torch counts neither, and everything is compiled.
    return "cold" if dynamo and dynamo.counters["stats"]["unique_graphs"] else "none"
