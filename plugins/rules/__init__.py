"""The rules that ship with Tandem: each stands at a safe point of a generation and may act there."""
