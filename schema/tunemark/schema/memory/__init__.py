"""The memory of a training step, predicted from shapes: a ledger of bytes with the formula of each line."""
