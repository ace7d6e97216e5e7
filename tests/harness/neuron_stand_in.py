"""A stand-in of optimum-neuron: takes the keywords that the real one takes, and calls back where its trainer does (0.4.5, `_train`).

It trains a transformers model on the CPU. What it cannot show is anything about a device: graphs, time, memory.
"""

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import torch
import transformers

API = json.loads((Path(__file__).parent / "data" / "optimum_neuron_api.json").read_text(encoding="utf-8"))
"""Fields, parameters, attributes and keywords of optimum-neuron 0.4.5, read from its source."""


class Arguments:
    def __init__(self, **settings):
        unknown = set(settings) - set(API["NeuronTrainingArguments"]["fields"])
        assert not unknown, unknown
        self.__dict__.update(settings)
        self.trn_config = SimpleNamespace(tensor_parallel_size=self.tensor_parallel_size)
        self.world_size = 1


class Model:
    configs: ClassVar = []

    @classmethod
    def from_config(cls, config, trn_config):
        assert trn_config.tensor_parallel_size == 1
        cls.configs.append((config._attn_implementation, config.dtype))
        config._attn_implementation = "eager"
        return transformers.AutoModelForCausalLM.from_config(config)


class Trainer:
    """The order of `_train`: batches of a step, begin, micro-steps, update, end."""

    last = None

    def __init__(self, model, args, data_collator, train_dataset, callbacks):
        self.model, self.args = model, args
        self.loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.per_device_train_batch_size, collate_fn=data_collator)
        (self.callback,) = callbacks
        self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.learning_rate)
        Trainer.last = self

    def training_step(self, model, inputs, num_items_in_batch=None):
        # The sum over a micro-batch's supervised tokens, over those of the whole step.
        supervised = int((inputs["labels"][:, 1:] != -100).sum())
        loss = model(**inputs).loss * supervised / num_items_in_batch
        loss.backward()
        return loss

    def call(self, name):
        getattr(self.callback, name)(self.args, None, self.control, model=self.model, optimizer=self.optimizer, lr_scheduler=None)

    def train(self):
        self.control = transformers.TrainerControl()
        self.model.train()
        self.call("on_train_begin")
        batches = iter(self.loader)
        for _ in range(self.args.max_steps):
            samples = [next(batches) for _ in range(self.args.gradient_accumulation_steps)]
            items = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in samples)
            for place, inputs in enumerate(samples):
                if place == 0:
                    self.call("on_step_begin")
                self.training_step(self.model, inputs, num_items_in_batch=items)
            self.call("on_pre_optimizer_step")
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.call("on_step_end")
            if self.control.should_training_stop:
                break
        self.call("on_train_end")


def modules():
    """Return the modules that stand in for the package, by name."""
    import peft

    found = {
        name: ModuleType(name)
        for name in ("optimum", "optimum.neuron", "optimum.neuron.models", "optimum.neuron.models.training", "optimum.neuron.peft")
    }
    found["optimum.neuron"].NeuronTrainer, found["optimum.neuron"].NeuronTrainingArguments = Trainer, Arguments
    found["optimum.neuron.models.training"].NeuronModelForCausalLM = Model

    def get_peft_model(model, peft_config, **settings):
        assert set(settings) <= set(API["get_peft_model"])
        return peft.get_peft_model(model, peft_config, **settings)

    found["optimum.neuron.peft"].get_peft_model = get_peft_model
    return found
