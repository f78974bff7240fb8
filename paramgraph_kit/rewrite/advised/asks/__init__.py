"""Advice for what the host asks the device for."""
