"""The registry of quantities, one row each. Validation, tables and documentation read the same rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from tunemark.schema import formats

Better = Literal["lower", "higher"] | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """A measured, derived or claimed quantity."""

    key: str
    """Name, including its unit if it has one."""
    label: str
    """Column heading."""
    unit: str
    """Unit of the stored value; `1` for counts, shares and ratios."""
    show: Callable[[float], str]
    """Formats a value for readers."""
    better: Better
    """The better direction, or None."""
    meaning: str
    """One or two sentences."""

    def text(self, value: float | None) -> str:
        """Return the formatted value, or a dash if it is unknown."""
        return formats.MISSING if value is None else self.show(value)


# key | label | unit | function of tunemark.schema.formats | better direction | meaning
_TABLE = """
# Time
step_time_s | Step time | s | duration | lower | Wall time of one optimizer step, completion to completion, including data loading. For measured results the median over the steady window.
micro_step_time_s | Micro-step time | s | duration | lower | Wall time of one forward and backward of one micro-batch.
train_time_s | Training time | s | duration | lower | Wall time of the training loop, from the first step to the last.
epoch_time_s | Epoch time | s | duration | lower | Wall time of one pass over the data.
wall_s | Wall time | s | duration | lower | Wall time of the whole process, from its start to its exit.
user_s | User CPU time | s | duration | - | CPU seconds in user mode, over all cores.
system_s | System CPU time | s | duration | - | CPU seconds in the kernel, over all cores.
progress_elapsed_s | Progress bar time | s | duration | - | Elapsed time shown by a progress bar.
eval_time_s | Evaluation time | s | duration | lower | Wall time of one evaluation.
first_eval_time_s | First evaluation time | s | duration | lower | Wall time of the first evaluation, including compilation.
profile_step_time_s | Profiled step time | s | duration | lower | Step time with a profiler running.
# Throughput
tokens_per_s | Tokens/s | tokens/s | significant | higher | Real (non-padding) tokens per second over all devices. For measured results a ratio of sums over the steady window.
samples_per_s | Samples/s | samples/s | significant | higher | Distinct samples (documents, not packed rows) per second over all data-parallel ranks.
steps_per_s | Steps/s | steps/s | significant | higher | Optimizer steps per second.
eval_samples_per_s | Eval samples/s | samples/s | significant | higher | Samples per second in evaluation.
eval_steps_per_s | Eval steps/s | steps/s | significant | higher | Batches per second in evaluation.
samples_per_s_reported | Reported samples/s | samples/s | significant | higher | Samples per second as reported by a document with a different definition.
tokens_per_s_reported | Reported tokens/s | tokens/s | significant | higher | Tokens per second as reported by a document with a different definition.
# Extent
steps | Steps | 1 | plain | - | Completed optimizer steps.
total_steps | Planned steps | 1 | plain | - | Planned optimizer steps.
epochs | Epochs | 1 | plain | - | Passes over the data.
tokens | Tokens | 1 | plain | - | Tokens processed in training.
total_flops | Total FLOPs | FLOP | plain | - | Floating-point operations of the run as estimated by the trainer.
# Memory
peak_memory_bytes | Peak memory | bytes | gib | lower | Highest memory of one device. The allocator or tool that reported it is part of the result.
model_memory_bytes | Model memory | bytes | gib | lower | Memory of the model's parameters.
device_memory_bytes | Device memory | bytes | gib | lower | Device memory in use as shown by a profiler.
device_memory_total_bytes | Device memory (total) | bytes | gib | - | Memory of all devices together.
device_memory_each_bytes | Device memory (each) | bytes | gib | - | Memory of one device.
device_memory_peak_share | Peak device memory | 1 | percent | - | Peak memory of all devices as a share of their total.
host_memory_total_bytes | Host memory | bytes | gib | - | Memory of the host.
host_memory_peak_share | Peak host memory | 1 | percent | - | Peak host memory as a share of its total.
spill_reload_bytes | Spill reload | bytes | gib | lower | Bytes read back from spilled on-chip buffers in one profiled step.
spill_save_bytes | Spill save | bytes | gib | lower | Bytes spilled from on-chip buffers in one profiled step.
# Quality
train_loss | Training loss | 1 | plain | lower | Training loss of the last steps, or the mean over the run as reported by a trainer.
loss_start | Loss at the start | 1 | plain | - | Training loss of the first steps.
eval_loss | Eval loss | 1 | plain | lower | Loss on held-out rows.
accuracy | Accuracy | 1 | percent | higher | Share of held-out rows classified correctly.
f1 | F1 | 1 | percent | higher | Harmonic mean of precision and recall on held-out rows.
exact_match | Exact match | 1 | percent | higher | Share of held-out questions answered in exactly the words of a reference.
accuracy_baseline | Baseline accuracy | 1 | percent | higher | Accuracy before a change.
accuracy_stochastic_rounding | Accuracy, stochastic rounding | 1 | percent | higher | Accuracy with stochastic rounding on.
token_accuracy | Token accuracy | 1 | percent | higher | Share of next tokens predicted correctly.
entropy | Entropy | nat | plain | - | Mean entropy of the predicted token distribution.
accuracy_epoch1 | Accuracy, epoch 1 | 1 | percent | higher | Accuracy after the first epoch.
accuracy_epoch2 | Accuracy, epoch 2 | 1 | percent | higher | Accuracy after the second epoch.
train_loss_epoch1 | Training loss, epoch 1 | 1 | plain | lower | Training loss of the first epoch.
train_loss_epoch2 | Training loss, epoch 2 | 1 | plain | lower | Training loss of the second epoch.
eval_loss_epoch1 | Eval loss, epoch 1 | 1 | plain | lower | Held-out loss after the first epoch.
eval_loss_epoch2 | Eval loss, epoch 2 | 1 | plain | lower | Held-out loss after the second epoch.
# Utilisation and FLOPs
mfu | MFU | 1 | percent | higher | Model FLOPs over time and dense peak. For published results as claimed.
hfu | HFU | 1 | percent | higher | MFU with recomputed FLOPs included.
mfu_palm | MFU (PaLM) | 1 | percent | higher | MFU with the FLOPs of the PaLM paper, on slots. Kept for comparison.
mafu | MAFU | 1 | percent | higher | Model FLOPs over time and the matrix rate that the same device reached in a probe.
model_flop_per_s | Model FLOP/s | FLOP/s | flop_per_s | higher | Model FLOPs per second over all devices, without recomputed FLOPs.
flop_per_step | FLOPs per step | FLOP | flop | - | Model FLOPs of a mean steady step over all devices, without recomputed FLOPs.
probe_flop_per_s | Probed rate | FLOP/s | flop_per_s | higher | Matrix rate of all devices in a short probe before training.
# Compilation and ranks
compile_overhead_s | Compile overhead | s | duration | lower | Time that steps with compiled graphs took beyond a median steady step.
own_work_s | Own work | s | duration | lower | Median time of a process from the start of a step to the exchange of gradients.
rank_behind | Behind | 1 | percent | lower | Own work of the slowest process above the median of all processes.
# Energy and devices
energy_j | Energy | J | joules | lower | Energy of all devices over the steady window, including idle power. Never estimated from TDP.
energy_per_run_j | Energy per run | J | joules | lower | Energy of all measured nodes and switches from the start of a run to its target.
energy_per_step_j | Energy per step | J | joules | lower | Energy of all devices per steady step, including idle power.
energy_per_sample_j | Energy per sample | J | joules | lower | Energy of all devices per document, including idle power.
energy_per_1k_tokens_j | Energy per 1k tokens | J | joules | lower | Energy of all devices per thousand real tokens, including idle power.
power_w | Power | W | watts | - | Mean power over the steady window.
device_busy_mean | Device busy | 1 | percent | higher | Mean share of time in which the device was busy.
predicted_memory_bytes | Predicted peak memory | bytes | gib | - | Allocator peak of one device as predicted by the memory model.
# Profiles
attained_flop_per_s | Attained FLOP/s | FLOP/s | flop_per_s | higher | Floating-point operations per second counted by a profiler, including recomputation and transposition.
hardware_flop | Hardware FLOPs | FLOP | flop | - | All floating-point operations of one profiled step.
model_flop | Model FLOPs | FLOP | flop | - | Floating-point operations of one profiled step that the model needs.
arithmetic_intensity | Arithmetic intensity | FLOP/byte | plain | - | FLOPs per byte moved.
tensor_engine_active | Tensor engine active | 1 | percent | higher | Share of time in which the matrix unit was active.
scalar_engine_active | Scalar engine active | 1 | percent | - | Share of time in which the scalar engine was active.
vector_engine_active | Vector engine active | 1 | percent | - | Share of time in which the vector engine was active.
dma_active | DMA active | 1 | percent | - | Share of time in which a DMA queue was active.
sm_utilisation | SM utilisation | 1 | percent | higher | Share of the GPU multiprocessors that were busy.
cpu_utilisation_mean | Mean CPU utilisation | 1 | percent | - | Mean share of the host's CPU cores that were busy.
device_utilisation_peak | Peak device utilisation | 1 | percent | - | Highest share of time in which a device was busy.
# Comparison
relative_speed | Relative speed | 1 | ratio | higher | Throughput relative to the baseline row of a table.
scaling_efficiency | Scaling efficiency | 1 | ratio | higher | Throughput over the number of devices times the throughput of one device.
speedup | Speedup | 1 | ratio | higher | Time before over time after.
speedup_min | Lowest speedup | 1 | ratio | higher | Lower end of a claimed range of speedups.
speedup_max | Highest speedup | 1 | ratio | higher | Upper end of a claimed range of speedups.
memory_reduction | Memory reduction | 1 | percent | higher | Memory saved compared with full fine-tuning, as a share of it.
# Cost
price_usd_per_hour | Price per hour | USD/h | usd | lower | Price per hour of what must be rented.
price_usd_per_day | Price per day | USD/day | usd | lower | Price per day of what must be rented.
price_usd_per_week | Price per week | USD/week | usd | lower | Price per week of what must be rented.
cost_usd | Cost of the run | USD | usd | lower | Price per hour times the hours of the run, end to end.
cost_training_usd | Cost of training | USD | usd | lower | Price per hour times the hours of training only.
cost_local_usd | Cost on owned hardware | USD | usd | lower | Amortised cost of the run on owned hardware.
cost_per_epoch_usd | Cost per epoch | USD | usd | lower | Price per hour times the hours of one epoch.
cost_per_1k_samples_usd | Cost per 1k samples | USD | usd | lower | Price per hour over samples per hour, times one thousand.
cost_per_1m_samples_usd | Cost per 1M samples | USD | usd | lower | Price per hour over samples per hour, times one million.
cost_per_1m_tokens_usd | Cost per 1M tokens | USD | usd | lower | Price per hour over real tokens per hour, times one million.
budget_low_usd | Budget from | USD | usd | - | Lower end of a budget.
budget_high_usd | Budget to | USD | usd | - | Upper end of a budget.
# Devices and models as documents describe them
trainable_parameters | Trained parameters | 1 | plain | - | Number of parameters that are trained.
adapter_bytes | Adapter size | bytes | gib | lower | Size of the saved adapter, or of the saved weights in full fine-tuning.
parameters | Parameters | 1 | plain | - | Number of parameters.
cuda_cores | CUDA cores | 1 | plain | - | Number of CUDA cores.
tensor_cores | Tensor cores | 1 | plain | - | Number of tensor cores.
memory_bandwidth_bytes_per_s | Memory bandwidth | bytes/s | gb_per_s | higher | Bytes per second between a device and its memory.
tdp_w | TDP | W | watts | - | Board power.
"""


def _quantities() -> dict[str, Quantity]:
    rows = (line.split(" | ") for line in _TABLE.strip().splitlines() if not line.startswith("#"))
    return {
        key: Quantity(key, label, unit, getattr(formats, show), None if better == "-" else cast("Better", better), meaning)
        for key, label, unit, show, better, meaning in rows
    }


QUANTITIES: dict[str, Quantity] = _quantities()
"""Quantities by key."""
