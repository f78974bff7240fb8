"""Advice for what lives from step to step."""
