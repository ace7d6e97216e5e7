"""One run through optimum-neuron's trainer, from start to end, with the phases and the log of any other run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunemark.harness.devices import Device
from tunemark.harness.worker.architectures import config_of
from tunemark.harness.worker.batches import Share, load_samples, micro_batches
from tunemark.harness.worker.compile_cache import CacheWatch
from tunemark.harness.worker.log import Log
from tunemark.harness.worker.loop import Trainer
from tunemark.harness.worker.models import model_facts, shape_of
from tunemark.harness.worker.neuron import settings
from tunemark.harness.worker.neuron.recording import Recorder
from tunemark.harness.worker.neuron.rows import Rows, collate
from tunemark.harness.worker.ranks import rank_of_this_process
from tunemark.harness.worker.run import Order
from tunemark.harness.worker.stopping import planned_steps, stop_rule
from tunemark.schema.facts.cards import ModelCard
from tunemark.schema.records.plan import Plan
from tunemark.schema.vocabulary import Phase, Weights


@dataclass(frozen=True, slots=True)
class Processes:
    """Stands where the other ways have an engine: the trainer does the work, and only its world size is asked for."""

    processes: int


def run(order: Order, device: Device, log: Log, folder: Path) -> Trainer:
    """Load, train, and log what was seen on the way. Returns what is to be held until the process ends.

    There is no evaluation, which the trainer refuses, and no matrix probe.
    """
    from optimum.neuron import NeuronTrainer, NeuronTrainingArguments  # noqa: PLC0415 - on Neuron machines only

    plan, card = order.plan, order.card
    caches = CacheWatch.of(plan, folder)
    log.phase(Phase.DATA, device.now())
    samples = load_samples(plan, card.vocabulary, order.data_from, order.weights_from)
    steps = planned_steps(plan, samples.training_rows)
    log.phase(Phase.LOAD, device.now())
    arguments = NeuronTrainingArguments(**settings.training_arguments(plan, steps, folder / "trainer"))
    processes = assert_world(plan, int(arguments.world_size))
    whole = whole_model_facts(plan, card, samples.vocabulary)
    model = build_model(plan, card, order.weights_from, samples.vocabulary, arguments.trn_config)
    log.event("model", **model_facts(model) | whole)
    for name in ("adapter_gradient", "packed_documents") if plan.measurement.gates else ():
        log.event("gate", name=name, passed=None, detail="optimum-neuron's trainer prepares the model itself; not looked into")
    share = Share(data_rank(plan), plan.batch.data_parallel)
    rows = Rows(micro_batches(plan, samples.training, shape_of(plan, card), share))
    trainer: Any = Trainer(
        engine=Processes(processes),  # type: ignore[arg-type] # only its world size is asked for
        scheduler=None,
        device=device,
        log=log,
        gradient_accumulation=plan.batch.gradient_accumulation,
        stop=stop_rule(plan, samples.training_rows, folder),
        rank=rank_of_this_process(),
        strict=plan.measurement.timing == "strict",
    )
    recorder = Recorder(plan, trainer, rows, sharding(plan))
    theirs = NeuronTrainer(**settings.trainer(model, arguments, rows, collate, recorder))
    theirs.training_step = recorder.watching(theirs.training_step)
    log.phase(Phase.TRAIN, device.now())
    try:
        theirs.train()
    finally:
        peaks = device.memory()
        log.event("memory", allocated=peaks.allocated.model_dump(), reserved=peaks.reserved.model_dump())
    log.event("model", **model_facts(theirs.model, theirs.optimizer, recorder.gradients) | whole)
    log.phase(Phase.TEARDOWN, device.now())
    log.event("compile_cache", **caches.state())
    trainer.scheduler = theirs
    return trainer  # type: ignore[no-any-return]


def assert_world(plan: Plan, data_parallel: int) -> int:
    """Return the number of processes; raise RuntimeError when the trainer runs with other ones than the plan says.

    What `NeuronTrainingArguments` calls the world size is the number of data-parallel replicas.
    """
    if data_parallel != plan.batch.data_parallel:
        msg = f"optimum-neuron has {data_parallel} data-parallel replicas, the plan has {plan.batch.data_parallel}"
        raise RuntimeError(msg)
    return data_parallel * plan.device.tensor_parallel * plan.device.pipeline_parallel


def data_rank(plan: Plan) -> int:
    """Return which data-parallel replica this process is a part of."""
    if plan.batch.data_parallel == plan.device.count:
        return rank_of_this_process()
    from neuronx_distributed.parallel_layers import parallel_state  # noqa: PLC0415

    return int(parallel_state.get_data_parallel_rank())


def build_model(plan: Plan, card: ModelCard, weights_from: str | None, vocabulary: int | None, parallel: Any) -> Any:  # noqa: ANN401 - objects of the libraries
    """Return optimum-neuron's model, with adapters if the method has them. `parallel` is its TrainingNeuronConfig, which the arguments made."""
    import torch  # noqa: PLC0415
    from optimum.neuron.models.training import NeuronModelForCausalLM  # noqa: PLC0415 - on Neuron machines only

    torch.manual_seed(plan.measurement.seed)
    keywords = settings.pretrained(plan)
    if plan.model.weights is Weights.PRETRAINED:
        model = NeuronModelForCausalLM.from_pretrained(weights_from, parallel, **keywords)
    else:
        config = config_of(card, vocabulary=vocabulary)
        config.dtype = getattr(torch, keywords["dtype"])
        config._attn_implementation = keywords["attn_implementation"]  # noqa: SLF001 - where transformers keeps it
        model = NeuronModelForCausalLM.from_config(config, parallel)
    if plan.lora is None:
        return model
    import peft  # noqa: PLC0415
    from optimum.neuron.peft import get_peft_model  # noqa: PLC0415

    if settings.training_arguments(plan, None, Path())["gradient_checkpointing"]:
        model.enable_input_require_grads()
    return get_peft_model(model, peft.LoraConfig(**settings.adapters(plan.lora)), **settings.wrapping())


def whole_model_facts(plan: Plan, card: ModelCard, vocabulary: int | None) -> dict[str, Any]:
    """Return the numbers of parameters of the whole model, without memory for them: each core holds a part."""
    import peft  # noqa: PLC0415
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(card, vocabulary=vocabulary))
        if plan.lora is not None:
            model = peft.get_peft_model(model, peft.LoraConfig(**settings.adapters(plan.lora)))
    facts = model_facts(model)
    return {name: facts[name] for name in ("parameters", "trainable_parameters")}


def sharding(plan: Plan) -> str | None:
    """Return how the cores share the model, in optimum-neuron's words; None for one core."""
    if plan.device.count == 1:
        return None
    zero = "ZeRO-1, " if plan.device.strategy.value == "zero1" else ""
    return f"optimum-neuron {zero}tensor parallel {plan.device.tensor_parallel}, pipeline parallel {plan.device.pipeline_parallel}"
