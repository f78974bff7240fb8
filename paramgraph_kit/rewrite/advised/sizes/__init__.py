"""Advice for sizes that the values decide."""
