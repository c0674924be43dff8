"""The core: the kernel that assembles plugins, and the engine, answer and conductor rooms they plug into."""
