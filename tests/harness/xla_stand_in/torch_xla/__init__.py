"""A stand-in of torch_xla on the CPU: only the calls that the harness and accelerate make with several processes."""
