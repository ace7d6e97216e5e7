"""accelerate imports this module; torchrun starts the processes."""
