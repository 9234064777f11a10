"""PrimeQA's post-processors: from a model's outputs to its records, references and metric-ready predictions."""
