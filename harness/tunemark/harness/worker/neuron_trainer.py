"""A run through optimum-neuron's trainer, in an environment of its own (transformers 4.57, peft 0.17, torch 2.8).

Written from the source of optimum-neuron 0.4.5 and tested with a scripted stand-in of its trainer and, keyword by keyword,
against its API. It has never run on a Trainium or Inferentia device. Graphs may be compiled before a run:
`neuron_parallel_compile tunemark run WORKLOAD --steps 10`; the run itself then finds them in the compiler's cache.
"""

import tomllib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import torch
import transformers
from torch.utils.data import IterableDataset, default_collate
from transformers import TrainerCallback

from tunemark.harness.plan.resolve import Order
from tunemark.harness.run.run_log import STOP_FILE, LogWriter, rank_of_this_process
from tunemark.harness.vendors.protocol import Device
from tunemark.harness.worker.data import MicroBatch, Samples, micro_batches
from tunemark.harness.worker.levers import cache_state, compiled_graphs, effective
from tunemark.harness.worker.loop import ENDLESS, SubmittedStep, Trainer, agree
from tunemark.harness.worker.models import GATES, config_of, gradients_of, lora_keywords, model_facts
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.base import flattened
from tunemark.schema.records.plan import Plan
from tunemark.schema.records.trace import NEURON_ATTENTION, TORCH_NAMES
from tunemark.schema.samples import Counts
from tunemark.schema.vocabulary import Checkpointing, Dtype, Phase, Strategy, Weights

OPTIMIZERS = {"adamw": "adamw_torch", "sgd": "sgd"}
ARGUMENTS = tomllib.loads(Path(__file__).with_name("neuron_trainer.toml").read_text(encoding="utf-8"))


def run_by_trainer(order: Order, samples: Samples, device: Device, log: LogWriter, folder: Path) -> object:
    """Build the model and train; log the measurements. Return the objects to keep alive until the process ends.

    There is no evaluation, which the trainer refuses, and no matrix probe.
    """
    from optimum.neuron import NeuronTrainer, NeuronTrainingArguments  # noqa: PLC0415 - on Neuron machines only

    plan, card = order.resolved.plan, order.card
    steps = plan.planned_steps(samples.training_rows)
    arguments = NeuronTrainingArguments(**training_arguments(plan, steps, folder / "trainer"))
    # Its world size is the number of data-parallel replicas.
    if int(arguments.world_size) != plan.batch.data_parallel:
        msg = f"optimum-neuron has {arguments.world_size} data-parallel replicas, the plan has {plan.batch.data_parallel}"
        raise RuntimeError(msg)
    replica = rank_of_this_process()
    if plan.batch.data_parallel != plan.device.count:
        from neuronx_distributed.parallel_layers import parallel_state  # noqa: PLC0415

        replica = int(parallel_state.get_data_parallel_rank())
    # Each core holds a part of the model: the whole one is counted without memory for it.
    with torch.device("meta"):
        counted = transformers.AutoModelForCausalLM.from_config(config_of(card, vocabulary=samples.vocabulary))
        if plan.lora is not None:
            counted = peft.get_peft_model(counted, peft.LoraConfig(**lora_keywords(plan.lora)))
    facts = model_facts(counted)
    whole = {name: facts[name] for name in ("parameters", "trainable_parameters")}
    model = build_neuron_model(plan, card, order.resolved.weights_from, samples.vocabulary, arguments.trn_config)
    log.event("model", **model_facts(model) | whole)
    for name in GATES if plan.measurement.gates else ():
        log.event("gate", name=name, passed=None, detail="not checked: optimum-neuron's trainer prepares the model itself")
    rows = Rows(micro_batches(plan, samples.training, replica, plan.batch.data_parallel))
    trainer: Any = Trainer(
        engine=SimpleNamespace(processes=plan.device.count),  # type: ignore[arg-type] # the trainer does the work; only its world size is read
        scheduler=None,
        device=device,
        log=log,
        plan=plan,
        steps=steps,
        stop_file=folder / STOP_FILE,
        rank=rank_of_this_process(),
    )
    recorder = Recorder(trainer, rows)
    theirs = NeuronTrainer(model=model, args=arguments, train_dataset=rows, data_collator=default_collate, callbacks=[recorder])
    theirs.training_step = recorder.watching(theirs.training_step)
    log.phase(Phase.TRAIN, device.now())
    try:
        theirs.train()
    finally:
        log.event("memory", **device.memory())
    log.event("model", **model_facts(theirs.model, theirs.optimizer) | whole)
    log.phase(Phase.TEARDOWN, device.now())
    log.event("compile_cache", **cache_state(plan))
    return trainer, theirs


def build_neuron_model(plan: Plan, card: ModelCard, weights_from: str | None, vocabulary: int | None, parallel: Any) -> Any:  # noqa: ANN401 - objects of the libraries
    """Return optimum-neuron's model, with adapters if the method has them. `parallel` is its TrainingNeuronConfig."""
    from optimum.neuron.models.training import NeuronModelForCausalLM  # noqa: PLC0415 - on Neuron machines only

    torch.manual_seed(plan.measurement.seed)
    dtype, attention = TORCH_NAMES[plan.precision.parameters], NEURON_ATTENTION[plan.model.attention]
    if plan.model.weights is Weights.PRETRAINED:
        model = NeuronModelForCausalLM.from_pretrained(weights_from, parallel, dtype=dtype, attn_implementation=attention)
    else:
        config = config_of(card, vocabulary=vocabulary)
        config.dtype = getattr(torch, dtype)
        config._attn_implementation = attention  # noqa: SLF001 - where transformers keeps it
        model = NeuronModelForCausalLM.from_config(config, parallel)
    if plan.lora is None:
        return model
    from optimum.neuron.peft import get_peft_model  # noqa: PLC0415

    if plan.model.gradient_checkpointing is Checkpointing.FULL:
        model.enable_input_require_grads()
    # Adapters keep the format of the weights.
    return get_peft_model(model, peft.LoraConfig(**lora_keywords(plan.lora)), autocast_adapter_dtype=False)


def training_arguments(plan: Plan, steps: int | None, scratch: Path) -> dict[str, Any]:
    """Return the keywords of `NeuronTrainingArguments`; a test compares each one with its API.

    The trainer never decays norms and biases, which our own loop does. In this version of optimum-neuron, master weights in fp32 exist
    with ZeRO 1 only.
    """
    optimizer, zero, stated = plan.optimizer, plan.device.strategy is Strategy.ZERO1, dict(flattened(plan.model_dump()))
    return {
        **ARGUMENTS["fixed"],
        **{name: stated[field] for name, field in ARGUMENTS["fields"].items()},
        **dict.fromkeys(("zero_1", "optimizer_use_master_weights", "optimizer_use_fp32_grad_acc"), zero),
        "max_steps": steps or ENDLESS,
        "gradient_checkpointing": plan.model.gradient_checkpointing is Checkpointing.FULL,
        "bf16": plan.precision.compute is Dtype.BF16,
        "optim": OPTIMIZERS[optimizer.name],
        "adam_beta1": optimizer.betas[0],
        "adam_beta2": optimizer.betas[1],
        "max_grad_norm": optimizer.max_grad_norm or 0.0,
        "stochastic_rounding_enabled": plan.rounds_stochastically,
        "output_dir": str(scratch),
    }


# Data: our micro-batches as rows, which the trainer's loader combines again in the same order


class Rows(IterableDataset):  # type: ignore[misc] # torch ships no types that are read here
    """The rows of a stream of micro-batches. The counts of each micro-batch wait in `counts` until its step is taken.

    The trainer loads in its own process and reads a step's micro-batches just before it trains on them, so the counts of a
    step are the first ones that wait.
    """

    def __init__(self, batches: Iterator[MicroBatch]) -> None:
        super().__init__()
        self.counts: deque[Counts] = deque()
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield rows of shape (tokens,), all with a mask: graphs with and without one would both be compiled."""
        for batch in self._batches:
            tensors = {"attention_mask": torch.ones_like(batch.tensors["input_ids"]), **batch.tensors}
            self.counts.append(batch.everywhere)
            for place in range(len(tensors["input_ids"])):
                yield {name: tensor[place] for name, tensor in tensors.items()}

    def take(self, micro_batches: int) -> Counts:
        """Return the summed counts of the oldest micro-batches that were not taken yet."""
        counts = Counts()
        for _ in range(min(micro_batches, len(self.counts))):
            counts = counts.plus(self.counts.popleft())
        return counts


class Recorder(TrainerCallback):  # type: ignore[misc] # transformers ships no types that are read here
    """A callback of the trainer that writes our log and ends training when the stop rule applies.

    `on_step_end` is called when a step is recorded, before the lazy graph runs. So the step's loss and vote are put into
    that graph, and read when the next step has been submitted: always one step behind, so that the device never waits for
    the host, with a full wait at both ends of training (definitions#step-time). Only a device can prove that it is then busy
    without a gap.
    """

    def __init__(self, trainer: Trainer, rows: Rows) -> None:
        self._plan, self._trainer, self._rows = trainer.plan, trainer, rows
        self._losses: list[Any] = []
        self._last: tuple[Any, Counts] | None = None
        self._started_s, self._graphs, self._steps = 0.0, 0, 0

    def watching(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the trainer's `training_step` with its results kept: each micro-batch's part of the step's loss."""

        def watched(*arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - the trainer's own arguments
            loss = training_step(*arguments, **settings)
            self._losses.append(loss.detach())
            return loss

        return watched

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Log the settings in effect, wait for the device, and start measuring."""
        trainer = self._trainer
        model = getattr(objects["model"], "original_torch_module", objects["model"])
        processes = trainer.engine.processes
        group = sharding = None
        if processes > 1:
            device = self._plan.device
            zero = "ZeRO-1, " if device.strategy is Strategy.ZERO1 else ""
            group = "xla"
            sharding = f"optimum-neuron {zero}tensor parallel {device.tensor_parallel}, pipeline parallel {device.pipeline_parallel}"
        trainer.log.event("effective", **effective(self._plan, model, objects["optimizer"], processes, group, sharding))
        self._started_s, self._graphs = trainer.begin(), compiled_graphs()

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Mark the previous step, since its last graph has been submitted, and log the steps that have a result."""
        self._mark()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Measure the size of the gradients once; their values are not read."""
        if not self._steps:
            self._trainer.log.event("model", **gradients_of(objects["model"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Put the step's loss and vote into its graph; end training once the first process has voted to.

        All processes have read the same steps here, so all end after the same one.
        """
        trainer = self._trainer
        self._steps += 1
        replicas = trainer.engine.processes // self._plan.device.pipeline_parallel
        wants = trainer.wants_to_stop(trainer.device.now() - self._started_s, self._steps)
        # Summed over all processes: of a pipeline's stages only the last has a loss, and tensor-parallel ones have the same.
        result = agree(trainer, sum(self._losses) / replicas, wants=wants)
        self._losses.clear()
        self._last = (trainer.device.host_copy(result), self._rows.take(trainer.plan.batch.gradient_accumulation))
        if trainer.plan.measurement.timing == "strict":
            self._mark()
            trainer.device.synchronise()
        if trainer.votes and trainer.votes[-1]:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:  # noqa: ANN401, ARG002 - the library's signature
        """Wait for the device and log the rest."""
        self._mark()
        self._trainer.device.synchronise()
        self._trainer.log_reached()

    def _mark(self) -> None:
        trainer = self._trainer
        if self._last is not None:
            graphs = compiled_graphs()
            (result, counts), self._last = self._last, None
            trainer.pending.append(SubmittedStep(trainer.device.stamp(), None, result, counts, graphs - self._graphs, None))
            self._graphs = graphs
        trainer.log_reached()
