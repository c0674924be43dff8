"""The version of the plugin interface."""

API_VERSION = "0.2.1"
"""Semantic version of everything that `tandem.core.plugin` exports.

While it is below 1.0, a new minor version may change a contract; a patch version never does. A plugin module states
the range that it was written for in a module attribute, as a PEP 440 specifier set: `TANDEM_API = ">=0.2,<0.3"`.
"""
