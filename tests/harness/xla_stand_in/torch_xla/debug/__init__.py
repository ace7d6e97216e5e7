"""Part of the stand-in."""
