"""What is known of failures: one record each. Imports nothing else of the doctor."""
