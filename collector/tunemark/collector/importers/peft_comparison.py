"""PEFT's method comparison (`method_comparison/MetaMathQA/results/*.json`): one record per run."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from tunemark.collector.commands.terminal import AsJson, print_json, print_table, say
from tunemark.collector.gate.read import DOCUMENT
from tunemark.collector.importers.import_io import LogProblem, first_error, printable, read_text, write_changed
from tunemark.collector.importers.table import RESULTS
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.records.base import canonical_json
from tunemark.schema.records.published import Claim, Conditions, Origin, PublishedResult, PublishedSet, Scalar, SourceDocument
from tunemark.schema.vocabulary import Method, Padding, PublishedStatus

FOLDER = "method_comparison/MetaMathQA/results"
DATASET = "meta-math/MetaMathQA"
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "datasets")
ADAPTER = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout", "use_dora": "use_dora", "use_rslora": "use_rslora"}
"""Key of `peft_config` -> setting."""
KEPT = {
    "run_info": ("created_at", "total_time", "experiment_name", "error_msg"),
    "train_info": (
        "accelerator_memory_max",
        "accelerator_memory_reserved_99th",
        "train_time",
        "file_size",
        "num_trainable_params",
        "num_total_params",
        "status",
    ),
}
"""Fields of an extract, besides configurations, versions and the figures of the steps."""
WINDOW, LAST = ("step", "tokens / sec"), ("step", "test accuracy", "train loss", "train samples", "train total tokens", "forgetting")
TRAIN = ("model_id", "dtype", "max_seq_length", "batch_size", "compile", "use_gc", "optimizer_type", "use_amp", "autocast_adapter_dtype")


def peft_comparison(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of result files, or files with a list of them.", show_default=False, metavar="DIR...")
    ],
    source: Annotated[str, typer.Option("--source", help="Three digits of the document.", show_default=False)],
    reference: Annotated[str, typer.Option("--reference", help="Repository and commit of the files.")] = "github.com/huggingface/peft",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of published results. Default: `data/published` of the checkout.", show_default=False),
    ] = None,
    extract: Annotated[
        Path | None,
        typer.Option(
            "--extract", help="File to write the facts of the runs to, from which they can be imported again.", show_default=False
        ),
    ] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Import the runs of PEFT's method comparison: time, memory, accuracy and adapter size of each method.

    The rate is the median of the printed rates of windows of steps; peak memory is the 99th percentile of the memory reserved after
    a step, since the printed maximum includes evaluation. A run that is in several folders is imported once.

    Exit codes: 0 imported, 2 no such folder, 3 a file could not be used.

    Examples
    --------
    - `tunemark import peft-comparison RESULTS_FOLDER --source 011`

    - `tunemark import peft-comparison RUNS.json --source 011 --out /tmp/published`
    """
    root = project_root()
    facts, problems = FactBase.of_root(root), list[LogProblem]()
    runs = list(read_runs(folders, problems))
    results, kept = list[PublishedResult](), list[str]()
    for name, run in runs:
        try:
            facts_of_run = trimmed(run)
            results.append(record(f"{source}-{len(results) + 1:03d}", name, facts_of_run, reference, facts))
            kept.append(json.dumps({"file": name, **facts_of_run}, sort_keys=True))
        except (KeyError, TypeError) as error:
            problems.append(LogProblem(name, None, f"field {error} is missing or of another type"))
        except ValidationError as error:
            problems.append(LogProblem(name, None, f"cannot be a record: {first_error(error)}"))
        except TunemarkError as error:
            problems.append(LogProblem(name, None, str(error)))
    for problem in problems:
        say(str(problem))
    if not results:
        raise TunemarkError("DIR", ", ".join(map(str, folders)), f"has no result file; name a checkout's {FOLDER}", exit_code=Exit.INVALID)
    folder = (root / "data" / "published" if out is None else out) / source
    if extract is not None:
        lines = ",\n".join(kept)
        write_changed(extract, f"[\n{lines}\n]\n".encode())
    folder.mkdir(parents=True, exist_ok=True)
    write_changed(folder / RESULTS, PublishedSet(source=source, results=tuple(results)).lines())
    write_changed(folder / DOCUMENT, _document(folder / DOCUMENT, source, len(results), reference))
    rows = [(result.id, result.labels["experiment"], result.conditions.method.value, result.status.value) for result in results]
    if as_json:
        print_json([dict(zip(("id", "experiment", "method", "status"), row, strict=True)) for row in rows])
    else:
        print_table(["record", "experiment", "method", "status"], rows)
        say(f"{len(results)} results of source {source} in {folder / RESULTS}")
    raise typer.Exit(Exit.OK if all(problem.noted for problem in problems) else Exit.INVALID)


def read_runs(folders: Sequence[Path], problems: list[LogProblem]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file name, content) of each run once, by folder and name; unreadable files become problems."""
    seen: dict[tuple[str, str], str] = {}
    for name, text in _texts(folders):
        try:
            content = json.loads(text)
        except ValueError as error:
            problems.append(LogProblem(name, getattr(error, "lineno", None), f"is not valid JSON: {error}"))
            continue
        for run in content if isinstance(content, list) else [content]:
            shown = run.get("file", name) if isinstance(run, dict) else name
            try:
                key = (run["run_info"]["experiment_name"], run["run_info"]["created_at"])
            except (KeyError, TypeError):
                problems.append(
                    LogProblem(shown, None, "has no run_info with experiment_name and created_at: not a result of this comparison")
                )
                continue
            if key in seen:
                problems.append(LogProblem(shown, None, f"is the run of {seen[key]}; imported once", noted=True))
                continue
            seen[key] = shown
            yield shown, run


def _texts(folders: Sequence[Path]) -> Iterator[tuple[str, str]]:
    for folder in folders:
        if not folder.exists():
            raise TunemarkError("DIR", str(folder), "no such folder or file")
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else [folder]:
            yield path.name, read_text(str(path))


def trimmed(run: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a run that a record is made of."""
    info, train, meta = run["run_info"], run["train_info"], run["meta_info"]
    metrics = train["metrics"]
    last = [{name: entry[name] for name in LAST if name in entry} for entry in metrics[-1:] if "test accuracy" in entry]
    peft = info["peft_config"]
    return {
        "run_info": {name: info.get(name) for name in KEPT["run_info"]}
        | {"train_config": {name: info["train_config"].get(name) for name in (*TRAIN, "optimizer_kwargs", "attn_implementation")}}
        | {"peft_config": peft and {name: peft[name] for name in ("peft_type", "target_modules", *ADAPTER) if name in peft}},
        "train_info": {name: train.get(name) for name in KEPT["train_info"]}
        | {"metrics": [*({name: entry[name] for name in WINDOW} for entry in metrics if "tokens / sec" in entry), *last]},
        "meta_info": {
            "package_info": {f"{name}-version": meta["package_info"].get(f"{name}-version") for name in PACKAGES},
            "system_info": {"accelerator": meta["system_info"].get("accelerator", meta["system_info"].get("gpu"))},
        },
    }


def record(identity: str, name: str, run: dict[str, Any], reference: str, facts: FactBase) -> PublishedResult:
    """Return the record of a trimmed run.

    Raises KeyError or TypeError for a file of another form, TunemarkError for a model without a card.
    """
    info, train = run["run_info"], run["train_info"]
    config, peft = info["train_config"], info["peft_config"]
    reported = run["meta_info"]["system_info"]["accelerator"]
    card = facts.recognise_accelerator(reported or "")
    succeeded = train["status"] == "success"
    note = None if succeeded else printable(f"The run ended with {train['status']}. {info['error_msg'] or ''}".strip())
    versions = {package: run["meta_info"]["package_info"][f"{package}-version"] for package in PACKAGES}
    conditions = Conditions(
        model=facts.model(config["model_id"]).key,
        method=method_of(peft),
        accelerator=card.key if card else None,
        accelerator_count=1,
        micro_batch=config["batch_size"],
        gradient_accumulation=1,
        global_batch=config["batch_size"],
        padding=Padding.DYNAMIC,
        packing=False,
        precision=config["dtype"],
        dataset=DATASET,
        framework={package: version for package, version in versions.items() if version},
        settings=_settings(config, peft, info["created_at"]),
        from_repository=("accelerator_count", "gradient_accumulation", "global_batch", "padding", "packing", "dataset"),
        assumed=("settings.attention",),
    )
    return PublishedResult(
        id=identity,
        source=identity[:3],
        section=f"Results of {info['created_at'][:7]}",
        origin=Origin(kind="document", reference=f"{reference}: {FOLDER}/{name}"),
        labels={"experiment": info["experiment_name"], "model": config["model_id"], "accelerator": reported or "not stated"},
        conditions=conditions,
        claims=dict(sorted(_claims(info, train).items())),
        status=PublishedStatus.OK if succeeded else PublishedStatus.FAILED,
        note=note,
    )


def method_of(peft: dict[str, Any] | None) -> Method:
    """Return the method of an adapter configuration: full without one, lora for LoRA and its variants, else peft."""
    if peft is None:
        return Method.FULL
    return Method.LORA if peft["peft_type"] == "LORA" else Method.PEFT


def _settings(config: dict[str, Any], peft: dict[str, Any] | None, created: str) -> dict[str, Scalar | tuple[Scalar, ...]]:
    settings: dict[str, Any] = {
        "attention": config["attn_implementation"] or "sdpa",
        "gradient_checkpointing": config["use_gc"],
        "compile": config["compile"],
        "optimizer": config["optimizer_type"].lower(),
        "learning_rate": config["optimizer_kwargs"]["lr"],
        "max_length": config["max_seq_length"],
        "use_amp": config["use_amp"],
        "autocast_adapter_dtype": config["autocast_adapter_dtype"],
        "measured_on": created[:10],
        "strategy": "single",
    }
    if peft is not None:
        settings["peft_method"] = peft["peft_type"].lower()
        settings |= {setting: peft[key] for key, setting in ADAPTER.items() if isinstance(peft.get(key), int | float)}
        targets = peft.get("target_modules")
        if targets:
            settings["lora_targets"] = targets if isinstance(targets, str) else ",".join(sorted(targets))
    return {name: value for name, value in settings.items() if value is not None}


def _claims(info: dict[str, Any], train: dict[str, Any]) -> dict[str, Claim]:
    metrics = train["metrics"]
    figures: dict[str, tuple[float | None, str | None]] = {
        "wall_s": (info["total_time"], "whole process: loading, training, evaluation"),
        "peak_memory_bytes": (train["accelerator_memory_reserved_99th"], "torch, reserved after a training step, 99th percentile"),
        "device_memory_bytes": (train["accelerator_memory_max"], "torch, largest reserved of the whole run, evaluation included"),
        "trainable_parameters": (train["num_trainable_params"], None),
        "parameters": (train["num_total_params"], "with the adapter"),
        "adapter_bytes": (train["file_size"], None),
    }
    rates = sorted(entry["tokens / sec"] for entry in metrics if "tokens / sec" in entry)
    if rates:
        steps = next(entry["step"] for entry in metrics if "tokens / sec" in entry)
        figures["tokens_per_s"] = (rates[(len(rates) - 1) // 2], f"lower median of {len(rates)} printed windows of {steps} steps")
    last = metrics[-1] if metrics and "test accuracy" in metrics[-1] else {}
    for key, quantity in (("step", "steps"), ("test accuracy", "accuracy"), ("train loss", "train_loss"), ("train total tokens", "tokens")):
        figures[quantity] = (last.get(key), None)
    return {
        quantity: Claim(value=value, printed=repr(value), note=note) for quantity, (value, note) in figures.items() if value is not None
    }


def _document(path: Path, source: str, results: int, reference: str) -> bytes:
    """Return the document of the source: an existing one with its number of results corrected, else a skeleton."""
    if path.is_file():
        try:
            return canonical_json(json.loads(path.read_bytes()) | {"results": results})
        except ValueError as error:
            raise TunemarkError(str(path), "", "is not the document of a source; correct it first", exit_code=Exit.INVALID) from error
    return canonical_json(
        SourceDocument(
            id=source,
            title="PEFT method comparison: MetaMathQA",
            authors="PEFT contributors",
            url=f"https://github.com/huggingface/peft/tree/main/{FOLDER}",
            origin_repository=reference,
            read_on=datetime.now(UTC).date(),
            summary="Trains Llama 3.2 3B on MetaMathQA with each method of the PEFT library, on one device.",
            results=results,
        )
    )
