"""From an exception, or from the reason of a partition, to what is known of it and the user's line."""
