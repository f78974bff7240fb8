"""Numbers that the device has found, and what is done with them."""
