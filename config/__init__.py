"""What Tandem ships besides code: manifests, policies, and the documents of the conductor."""

from pathlib import Path

MANIFESTS = Path(__file__).parent / "manifests"
"""The directory of the shipped manifests."""
POLICIES = Path(__file__).parent / "policy"
"""The directory of the shipped policies."""
DOCUMENTS = Path(__file__).parent / "documents"
"""The directory of the conductor's documents as they are shipped."""
