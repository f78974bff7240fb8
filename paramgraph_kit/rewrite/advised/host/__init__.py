"""Advice for what the host makes, draws, counts and keeps."""
