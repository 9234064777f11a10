"""What is found out about a training before it runs."""
