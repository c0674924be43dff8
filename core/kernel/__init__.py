"""The kernel: from a manifest over the registry of plugins to the assembled platform."""

from tandem.core.kernel.layers import shipped
from tandem.core.kernel.manifest import SERVED_NAME, Manifest, ModelSection, load_manifest
from tandem.core.kernel.platform import ActivePart, Platform, StartError, assemble
from tandem.core.kernel.problems import ManifestError, Problem, nearest
from tandem.core.kernel.registry import PluginRecord, Registry

__all__ = [
    "SERVED_NAME",
    "ActivePart",
    "Manifest",
    "ManifestError",
    "ModelSection",
    "Platform",
    "PluginRecord",
    "Problem",
    "Registry",
    "StartError",
    "assemble",
    "load_manifest",
    "nearest",
    "shipped",
]
