"""What happens in a run: Lightning's loops, seen through Hugging Face's events."""
