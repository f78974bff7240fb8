"""Rows, parts and sizes that the device decides: all is kept, at a fixed size."""
