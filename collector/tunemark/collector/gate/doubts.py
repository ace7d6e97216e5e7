"""Figures that are possible, but unlike those of known runs: each asks for a second run, and none refuses a record.

All statistics of the gate are here. Their limits are wide: they come from the runs of this repository and from public logs, and a run
beyond them may be honest.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import exp, sqrt

import numpy as np
from numpy.typing import NDArray
from packaging.version import Version

from tunemark.collector.gate.machine_quantities import fewest_samples, sampled_w, version_of
from tunemark.collector.gate.run_facts import MANY_SAMPLES, MANY_STEPS, SOME_SAMPLES, Run
from tunemark.collector.gate.run_quantities import compiled_first
from tunemark.schema.physics.memory import estimate_memory
from tunemark.schema.records.upgrade import Problem
from tunemark.schema.statistics.steady_state import RANKABLE_STEPS
from tunemark.schema.vocabulary import DEEPSPEED, DEVICE_INTERVAL_S, HOST_INTERVAL_S, Checkpointing, Dtype, Padding, Phase, Status

Doubts = Iterator[tuple[str, str, str]]
"""Field, value, and what known runs have."""
TICK_S = 1e-6
COPIED = 1e-5
"""Relative spread of the ratio of two series below which one is a copy of the other; ranks of one run agree within 3e-5."""
COMPARED = 600
"""Steps that are compared with each other."""


def doubts(r: Run) -> Iterator[Problem]:
    """Yield what is unlikely about a record."""
    found: list[Callable[[Run], Doubts]] = [
        _times,
        _shapes,
        _first_step,
        _ranks,
        _micro_steps,
        _losses,
        _loss_noise,
        _evaluation,
        _end,
        _events,
    ]
    found += [_speed, _memory, _samples, _energy, _devices_at_work, _host, _versions]
    for kind in found:
        yield from (Problem(*doubt) for doubt in kind(r))


# Steps


def _times(r: Run) -> Doubts:
    """Yield times that no clock gives: few different ones, whole hundredths of a second, a smooth curve, or repeated ones."""
    field, times = "trace.completed_at_s", r.times[1:]
    if r.steps < MANY_STEPS:
        return
    changes = np.diff(times)
    different = min(len(np.unique(np.round(values / TICK_S))) for values in (times, changes))
    if different < len(times) / 4:
        yield field, f"{different} different times", f"in {len(times)} steps; a clock gives more"
    if np.median(times) > 0.01 and (np.abs(times * 100 - np.round(times * 100)) < 100 * TICK_S).mean() > 0.5:  # noqa: PLR2004
        yield field, "whole hundredths of a second", "clocks count microseconds"
    turns = float((changes[1:] * changes[:-1] < 0).mean())
    # Two thirds in noise; of real logs 45% at least.
    if turns < 0.3 and r.steps >= 2 * MANY_STEPS:  # noqa: PLR2004
        yield field, "a smooth curve", f"{turns:.0%} of the steps are longer or shorter than both neighbours"
    part = times[:COMPARED]
    near = max(2e-9, 1e-3 * float(np.subtract(*np.percentile(part, (75, 25)))))
    earlier, later = np.nonzero(np.triu(np.abs(part[:, None] - part[None, :]) < near, 1))
    # Pairs in the same order have one distance, and mirrored ones have one centre, where each stands once.
    repeated = max(int(np.bincount(places).max(initial=0)) for places in (later - earlier, later + earlier))
    if repeated > 0.3 * len(part):
        yield field, f"{repeated} repeated times", "follow each other in one order; a clock repeats none"


def _shapes(r: Run) -> Doubts:
    """Yield steps that are far shorter than their tokens, and times of a CPU that scatter less than its clock."""
    field, times, slots = "trace.completed_at_s", r.times, np.asarray(r.trace.slot_tokens, dtype=float)
    if r.steps < MANY_STEPS:
        return
    pace = times / np.maximum(slots, 1)
    pace /= float(np.median(pace))
    if pace[0] < 0.35:  # noqa: PLR2004
        yield field, f"{times[0]:.3g} s for the first step", "it fills caches and allocates memory, and is seldom that short"
    low = pace < 0.35  # noqa: PLR2004
    single = low[1:-1] & ~low[:-2] & ~low[2:] & (pace[:-2] < 1.5)  # noqa: PLR2004
    half = (pace > 0.4) & (pace < 0.7)  # noqa: PLR2004
    pairs = half[1:-2] & half[2:-1] & ~half[:-3] & ~half[3:] & (np.abs(pace[1:-2] - pace[2:-1]) < 0.02)  # noqa: PLR2004
    if max(single.sum(), pairs.sum() / 2) > max(2, 0.02 * len(times)):
        yield field, f"{int(single.sum() + pairs.sum())} short steps", "the steps beside them do the same work in the usual time"
    if not r.cpu:
        return
    long, short = np.percentile(slots[1:], (98, 2))
    slow, middle, fast = np.percentile(times[1:], (98, 50, 2))
    if short and long / short > 2 and slow / fast < 1.02:  # noqa: PLR2004
        yield field, f"{fast:.3g} s to {slow:.3g} s", f"for {short:.0f} to {long:.0f} tokens; on a CPU more tokens take more time"
    if r.steps > 2 * MANY_STEPS and not np.ptp(slots):
        tenth, quarter, upper = np.percentile(times[1:], (10, 25, 75))
        if upper - quarter < 3e-4 * middle or times[1:].max() - middle < 0.8 * (middle - tenth):
            yield field, f"{middle:.4g} s", "with hardly any scatter, or no slow steps; clocks change more, and a host delays some steps"


def _first_step(r: Run) -> Doubts:
    """Yield a first step that does not show its compilation, or that is far longer without one, and compilations without effect."""
    field, times = "trace.completed_at_s", r.times
    if r.steps <= SOME_SAMPLES:
        return
    usual, grown = float(np.median(times[1:])), any(event.step == 1 and event.kind == "allocator_growth" for event in r.s.events)
    if (compiled_first(r) and times[0] < 1.05 * usual) or (grown and times[0] < 0.9 * times[1:].min()):
        yield field, f"{times[0]:.3g} s for the first step", f"the others took {usual:.3g} s; it compiled graphs or reserved memory"
    if r.cpu and not r.compiles and times[0] > max(3.0, 15 * usual):
        yield field, f"{times[0]:.3g} s for the first step", f"the others took {usual:.3g} s, and nothing was compiled"
    flat = [step for step in r.compile_steps - {1} if step <= r.steps and times[step - 1] < 1.05 * usual]
    if flat:
        yield (
            "events",
            f"compile in step {flat[0]}",
            f"which took {times[flat[0] - 1]:.3g} s, the others {usual:.3g} s; compiling takes seconds",
        )


def _ranks(r: Run) -> Doubts:
    """Yield own work that is the same in each step, or that is another rank's, or what another one leaves of each step."""
    own = [np.asarray(rank.own_work_s) for rank in r.s.ranks]
    for later, b in enumerate(own):
        field = f"ranks.{later}.own_work_s"
        if len(b) < MANY_STEPS or len(b) != r.steps or not (b > 0).all():
            continue
        if np.ptp(b) < TICK_S * np.median(b) or (np.ptp(b / r.times) < TICK_S and np.ptp(r.times)):
            yield field, f"{np.median(b):.6g} s", "is the same, or the same share of its step, in every step"
        if r.plan.data.packing and b.min() < 0.3 * np.median(b):
            yield field, f"{b.min():.3g} s", f"in a step, and usually {np.median(b):.3g} s for as many tokens"
        moved = [np.roll(turned, lag) for turned in (b, b[::-1]) for lag in range(-SOME_SAMPLES, SOME_SAMPLES + 1)]
        for earlier, a in enumerate(own[:later]):
            if len(a) != len(b) or not (a > 0).all():
                continue
            rest = r.times - b
            ratios = np.array([*moved, *([rest] if (rest > 0).all() else [])]) / a
            alike = (ratios.std(axis=1) < COPIED * ratios.mean(axis=1)).any() and a.std() > COPIED * a.mean()
            if alike or len(set(a.tolist()) & set(b.tolist())) > 0.3 * len(a):
                yield field, f"as rank {earlier}", "each process is measured by itself"
                break


def _micro_steps(r: Run) -> Doubts:
    """Yield micro-steps that share their steps alike, that differ much from each other, or that leave hardly a part to do."""
    field, starts = "trace.micro_completed_at_s", (r.trace.started_at_s, *r.trace.completed_at_s)
    whole = [step for step, inside in enumerate(r.trace.micro_completed_at_s) if len(inside) == r.plan.batch.gradient_accumulation > 1]
    if len(whole) < MANY_STEPS:
        marks = r.gpu and r.plan.batch.gradient_accumulation > 1 and r.steps and not whole
        yield from [(field, "none", "the harness times the micro-steps of each step on this device")] if marks else []
        return
    parts = np.array([np.diff([starts[step], *r.trace.micro_completed_at_s[step]]) / r.times[step] for step in whole])
    typical = np.median(parts, axis=0)
    if (parts.std(axis=0) < COPIED).all():
        yield field, "the same shares of each step", "a clock gives others"
    if len(typical) > 2 and typical[:-1].max() > 10 * np.median(typical):  # noqa: PLR2004 - two have no usual one
        yield (
            field,
            f"micro-step {int(typical[:-1].argmax()) + 1}",
            f"takes {typical[:-1].max():.0%} of a step, the others {np.median(typical):.1%}",
        )
    if typical.sum() < 0.02 or typical.min() < 0.2 * np.median(typical):  # noqa: PLR2004
        yield field, f"{typical.sum():.1%} of a step", f"and the shortest {typical.min():.2%}; micro-steps do the same work"


# Losses


def _losses(r: Run) -> Doubts:
    """Yield losses that repeat, that lie on a curve, that have few values, or of which one falls or rises far from those beside it."""
    field, losses = "trace.loss", r.losses
    if len(losses) < MANY_STEPS:
        return
    lag, block = _repeated_after(losses), _repeated_block(losses)
    if lag or (block and r.plan.optimizer.learning_rate):
        yield field, f"the losses from step {lag or block} on", "repeat earlier ones; training goes on"
    # Losses of real batches jump from step to step by more than they fall.
    if np.median(np.abs(np.diff(losses, 2))) < 0.05 * np.median(np.abs(np.diff(losses))) or (losses == np.round(losses)).mean() > 0.5:  # noqa: PLR2004
        yield field, "a smooth curve, or whole numbers", "losses of batches scatter"
    if r.plan.precision.compute is Dtype.FP32 and len(np.unique(losses)) < 0.6 * len(losses):
        yield field, f"{len(np.unique(losses))} different values", f"in {len(losses)} steps of fp32"
    if losses[1:].max() > 10 * max(float(np.median(losses)), losses[0]):
        yield field, f"{losses[1:].max():g}", f"ten times the usual loss, {np.median(losses):.3g}; training seldom recovers from that"
    for step in range(4, len(losses) - 1):
        around = np.concatenate((losses[step - 4 : step], losses[step + 1 : step + 5]))
        if losses[step] < around.min() - max(0.5 * around.min(), 10 * np.ptp(around)):
            yield field, f"{losses[step]:.4g} at step {step + 1}", "far below the losses beside it"
            return


def _repeated_after(losses: NDArray[np.float64]) -> int | None:
    """Return the number of steps after which losses repeat those from the first step on, but for a factor."""
    first = np.where(losses[:2] == 0, 1, losses[:2])
    alike = np.abs(losses[:-1] / first[0] - losses[1:] / first[1]) < 1e-3 * np.abs(losses[:-1] / first[0])
    for lag in np.flatnonzero(alike[: len(losses) - SOME_SAMPLES + 1]).tolist():
        earlier, later = losses[: len(losses) - lag], losses[lag:]
        ratios = later / np.where(earlier == 0, 1, earlier)
        if lag >= SOME_SAMPLES and ratios.std() < COPIED * abs(ratios.mean()) and later.std() > COPIED * abs(later.mean()):
            return lag
    return None


def _repeated_block(losses: NDArray[np.float64]) -> int | None:
    """Return the first step of sixteen losses that occurred before, with twelve different ones: those in bf16 have few."""
    seen: dict[bytes, int] = {}
    for step in range(len(losses) - 15):
        block = losses[step : step + 16]
        if seen.setdefault(block.tobytes(), step) < step and len(np.unique(block)) >= 12:  # noqa: PLR2004
            return step
    return None


def _loss_noise(r: Run) -> Doubts:
    """Yield losses with few decimals, and noise between batches that is smaller than that of tokens."""
    field, losses = "trace.loss", r.losses
    if len(losses) < MANY_STEPS:
        return
    if r.plan.precision.compute is Dtype.FP32 and (losses == np.round(losses, 3)).mean() > 0.5:  # noqa: PLR2004
        yield field, f"{losses[-1]:g}", "most losses have three decimals; a mean of many tokens has more"
    # Second differences take out what is learned. Of normal noise, their median size is 1.65 standard deviations.
    noise, tokens = float(np.median(np.abs(np.diff(losses, 2)))) / 1.65, float(np.median(r.trace.supervised_tokens))
    if r.plan.data.training_rows is None and 0 < noise * sqrt(tokens) < 0.08:  # noqa: PLR2004 - of runs here 0.2 at least
        yield field, f"{noise:.2g} of noise", f"from batch to batch of {tokens:.0f} tokens"


def _evaluation(r: Run) -> Doubts:
    held_out, trained = r.s.evaluation, r.losses[-MANY_STEPS:]
    if held_out is None or held_out.loss is None:
        return
    if len(trained) == MANY_STEPS and held_out.loss < 0.1 * float(np.median(trained)):
        yield "evaluation.loss", f"{held_out.loss:g}", f"the last steps had losses of about {np.median(trained):.3g}"
    if held_out.accuracy is None:
        return
    missed, spread = 1 - held_out.accuracy, sqrt(held_out.accuracy * (1 - held_out.accuracy) / held_out.rows)
    if missed < 0.1 * (1 - exp(-held_out.loss)):
        yield "evaluation.accuracy", f"{held_out.accuracy:.2%}", f"at a loss of {held_out.loss:.3g}, more rows are usually wrong"
    if held_out.loss_standard_error is not None and held_out.loss_standard_error < 0.05 * spread:
        yield "evaluation.loss_standard_error", f"{held_out.loss_standard_error:g}", "right and wrong rows differ more in loss"


# Ends


def _end(r: Run) -> Doubts:
    """Yield ends that are late, early, or without their cause."""
    rss, total, held = r.memory.host_rss.peak_bytes, r.environment.memory_bytes, r.memory.device_reserved.peak_bytes
    limited = "memory limited" in (r.s.study.point if r.s.study else "")
    if r.status is Status.OOM_HOST and rss is not None and rss < 0.1 * total and not limited:
        yield "outcome.status", "'oom_host'", f"the run held {rss / total:.1%} of the memory of its host"
    if r.status is Status.OOM_DEVICE and held is not None and r.device_bytes and held < r.device_bytes / 2:
        yield "outcome.status", "'oom_device'", f"the run held {held / r.device_bytes:.1%} of the memory of its device"
    if r.status is Status.CRASH and r.phases[-1] is Phase.TEARDOWN:
        yield "outcome.status", "'crash'", "all measurements were done, and hardly anything was left to fail"
    late_s = r.process.wall_s - r.last_s
    waits_s = max(20.0, 0.05 * r.process.wall_s) if r.ok else (r.rules.no_step_s or 600.0) * 1.05 + 20
    if r.status is not Status.TIMEOUT and late_s > waits_s:
        yield "process.wall_s", f"{r.process.wall_s:g} s", f"{late_s:.0f} s of it after the last sign of progress"
    if not r.s.started_at.microsecond:
        yield "started_at", r.s.started_at.isoformat(), "is a whole second; the harness records microseconds"
    limit, rate = r.rules.until_relative_ci, r.derived.tokens_per_s if r.derived else None
    # Before that, there was no steady window to judge.
    earlier = r.times[r.rules.min_warmup_steps : int(r.steps / 1.4)]
    enough = len(earlier) >= r.rules.min_steady_steps or earlier.sum() >= r.rules.min_steady_s
    if limit is not None and rate is not None and enough and r.stable and rate.relative_half_width < limit / 3:
        yield "trace", f"{r.steps} steps", f"the interval is +-{rate.relative_half_width:.2%}, and such a run ends at +-{limit:.0%}"
    repeat = re.search(r", repeat (\d+)$", r.s.study.point) if r.s.study and r.s.study.kind == "repeat" else None
    if repeat and r.s.study and r.s.study.position > 5 * int(repeat[1]) + RANKABLE_STEPS:
        yield "study.position", str(r.s.study.position), f"for repeat {repeat[1]}"


def _events(r: Run) -> Doubts:
    grown = {event.step for event in r.s.events if event.kind == "allocator_growth"}
    if r.steps >= RANKABLE_STEPS and len(grown) > 0.3 * r.steps:
        yield (
            "events",
            f"allocator_growth in {len(grown)} of {r.steps} steps",
            "an allocator grows in the first steps, and keeps what it has",
        )


# Speed and memory


def _speed(r: Run) -> Doubts:
    for name in ("before_flop_per_s", "after_flop_per_s") if r.s.probe else ():
        rate = getattr(r.s.probe, name)
        if rate is not None and rate == float(f"{rate:.3e}"):
            yield f"probe.{name}", f"{rate:g}", "a quotient of a measured time has more digits"
    trained = float(r.flops.sum() / r.times.sum()) if r.flops.sum() else 0.0
    # Of runs here, training on a CPU reaches 0.65 of the probe at most.
    if r.probed and trained > r.probed:
        yield "trace.completed_at_s", f"{trained / r.probed:.0%} of the probe", "large products are usually faster than training"
    if r.card is None or r.card.cpu or not r.peak or not r.ok or not trained or r.model is None:
        return
    if r.probed and r.probed > 0.92 * r.peak and (r.card.memory_bus_bits or 0) >= 1_024:  # noqa: PLR2004
        yield "probe.before_flop_per_s", f"{r.probed / r.peak:.0%} of the dense peak", "power limits such devices to less"
    share, usual_s = trained / r.peak, float(np.median(r.times))
    launched_s = 0.02 * r.model.layers * r.plan.batch.gradient_accumulation * r.count
    if share > 0.8 or (share < 0.005 and usual_s > launched_s and r.device.offload == "none"):  # noqa: PLR2004
        yield "trace.completed_at_s", f"{share:.1%} of the dense peak", "known training on GPUs reaches 0.5% to 80%"


def _memory(r: Run) -> Doubts:
    """Yield peaks below three quarters of the prediction: of 85 published peaks the lowest is 0.77 (benchmarks/memory_errors.py)."""
    full = r.plan.data.packing or r.plan.data.padding in {Padding.NONE, Padding.STATIC}
    plain = r.device.strategy not in DEEPSPEED and r.device.offload == "none" and r.device.tensor_parallel == 1
    peak, ran = r.memory.device_allocated.peak_bytes, r.s.model
    if r.shape is not None and full and plain and r.gpu and r.ok and peak and ran is not None:
        shape, recomputed = r.shape, r.s.effective.gradient_checkpointing if r.s.effective else ""
        if recomputed == "none" and shape.checkpointing is not Checkpointing.NONE:
            shape = replace(shape, checkpointing=Checkpointing.NONE)
        predicted = estimate_memory(shape).peak_allocated
        held = sum(ran.parameter_bytes.values()) + (ran.optimizer_state_bytes or 0)
        beside = (peak - held) / (predicted - held) if r.plan.model.compile == "none" and predicted - held > 0.1 * predicted else 1.0
        if min(peak / predicted, beside) < 0.75:  # noqa: PLR2004
            value = f"{peak / predicted:.0%} of the prediction"
            yield "memory.device_allocated.peak_bytes", value, f"from the shapes of the plan, and {beside:.0%} without weights and states"
    if r.memory.host_rss.peak_bytes and r.memory.host_rss.peak_bytes % 1_024:
        yield "memory.host_rss.peak_bytes", str(r.memory.host_rss.peak_bytes), "kernels count the memory of a process in KiB"
    sizes = [rank.host_rss_bytes for rank in r.s.ranks if rank.host_rss_bytes is not None]
    if len(sizes) > len(set(sizes)):
        yield "ranks", f"{sizes[0]} bytes", "two processes had the same peak of host memory to the byte"
    for index, device in enumerate(r.environment.devices):
        if r.gpu and device.memory_bytes and (device.memory_bytes % 4_096 or not device.memory_bytes % 10**9):
            yield f"environment.devices.{index}.memory_bytes", str(device.memory_bytes), "a driver reports whole pages"


# Telemetry


def _samples(r: Run) -> Doubts:
    """Yield far fewer samples than fit into the steady window."""
    if r.use is None or not r.window_s:
        return
    every = DEVICE_INTERVAL_S.get(r.environment.backend)
    counts = [("utilisation.samples", r.use.samples, HOST_INTERVAL_S)]
    counts += [(f"utilisation.devices.{index}.samples", use.samples, every) for index, use in enumerate(r.use.devices) if every]
    for field, samples, every_s in counts:
        fitting = (r.window_s if r.stable else r.trained_s / 2) / every_s
        if fitting > (MANY_SAMPLES if r.stable else SOME_SAMPLES) and samples < 0.6 * fitting:
            yield field, str(samples), f"one every {every_s:g} s makes {fitting:.0f}"


def _energy(r: Run) -> Doubts:
    energy, watts = r.use.energy if r.use else None, sampled_w(r)
    if energy is None or not energy.joules or not energy.window_s or not watts or fewest_samples(r) < MANY_SAMPLES:
        return
    ratio, idle = energy.joules / energy.window_s / watts, energy.idle_w or 0.0
    if not 0.92 <= ratio <= 1.08 or (abs(ratio + idle / watts - 1) < 0.01 and idle > 0.03 * watts):  # noqa: PLR2004
        yield "utilisation.energy.joules", f"{energy.joules:g}", f"{ratio:.1%} of the mean power over the same time"
    if energy.source == "counter" and abs(ratio - 1) < 1e-12:  # noqa: PLR2004
        yield "utilisation.energy.joules", f"{energy.joules:g}", "is the sampled mean power to the digit; a counter is another instrument"
    if idle > energy.joules / energy.window_s:
        yield "utilisation.energy.idle_w", f"{idle:g} W", "more than the mean over the run"


def _devices_at_work(r: Run) -> Doubts:
    """Yield power, busy shares and temperatures unlike those of devices at such work."""
    use, share, board = r.use, r.share or 0.0, r.card.tdp_w if r.card else None
    if use is None:
        return
    if share > 0.2 and board and r.powers_w and max(r.powers_w) < (0.2 + 0.5 * share) * board:  # noqa: PLR2004
        yield (
            "utilisation.devices.0.power_mean_w",
            f"{max(r.powers_w):g} W",
            f"training at {share:.0%} of the dense peak usually takes more of {board:g} W",
        )
    waited = (r.trace.data_wait_s or 0.0) / float(r.times.sum()) if r.steps else 0.0
    if r.gpu and r.steps and use.cpu_busy_mean is not None and use.samples >= MANY_SAMPLES and use.cpu_busy_mean < 0.1 * r.count:
        yield "utilisation.cpu_busy_mean", f"{use.cpu_busy_mean:g} cores", "the process that submits the work of a GPU usually takes more"
    for index, device in enumerate(use.devices):
        field = f"utilisation.devices.{index}"
        if device.power_mean_w and device.power_peak_w == device.power_mean_w and device.samples >= SOME_SAMPLES:
            yield f"{field}.power_peak_w", f"{device.power_peak_w:g} W", f"is the mean of {device.samples} samples too"
        if any("thermal" in reason for reason in device.throttle_shares) and (device.temperature_peak_c or 99) < 60:  # noqa: PLR2004
            yield f"{field}.throttle_reasons", "for heat", f"at {device.temperature_peak_c:g} degrees at most"
        if device.busy_mean is not None and device.samples >= MANY_SAMPLES and r.gpu and r.steps:
            idle = share > 0.2 and device.busy_mean < 0.6 and waited < 0.4  # noqa: PLR2004
            if idle or (waited > 0.1 and waited + device.busy_mean > 1.1):  # noqa: PLR2004
                yield (
                    f"{field}.busy_mean",
                    f"{device.busy_mean:g}",
                    f"at {share:.0%} of the dense peak, waiting for samples in {waited:.0%} of the time",
                )


def _host(r: Run) -> Doubts:
    e, used, system = r.environment, r.process.user_s, r.process.system_s
    if used is not None and system is not None and system > max(used, 5.0):
        yield "process.system_s", f"{system:g} s", f"more than the {used:g} s of the program itself"
    if e.cpu_physical_cores and re.search("x86_64|AMD64", e.os) and e.cpu_logical_cores > 2 * e.cpu_physical_cores:
        yield "environment.cpu_logical_cores", str(e.cpu_logical_cores), f"more than two threads for each of {e.cpu_physical_cores} cores"
    for index, device in enumerate(e.devices):
        board = r.card.tdp_w if r.card and not re.search(r"GeForce|Radeon|TITAN|Arc\b", r.card.name) else None
        if board and device.power_limit_w and device.power_limit_w > 1.05 * board:
            yield f"environment.devices.{index}.power_limit_w", f"{device.power_limit_w:g} W", f"the board power is {board:g} W"


def _versions(r: Run) -> Doubts:
    """Yield versions that this catalogue does not know, that came out after the run, or that do not go together by it."""
    versions = {name: version for name, text in r.environment.packages.items() if (version := version_of(text)) is not None}
    python = version_of(".".join(r.environment.python.split(".")[:2]))
    known = versions | ({"python": python} if python else {})
    for name, version in versions.items():
        field, listed = f"environment.packages.{name}", next((each for each in r.facts.known.libraries if each.library == name), None)
        own = (
            version.is_prerelease
            or version.is_postrelease
            or (version.local is not None and not re.fullmatch(r"cpu|cu\d+|rocm[\d.]*|xpu", version.local))
        )
        day = listed.released_on.get(version.base_version) if listed else None
        if listed and day is None and (not own or version.major > listed.newest.major + 1):
            yield field, str(version), f"is not among the releases that were known on {listed.read_on}"
        elif day is not None and not version.is_prerelease and (day - r.s.started_at.date()).days > 1:
            yield field, str(version), f"was released on {day}, after this run"
        for needed, requirement in r.facts.known.requirements_of(name, Version(version.base_version)).items():
            other = known.get(needed)
            low, high = Version(requirement.least), Version(requirement.newest) if requirement.newest else None
            if other is not None and (Version(other.base_version) < low or (high is not None and other.release[:2] > high.release[:2])):
                yield field, str(version), f"is for {needed} {low}{f' to {high}' if high else ' or newer'}, and the record has {other}"
    released = re.fullmatch(r"3\.(\d+)\.(\d+).*", r.environment.python)
    # 3.9 came out in October 2020, and each next one a year later, with a patch release every two months.
    months = (r.s.started_at.year - 2011 - int(released[1])) * 12 + r.s.started_at.month - 10 if released else 0
    if released and (months < 0 or int(released[2]) > 4 + months):
        yield "environment.python", repr(r.environment.python), "came out after this run, by the schedule of Python"
