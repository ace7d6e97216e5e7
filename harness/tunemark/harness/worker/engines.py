"""Who does forward, backward and update: accelerate on one device and under DDP, DeepSpeed's ZeRO through it, or torch's FSDP2.

One small class for each way, so that the loop has no branch for any of them.
"""

import contextlib
import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tunemark.harness.devices import Device
from tunemark.harness.worker.models import Gradients, gradients_of
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Dtype, Strategy

LOADING = timedelta(hours=12)
"""For what one process does while others wait for it; torch's own limit is 10 minutes with NCCL."""
STAGES = {Strategy.ZERO1: 1, Strategy.ZERO2: 2, Strategy.ZERO3: 3}


@dataclass(slots=True)
class Engine:
    """Model and optimizer as the training library wrapped them."""

    accelerator: Any
    model: Any
    optimizer: Any
    max_grad_norm: float | None
    sharding: str | None = None
    """Engine that shares states over the devices, as it calls itself."""

    @property
    def processes(self) -> int:
        """World size that the library reports."""
        return int(self.accelerator.num_processes)

    def backward(self, loss: Any, *, last: bool) -> None:  # noqa: ANN401, ARG002 - `exchange` has seen to the last
        """Add the gradient of a micro-batch; with a step's last one the processes exchange theirs."""
        self.accelerator.backward(loss)

    def exchange(self, *, last: bool) -> Any:  # noqa: ANN401 - a context manager
        """Return the context of a micro-batch: without exchange before the last."""
        return contextlib.nullcontext() if last else self.accelerator.no_sync(self.model)

    def update(self) -> None:
        """Clip and apply the gradients."""
        if self.max_grad_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()

    def gradients(self) -> Gradients:
        """Return what the gradients of this process weigh, asked between `update` and `forget_gradients`."""
        return gradients_of(self.model)

    def forget_gradients(self) -> None:
        """Free the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def bare(self) -> Any:  # noqa: ANN401 - a torch module
        """The model without what the library wrapped around it."""
        return self.accelerator.unwrap_model(self.model)

    def gathered(self) -> dict[str, Any] | None:
        """Return the weights that were trained, whole, in the first process; None where its model holds them itself."""
        return None

    def close(self) -> None:
        """Leave the process group: some runs abort at exit otherwise."""
        self.accelerator.end_training()


class FsdpEngine(Engine):
    """Torch's FSDP2: each block's parameters, gradients and states are shards, gathered for their use."""

    def exchange(self, *, last: bool) -> Any:  # noqa: ANN401 - a context manager
        """Return an empty context; gradients are scattered with the last micro-batch only."""
        self.model.set_requires_gradient_sync(last)
        return contextlib.nullcontext()

    def gathered(self) -> dict[str, Any] | None:
        """Return the trained weights in host memory, gathered from the shards."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict  # noqa: PLC0415

        frozen = any(not parameter.requires_grad for parameter in self.model.parameters())
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=frozen)
        return dict(get_model_state_dict(self.model, options=options))


class ZeroEngine(Engine):
    """DeepSpeed clips, steps and frees by itself, told which micro-batch is a step's last."""

    def backward(self, loss: Any, *, last: bool) -> None:  # noqa: ANN401 - a torch tensor
        """Add a gradient. DeepSpeed divides by the accumulation, which the weights of our loss already hold."""
        engine = self.model
        engine.set_gradient_accumulation_boundary(is_boundary=last)
        engine.backward(loss * engine.gradient_accumulation_steps())

    def exchange(self, *, last: bool) -> Any:  # noqa: ANN401, ARG002 - the boundary says it
        """Return an empty context."""
        return contextlib.nullcontext()

    def update(self) -> None:
        """Clip and apply the gradients."""
        self.model.step()

    def gradients(self) -> Gradients:
        """Return that they are not known. Parameters have none, and what DeepSpeed gives out are copies in fp32."""
        return Gradients(None, "DeepSpeed keeps gradients in buffers of its own, and its API does not tell their size")

    def forget_gradients(self) -> None:
        """Nothing is left: the step freed them."""

    def gathered(self) -> dict[str, Any] | None:
        """Return all weights, which stage 3 gathers; the stages before it leave each process the whole model."""
        if self.model.zero_optimization_stage() < STAGES[Strategy.ZERO3]:
            return None
        return self.accelerator.get_state_dict(self.model) or {}


def open_accelerator(plan: Plan, device: Device) -> Any:  # noqa: ANN401 - torch objects
    """Return accelerate's Accelerator for a plan.

    Raises
    ------
    RuntimeError
        When it runs with another number of processes than the plan or the launcher says: on CPUs that went unseen.

    """
    from accelerate import Accelerator  # noqa: PLC0415
    from accelerate.utils import InitProcessGroupKwargs  # noqa: PLC0415

    autocast = plan.precision.compute in {Dtype.BF16, Dtype.FP16} and plan.precision.parameters is Dtype.FP32
    settings: dict[str, Any] = {"mixed_precision": plan.precision.compute.value if autocast else "no"}
    if plan.device.count > 1:
        # On CPUs accelerate leaves the back end unset under DeepSpeed, and every process then believes to be alone.
        # Those that wait while the first loads the model must not give up: how long is too long, the parent decides.
        settings["kwargs_handlers"] = [InitProcessGroupKwargs(backend=device.collectives, timeout=LOADING)]
    if plan.device.strategy in STAGES:
        settings["deepspeed_plugin"] = _zero_plugin(plan)
    else:
        # On CPUs accelerate knows DeepSpeed only where it is not told of them.
        settings["cpu"] = device.torch_name == "cpu"
    accelerator = Accelerator(**settings)
    told = int(os.environ.get("WORLD_SIZE", "1"))
    if not accelerator.num_processes == told == plan.device.count:
        msg = f"accelerate runs {accelerator.num_processes} processes and the launcher {told}, the plan has {plan.device.count}"
        raise RuntimeError(msg)
    return accelerator


def wrap(plan: Plan, accelerator: Any, model: Any, optimizer: Any) -> Engine:  # noqa: ANN401 - torch objects
    """Return model and optimizer prepared for the plan's strategy.

    Raises
    ------
    RuntimeError
        When something else came out than the strategy asks for: on CPUs that went unseen.

    """
    clip = plan.optimizer.max_grad_norm
    if plan.device.strategy is Strategy.FSDP2:
        return FsdpEngine(accelerator, model, stepped(accelerator.prepare(optimizer)), clip, f"torch {type(model).__mro__[1].__name__}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        wrapped, prepared = accelerator.prepare(model, optimizer)
    if plan.device.strategy in STAGES:
        stage = getattr(wrapped, "zero_optimization_stage", lambda: None)()
        if stage != STAGES[plan.device.strategy]:
            msg = f"{plan.device.strategy.value} was asked for, {type(wrapped).__name__} of stage {stage} came out"
            raise RuntimeError(msg)
        return ZeroEngine(accelerator, wrapped, prepared, clip, f"DeepSpeed ZeRO stage {stage}")
    return Engine(accelerator, wrapped, stepped(prepared), clip)


def stepped(prepared: Any) -> Any:  # noqa: ANN401 - accelerate's optimizer, or torch's
    """Return the optimizer to step: torch's own where accelerate's wrapper adds nothing.

    The wrapper scales losses of fp16 and gathers gradients on XLA. Elsewhere all it does in a step is to look twice on
    the disk for an optimizer package that we do not use: 0.3 ms on a CPU, as much as a small model's own work.
    """
    from accelerate.utils import DistributedType  # noqa: PLC0415

    needed = prepared.scaler is not None or prepared.accelerator_state.distributed_type == DistributedType.XLA
    return prepared if needed else prepared.optimizer


def _zero_plugin(plan: Plan) -> Any:  # noqa: ANN401 - a class of accelerate
    from accelerate import DeepSpeedPlugin  # noqa: PLC0415

    stage = STAGES[plan.device.strategy]
    zero: dict[str, Any] = {"stage": stage}
    if plan.device.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if plan.device.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    if plan.device.strategy is Strategy.ZERO3:
        # DeepSpeed gathers no weights for saving unless told beforehand.
        zero["stage3_gather_16bit_weights_on_model_save"] = plan.measurement.save
    low = plan.precision.parameters
    return DeepSpeedPlugin(
        hf_ds_config={
            "train_micro_batch_size_per_gpu": plan.batch.micro_batch,
            "gradient_accumulation_steps": plan.batch.gradient_accumulation,
            "gradient_clipping": plan.optimizer.max_grad_norm or 0.0,
            "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": low is Dtype.BF16},
            "fp16": {"enabled": plan.precision.compute is Dtype.FP16},
        }
    )
