"""The test authority and the web that trusts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # what this room's tests share

from image_site import Web


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A test authority (`ca.pem`) and the certificate that it gave to img.test and cdn.test (`site.pem`)."""
    folder = tmp_path_factory.mktemp("certificates")
    (folder / "site.ext").write_text(
        "basicConstraints=CA:FALSE\nsubjectAltName=DNS:img.test,DNS:cdn.test,IP:127.0.0.1\n"
        "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    commands = [
        f"req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=Authority -addext keyUsage=critical,keyCertSign",
        f"req {key} -keyout site.key -out site.csr -subj /CN=Site",
        "x509 -req -in site.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out site.pem -days 2 -extfile site.ext",
    ]
    for command in commands:
        done = subprocess.run(["openssl", *command.split()], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def web(certificates: Path) -> Web:
    return Web(certificates)
