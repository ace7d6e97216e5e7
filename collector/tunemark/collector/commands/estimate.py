"""The command `estimate`: the memory of a training step, the accelerators it fits on, and the predicted time and cost of a job."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import takewhile
from typing import Annotated, Any

import typer

from tunemark.collector.commands import options as ui
from tunemark.collector.predict.estimate import (
    MODERN_CONTEXT,
    Estimate,
    StackedMemory,
    estimates,
    largest_models,
    range_of,
    read_evidence,
    shown_plan,
    tell_levels,
)
from tunemark.collector.store.database import columns_of
from tunemark.schema import formats
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import gib
from tunemark.schema.option_rates import TRAINED, cautions
from tunemark.schema.physics.memory import MOMENTS
from tunemark.schema.physics.stacks import STACKS
from tunemark.schema.plan_search import Asked, division_of
from tunemark.schema.recommendation import ANY, PROVEN, Rate, provider_name
from tunemark.schema.recommendation_words import SHOWN, asked_in_words, measured_rates, methods_fit
from tunemark.schema.throughput import LEVEL, Range
from tunemark.schema.vocabulary import FITS, METHODS, Dtype, Method
from tunemark.terminal import AsJson, print_json, print_table, say, tell


@ui.named_as(ui.OPTIONS | ui.OPTIONS_OF_SHAPE)
def estimate(
    model: Annotated[str | None, ui.Model] = None,
    method: Annotated[str | None, ui.option("--method", "full, lora, qlora or any. Default: lora; full for encoders.")] = None,
    sequence_length: ui.Length = None,
    micro_batch: Annotated[str | None, ui.option("--micro-batch", "Rows of a micro-step on a device. Default: the fastest.")] = None,
    *,
    accelerator: ui.Accelerators = None,
    devices: Annotated[str | None, ui.option("--devices", "Data-parallel devices. Default: 1, or as in -a '8 x H100'.")] = None,
    sharding: Annotated[str | None, ui.option("--sharding", "ddp, zero1 to zero3, fsdp1, fsdp2 or fsdp-grad-op.")] = None,
    checkpointing: Annotated[
        str | None, ui.option("--checkpointing", "none, selective or full. Default: the stack's, or the fastest.")
    ] = None,
    rank: Annotated[str | None, ui.option("--rank", "Rank of the adapters. Default: 16.")] = None,
    optimizer: Annotated[
        str | None,
        ui.option("--optimizer", "Default: the stack's; adamw (unfused), adamw-fused, [paged-]adamw-8bit, paged-adamw, sgd or adafactor."),
    ] = None,
    stack: ui.StackName = None,
    tokens: ui.Tokens = None,
    samples: ui.Samples = None,
    epochs: Annotated[int | None, ui.option("--epochs", "Passes over the data. Default: 1.")] = None,
    software: ui.Software = None,
    usd_per_hour: Annotated[float | None, ui.option("--usd-per-hour", "Of all devices, not list price.")] = None,
    settings: ui.Settings = None,
    as_json: AsJson = False,
) -> None:
    """Estimate memory and speed of a training step on accelerators, and with --tokens or --samples time and cost; without a model, the largest that fit.

    All figures are those of the fastest plan that fits on the accelerator; --micro-batch, --checkpointing and --sharding fix their part of
    it. Speed is predicted from accepted results, with a 90% interval, as `recommend` does. Memory follows from the model card and the
    software stack: what most people run unless --stack names one. It is shown line by line for the smallest accelerator that the step fits
    on. The verdict is `fits` if the device has room for the upper end of that software's interval and the cache of the allocator,
    `probably` without that cache, `unsure` if it has room for the lower end only, else `no`; then other software and methods that fit are named.

    Exit codes: 0 estimated, 2 an unknown model, accelerator or word.

    Examples
    --------
    - `tunemark estimate -m llama-3.1-8b --method lora --seq 8192`
    - `tunemark estimate -m llama-3.1-8b --method qlora -a L4 --json`
    - `tunemark estimate -m qwen3-8b --method any -a "RTX 4090"`
    - `tunemark estimate -a "RTX 4090" --method qlora`
    - `tunemark estimate -m llama-3.1-8b --samples 10k -a H100 -a B200`
    - `tunemark estimate -m llama-3.1-70b --devices 16 --set loss=fused`
    """
    facts = FactBase.of_project()
    given = {ui.STEP_SETTINGS[name]: text for name, text in ui.named_settings(settings, ui.STEP_SETTINGS).items()}
    typed = {"micro_batch": micro_batch, "checkpointing": checkpointing, "sharding": sharding, "lora_rank": rank, "optimizer": optimizer}
    if model is None and not accelerator:
        raise TunemarkError("--model/-m", "", "missing; or give only --accelerator for the largest models that fit on it")
    card, methods = None if model is None else ui.named_model(facts, model), list(TRAINED)
    if (method or card) and method != ANY:
        methods = [ui.training_method(method, methods, card, model or "")]
    for name, number in {"--epochs": epochs, "--usd-per-hour": usd_per_hour}.items():
        if number is not None and not (samples or tokens):
            raise TunemarkError(name, number, "has no effect here: give the size of the data too, with --samples or --tokens")
    chosen_stack, level = ui.software_of(stack, software)
    kept = ui.fields_of_step({name: text for name, text in typed.items() if text is not None} | given, methods[-1])
    length = ui.row_length(card, sequence_length)
    in_fp32 = kept.get("parameters") is Dtype.FP32 and not kept.get("autocast")
    slow = "weights in fp32 also multiply in fp32: --set autocast=bf16 is mixed precision" if in_fp32 else ""
    runs_on = STACKS[chosen_stack].runs_on if chosen_stack else lambda _: True
    # A step on a CPU uses the host's memory, which its card does not know.
    every_card = [(card, None) for card in facts.accelerators.values() if card.unit != "cpu" and card.memory_gib and runs_on(card.vendor)]
    named = [*ui.named_accelerators(facts, ui.listed(accelerator)).values()] if accelerator else every_card
    remarks = [f"{each.name}: {remark}" for each, _ in named if accelerator and (remark := each.remarks_on(chosen_stack))]
    size = ui.job_tokens(tokens, samples, length, 1 if epochs is None else epochs) if {samples, tokens} != {None} else None
    evidence = read_evidence(project_root(), facts, say)
    tell_levels((each for each, _ in named if accelerator and level == "plain"), evidence.results, card)
    asked = Asked(kept, chosen_stack, named=tuple(each.key for each, _ in named) if accelerator else ())
    each_has = None if devices is None else ui.read_number("--devices", devices)
    places = [(each, _count(each_has, count, kept.get("tensor_parallel", 1))) for each, count in named]
    search = partial(estimates, facts, evidence, length=length, level=level, asked=asked, tokens=size, usd_per_hour=usd_per_hour)
    if card is None:
        largest = [each for place in places for name in methods for each in largest_models(facts, place, name, length, search)]
        _answer_largest(largest, as_json)
        return
    found = [each for name in methods for each in search(places=places, model=card, method=name)]
    for warning in (warnings := list(filter(None, (cautions(card, length), slow, *remarks)))):
        say(f"tunemark: warning: {warning}")
    shown = shown_plan(found)
    shown_on = [place for place in places if (place[0].key, place[1]) == (shown.accelerator, shown.rate.devices)]
    on_shown = partial(search, places=shown_on, model=card, method=Method(shown.rate.method))
    _tell_without_effect(on_shown, shown, asked, given)
    memory, shape = shown.memory, shown.memory.shape
    settled = f"attention {shape.attention}, loss {shape.loss}, optimizer {shape.optimizer}, checkpointing {shape.checkpointing.value}"
    answer = {"plan_on": shown.accelerator} | _memory_json(memory, shown.memory_bytes)
    answer |= {"assumes": f"the stack {memory.stack} with {settled}", "warnings": warnings, "tokens": size}
    loops = {} if chosen_stack else _speed_by_stack(on_shown, shown, asked)
    answer |= {"software": level, "label": "predicted", "level": LEVEL, "accelerators": [_estimate_json(each) for each in found]}
    answer |= {"speed_by_stack": {name: asdict(speed) | {"plan": plan} for name, (speed, plan) in loops.items()}}
    if as_json:
        print_json(answer)
        return
    typer.echo(f"{asked_in_words(card, methods[0] if len(methods) == 1 else ANY, size, length)}\n")
    _print_answer(found, named=bool(accelerator))
    for hint in (*_hints(on_shown, found, shown, asked), *_loops_in_words(loops, shown)):
        tell(hint)
    assumed, [(on, _), *_] = f"with the plan for {METHODS[shown.rate.method]} on {_hardware(shown)} and {answer['assumes']}", shown_on
    _print_memory(shown, assumed, by_torch=on.vendor in {"NVIDIA", "AMD"})


def _tell_without_effect(estimate: Callable[..., Iterator[Estimate]], shown: Estimate, asked: Asked, names: Iterable[str]) -> None:
    """Say which of the named settings leave the rate of the plan that is shown as it is."""
    plan = {field: getattr(shown.memory.shape, field) for field in ("micro_batch", "checkpointing", "sharding")}
    # Without shared matrices, the devices would need another sharding.
    for name in (name for name in names if name != "tensor_parallel"):
        others = replace(asked, given=plan | {field: value for field, value in asked.given.items() if field != name})
        if next(estimate(asked=others)).tokens_per_s == shown.tokens_per_s is not None:
            any_loop = f"which is that of any {shown.rate.software} loop; compiled and fused ones are tuned: --software tuned"
            say(f"tunemark: {ui.OPTIONS_OF_SHAPE[name]}: no effect on the rate of this plan, {any_loop}")


def _speed_by_stack(estimate: Callable[..., Iterator[Estimate]], shown: Estimate, asked: Asked) -> dict[str, tuple[Range, str]]:
    """Return the tokens/s and the plan of a step with each software stack whose training loop has results, where it fits; none without a speed at all."""
    found: dict[str, tuple[Range, str]] = {}
    for name, stack in STACKS.items() if shown.tokens_per_s else ():
        if stack.loop_for(shown.memory.shape.model, shown.rate.devices):
            with suppress(TunemarkError):
                each = next(estimate(level=stack.level, asked=replace(asked, stack=name)))
                found |= {name: (each.tokens_per_s, each.plan)} if each.tokens_per_s and each.fit in FITS else {}
    return found


def _loops_in_words(loops: Mapping[str, tuple[Range, str]], shown: Estimate) -> Iterator[str]:
    if loops:
        speeds = ["{} {} ({}; {})".format(name, *_with_interval(speed, formats.significant), plan) for name, (speed, plan) in loops.items()]
        told = "By software (`--stack`), from its results on any device and each with its own fastest plan, predicted"
        yield f"{told} tokens/s on {_hardware(shown)}: {', '.join(speeds)}."


def _hints(estimate: Callable[..., Iterator[Estimate]], found: Sequence[Estimate], shown: Estimate, asked: Asked) -> Iterator[str]:
    """Yield sentences on the leanest stack that fits, else on options with which full fine-tuning fits, on the largest micro-batch, unless it was given, and on the longest rows, of 512 tokens or more."""
    if stacks := [each.with_stacks[0] for each in found if each.with_stacks]:
        yield f"`--stack {stacks[0]}` shows the memory with it, and its speed, time and cost where they are known."
    for option, given in LEVERS.items() if not stacks and shown.rate.method == Method.FULL and shown.fit not in FITS else ():
        with suppress(TunemarkError):
            each = next(estimate(asked=replace(asked, given=dict(asked.given) | given)))
            if each.with_stacks or each.fit in FITS:
                stack = f"--stack {each.with_stacks[0]} " if each.with_stacks else ""
                yield f"On {_hardware(shown)} it fits with `{stack}{option}`."
    sizes = (2**power for power in range(0 if "micro_batch" in asked.given else 32))
    sized = (next(estimate(asked=replace(asked, given={**asked.given, "micro_batch": rows}))) for rows in sizes)
    longer = (next(estimate(length=2**power)) for power in range(9, shown.memory.shape.model.context_length.bit_length()))
    for name, tries in (("Largest micro-batch that fits", sized), ("Longest rows that fit", longer)):
        for most in [*takewhile(lambda each: each.fit in FITS, tries)][-1:]:
            length = f"{most.memory.shape.sequence_length:,} tokens, " if tries is longer else ""
            speed = _with_interval(most.tokens_per_s, formats.significant)[0] or "unknown"
            yield f"{name} on {_hardware(shown)}, of powers of 2: {length}{most.plan} ({speed} tokens/s)."


def _count(devices: int | None, counted: int | None, shared: int) -> int:
    """Return the number of devices: that in the name of an accelerator, or the data-parallel ones times those that share each matrix."""
    count = (1 if devices is None else devices) * shared if counted is None else counted
    if count % shared:
        raise TunemarkError("--set tensor_parallel", shared, f"{count} devices cannot be split into groups of {shared}")
    if devices not in {None, count // shared}:
        raise TunemarkError("--devices", devices, f"differs from {counted} in the name of the accelerator; give one of them")
    return count


def _answer_largest(found: Sequence[Estimate], as_json: bool) -> None:  # noqa: FBT001 - as the option
    if as_json:
        print_json({"models": [_estimate_json(each) | {"model": each.memory.shape.model.key} for each in found]})
        return
    typer.echo(
        f"The largest models that fit, one of each size, and a larger one that fits with other software, of those with a context of {MODERN_CONTEXT:,} tokens or more{'' if found else ': none'}\n"
    )
    if found:
        _print_answer(found, named=True, models=True)


# Tables for readers ---------------------------------------------------------------------------------


def _print_memory(shown: Estimate, assumed: str, *, by_torch: bool) -> None:
    """Print the memory of a plan as it is measured, by torch where it measures it, line by line, and with other software stacks."""
    shape, ledger = shown.memory.shape, shown.memory.ledger
    # Without a chosen stack the intervals are those of all.
    by_need = sorted(shown.memory.ledgers, key=lambda name: shown.memory.ledgers[name].needed_low)
    heaviest_stack = max(by_need, key=lambda name: shown.memory.ledgers[name].fit_limits["fits"])
    leanest, heaviest = (f" (with {name})" if len(by_need) > 1 else "" for name in (by_need[0], heaviest_stack))
    measured = {"needed: a device must have it": (ledger.needed, *shown.memory.needed_interval)}
    measured |= shown.memory.measured_as(shown.memory_bytes) if by_torch else {}
    rows = [(name, gib(value), f"{gib(low)}{leanest} to {gib(high)}{heaviest}") for name, (value, low, high) in measured.items()]
    typer.echo("")
    title = f"Memory of {shape.micro_batch} x {shape.sequence_length} tokens per device, {assumed}. With rows of varied lengths, what is reserved nears the upper ends."
    print_table(["memory of each device", "predicted", f"90% interval{' over all stacks' if leanest else ''}"], rows, title=title)
    lines = [
        (gib(line.bytes), line.key, "always" if len(line.moments) == len(MOMENTS) else ", ".join(line.moments), line.formula)
        for line in ledger.lines
    ]
    typer.echo("")
    peaks = ", ".join(f"{moment} {gib(ledger.allocated_at(moment))}" for moment in MOMENTS)
    outside = f"needed is the largest of these with {gib(ledger.outside)} outside the allocator"
    print_table(["memory", "what", "when", "how"], lines, title=f"Live tensors: {peaks}; {outside}.")
    if len(shown.memory.ledgers) > 1:
        needed = sorted((each.needed, name) for name, each in shown.memory.ledgers.items())
        tell(f"Needed by software stack, each with its own recomputation: {', '.join(f'{name} {gib(size)}' for size, name in needed)}.")


def _offer(each: Estimate) -> str:
    """Return the price by the hour, and how many devices are paid for if that is more than are used."""
    price, count = each.price, each.instances
    if price is None:
        return f"{each.usd.value / each.seconds.value * formats.HOUR_S:g}/h in all, as given" if each.usd and each.seconds else ""
    idle = f", for all of its {price.accelerator_count:g} devices" if price.accelerator_count * count != each.rate.devices else ""
    return f"{f'{count} x ' if count > 1 else ''}{price.usd_per_hour:g}/h {provider_name(price.provider)} {price.instance}{idle}"


VENDORS = " (--software vendor)"
JOB = ("time", "90% interval", "usd", "90% interval", "at")
LEVERS: dict[str, dict[str, Any]] = {"--optimizer adamw-8bit": {"optimizer": "adamw-8bit"}, "--set offload=true": {"offload": True}}
"""Options with which full fine-tuning needs less memory -> the fields of the step that they give."""


def _print_answer(every: Sequence[Estimate], *, named: bool, models: bool = False) -> None:
    """Print speed, time, cost, fit and evidence on each accelerator, the fastest first, by method, or of each model. A plan that does not fit has no speed.

    It has a row if its accelerator is named, or if it fits with other software; if nothing fits, the largest accelerators have one.
    """
    sized, rows, by_method = any(each.seconds for each in every), [], models or len({each.rate.method for each in every}) > 1
    largest = sorted(every, key=lambda each: -each.memory_bytes)[:SHOWN]
    listed = [each for each in every if named or each.fit != "no" or each.with_stacks] or largest
    found = [
        replace(each, tokens_per_s=None, seconds=None, usd=None, price=None, no_price=None) if each.fit == "no" else each for each in listed
    ]
    for each in found if models else sorted(found, key=lambda each: -each.tokens_per_s.value if each.tokens_per_s else 0.0):
        job = (*_with_interval(each.seconds, formats.estimated_duration), *_with_interval(each.usd, formats.estimated_usd))
        rates = [f"{formats.significant(rate.tokens_per_s or 0.0)}{'' if rate.software != 'vendor' else VENDORS}" for rate in each.faster]
        # Where the middle leaves it open whether a plan fits, its interval is shown.
        ledger = each.memory.ledger
        needed = f"{gib(ledger.needed_low)} to {gib(ledger.needed_high)}" if each.fit == "unsure" else gib(ledger.needed)
        row = (
            *(METHODS[each.rate.method],) * by_method,
            *(each.memory.shape.model.name,) * models,
            _hardware(each),
            "; ".join(filter(None, (each.fit, _with_stacks(each.with_stacks), methods_fit(each.fitting) if each.fitting else ""))),
            f"{needed} of {gib(each.memory_bytes)}",
            *_with_interval(each.tokens_per_s, formats.significant),
            *(rates[:1] if rates and each.fit != "no" else ("",)),
            *((*job, each.no_price or _offer(each)) if sized else ()),
            each.plan,
            _evidence(each),
        )
        rows.append(row)
    columns = [*("method",) * by_method, *("model",) * models, "accelerator", "fits", "needs", "tokens/s", "90% interval", "tuned"]
    columns += [*(JOB if sized else ()), "plan", "evidence"]
    level = " and ".join(dict.fromkeys(each.rate.software for each in found))
    title = f"Predicted for {level} software, with an interval of {LEVEL:.0%}: training alone, without start, evaluation and saving."
    if not any(each.tokens_per_s for each in found):
        title = f"{'It does not fit, so no' if all(each.fit == 'no' for each in found) else 'No'} speed is predicted for {level} software."
    print_table(columns, rows, title=title)
    if len(found) < len(every):
        typer.echo(f"It does not fit on {formats.counted(len(every) - len(found), 'further accelerator')}: -a shows one.")


def _with_stacks(stacks: Sequence[str]) -> str:
    """Return the leanest of the stacks with which a step fits, and the number of others; empty without any."""
    others = f" or {formats.counted(len(stacks) - 1, 'other')}" if len(stacks) > 1 else ""
    return f"fits with {stacks[0]}{others}" if stacks else ""


def _ran(rate: Rate, software: str = "") -> str:
    """Return the results that a rate rests on with their tokens/s on its devices."""
    return f"{software}{ui.cited(rate)}{f' at {measured_rates(rate)} tokens/s' if rate.measured_low else ''}"


def _evidence(each: Estimate) -> str:
    """Return the results that a rate rests on, and those that `--software` predicts from; without a rate the reason, and the software with which one is known."""
    if each.rate.reason:
        return f"{each.rate.reason}{''.join(f'; --software {other.software} has a rate' for other in each.faster[:1])}"
    others = [_ran(rate, f"{rate.software} ") for rate in each.faster if rate.evidence in PROVEN and rate is not each.rate]
    unseen = [f"no result of this {', '.join(each.unseen)}"] if each.unseen else []
    return "; ".join([_ran(each.rate), *others, *unseen])


def _hardware(each: Estimate) -> str:
    return f"{each.name} {formats.TIMES} {each.rate.devices}" if each.rate.devices > 1 else each.name


def _with_interval(figure: Range | None, show: Any) -> tuple[str, str]:  # noqa: ANN401 - a formatter of one number
    return ("", "") if figure is None else (show(figure.value), f"{show(figure.low)} to {show(figure.high)}")


def _memory_json(memory: StackedMemory, device_bytes: int) -> dict[str, Any]:
    shape, ledger = memory.shape, memory.ledger
    settings = {field.name: getattr(shape, field.name) for field in fields(shape)}
    return {
        "shape": settings | {"model": shape.model.key},
        "lines": [asdict(line) for line in ledger.lines],
        "allocated_bytes": {moment: ledger.allocated_at(moment) for moment in MOMENTS},
        **columns_of("memory", memory),
        "measured_as": {name: {"bytes": value, "interval": ends} for name, (value, *ends) in memory.measured_as(device_bytes).items()},
        "stacks": {
            name: {"needed_bytes": each.needed, "peak_allocated_bytes": each.peak_allocated} for name, each in memory.ledgers.items()
        },
    }


def _estimate_json(found: Estimate) -> dict[str, Any]:
    shape, needed = found.memory.shape, found.memory.ledger.needed
    own = {field.name: getattr(found, field.name) for field in fields(found) if field.name not in {"memory", "rate", "faster"}}
    memory = {"needed_bytes": needed, "margin_bytes": found.memory_bytes - needed, "needed_interval_bytes": found.memory.needed_interval}
    plan = {"micro_batch": shape.micro_batch, "checkpointing": shape.checkpointing.value, "sharding": division_of(shape)}
    rate = {"method": found.rate.method, "no_data": found.rate.reason, "evidence": found.rate.evidence, "result_ids": found.rate.result_ids}
    own |= {f"{other.software}_tokens_per_s": range_of(other) for other in found.faster}
    ranges = {name: asdict(value) for name, value in own.items() if isinstance(value, Range)}
    return own | ranges | memory | plan | rate
