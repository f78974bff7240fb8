"""The simulated CUDA machine: memory, allocator, streams, kernels, capture and replay on the CPU."""
