"""What Tandem ships besides code: manifests."""

from pathlib import Path

MANIFESTS = Path(__file__).parent / "manifests"
"""The directory of the shipped manifests."""
