"""Where parts keep what outlives the process: learned prices, stores of text. Nothing here is needed to start."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TANDEM_STATE_DIR"


def state_dir(*names: str) -> Path:
    """The directory `names` under Tandem's own state directory, made (mode 0700) if it is not there.

    It is `$TANDEM_STATE_DIR`, else `$XDG_STATE_HOME/tandem`, else `~/.local/state/tandem`. Raises OSError when it can't
    be made; a part should go on without its file then.
    """
    given = os.environ.get(VARIABLE)
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tandem"
    path = Path(given).expanduser() if given else home
    for name in ("", *names):
        path = path / name
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path
