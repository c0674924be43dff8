"""Other APIs' doors to the same answers: each reads its own request, asks `Host.chat`, and writes its own events."""
