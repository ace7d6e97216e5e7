"""The way of a run through optimum-neuron's trainer, in an environment of its own (transformers 4.57, peft 0.17, torch 2.8).

Written from the source of optimum-neuron 0.4.5 and tested with a scripted stand-in of its trainer and, keyword by keyword,
against its API. It has never run on a Trainium or Inferentia device: what only such a device can prove is said in each module.

Graphs may be compiled ahead of a run: `neuron_parallel_compile tunemark run WORKLOAD --steps 10`, then the run itself finds
them in the compiler's cache.
"""
