"""Run scripts as they are and look at what they compute: records, comparisons, replays, rehearsals."""
