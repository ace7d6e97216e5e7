"""Headline figures."""
