"""Settings of the whole test run."""

import os
import tempfile

from hypothesis import settings

# the time of one example says nothing on a busy machine
settings.register_profile("tandem", deadline=None)
settings.load_profile("tandem")

# what parts keep between runs must not come from, or go to, the state of whoever runs the tests
os.environ["TANDEM_STATE_DIR"] = tempfile.mkdtemp(prefix="tandem-state-")
