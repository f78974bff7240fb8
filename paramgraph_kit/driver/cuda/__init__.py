"""The real device: stream capture, parameter patching and launch through torch.cuda and cuda-bindings."""
