"""What ``python train.py +experiment=mrc`` runs: settings, examples, features, training, report."""
