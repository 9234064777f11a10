"""What happens in a run: Lightning's loops, told as Hugging Face's."""
