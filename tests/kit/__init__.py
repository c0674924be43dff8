"""The test kit for plugin authors: the pytest fixture `platform`, a running host in a box."""
