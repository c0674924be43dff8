"""Quantizations: how checkpoints store weights in fewer bits. Each module is one plugin."""
