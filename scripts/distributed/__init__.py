"""Training on several GPUs, FSDP2 and DDP, block by block: the same losses as without graphs, time and memory."""
