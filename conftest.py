"""Settings of the whole suite: hypothesis draws the same examples everywhere and never fails for being slow."""

from hypothesis import settings

settings.register_profile("rmscore", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("rmscore")
