"""The methods of ``transformers.Trainer`` that users call and override, grouped by what they are about."""
