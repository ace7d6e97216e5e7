"""What the registry knows of one quantity."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tunemark.schema import formats

Better = Literal["lower", "higher"] | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured, derived or claimed quantity."""

    key: str
    """Name, with its unit where it has one."""
    label: str
    """Column head."""
    unit: str
    """Unit of the stored value; `1` for counts, shares and ratios."""
    show: Callable[[float], str]
    """Formats a value for readers."""
    better: Better
    """Which direction is better; None when neither."""
    meaning: str
    """One sentence."""

    def text(self, value: float | None) -> str:
        """Return the value for readers; a dash when unknown."""
        return formats.MISSING if value is None else self.show(value)


# MOVE: was tunemark.schema.quantities: Rows of the registry for what `physics.py` and `derive.py` compute of a measured run: FLOPs, energy, ranks, compiling.


def physics_rows() -> list[Quantity]:
    """Return the rows, in the order in which tables show them."""
    s, share, flops, joules, gib, q = (
        formats.duration,
        formats.percent,
        formats.flop_per_s,
        formats.joules,
        formats.gib,
        Quantity,
    )
    return [
        q("mfu_palm", "MFU, PaLM's count", "1", share, "higher", "MFU with FLOPs as PaLM counts them, on slots; to compare with others."),
        q("mafu", "MAFU", "1", share, "higher", "Model FLOPs over time times the matrix rate that the device itself reached in a probe."),
        q(
            "model_flop_per_s",
            "Model FLOP/s",
            "FLOP/s",
            flops,
            "higher",
            "Model FLOPs a second over all devices, recomputed ones left out.",
        ),
        q(
            "flop_per_step",
            "FLOPs per step",
            "FLOP",
            formats.flop,
            None,
            "Model FLOPs of a mean steady step over all devices, recomputed ones left out.",
        ),
        q(
            "probe_flop_per_s",
            "Probed rate",
            "FLOP/s",
            flops,
            "higher",
            "Matrix rate that all devices reached in a short probe before training.",
        ),
        q("compile_overhead_s", "Compiling", "s", s, "lower", "What steps with compiled graphs took beyond a median steady step."),
        q("own_work_s", "Own work", "s", s, "lower", "Median time of a process from a step's start to the exchange of gradients."),
        q(
            "rank_behind",
            "Behind",
            "1",
            share,
            "lower",
            "How much longer the slowest process needs for its own work than the median of all.",
        ),
        q(
            "energy_j",
            "Energy",
            "J",
            joules,
            "lower",
            "Energy of all devices over the steady window, idle power included; never an estimate from TDP.",
        ),
        q("energy_per_step_j", "Energy per step", "J", joules, "lower", "Energy of all devices in a steady step, idle power included."),
        q("energy_per_sample_j", "Energy per sample", "J", joules, "lower", "Energy of all devices per document, idle power included."),
        q(
            "energy_per_1k_tokens_j",
            "Energy per 1k tokens",
            "J",
            joules,
            "lower",
            "Energy of all devices per thousand real tokens, idle power included.",
        ),
        q("power_w", "Power", "W", formats.watts, None, "Mean power over the steady window."),
        q("device_busy_mean", "Device busy", "1", share, "higher", "Mean share of time in which something ran on the device."),
        q(
            "predicted_memory_bytes",
            "Predicted peak memory",
            "bytes",
            gib,
            None,
            "Peak of the allocator on one device as the memory model has it, before it is measured.",
        ),
    ]


# MOVE: was tunemark.schema.quantities: The registry of quantities: one row each. Validation, tables and documentation read the same row.

__all__ = ["QUANTITIES", "Quantity"]


def _rows() -> list[Quantity]:
    s, share, ratio, usd, plain, gib = formats.duration, formats.percent, formats.ratio, formats.usd, formats.plain, formats.gib
    rate = formats.significant
    q = Quantity
    return [
        # time
        q(
            "step_time_s",
            "Step time",
            "s",
            s,
            "lower",
            "Wall time of one optimizer step, completion to completion, data loading included; the median over the steady window when measured.",
        ),
        q("micro_step_time_s", "Micro-step time", "s", s, "lower", "Wall time of one forward and backward of one micro-batch."),
        q("train_time_s", "Training time", "s", s, "lower", "Wall time of the training loop, from the first step to the last."),
        q("epoch_time_s", "Epoch time", "s", s, "lower", "Wall time of one pass over the data."),
        q("wall_s", "Wall time", "s", s, "lower", "Wall time of the whole process, from its start to its exit."),
        q("user_s", "User CPU time", "s", s, None, "CPU seconds in user mode, over all cores."),
        q("system_s", "System CPU time", "s", s, None, "CPU seconds in the kernel, over all cores."),
        q("progress_elapsed_s", "Progress bar time", "s", s, None, "Elapsed time as a progress bar showed it."),
        q("eval_time_s", "Evaluation time", "s", s, "lower", "Wall time of one evaluation."),
        q("first_eval_time_s", "First evaluation time", "s", s, "lower", "Wall time of the first evaluation, compilation included."),
        q("profile_step_time_s", "Profiled step time", "s", s, "lower", "Step time under a profiler."),
        # throughput
        q(
            "tokens_per_s",
            "Tokens/s",
            "tokens/s",
            rate,
            "higher",
            "Real (non-padding) tokens a second over all devices; a ratio of sums over the steady window when measured.",
        ),
        q(
            "samples_per_s",
            "Samples/s",
            "samples/s",
            rate,
            "higher",
            "Distinct samples (documents, not packed rows) a second over all data-parallel ranks.",
        ),
        q("steps_per_s", "Steps/s", "steps/s", rate, "higher", "Optimizer steps a second."),
        q("eval_samples_per_s", "Eval samples/s", "samples/s", rate, "higher", "Samples a second in evaluation."),
        q("eval_steps_per_s", "Eval steps/s", "steps/s", rate, "higher", "Batches a second in evaluation."),
        q(
            "samples_per_s_reported",
            "Reported samples/s",
            "samples/s",
            rate,
            "higher",
            "Samples a second as a document reports it, when it follows another definition than ours.",
        ),
        q(
            "tokens_per_s_reported",
            "Reported tokens/s",
            "tokens/s",
            rate,
            "higher",
            "Tokens a second as a document reports it, when it follows another definition than ours.",
        ),
        # extent
        q("steps", "Steps", "1", plain, None, "Optimizer steps that were done."),
        q("total_steps", "Planned steps", "1", plain, None, "Optimizer steps that were planned."),
        q("epochs", "Epochs", "1", plain, None, "Passes over the data."),
        q("tokens", "Tokens", "1", plain, None, "Tokens seen in training."),
        q("total_flops", "Total FLOPs", "FLOP", plain, None, "Floating-point operations of the run as the trainer estimates them."),
        # memory
        q(
            "peak_memory_bytes",
            "Peak memory",
            "bytes",
            gib,
            "lower",
            "Highest memory of one device; which allocator or tool said so is part of the result.",
        ),
        q("model_memory_bytes", "Model memory", "bytes", gib, "lower", "Memory of the model's parameters."),
        q("device_memory_bytes", "Device memory", "bytes", gib, "lower", "Device memory in use as a profiler showed it."),
        q("device_memory_total_bytes", "Device memory (total)", "bytes", gib, None, "Memory of all devices together."),
        q("device_memory_each_bytes", "Device memory (each)", "bytes", gib, None, "Memory of one device."),
        q(
            "device_memory_peak_share",
            "Peak device memory",
            "1",
            share,
            None,
            "Peak of the memory of all devices, as a share of their total.",
        ),
        q("host_memory_total_bytes", "Host memory", "bytes", gib, None, "Memory of the host."),
        q("host_memory_peak_share", "Peak host memory", "1", share, None, "Peak of host memory, as a share of its total."),
        q(
            "spill_reload_bytes",
            "Spill reload",
            "bytes",
            gib,
            "lower",
            "Bytes read back from spilled on-chip buffers in one profiled step.",
        ),
        q("spill_save_bytes", "Spill save", "bytes", gib, "lower", "Bytes spilled from on-chip buffers in one profiled step."),
        # quality
        q(
            "train_loss",
            "Training loss",
            "1",
            plain,
            "lower",
            "Training loss: of the last steps, or the mean over the run as a trainer reports it.",
        ),
        q("loss_start", "Loss at the start", "1", plain, None, "Training loss of the first steps."),
        q("eval_loss", "Eval loss", "1", plain, "lower", "Loss on held-out rows."),
        q("accuracy", "Accuracy", "1", share, "higher", "Share of held-out rows classified correctly."),
        q("accuracy_baseline", "Baseline accuracy", "1", share, "higher", "Accuracy before a change."),
        q("accuracy_stochastic_rounding", "Accuracy, stochastic rounding", "1", share, "higher", "Accuracy with stochastic rounding on."),
        q("token_accuracy", "Token accuracy", "1", share, "higher", "Share of next tokens predicted correctly."),
        q("entropy", "Entropy", "nat", plain, None, "Mean entropy of the predicted token distribution."),
        q("accuracy_epoch1", "Accuracy, epoch 1", "1", share, "higher", "Accuracy after the first epoch."),
        q("accuracy_epoch2", "Accuracy, epoch 2", "1", share, "higher", "Accuracy after the second epoch."),
        q("train_loss_epoch1", "Training loss, epoch 1", "1", plain, "lower", "Training loss of the first epoch."),
        q("train_loss_epoch2", "Training loss, epoch 2", "1", plain, "lower", "Training loss of the second epoch."),
        q("eval_loss_epoch1", "Eval loss, epoch 1", "1", plain, "lower", "Held-out loss after the first epoch."),
        q("eval_loss_epoch2", "Eval loss, epoch 2", "1", plain, "lower", "Held-out loss after the second epoch."),
        # utilisation
        q("mfu", "MFU", "1", share, "higher", "Model FLOPs over time times dense peak; as claimed when published."),
        q("hfu", "HFU", "1", share, "higher", "Like MFU, recomputed FLOPs included."),
        *physics_rows(),
        q(
            "attained_flop_per_s",
            "Attained FLOP/s",
            "FLOP/s",
            formats.flop_per_s,
            "higher",
            "Floating-point operations a second as a profiler counted them, recomputed and transposing ones included.",
        ),
        q("hardware_flop", "Hardware FLOPs", "FLOP", formats.flop, None, "Floating-point operations of one profiled step, all of them."),
        q("model_flop", "Model FLOPs", "FLOP", formats.flop, None, "Floating-point operations of one profiled step that the model needs."),
        q("arithmetic_intensity", "Arithmetic intensity", "FLOP/byte", plain, None, "FLOPs per byte moved."),
        q("tensor_engine_active", "Tensor engine active", "1", share, "higher", "Share of time in which the matrix unit was active."),
        q("scalar_engine_active", "Scalar engine active", "1", share, None, "Share of time in which the scalar engine was active."),
        q("vector_engine_active", "Vector engine active", "1", share, None, "Share of time in which the vector engine was active."),
        q("dma_active", "DMA active", "1", share, None, "Share of time in which a DMA queue was active."),
        q("sm_utilisation", "SM utilisation", "1", share, "higher", "Share of a GPU's multiprocessors that were busy."),
        q("cpu_utilisation_mean", "Mean CPU utilisation", "1", share, None, "Mean share of the host's CPU cores that were busy."),
        q("device_utilisation_peak", "Peak device utilisation", "1", share, None, "Highest share of time in which a device was busy."),
        # comparison
        q("relative_speed", "Relative speed", "1", ratio, "higher", "Throughput over the throughput of a table's baseline row."),
        q("scaling_efficiency", "Scaling efficiency", "1", ratio, "higher", "Throughput over devices times the throughput of one."),
        q("speedup", "Speedup", "1", ratio, "higher", "Time before over time after."),
        q("speedup_min", "Lowest speedup", "1", ratio, "higher", "Lower end of a claimed range of speedups."),
        q("speedup_max", "Highest speedup", "1", ratio, "higher", "Upper end of a claimed range of speedups."),
        q("memory_reduction", "Memory reduction", "1", share, "higher", "Memory saved against full fine-tuning, as a share of it."),
        # cost
        q("price_usd_per_hour", "Price per hour", "USD/h", usd, "lower", "Price of what has to be rented for an hour."),
        q("price_usd_per_day", "Price per day", "USD/day", usd, "lower", "Price of what has to be rented for a day."),
        q("price_usd_per_week", "Price per week", "USD/week", usd, "lower", "Price of what has to be rented for a week."),
        q("cost_usd", "Cost of the run", "USD", usd, "lower", "Price per hour times hours of the run."),
        q("cost_local_usd", "Cost on owned hardware", "USD", usd, "lower", "Amortised cost of the run on hardware that one owns."),
        q("cost_per_epoch_usd", "Cost per epoch", "USD", usd, "lower", "Price per hour times hours of one epoch."),
        q(
            "cost_per_1k_samples_usd",
            "Cost per 1k samples",
            "USD",
            usd,
            "lower",
            "Price per hour over samples per hour, times one thousand.",
        ),
        q(
            "cost_per_1m_samples_usd",
            "Cost per 1M samples",
            "USD",
            usd,
            "lower",
            "Price per hour over samples per hour, times one million.",
        ),
        q(
            "cost_per_1m_tokens_usd",
            "Cost per 1M tokens",
            "USD",
            usd,
            "lower",
            "Price per hour over real tokens per hour, times one million.",
        ),
        q("budget_low_usd", "Budget from", "USD", usd, None, "Lower end of a budget."),
        q("budget_high_usd", "Budget to", "USD", usd, None, "Upper end of a budget."),
        # devices and models as documents describe them
        q("parameters", "Parameters", "1", plain, None, "Number of parameters."),
        q("cuda_cores", "CUDA cores", "1", plain, None, "Number of CUDA cores."),
        q("tensor_cores", "Tensor cores", "1", plain, None, "Number of tensor cores."),
        q(
            "memory_bandwidth_bytes_per_s",
            "Memory bandwidth",
            "bytes/s",
            plain,
            "higher",
            "Bytes a second between a device and its memory.",
        ),
        q("tdp_w", "TDP", "W", plain, None, "Board power."),
    ]


QUANTITIES: dict[str, Quantity] = {quantity.key: quantity for quantity in _rows()}
