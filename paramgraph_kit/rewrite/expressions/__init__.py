"""Expressions that the device can compute instead of the host: one module for each way of writing them."""
