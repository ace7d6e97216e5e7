"""`tunemark estimate`: the memory of a training step, on which accelerators it fits, and how long a job takes there."""

from dataclasses import fields
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from tunemark.collector.commands.terminal import print_json, print_table
from tunemark.collector.predict.calibration_rows import calibrate
from tunemark.collector.predict.estimate import JobRequest, MemoryFit, job_estimates, memory_fits, show, stack_named, tokens_of
from tunemark.collector.predict.estimate import as_json as throughput_json
from tunemark.collector.predict.fit import fit
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import gib
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MOMENTS, MemoryLedger
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}
)

Word = TypeVar("Word", bound=StrEnum)


@app.callback()
def alone() -> None:
    """Keep `estimate` a command with a name although it is the only one here."""


@app.command()
def estimate(
    model: Annotated[str, typer.Option("--model", "-m", help="A model card, by key or name.", show_default=False)],
    method: Annotated[str, typer.Option("--method", help="full, lora or qlora.")] = "lora",
    sequence_length: Annotated[int, typer.Option("--seq", help="Tokens in a row.")] = 2048,
    micro_batch: Annotated[int, typer.Option("--micro-batch", help="Rows of one forward and backward on one device.")] = 1,
    *,
    accelerator: Annotated[
        list[str] | None, typer.Option("--accelerator", "-a", help="A device card; may be repeated. All when left out.", show_default=False)
    ] = None,
    checkpointing: Annotated[str, typer.Option("--checkpointing", help="none, selective or full.")] = "none",
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention", help="sdpa, flash or eager; sdpa when left out, eager for Gemma 2 as transformers does.", show_default=False
        ),
    ] = None,
    loss: Annotated[str, typer.Option("--loss", help="plain, upcast (logits cast to fp32) or fused.")] = "upcast",
    optimizer: Annotated[str, typer.Option("--optimizer", help="adamw, adamw-fused, adamw-8bit, sgd or adafactor.")] = "adamw",
    gradient_accumulation: Annotated[int, typer.Option("--accumulate", help="Micro-steps in an optimizer step.")] = 1,
    rank: Annotated[int, typer.Option("--rank", help="Rank of the adapters.")] = 16,
    targets: Annotated[str, typer.Option("--targets", help="Layers with an adapter, separated by commas, or all-linear.")] = "all-linear",
    dropout: Annotated[float, typer.Option("--dropout", help="Dropout in front of the adapters.")] = 0.0,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            help="Format of weights that are not quantised; bf16, for qlora fp32 as peft's recipe leaves them.",
            show_default=False,
        ),
    ] = None,
    adapters: Annotated[str, typer.Option("--adapters", help="Format of the adapters.")] = "fp32",
    single_quantisation: Annotated[bool, typer.Option("--single-quantisation", help="QLoRA without double quantisation.")] = False,
    master_weights: Annotated[bool, typer.Option("--master-weights", help="Keep an fp32 copy of trained 16-bit weights.")] = False,
    sharding: Annotated[
        str | None,
        typer.Option(
            "--sharding", help="ddp, zero1 to zero3, fsdp1 or fsdp2; fsdp2 when left out with several devices.", show_default=False
        ),
    ] = None,
    devices: Annotated[int, typer.Option("--devices", help="Data-parallel devices.")] = 1,
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", help="Devices that share each matrix.")] = 1,
    offload: Annotated[bool, typer.Option("--offload", help="Keep parameters and optimizer states in host memory.")] = False,
    throughput: Annotated[bool, typer.Option("--throughput", help="Predict tokens a second too, from accepted results.")] = False,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Rows of the data, taken as full: predict time and cost too.", show_default=False)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="Tokens of the data: predict time and cost too.", show_default=False)
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the data.")] = 1,
    usd_per_hour: Annotated[
        float | None,
        typer.Option(
            "--usd-per-hour", help="What all devices cost; the price book's cheapest on-demand instance when left out.", show_default=False
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like", help="Whose software: a document such as 003, mlperf, or measured; that with the most results.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Estimate the memory of a training step: each line with its formula, and on which accelerators it fits.

    Nothing is run and nothing is fetched: all follows from the model card. Fits is judged by live tensors and what the
    device holds outside of the allocator; a caching allocator takes more while there is more, and gives it back.

    With --throughput, --samples or --tokens it predicts speed, time and cost where it fits, each with an interval of 90%,
    from the results that the audit accepts; where nothing similar was measured it says so. How often such predictions are
    right is computed at each `tunemark collect` and shown on the site.

    Exit codes: 0 estimated, 2 an unknown model, accelerator or word.

    Examples
    --------
    - `tunemark estimate --model llama-3.1-8b --method lora --seq 8192 --micro-batch 2 --checkpointing full`

    - `tunemark estimate -m llama-3.1-8b --method qlora --seq 2048 -a "RTX 4090" -a L4 --json`

    - `tunemark estimate -m llama-3.1-8b --method lora --seq 8192 --micro-batch 2 --checkpointing full --samples 10000 -a "H100 80GB" -a B200`

    - `tunemark estimate -m llama-3.1-70b --method full --seq 4096 --devices 16 --sharding fsdp2 --checkpointing full --loss fused`
    """
    facts = FactBase.of_project()
    card, way = facts.model(model), _word(Method, "--method", method)
    stored = _word(Dtype, "--parameters", parameters or ("fp32" if way is Method.QLORA else "bf16"))
    shape = TrainingShape(
        card,
        way,
        sequence_length,
        micro_batch,
        gradient_accumulation=gradient_accumulation,
        lora_rank=rank,
        lora_targets=ALL_LINEAR if targets == ALL_LINEAR[0] else tuple(name.strip() for name in targets.split(",")),
        lora_dropout=dropout,
        checkpointing=_word(Checkpointing, "--checkpointing", checkpointing),
        attention=attention or ("eager" if card.family == "gemma2" else "sdpa"),  # type: ignore[arg-type]
        loss=loss,  # type: ignore[arg-type]
        parameters=stored,
        activations=stored,
        adapters=_word(Dtype, "--adapters", adapters),
        double_quantisation=not single_quantisation,
        optimizer=optimizer,  # type: ignore[arg-type]
        master_weights=master_weights,
        sharding=sharding or ("fsdp2" if devices > 1 else "single"),  # type: ignore[arg-type]
        world_size=devices,
        tensor_parallel=tensor_parallel,
        offload=offload,
    )
    ledger = estimate_memory(shape)
    cards = [facts.accelerator(name) for name in accelerator] if accelerator else list(facts.accelerators.values())
    found = memory_fits(shape, cards)
    size = tokens_of(shape, samples, tokens, epochs)
    wanted = throughput or size is not None or like is not None or usd_per_hour is not None
    fitted = fit(calibrate(facts.root.parent, facts).rows) if wanted else None
    stack = stack_named(fitted, like, shape) if fitted else ""
    predicted = (
        list(job_estimates(facts, fitted, shape, [card.key for card in cards], JobRequest(stack, size, usd_per_hour))) if fitted else []
    )
    if as_json:
        print_json(_as_json(shape, ledger, found) | ({"throughput": throughput_json(predicted, stack)} if fitted else {}))
        return
    _print(shape, ledger, found)
    if fitted:
        show(predicted, stack)


def _word(kind: type[Word], option: str, word: str) -> Word:
    """Return a word of a closed list; raises TunemarkError with a suggestion."""
    try:
        return kind(word.lower())
    except ValueError:
        raise TunemarkError(option, word, did_you_mean(word, [known.value for known in kind])) from None


def _print(shape: TrainingShape, ledger: MemoryLedger, found: tuple[MemoryFit, ...]) -> None:
    title = f"{shape.model.name}, {shape.method.value}, {shape.micro_batch} x {shape.sequence_length} tokens, per device"
    print_table(
        ["memory", "what", "when", "how"],
        [(gib(line.bytes), line.key, _when(line.moments), line.formula) for line in ledger.lines],
        title=title,
    )
    typer.echo("")
    print_table(
        ["memory", "peak"],
        [
            *((gib(ledger.allocated_at(moment)), f"live tensors, {moment}") for moment in MOMENTS),
            (gib(ledger.peak_reserved), "held by a caching allocator that is not short of memory"),
            (gib(ledger.needed), f"needed of a device: the peak ({ledger.peak_moment}) and {gib(ledger.outside)} outside of the allocator"),
        ],
    )
    typer.echo("")
    print_table(
        ["accelerator", "has", "fits", "margin", "largest micro-batch"],
        [(fit.name, gib(fit.memory), fit.verdict, _signed(fit.margin), fit.largest_micro_batch) for fit in found],
    )


def _when(moments: tuple[str, ...]) -> str:
    return "always" if len(moments) == len(MOMENTS) else ", ".join(moments)


def _signed(size: int) -> str:
    return f"{'+' if size >= 0 else '-'}{gib(abs(size))}"


def _as_json(shape: TrainingShape, ledger: MemoryLedger, found: tuple[MemoryFit, ...]) -> dict[str, Any]:
    settings = {field.name: getattr(shape, field.name) for field in fields(shape)}
    return {
        "shape": settings | {"model": shape.model.key},
        "lines": [
            {"key": line.key, "group": line.group, "bytes": line.bytes, "formula": line.formula, "moments": list(line.moments)}
            for line in ledger.lines
        ],
        "allocated_bytes": {moment: ledger.allocated_at(moment) for moment in MOMENTS},
        "peak_moment": ledger.peak_moment,
        "peak_allocated_bytes": ledger.peak_allocated,
        "peak_reserved_bytes": ledger.peak_reserved,
        "needed_bytes": ledger.needed,
        "accelerators": [
            {
                "accelerator": fit.accelerator,
                "memory_bytes": fit.memory,
                "fits": fit.fits,
                "margin_bytes": fit.margin,
                "largest_micro_batch": fit.largest_micro_batch,
            }
            for fit in found
        ],
    }
