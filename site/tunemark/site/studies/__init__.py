"""One module per study of findings. Each has its place in the list, `ORDER`, and a function `study(evidence)`."""
