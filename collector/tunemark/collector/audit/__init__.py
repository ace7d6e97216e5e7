"""The audit: rules over stored facts, each with a verdict, the records it concerns, and the calculation written out."""
