"""The processes of a run: started, brought together, wrapped as Hugging Face wraps them."""
