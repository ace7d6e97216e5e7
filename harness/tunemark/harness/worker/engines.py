"""The optimizer, and forward, backward and update: accelerate on one device and under DDP, DeepSpeed's ZeRO through it, or torch's FSDP2.

One small class for each, so that the loop has no branch for any of them. Also how FSDP2 shards the model, how the trained
weights are gathered and saved, and what each process reports.
"""

import contextlib
import os
import shutil
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import InitProcessGroupKwargs
from torch.distributed import fsdp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tunemark.harness.vendors.protocol import Device, DeviceUnavailable
from tunemark.harness.worker.levers import blocks
from tunemark.harness.worker.models import draw, gradients_of, put
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.trace import MASTER_OPTIMIZER, OPTIMIZER_LIBRARIES, STOCHASTIC_OPTIMIZER, optimizer_class
from tunemark.schema.vocabulary import Dtype, Strategy

LOADING = timedelta(hours=12)
"""Time that processes may wait while one loads the model; torch's own limit is 10 minutes with NCCL."""
STAGES = {Strategy.ZERO1: 1, Strategy.ZERO2: 2, Strategy.ZERO3: 3}


@dataclass(slots=True)
class Engine:
    """Model and optimizer as the training library wrapped them."""

    accelerator: Any
    model: Any
    optimizer: Any
    max_grad_norm: float | None
    sharding: str | None = None
    """What shards states over the devices, by its own name."""

    @property
    def processes(self) -> int:
        """World size that the library reports."""
        return int(self.accelerator.num_processes)

    @property
    def bare(self) -> Any:  # noqa: ANN401 - a torch module
        """The model without the library's wrapper."""
        return self.accelerator.unwrap_model(self.model)

    def exchange(self, *, last: bool) -> Any:  # noqa: ANN401 - a context manager
        """Return the context of a micro-batch: gradients are exchanged with a step's last one only.

        Where states are sharded each one scatters its gradients: whole ones, kept until the last, would fill a device.
        """
        return contextlib.nullcontext() if last or self.sharding or self.processes == 1 else self.model.no_sync()

    def backward(self, loss: Any, *, last: bool) -> None:  # noqa: ANN401, ARG002 - `exchange` has handled the last
        """Add the gradient of a micro-batch."""
        self.accelerator.backward(loss)

    def update(self) -> None:
        """Clip and apply the gradients."""
        if self.max_grad_norm is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
        self.optimizer.step()

    def gradients(self) -> dict[str, Any]:
        """Return the size of this process's gradients, as `submission.model` has it. Call between `update` and `forget_gradients`."""
        return gradients_of(self.model)

    def forget_gradients(self) -> None:
        """Free the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def gathered(self) -> dict[str, Any] | None:
        """Return the trained weights, gathered from the shards of FSDP2 in the first process's host memory; None where its model holds them."""
        if self.sharding is None:
            return None
        frozen = any(not parameter.requires_grad for parameter in self.model.parameters())
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=frozen)
        return dict(get_model_state_dict(self.model, options=options))


class ZeroEngine(Engine):
    """DeepSpeed clips, updates and frees by itself; it must know which micro-batch is a step's last."""

    def backward(self, loss: Any, *, last: bool) -> None:  # noqa: ANN401 - a torch tensor
        """Add a gradient. DeepSpeed divides by the accumulation, which the weights of our loss already include."""
        engine = self.model
        engine.set_gradient_accumulation_boundary(is_boundary=last)
        engine.backward(loss * engine.gradient_accumulation_steps())

    def update(self) -> None:
        """Clip and apply the gradients."""
        self.model.step()

    def gradients(self) -> dict[str, Any]:
        """Return an unknown size: parameters hold no gradients, and DeepSpeed returns copies in fp32."""
        return {"gradient_bytes_reason": "DeepSpeed keeps gradients in its own buffers, and its API does not report their size"}

    def forget_gradients(self) -> None:
        """Do nothing: the update freed them."""

    def gathered(self) -> dict[str, Any] | None:
        """Return all weights, which stage 3 gathers; in earlier stages each process has the whole model."""
        if self.model.zero_optimization_stage() < STAGES[Strategy.ZERO3]:
            return None
        return self.accelerator.get_state_dict(self.model) or {}


def open_accelerator(plan: Plan, device: Device, *, load_sharded: bool = False) -> Any:  # noqa: ANN401 - torch objects
    """Return accelerate's Accelerator for a plan. With `load_sharded`, models that transformers builds from now on are sharded.

    Raises RuntimeError when it runs another number of processes than the plan or the launcher: on CPUs that goes unnoticed.
    """
    settings: dict[str, Any] = {"mixed_precision": plan.precision.compute.value if plan.autocast else "no"}
    if plan.device.count > 1:
        # On CPUs accelerate leaves the backend unset under DeepSpeed, and every process then believes it is alone.
        # Processes that wait while the first loads the model must not give up: the parent's watchdog decides.
        settings["kwargs_handlers"] = [InitProcessGroupKwargs(backend=collectives(plan, device), timeout=LOADING)]
    if plan.device.strategy in STAGES:
        import deepspeed  # noqa: PLC0415 - an optional package

        # On CPUs it would compile a reduction for inference, which takes a minute, and which training never calls.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        settings["deepspeed_plugin"] = _zero_plugin(plan, load_sharded=load_sharded)
    else:
        # With DeepSpeed, accelerate must not get `cpu`, even on CPUs.
        settings["cpu"] = device.torch_name == "cpu"
    accelerator = Accelerator(**settings)
    if accelerator.device.type != torch.device(device.torch_name).type:
        # Accelerate does not know every device that a package adds to torch.
        accelerator.state.device = torch.device(device.torch_name)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    if not accelerator.num_processes == launched == plan.device.count:
        msg = f"accelerate runs {accelerator.num_processes} processes and the launcher {launched}, the plan has {plan.device.count}"
        raise RuntimeError(msg)
    return accelerator


def collectives(plan: Plan, device: Device) -> str:
    """Return the back end of the process group: the one that torch, or the package that adds the device, registers for the device.

    With FSDP2's shards in host memory, gradients are clipped between hosts too. Raises DeviceUnavailable if there is no such back end.
    """
    kind = torch.device(device.torch_name).type
    own = dist.Backend.default_device_backend_map.get(kind)
    if own in {None, "fake"}:  # the fake one is for tests of torch: it exchanges nothing
        msg = f"no back end for collectives between {kind} devices is registered with torch {torch.__version__}; use one device"
        raise DeviceUnavailable(msg)
    offloaded = plan.device.strategy is Strategy.FSDP2 and plan.device.offload == "all"
    return f"cpu:gloo,{kind}:{own}" if offloaded and kind != "cpu" else own


def wrap(plan: Plan, accelerator: Any, model: Any, optimizer: Any) -> Engine:  # noqa: ANN401 - torch objects
    """Return model and optimizer prepared for the plan's strategy."""
    clip, sharding = plan.optimizer.max_grad_norm, None
    if plan.device.strategy is Strategy.FSDP2:
        prepared, sharding = accelerator.prepare(optimizer), f"torch {type(model).__mro__[1].__name__}"
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model, prepared = accelerator.prepare(model, optimizer)
        if plan.device.strategy in STAGES:
            return ZeroEngine(accelerator, model, prepared, clip, f"DeepSpeed ZeRO stage {model.zero_optimization_stage()}")
        if accelerator.num_processes > 1 and not isinstance(model, DistributedDataParallel):
            model = DistributedDataParallel(model)  # accelerate does this on the devices that it knows only
    # The wrapper scales losses of fp16. Otherwise it only searches the disk twice per step for an optimizer package that we do not
    # use: 0.3 ms on a CPU, as much as a small model's own work.
    return Engine(accelerator, model, prepared.optimizer if prepared.scaler is None else prepared, clip, sharding)


def _zero_plugin(plan: Plan, *, load_sharded: bool) -> Any:  # noqa: ANN401 - a class of accelerate
    zero: dict[str, Any] = {"stage": STAGES[plan.device.strategy]}
    if plan.device.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if plan.device.offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    if plan.device.strategy is Strategy.ZERO3:
        # DeepSpeed gathers weights for saving only if configured to.
        zero["stage3_gather_16bit_weights_on_model_save"] = plan.measurement.save
    config = {
        "train_micro_batch_size_per_gpu": plan.batch.micro_batch,
        "gradient_accumulation_steps": plan.batch.gradient_accumulation,
        "gradient_clipping": plan.optimizer.max_grad_norm or 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": plan.precision.parameters is Dtype.BF16},
        "fp16": {"enabled": plan.precision.compute is Dtype.FP16},
    }
    return DeepSpeedPlugin(zero3_init_flag=load_sharded, hf_ds_config=config)


# The optimizer


def fused_adamw(device: str) -> bool:
    """Return True if torch has a kernel for the update of many weights at once on a device, by its name."""
    place = torch._C._dispatch_key_for_device(torch.device(device).type)  # noqa: SLF001 - there is no public name for either
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adamw_", place))  # noqa: SLF001


def build_optimizer(plan: Plan, model: Any, *, fused: bool) -> Any:  # noqa: ANN401 - torch objects
    """Return the optimizer over the trained weights; `fused` asks torch for one kernel per step."""
    settings, name = plan.optimizer, optimizer_class(plan)
    keywords: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    if "adamw" in settings.name:
        keywords |= {"betas": settings.betas, "eps": settings.epsilon}
    if name in {"AdamW", MASTER_OPTIMIZER}:
        keywords["fused"] = fused
    library = OPTIMIZER_LIBRARIES[name]
    kinds = import_module("tunemark.harness.worker.optimizers" if library == "tunemark" else f"{library}.optim")
    if name == STOCHASTIC_OPTIMIZER:
        keywords["seed"] = kinds.rounding_seed(plan)
    return getattr(kinds, name)(list(parameter_groups(plan, model)), **keywords)


def parameter_groups(plan: Plan, model: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a torch module
    """Yield one group of trained weights, or with `layer_decay` one per block.

    The last block has the full learning rate, as the layers above it, each block below it a fraction of the one above, and the embeddings
    the lowest.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decay = plan.optimizer.layer_decay
    if decay is None:
        yield {"params": trained}
        return
    stack, groups = blocks(model), defaultdict[int, list[Any]](list)
    layers = (module for module in model.modules() if isinstance(module, torch.nn.Embedding))
    above = {id(parameter): 0 for layer in layers for parameter in layer.parameters()}
    above |= {id(parameter): number for number, block in enumerate(stack, start=1) for parameter in block.parameters()}
    for parameter in trained:
        groups[above.get(id(parameter), len(stack))].append(parameter)
    for number, parameters in groups.items():
        yield {"params": parameters, "lr": plan.optimizer.learning_rate * decay ** (len(stack) - number)}


# FSDP2: the first process builds the model, and its blocks are broadcast and sharded one after the other. The others build
# shapes without weights, on torch's `meta` device. So a machine holds the whole model in host memory at most once, and a
# device never more than its shards and one block, or the layers outside all blocks: embeddings, last norm, head.


def shapes_only(plan: Plan, rank: int, *, drawn: bool) -> bool:
    """Return True if a process builds its model without weights: it receives them from the first one, or all draw them block by block."""
    return plan.device.strategy is Strategy.FSDP2 and (rank > 0 or drawn)


def shard(plan: Plan, model: Any, device: Device, *, drawn: bool) -> None:  # noqa: ANN401 - a torch module
    """Shard a model in place, block by block, before its optimizer is created. Raises RuntimeError if processes built different models.

    With `drawn` each process draws the weights of each block itself. So far this has run between CPU processes over gloo only,
    where host and device are one.
    """
    settings: dict[str, Any] = {"mesh": init_device_mesh(torch.device(device.torch_name).type, (plan.device.count,))}
    # The sum over many devices in 16 bits would lose small gradients; torchtitan and torchtune add up in fp32 too.
    settings["mp_policy"] = fsdp.MixedPrecisionPolicy(reduce_dtype=torch.float32)
    if plan.device.offload == "all":
        settings["offload_policy"] = fsdp.CPUOffloadPolicy()
    if drawn:
        torch.manual_seed(plan.measurement.seed)
    for unit in (*blocks(model), model):
        if drawn:
            draw(unit, model, device.torch_name)
        else:
            receive(unit, device.torch_name)
        fsdp.fully_shard(unit, **settings)
    # Whole blocks are gone: what the allocator reserves for them would count as a peak of training.
    device.release_cache()


def receive(unit: Any, device: str) -> None:  # noqa: ANN401 - a torch module
    """Put the whole tensors of a unit on a device, with the first process's values; shards stay as they are."""
    first = dist.get_rank() == 0
    for tensor in chain(unit.parameters(), unit.buffers()):
        if isinstance(tensor, DTensor):
            continue
        value = tensor.detach().to(device).contiguous() if first else torch.empty_like(tensor, device=device)
        dist.broadcast(value, src=0)
        put(tensor, value)


# Save the trained weights


def save_weights(engine: Engine, folder: Path, *, rank: int) -> int:
    """Write adapters, or the whole model without adapters, as safetensors, and remove them; return the bytes written.

    All processes take part: each contributes its part and waits until the first one has written everything.
    """
    state, written = engine.gathered(), 0
    if rank == 0:
        try:
            # Otherwise peft asks the hub whether the vocabulary was changed.
            further = {"save_embedding_layers": False} if hasattr(engine.bare, "peft_config") else {}
            engine.bare.save_pretrained(folder, state_dict=state, **further)
            for path in folder.glob("*.safetensors"):
                # Wait until the weights are on the disk and not only in memory.
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                written += path.stat().st_size
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if not written:
            msg = "saving wrote no weights"
            raise RuntimeError(msg)
    engine.accelerator.wait_for_everyone()
    return written
