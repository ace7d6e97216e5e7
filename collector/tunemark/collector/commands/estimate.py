"""The command `estimate`: the memory of a training step, the accelerators it fits on, and the predicted time and cost of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunemark.collector.commands.terminal import AsJson, chosen, print_json, print_table, say
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import gib
from tunemark.schema.physics.architecture import FAMILIES
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.physics.memory_states import MOMENTS, MemoryLedger
from tunemark.schema.physics.training_shape import ALL_LINEAR, TrainingShape
from tunemark.schema.recommendation import provider_name
from tunemark.schema.vocabulary import Checkpointing, Dtype, Method

if TYPE_CHECKING:
    from tunemark.collector.predict.estimate import JobEstimate, Like, MemoryFit, Range

USUAL_LENGTH = 2048

NO_PRICE = "no list price for this number of devices; give --usd-per-hour"

# The predictor needs numpy and the audit; it is imported by the functions that use it, to keep --help fast.
# ruff: noqa: PLC0415


NO_ADAPTERS = "full fine-tuning has no adapters; use it with --method lora or qlora"
UNUSED = {
    "reentrant": ("--reentrant", "blocks are not checkpointed; add --checkpointing full or selective"),
    "rank": ("--rank", NO_ADAPTERS),
    "targets": ("--targets", NO_ADAPTERS),
    "dropout": ("--dropout", NO_ADAPTERS),
    "adapters": ("--adapters", NO_ADAPTERS),
    "single_quantisation": ("--single-quantisation", "only qlora quantises weights; use it with --method qlora"),
    "epochs": ("--epochs", "give the size of the data too, with --samples or --tokens"),
    "usd_per_hour": ("--usd-per-hour", "a cost needs the size of the data; give --samples or --tokens"),
}
"""Parameter -> its option, and the reason why it has no effect on this job."""


def estimate(
    context: typer.Context,
    model: Annotated[str, typer.Option("--model", "-m", help="A model card, by key or name.", show_default=False)],
    method: Annotated[str, typer.Option("--method", help="full, lora or qlora.")] = "lora",
    sequence_length: Annotated[
        int | None,
        typer.Option("--seq", help="Tokens in a row. Default: 2048, or the model's context if that is shorter.", show_default=False),
    ] = None,
    micro_batch: Annotated[int, typer.Option("--micro-batch", help="Rows of one forward and backward on one device.")] = 1,
    *,
    accelerator: Annotated[
        list[str] | None,
        typer.Option("--accelerator", "-a", help="An accelerator card; may be repeated. Default: all.", show_default=False),
    ] = None,
    checkpointing: Annotated[str, typer.Option("--checkpointing", help="none, selective or full.")] = "none",
    reentrant: Annotated[bool, typer.Option("--reentrant", help="Use torch's older, re-entrant checkpointing.")] = False,
    activation_offload: Annotated[
        bool, typer.Option("--activation-offload", help="Keep the inputs of checkpointed blocks in host memory.")
    ] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile: element-wise results are recomputed.")] = False,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention", help="sdpa, flash or eager. Default: sdpa, or eager for Gemma 2 as in transformers.", show_default=False
        ),
    ] = None,
    loss: Annotated[
        str, typer.Option("--loss", help="plain, upcast (logits cast to fp32), inplace (Triton kernels), chunked or fused (Liger).")
    ] = "upcast",
    optimizer: Annotated[
        str,
        typer.Option("--optimizer", help="adamw, adamw-fused, adamw-8bit, paged-adamw, paged-adamw-8bit, sgd or adafactor."),
    ] = "adamw",
    optimizer_in_backward: Annotated[
        bool, typer.Option("--optimizer-in-backward", help="Update each weight as soon as its gradient is complete.")
    ] = False,
    gradient_accumulation: Annotated[int, typer.Option("--accumulate", help="Micro-steps in an optimizer step.")] = 1,
    rank: Annotated[int, typer.Option("--rank", help="Rank of the adapters.")] = 16,
    targets: Annotated[str, typer.Option("--targets", help="Layers with an adapter, separated by commas, or all-linear.")] = "all-linear",
    dropout: Annotated[float, typer.Option("--dropout", help="Dropout before the adapters.")] = 0.0,
    parameters: Annotated[
        str | None,
        typer.Option(
            "--parameters",
            help="Format of weights that are not quantised. Default: bf16, or fp32 for qlora as in peft's recipe.",
            show_default=False,
        ),
    ] = None,
    autocast: Annotated[
        str | None,
        typer.Option("--autocast", help="Format of matrix products under autocast; for --parameters fp32.", show_default=False),
    ] = None,
    activations: Annotated[
        str | None,
        typer.Option("--activations", help="Format of the residual stream. Default: that of the parameters.", show_default=False),
    ] = None,
    adapters: Annotated[str, typer.Option("--adapters", help="Format of the adapters.")] = "fp32",
    single_quantisation: Annotated[bool, typer.Option("--single-quantisation", help="QLoRA without double quantisation.")] = False,
    master_weights: Annotated[bool, typer.Option("--master-weights", help="Keep an fp32 copy of trained 16-bit weights.")] = False,
    sharding: Annotated[
        str | None,
        typer.Option("--sharding", help="ddp, zero1 to zero3, fsdp1 or fsdp2. Default with several devices: fsdp2.", show_default=False),
    ] = None,
    devices: Annotated[int, typer.Option("--devices", help="Data-parallel devices.")] = 1,
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", help="Devices that share each matrix.")] = 1,
    offload: Annotated[bool, typer.Option("--offload", help="Keep parameters and optimizer states in host memory.")] = False,
    throughput: Annotated[bool, typer.Option("--throughput", help="Also predict tokens per second from accepted results.")] = False,
    samples: Annotated[
        int | None, typer.Option("--samples", help="Rows of the data, taken as full: also predict time and cost.", show_default=False)
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="Tokens of the data: also predict time and cost.", show_default=False)
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the data.")] = 1,
    usd_per_hour: Annotated[
        float | None,
        typer.Option("--usd-per-hour", help="Price of all devices. Default: the on-demand list price in data/prices.", show_default=False),
    ] = None,
    like: Annotated[
        str,
        typer.Option(
            "--like",
            help="Software to predict for: plain (transformers and peft), tuned (fused kernels or torch.compile) or vendor; or a training loop with results: a document such as 003, mlperf, or measured.",
        ),
    ] = "plain",
    as_json: AsJson = False,
) -> None:
    """Estimate the memory of a training step, line by line with formulas, and the accelerators it fits on.

    Nothing is run or fetched: everything follows from the model card. A step needs its live tensors and the memory that the device
    holds outside the allocator, with a 90% interval from published peaks. The verdict is `fits` if the device
    has room for the upper end of the interval and the cache of the allocator, `probably` if it has room for the upper end, `tight` if it
    has room for the lower end only, and otherwise `no`.

    With --throughput, --samples or --tokens the command also predicts speed, time and cost where the step fits, each with a 90%
    interval, from the results that the audit accepts. Where nothing similar was measured, it gives the reason. The accuracy of
    such predictions is computed by each `tunemark collect` and shown on the site. The rate of tuned software is shown for comparison.

    Exit codes: 0 estimated, 2 an unknown model, accelerator or word.

    Examples
    --------
    - `tunemark estimate -m llama-3.1-8b --method lora --seq 8192`

    - `tunemark estimate -m llama-3.1-8b --method qlora -a "RTX 4090" -a L4 --json`

    - `tunemark estimate -m llama-3.1-8b --samples 10000 -a "H100 80GB" -a B200`

    - `tunemark estimate -m llama-3.1-70b --method full --devices 16`
    """
    facts = FactBase.of_project()
    card, method_used = facts.model(model), chosen("--method", method, Method)
    _refuse_unused(
        context,
        {
            "reentrant": checkpointing == Checkpointing.NONE.value,
            **dict.fromkeys(("rank", "targets", "dropout", "adapters"), method_used is Method.FULL),
            "single_quantisation": method_used is not Method.QLORA,
            **dict.fromkeys(("epochs", "usd_per_hour"), samples is None and tokens is None),
        },
    )
    stored = chosen("--parameters", parameters or ("fp32" if method_used is Method.QLORA else "bf16"), Dtype)
    shape = TrainingShape(
        card,
        method_used,
        min(USUAL_LENGTH, card.context_length) if sequence_length is None else sequence_length,
        micro_batch,
        gradient_accumulation=gradient_accumulation,
        lora_rank=rank,
        lora_targets=ALL_LINEAR if targets == ALL_LINEAR[0] else tuple(name.strip() for name in targets.split(",")),
        lora_dropout=dropout,
        checkpointing=chosen("--checkpointing", checkpointing, Checkpointing),
        reentrant=reentrant,
        activation_offload=activation_offload,
        compiled=compiled,
        attention=attention or ("eager" if card.family == "gemma2" else "sdpa"),  # type: ignore[arg-type]
        loss=loss,  # type: ignore[arg-type]
        parameters=stored,
        activations=stored if activations is None else chosen("--activations", activations, Dtype),
        autocast=None if autocast is None else chosen("--autocast", autocast, Dtype),
        adapters=chosen("--adapters", adapters, Dtype),
        double_quantisation=not single_quantisation,
        optimizer=optimizer,  # type: ignore[arg-type]
        master_weights=master_weights,
        optimizer_in_backward=optimizer_in_backward,
        sharding=sharding or ("fsdp2" if devices > 1 else "single"),  # type: ignore[arg-type]
        world_size=devices,
        tensor_parallel=tensor_parallel,
        offload=offload,
    )
    from tunemark.collector.predict.estimate import memory_fits, tokens_of

    warnings = _check_length(shape)
    ledger = estimate_memory(shape)
    # A step on a CPU uses the host's memory, which its card does not know.
    devices_known = [card for card in facts.accelerators.values() if card.unit != "cpu"]
    cards = [facts.accelerator(name) for name in accelerator] if accelerator else devices_known
    fits, size = memory_fits(shape, cards), tokens_of(shape, samples, tokens, epochs)
    software: Like | None = None
    jobs: list[JobEstimate] = []
    if throughput or size is not None or like != "plain" or usd_per_hour is not None:
        from tunemark.collector.predict.calibration_rows import calibrate
        from tunemark.collector.predict.estimate import job_estimates, software_like
        from tunemark.collector.predict.fit import fit

        fitted = fit(calibrate(project_root(), facts).rows)
        software = software_like(fitted, like)
        keys = [known.key for known in cards]
        jobs = list(job_estimates(facts, fitted, shape, keys, like=software, tokens=size, usd_per_hour=usd_per_hour))
    if as_json:
        predicted = {"throughput": _jobs_json(jobs, software)} if software else {}
        print_json(_memory_json(shape, ledger, fits) | {"assumes": _memory_software(shape), "warnings": warnings} | predicted)
        return
    _print_memory(shape, ledger, fits)
    if software:
        _print_jobs(jobs, software)


def _refuse_unused(context: typer.Context, unused: Mapping[str, bool]) -> None:
    """Raise TunemarkError for an option that was given but has no effect on this job."""
    for name, without_effect in unused.items():
        source = context.get_parameter_source(name)
        if without_effect and source is not None and source.name == "COMMANDLINE":
            option, fix = UNUSED[name]
            raise TunemarkError(option, context.params[name], f"has no effect here: {fix}")


def _check_length(shape: TrainingShape) -> list[str]:
    """Print and return a warning if rows are longer than the model's context. Raises TunemarkError if its positions are learned."""
    model, length = shape.model, shape.sequence_length
    if length <= model.context_length:
        return []
    if FAMILIES[model.family].learned_positions:
        raise TunemarkError("--seq", length, f"{model.name} has positions for {model.context_length:,} tokens; give at most that number")
    warning = f"--seq: rows of {length:,} tokens are longer than the context of {model.name}, {model.context_length:,} tokens"
    say(f"tunemark: warning: {warning}")
    return [warning]


def _memory_software(shape: TrainingShape) -> str:
    """Return the software that the memory is estimated for."""
    settings = f"attention {shape.attention}, loss {shape.loss}, optimizer {shape.optimizer}, checkpointing {shape.checkpointing.value}"
    return f"a transformers and peft loop with {settings}"


def _speed_software(like: "Like") -> str:
    """Return the software that the speed is predicted for."""
    return f"{like.name} with the kernels and loss of its results, which can differ from those of the memory estimate"


# Tables for readers ---------------------------------------------------------------------------------


def _print_memory(shape: TrainingShape, ledger: MemoryLedger, fits: "Sequence[MemoryFit]") -> None:
    def when(moments: tuple[str, ...]) -> str:
        return "always" if len(moments) == len(MOMENTS) else ", ".join(moments)

    title = f"{shape.model.name}, {shape.method.value}, {shape.micro_batch} x {shape.sequence_length} tokens, per device. Memory assumes {_memory_software(shape)}."
    lines = [(gib(line.bytes), line.key, when(line.moments), line.formula) for line in ledger.lines]
    print_table(["memory", "what", "when", "how"], lines, title=title)
    typer.echo("")
    interval = f"{gib(ledger.needed_low)} to {gib(ledger.needed_high)}"
    needed = (
        f"needed on each device, 90% interval {interval}: the peak ({ledger.peak_moment}) and {gib(ledger.outside)} outside the allocator"
    )
    peaks = [(gib(ledger.allocated_at(moment)), f"live tensors, {moment}") for moment in MOMENTS]
    low, high = ledger.reserved_interval
    held = (gib(ledger.peak_reserved), f"reserved by a caching allocator with memory to spare, 90% interval {gib(low)} to {gib(high)}")
    print_table(["memory", "peak"], [*peaks, held, (gib(ledger.needed), needed)])
    typer.echo("")
    verdicts = [
        (fit.name, gib(fit.memory), fit.verdict, f"{'+' if fit.fits else '-'}{gib(abs(fit.margin))}", fit.largest_micro_batch)
        for fit in fits
    ]
    print_table(["accelerator", "has", "fits", "margin", "largest micro-batch"], verdicts)


def _print_jobs(jobs: "Sequence[JobEstimate]", like: "Like") -> None:
    from tunemark.collector.predict.estimate import LEVEL

    predicted = [(job, job.throughput) for job in jobs if job.throughput is not None]
    predicted.sort(key=lambda pair: -pair[1].tokens_per_s.value)
    if predicted:
        columns = ["accelerator", "predicted tokens/s", "90% interval", "tuned", "time", "90% interval", "usd", "90% interval", "at"]
        title = f"Predicted, with an interval of {LEVEL:.0%}: training alone, without start, evaluation and saving. Speed assumes {_speed_software(like)}."
        rows = [
            (
                job.name,
                *_with_interval(throughput.tokens_per_s, formats.significant),
                "" if job.tuned is None else formats.significant(job.tuned.value),
                *_with_interval(job.seconds, formats.estimated_duration),
                *_with_interval(job.usd, formats.usd),
                _offer(job),
            )
            for job, throughput in predicted
        ]
        typer.echo("")
        print_table(columns, rows, title=title)
        typer.echo("")
        nearest = [
            (job.name, ", ".join(row.id for row in throughput.neighbours), ", ".join(throughput.unseen) or "(none)")
            for job, throughput in predicted
        ]
        print_table(["accelerator", "nearest results", "properties without any result"], nearest)
    reasons = [(job.name, job.reason) for job in jobs if job.throughput is None]
    if reasons:
        typer.echo("")
        print_table(["accelerator", "no data"], reasons)


def _offer(job: "JobEstimate") -> str:
    """Return the offer behind a cost, or the reason why there is no cost."""
    if job.price is not None:
        return f"{job.price.usd_per_hour:g}/h {provider_name(job.price.provider)} {job.price.instance}"
    return NO_PRICE if job.seconds is not None and job.usd is None else ""


def _with_interval(figure: "Range | None", show: Any) -> tuple[str, str]:  # noqa: ANN401 - a formatter of one number
    return ("", "") if figure is None else (show(figure.value), f"{show(figure.low)} to {show(figure.high)}")


# JSON for programs ---------------------------------------------------------------------------------


def _memory_json(shape: TrainingShape, ledger: MemoryLedger, fits: "Sequence[MemoryFit]") -> dict[str, Any]:
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
        "peak_reserved_interval_bytes": list(ledger.reserved_interval),
        "needed_bytes": ledger.needed,
        "needed_interval_bytes": [ledger.needed_low, ledger.needed_high],
        "accelerators": [
            {
                "accelerator": fit.accelerator,
                "memory_bytes": fit.memory,
                "fit": fit.verdict,
                "margin_bytes": fit.margin,
                "largest_micro_batch": fit.largest_micro_batch,
            }
            for fit in fits
        ],
    }


def _jobs_json(jobs: "Sequence[JobEstimate]", like: "Like") -> dict[str, Any]:
    from tunemark.collector.predict.estimate import LABEL, LEVEL

    accelerators = [
        {
            "accelerator": job.accelerator,
            "tokens_per_s": asdict(job.throughput.tokens_per_s) if job.throughput else None,
            "tuned_tokens_per_s": job.tuned and asdict(job.tuned),
            "seconds": job.seconds and asdict(job.seconds),
            "usd": job.usd and asdict(job.usd),
            "price": job.price and job.price.model_dump(mode="json"),
            "no_price": NO_PRICE if job.seconds is not None and job.usd is None else None,
            "rests_on": [row.id for row in job.throughput.neighbours] if job.throughput else [],
            "unseen": list(job.throughput.unseen) if job.throughput else [],
            "no_data": job.reason,
        }
        for job in jobs
    ]
    return {"label": LABEL, "level": LEVEL, "like": like.name, "assumes": _speed_software(like), "accelerators": accelerators}
