"""Which machines to rent for a training job, under a deadline and a budget, and what to change while it runs."""
