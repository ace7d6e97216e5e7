"""Under which conditions a result was obtained, and which of them its source does not state itself."""

from tunemark.schema.comparability import COMPARABILITY_KEYS
from tunemark.site import wording
from tunemark.site.page import Fact, accelerator_path, model_path
from tunemark.site.queries import Catalogue, Row

LABELS = {
    "model": "Model",
    "method": "Method",
    "task": "Task",
    "accelerator": "Accelerator",
    "accelerator_count": "Accelerators used",
    "instance": "Instance",
    "backend": "Backend",
    "strategy": "Strategy",
    "dataset": "Data",
    "sequence_length": "Tokens in a row",
    "padding": "Padding",
    "packing": "Packing",
    "micro_batch": "Micro-batch",
    "gradient_accumulation": "Gradient accumulation",
    "global_batch": "Rows in an optimizer step",
    "precision": "Precision",
    "optimizer": "Optimizer",
    "step_definition": "Meaning of a step",
    "weights": "Weights",
    "parameters": "Parameters",
    "trainable_parameters": "Trained parameters",
    "steps": "Steps",
    "epochs": "Epochs",
}
MEASURED_ONLY = {"backend", "strategy", "weights"}


def conditions(catalogue: Catalogue, row: Row) -> list[Fact]:
    """Return the conditions of a result, a note with each that is not stated where the figure is."""
    reasons = {fact["name"]: fact["reason"] for fact in catalogue.facts.get(row["result_id"], ()) if fact["topic"] == "conditions"}
    names = [name for name in LABELS if row["source"] == "measured" or name not in MEASURED_ONLY]
    return [Fact(LABELS[name], _value(row, name), reasons.get(name) or _printed(row, name), href=_path(row, name)) for name in names]


def comparison(catalogue: Catalogue, row: Row) -> str:
    """Return with how many results this one compares, or what is unknown that keeps it from comparing."""
    group = row["comparability_group"]
    if group is None:
        unknown = [wording.words(key) for key in COMPARABILITY_KEYS if row[key] is None]
        return f"Not ranked against others: unknown here is {', '.join(unknown)}." if unknown else "Not ranked against others."
    peers = len(catalogue.results_where(comparability_group=group)) - 1
    allowed = "" if row["rankable"] else " It is not ranked itself, as its measurement does not meet the conditions for that."
    return f"{peers} other {'result agrees' if peers == 1 else 'results agree'} in every comparability key.{allowed}"


def _value(row: Row, name: str) -> str:
    if name == "method":
        return wording.method(row)
    if name == "task":
        return wording.TASKS.get(row["task"], wording.plain(row["task"]))
    if name == "step_definition":
        return wording.words(row[name])
    return wording.plain(row[{"model": "model_name", "accelerator": "accelerator_name"}.get(name, name)])


def _printed(row: Row, name: str) -> str:
    printed = row["accelerator_printed"]
    return f"printed: {printed}" if name == "accelerator" and printed and printed != row["accelerator_name"] else ""


def _path(row: Row, name: str) -> str | None:
    paths = {"model": model_path, "accelerator": accelerator_path}
    return paths[name](row[name]) if name in paths and row[name] else None
