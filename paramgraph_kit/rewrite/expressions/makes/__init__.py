"""What the host makes, or brings to the device, is made on the device, or made once."""
