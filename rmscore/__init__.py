"""Scores of reward models, fast and provably the ones PyTorch gives."""
