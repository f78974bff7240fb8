"""What a device can do: one protocol, the real driver and the simulated one."""
