"""Settings of the whole test run."""

from hypothesis import settings

# the time of one example says nothing on a busy machine
settings.register_profile("tandem", deadline=None)
settings.load_profile("tandem")
