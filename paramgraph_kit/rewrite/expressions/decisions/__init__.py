"""Branches and conditions that the device decides."""
