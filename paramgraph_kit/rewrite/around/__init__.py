"""What the host does before each launch, around it, and after it."""
