"""Learning from a teacher's scores."""
