"""What only those run who work on the package: `make`'s steps, the recorder, runs on several GPUs."""
