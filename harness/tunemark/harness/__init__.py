"""Measures: plan -> worker -> record. The only package that may import torch and libraries built on it."""
