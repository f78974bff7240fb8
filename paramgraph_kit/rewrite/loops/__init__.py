"""Loops that the device ends, or in which the host is asked."""
