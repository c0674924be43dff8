"""A drafter that was written for a later plugin interface. Its hook must never be called by this one."""

from tandem.core.plugin import Drafter, hookimpl

TANDEM_API = ">=9,<10"


@hookimpl
def tandem_drafters() -> list[Drafter]:
    raise RuntimeError("this hook needs interface 9")
