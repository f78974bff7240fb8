"""What a traced function may read beside its arguments: ``walk`` finds it, by what it is: ``code`` or ``objects``."""
