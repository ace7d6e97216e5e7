"""Whether compiled graphs were in a cache on the disk before the run (definitions.md, 14): cold, warm, or why that is not known."""

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunemark.harness.worker.levers import compiled_graphs
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Backend

OUTPUT_FILE = "output"
"""What the worker prints, which its parent collects in the run's folder."""
NEURON_DEFAULT = "/var/tmp/neuron-compile-cache"  # noqa: S108 - where the Neuron SDK keeps it
OF_NEURON = re.compile(r"--cache_dir[= ]\s*(\S+)")
"""In NEURON_CC_FLAGS, where it goes before NEURON_COMPILE_CACHE_URL."""
EXTENSIONS = "TORCH_EXTENSIONS_DIR"
"""Where torch keeps the extensions that libraries compile when they are first used, as DeepSpeed does for its collectives."""
HIT = b"Using a cached neff"
"""What the Neuron SDK prints for a graph that it found in its cache."""


def fresh(folder: Path) -> dict[str, str]:
    """Return the environment in which everything that compiles keeps its cache in an empty folder of the run, which is removed with it."""
    flags = OF_NEURON.sub("", os.environ.get("NEURON_CC_FLAGS", "")).strip()
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_CACHE_PATH": str(folder / "cuda"),
        EXTENSIONS: str(folder / "extensions"),
        "NEURON_COMPILE_CACHE_URL": str(folder / "neuron"),
        **({"NEURON_CC_FLAGS": flags} if "NEURON_CC_FLAGS" in os.environ else {}),
    }


def neuron_folder(environment: Mapping[str, str]) -> str:
    """Return where the Neuron SDK keeps compiled graphs: a folder, or an address such as s3://."""
    named = OF_NEURON.search(environment.get("NEURON_CC_FLAGS", ""))
    return named[1] if named else environment.get("NEURON_COMPILE_CACHE_URL") or NEURON_DEFAULT


@dataclass(frozen=True, slots=True)
class CacheWatch:
    """Looks at the cache before and after; torch counts hits and misses by itself."""

    neuron: str | None
    """Where the Neuron SDK keeps its cache; None on other devices."""
    before: int | None
    """Graphs in it before the run; None where they cannot be counted."""
    output: Path
    extensions: int = 0
    """Compiled extensions of libraries before the run."""

    @classmethod
    def of(cls, plan: Plan, folder: Path) -> "CacheWatch":
        """Begin to watch; `folder` is that of the run."""
        place = neuron_folder(os.environ) if plan.device.backend is Backend.NEURON else None
        return cls(place, None if place is None else _graphs_in(place), folder / OUTPUT_FILE, compiled_extensions())

    def state(self) -> dict[str, Any]:
        """Return the state as the log has it: `cold` when anything was compiled anew, `none` when nothing was compiled."""
        if self.neuron is None:
            return {"state": "cold" if compiled_extensions() > self.extensions else of_torch(), "reason": None}
        return self._of_neuron(self.neuron)

    def _of_neuron(self, place: str) -> dict[str, Any]:
        if not compiled_graphs():
            return {"state": "none", "reason": None}
        after = _graphs_in(place)
        if self.before is not None and after is not None and (after > self.before or not after):
            return {"state": "cold", "reason": None}
        if self.output.is_file() and HIT in self.output.read_bytes():
            # Of a cache elsewhere nothing is known but what was printed: hits, and not whether all were.
            return {"state": "warm", "reason": None} if after is not None else _unknown("some graphs came from it")
        return _unknown("its folder did not grow, and the compiler printed no hit") if after is not None else _unknown("no hit was printed")


def compiled_extensions() -> int:
    """Return how many extensions libraries have compiled for torch on this machine."""
    place = os.environ.get(EXTENSIONS)
    return sum(1 for _ in (Path(place) if place else Path.home() / ".cache" / "torch_extensions").rglob("*.so"))


def _unknown(seen: str) -> dict[str, Any]:
    return {"state": None, "reason": f"the Neuron SDK counts no hits and misses of its cache: {seen}"}


def _graphs_in(place: str) -> int | None:
    """Return how many compiled graphs a folder holds; None for an address that is no folder of this machine."""
    if "://" in place:
        return None
    return sum(1 for _ in Path(place).rglob("*.neff"))


def of_torch() -> str:
    """Return whether every graph that torch compiled came from the cache: `warm`, `cold`, or `none` when nothing was compiled."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    seen = dynamo.counters["inductor"] if dynamo else {}
    hits, misses = seen.get("fxgraph_cache_hit", 0), seen.get("fxgraph_cache_miss", 0) + seen.get("fxgraph_cache_bypass", 0)
    if not hits + misses:
        # With its cache turned off torch counts neither, and all is compiled anew.
        return "cold" if dynamo and dynamo.counters["stats"]["unique_graphs"] else "none"
    return "warm" if not misses else "cold"
