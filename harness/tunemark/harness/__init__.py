"""Measures: plan -> worker -> record. The only room that may import torch and what stands on it."""
