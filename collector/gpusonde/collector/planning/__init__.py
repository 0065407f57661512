"""What to rent for a job: questions to the optimizer, answered in processes of their own."""
