"""The packages' own tests run where the packages are installed: see `test_packages.py`."""

collect_ignore_glob = ["tandem-*"]
