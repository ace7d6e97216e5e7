"""A stand-in of torch-neuronx: importing it registers nothing."""
