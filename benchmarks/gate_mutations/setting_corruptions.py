"""Corruptions of what a submission says about machine, model, settings and gates, where one value does not make the change."""

from collections.abc import Callable
from typing import Any

from gate_mutations.bases import Content
from gate_mutations.corruptions import corrupt

DECLARED = "overrides|division|plan|workload"
SEED = [{"field": "seed", "card": 1, "run": 0}]


def without_package(name: str, package: str, on: str) -> None:
    """Register a run that cannot have happened without a package."""
    corrupt("hardware", name, "environment.packages|plan.method", on)(lambda c: c["environment"]["packages"].pop(package) and None)


without_package("qlora without bitsandbytes", "bitsandbytes", "qlora")
without_package("adapters without peft", "peft", "ok adapters")
without_package("a transformers model without transformers", "transformers", "ok")


@corrupt("hardware", "use of one of two devices left out", "utilisation", "ddp")
def _(c: Content) -> None:
    del c["utilisation"]["devices"][1]


@corrupt("hardware", "two machines, one device each, and figures of one", "plan.device|environment|utilisation", "ddp")
def _(c: Content) -> None:
    c["plan"]["device"]["nodes"] = 2
    del c["environment"]["devices"][1], c["utilisation"]["devices"][1]


def stored(name: str, new: Callable[[dict[str, int]], dict[str, int]]) -> None:
    """Register a change of the bytes of the parameters by number format."""

    def change(content: Content) -> None:
        content["model"]["parameter_bytes"] = new(content["model"]["parameter_bytes"])

    corrupt("model", name, "model|plan.model", "any")(change)


stored("parameter bytes of another number format", lambda sizes: {"int8": sum(sizes.values())})
stored("bytes of an unknown number format", lambda sizes: {**sizes, "fp1": 10})
stored("parameter bytes twice the parameters", lambda sizes: {name: 2 * size for name, size in sizes.items()})


@corrupt("contradiction", "a reason for a field that does not exist", "plan.reasons", "any")
def _(c: Content) -> None:
    c["plan"]["reasons"]["device.colour"] = "requested with --colour"


def declares(name: str, overrides: list[dict[str, Any]], on: str = "standard", **values: Any) -> None:
    """Register a submission of the open division with these overrides; keyword arguments are further changes of the plan."""

    def change(content: Content) -> None:
        content["division"], content["overrides"] = "open", [*content["overrides"], *overrides]
        content["plan"] |= values

    corrupt("overrides", name, DECLARED, on)(change)


declares("override of a field that does not exist", [{"field": "optimizer.lucky_number", "card": 7, "run": 13}])
declares("override of the card's title", [{"field": "title", "card": "LoRA", "run": "LoRA, faster"}])
declares("an invented card hash behind an override of the seed", SEED, workload_sha256="5e" * 32)
declares("an invented workload behind an override of the seed", SEED, workload="lora-8b-turbo")
declares("override of a seed that the plan does not have", [{"field": "seed", "card": 1, "run": 999}])
declares("override of the rules of measurement", [{"field": "measurement.min_steady_steps", "card": 100, "run": 1}])
declares("a hundred overrides that change nothing", [{"field": "optimizer.epsilon", "card": 1e-8, "run": 1e-8}] * 99)


@corrupt("overrides", "an override that changes nothing", DECLARED, "qlora")
def _(c: Content) -> None:
    c["overrides"][0] |= {"card": "qlora", "run": "qlora"}


@corrupt("overrides", "override twice", DECLARED, "open")
def _(c: Content) -> None:
    c["overrides"] *= 2


@corrupt("gates", "one gate taken out", "gates")
def _(c: Content) -> None:
    del c["gates"][1]


@corrupt("gates", "a gate twice", "gates")
def _(c: Content) -> None:
    c["gates"].append(c["gates"][0])


@corrupt("gates", "a warning of a failed gate that did not fail", "warnings|gates")
def _(c: Content) -> None:
    c["warnings"].append({"kind": "gate_failed", "message": "adapter_gradient: a gradient reaches 3 of 28 adapters"})
