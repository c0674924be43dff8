"""A rule whose module can't be imported: it needs a library that is not there."""

import a_library_that_is_not_there as library
from tandem.core.plugin import Rule, SafePoint, hookimpl

TANDEM_API = ">=0.2,<0.3"


@hookimpl
def tandem_rules() -> list[Rule]:
    return [Rule("broken", at=SafePoint.SP2, check=library.check)]
